//! How fast the memory does what a collective cannot do without, when nobody waits for anybody.

use ccl_core::datatype::DataType;
use ccl_kernels::{Combine, Kernel, Source, copy, copy_streaming, reduce};

use super::Job;
use super::collective::{Block, Collective};
use super::memory::Memory;

pub(crate) const SUM: Kernel = Kernel { datatype: DataType::Float32, combine: Combine::Sum };

/// What a thread reads before it writes, at most: which is best depends on the machine, and on how many inputs and outputs
/// there are. Less is slower, and so are threads that take every other block instead of halves.
const BLOCK_BYTES: [usize; 3] = [16 << 10, 64 << 10, LARGEST_BLOCK_BYTES];
const LARGEST_BLOCK_BYTES: usize = 256 << 10;

/// How results are written.
#[derive(Clone, Copy)]
enum Stores {
    Plain,
    /// Past the caches.
    Streaming,
}

impl Job<'_> {
    /// The time of the best of some ways, and the wrong bytes of all.
    pub(crate) fn limit(self, collective: &Collective) -> (f64, usize) {
        let (inputs, outputs) = (collective.inputs, collective.outputs);
        let inputs: Vec<_> =
            (0..inputs.count).map(|rank| Memory::input(inputs.bytes, rank)).collect();
        let mut outputs: Vec<_> =
            (0..outputs.count).map(|_| Memory::new(outputs.bytes, 0)).collect();
        let threads = self.ranks.min(self.processors.len());
        let (mut least, mut wrong) = (f64::INFINITY, 0);
        for block_bytes in BLOCK_BYTES {
            for stores in [Stores::Plain, Stores::Streaming] {
                // So that nothing is left of the way before.
                outputs.iter_mut().for_each(|output| output.bytes_mut().fill(0));
                let work = collective.cut(&inputs, &mut outputs, threads, block_bytes);
                let work = work.into_iter().map(Share::new).collect();
                least = least.min(self.timed(work, |share: &mut Share<'_>| share.run(stores)));
                wrong += collective.wrong(&outputs);
            }
        }
        (least, wrong)
    }
}

/// The work of a thread.
struct Share<'a> {
    blocks: Vec<Block<'a>>,
    scratch: Box<Scratch>,
}

/// What one thread reduces before it writes it: whole cache lines, as the library's are.
#[repr(align(64))]
struct Scratch([u8; LARGEST_BLOCK_BYTES]);

impl<'a> Share<'a> {
    fn new(blocks: Vec<Block<'a>>) -> Self {
        Self { blocks, scratch: Box::new(Scratch([0; LARGEST_BLOCK_BYTES])) }
    }

    fn run(&mut self, stores: Stores) {
        let write = match stores {
            Stores::Plain => copy,
            Stores::Streaming => copy_streaming,
        };
        let mut operands = Vec::new();
        for Block { sources, targets } in &mut self.blocks {
            operands.clear();
            operands.extend(sources.iter().map(|source| Source::from(*source)));
            match (&operands[..], &mut targets[..], stores) {
                ([_], targets, _) => {
                    targets
                        .iter_mut()
                        .for_each(|target| write(sources[0].into(), (&mut **target).into()));
                }
                (operands, [target], Stores::Plain) => {
                    reduce(SUM, operands, (&mut **target).into())
                }
                (operands, targets, _) => {
                    let sum = &mut self.scratch.0[..sources[0].len()];
                    reduce(SUM, operands, (&mut *sum).into());
                    targets
                        .iter_mut()
                        .for_each(|target| write((&*sum).into(), (&mut **target).into()));
                }
            }
        }
    }
}
