//! How fast kernels are. First one implementation, the best or the one that is named: every operation on every
//! type, as a share of the rate of the sum of `f32`, with operands that fit the second-level cache. Then how fast each implementation
//! sums, in GB/s of bytes read and written, by type and number of operands, for buffers that fit that cache,
//! and for buffers that fit none.
//!
//! `cargo run --release -p ccl-kernels --example kernel_rates [-- operations [IMPLEMENTATION]]`, where the first
//! word leaves out the second part.
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

/// Every byte of the operands: a number of about one in narrow types, a small one in wide types. Products of
/// smaller ones would be subnormal, which processors compute slowly.
const FILL: u8 = 0x3c;
/// Rounds of the table of operations, in which its cells take turns.
const ROUNDS: usize = 7;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let available = Implementation::available();
    let chosen = match words.get(1) {
        None => Some(Implementation::best()),
        Some(name) => available.into_iter().find(|one| one.name() == name),
    };
    let Some(chosen) = chosen else { return println!("this processor cannot run it") };
    operations(chosen);
    if words.first().is_none_or(|word| word != "operations") {
        implementations();
    }
}

/// A Markdown table of shares, in percent; a cell is the median over the rounds.
fn operations(by: Implementation) {
    let (label, bytes) = SIZES[0];
    let rate = |datatype, combine| rate(by, Kernel { datatype, combine }, bytes, 2, false);
    let mut shares = vec![Vec::new(); DataType::ALL.len() * Combine::ALL.len()];
    let mut references = Vec::new();
    for _ in 0..ROUNDS {
        for (row, datatype) in DataType::ALL.into_iter().enumerate() {
            let reference = rate(DataType::Float32, Combine::Sum);
            references.push(reference);
            for (column, combine) in Combine::ALL.into_iter().enumerate() {
                let share = 100.0 * rate(datatype, combine) / reference;
                shares[row * Combine::ALL.len() + column].push(share);
            }
        }
    }
    println!(
        "two operands of {label}, {}: % of the sum of f32, {:.0} GB/s\n",
        by.name(),
        median(&references)
    );
    println!("| type | sum | prod | max | min |\n| --- | --- | --- | --- | --- |");
    for (datatype, row) in DataType::ALL.iter().zip(shares.chunks(Combine::ALL.len())) {
        let cells: Vec<String> = row.iter().map(|cell| format!("{:.0}", median(cell))).collect();
        println!("| {} | {} |", datatype.name(), cells.join(" | "));
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn implementations() {
    for name in Implementation::unavailable() {
        println!("SKIP {name}: this processor cannot run it");
    }
    for (label, bytes) in SIZES {
        println!("\noperands of {label}: GB/s read and written");
        copies(bytes);
        println!("{:10} {:10} {:>12} {:>12} {:>12}", "", "", "2", "2 in place", "8");
        for by in Implementation::available().into_iter().filter(|by| by.name() != "oracle") {
            for datatype in DataType::ALL {
                let [two, in_place, eight] = [(2, false), (2, true), (8, false)].map(|(n, p)| {
                    rate(by, Kernel { datatype, combine: Combine::Sum }, bytes, n, p)
                });
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

fn rate(by: Implementation, kernel: Kernel, bytes: usize, operands: usize, in_place: bool) -> f64 {
    let mut memory = vec![FILL; bytes * (MOST_OPERANDS + 1) + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT);
    // SAFETY: the memory outlives the calls and is touched through the region only.
    let region = unsafe { Region::new(memory.as_mut_ptr(), memory.len()) };
    let place = |index: usize| region.source(start + index * bytes, bytes);
    let sources: Vec<Source<'_>> = (0..operands).map(place).collect();
    let target = start + if in_place { 0 } else { operands * bytes };
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
