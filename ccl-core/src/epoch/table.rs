//! The health on which ranks agree: every rank's rails, with the version of what is known of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::Rank;
use crate::topology::RailCapacity;

/// The rails of one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Counts the changes, as that rank saw them; 0 is how it introduced itself.
    pub version: u64,
    /// Its rails, in the order of their numbers; empty in version 0, since everybody was introduced.
    pub rails: Vec<RailCapacity>,
}

/// The rails of all ranks for whom they have changed since the ranks introduced themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    rows: BTreeMap<u32, Row>,
}

impl Row {
    /// Rails that have not changed.
    #[must_use]
    pub fn as_introduced() -> Self {
        Self { version: 0, rails: Vec::new() }
    }
}

impl Table {
    /// The rails of `rank`, if they have ever changed.
    #[must_use]
    pub fn row(&self, rank: Rank) -> Option<&Row> {
        self.rows.get(&rank.0)
    }

    /// How often the rails of `rank` have changed.
    #[must_use]
    pub fn version(&self, rank: Rank) -> u64 {
        self.row(rank).map_or(0, |row| row.version)
    }

    /// Takes the rails of `rank` if they are newer than what is known.
    pub fn learn(&mut self, rank: Rank, row: &Row) {
        if row.version > self.version(rank) {
            self.rows.insert(rank.0, row.clone());
        }
    }

    /// Takes everything that is newer than what is known.
    pub fn merge(&mut self, other: &Self) {
        for (rank, row) in &other.rows {
            self.learn(Rank(*rank), row);
        }
    }
}
