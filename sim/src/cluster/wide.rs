//! AllReduce through hubs among thousands of hosts, with hosts that are alike merged.
//!
//! Between hosts that have lost the same rails nothing tells one from another: what such a class of hosts exchanges
//! with another class is one flow here, with as many members as there are pairs. With a thousand rails lost among
//! eight thousand hosts there are some tens of classes, and the flows between them follow the plan as those of
//! [`super::execution`] do between single hosts: contributions of a slice, then the results of the one before, in
//! the order of the programs of `two_shot` (one slice) and of `hub_shares` (several). Pairs divide their bytes
//! among rails by capacity.

use std::collections::BTreeMap;

use ccl_algorithms::degraded::Fabric;
use ccl_algorithms::degraded::hubs::hubs as best_hubs;
use ccl_algorithms::degraded::pipeline::{best_lead, best_slices};
use ccl_algorithms::shares::hub_shares;
use ccl_core::ids::Node;
use ccl_core::topology::Topology;

use super::agenda::SAME_MOMENT;
use super::file::Cluster;
use super::plan::Scene;
use super::sharing::{Resource, Sharing, Use};

/// Hosts that have the same rails left.
#[derive(Clone, Debug, PartialEq)]
struct Class {
    /// Bytes per second, by rail.
    rails: Vec<f64>,
    members: f64,
    /// What each of them reduces, as a share of the data.
    share: f64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Wide {
    /// When all hosts had all results.
    pub seconds: f64,
    /// Kinds of hosts.
    pub classes: usize,
    /// How often rates were worked out.
    pub fillings: u64,
}

/// What one host of a class sends to every host of another.
#[derive(Debug)]
struct Stream {
    from: usize,
    to: usize,
    uses: Vec<Use>,
    /// Messages that have left, of twice as many as there are segments.
    sent: usize,
    /// Bytes left of the one on its way, if there is one.
    left: Option<f64>,
    rate: f64,
}

/// How the data of an AllReduce moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    /// How many there are.
    pub count: usize,
    /// How many are sent to be reduced before the first is given back.
    pub ahead: usize,
    /// Segments of a slice, each of which is given back when it is reduced.
    pub segments: usize,
}

/// An AllReduce of `bytes` among the hosts of `topology`.
///
/// # Errors
/// Hosts have no rail in common, or there are no slices.
pub fn hubs(
    cluster: &Cluster,
    topology: &Topology,
    bytes: f64,
    slices: Slices,
) -> Result<Wide, String> {
    let segments = slices.count * slices.segments;
    if segments == 0 {
        return Err("no slices".to_owned());
    }
    let classes = classes(topology);
    let overhead = f64::from(topology.nodes() - 1) * cluster.nics.overhead;
    let mut merged = Merged {
        now: 0.0,
        latency: cluster.nics.alpha + overhead,
        segment_bytes: bytes / real(segments),
        order: order(slices),
        streams: streams(&classes)?,
        arrived: vec![vec![None; segments]; classes.len()],
        capacities: classes.iter().flat_map(|class| class.rails.repeat(2)).collect(),
        classes,
        fillings: 0,
    };
    merged.run();
    Ok(Wide {
        seconds: merged.now + merged.latency,
        classes: merged.classes.len(),
        fillings: merged.fillings,
    })
}

/// What the planner calls `name`, if that goes through hubs, followed in about so many segments. Pairs divide their
/// bytes by capacity, also where the plan divides them better, which matters among few hosts.
///
/// # Errors
/// It does not go through hubs, or hosts have no rail in common.
pub fn planned(scene: &Scene, name: &str, segments: usize) -> Result<Wide, String> {
    let (fabric, bytes) = (Fabric::of(scene.topology()), scene.request().bytes());
    let count = match name {
        "two_shot" => 1,
        "hub_shares" => {
            let hubs = best_hubs(&fabric).ok_or("some hosts cannot reach each other")?;
            let pipeline = hubs.pipeline().times(bytes as f64);
            best_slices(&fabric, bytes, pipeline, scene.model())
        }
        _ => {
            return Err(format!("{name} does not go through hubs, so that hosts cannot be merged"));
        }
    };
    let (count, ahead) = (count as usize, best_lead(count) as usize);
    let slices = Slices { count, ahead, segments: (segments / count).max(1) };
    hubs(scene.cluster(), scene.topology(), bytes as f64, slices)
}

