//! A kernel of a few lines, the memory that it has, and all ways to run it.

use std::sync::Arc;

use ccl_emulator::{Buffer, Fault, Launch, Machine, Memory, Module, Options, Schedule};

/// A kernel `k(pointer)` with registers of every kind.
pub(crate) fn kernel(declarations: &str, body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n{declarations}
.visible .entry k(.param .u64 p)
{{
.reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<19>; .reg .b64 %d<19>; .reg .f32 %f<9>;
ld.param.u64 %d0, [p];
mov.u32 %r0, %tid.x;
mul.wide.u32 %d1, %r0, 4;
add.s64 %d1, %d0, %d1;
{body}
}}"
    )
}

/// Memory of some words, zeroed.
pub(crate) struct World {
    pub(crate) memory: Arc<Memory>,
    pub(crate) buffer: Buffer,
}

impl World {
    pub(crate) fn new(words: usize) -> Self {
        let memory = Memory::new();
        let buffer = Buffer::new(&memory, words * 4, 0);
        Self { memory, buffer }
    }

    pub(crate) fn run(
        &self,
        source: &str,
        grid: u32,
        block: u32,
        options: Options,
    ) -> Result<u64, Fault> {
        self.run_all(&[source], grid, block, options)
    }

    /// Runs the kernel of each text, on a stream of its own.
    pub(crate) fn run_all(
        &self,
        sources: &[&str],
        grid: u32,
        block: u32,
        options: Options,
    ) -> Result<u64, Fault> {
        self.launch(sources, grid, block, options).run()
    }

    /// The kernel of each text, on a stream of its own.
    pub(crate) fn launch(
        &self,
        sources: &[&str],
        grid: u32,
        block: u32,
        options: Options,
    ) -> Machine {
        let mut machine = Machine::new(&self.memory, options);
        for (stream, source) in (0..).zip(sources) {
            let module = Module::load(source, &self.memory);
            let module = module.unwrap_or_else(|error| panic!("{error}"));
            let launch = Launch {
                kernel: module.kernel("k").expect("a kernel k"),
                grid: [grid, 1, 1],
                block: [block, 1, 1],
                shared_bytes: 256,
                arguments: self.buffer.address().to_le_bytes().to_vec(),
            };
            machine.launch(stream, launch).expect("it can be launched");
        }
        machine
    }

    pub(crate) fn words(&self) -> Vec<u32> {
        let bytes = self.buffer.read();
        bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes"))).collect()
    }
}

/// Every way in which threads may be scheduled.
pub(crate) fn schedules() -> Vec<Options> {
    let random = (0..20).flat_map(|seed| {
        [(false, false), (true, false), (true, true)].map(|(torn, split)| Options {
            schedule: Schedule::Random(seed),
            torn,
            split,
            weak: split,
            patience: Some(2_000_000),
            ..Options::default()
        })
    });
    std::iter::once(Options { patience: Some(2_000_000), ..Options::default() })
        .chain(random)
        .collect()
}

/// The words that a kernel leaves, however its threads are scheduled.
pub(crate) fn result(source: &str, grid: u32, block: u32, words: usize) -> Vec<u32> {
    let mut results: Vec<Vec<u32>> = schedules()
        .into_iter()
        .map(|options| {
            let world = World::new(words);
            let ran = world.run(source, grid, block, options);
            ran.unwrap_or_else(|fault| panic!("{options:?}: {fault}"));
            world.words()
        })
        .collect();
    results.dedup();
    assert_eq!(results.len(), 1, "the schedule changes the result: {results:?}");
    results.remove(0)
}

pub(crate) fn fault(source: &str, block: u32) -> Fault {
    World::new(64)
        .run(source, 1, block, Options { patience: Some(100_000), ..Options::default() })
        .expect_err("it must be refused")
}
