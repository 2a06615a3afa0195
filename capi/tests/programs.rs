//! The C examples, compiled and run against the shared library.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ccl_tests::testbed::port::ReservedPort;
use support::{Workshop, succeeded};

fn example(workshop: &Workshop, name: &str) -> PathBuf {
    workshop.build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name))
}

/// A program with deadlines that suit a test.
fn rank_program(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("R2CCL_TIMEOUT", "60").env("R2CCL_BOOTSTRAP_TIMEOUT", "60");
    command
}

#[test]
fn processes_that_the_example_starts_sum_correctly() {
    let workshop = Workshop::new();
    let program = example(&workshop, "all_reduce.c");
    for ranks in ["1", "2", "5"] {
        let printed = succeeded(rank_program(&program).arg(ranks));
        let expected = format!("all_reduce: {ranks} ranks, 1000003 floats, every sum correct\n");
        assert_eq!(printed, expected);
    }
}

#[test]
fn processes_of_a_launcher_sum_correctly() {
    let workshop = Workshop::new();
    let program = example(&workshop, "all_reduce.c");
    let port = ReservedPort::new().unwrap();
    // The ranks meet one above it.
    let master_port = (port.number() - 1).to_string();
    let start = |rank: &str| {
        let mut command = rank_program(&program);
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
        command.env("MASTER_PORT", &master_port).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let ranks = ["0", "1"].map(start);
    let printed = ranks.map(|rank| support::check("a rank", &rank.wait_with_output().unwrap()));
    let expected = "all_reduce: 2 ranks, 1000003 floats, every sum correct\n";
    assert_eq!(printed, [expected, ""]);
}

#[test]
fn without_a_launcher_the_example_says_so() {
    let workshop = Workshop::new();
    let mut command = Command::new(example(&workshop, "all_reduce.c"));
    let output = command.env_clear().output().unwrap();
    assert!(!output.status.success());
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.starts_with("ccl_comm_init_from_environment: "), "{complaint}");
}

#[test]
fn every_call_does_what_the_header_says() {
    let workshop = Workshop::new();
    let printed = succeeded(&mut rank_program(&example(&workshop, "everything.c")));
    assert_eq!(printed, "everything: 4 ranks, every call as described\n");
}

#[test]
fn every_end_is_what_the_header_says() {
    let workshop = Workshop::new();
    let printed = succeeded(&mut rank_program(&example(&workshop, "endings.c")));
    assert_eq!(printed, "endings: 4 ranks, every end as described\n");
}

#[test]
fn communicators_take_in_new_ranks_as_the_header_says() {
    let workshop = Workshop::new();
    let printed = succeeded(&mut rank_program(&example(&workshop, "growth.c")));
    assert_eq!(printed, "growth: 2 ranks become 4, as described\n");
}

/// With devices that are interpreters, and pinned memory of this size.
fn cuda_program(program: &Path, staging_bytes: &str) -> Command {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fake-driver-of-capi");
    ccl_fakecuda::install(&folder).expect("the driver was built");
    let mut command = rank_program(program);
    command.env("LD_LIBRARY_PATH", folder).env("FAKECUDA_DEVICES", "2");
    command.env("R2CCL_CUDA_STAGING_BYTES", staging_bytes);
    // Blocks of most calls are larger.
    command.env("R2CCL_CUDA_COPY_ENGINE_BYTES", "1000");
    command
}

#[test]
fn every_call_on_memory_of_devices_does_what_the_header_says() {
    let workshop = Workshop::new();
    let program = example(&workshop, "cuda.c");
    // The second time in pieces, and with one device.
    for (ranks, staging_bytes, devices) in [("2", "1048576", "2"), ("3", "8192", "1")] {
        let mut command = cuda_program(&program, staging_bytes);
        let printed = succeeded(command.env("FAKECUDA_DEVICES", devices).arg(ranks));
        assert_eq!(printed, format!("cuda: {ranks} ranks, every call as described\n"));
    }
}

#[test]
fn every_end_with_calls_on_streams_is_what_the_header_says() {
    let workshop = Workshop::new();
    let program = example(&workshop, "cuda_endings.c");
    let printed = succeeded(cuda_program(&program, "8388608").arg("3"));
    assert_eq!(printed, "cuda_endings: 3 ranks, every end as described\n");
}

#[test]
fn without_a_driver_calls_on_memory_of_devices_say_so() {
    let workshop = Workshop::new();
    let mut command = rank_program(&example(&workshop, "cuda.c"));
    let output = command.arg("no-driver").output().expect("it runs");
    let complaints = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && !complaints.contains("no CUDA driver") {
        support::skip(&format!("the error without a CUDA driver: there is one: {complaints}"));
        return;
    }
    let printed = support::check("cuda no-driver", &output);
    assert_eq!(printed, "cuda: no CUDA driver, and it is said so\n");
}

#[test]
fn a_queue_pair_survives_its_nic() {
    let workshop = Workshop::new();
    let printed = succeeded(&mut rank_program(&example(&workshop, "vqp.c")));
    assert_eq!(printed, "vqp: 2 processes, nothing lost, nothing twice\n");
}

#[test]
fn a_queue_pair_survives_its_nic_with_a_backup_of_a_pool() {
    let workshop = Workshop::new();
    let printed = succeeded(rank_program(&example(&workshop, "vqp.c")).arg("pooled"));
    assert_eq!(printed, "vqp: 2 processes, nothing lost, nothing twice\n");
}

#[test]
fn a_queue_pair_without_a_rail_ends_with_a_reason() {
    let workshop = Workshop::new();
    let printed = succeeded(rank_program(&example(&workshop, "vqp.c")).arg("all-fail"));
    assert_eq!(printed, "vqp: 2 processes, an end with a reason\n");
}
