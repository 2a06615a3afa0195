//! What a program that does not go on waits for.

use std::collections::VecDeque;

use ccl_core::ids::Rank;
use ccl_core::program::{Lane, Port};
use smallvec::SmallVec;

use super::{INLINE_OPERANDS, Run};

impl Run<'_> {
    /// The ranks from which something is still to come, which still have to take something, or which still read what was lent.
    pub(crate) fn peers_waited_for(&self) -> SmallVec<[Rank; INLINE_OPERANDS]> {
        let lanes = self.task.program.sends.iter().zip(&self.progress.lent);
        let reading = lanes.filter(|(_, lent)| !lent.is_empty()).map(|(lane, _)| lane.port);
        self.open_receives().chain(self.open_sends()).chain(reading).map(Port::rank).collect()
    }

    /// Links on which something is still to be sent.
    pub(super) fn open_sends(&self) -> impl Iterator<Item = Port> {
        open(&self.task.program.sends, |lane| self.progress.sent[lane], self.passed())
    }

    /// Links on which something is still to come.
    pub(super) fn open_receives(&self) -> impl Iterator<Item = Port> {
        open(&self.task.program.receives, |lane| self.progress.received[lane], self.passed())
    }

    /// How many steps are done, if they are done in their order.
    fn passed(&self) -> Option<usize> {
        self.task.is_straight.then_some(self.progress.passed)
    }

    /// Which ranks are waited for, in words.
    pub(crate) fn waiting(&self) -> String {
        let describe = |ends: Vec<String>, verb: &str| {
            (!ends.is_empty()).then(|| format!("{verb} {}", ends.join(", ")))
        };
        let source = |port| match self.has_heard(port) {
            true => self.other_end(port),
            // It is likely to be this one that has not called.
            false => format!("{} (nothing has come)", self.other_end(port)),
        };
        let target = |port| self.other_end(port);
        let from = describe(self.open_receives().map(source).collect(), "waiting for data from");
        let to = describe(self.open_sends().map(target).collect(), "waiting to send to");
        let both: Vec<String> = from.into_iter().chain(to).collect();
        if !both.is_empty() {
            return both.join("; ");
        }
        match self.progress.lent.iter().all(VecDeque::is_empty) {
            true => "waiting until the network takes the last bytes".into(),
            false => "waiting until peers have read the memory lent to them".into(),
        }
    }

    /// Whether anything of this program has come on a link.
    fn has_heard(&self, port: Port) -> bool {
        let link = self.links[self.index(port)].as_ref();
        let lane = self.task.program.receives.iter().find(|lane| lane.port == port);
        let first = lane.and_then(|lane| lane.steps.first()).map(|step| *step as usize);
        let has_used = first.is_some_and(|first| match self.passed() {
            Some(passed) => first < passed,
            None => self.progress.done[first] > 0,
        });
        has_used || link.is_some_and(|link| link.peek().is_some())
    }

    /// The other end of a link, in words.
    fn other_end(&self, port: Port) -> String {
        match port {
            Port::Multicast(rank) if rank == self.me => "all ranks of this host".to_owned(),
            Port::Pair(rank) | Port::Multicast(rank) => format!("rank {rank}"),
        }
    }
}

/// The links of lanes that have steps left: those behind the first so many of the lane, or, of a program whose
/// steps are done in their order, those that are not among the first `passed`.
fn open<'a>(
    lanes: &'a [Lane],
    completed: impl Fn(usize) -> usize + 'a,
    passed: Option<usize>,
) -> impl Iterator<Item = Port> + 'a {
    let is_open = move |(index, lane): &(usize, &Lane)| match passed {
        Some(passed) => lane.steps.last().is_some_and(|step| *step as usize >= passed),
        None => completed(*index) < lane.steps.len(),
    };
    lanes.iter().enumerate().filter(is_open).map(|(_, lane)| lane.port)
}
