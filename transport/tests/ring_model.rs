//! Runs the model of rings, which is in `src/ring/model.rs`: the crate is built for it with `--cfg loom`, in a folder
//! of its own below the target folder.

use std::path::Path;
use std::process::Command;

/// cargo, for the crate as the model wants it.
fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("RUSTFLAGS", "--cfg loom")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("ring-model"));
    cargo
}

#[test]
fn rings_keep_their_promises_in_every_order() {
    let fetched = cargo().args(["fetch", "--locked"]).output().expect("run cargo");
    if !fetched.status.success() {
        let reason = String::from_utf8_lossy(&fetched.stderr);
        println!("skip: the model of rings: loom cannot be downloaded: {}", reason.trim());
        return;
    }
    let test = ["test", "--locked", "--lib", "ring::model", "--", "--nocapture"];
    let ended = cargo().args(test).output().expect("run cargo");
    let printed = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{printed}\n{errors}");
    assert!(printed.contains("executions to the end"), "there are models to run: {printed}");
}