/// What a message of a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// A contribution to what the target reduces of this segment.
    Contribution(usize),
    /// What the source has reduced of this segment.
    Result(usize),
}

/// The messages of every stream: results follow the contributions of the slices that are ahead.
fn order(Slices { count, ahead, segments }: Slices) -> Vec<Message> {
    let ahead = ahead.clamp(1, count);
    let slice = |slice: usize| slice * segments..(slice + 1) * segments;
    let round = |round: usize| {
        let contributions = (round < count).then(|| slice(round).map(Message::Contribution));
        let results = round.checked_sub(ahead).map(|round| slice(round).map(Message::Result));
        contributions.into_iter().flatten().chain(results.into_iter().flatten())
    };
    (0..count + ahead).flat_map(round).collect()
}

struct Merged {
    now: f64,
    /// Of every message.
    latency: f64,
    segment_bytes: f64,
    order: Vec<Message>,
    classes: Vec<Class>,
    streams: Vec<Stream>,
    /// By class and segment: when a host has all contributions, once that is known.
    arrived: Vec<Vec<Option<f64>>>,
    /// By class, direction and rail.
    capacities: Vec<f64>,
    fillings: u64,
}

impl Merged {
    fn run(&mut self) {
        let mut sharing = Sharing::default();
        let mut rates = Vec::new();
        loop {
            let wakes = self.begin();
            let active = || self.streams.iter().filter(|stream| stream.left.is_some());
            let uses: Vec<&[Use]> = active().map(|stream| stream.uses.as_slice()).collect();
            if uses.is_empty() && wakes.is_none() {
                return;
            }
            sharing.rates(&self.capacities, &uses, &mut rates);
            self.fillings += 1;
            let flowing = self.streams.iter_mut().filter(|stream| stream.left.is_some());
            flowing.zip(&rates).for_each(|(stream, rate)| stream.rate = *rate);
            self.flow_until(wakes);
        }
    }

    /// Lets every idle stream begin with its next message, if it can; tells when the first of those will that wait
    /// for something on its way.
    fn begin(&mut self) -> Option<f64> {
        let mut wakes: Option<f64> = None;
        for stream in self.streams.iter_mut().filter(|stream| stream.left.is_none()) {
            let Some(message) = self.order.get(stream.sent) else { continue };
            let (bytes, ready) = match *message {
                Message::Contribution(_) => (self.classes[stream.to].share, Some(self.now)),
                Message::Result(segment) => {
                    (self.classes[stream.from].share, self.arrived[stream.from][segment])
                }
            };
            match ready {
                Some(ready) if ready <= self.now + SAME_MOMENT => {
                    stream.left = Some(bytes * self.segment_bytes);
                }
                Some(ready) => wakes = Some(wakes.map_or(ready, |wakes| wakes.min(ready))),
                None => {}
            }
        }
        wakes
    }

    /// Lets time pass until a message has left, or something arrives.
    fn flow_until(&mut self, wakes: Option<f64>) {
        let ends =
            |stream: &Stream| stream.left.map(|left| left / stream.rate.max(f64::MIN_POSITIVE));
        let first = self.streams.iter().filter_map(ends).fold(f64::INFINITY, f64::min);
        let step = wakes.map_or(first, |wakes| first.min(wakes - self.now)).max(0.0);
        self.now += step;
        let mut ended = Vec::new();
        for (number, stream) in self.streams.iter_mut().enumerate() {
            let Some(left) = &mut stream.left else { continue };
            *left -= stream.rate * step;
            if *left <= stream.rate * SAME_MOMENT {
                (stream.left, stream.sent) = (None, stream.sent + 1);
                ended.push(number);
            }
        }
        for number in ended {
            let Stream { sent, to, .. } = self.streams[number];
            if let Message::Contribution(segment) = self.order[sent - 1] {
                self.arrive(to, segment);
            }
        }
    }

    /// A host of a class has everything of a segment, if all contributions have left.
    fn arrive(&mut self, class: usize, segment: usize) {
        let place =
            self.order.iter().position(|message| *message == Message::Contribution(segment));
        let mut to = self.streams.iter().filter(|stream| stream.to == class);
        if place.is_some_and(|place| to.all(|stream| stream.sent > place)) {
            self.arrived[class][segment] = Some(self.now + self.latency);
        }
    }
}

