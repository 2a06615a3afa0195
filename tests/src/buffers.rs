//! The memory of one rank.
//!
//! Two buffers hold every row of a run. Rows smaller than a buffer use another part of it in every
//! iteration, so that the data of the last iteration is not what the caches hold.

use std::ptr;

use ccl::{Allocation, Region};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::Outcome;
use crate::benchmark::{Counts, Side, Span};
use crate::check::GUARD_BYTES;
use crate::error::Failure;

/// Parts of a buffer start at multiples of this, so that every iteration has the same alignment.
const ALIGNMENT_BYTES: usize = 64;

/// Whether input and output are in the same buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// Input in the send buffer, output in the receive buffer.
    #[default]
    OutOfPlace,
    /// Both in the receive buffer.
    InPlace,
}

impl Form {
    /// As the head of the table has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out-of-place",
            Self::InPlace => "in-place",
        }
    }
}

/// Where the elements of a row are.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    /// In one buffer or two.
    pub form: Form,
    /// The rank.
    pub rank: usize,
    /// Elements of the row.
    pub counts: &'a Counts,
    /// Bytes of an element.
    pub element_bytes: usize,
}

impl Layout<'_> {
    /// Bytes from the start of the receive buffer's part that belong to the row.
    #[must_use]
    pub fn receive_bytes(&self) -> usize {
        match self.form {
            Form::OutOfPlace => self.counts.receive * self.element_bytes,
            Form::InPlace => self.part_bytes(),
        }
    }

    fn part_bytes(&self) -> usize {
        self.counts.largest() * self.element_bytes
    }

    /// Offset of a side from the start of its buffer's part.
    fn offset(&self, side: Side) -> usize {
        let step = match (self.form, side) {
            (Form::OutOfPlace, _) => 0,
            (Form::InPlace, Side::Input) => self.counts.in_place_input,
            (Form::InPlace, Side::Output) => self.counts.in_place_output,
        };
        step * self.rank * self.element_bytes
    }

    fn uses_send_buffer(&self, side: Side) -> bool {
        self.form == Form::OutOfPlace && side == Side::Input
    }
}

/// The parts of a buffer that the iterations of a row use in turn.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    bytes: usize,
    count: usize,
}

impl Parts {
    /// Whether all iterations use the same part.
    #[must_use]
    pub fn are_one(self) -> bool {
        self.count == 1
    }

    /// Where the part of an iteration begins, in bytes from the start of the buffer.
    #[must_use]
    pub fn start(self, iteration: usize) -> usize {
        // A division would be felt in calls of a few bytes.
        let part = match self.count {
            1 => 0,
            count if iteration < count => iteration,
            count => iteration % count,
        };
        part * self.bytes
    }
}

/// The two buffers of a rank.
#[derive(Debug)]
pub struct Buffers {
    send: Memory,
    receive: Memory,
    /// Bytes for rows; misalignment and guard come on top.
    bytes: usize,
    /// Bytes in front of rows, of which there is room for `most_misaligned`.
    misalignment: usize,
    most_misaligned: usize,
}

