//! Links between processes of one host through anonymous shared memory.
//!
//! Every rank creates one segment that holds the rings it *sends* into: one per rank of the host, and
//! one that all of them read.
//! The segment is a memfd: it has no name, is readable by the owner's processes only, and vanishes
//! with the last process that holds it, however that ends. A peer opens it through
//! `/proc/<pid>/fd`, which the kernel allows to processes of the same user only, and checks a
//! random cookie, so that a recycled process number cannot be taken for the peer.

mod application;
mod map;
mod renunciation;

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

pub(crate) use self::application::ApplicationMemory;
pub(crate) use self::map::Map;
pub(crate) use self::renunciation::Renunciation;
pub use self::renunciation::Writing;
pub use crate::allocation::Allocation;
use crate::bell::Bell;
use crate::ring::{Memory, PAIR_BYTES, Ring, RingLink, RingShape};
use crate::{Link, TransportError};

/// The first page holds the cookie and the bell of its owner, and whether it has renounced; everything else begins behind it.
const HEAD_BYTES: usize = 4096;
/// On a line of its own.
const BELL_AT: usize = 64;

/// In the head of an [`Allocation`]: whether the owner has freed it.
const FREED_AT: usize = 320;

/// In the head too: where the memory is, if it does not follow.
const RECORD_AT: usize = 192;
const RECORD_WORDS: usize = 5;

/// Between one ring and the next. Whoever reads a floor to its end has the processor prefetch what lies behind it, into the
/// next page too. That were the lines of the next ring, by one of which its writer judges how far the reader is: a rank on
/// the writer's own core would bring that line there, and a far reader would pass for a near one.
const GAP_BYTES: usize = 8192;

/// Smaller files get no huge pages: most of the last one would be wasted.
const LEAST_HUGE_BYTES: usize = 16 << 20;

/// Length of a cookie.
pub(crate) const COOKIE_BYTES: usize = 16;

/// What a peer needs to know to open a [`Segment`] or an [`Allocation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentAddress {
    /// Process that created it.
    pub pid: u32,
    /// Its descriptor in that process.
    pub descriptor: i32,
    /// Random bytes at its beginning.
    pub cookie: [u8; COOKIE_BYTES],
}

/// The memory this rank sends through.
#[derive(Debug)]
pub struct Segment {
    file: SharedFile,
    peers: usize,
    /// Of the ring to one rank, and of that to all.
    pair: RingShape,
    multicast: RingShape,
}

/// The segment of another rank of the host.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Of the rank, among the ranks of the host.
    index: usize,
    map: Arc<Map>,
}

impl Neighbour {
    fn bell(&self) -> Bell {
        Bell::new(Arc::clone(&self.map) as Arc<dyn Memory>, BELL_AT)
    }
}

impl Segment {
    /// Creates a segment with a ring of the shape `pair` to each of `peers` ranks of this host (including oneself,
    /// which stays unused, so that everybody counts alike), and one of the shape `multicast` to all of them.
    ///
    /// # Errors
    /// The host refuses the memory.
    pub fn create(
        peers: usize,
        pair: RingShape,
        multicast: RingShape,
    ) -> Result<Self, TransportError> {
        let bytes = peers * ring_bytes(pair, 1) + ring_bytes(multicast, peers);
        let file = SharedFile::create("r2ccl-links", bytes)?;
        Ok(Self { file, peers, pair, multicast })
    }

    /// What the peers need to open it.
    #[must_use]
    pub fn address(&self) -> SegmentAddress {
        self.file.address()
    }

    /// Opens the segment that the rank with this index among the ranks of the host has announced.
    ///
    /// # Errors
    /// It cannot be opened, or is not what was announced.
    pub fn open(
        &self,
        index: usize,
        address: &SegmentAddress,
    ) -> Result<Neighbour, TransportError> {
        Ok(Neighbour { index, map: Arc::new(open(address, self.file.map.bytes())?) })
    }

    /// What the owner sleeps on; all links ring those of their peers.
    #[must_use]
    pub fn bell(&self) -> Bell {
        Bell::new(Arc::clone(&self.file.map) as Arc<dyn Memory>, BELL_AT)
    }

