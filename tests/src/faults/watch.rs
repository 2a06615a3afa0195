//! What happens to the rails of one rank, and when all of them are in use again.

use std::collections::BTreeSet;

use ccl::{Communicator, RailRecord, ReduceOp};

use super::saboteur::{Measured, Saboteur};
use crate::Outcome;
use crate::arguments::Arguments;
use crate::buffers::Form;
use crate::error::Failure;
use crate::stopwatch::Stopwatch;

/// How long rails may take to come back to use before the run goes on without them.
const PATIENCE_S: f64 = 20.0;

/// Remembers what happens to the rails of a rank, if anybody wants to know; on rank 0, it also lets
/// the cables be cut.
#[derive(Debug)]
pub struct Watch {
    saboteur: Option<Saboteur>,
    breaks: bool,
    remembers: bool,
    records: Vec<RailRecord>,
    /// Paths that were given up and have not returned.
    out: BTreeSet<String>,
    /// Since when all cables are whole, as rank 0 knows.
    whole: Option<Stopwatch>,
}

impl Watch {
    /// What the command line asks of a rank.
    ///
    /// # Errors
    /// There is no thread.
    pub fn new(arguments: &Arguments, rank: u32) -> Outcome<Self> {
        let faults = &arguments.faults;
        let saboteur = match &arguments.orders {
            Some(name) if rank == 0 && !faults.is_empty() => Some(Saboteur::start(name, faults)?),
            _ => None,
        };
        Ok(Self {
            saboteur,
            breaks: !faults.is_empty(),
            remembers: !faults.is_empty() || arguments.timeline.is_some(),
            records: Vec::new(),
            out: BTreeSet::new(),
            whole: None,
        })
    }

    /// Whether cables are cut in this run.
    #[must_use]
    pub fn breaks(&self) -> bool {
        self.breaks
    }

    /// The first of `turns` timed iterations of a row is about to begin.
    pub fn begin(&mut self, row_bytes: usize, form: Form, turns: usize) {
        self.whole = None;
        if let Some(saboteur) = &mut self.saboteur {
            saboteur.begin(Measured { row_bytes, form: form.name() }, turns);
        }
    }

    /// Iteration `turn` is about to begin.
    pub fn reached(&self, turn: usize) {
        if let Some(saboteur) = &self.saboteur {
            saboteur.reached(turn);
        }
    }

    /// The results of the measurement were checked.
    pub fn end(&mut self, communicators: [&Communicator; 2]) {
        self.look(communicators);
        if let Some(saboteur) = &self.saboteur {
            saboteur.end();
        }
    }

    /// Whether all cables are whole and all rails of all ranks are in use again, or were waited for
    /// long enough; all ranks get the same answer.
    ///
    /// # Errors
    /// The testbed or the library failed.
    pub fn is_settled(&mut self, [world, group]: [&Communicator; 2]) -> Outcome<bool> {
        self.look([world, group]);
        let is_whole = self.saboteur.as_ref().map_or(Ok(true), Saboteur::is_whole)?;
        if is_whole && self.whole.is_none() {
            self.whole = Some(Stopwatch::start());
        }
        let is_late = self.whole.is_some_and(|since| since.wall_s() > PATIENCE_S);
        // Rank 0 alone knows of the cables, and its clock decides.
        let leads = self.saboteur.is_some();
        let own = [u64::from(!is_whole), self.out.len() as u64, u64::from(leads && is_late)];
        let mut all = [0; 3];
        world
            .all_reduce(&own, &mut all, ReduceOp::Sum)
            .map_err(|error| Failure::Library { rank: world.rank().0, error })?;
        let [broken, out, late] = all;
        Ok(broken == 0 && (out == 0 || late > 0))
    }

    /// Takes over what has happened since the last look, before the library forgets it.
    fn look(&mut self, communicators: [&Communicator; 2]) {
        if !self.remembers {
            return;
        }
        for record in communicators.into_iter().flat_map(Communicator::rail_records) {
            match record.event {
                "given-up" => self.out.insert(record.path.clone()),
                "returned" => self.out.remove(&record.path),
                _ => false,
            };
            self.records.push(record);
        }
    }

    /// Everything that happened, and the thread that was behind it.
    #[must_use]
    pub fn finish(mut self, world: &Communicator) -> (Vec<RailRecord>, Option<Saboteur>) {
        self.look([world, world]);
        (self.records, self.saboteur)
    }
}
