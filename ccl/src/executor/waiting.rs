//! What a program that does not go on waits for.

use std::collections::VecDeque;

use ccl_core::ids::Rank;
use ccl_core::program::{Lane, Port};
use smallvec::SmallVec;

use super::{INLINE_OPERANDS, Run};

impl Run<'_> {
    /// The ranks from which something is still to come.
    pub(crate) fn peers_waited_for(&self) -> SmallVec<[Rank; INLINE_OPERANDS]> {
        let lanes = self.task.program.receives.iter().zip(&self.progress.received);
        lanes
            .filter(|(lane, done)| **done < lane.steps.len())
            .map(|(lane, _)| lane.port.rank())
            .collect()
    }

    /// Which ranks are waited for, in words.
    pub(crate) fn waiting(&self) -> String {
        let describe = |lanes: &[Lane], completed: &[usize], verb: &str| {
            let open = lanes.iter().zip(completed).filter(|(lane, done)| **done < lane.steps.len());
            let ends: Vec<String> = open.map(|(lane, _)| self.other_end(lane.port)).collect();
            (!ends.is_empty()).then(|| format!("{verb} {}", ends.join(", ")))
        };
        let program = self.task.program;
        let from = describe(&program.receives, &self.progress.received, "waiting for data from");
        let to = describe(&program.sends, &self.progress.sent, "waiting to send to");
        let both: Vec<String> = from.into_iter().chain(to).collect();
        if !both.is_empty() {
            return both.join("; ");
        }
        match self.progress.lent.iter().all(VecDeque::is_empty) {
            true => "waiting until the network takes the last bytes".into(),
            false => "waiting until peers have read the memory lent to them".into(),
        }
    }

    /// The other end of a link, in words.
    fn other_end(&self, port: Port) -> String {
        match port {
            Port::Multicast(rank) if rank == self.me => "all ranks of this host".to_owned(),
            Port::Pair(rank) | Port::Multicast(rank) => format!("rank {rank}"),
        }
    }
}