impl Buffers {
    /// Buffers for rows of up to `bytes` bytes, which may be misaligned by so many, if `shared` in memory that peers on this
    /// host reach.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(bytes: usize, most_misaligned: usize, shared: bool) -> Outcome<Self> {
        let bytes = bytes.next_multiple_of(ALIGNMENT_BYTES).max(ALIGNMENT_BYTES);
        let size = bytes + most_misaligned + GUARD_BYTES;
        let allocate = || if shared { Memory::shared(size) } else { Memory::private(size) };
        let (send, receive) = (allocate()?, allocate()?);
        Ok(Self { send, receive, bytes, misalignment: 0, most_misaligned })
    }

    /// Lets rows begin so many bytes behind the start of the memory.
    pub fn misalign(&mut self, bytes: usize) {
        assert!(bytes <= self.most_misaligned, "{bytes} of {} bytes", self.most_misaligned);
        self.misalignment = bytes;
    }

    /// Bytes of both buffers.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        self.send.bytes() + self.receive.bytes()
    }

    /// Address and size of both buffers, to register them.
    #[must_use]
    pub fn ranges(&self) -> [(usize, usize); 2] {
        [&self.send, &self.receive].map(|buffer| (buffer.address().addr(), buffer.bytes()))
    }

    /// The parts of both buffers that the iterations of a row use in turn.
    #[must_use]
    pub fn parts(&self, layout: &Layout<'_>) -> Parts {
        let bytes = layout.part_bytes().next_multiple_of(ALIGNMENT_BYTES).max(ALIGNMENT_BYTES);
        Parts { bytes, count: (self.bytes / bytes).max(1) }
    }

    /// The memory of `span` in the part that begins at `start`.
    #[must_use]
    pub fn region(&self, layout: &Layout<'_>, span: Span, start: usize) -> Region<'_> {
        let (offset, bytes) = self.place(layout, span, start);
        let start = self.start(layout.uses_send_buffer(span.side)).wrapping_add(offset);
        // SAFETY: `place` keeps the range inside the allocation, which lives as long as `self`; the
        // engine waits for every call before it touches the buffers again, and a peer's access is
        // part of such a call.
        unsafe { Region::new(start, bytes) }
    }

    /// Where that is: whether in the send buffer, its offset there, and its size in bytes.
    #[must_use]
    pub fn position(&self, layout: &Layout<'_>, span: Span, start: usize) -> (bool, usize, usize) {
        let (offset, bytes) = self.place(layout, span, start);
        (layout.uses_send_buffer(span.side), self.misalignment + offset, bytes)
    }

    /// What a checked call touches of the send buffer and of the receive buffer, with the guard; they
    /// begin behind the misalignment.
    pub fn checked(&mut self, layout: &Layout<'_>) -> [&mut [u8]; 2] {
        let bytes = layout.part_bytes();
        self.both(bytes, bytes + GUARD_BYTES)
    }

    /// Bytes behind an alignment.
    #[must_use]
    pub fn misalignment(&self) -> usize {
        self.misalignment
    }

    /// The input of a checked call.
    pub fn input(&mut self, layout: &Layout<'_>) -> &mut [u8] {
        let span = Span { side: Side::Input, offset: 0, count: layout.counts.send };
        let (offset, bytes) = self.place(layout, span, 0);
        &mut self.slice(layout.uses_send_buffer(Side::Input))[offset..][..bytes]
    }

    /// The part of the receive buffer that belongs to the row, and the guard behind it.
    pub fn receive(&mut self, layout: &Layout<'_>) -> (&mut [u8], &mut [u8]) {
        let (row, behind) = self.slice(false).split_at_mut(layout.receive_bytes());
        (row, &mut behind[..GUARD_BYTES])
    }

    /// The output of a checked call.
    pub fn output(&mut self, layout: &Layout<'_>) -> &mut [u8] {
        let span = Span { side: Side::Output, offset: 0, count: layout.counts.receive };
        let (offset, bytes) = self.place(layout, span, 0);
        &mut self.slice(false)[offset..][..bytes]
    }

    /// Fills what `iterations` iterations use of both buffers with `period`, again and again, and returns it.
    pub fn fill(
        &mut self,
        layout: &Layout<'_>,
        iterations: usize,
        period: &[u8],
    ) -> [&mut [u8]; 2] {
        let part = layout.part_bytes().next_multiple_of(ALIGNMENT_BYTES);
        let used = part.saturating_mul(iterations).min(self.bytes);
        let mut both = self.both(used, used);
        for part in both.iter_mut().flat_map(|buffer| buffer.chunks_mut(period.len())) {
            part.copy_from_slice(&period[..part.len()]);
        }
        both
    }

    /// Copies `from` to `to` within the memory of this rank.
    pub fn copy(&self, layout: &Layout<'_>, from: Span, to: Span, start: usize) {
        let (source, bytes) = self.place(layout, from, start);
        let (target, _) = self.place(layout, to, start);
        let source = self.start(layout.uses_send_buffer(from.side)).wrapping_add(source);
        let target = self.start(layout.uses_send_buffer(to.side)).wrapping_add(target);
        if source != target {
            // SAFETY: `place` keeps both ranges inside allocations that live as long as `self`, and no
            // call uses them now; `copy` allows overlap.
            unsafe { ptr::copy(source, target, bytes) }
        }
    }

    /// Offset from the start of the buffer, and length, both in bytes.
    fn place(&self, layout: &Layout<'_>, span: Span, start: usize) -> (usize, usize) {
        let start = start + layout.offset(span.side) + span.offset * layout.element_bytes;
        let bytes = span.count * layout.element_bytes;
        assert!(start + bytes <= self.bytes, "{span:?} is outside of {} bytes", self.bytes);
        (start, bytes)
    }

    fn start(&self, send: bool) -> *mut u8 {
        let buffer = if send { &self.send } else { &self.receive };
        buffer.address().wrapping_add(self.misalignment)
    }

    /// The beginnings of the send buffer and of the receive buffer.
    fn both(&mut self, send_bytes: usize, receive_bytes: usize) -> [&mut [u8]; 2] {
        let receive = self.start(false);
        assert!(receive_bytes <= self.bytes + GUARD_BYTES, "beyond the receive buffer");
        // SAFETY: as in `slice`, and that long; the two buffers are different memory.
        let receive = unsafe { std::slice::from_raw_parts_mut(receive, receive_bytes) };
        [&mut self.slice(true)[..send_bytes], receive]
    }

    fn slice(&mut self, send: bool) -> &mut [u8] {
        let start = self.start(send);
        // SAFETY: the allocation has this size behind the misalignment, is initialised, and is
        // borrowed mutably with `self`; no call uses it now, because the engine waits for each.
        unsafe { std::slice::from_raw_parts_mut(start, self.bytes + GUARD_BYTES) }
    }
}

