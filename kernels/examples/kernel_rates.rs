//! How fast each implementation sums, in GB/s of bytes read and written, by type and number of
//! operands, for buffers that fit the second-level cache, and for buffers that fit no cache.
//!
//! `cargo run --release -p ccl-kernels --example kernel_rates`
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

use std::time::Instant;

use ccl_core::datatype::DataType;
use ccl_kernels::{Combine, Implementation, Kernel, Region, Source, Target, copy, copy_streaming};

/// One operand of these many bytes.
const SIZES: [(&str, usize); 2] = [("64 KiB", 1 << 16), ("64 MiB", 1 << 26)];
const MOST_OPERANDS: usize = 8;
/// Runs go on for this long, and for a few at least; the best counts.
const SERIES_SECONDS: f64 = 0.03;
const FEWEST_RUNS: u32 = 4;
/// Buffers start at a multiple of this, as those of shared memory and of allocators for tensors do.
const ALIGNMENT: usize = 64;

fn main() {
    for name in Implementation::unavailable() {
        println!("SKIP {name}: this processor cannot run it");
    }
    for (label, bytes) in SIZES {
        println!("\noperands of {label}: GB/s read and written");
        copies(bytes);
        println!("{:10} {:10} {:>12} {:>12} {:>12}", "", "", "2", "2 in place", "8");
        for by in Implementation::available().into_iter().filter(|by| by.name() != "oracle") {
            for datatype in DataType::ALL {
                let [two, in_place, eight] = [(2, false), (2, true), (8, false)]
                    .map(|(n, p)| sum_rate(by, datatype, bytes, n, p));
                let (by, datatype) = (by.name(), datatype.name());
                println!("{by:10} {datatype:10} {two:12.1} {in_place:12.1} {eight:12.1}");
            }
        }
    }
}

fn copies(bytes: usize) {
    let rates: [fn(Source<'_>, Target<'_>); 2] = [copy, copy_streaming];
    let [plain, streaming] = rates.map(|copy| {
        let (source, mut target) = (vec![1; bytes], vec![2; bytes]);
        let seconds = best_seconds(|| copy(source.as_slice().into(), target.as_mut_slice().into()));
        assert!(source == target);
        2.0 * bytes as f64 / seconds / 1e9
    });
    println!("copy {plain:.1}, streaming {streaming:.1}");
}

fn sum_rate(
    by: Implementation,
    datatype: DataType,
    bytes: usize,
    operands: usize,
    in_place: bool,
) -> f64 {
    let mut memory = vec![1; bytes * (MOST_OPERANDS + 1) + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    // SAFETY: the memory outlives the calls and is touched through the region only.
    let region = unsafe { Region::new(memory.as_mut_ptr(), memory.len()) };
    let place = |index: usize| region.source(start + index * bytes, bytes);
    let sources: Vec<Source<'_>> = (0..operands).map(place).collect();
    let target = start + if in_place { 0 } else { operands * bytes };
    let kernel = Kernel { datatype, combine: Combine::Sum };
    let seconds = best_seconds(|| by.reduce(kernel, &sources, region.target(target, bytes)));
    (operands + 1) as f64 * bytes as f64 / seconds / 1e9
}

/// The shortest of several runs.
fn best_seconds(mut work: impl FnMut()) -> f64 {
    let series = Instant::now();
    let mut best = f64::INFINITY;
    let mut runs = 0;
    while runs < FEWEST_RUNS || series.elapsed().as_secs_f64() < SERIES_SECONDS {
        runs += 1;
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
