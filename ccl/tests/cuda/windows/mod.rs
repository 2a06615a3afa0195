//! Collectives that copy engines do between ranks of one host, in windows.
//!
//! A window begins elsewhere in the allocation of every rank.

mod endings;
mod results;
mod ways;

use ccl::cuda::{self, Buffer, DeviceRegion, Promise, Window};
use ccl::{Collective, Communicator, DataType, OperationOn, Rank, ReduceOp, Request, UniqueId};

use super::direct::{noise, prepared, request};
use super::ranks::KERNELS;
use super::{Member, config};

/// Blocks of so many bytes are for copy engines.
const LEAST_BYTES: usize = 1000;
/// Bytes of a window.
const WINDOW_BYTES: usize = 40_000;
/// More than any rank times this is not before a window.
const SKEW: usize = 13;

/// A rank with these values of `R2CCL_CUDA_P2P` and `R2CCL_CUDA_COPY_ENGINE_BYTES`.
fn member(place: (u32, u32), id: &UniqueId, (peers, least_bytes): (&str, usize)) -> Member {
    let mut config = config(4096);
    config.settings.cuda_peers = peers.parse().unwrap();
    config.settings.cuda_copy_engine_bytes = least_bytes;
    config.settings.cuda_kernels = std::env::var_os(KERNELS).map(Into::into);
    let (rank, size) = place;
    let host = Communicator::create(id, rank, size, &config).unwrap();
    let gpu = cuda::open(rank as usize % 2).unwrap();
    let cuda = cuda::Communicator::new(&host, &gpu).unwrap();
    Member { cuda, stream: gpu.stream().unwrap() }
}

/// A rank with a window.
pub(crate) struct Windowed {
    pub(crate) member: Member,
    memory: Buffer,
    window: Window,
}

impl Windowed {
    /// Whose window has so many bytes.
    fn with(member: Member, bytes: usize) -> Self {
        let memory = member.gpu().allocate(SKEW * 8 + bytes).unwrap();
        let region = memory.region().part(SKEW * member.me() as usize, bytes);
        let window = member.cuda.register_window(&region, Promise::Symmetric).unwrap();
        Self { member, memory, window }
    }

    /// Whose window is of use.
    pub(crate) fn new(place: (u32, u32), id: &UniqueId) -> Self {
        let windowed = Self::with(member(place, id, ("1", LEAST_BYTES)), WINDOW_BYTES);
        assert_eq!(windowed.window.obstacle(), None);
        windowed
    }

    /// With kernels for these types.
    fn prepared(self, types: &[DataType]) -> Self {
        Self { member: prepared(self.member, types, &[]), ..self }
    }

    fn region(&self) -> DeviceRegion<'_> {
        let start = SKEW * self.member.me() as usize;
        self.memory.region().part(start, self.memory.region().bytes() - SKEW * 8)
    }

    /// Puts bytes into the window.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        self.memory.write(SKEW * self.member.me() as usize + at, bytes).unwrap();
    }

    pub(crate) fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.memory.read(SKEW * self.member.me() as usize + at, &mut read).unwrap();
        read
    }

    /// How many calls copy engines have done.
    pub(crate) fn copied(&self) -> u64 {
        self.member.cuda.paths().0.copied
    }
}

/// A request for so many bytes from one rank to another.
fn bytes_of(collective: Collective, count: usize, root: u32) -> Request {
    Request { root: Rank(root), ..request(collective, count, DataType::Uint8, ReduceOp::Sum) }
}

/// An `AllGather` in place of blocks of so many bytes, from the beginning of the window on.
pub(crate) fn gather(windowed: &Windowed, count: usize) -> cuda::Operation<'_> {
    let output = windowed.region().part(0, windowed.member.size() as usize * count);
    gather_in(output, windowed.member.me(), count)
}

/// The same of this rank, wherever the blocks are.
fn gather_in(output: DeviceRegion<'_>, me: u32, count: usize) -> cuda::Operation<'_> {
    let input = Some(output.part(me as usize * count, count));
    let request = bytes_of(Collective::AllGather, count, 0);
    OperationOn::Collective { request, input, output: Some(output) }
}

/// What such a call gives, when every rank has these bytes.
pub(crate) fn gathered(windowed: &Windowed, count: usize, seed: u32) -> Vec<u8> {
    (0..windowed.member.size()).flat_map(|rank| noise(count, seed + rank)).collect()
}

/// One such call by copy engines.
fn check_gather(windowed: &Windowed, count: usize, seed: u32) {
    let Member { cuda, stream } = &windowed.member;
    let (me, before) = (windowed.member.me(), windowed.copied());
    windowed.write(me as usize * count, &noise(count, seed + me));
    cuda.enqueue(gather(windowed, count), stream).unwrap();
    stream.synchronise().unwrap();
    let expected = gathered(windowed, count, seed);
    assert!(windowed.read(0, expected.len()) == expected, "rank {me}");
    assert_eq!(windowed.copied(), before + 1, "{:?}", cuda.paths());
}
