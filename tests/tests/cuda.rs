//! The benchmark binaries with buffers in memory of CUDA devices, which are interpreters.
#![allow(clippy::disallowed_methods, reason = "a test tells processes by the environment")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod benchmarks;
#[path = "../../ccl/tests/cuda/kernels.rs"]
mod kernels;
#[path = "../../kernels/tests/cuda/nvrtc.rs"]
mod nvrtc;
mod support;

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use benchmarks::{ALL_REDUCE, OTHERS};
use support::program::{Finished, Running};
use support::skip;

/// Seconds after which the library gives up, so that a hang is an error.
const CALL_TIMEOUT: &str = "40";

/// A folder in which the driver has its name.
fn driver() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fake-driver-of-benchmarks");
    ccl_fakecuda::install(&folder).unwrap();
    folder
}

/// A benchmark on devices, which are those of this machine.
fn benchmark(program: &str, arguments: &str) -> Command {
    let mut command = Command::new(program);
    for name in ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "LOCAL_RANK"] {
        command.env_remove(name);
    }
    // Nothing is gained by what is not checked, and interpreters are slow.
    command.args(arguments.split_whitespace()).args(["-w", "0"]);
    command.args(["--device", "cuda", "-T", CALL_TIMEOUT]);
    command
}

/// Likewise, where the devices are interpreters.
fn interpreted(program: &str, arguments: &str, kernels: Option<&Path>) -> Command {
    let mut command = benchmark(program, arguments);
    command.env("LD_LIBRARY_PATH", driver()).env("FAKECUDA_DEVICES", "2");
    // Pieces in every row but the smallest.
    command.env("R2CCL_CUDA_STAGING_BYTES", "32768");
    command.envs(kernels.map(|folder| ("R2CCL_CUDA_KERNELS", folder)));
    command
}

/// What it printed, if all results were checked and right.
fn right(program: &str, arguments: &str) -> String {
    right_with(program, arguments, None)
}

fn right_with(program: &str, arguments: &str, kernels: Option<&Path>) -> String {
    let finished = Running::start(&mut interpreted(program, arguments, kernels)).finish();
    finished.assert_right(&format!("{program} {arguments}"));
    finished.output
}

#[test]
fn all_collectives_are_right_on_devices() {
    for program in OTHERS.into_iter().chain([ALL_REDUCE]) {
        right(program, "--ranks 3 -b 256 -e 64K -f 16 -n 2 -r 1");
    }
}

#[test]
fn who_has_no_driver_is_told_by_every_benchmark() {
    for program in OTHERS.into_iter().chain([ALL_REDUCE]) {
        let mut command = benchmark(program, "--ranks 2 -b 8 -e 8 -n 1");
        let Finished { status, errors, .. } = Running::start(&mut command).finish();
        if status.success() {
            return skip("what is said without a CUDA driver: there is one");
        }
        assert!(errors.contains("no CUDA driver: there is no libcuda.so.1"), "{program}: {errors}");
    }
}

#[test]
fn devices_are_named_and_shared_out() {
    let text = right(ALL_REDUCE, "--ranks 3 -b 8 -e 8 -n 2 -m 3 -d all");
    for (rank, device) in [0, 1, 0].into_iter().enumerate() {
        let bus = format!("device {device:>2} [0000:0{}:00.0] PTX interpreter", device + 1);
        let start = format!("#  Rank {rank:>2} ");
        let line = text.lines().find(|line| line.starts_with(&start)).unwrap();
        assert!(line.contains(&bus), "{line}");
    }
    let mut moved = interpreted(ALL_REDUCE, "--ranks 2 -b 8 -e 8 -n 1", None);
    let moved = Running::start(moved.env("NCCL_TESTS_DEVICE", "1")).finish();
    moved.assert_right("all_reduce_perf with NCCL_TESTS_DEVICE");
    let lines = moved.output.lines().filter(|line| line.contains("device  1 [0000:02:00.0]"));
    assert_eq!(lines.count(), 2, "{}", moved.output);
    let mut beyond = interpreted(ALL_REDUCE, "--ranks 1 -b 8 -e 8 -n 1", None);
    let beyond = Running::start(beyond.env("NCCL_TESTS_DEVICE", "18446744073709551615")).finish();
    let said = "there is no device 18446744073709551615, but 2";
    assert!(!beyond.status.success() && beyond.errors.contains(said), "{}", beyond.errors);
}

