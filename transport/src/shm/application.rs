//! Shared memory that the application has made itself: a memfd, or a file in `/dev/shm`.
//!
//! Its file has no room for the head that peers expect, so the head is a file of its own, which says where the memory is.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use rustix::fs::{Mode, OFlags, Stat, fstat, fstatfs, major, minor};

use super::map::{Elsewhere, Map};
use super::{RECORD_WORDS, SharedFile};
use crate::TransportError;

/// A stretch of a file that the application has mapped, and the head by which peers know it.
#[derive(Debug)]
pub(crate) struct ApplicationMemory {
    /// Kept open for the peers.
    _file: OwnedFd,
}

/// What the head says of memory elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    descriptor: u64,
    /// Where it begins in the file.
    offset: u64,
    bytes: u64,
    /// Of the file.
    device: u64,
    inode: u64,
}

impl Record {
    fn words(self) -> [u64; RECORD_WORDS] {
        let Self { descriptor, offset, bytes, device, inode } = self;
        [descriptor, offset, bytes, device, inode]
    }

    fn of(words: [u64; RECORD_WORDS]) -> Self {
        let [descriptor, offset, bytes, device, inode] = words;
        Self { descriptor, offset, bytes, device, inode }
    }
}

impl ApplicationMemory {
    /// The head of the `bytes` bytes at `address`, if they lie in one shared mapping of a file that can be opened, and mapped as
    /// peers map it.
    pub(crate) fn at(address: usize, bytes: usize) -> Option<Arc<SharedFile>> {
        let me = Process::myself().ok()?;
        let (first, end) = (address as u64, address.checked_add(bytes)? as u64);
        let map = me
            .maps()
            .ok()?
            .into_iter()
            .find(|map| map.address.0 <= first && end <= map.address.1)?;
        let needed = MMPermissions::SHARED | MMPermissions::READ | MMPermissions::WRITE;
        if map.inode == 0 || !map.perms.contains(needed) {
            return None;
        }
        let file = file_of(&me, &map)?;
        // Its pages are larger than those in which peers map.
        if fstatfs(&file).ok()?.f_type == libc::HUGETLBFS_MAGIC {
            return None;
        }
        let stat = fstat(&file).ok()?;
        let record = Record {
            descriptor: u64::try_from(file.as_raw_fd()).ok()?,
            offset: map.offset + (first - map.address.0),
            bytes: bytes as u64,
            device: stat.st_dev,
            inode: stat.st_ino,
        };
        // A seal may forbid what the application did before.
        map_of(&file, record).ok()?;
        let mut head = SharedFile::create("r2ccl-registered", 0).ok()?;
        // SAFETY: nobody else knows the file yet.
        unsafe { head.map.record().write(record.words()) };
        head.elsewhere = Some(Self { _file: file });
        Some(Arc::new(head))
    }
}

/// The file of a mapping: one that the process has open, or that still has the name it had.
fn file_of(me: &Process, map: &MemoryMap) -> Option<OwnedFd> {
    let open = |path: &str| {
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        is_of(&fstat(&file).ok()?, map).then_some(file)
    };
    let descriptors =
        me.fd().ok()?.flatten().map(|descriptor| format!("/proc/self/fd/{}", descriptor.fd));
    // Devices may do something when they are opened.
    let is_same = |path: &String| rustix::fs::stat(path).is_ok_and(|stat| is_of(&stat, map));
    let path = if let MMapPath::Path(path) = &map.pathname { path.to_str() } else { None };
    let named = path.map(str::to_owned);
    descriptors.chain(named).filter(is_same).find_map(|path| open(&path))
}

/// Whether this is the file of a mapping.
fn is_of(stat: &Stat, map: &MemoryMap) -> bool {
    let device = (major(stat.st_dev), minor(stat.st_dev));
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    is_file
        && stat.st_ino == map.inode
        && map.dev == (device.0.cast_signed(), device.1.cast_signed())
}

/// Maps the memory to which `head` is the head in process `pid`, if it lies elsewhere.
pub(super) fn find(head: &mut Map, pid: u32) -> Result<(), TransportError> {
    // SAFETY: the peer wrote it before it announced the file and never changes it.
    let record = Record::of(unsafe { head.record().read() });
    if record.bytes == 0 {
        return Ok(());
    }
    let path = format!("/proc/{pid}/fd/{}", record.descriptor);
    let wrong = |what: &str| TransportError::Protocol(format!("{path} of a peer {what}"));
    let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|cause| TransportError::system(format!("open {path} of a peer"), cause))?;
    let stat =
        fstat(&file).map_err(|cause| TransportError::system(format!("stat {path}"), cause))?;
    if (stat.st_dev, stat.st_ino) != (record.device, record.inode) {
        return Err(wrong("is not the memory that was registered"));
    }
    let end = record.offset.checked_add(record.bytes).and_then(|end| i64::try_from(end).ok());
    if end.is_none_or(|end| end > stat.st_size) {
        return Err(wrong("is shorter than the memory that was registered"));
    }
    head.set_elsewhere(map_of(&file, record)?);
    Ok(())
}

