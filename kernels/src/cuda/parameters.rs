//! What kernels are given: one structure each, by value, laid out as in `text/parameters.cuh`.
//!
//! Addresses are those of the device, as numbers: only a launch can say whether they are valid.

use ccl_core::datatype::DataType;

/// Sources or destinations of a kernel, and ranks of a protocol, at most.
pub const MOST_RANKS: usize = 8;

/// Blocks that a rank launches for an AllReduce on mapped buffers, at most.
pub const MOST_BLOCKS: usize = 64;

/// What one access of a kernel moves, at most.
const VECTOR_BYTES: usize = 16;

/// A structure that a kernel takes by value.
///
/// # Safety
///
/// The type is `repr(C)`, has no padding, and consists of integers.
pub unsafe trait Parameters: Copy {
    /// The bytes, as the kernel finds them.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the type has no padding, so all of its bytes are initialised; it outlives the
        // slice, which borrows it.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// What is done to contributions besides combining them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Arithmetic {
    /// Bits of an element each, in the low bytes.
    pub scalars: [u64; MOST_RANKS],
    /// Bit k: source k is multiplied by scalar k, and rounded to its type, first. For
    /// [`Operation::Scaled`](super::Operation::Scaled) only.
    pub scaled: u32,
    /// By what [`Operation::Mean`](super::Operation::Mean) divides; not zero there.
    pub divisor: u32,
    /// 2⁶⁴ − 1 divided by that.
    pub reciprocal: u64,
}

impl Arithmetic {
    /// For a mean: a division by `divisor`, which is not zero.
    #[must_use]
    pub fn mean(divisor: u32) -> Self {
        Self { divisor, reciprocal: u64::MAX / u64::from(divisor), ..Self::default() }
    }
}

/// Sources that are combined in their order, and where the result goes. Sources and destinations
/// overlap only if they are the same bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Operands {
    /// Addresses, of which the first `source_count` are used.
    pub sources: [u64; MOST_RANKS],
    /// Addresses, of which the first `destination_count` are used.
    pub destinations: [u64; MOST_RANKS],
    /// From 1 to [`MOST_RANKS`]. NaNs of a single source become the one NaN: a copy keeps them.
    pub source_count: u32,
    /// From 1 to [`MOST_RANKS`].
    pub destination_count: u32,
    /// What else is done.
    pub arithmetic: Arithmetic,
}

/// Of [`Family::Reduce`](super::Family::Reduce).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ReduceParameters {
    /// From where to where.
    pub operands: Operands,
    /// Elements.
    pub count: u64,
}

/// Of the copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyParameters {
    /// Address.
    pub source: u64,
    /// Addresses, of which the first `destination_count` are used.
    pub destinations: [u64; MOST_RANKS],
    /// Bytes.
    pub bytes: u64,
    /// From 1 to [`MOST_RANKS`].
    pub destination_count: u32,
    /// Nothing.
    pub unused: u32,
}

/// How far a block has come with a protocol, in the memory of the rank's device. Zero before the first call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    /// Calls that have finished; of a relay, tiles; of pushes, their steps, and all bits once one has given up.
    pub calls: u64,
    /// The flag, ticket or number of the call that the others are to come to; zero while the block is in none.
    pub awaited: u64,
    /// Flag of the last call of the low-latency protocol.
    pub flag: u32,
    /// Nothing.
    pub unused: u32,
}

/// Of [`Family::LowLatency`](super::Family::LowLatency).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LowLatencyParameters {
    /// This rank's contribution.
    pub input: u64,
    /// The result; may be the input.
    pub output: u64,
    /// Of all ranks: two boxes of `ranks` slots. Zero before the first call.
    pub mailboxes: [u64; MOST_RANKS],
    /// Address of this rank's [`State`]s, one for each of `most_blocks`.
    pub state: u64,
    /// Address of a 32-bit word: not zero means give up.
    pub abort: u64,
    /// Elements; not zero.
    pub count: u64,
    /// Bytes of a slot: two for each byte of the largest call, in whole lines of 16.
    pub slot_bytes: u64,
    /// What is done to this rank's contribution, which is source `rank`.
    pub arithmetic: Arithmetic,
    /// This rank.
    pub rank: u32,
    /// All ranks, from 2 to [`MOST_RANKS`].
    pub ranks: u32,
    /// Blocks of the largest call. Equal on all ranks in all calls, as the next.
    pub most_blocks: u32,
    /// Threads of a block, which has as many if there are others.
    pub most_threads: u32,
}

