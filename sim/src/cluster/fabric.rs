//! The capacities of a cluster, and which of them the bytes between two ranks use.
//!
//! Every resource has two directions, which do not hinder each other. A transfer between hosts is divided among
//! the rails that work at both ends, and is one flow: the parts keep their proportions.
//!
//! With a rank for every GPU, GPU `g` owns NIC `g` (NICs go round if there are fewer). To another NIC bytes take
//! the way that [`Forwarding`] says. With a rank for every host only NICs and the spine count.

use ccl_core::ids::{Node, Rail, Rank};
use ccl_core::topology::Topology;

use super::file::{Cluster, Forwarding, Spine};
use super::sharing::{Resource, Use};

/// Directions of a resource: out of a GPU or host, and into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Out of it.
    Out,
    /// Into it.
    In,
}

/// How bytes of a lost rail are divided before anything is planned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Healing {
    /// Among all rails that are left, by capacity.
    #[default]
    Spread,
    /// One of them carries what the lost ones did.
    Backup,
}

/// All capacities, and the rails that work now.
#[derive(Clone, Debug)]
pub struct Fabric {
    cluster: Cluster,
    topology: Topology,
    /// By rank: its host, and its place there; no place where a rank is a host.
    places: Vec<(Node, Option<u32>)>,
    capacities: Vec<f64>,
    healing: Healing,
}

impl Fabric {
    /// The capacities of `cluster` for the ranks of `topology`, whose rails say what works.
    #[must_use]
    pub fn new(cluster: &Cluster, topology: &Topology) -> Self {
        let is_hosts = topology.ranks() == topology.nodes();
        let of_node = |node| topology.ranks_of(Node(node)).iter().zip(0..);
        let mut places = vec![(Node(0), None); topology.ranks() as usize];
        for node in 0..topology.nodes() {
            for (rank, place) in of_node(node) {
                places[rank.index()] = (Node(node), (!is_hosts).then_some(place));
            }
        }
        let mut fabric = Self {
            cluster: cluster.clone(),
            topology: topology.clone(),
            places,
            capacities: Vec::new(),
            healing: Healing::Spread,
        };
        fabric.capacities = fabric.all_capacities();
        fabric
    }

    /// The same, where links divide the bytes of lost rails like this.
    #[must_use]
    pub fn healing(mut self, healing: Healing) -> Self {
        self.healing = healing;
        self
    }

