//! What a plan is made for: the call, the cluster, and what is worked out about it once.

use std::cell::OnceCell;

use ccl_core::collective::{Collective, Request};
use ccl_core::cost::CostModel;
use ccl_core::ids::Node;
use ccl_core::layout::Layout;
use ccl_core::schedule::Schedule;
use ccl_core::topology::Topology;

use crate::degraded::hubs::{Hubs, direct_seconds, hubs};
use crate::degraded::{Fabric, real};

/// What a plan is made for, with what several candidates need to know about it.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) request: &'a Request,
    pub(crate) topology: &'a Topology,
    pub(crate) model: &'a CostModel,
    fabric: OnceCell<Fabric>,
    apart: OnceCell<Vec<(Node, Vec<Node>)>>,
    hubs: OnceCell<Option<Hubs>>,
    mismatch: OnceCell<f64>,
}

impl<'a> Scene<'a> {
    pub(crate) fn new(request: &'a Request, topology: &'a Topology, model: &'a CostModel) -> Self {
        let (fabric, apart) = (OnceCell::new(), OnceCell::new());
        let (hubs, mismatch) = (OnceCell::new(), OnceCell::new());
        Self { request, topology, model, fabric, apart, hubs, mismatch }
    }

    /// The rails between hosts.
    pub(crate) fn fabric(&self) -> &Fabric {
        self.fabric.get_or_init(|| Fabric::of(self.topology))
    }

    /// Whether a plan moves something between two hosts that have no rail in common.
    pub(crate) fn is_cut(&self, schedule: &dyn Schedule, layout: &Layout) -> bool {
        let topology = self.topology;
        let mut part = Vec::new();
        let mut joins = |rank, round, others: &[Node]| {
            part.clear();
            schedule.transfers(round, rank, &mut part);
            part.iter().any(|transfer| {
                let peer = if transfer.source == rank { transfer.target } else { transfer.source };
                layout.elements(transfer.chunk) > 0 && others.contains(&topology.node_of(peer))
            })
        };
        self.apart().iter().any(|(host, others)| {
            let mut ranks = topology.ranks_of(*host).iter();
            ranks.any(|rank| (0..schedule.rounds()).any(|round| joins(*rank, round, others)))
        })
    }

    /// Whether some hosts have no rail in common.
    pub(crate) fn has_hosts_apart(&self) -> bool {
        !self.apart().is_empty()
    }

    /// Hosts with those that they have no rail in common with: every such pair is with one of its hosts, or with both.
    fn apart(&self) -> &[(Node, Vec<Node>)] {
        self.apart.get_or_init(|| {
            if self.topology.nodes() == 1 || self.fabric().is_even() {
                return Vec::new();
            }
            let node = |host: usize| Node(u32::try_from(host).unwrap_or(u32::MAX));
            let nodes = |(host, others): (usize, Vec<usize>)| {
                (node(host), others.into_iter().map(node).collect())
            };
            self.fabric().apart().into_iter().map(nodes).collect()
        })
    }

    /// The best hubs; none if some hosts cannot reach each other.
    pub(crate) fn hubs(&self) -> Option<&Hubs> {
        self.hubs.get_or_init(|| hubs(self.fabric())).as_ref()
    }

    /// How much longer the busiest rail is busy than if every rail reached every other, where all hosts send
    /// as much to each other.
    pub(crate) fn mismatch(&self) -> f64 {
        *self.mismatch.get_or_init(|| {
            let fabric = self.fabric();
            let shares = vec![1.0 / real(fabric.hosts()); fabric.hosts()];
            let free = |host| (2.0 - 2.0 / real(fabric.hosts())) / fabric.capacity(host);
            let free = (0..fabric.hosts()).map(free).fold(0.0, f64::max);
            let mismatch = direct_seconds(fabric, &shares) / free;
            if mismatch.is_finite() { mismatch.max(1.0) } else { 1.0 }
        })
    }

    /// Whether hosts differ, so that strategies for degraded ones can be of use.
    pub(crate) fn is_degraded(&self) -> bool {
        let collective = self.request.collective;
        collective == Collective::AllReduce && self.topology.nodes() > 1 && !self.fabric().is_even()
    }
}