    /// The link between the owner, with index `me`, and `peer`.
    #[must_use]
    pub fn link(&self, me: usize, peer: &Neighbour) -> Box<dyn Link> {
        let outgoing = self.ring(&self.file.map, peer.index);
        let incoming = self.ring(&peer.map, me);
        let link = RingLink::new(Some((outgoing, vec![0])), Some((incoming, 0)), true);
        let (own, theirs) = (Renunciation::of(&self.file.map), Renunciation::of(&peer.map));
        Box::new(link.ringing(vec![peer.bell()]).renouncing(Some(own), Some(theirs)))
    }

    /// The link on which the owner sends to all other ranks of the host at once.
    #[must_use]
    pub fn multicast(&self, peers: &[Neighbour]) -> Box<dyn Link> {
        let readers = peers.iter().map(|peer| peer.index).collect();
        let ring = self.multicast_ring(&self.file.map);
        let link = RingLink::new(Some((ring, readers)), None, true);
        let own = Renunciation::of(&self.file.map);
        Box::new(
            link.ringing(peers.iter().map(Neighbour::bell).collect()).renouncing(Some(own), None),
        )
    }

    /// The link on which the owner, with index `me`, receives what `peer` sends to all.
    #[must_use]
    pub fn listen(&self, me: usize, peer: &Neighbour) -> Box<dyn Link> {
        let ring = self.multicast_ring(&peer.map);
        let link = RingLink::new(None, Some((ring, me)), true);
        let theirs = Renunciation::of(&peer.map);
        Box::new(link.ringing(vec![peer.bell()]).renouncing(None, Some(theirs)))
    }

    /// The ring to the rank with this index.
    fn ring(&self, map: &Arc<Map>, index: usize) -> Ring {
        ring_in(map, HEAD_BYTES + index * ring_bytes(self.pair, 1), self.pair, 1)
    }

    /// The ring to all ranks.
    fn multicast_ring(&self, map: &Arc<Map>) -> Ring {
        let offset = HEAD_BYTES + self.peers * ring_bytes(self.pair, 1);
        ring_in(map, offset, self.multicast, self.peers)
    }
}

/// A ring whose pages this process has entered: no call has to wait for them, one by one.
fn ring_in(map: &Arc<Map>, offset: usize, shape: RingShape, readers: usize) -> Ring {
    map.populate(offset..offset + shape.bytes(readers));
    Ring::new(Arc::clone(map) as Arc<dyn Memory>, offset, shape, readers)
}

/// What a ring takes in its segment: it, and what keeps the next one apart.
fn ring_bytes(shape: RingShape, readers: usize) -> usize {
    shape.bytes(readers).next_multiple_of(PAIR_BYTES) + GAP_BYTES
}

/// Memory behind a cookie, in a file that peers can open.
#[derive(Debug)]
pub(crate) struct SharedFile {
    map: Arc<Map>,
    file: OwnedFd,
    cookie: [u8; COOKIE_BYTES],
    /// The memory, if it is not behind the head.
    elsewhere: Option<ApplicationMemory>,
}

impl SharedFile {
    /// `bytes` bytes of zeros behind the head.
    pub(crate) fn create(name: &str, bytes: usize) -> Result<Self, TransportError> {
        let bytes = HEAD_BYTES.checked_add(bytes).ok_or_else(|| {
            let call = format!("allocate {bytes} bytes of shared memory ({name})");
            TransportError::system(call, "no address space has as many")
        })?;
        let file = anonymous_file(name, bytes)?;
        let map = Map::of(&file, bytes)?;
        let mut cookie = [0; COOKIE_BYTES];
        random(&mut cookie)?;
        // SAFETY: nobody else knows the file yet, and the head is larger than the cookie.
        unsafe { map.start().cast::<[u8; COOKIE_BYTES]>().write(cookie) };
        Ok(Self { map: Arc::new(map), file, cookie, elsewhere: None })
    }

    /// What the peers need to open it.
    pub(crate) fn address(&self) -> SegmentAddress {
        let pid = std::process::id();
        SegmentAddress { pid, descriptor: self.file.as_raw_fd(), cookie: self.cookie }
    }

    /// Whether this is but the head of memory that the application has made.
    pub(crate) fn is_of_application(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Where the memory behind the head begins.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: `create` made the file larger than its head.
        unsafe { self.map.start().add(HEAD_BYTES) }
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // Peers need not keep what nobody will tell them of again.
        self.map.word(FREED_AT).store(1, Ordering::Relaxed);
    }
}

