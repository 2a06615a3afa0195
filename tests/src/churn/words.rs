//! What the director and the members say to each other: lines of JSON, over the standard input and output of members.

use std::io::{self, Write};

use ccl::UniqueId;
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::error::Failure;

/// The number of a member: no two have had the same, however often ranks change.
pub type Serial = u32;

/// The first that a member is told: who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its own number.
    pub serial: Serial,
    /// The rank that it begins as.
    pub rank: u32,
    /// Of so many.
    pub size: u32,
    /// Where it joins; none: others do where it says.
    pub meeting: Option<Meeting>,
}

/// What it is told later, if it is rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Admit {
    /// How many are to be let in,
    pub newcomers: u32,
    /// if it is with these still.
    pub with: Vec<Serial>,
}

/// The bytes of a [`UniqueId`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting(Vec<u8>);

/// What a member says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// So many can join where it says, as the ranks from `first` on.
    Join {
        /// Where.
        meeting: Meeting,
        /// The rank of the first that comes.
        first: u32,
        /// How many it waits for.
        newcomers: u32,
    },
    /// It is in a communicator with these, in order of their ranks, who have told it so through that.
    Together {
        /// Itself and the others.
        members: Vec<Serial>,
        /// How many collectives it has checked so far.
        checked: u64,
    },
    /// Something has failed, and it tries to go on.
    Failed(String),
    /// It never got into a communicator, and ends.
    Outside(String),
    /// A result was wrong, and it ends.
    Wrong(String),
}

impl Meeting {
    /// The words for an id.
    #[must_use]
    pub fn at(id: &UniqueId) -> Self {
        Self(id.to_bytes().to_vec())
    }

    /// The id.
    ///
    /// # Errors
    /// These bytes are none.
    pub fn id(&self) -> Outcome<UniqueId> {
        let bytes = self.0.as_slice().try_into();
        let bytes = bytes.map_err(|_| Failure::Input("this is not the length of an id".into()))?;
        UniqueId::from_bytes(bytes).map_err(|error| Failure::Input(error.to_string()))
    }
}

/// Writes a line.
///
/// # Errors
/// Nobody reads it.
pub fn say(to: &mut impl Write, words: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(words)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}
