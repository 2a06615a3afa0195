//! Real networks on one machine: hosts with several rails, whose cables can be cut.
//!
//! The command `testbed` makes hosts out of network namespaces, connects them over rate-limited
//! cables and switches, runs a program on every host as a launcher would, and breaks and heals cables
//! meanwhile. Programs can do the same with a [`bed::Bed`]. docs/testbed.md is for its users.
//!
//! | module | question it answers |
//! |---|---|
//! | [`arguments`], [`specification`] | what is asked for? |
//! | [`shape`], [`fault`] | what is there, and what can be wrong with it? |
//! | [`chaos`], [`timeline`] | what happens when? |
//! | [`bed`] and below it `namespace`, `netlink` | how is it done? |
//! | [`ranks`], [`control`], [`run`] | what runs on it, who else gives orders, until when? |
//! | [`port`] | where does a program listen that is told before it runs? |
//! | [`journal`], [`failure`] | what happened? |
//! | `lifetime` | who cleans up? |

pub mod arguments;
pub mod bed;
pub mod chaos;
pub mod clock;
pub mod control;
pub mod failure;
pub mod fault;
pub mod journal;
mod lifetime;
mod namespace;
mod netlink;
pub mod port;
pub mod ranks;
pub mod run;
pub mod shape;
pub mod specification;
pub mod timeline;

use std::process::ExitCode;

use clap::Parser as _;

use arguments::Arguments;
use failure::{Failure, Outcome};
use journal::Event;
pub use lifetime::INSIDE;

/// Does what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let parsed = Arguments::try_parse().and_then(Arguments::checked);
    let arguments = parsed.unwrap_or_else(|error| error.exit());
    let outcome = match &arguments.tell {
        Some(name) => tell(name, &arguments),
        None => host(&arguments),
    };
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            journal::say(&failure.to_string());
            ExitCode::from(failure.exit_status())
        }
    }
}

/// Runs the command on a bed and returns the worst exit status.
///
/// The bed needs a process of its own: this program is started again with [`INSIDE`] before its
/// arguments, and has to come here again with `inside` set.
///
/// # Errors
/// There can be no bed, or the command cannot be started.
pub fn host(arguments: &Arguments) -> Outcome<u8> {
    if !arguments.inside {
        return lifetime::run_inside();
    }
    lifetime::settle()?;
    run::run(arguments)
}

/// Sends the words of the command as a request, and prints the answer.
fn tell(name: &str, arguments: &Arguments) -> Outcome<u8> {
    let words: Vec<_> = arguments.command.iter().map(|word| word.to_string_lossy()).collect();
    let answer = control::tell(name, &words.join(" "))?;
    if let Event::Refused { reason } = answer {
        return Err(Failure::Input(reason));
    }
    journal::print(&answer);
    Ok(0)
}
