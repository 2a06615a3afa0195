//! Real processes as ranks, for tests of what happens when something goes wrong.
//!
//! A test starts itself again, once for every rank: [`job::Job`] is the parent's side, [`child`] the
//! ranks' side. Ranks say what happens to them in lines on their standard output, which the parent
//! waits for with a deadline; nobody sleeps until something has probably happened.
//!
//! ```text
//! parent                                   rank (the same executable, `--exact child_entry`)
//! Job::of(size, role), launch ── environment: role, rank, size, id ──▶ child::enter
//!                             ◀── lines: id, underway, ended, skipped ── Child::report
//! Job::tell ── a line ──▶ Child::word
//! Job::finish: nothing is left behind ([`footprint`])
//! ```
#![allow(dead_code, reason = "every test executable uses another part")]
#![allow(
    clippy::disallowed_methods,
    reason = "the clock and the environment of the tests are not those of the library"
)]

pub(crate) mod bed;
pub(crate) mod child;
pub(crate) mod footprint;
pub(crate) mod job;
pub(crate) mod program;
pub(crate) mod roles;

use std::io::Write;

/// Says something that has to be seen even if the test passes.
pub(crate) fn note(text: &str) {
    say(&format!("{}: {text}\n", std::thread::current().name().unwrap_or("?")));
}

/// Says what is not tested here, and why. See docs/testing.md.
pub(crate) fn skip(text: &str) {
    say(&format!("skip: {text}\n"));
}

/// Not by a macro, whose output the harness hides; and nothing is lost with it.
fn say(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}
