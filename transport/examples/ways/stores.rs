//! Copies that write through the caches, and copies that write past them.

use ccl_kernels::{Source, Target, copy, copy_streaming};
use ccl_transport::clock;

use crate::area::{Area, Pages, pattern};
use crate::rounds::{Times, head, interleaved, row, size};

const SIZES: [usize; 6] = [64 << 10, 256 << 10, 1 << 20, 8 << 20, 32 << 20, 128 << 20];
/// What copies go round in that find no byte of theirs in a cache.
const COLD_BYTES: usize = 256 << 20;
/// Bytes of one timed run.
const RUN_BYTES: usize = 128 << 20;

type Copy = fn(Source<'_>, Target<'_>);

/// Where the target was before, and what happens next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    /// The same target each time.
    Hot,
    /// A target that was not touched for a long time.
    Cold,
    /// The same target each time, which is copied on (plainly) right away.
    ReadNext,
}

pub(crate) fn measure() {
    let [source, next] = [(); 2].map(|()| Area::anonymous(RUN_BYTES, Pages::Ordinary));
    let target = Area::anonymous(COLD_BYTES, Pages::Ordinary);
    source.fill(pattern(5));
    let copies: [Copy; 2] = [copy, copy_streaming];
    for write in copies {
        target.fill(|_| 0.0);
        write(source.source(0, RUN_BYTES), target.target(0, RUN_BYTES));
        assert_eq!(target.wrong(RUN_BYTES, pattern(5)), 0, "wrong bytes");
    }
    println!("\n## Streaming stores");
    let columns = [
        "size",
        "hot, plain",
        "hot, streamed",
        "cold, plain",
        "cold, streamed",
        "hot and read next, plain",
        "hot and read next, streamed",
    ];
    head("Copies of one process, µs", &columns);
    for bytes in SIZES {
        let cases = [Case::Hot, Case::Cold, Case::ReadNext];
        let mut candidates: Vec<_> =
            cases.iter().flat_map(|case| copies.map(|write| (*case, write))).collect();
        let times = interleaved(&mut candidates, |(case, write)| {
            run(*case, *write, bytes, [source, target, next])
        });
        row(&[vec![size(bytes)], times.iter().map(Times::microseconds).collect()].concat());
    }
}

/// Seconds of a copy.
fn run(case: Case, write: Copy, bytes: usize, [source, target, next]: [Area; 3]) -> f64 {
    let calls = RUN_BYTES / bytes;
    let places = if case == Case::Cold { COLD_BYTES / bytes } else { 1 };
    let start = clock::now();
    for call in 0..calls {
        let offset = call % places * bytes;
        write(source.source(0, bytes), target.target(offset, bytes));
        if case == Case::ReadNext {
            copy(target.source(0, bytes), next.target(0, bytes));
        }
    }
    start.elapsed().as_secs_f64() / calls as f64
}