impl LowLatencyParameters {
    /// Blocks and threads for elements of this type: a thread for every unit of eight bytes, as far as there may be so many.
    #[must_use]
    pub fn shape(&self, datatype: DataType) -> (u32, u32) {
        const LEAST_THREADS: u64 = 32;
        let units = (self.count * datatype.bytes() as u64).div_ceil(8);
        let most = u64::from(self.most_threads);
        let threads = units.next_power_of_two().clamp(LEAST_THREADS.min(most), most);
        let blocks = units.div_ceil(threads).clamp(1, u64::from(self.most_blocks));
        (blocks as u32, threads as u32)
    }
}

/// Threads of a block of a call with low latency, at most: few, so that what they look at comes to them at once.
pub const LOW_LATENCY_THREADS: u32 = 128;

/// Bytes of what a rank tells another one when it comes, for each block.
pub const ARRIVAL_BYTES: usize = 64;

/// Of [`Family::Push`](super::Family::Push).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PushParameters {
    /// For each rank: what it takes from this one, where it has mapped that; or 0. That of this rank is
    /// what itself takes.
    pub sources: [u64; MOST_RANKS],
    /// For each rank: where its result goes at this one, where it has mapped that; or 0.
    pub destinations: [u64; MOST_RANKS],
    /// Of all ranks: [`MOST_BLOCKS`] rows of [`MOST_RANKS`] places of [`ARRIVAL_BYTES`]. Zero before the
    /// first call.
    pub arrivals: [u64; MOST_RANKS],
    /// Address of this rank's [`State`]s, one per block.
    pub state: u64,
    /// Address of a 32-bit word: not zero means give up.
    pub abort: u64,
    /// Elements that this rank combines of a piece, if some rank has a source for it and some rank a destination.
    pub count: u64,
    /// Elements from the first one of this piece to behind the last one of all pieces that follow.
    pub reach: u64,
    /// Bytes from a piece to the next one.
    pub stride_bytes: u64,
    /// What is done to contributions: of scalars, that of this rank is used and told the others.
    pub arithmetic: Arithmetic,
    /// This rank.
    pub rank: u32,
    /// All ranks, up to [`MOST_RANKS`].
    pub ranks: u32,
    /// Pieces that this kernel does, one with each pair of meetings, or all with one if all ranks have told that they do them. A rank
    /// that stages has a kernel for each piece and turn.
    pub pieces: u32,
    /// Turns of each piece: 1, or as many as ranks. Then in turn t rank r takes from rank r + t, and stores it in its own
    /// destination for that one.
    pub turns: u32,
}

/// Bytes of what a rank tells another one of a message, for each block.
pub const LETTER_BYTES: usize = 64;

/// Numbers about a message that is not as long as expected, for each rank: whether there is one, how long it is, and
/// what was expected.
pub const QUARREL_NUMBERS: usize = 4;

