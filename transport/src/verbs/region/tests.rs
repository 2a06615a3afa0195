//! Memory in its several forms, and what is refused.

use super::*;

#[test]
fn memory_is_zeroed_aligned_and_shared_by_its_clones() {
    let memory = Memory::allocate(10_000).unwrap();
    assert_eq!(memory.start().as_ptr() as usize % rustix::param::page_size(), 0);
    assert!(memory.lock().bytes(0..10_000).iter().all(|&byte| byte == 0));
    let clone = memory.clone();
    clone.write(9_990, b"0123456789");
    let mut tail = [0; 3];
    memory.read(9_997, &mut tail);
    assert_eq!(&tail, b"789");
    memory.store(8, 0x0102);
    assert_eq!(clone.load(8), 0x0102);
    assert_eq!(clone.lock().bytes(8..10), [2, 1]);
}

#[test]
fn lent_memory_stays_with_its_owner() {
    let mut bytes = vec![7; 64];
    let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
    // SAFETY: the vector outlives the memory, and nobody touches it meanwhile.
    let memory = unsafe { Memory::lent(start, bytes.len()) };
    let clone = memory.clone();
    assert!(memory.is_shared());
    clone.store(8, 0x0102);
    drop(clone);
    assert!(!memory.is_shared());
    drop(memory);
    assert_eq!(bytes[7..11], [7, 2, 1, 0]);
}

#[test]
fn a_dmabuf_that_can_be_mapped_is_reached() {
    let page = rustix::param::page_size();
    let (file_memory, file) = Memory::in_file(3 * page).unwrap();
    assert!(file_memory.lock().bytes(0..3 * page).iter().all(|&byte| byte == 0));
    let dmabuf = Memory::of_dmabuf(file, page as u64, 2 * page).unwrap();
    if cfg!(not(target_arch = "x86_64")) {
        return assert!(dmabuf.reached().is_err());
    }
    let reached = dmabuf.reached().unwrap();
    reached.write(5, b"here");
    let mut there = [0; 4];
    file_memory.read(page + 5, &mut there);
    assert_eq!((&there, reached.bytes()), (b"here", 2 * page));
    assert!(reached.reached().unwrap().same(&reached), "memory of this process is itself");
}

#[test]
fn what_cannot_be_mapped_is_not_reached() {
    let page = rustix::param::page_size();
    let failure = |descriptor, bytes| {
        let dmabuf = Memory::of_dmabuf(descriptor, page as u64, bytes).unwrap();
        dmabuf.reached().unwrap_err().to_string()
    };
    let (_memory, file) = Memory::in_file(3 * page).unwrap();
    // A read behind the end of a file would be a signal.
    let error = failure(file, 2 * page + 1);
    assert!(error.starts_with("map a dma-buf into this process"), "{error}");
    let error = failure(a_descriptor(), page);
    assert!(error.starts_with("map a dma-buf into this process"), "{error}");
}

fn a_descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

#[test]
fn a_dmabuf_begins_at_a_page() {
    let page = rustix::param::page_size();
    let memory = Memory::of_dmabuf(a_descriptor(), page as u64, 100).unwrap();
    let offset = memory.dmabuf().map(DmaBuf::offset);
    assert_eq!((memory.bytes(), offset), (100, Some(page as u64)));
    for (offset, bytes) in [(8, 100), (0, 0)] {
        let error = Memory::of_dmabuf(a_descriptor(), offset, bytes).unwrap_err().to_string();
        assert!(error.starts_with("use a dma-buf"), "{error}");
    }
}

#[test]
#[should_panic(expected = "of a dma-buf")]
fn memory_of_a_device_is_not_read_by_this_process() {
    Memory::of_dmabuf(a_descriptor(), 0, 100).unwrap().read(0, &mut [0]);
}

#[test]
#[should_panic(expected = "outside")]
fn nothing_outside_is_read() {
    let memory = Memory::allocate(100).unwrap();
    memory.read(98, &mut [0; 4]);
}

#[test]
fn access_is_what_was_granted() {
    assert!(Access::ALL.allows(Access::WRITE) && Access::ALL.allows(Access::ATOMIC));
    assert!(Access::READ.allows(Access::READ) && Access::READ.allows(Access::LOCAL));
    assert!(!Access::READ.allows(Access::WRITE) && !Access::LOCAL.allows(Access::READ));
    assert!(!Access::WRITE.allows(Access::ATOMIC));
}