#[test]
fn threads_are_ranks_too() {
    right(ALL_REDUCE, "-t 2 -b 1K -e 64K -f 8 -n 3 -o all -u 3");
    right(ALL_REDUCE, "-t 2 -b 1K -e 64K -f 8 -n 3 -u 3 -d int8");
    right(ALL_REDUCE, "-t 2 -b 1K -e 64K -f 8 -n 3 -z 1");
}

/// A folder with a script for a machine with a GPU, and a benchmark.
fn scripts(folder: &str, script: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(folder);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu").join(script);
    symlink(path, folder.join(script)).unwrap();
    for program in OTHERS.into_iter().chain([ALL_REDUCE]).map(Path::new) {
        symlink(program, folder.join(program.file_name().unwrap())).unwrap();
    }
    folder
}

/// What `tests/gpu/network` runs on a machine with a GPU.
#[test]
fn a_rail_dies_and_returns_below_devices() {
    let folder = scripts("gpu-over-the-network", "network");
    let mut command = Command::new(folder.join("network"));
    command.env("LD_LIBRARY_PATH", driver()).env("PROGRAMS", "all_reduce_perf").env("WAYS", "0");
    command.env("SIZES", "-b 256K -e 256K -n 1000");
    // Tests share the processors.
    command.env("SLACK_MS", "20000");
    command.env("FAULTS", "silent:host=0,rail=1,at=100ms,heal=200ms");
    let Finished { status, output: text, errors } = Running::start(&mut command).finish();
    assert!(status.success(), "{text}{errors}");
    assert!(text.contains("# Out of bounds values : 0 OK\n"), "{text}");
    assert!(text.contains("given-up (silence"), "{text}");
    assert!(text.contains("# slowest call out of place: "), "{text}");
}

/// What `tests/gpu/collectives` runs on a machine with a GPU.
#[test]
fn shares_of_what_memory_allows_are_told() {
    let folder = scripts("gpu-collectives", "collectives");
    let mut command = Command::new(folder.join("collectives"));
    command.env("LD_LIBRARY_PATH", driver()).env("PROGRAMS", "all_reduce_perf");
    command.env("RANKS", "2").env("SIZES", "-b 1M -e 1M -n 1").env("COPY_GBS", "100");
    command.env("COPIED", "all_gather_perf").env("COPIED_SIZES", "-b 1M -e 1M -n 1");
    let Finished { status, output: text, errors } = Running::start(&mut command).finish();
    assert!(status.success(), "{text}{errors}");
    let shares = text.lines().filter(|line| line.contains("of the 25.0 GB/s that memory allows"));
    // Threads and processes, each in three ways.
    assert_eq!(shares.count(), 6, "{text}");
    // Then each without copy engines and with them.
    let copied = |line: &&str| line.starts_with("# Rank 0") && !line.contains("copy engines: 0");
    assert_eq!(text.lines().filter(copied).count(), 2, "{text}");
}

#[test]
fn kernels_do_what_they_can() {
    let Some(kernels) = kernels::folder() else { return };
    let ways = |program: &str, arguments: &str| {
        let text = right_with(program, arguments, Some(&kernels));
        text.lines().find(|line| line.starts_with("# Rank 0: collectives")).unwrap().to_owned()
    };
    let kinds =
        ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "/reduce_perf", "alltoallv"];
    let has_kernels = |program: &&str| kinds.iter().any(|kind| program.contains(kind));
    for program in OTHERS.into_iter().chain([ALL_REDUCE]).filter(has_kernels) {
        let ways = ways(program, "--ranks 2 -b 1K -e 64K -f 64 -n 2 -r 1");
        assert!(ways.contains("through the host: 0"), "{program}: {ways}");
        let none = if program.contains("alltoallv") { " 0 by pulling" } else { " 0 by pushing" };
        assert!(!ways.contains(none), "{program}: {ways}");
    }
    let is_moved = |program: &&str| {
        ["all_gather", "broadcast", "alltoall_"].iter().any(|kind| program.contains(kind))
    };
    for program in OTHERS.into_iter().filter(is_moved) {
        let ways = ways(program, "--ranks 2 -R 2 -b 8M -e 16M -f 2 -n 1");
        assert!(!ways.contains("copy engines: 0"), "{program}: {ways}");
        assert!(ways.contains("through the host: 0"), "{program}: {ways}");
    }
    let threads = ways(ALL_REDUCE, "-t 2 -b 1K -e 64K -f 8 -n 3 -u 3");
    assert!(threads.contains("through the host: 0"), "{threads}");
}
