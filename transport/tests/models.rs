//! Runs the models of rings, of locks and of who renounces, which are in `src/*/model.rs`: the crate is built for them with
//! `--cfg loom`, in a folder of its own below the target folder.
#![allow(clippy::print_stdout, reason = "skips are reported")]

use std::path::Path;
use std::process::Command;

/// The models run for half a minute, so that what takes long is to compile all that the crate needs.
const QUICKLY_BUILT: [&str; 3] = [
    "--config=profile.dev.opt-level=0",
    "--config=profile.dev.debug=false",
    "--config=profile.dev.package.ccl-kernels.opt-level=0",
];

/// cargo, for the crate as the models want it.
fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", "--cfg loom")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("models"));
    cargo
}

/// Runs the models in the module `of`.
fn check(of: &str) {
    let fetched = cargo().args(["fetch", "--locked"]).output().expect("run cargo");
    if !fetched.status.success() {
        let reason = String::from_utf8_lossy(&fetched.stderr);
        println!("skip: the model of {of}: loom cannot be downloaded: {}", reason.trim());
        return;
    }
    let module = format!("{of}::model");
    let test = ["test", "--locked", "--lib", &module];
    let ended = cargo()
        .args(test)
        .args(QUICKLY_BUILT)
        .args(["--", "--nocapture"])
        .output()
        .expect("run cargo");
    let printed = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{printed}\n{errors}");
    assert!(printed.contains("executions to the end"), "there are models to run: {printed}");
}

#[test]
fn rings_keep_their_promises_in_every_order() {
    check("ring");
}

#[test]
fn what_is_written_after_a_failure_is_in_doubt_in_every_order() {
    check("shm::renunciation");
}

#[test]
fn one_thread_at_a_time_has_what_is_locked_in_every_order() {
    check("biased");
}
