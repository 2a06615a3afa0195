//! The sends on one link, and how far they are.

use ccl_core::ids::Rank;
use ccl_core::program::{Port, Program};

use super::fabric::Fabric;
use super::sharing::Use;

/// The sends on one link.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) source: Rank,
    pub(super) targets: Vec<Rank>,
    /// Whether they are on another host.
    pub(super) is_away: bool,
    pub(super) proportions: Option<Vec<u16>>,
    pub(super) steps: Vec<usize>,
    /// Of all steps.
    bytes: usize,
    /// For every byte of it, times its weight.
    pub(super) uses: Vec<Use>,
    /// How much faster it is than others where it shares a resource with them.
    pub(super) weight: f64,
    pub(super) alpha: f64,
    /// Which of the steps is on, and which segment of it.
    pub(super) turn: usize,
    pub(super) segment: u32,
    /// By turn: segments that have arrived, and the receiving steps.
    pub(super) landed: Vec<u32>,
    pub(super) receivers: Vec<Vec<usize>>,
    pub(super) state: State,
    /// Changes whenever the rate does, so that what was planned for the old one is recognised.
    pub(super) version: u32,
}

/// What a lane does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum State {
    Idle,
    /// The processor prepares a message.
    Preparing,
    /// So many bytes were left at that moment.
    Flowing {
        left: f64,
        rate: f64,
        since: f64,
    },
}

impl Lane {
    /// The lane of a port of `source`, whose `steps` have so many bytes. It has no route yet.
    pub(super) fn new(
        fabric: &Fabric,
        source: Rank,
        port: Port,
        program: &Program,
        steps: &[(usize, usize)],
    ) -> Self {
        let topology = fabric.topology();
        let targets = match port {
            Port::Pair(peer) => vec![peer],
            Port::Multicast(_) => {
                let host = topology.ranks_of(topology.node_of(source)).iter();
                host.copied().filter(|rank| *rank != source).collect()
            }
        };
        let planned = program.rails.iter().find(|(peer, _)| targets == [*peer]);
        let proportions = planned.map(|(_, parts)| parts.clone()).filter(|parts| !parts.is_empty());
        Self {
            source,
            is_away: !topology.together(source, targets[0]),
            alpha: fabric.alpha(source, targets[0]),
            targets,
            proportions,
            landed: vec![0; steps.len()],
            receivers: vec![Vec::new(); steps.len()],
            bytes: steps.iter().map(|(_, bytes)| bytes).sum(),
            steps: steps.iter().map(|(step, _)| *step).collect(),
            uses: Vec::new(),
            weight: 1.0,
            turn: 0,
            segment: 0,
            state: State::Idle,
            version: 0,
        }
    }
}

/// Weights lanes between hosts by what they carry, relative to their mean.
pub(super) fn weigh(lanes: &mut [Lane]) {
    let away = || lanes.iter().filter(|lane| lane.is_away);
    let mean = away().map(|lane| lane.bytes as f64).sum::<f64>() / away().count().max(1) as f64;
    for lane in lanes.iter_mut().filter(|lane| lane.is_away && lane.bytes > 0) {
        lane.weight = lane.bytes as f64 / mean;
    }
}