/// Of [`Entry::Pull`](super::Entry::Pull).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PullParameters {
    /// For each rank: where the message to it is, as it has mapped that; or `staging` as it has mapped that. That of
    /// this rank is the message to itself.
    pub sources: [u64; MOST_RANKS],
    /// Bytes of the message to each rank. This rank sends itself what it receives from itself.
    pub sent: [u64; MOST_RANKS],
    /// Where the message from each rank goes.
    pub destinations: [u64; MOST_RANKS],
    /// Bytes of the message from each rank.
    pub received: [u64; MOST_RANKS],
    /// The message to each rank that goes through `staging`.
    pub inputs: [u64; MOST_RANKS],
    /// For each rank: `staging_bytes` at a multiple of 16 through which the message to it goes; 0 if it can be taken
    /// from where it is.
    pub staging: [u64; MOST_RANKS],
    /// Of all ranks: [`MOST_BLOCKS`] rows of [`MOST_RANKS`] places of [`LETTER_BYTES`]. Zero before the first call.
    pub letters: [u64; MOST_RANKS],
    /// Address of [`QUARREL_NUMBERS`] 64-bit numbers for each rank. Zero before the first call.
    pub quarrels: u64,
    /// Address of this rank's [`State`]s, one per block.
    pub state: u64,
    /// Address of a 32-bit word: not zero means give up.
    pub abort: u64,
    /// At least 16 for each of `most_parts`.
    pub staging_bytes: u64,
    /// Bytes of a message for which it gets another block. As `staging_bytes` and `most_parts` equal on all ranks.
    pub part_bytes: u64,
    /// Blocks that move one message, at most.
    pub most_parts: u32,
    /// This rank.
    pub rank: u32,
    /// All ranks, up to [`MOST_RANKS`].
    pub ranks: u32,
    /// Nothing.
    pub unused: u32,
}

impl PullParameters {
    /// Blocks that move a message of so many bytes; the kernel needs as many as its longest message.
    #[must_use]
    pub fn parts(&self, bytes: u64) -> u32 {
        let wanted = bytes.div_ceil(self.part_bytes);
        u32::try_from(wanted).unwrap_or(u32::MAX).clamp(1, self.most_parts)
    }
}

/// Elements of a push of which rank `rank` combines its slice: the first of them, and how many. Slices are
/// whole vectors, so that those of aligned buffers are aligned.
#[must_use]
pub fn slice(count: usize, element_bytes: usize, ranks: usize, rank: usize) -> (usize, usize) {
    let per_vector = VECTOR_BYTES / element_bytes;
    let slice = count.div_ceil(ranks * per_vector) * per_vector;
    let first = (slice * rank).min(count);
    (first, slice.min(count - first))
}

/// One end of a ring of staging slots that host and device share. Tile t lies in slot t modulo the
/// number of slots.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Ring {
    /// Address of the first slot; 0 if there is no such ring.
    pub slots: u64,
    /// Address of a 64-bit counter: tiles that the consumer has done with.
    pub head: u64,
    /// Address of a 64-bit counter: tiles that the producer has filled.
    pub tail: u64,
}

/// Of [`Family::Relay`](super::Family::Relay). Where nothing is combined, the bytes are moved with
/// the sum of `uint8`, which leaves them alone.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RelayParameters {
    /// Where tiles come from.
    pub incoming: Ring,
    /// Where they go.
    pub outgoing: Ring,
    /// This rank's contribution, or 0.
    pub local: u64,
    /// Where the result is put too, or 0; may be the contribution.
    pub output: u64,
    /// Address of a [`State`] for this pair of rings.
    pub state: u64,
    /// Address of a 32-bit word: not zero means give up.
    pub abort: u64,
    /// Elements.
    pub count: u64,
    /// Elements of a slot: a multiple of 16 bytes.
    pub tile_count: u64,
    /// Slots of each ring.
    pub slots: u64,
    /// What is done to the contribution, which is source 0.
    pub arithmetic: Arithmetic,
}

/// The sizes are those of the structures without padding, so there is none.
macro_rules! parameters {
    ($($type:ty: $bytes:expr;)*) => {$(
        const _: () = assert!(size_of::<$type>() == $bytes);
        // SAFETY: the type is `repr(C)` and consists of integers, and its size is that of its fields
        // (asserted).
        unsafe impl Parameters for $type {}
    )*};
}

parameters! {
    ReduceParameters: 8 * 16 + 8 + 80 + 8;
    CopyParameters: 8 * 9 + 16;
    State: 24;
    LowLatencyParameters: 8 * 10 + 8 * 4 + 80 + 16;
    PushParameters: 8 * 24 + 8 * 5 + 80 + 16;
    PullParameters: 8 * 56 + 8 * 5 + 16;
    RelayParameters: 8 * 13 + 80;
}
