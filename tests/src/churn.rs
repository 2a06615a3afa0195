//! Processes that are killed at random, and others that come for them: do those who are left go on?
//!
//! The command `churn` starts processes that call collectives and check every result. It kills some of them, some within
//! milliseconds of each other, some while others join. Those who are left make a communicator without them, and new ones
//! join that. All who live have to be in one communicator again within `--patience`. docs/testbed.md is for its users.
//!
//! | module | question it answers |
//! |---|---|
//! | [`arguments`] | what is asked for? |
//! | [`director`] | who is killed when, and who comes? |
//! | [`company`] | which processes are there, and are they all in one communicator? |
//! | [`member`] | what does each of them do? |
//! | [`words`] | what do they say to each other? |
//! | [`account`] | what happened, and how long did it take? |
#![allow(clippy::disallowed_methods, reason = "waiting and watching the time is what it is for")]

pub mod account;
pub mod arguments;
pub mod company;
pub mod director;
pub mod member;
pub mod words;

use std::process::ExitCode;

use clap::Parser as _;

use crate::Outcome;
use arguments::Arguments;

/// What the program is called.
const NAME: &str = "churn";

/// Does what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let parsed = Arguments::try_parse().and_then(Arguments::checked);
    let arguments = parsed.unwrap_or_else(|error| error.exit());
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.told_by(NAME),
    }
}

/// Does what this process is there for.
fn run(arguments: &Arguments) -> Outcome<()> {
    match arguments.member {
        Some(member) => member::run(member),
        None => director::run(arguments),
    }
}
