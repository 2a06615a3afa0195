//! Ways to get bytes from a buffer of one process into a buffer of another on the same host.

use std::sync::atomic::Ordering;

use ccl_core::datatype::DataType;
use ccl_kernels::{Combine, Kernel, Source, Target, copy, copy_streaming, reduce};

use crate::area::{Area, HUGE_BYTES, Pages};
use crate::peers::{Pair, Patience, Side};

pub(crate) const MOST_BYTES: usize = 64 << 20;
const SLOTS: u64 = 8;
const SLOT_BYTES: usize = 128 << 10;
const SHORTEST_TILE: usize = 16 << 10;
/// What is fetched before it is added.
const BOUNCE_BYTES: usize = 128 << 10;

const SUM: Kernel = Kernel { datatype: DataType::Float32, combine: Combine::Sum };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The sender copies tiles into a ring, the receiver copies them out.
    Staged,
    /// The same, and the sender writes past its caches.
    SlotsStreamed,
    /// The same, and the receiver writes past its caches.
    StagedStreamed,
    /// The receiver copies out of memory of the sender that it has mapped.
    Mapped,
    MappedStreamed,
    /// The receiver reads ordinary memory of the sender.
    Read(Pages),
    /// The sender writes ordinary memory of the receiver.
    Write,
    /// The sender writes the first half while the receiver reads the second.
    Halves,
}

/// What is done with what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Copy,
    Sum,
}

/// One move, as both sides know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) way: Way,
    pub(crate) action: Action,
    pub(crate) bytes: usize,
    /// From each side to the other at the same time.
    pub(crate) both_ways: bool,
}

impl Job {
    fn sends(&self, side: Side) -> bool {
        self.both_ways || side == Side::First
    }

    pub(crate) fn receives(&self, side: Side) -> bool {
        self.both_ways || side == Side::Second
    }

    fn tile_bytes(&self) -> usize {
        (self.bytes / 4).clamp(SHORTEST_TILE, SLOT_BYTES)
    }
}

/// Where the bytes of this side lie, and where the other's do in its own address space.
pub(crate) struct Buffers {
    pub(crate) source: Area,
    pub(crate) target: Area,
    others_source: usize,
    others_target: usize,
}

impl Buffers {
    fn new(pair: &Pair, pages: Pages) -> Self {
        let [source, target] = [(); 2].map(|()| Area::anonymous(MOST_BYTES, pages));
        let [others_source, others_target] = [source, target]
            .map(|area| usize::try_from(pair.exchange(area.address() as u64)).unwrap());
        Self { source, target, others_source, others_target }
    }
}

/// One side of all moves.
pub(crate) struct Mover<'a> {
    pair: &'a Pair,
    pub(crate) ordinary: Buffers,
    pub(crate) huge: Buffers,
    /// Memory of this side that the other has mapped.
    pub(crate) registered: Area,
    others_registered: Area,
    bounce: Area,
    filled: u64,
    emptied: u64,
}

impl<'a> Mover<'a> {
    pub(crate) fn new(pair: &'a Pair) -> Self {
        pair.own_shared.enter();
        pair.other_shared.enter();
        let [ordinary, huge] =
            [Pages::Ordinary, Pages::Huge].map(|pages| Buffers::new(pair, pages));
        Self {
            pair,
            ordinary,
            huge,
            registered: pair.own_shared.from(HUGE_BYTES),
            others_registered: pair.other_shared.from(HUGE_BYTES),
            bounce: Area::anonymous(BOUNCE_BYTES, Pages::Ordinary),
            filled: 0,
            emptied: 0,
        }
    }

    /// The buffers that a way uses.
    pub(crate) fn buffers(&self, way: Way) -> &Buffers {
        if way == Way::Read(Pages::Huge) { &self.huge } else { &self.ordinary }
    }

    /// This side's part of one move. It ends when each side knows that the other is done.
    pub(crate) fn carry_out(&mut self, job: Job) {
        if matches!(job.way, Way::Staged | Way::SlotsStreamed | Way::StagedStreamed) {
            self.through_the_ring(job);
        } else {
            // Both buffers may be used from here on.
            self.pair.meet();
            self.directly(job);
        }
        self.pair.meet();
    }

    fn through_the_ring(&mut self, job: Job) {
        let side = self.pair.side;
        let mut sent = if job.sends(side) { 0 } else { job.bytes };
        let mut received = if job.receives(side) { 0 } else { job.bytes };
        let mut patience = Patience::default();
        while sent < job.bytes || received < job.bytes {
            let before = (sent, received);
            if sent < job.bytes {
                sent += self.fill_slot(job, sent);
            }
            if received < job.bytes {
                received += self.empty_slot(job, received);
            }
            if before == (sent, received) {
                patience.wait();
            } else {
                patience = Patience::default();
            }
        }
    }

    /// Copies a tile into the next slot, and returns its length, or 0 if no slot is free.
    fn fill_slot(&mut self, job: Job, offset: usize) -> usize {
        if self.filled - self.pair.other.emptied.load(Ordering::Acquire) == SLOTS {
            return 0;
        }
        let bytes = job.tile_bytes().min(job.bytes - offset);
        let slot = self.pair.own_shared.target(slot_offset(self.filled), bytes);
        let source = self.ordinary.source.source(offset, bytes);
        if job.way == Way::SlotsStreamed {
            copy_streaming(source, slot)
        } else {
            copy(source, slot)
        }
        self.filled += 1;
        self.pair.own.filled.store(self.filled, Ordering::Release);
        bytes
    }

