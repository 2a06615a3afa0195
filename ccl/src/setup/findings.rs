//! What was there when a communicator was made, for the log.

use std::time::Instant;

use ccl_core::ids::Rank;
use ccl_transport::clock;

use super::Connected;

impl Connected {
    pub(crate) fn findings(&self, me: Rank) -> Findings {
        let (topology, own) = (&self.topology, &self.rails[me.index()]);
        Findings {
            size: topology.ranks(),
            hosts: topology.nodes(),
            here: topology.ranks_of(topology.node_of(me)).len(),
            processors: self.machine.cores,
            rails: if topology.nodes() > 1 { own.len() } else { 0 },
        }
    }
}

/// What was there, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Findings {
    size: u32,
    hosts: u32,
    /// Ranks on this host.
    here: usize,
    processors: usize,
    rails: usize,
}

impl Findings {
    /// Tells what was made of it, and that it took since `began`.
    pub(crate) fn tell(self, me: Rank, name: Option<&str>, began: Instant) {
        tracing::info!(
            rank = me.0,
            size = self.size,
            name,
            hosts = self.hosts,
            ranks_on_this_host = self.here,
            processors = self.processors,
            rails = self.rails,
            milliseconds = (clock::now() - began).as_millis(),
            version = env!("CARGO_PKG_VERSION"),
            "communicator created"
        );
    }
}