/// Page-aligned memory, so that every run has the same alignment.
#[derive(Debug)]
enum Memory {
    /// What an application has that knows nothing of the library.
    Private { start: *mut u8, bytes: usize },
    /// The library's own.
    Shared(Allocation),
}

// SAFETY: the memory belongs to this value alone, whichever thread has it.
unsafe impl Send for Memory {}

impl Memory {
    fn private(bytes: usize) -> Outcome<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address that the kernel chooses touches nothing.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        match mapped {
            Ok(start) => Ok(Self::Private { start: start.cast(), bytes }),
            Err(cause) => Err(Failure::system(format!("allocating {bytes} bytes"), cause)),
        }
    }

    fn shared(bytes: usize) -> Outcome<Self> {
        Allocation::new(bytes)
            .map(Self::Shared)
            .map_err(|cause| Failure::system(format!("allocating {bytes} bytes"), cause))
    }

    fn address(&self) -> *mut u8 {
        match self {
            Self::Private { start, .. } => *start,
            Self::Shared(allocation) => allocation.address(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Private { bytes, .. } => *bytes,
            Self::Shared(allocation) => allocation.bytes(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Self::Private { start, bytes } = *self {
            // SAFETY: this value made the mapping, and views of it borrow the value.
            let unmapped = unsafe { munmap(start.cast(), bytes) };
            assert!(unmapped.is_ok(), "unmapping own pages: {unmapped:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::input;

    fn layout(form: Form, counts: &Counts) -> Layout<'_> {
        Layout { form, rank: 2, counts, element_bytes: 4 }
    }

    #[test]
    fn iterations_move_through_the_buffer() {
        let mut buffers = Buffers::new(1000, 3, false).unwrap();
        let aligned = buffers.start(false);
        buffers.misalign(3);
        assert_eq!(buffers.start(false).addr() - aligned.addr(), 3);
        let counts = Counts { in_place_input: 10, ..Counts::new(10, 10, 40) };
        let out_of_place = layout(Form::OutOfPlace, &counts);
        let starts: Vec<usize> = (0..7).map(|i| buffers.parts(&out_of_place).start(i)).collect();
        assert_eq!(starts, [0, 192, 384, 576, 768, 0, 192]);
        let in_place = layout(Form::InPlace, &counts);
        assert_eq!(buffers.place(&in_place, input(10), 192), (192 + 80, 40));
    }

    #[test]
    fn in_place_the_input_is_part_of_the_output() {
        let mut buffers = Buffers::new(160, 0, true).unwrap();
        let counts = Counts { in_place_input: 10, ..Counts::new(10, 10, 40) };
        let in_place = layout(Form::InPlace, &counts);
        buffers.fill(&in_place, 1, &[1, 2, 3]);
        let expected: Vec<u8> = [1, 2, 3].into_iter().cycle().take(160).collect();
        assert_eq!(buffers.output(&in_place), expected);
        assert_eq!(buffers.slice(true)[..160], expected);
        buffers.output(&in_place).fill(0);
        buffers.input(&in_place).fill(7);
        let ones = buffers.output(&in_place).iter().positions_of(7);
        assert_eq!(ones, (80..120).collect::<Vec<_>>());
        let (row, guard) = buffers.receive(&in_place);
        assert_eq!((row.len(), guard.len()), (160, GUARD_BYTES));
    }

    trait Positions {
        fn positions_of(self, byte: u8) -> Vec<usize>;
    }

    impl<'a, I: Iterator<Item = &'a u8>> Positions for I {
        fn positions_of(self, byte: u8) -> Vec<usize> {
            self.enumerate().filter(|(_, b)| **b == byte).map(|(index, _)| index).collect()
        }
    }
}