    /// Takes the next tile out of its slot, and returns its length, or 0 if there is none.
    fn empty_slot(&mut self, job: Job, offset: usize) -> usize {
        if self.pair.other.filled.load(Ordering::Acquire) == self.emptied {
            return 0;
        }
        let bytes = job.tile_bytes().min(job.bytes - offset);
        let tile = self.pair.other_shared.source(slot_offset(self.emptied), bytes);
        take(job, tile, self.ordinary.target, offset);
        self.emptied += 1;
        self.pair.own.emptied.store(self.emptied, Ordering::Release);
        bytes
    }

    fn directly(&self, job: Job) {
        let (sends, receives) = (job.sends(self.pair.side), job.receives(self.pair.side));
        let half = job.bytes / 2;
        match job.way {
            Way::Staged | Way::SlotsStreamed | Way::StagedStreamed => unreachable!("not direct"),
            Way::Mapped | Way::MappedStreamed if receives => {
                let source = self.others_registered.source(0, job.bytes);
                take(job, source, self.ordinary.target, 0);
            }
            Way::Read(_) if receives && job.action == Action::Sum => self.read_and_add(job),
            Way::Read(_) if receives => {
                let buffers = self.buffers(job.way);
                self.read(buffers.target, buffers.others_source, 0..job.bytes);
            }
            Way::Write if sends => self.write(0..job.bytes),
            Way::Halves => {
                if sends {
                    self.write(0..half);
                }
                if receives {
                    let buffers = &self.ordinary;
                    self.read(buffers.target.from(half), buffers.others_source, half..job.bytes);
                }
            }
            Way::Mapped | Way::MappedStreamed | Way::Read(_) | Way::Write => {}
        }
    }

    fn read_and_add(&self, job: Job) {
        let buffers = self.buffers(job.way);
        for offset in (0..job.bytes).step_by(BOUNCE_BYTES) {
            let end = (offset + BOUNCE_BYTES).min(job.bytes);
            self.read(self.bounce, buffers.others_source, offset..end);
            take(job, self.bounce.source(0, end - offset), buffers.target, offset);
        }
    }

    /// Reads a range of the other's memory from `others` on to the start of `target`.
    fn read(&self, target: Area, others: usize, range: std::ops::Range<usize>) {
        let transfer = |near: &libc::iovec, far: &libc::iovec| {
            // SAFETY: `near` lies in an area that is entered and in use by this move only; the kernel checks `far`.
            unsafe { libc::process_vm_readv(self.pair.process, near, 1, far, 1, 0) }
        };
        assert!(range.len() <= target.region().bytes(), "longer than the target");
        whole(transfer, target.address(), others + range.start, range.len());
    }

    /// Writes a range of this side's source to the same place of the other's target.
    fn write(&self, range: std::ops::Range<usize>) {
        let transfer = |near: &libc::iovec, far: &libc::iovec| {
            // SAFETY: `near` lies in an area that is entered and that nobody writes; the kernel checks `far`.
            unsafe { libc::process_vm_writev(self.pair.process, near, 1, far, 1, 0) }
        };
        let near = self.ordinary.source.from(range.start).address();
        whole(transfer, near, self.ordinary.others_target + range.start, range.len());
    }

    /// Whether this process may read the other's memory.
    pub(crate) fn may_read(&self) -> bool {
        let piece = |start: usize| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(start),
            iov_len: 8,
        };
        let (near, far) = (piece(self.bounce.address()), piece(self.ordinary.others_source));
        // SAFETY: the first bytes of the bounce block are in use by nobody; the kernel checks the other address.
        unsafe {
            libc::process_vm_readv(self.pair.process, &raw const near, 1, &raw const far, 1, 0) == 8
        }
    }
}

/// What arrives becomes part of the target, or is added to it.
fn take(job: Job, arrived: Source<'_>, target: Area, offset: usize) {
    let place: Target<'_> = target.target(offset, arrived.bytes());
    let streamed = matches!(job.way, Way::StagedStreamed | Way::MappedStreamed);
    match job.action {
        Action::Sum => reduce(SUM, &[target.source(offset, arrived.bytes()), arrived], place),
        Action::Copy if streamed => copy_streaming(arrived, place),
        Action::Copy => copy(arrived, place),
    }
}

fn slot_offset(tile: u64) -> usize {
    usize::try_from(tile % SLOTS).unwrap() * SLOT_BYTES
}

/// Repeats a transfer that may be partial until all bytes are there.
fn whole(
    transfer: impl Fn(&libc::iovec, &libc::iovec) -> isize,
    near: usize,
    far: usize,
    bytes: usize,
) {
    let mut moved = 0;
    while moved < bytes {
        let piece = |start: usize| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(start + moved),
            iov_len: bytes - moved,
        };
        let now = transfer(&piece(near), &piece(far));
        let failed = std::io::Error::last_os_error();
        assert!(now > 0, "the other's memory: {failed}");
        moved += now.unsigned_abs();
    }
}
