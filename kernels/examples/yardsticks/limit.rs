//! How fast the memory does what a collective cannot do without, when nobody waits for anybody.

use std::io::IoSliceMut;

use ccl_core::datatype::DataType;
use ccl_kernels::{Combine, Kernel, Source, copy, copy_streaming, reduce};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::Job;
use super::collective::{Block, Collective};
use super::memory::Memory;

pub(crate) const SUM: Kernel = Kernel { datatype: DataType::Float32, combine: Combine::Sum };

/// What a thread reads before it writes it, at most: which is best depends on the machine, and on how many inputs and outputs
/// there are. Less is slower, and so are threads that take every other block instead of halves.
const BLOCK_BYTES: [usize; 3] = [16 << 10, 64 << 10, LARGEST_BLOCK_BYTES];
const LARGEST_BLOCK_BYTES: usize = 256 << 10;

/// What a rank can do with the buffers of others.
#[derive(Clone, Copy)]
pub(crate) enum Reach {
    /// Read and write them.
    All,
    /// Nothing: what others need is copied to a tile first, which all can read.
    Tiles,
    /// Have the system copy what is in them.
    System,
}

/// How results are written.
#[derive(Clone, Copy)]
enum Stores {
    Plain,
    /// Past the caches.
    Streaming,
}

impl Job<'_> {
    /// The time of the best of some ways, and the wrong bytes of all.
    pub(crate) fn limit(self, collective: &Collective, reaches: &[Reach]) -> (f64, usize) {
        let (inputs, outputs) = (collective.inputs, collective.outputs);
        let inputs: Vec<_> =
            (0..inputs.count).map(|rank| Memory::input(inputs.bytes, rank)).collect();
        let mut outputs: Vec<_> =
            (0..outputs.count).map(|_| Memory::new(outputs.bytes, 0)).collect();
        let threads = self.ranks.min(self.processors.len());
        let (mut least, mut wrong) = (f64::INFINITY, 0);
        let stores = [Stores::Plain, Stores::Streaming];
        let reaches = reaches.iter().filter(|reach| reach.is_possible());
        let ways = reaches.flat_map(|reach| stores.map(|stores| (*reach, stores)));
        let ways = ways.flat_map(|way| BLOCK_BYTES.map(|bytes| (way, bytes)));
        for ((reach, stores), block_bytes) in ways {
            // So that nothing is left of the way before.
            outputs.iter_mut().for_each(|output| output.bytes_mut().fill(0));
            let work = collective.cut(&inputs, &mut outputs, threads, block_bytes);
            let work = work.into_iter().map(|blocks| Share::new(blocks, block_bytes)).collect();
            least = least.min(self.timed(work, |share: &mut Share<'_>| share.run(reach, stores)));
            wrong += collective.wrong(&outputs);
        }
        (least, wrong)
    }
}

/// The work of a thread.
struct Share<'a> {
    blocks: Vec<Block<'a>>,
    /// Where a sum is before it is written, and what all others can read.
    shared: Memory,
    /// What others contribute.
    tiles: Vec<Memory>,
}

impl<'a> Share<'a> {
    fn new(blocks: Vec<Block<'a>>, block_bytes: usize) -> Self {
        let sources = blocks.iter().map(|block| block.sources.len()).max().unwrap_or_default();
        let tile = || Memory::new(block_bytes, 0);
        Self { blocks, shared: tile(), tiles: (1..sources).map(|_| tile()).collect() }
    }

    fn run(&mut self, reach: Reach, stores: Stores) {
        let Self { blocks, shared, tiles } = self;
        for Block { sources, targets, own } in blocks {
            let source = sources[own.source];
            let mut operands = vec![Source::from(source)];
            let others = sources.iter().enumerate().filter(|(index, _)| *index != own.source);
            operands.extend(others.zip(&mut *tiles).map(|((_, source), tile)| {
                reach.contribution(source, &mut tile.bytes_mut()[..source.len()])
            }));

            let is_summed = operands.len() > 1;
            if let (true, [target], Stores::Plain) = (is_summed, &mut targets[..], stores) {
                reduce(SUM, &operands, (&mut **target).into());
                continue;
            }
            let shared = &mut shared.bytes_mut()[..source.len()];
            let is_for_others = targets.len() > usize::from(own.target.is_some());
            // What the rank itself has, and what others can read of it.
            let (result, readable) = if is_summed {
                reduce(SUM, &operands, (&mut *shared).into());
                (&*shared, &*shared)
            } else if is_for_others && matches!(reach, Reach::Tiles) {
                copy(source.into(), (&mut *shared).into());
                (source, &*shared)
            } else {
                (source, source)
            };
            for (index, target) in targets.iter_mut().enumerate() {
                match reach {
                    _ if own.target == Some(index) => stores.write(result, target),
                    Reach::System => {
                        copy_by_system(readable, target);
                    }
                    Reach::All | Reach::Tiles => stores.write(readable, target),
                }
            }
        }
    }
}

impl Reach {
    fn is_possible(self) -> bool {
        !matches!(self, Self::System) || copy_by_system(&[1], &mut [0])
    }

    /// What another rank contributes, from where it can be read.
    fn contribution<'a>(self, source: &'a [u8], tile: &'a mut [u8]) -> Source<'a> {
        match self {
            Self::All => return source.into(),
            Self::Tiles => copy(source.into(), (&mut *tile).into()),
            Self::System => {
                copy_by_system(source, tile);
            }
        }
        Source::from(&*tile)
    }
}

impl Stores {
    fn write(self, from: &[u8], to: &mut [u8]) {
        match self {
            Self::Plain => copy(from.into(), to.into()),
            Self::Streaming => copy_streaming(from.into(), to.into()),
        }
    }
}

/// As from another process; whether the system has done it.
fn copy_by_system(from: &[u8], to: &mut [u8]) -> bool {
    let remote = [RemoteIoVec { base: from.as_ptr().expose_provenance(), len: from.len() }];
    process_vm_readv(Pid::this(), &mut [IoSliceMut::new(to)], &remote) == Ok(from.len())
}