/// The pages of a file in which the memory lies.
fn map_of(file: &OwnedFd, record: Record) -> Result<Elsewhere, TransportError> {
    let page = rustix::param::page_size() as u64;
    let start = record.offset / page * page;
    let convert = |value: u64| {
        usize::try_from(value)
            .map_err(|_| TransportError::Protocol("registered memory of a peer is too long".into()))
    };
    let (first, bytes) = (convert(record.offset - start)?, convert(record.bytes)?);
    let map = Box::new(Map::pages(file, start, first + bytes)?);
    Ok(Elsewhere { map, first, bytes })
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "skips are reported")]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap};

    use crate::TransportError;
    use crate::shm::Allocation;
    use crate::window::{Window, Windows};

    const PAGES: usize = 5;

    /// Maps all pages of a file but the first.
    fn mapped(file: &File, flags: MapFlags) -> usize {
        let page = rustix::param::page_size();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = (PAGES - 1) * page;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        unsafe { mmap(std::ptr::null_mut(), bytes, access, flags, file, page as u64) }
            .unwrap()
            .expose_provenance()
    }

    fn memory() -> File {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("r2ccl-test", flags).unwrap();
        ftruncate(&file, (PAGES * rustix::param::page_size()) as u64).unwrap();
        file.into()
    }

    #[test]
    fn what_the_application_shares_is_reached_through_a_window() {
        let (file, page) = (memory(), rustix::param::page_size());
        let address = mapped(&file, MapFlags::SHARED) + 100;
        let shared = Allocation::of_application(address, 2 * page).unwrap();
        assert!(shared.is_of_application());
        shared.publish();
        file.write_all_at(b"here", (page + 100 + 7) as u64).unwrap();
        let window = Window::on(address + 7, page).unwrap();
        let mut windows = Windows::default();
        assert_eq!(windows.view(&window, 0..4).unwrap().bytes(0..4), b"here");
        windows.open(&window, 0..page, None).unwrap().bytes_mut(0..5).copy_from_slice(b"there");
        let mut got = [0; 5];
        file.read_exact_at(&mut got, (page + 100 + 7) as u64).unwrap();
        assert_eq!(&got, b"there");
        assert_eq!(Window::on(address, 2 * page + 1), None, "not all of it is registered");
        // Registered twice.
        shared.publish();
        shared.withdraw();
        assert!(Window::on(address, 1).is_some(), "once is left");
        shared.withdraw();
        assert!(Window::on(address, 1).is_none());
    }

    #[test]
    fn memory_that_is_registered_inside_of_other_memory_hides_nothing() {
        let (file, page) = (memory(), rustix::param::page_size());
        let address = mapped(&file, MapFlags::SHARED);
        let whole = Allocation::of_application(address, 4 * page).unwrap();
        let inner = Allocation::of_application(address + page, page).unwrap();
        whole.publish();
        inner.publish();
        let found = |at, bytes| Window::on(address + at, bytes).is_some();
        assert!(found(page + 1, page - 1) && found(page + 1, 2 * page) && found(3 * page, page));
        assert!(!found(3 * page, page + 1), "longer than both");
        whole.withdraw();
        assert!(found(page + 1, page - 1) && !found(page + 1, 2 * page));
        inner.withdraw();
    }

    #[test]
    fn what_peers_cannot_reach_is_not_shared() {
        let (file, page) = (memory(), rustix::param::page_size());
        let private = mapped(&file, MapFlags::PRIVATE);
        assert!(Allocation::of_application(private, page).is_none());
        let ordinary = [0_u8; 100];
        assert!(Allocation::of_application(ordinary.as_ptr().expose_provenance(), 100).is_none());
        let shared = mapped(&file, MapFlags::SHARED);
        assert!(Allocation::of_application(shared, PAGES * page).is_none(), "longer");
        assert!(Allocation::of_application(shared, page).is_some());
        fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).unwrap();
        assert!(Allocation::of_application(shared, page).is_none(), "written here only");
        let (file, _another) = (memory(), memory());
        let shared = mapped(&file, MapFlags::SHARED);
        drop(file);
        assert!(Allocation::of_application(shared, page).is_none(), "without name or descriptor");
    }

    #[test]
    fn memory_in_huge_pages_is_not_shared() {
        const HUGE_BYTES: usize = 2 << 20;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let file = memfd_create("r2ccl-test", flags)
            .and_then(|file| ftruncate(&file, HUGE_BYTES as u64).map(|()| file));
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let start = file.and_then(|file| {
            // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
            let map = |file: &OwnedFd| unsafe {
                mmap(std::ptr::null_mut(), HUGE_BYTES, access, MapFlags::SHARED, file, 0)
            };
            map(&file).map(|start| (start.expose_provenance(), file))
        });
        let (start, _file) = match start {
            Ok(start) => start,
            Err(cause) => return println!("skip: there are no huge pages: {cause}"),
        };
        for (at, bytes) in [(0, HUGE_BYTES), (4096, 4096), (0, 4097)] {
            assert!(Allocation::of_application(start + at, bytes).is_none(), "{bytes} at {at}");
        }
    }

    #[test]
    fn a_file_that_still_has_its_name_need_not_be_open() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("memory");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len((PAGES * rustix::param::page_size()) as u64).unwrap();
        let address = mapped(&file, MapFlags::SHARED);
        drop(file);
        assert!(Allocation::of_application(address, 100).is_some());
        std::fs::rename(&path, folder.path().join("other")).unwrap();
        assert!(Allocation::of_application(address, 100).is_some(), "under another name");
        std::fs::remove_file(folder.path().join("other")).unwrap();
        File::create_new(&path).unwrap();
        assert!(Allocation::of_application(address, 100).is_none(), "another file has that name");
    }

    #[test]
    fn memory_that_became_shorter_is_refused() {
        let (file, page) = (memory(), rustix::param::page_size());
        let address = mapped(&file, MapFlags::SHARED);
        let shared = Allocation::of_application(address, page).unwrap();
        shared.publish();
        let window = Window::on(address, page).unwrap();
        file.set_len(page as u64 + 100).unwrap();
        let refused = Windows::default().view(&window, 0..1).unwrap_err();
        assert!(
            matches!(&refused, TransportError::Protocol(text) if text.contains("shorter")),
            "{refused}"
        );
        shared.withdraw();
    }
}