/// The kinds of hosts, with what each reduces.
fn classes(topology: &Topology) -> Vec<Class> {
    let shares = hub_shares(&topology.capacities());
    let mut classes: BTreeMap<Vec<bool>, Class> = BTreeMap::new();
    for node in (0..topology.nodes()).map(Node) {
        let rails = topology.rails(node);
        let mask = rails.iter().map(|rail| rail.up).collect();
        let rate = rails.iter().map(|rail| if rail.up { rail.bytes_per_second } else { 0.0 });
        let new = || Class { rails: rate.collect(), members: 0.0, share: shares[node.index()] };
        classes.entry(mask).or_insert_with(new).members += 1.0;
    }
    classes.into_values().collect()
}

/// What hosts of all classes send each other.
fn streams(classes: &[Class]) -> Result<Vec<Stream>, String> {
    let pairs = (0..classes.len()).flat_map(|from| (0..classes.len()).map(move |to| (from, to)));
    let mut streams = Vec::new();
    for (from, to) in pairs {
        let own = f64::from(u8::from(from == to));
        if classes[from].members <= own {
            continue;
        }
        let both = classes[from].rails.iter().zip(&classes[to].rails);
        let width: Vec<f64> = both.map(|(one, other)| one.min(*other)).collect();
        let total: f64 = width.iter().sum();
        if total <= 0.0 {
            return Err("hosts without a common rail cannot send to each other".to_owned());
        }
        let rails = width.len();
        let of = |class: usize, way: usize, peers: f64| {
            let used = width.iter().enumerate().filter(|(_, width)| **width > 0.0);
            let resource = move |rail: usize| {
                Resource(u32::try_from((class * 2 + way) * rails + rail).unwrap_or(u32::MAX))
            };
            used.map(move |(rail, width)| Use {
                resource: resource(rail),
                share: peers * width / total,
            })
        };
        let out = of(from, 0, classes[to].members - own);
        let uses = out.chain(of(to, 1, classes[from].members - own)).collect();
        streams.push(Stream { from, to, uses, sent: 0, left: None, rate: 0.0 });
    }
    Ok(streams)
}

fn real(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::file::Ranks;
    use crate::cluster::plan::Scene;
    use crate::cluster::plan::tests::lost;

    /// Merged hosts take as long as single ones.
    #[test]
    fn merging_changes_nothing() {
        let bytes = 256 << 20;
        let cases: [(u32, &[(u32, u8)]); 4] =
            [(4, &[]), (5, &[(0, 0)]), (8, &[(0, 0), (3, 0), (5, 2)]), (9, &[(1, 1), (1, 2)])];
        for (hosts, pairs) in cases {
            let cluster = Cluster::plain(hosts, 8, 25e9);
            let one = Slices { count: 1, ahead: 1, segments: 256 / hosts as usize };
            let four = Slices { count: 4, ahead: 2, segments: 64 / hosts as usize };
            for (name, slices) in [("two_shot", one), ("rounds:4:2", four)] {
                let scene = Scene::allreduce(&cluster, Ranks::Hosts, &lost(pairs), bytes);
                let mut plan = scene.plan(name).unwrap();
                plan.division = None;
                let single = scene.run(&plan, &[]).unwrap().seconds;
                let merged = hubs(&cluster, scene.topology(), bytes as f64, slices).unwrap();
                let off = merged.seconds / single - 1.0;
                assert!(off.abs() < 0.02, "{hosts} {pairs:?} {name}: {} {single}", merged.seconds);
            }
        }
    }

    #[test]
    fn what_is_impossible_is_said() {
        let cluster = Cluster::plain(3, 2, 1e9);
        let topology = cluster.topology(Ranks::Hosts);
        let slices = |count| Slices { count, ahead: 1, segments: 1 };
        assert!(hubs(&cluster, &topology, 1e6, slices(0)).is_err());
        let apart = Scene::allreduce(&cluster, Ranks::Hosts, &lost(&[(0, 0), (1, 1)]), 8);
        assert!(planned(&apart, "ring", 8).unwrap_err().contains("ring does not go through hubs"));
        assert!(planned(&apart, "two_shot", 8).unwrap_err().contains("common rail"));
        assert!(
            hubs(&cluster, apart.topology(), 1e6, slices(1)).unwrap_err().contains("common rail")
        );
    }
}