/// Maps the whole file at `address`, which must have at least `least` bytes: as many as the own segment, or none.
pub(crate) fn open(address: &SegmentAddress, least: usize) -> Result<Map, TransportError> {
    let path = format!("/proc/{}/fd/{}", address.pid, address.descriptor);
    let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|cause| TransportError::system(format!("open {path} of a peer"), cause))?;
    let size = rustix::fs::fstat(&file)
        .map_err(|cause| TransportError::system(format!("stat {path}"), cause))?
        .st_size;
    let size = usize::try_from(size).unwrap_or(0);
    let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    if size < HEAD_BYTES || !seals.contains(SealFlags::SHRINK) {
        return Err(TransportError::Protocol(format!("{path} is not memory of this library")));
    }
    if size < least {
        let text = format!(
            "the rings of a peer ({path}) take {size} bytes, those of this rank {least}: R2CCL_SHM_SLOTS and \
             R2CCL_TILE_BYTES must be the same in all ranks of a host"
        );
        return Err(TransportError::Protocol(text));
    }
    let mut map = Map::of(&file, size)?;
    // SAFETY: the peer wrote the cookie before it announced the file and never changes it.
    let cookie = unsafe { map.start().cast::<[u8; COOKIE_BYTES]>().read() };
    if cookie != address.cookie {
        return Err(TransportError::Protocol(format!("{path} is not what was announced")));
    }
    application::find(&mut map, address.pid)?;
    Ok(map)
}

/// A memfd of `bytes` bytes whose memory is there: a host that has none left says so now, instead
/// of killing the process at the first access.
pub(crate) fn anonymous_file(name: &str, bytes: usize) -> Result<OwnedFd, TransportError> {
    let failed = |cause| {
        TransportError::system(format!("allocate {bytes} bytes of shared memory ({name})"), cause)
    };
    let available = available_bytes().unwrap_or(usize::MAX);
    if bytes > available {
        let cause = format!("the host has {available} bytes available");
        return Err(TransportError::system(format!("allocate {bytes} bytes ({name})"), cause));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create(name, flags).map_err(failed)?;
    rustix::fs::ftruncate(&file, bytes as u64).map_err(failed)?;
    if bytes >= LEAST_HUGE_BYTES && has_huge_pages_on_request() {
        let map = Map::of(&file, bytes)?;
        map.request_huge_pages();
        map.populate(0..bytes);
    }
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64)
        .map_err(failed)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
    Ok(file)
}

/// Whether shared memory gets huge pages where a program asks for them. Where it always gets them nobody has to ask.
fn has_huge_pages_on_request() -> bool {
    let policy = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    policy.is_ok_and(|policy| policy.contains("[advise]"))
}

/// What the kernel believes it could give. Shared memory beyond that does not fail: it makes the
/// kernel kill processes.
fn available_bytes() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn random(bytes: &mut [u8]) -> Result<(), TransportError> {
    rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty())
        .map(|_| ())
        .map_err(|cause| TransportError::system("getrandom", cause))
}

#[cfg(test)]
mod tests {
    use super::map::tests::entered;
    use super::*;

    #[test]
    fn what_is_prefetched_behind_a_floor_is_not_the_next_ring() {
        for (readers, tile_bytes) in [(1, 64), (1, 4096), (7, 4160)] {
            let shape = RingShape { tile_bytes, slots: 3, tiles: 5 };
            let end = shape.bytes(readers);
            assert!(ring_bytes(shape, readers) >= end + 8192, "two pages behind {end}");
            assert!(ring_bytes(shape, readers).is_multiple_of(PAIR_BYTES));
        }
    }

    #[test]
    fn both_ends_of_a_link_have_entered_its_rings() {
        let shape = RingShape { tile_bytes: 1 << 16, slots: 4, tiles: 8 };
        let segments = [0, 1].map(|_| Segment::create(2, shape, shape).unwrap());
        let theirs = segments[0].open(1, &segments[1].address()).unwrap();
        let count = |map: &Map| entered(map).into_iter().filter(|is_entered| *is_entered).count();
        let _link = segments[0].link(0, &theirs);
        let pages = (4 << 16) / rustix::param::page_size();
        assert!(count(&segments[0].file.map) >= pages, "what it writes");
        assert!(count(&theirs.map) >= pages, "what it reads");
        let _both =
            [segments[0].multicast(std::slice::from_ref(&theirs)), segments[0].listen(0, &theirs)];
        assert!(count(&segments[0].file.map) >= 2 * pages, "what it writes to all");
        assert!(count(&theirs.map) >= 2 * pages, "what it reads of all");
    }
}
