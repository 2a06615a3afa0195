//! What happened, for people (standard error) and for programs (lines of JSON).

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bed::Moment;
use super::failure::{Failure, Outcome};
use super::fault::Action;
use super::shape::Shape;

/// Something that happened; times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The processes were started.
    Started {
        /// Hosts of the bed.
        hosts: usize,
        /// Rails of every host.
        rails: usize,
        /// What each carries.
        rate: String,
        /// Number of processes.
        ranks: usize,
        /// When.
        at_ns: u64,
    },
    /// A fault began or ended.
    Fault {
        /// `cut` or `heal`.
        turn: String,
        /// The fault, such as `silent`.
        fault: String,
        /// Host of the cable.
        host: usize,
        /// Rail of the cable.
        rail: usize,
        /// Just before the kernel was asked.
        began_ns: u64,
        /// When the kernel had done it.
        ended_ns: u64,
    },
    /// A process ended.
    Ended {
        /// Its rank.
        rank: usize,
        /// Its exit status; 128 and the number of the signal if one ended it.
        status: u8,
        /// When.
        at_ns: u64,
    },
    /// A request was refused.
    Refused {
        /// Why.
        reason: String,
    },
}

impl Event {
    /// The processes were started.
    #[must_use]
    pub fn started(shape: Shape, ranks: usize, at_ns: u64) -> Self {
        let Shape { hosts, rails, rate } = shape;
        Self::Started { hosts, rails, rate: rate.to_string(), ranks, at_ns }
    }

    /// A fault began or ended.
    #[must_use]
    pub fn fault(action: &Action, moment: Moment) -> Self {
        Self::Fault {
            turn: action.turn.name().to_owned(),
            fault: action.fault.to_string(),
            host: action.cable.host,
            rail: action.cable.rail,
            began_ns: moment.began_ns,
            ended_ns: moment.ended_ns,
        }
    }

    /// As one line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("an event is plain text and numbers")
    }

    /// As a sentence, with times since `start_ns`; nothing where people see it anyway.
    fn sentence(&self, start_ns: u64) -> Option<String> {
        match self {
            Self::Started { .. } => None,
            Self::Ended { status: 0, .. } => None,
            Self::Ended { rank, status, at_ns } => {
                Some(format!("{} rank {rank} ended with status {status}", since(start_ns, *at_ns)))
            }
            Self::Fault { turn, fault, host, rail, began_ns, ended_ns } => {
                let took_us = ended_ns.saturating_sub(*began_ns) / 1000;
                let when = since(start_ns, *began_ns);
                Some(format!("{when} {turn} {fault} host {host} rail {rail} (took {took_us} us)"))
            }
            Self::Refused { reason } => Some(format!("refused: {reason}")),
        }
    }
}

fn since(start_ns: u64, at_ns: u64) -> String {
    let microseconds = at_ns.saturating_sub(start_ns) / 1000;
    format!("{}.{:06} s", microseconds / 1_000_000, microseconds % 1_000_000)
}

/// Where events go.
#[derive(Debug)]
pub struct Journal {
    start_ns: u64,
    file: Option<File>,
}

impl Journal {
    /// Sentences will count from `start_ns`; lines go to the file at `path`.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn open(path: Option<&Path>, start_ns: u64) -> Outcome<Self> {
        let create = |path: &Path| {
            File::create(path).map_err(|cause| Failure::system(path.display().to_string(), cause))
        };
        Ok(Self { start_ns, file: path.map(create).transpose()? })
    }

    /// Writes an event down.
    pub fn record(&mut self, event: &Event) {
        if let Some(sentence) = event.sentence(self.start_ns) {
            say(&sentence);
        }
        if let Some(file) = &mut self.file {
            // A full disk must not end the run.
            let _ = file.write_all(format!("{}\n", event.to_json()).as_bytes());
        }
    }
}

/// Says something to the person who waits for the run.
pub fn say(sentence: &str) {
    // There is nobody left to tell when standard error is gone.
    let _ = std::io::stderr().write_all(format!("testbed: {sentence}\n").as_bytes());
}

/// Prints an event as a line of JSON.
pub fn print(event: &Event) {
    // As for [`say`].
    let _ = std::io::stdout().write_all(format!("{}\n", event.to_json()).as_bytes());
}