    /// What the resources carry, in bytes per second.
    #[must_use]
    pub fn capacities(&self) -> &[f64] {
        &self.capacities
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The ranks, and the rails that work.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// A NIC carries nothing any more. Links still send on it until they are routed anew.
    pub fn cut(&mut self, node: Node, rail: Rail) {
        for way in [Way::Out, Way::In] {
            let nic = self.nic(node, u32::from(rail.0), way);
            self.capacities[nic.index()] = 0.0;
        }
    }

    /// Links know that a rail is lost.
    pub fn lose(&mut self, node: Node, rail: Rail) {
        self.topology = self.topology.clone().with_rail(node, rail, false);
    }

    /// One direction of a NIC.
    #[must_use]
    pub fn nic(&self, node: Node, rail: u32, way: Way) -> Resource {
        Resource((node.0 * self.cluster.nics.per_host + rail) * 2 + way as u32)
    }

    /// Seconds from the first byte of a transfer to its arrival.
    #[must_use]
    pub fn alpha(&self, source: Rank, target: Rank) -> f64 {
        match self.topology.together(source, target) {
            true => self.cluster.inside.alpha,
            false => self.cluster.nics.alpha,
        }
    }

    /// What `source` uses to send to all `targets` at once: one, or the rest of its host. `proportions` say how the
    /// bytes are divided among rails, if that is not by capacity. Resources without limit are left out. None if no
    /// rail works at both ends.
    #[must_use]
    pub fn route(
        &self,
        source: Rank,
        targets: &[Rank],
        proportions: Option<&[u16]>,
    ) -> Option<Vec<Use>> {
        let mut ways = Ways::default();
        for target in targets {
            if self.topology.together(source, *target) {
                let copies = if self.cluster.inside.multicast { targets.len() } else { 1 };
                self.inside(source, *target, 1.0 / real(copies), 1.0, &mut ways);
            } else {
                self.between(source, *target, proportions, &mut ways)?;
            }
        }
        ways.uses.retain(|used| self.capacities[used.resource.index()].is_finite());
        Some(ways.uses)
    }

    /// From GPU to GPU: these shares of the bytes leave and arrive.
    fn inside(&self, source: Rank, target: Rank, leaving: f64, arriving: f64, ways: &mut Ways) {
        let (node, from) = self.places[source.index()];
        let (_, to) = self.places[target.index()];
        let (Some(from), Some(to)) = (from, to) else { return };
        if self.cluster.inside.nvlink.is_finite() || self.cluster.inside.pcie.is_infinite() {
            ways.add(self.nvlink(node, from, Way::Out), leaving);
            ways.add(self.nvlink(node, to, Way::In), arriving);
        } else {
            ways.add(self.pcie(node, from, Way::Out), leaving);
            self.sockets(node, [from, to], arriving, ways);
            ways.add(self.pcie(node, to, Way::In), arriving);
        }
    }

    fn between(
        &self,
        source: Rank,
        target: Rank,
        proportions: Option<&[u16]>,
        ways: &mut Ways,
    ) -> Option<()> {
        let ends = [self.places[source.index()], self.places[target.index()]];
        let nodes = ends.map(|(node, _)| node);
        for (rail, share) in (0..).zip(self.division(nodes, proportions)?) {
            if share > 0.0 {
                self.to_nic(ends[0], rail, share, Way::Out, ways);
                ways.add(self.nic(nodes[0], rail, Way::Out), share);
                self.across(nodes, rail, share, ways);
                ways.add(self.nic(nodes[1], rail, Way::In), share);
                self.to_nic(ends[1], rail, share, Way::In, ways);
            }
        }
        Some(())
    }

    /// The shares of the rails, as planned or by capacity. What rails were to carry that do not work goes to others.
    fn division(&self, [one, other]: [Node; 2], planned: Option<&[u16]>) -> Option<Vec<f64>> {
        let ends = self.topology.rails(one).iter().zip(self.topology.rails(other));
        let rates: Vec<(f64, bool)> = ends
            .map(|(one, other)| {
                (one.bytes_per_second.min(other.bytes_per_second), one.up && other.up)
            })
            .collect();
        let planned: Vec<f64> = match planned {
            Some(parts) => parts.iter().map(|part| f64::from(*part)).collect(),
            None => rates.iter().map(|(rate, _)| *rate).collect(),
        };
        let part = |rail: usize| planned.get(rail).copied().unwrap_or(0.0);
        let works = |rail: usize| rates[rail].1 && rates[rail].0 > 0.0;
        let (working, lost): (Vec<usize>, Vec<usize>) =
            (0..rates.len()).partition(|rail| works(*rail));
        let moved: f64 = lost.iter().map(|rail| part(*rail)).sum();
        let whole: f64 = working.iter().map(|rail| rates[*rail].0).sum();
        let mut parts = vec![0.0; rates.len()];
        for rail in &working {
            let more = match self.healing {
                Healing::Spread => moved * rates[*rail].0 / whole,
                Healing::Backup if rail == &working[0] => moved,
                Healing::Backup => 0.0,
            };
            parts[*rail] = part(*rail) + more;
        }
        let total: f64 = parts.iter().sum();
        (total > 0.0).then(|| parts.iter().map(|part| part / total).collect())
    }

    /// Between a GPU and a NIC of its host.
    fn to_nic(
        &self,
        (node, gpu): (Node, Option<u32>),
        rail: u32,
        share: f64,
        way: Way,
        ways: &mut Ways,
    ) {
        let Some(gpu) = gpu else { return };
        let owner = self.owner(rail);
        let back = if way == Way::Out { Way::In } else { Way::Out };
        match self.cluster.inside.forwarding {
            _ if owner == gpu => ways.add(self.pcie(node, gpu, way), share),
            Forwarding::Nvlink => {
                ways.add(self.nvlink(node, gpu, way), share);
                ways.add(self.nvlink(node, owner, back), share);
                ways.add(self.pcie(node, owner, way), share);
            }
            Forwarding::Pcie => {
                let sockets = if way == Way::Out { [gpu, owner] } else { [owner, gpu] };
                ways.add(self.pcie(node, gpu, way), share);
                self.sockets(node, sockets, share, ways);
            }
        }
    }

    /// The link between two sockets, if they are different.
    fn sockets(&self, node: Node, [from, to]: [u32; 2], share: f64, ways: &mut Ways) {
        let (from, to) = (self.cluster.socket(from), self.cluster.socket(to));
        if from != to {
            ways.add(self.upi(node, from), share);
        }
    }

    /// The spine, if two hosts are under different leaves.
    fn across(&self, nodes: [Node; 2], rail: u32, share: f64, ways: &mut Ways) {
        let Some(Spine { hosts_per_leaf, .. }) = self.cluster.spine else { return };
        let [one, other] = nodes.map(|node| node.0 / hosts_per_leaf);
        if one != other {
            ways.add(self.leaf(one, rail, Way::Out), share);
            ways.add(self.leaf(other, rail, Way::In), share);
        }
    }

    /// The GPU beside a NIC.
    fn owner(&self, rail: u32) -> u32 {
        rail * self.cluster.gpus / self.cluster.nics.per_host
    }

    // Where resources are, in this order: NICs, NVLinks, PCIe, links between sockets, leaves.

    fn nvlinks(&self) -> u32 {
        2 * self.cluster.hosts * self.cluster.nics.per_host
    }

    fn slots(&self) -> u32 {
        self.nvlinks() + 2 * self.cluster.hosts * self.cluster.gpus
    }

    fn bridges(&self) -> u32 {
        self.slots() + 2 * self.cluster.hosts * self.cluster.gpus
    }

    fn leaves(&self) -> u32 {
        self.bridges() + 2 * self.cluster.hosts
    }

    fn nvlink(&self, node: Node, gpu: u32, way: Way) -> Resource {
        Resource(self.nvlinks() + (node.0 * self.cluster.gpus + gpu) * 2 + way as u32)
    }

    fn pcie(&self, node: Node, gpu: u32, way: Way) -> Resource {
        Resource(self.slots() + (node.0 * self.cluster.gpus + gpu) * 2 + way as u32)
    }

    /// From this socket to the other.
    fn upi(&self, node: Node, socket: u32) -> Resource {
        Resource(self.bridges() + node.0 * 2 + socket)
    }

    fn leaf(&self, leaf: u32, rail: u32, way: Way) -> Resource {
        Resource(self.leaves() + (leaf * self.cluster.nics.per_host + rail) * 2 + way as u32)
    }

    fn all_capacities(&self) -> Vec<f64> {
        let Cluster { hosts, gpus, nics, inside, spine, .. } = &self.cluster;
        let per_gpu = 2 * (hosts * gpus) as usize;
        let mut all = Vec::new();
        for rail in (0..*hosts).flat_map(|node| self.topology.rails(Node(node))) {
            let rate = if rail.up { rail.bytes_per_second } else { 0.0 };
            all.extend([rate; 2]);
        }
        all.extend(std::iter::repeat_n(inside.nvlink, per_gpu));
        all.extend(std::iter::repeat_n(inside.pcie, per_gpu));
        all.extend(std::iter::repeat_n(inside.upi, 2 * *hosts as usize));
        if let Some(Spine { hosts_per_leaf, bytes_per_second }) = spine {
            let leaves = 2 * (hosts.div_ceil(*hosts_per_leaf) * nics.per_host) as usize;
            all.extend(std::iter::repeat_n(*bytes_per_second, leaves));
        }
        all
    }
}

/// What is used, every resource once.
#[derive(Debug, Default)]
struct Ways {
    uses: Vec<Use>,
}

impl Ways {
    fn add(&mut self, resource: Resource, share: f64) {
        match self.uses.iter_mut().find(|used| used.resource == resource) {
            Some(used) => used.share += share,
            None => self.uses.push(Use { resource, share }),
        }
    }
}

fn real(number: usize) -> f64 {
    number as f64
}
