//! The choice: all candidates are priced by the model, and the cheapest is taken.
//!
//! The choice is a function of its arguments alone, so all ranks choose alike; the digest lets them
//! notice if their arguments differ.

use std::fmt::Write;
use std::sync::Arc;

use ccl_core::Error;
use ccl_core::collective::{Collective, Request};
use ccl_core::cost::{CostModel, Estimate, Network, bound_allreduce, estimate};
use ccl_core::ids::{Chunk, Node};
use ccl_core::layout::{Layout, Partition};
use ccl_core::schedule::Schedule;
use ccl_core::topology::Topology;

use crate::candidates::{Plan, build, is_sensible, names};
use crate::degraded::rails::Division;
use crate::degraded::strategies::{BASELINES, NAMES, least_seconds};
use crate::scene::Scene;

/// One algorithm and what the model says about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: &'static str,
    /// What it would cost; its seconds are infinite if it moves something between hosts that have no rail in common.
    pub estimate: Estimate,
}

/// The plan for a call, and why it was preferred.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Name of the algorithm.
    pub name: &'static str,
    /// What moves where.
    pub schedule: Arc<dyn Schedule>,
    /// How the blocks are cut for it.
    pub partition: Partition,
    /// Which rails carry what between hosts, in order of node, if that is not by capacity.
    pub division: Option<Division>,
    /// Digest of name, partition and the rails of every host: equal on ranks that planned alike.
    pub digest: u32,
    /// One line for people.
    pub reason: String,
    /// All that were priced, cheapest first.
    pub candidates: Vec<Candidate>,
    /// Below this no AllReduce can be; zero for other collectives and inside a host.
    pub bound_seconds: f64,
}

/// The cheapest algorithm for `request` on the model, or the one called `forced`. Where that one cannot be planned, or
/// needs rails that some hosts do not have in common, it is the cheapest nevertheless, and the reason says so.
///
/// # Errors
/// The collective has no algorithm of that name, or none at all; or the root is not in the group.
pub fn choose(
    request: &Request,
    topology: &Topology,
    model: &CostModel,
    forced: Option<&str>,
) -> Result<Choice, Error> {
    decide(request, topology, model, forced, Extent::Promising)
}

/// As [`choose()`], with the same choice, but no candidate is left out because it cannot be the
/// fastest: for people who want to compare.
///
/// # Errors
/// As for [`choose()`].
pub fn explore(
    request: &Request,
    topology: &Topology,
    model: &CostModel,
    forced: Option<&str>,
) -> Result<Choice, Error> {
    decide(request, topology, model, forced, Extent::All)
}

/// Which candidates are priced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// Those that may be the fastest.
    Promising,
    All,
}

fn decide(
    request: &Request,
    topology: &Topology,
    model: &CostModel,
    forced: Option<&str>,
    extent: Extent,
) -> Result<Choice, Error> {
    let all = names(request.collective);
    if all.is_empty() || forced.is_some_and(|forced| !all.contains(&forced)) {
        return Err(unknown(request.collective, forced));
    }
    if request.root.0 >= topology.ranks() {
        let (root, ranks) = (request.root, topology.ranks());
        return Err(Error::InvalidArgument(format!("root {root} in a group of {ranks} ranks")));
    }
    let scene = Scene::new(request, topology, model);
    let mut priced = price_all(&scene, forced, extent);
    let candidates: Vec<Candidate> = priced.iter().map(|(candidate, _)| *candidate).collect();
    let place = preferred(&candidates, forced);
    let place = place.ok_or_else(|| unknown(request.collective, forced))?;
    let (chosen, plan) = priced.swap_remove(place);
    Ok(Choice {
        name: chosen.name,
        digest: digest(chosen.name, &layout(&plan, request, topology), topology),
        reason: reason(&chosen, &candidates, forced),
        schedule: plan.schedule,
        partition: plan.partition,
        division: plan.division,
        bound_seconds: bound(request, topology),
        candidates,
    })
}

/// The place of the one that is taken: the one called `forced`, or the cheapest. What is asked for cannot be had
/// everywhere: that is no reason to fail where another plan works.
fn preferred(candidates: &[Candidate], forced: Option<&str>) -> Option<usize> {
    let place = |wanted: &dyn Fn(&str) -> bool| candidates.iter().position(|one| wanted(one.name));
    let works = |place: &usize| candidates[*place].estimate.seconds.is_finite();
    let own = place(&|name| !BASELINES.contains(&name));
    let asked = forced.and_then(|forced| place(&|name| name == forced));
    asked.filter(works).or(own.filter(works)).or(asked).or(own)
}

/// The choice as a table.
#[must_use]
pub fn explain(choice: &Choice) -> String {
    let mut table = format!("{}\n", choice.reason);
    let _ = writeln!(table, "{:34}{:>12}{:>12}{:>12}", "µs", "predicted", "latency", "bandwidth");
    for Candidate { name, estimate } in &choice.candidates {
        let mark = if *name == choice.name { '*' } else { ' ' };
        let [all, latency, bandwidth] =
            [estimate.seconds, estimate.latency_seconds, estimate.bandwidth_seconds]
                .map(|seconds| seconds * 1e6);
        let _ = writeln!(table, "{mark} {name:32}{all:12.1}{latency:12.1}{bandwidth:12.1}");
    }
    if choice.bound_seconds > 0.0 {
        let bound = choice.bound_seconds * 1e6;
        let _ = writeln!(table, "  {:32}{bound:12.1}", "lower bound of the network");
    }
    table
}

/// The candidates with their prices, cheapest first. Where all need rails that are not there they stand as if these were;
/// equally fast ones stay in the order of their names.
///
/// A candidate whose hops alone, with the bytes at the lower bound, take longer than another one is left
/// out, which saves going through its rounds.
fn price_all(scene: &Scene<'_>, forced: Option<&str>, extent: Extent) -> Vec<(Candidate, Plan)> {
    let bound = bound(scene.request, scene.topology);
    let is_forced = |name: &str| forced == Some(name);
    let is_listed = |name: &str| {
        let is_baseline = BASELINES.contains(&name) && extent == Extent::Promising;
        is_forced(name) || (is_sensible(name, scene) && !is_baseline)
    };
    let mut priced: Vec<(usize, Candidate, Plan)> = Vec::new();
    let mut best = f64::INFINITY;
    let is_hopeless = |name: &str, least: f64, best: f64| {
        extent == Extent::Promising && !is_forced(name) && least + bound > best
    };
    let all = names(scene.request.collective).iter().copied().enumerate();
    for (place, name) in all.filter(|(_, name)| is_listed(name)) {
        let is_strategy = NAMES.contains(&name);
        if is_strategy && is_hopeless(name, least_seconds(name, scene), best) {
            continue;
        }
        let Some(plan) = build(name, scene) else { continue };
        if is_hopeless(name, hops_seconds(&plan, scene), best) {
            continue;
        }
        let estimate = price(&plan, scene);
        best = best.min(estimate.seconds);
        priced.push((place, Candidate { name, estimate }, plan));
    }
    priced.sort_by(|(place, one, _), (other_place, other, _)| {
        let (one, other) = (one.estimate, other.estimate);
        let once_whole = |it: Estimate| it.latency_seconds + it.bandwidth_seconds;
        let by_seconds = one.seconds.total_cmp(&other.seconds);
        let by_rest = once_whole(one).total_cmp(&once_whole(other));
        by_seconds.then(by_rest).then(place.cmp(other_place))
    });
    priced.into_iter().map(|(_, candidate, plan)| (candidate, plan)).collect()
}

/// What the hops of a plan take at least.
fn hops_seconds(plan: &Plan, scene: &Scene<'_>) -> f64 {
    let CostModel { local, network, .. } = scene.model;
    let is_flat = scene.topology.nodes() == scene.topology.ranks();
    let alpha = if is_flat { network.alpha } else { local.alpha.min(network.alpha) };
    f64::from(plan.priced().0.rounds()) * alpha
}

fn price(plan: &Plan, scene: &Scene<'_>) -> Estimate {
    let Scene { request, topology, model, .. } = scene;
    let (schedule, partition) = plan.priced();
    let layout = Layout::new(request, topology.ranks(), partition.clone());
    let mut estimate =
        estimate(&**schedule, &layout, request.datatype.bytes(), topology, model, plan.network);
    if plan.network == Network::Tiles && scene.is_degraded() {
        let longer = (scene.mismatch() - 1.0) * estimate.bandwidth_seconds;
        estimate.bandwidth_seconds += longer;
        estimate.seconds += longer;
    }
    estimate.latency_seconds += plan.slices_seconds;
    estimate.seconds += plan.slices_seconds;
    if scene.is_cut(&**schedule, &layout) {
        estimate.seconds = f64::INFINITY;
    }
    estimate
}

fn layout(plan: &Plan, request: &Request, topology: &Topology) -> Layout {
    Layout::new(request, topology.ranks(), plan.partition.clone())
}

fn bound(request: &Request, topology: &Topology) -> f64 {
    if request.collective == Collective::AllReduce {
        bound_allreduce(topology, request.bytes())
    } else {
        0.0
    }
}

fn reason(chosen: &Candidate, candidates: &[Candidate], forced: Option<&str>) -> String {
    let Candidate { name, estimate } = chosen;
    let is_forced = forced == Some(name);
    let [all, latency, bandwidth] =
        [estimate.seconds, estimate.latency_seconds, estimate.bandwidth_seconds]
            .map(|seconds| seconds * 1e6);
    let why = if is_forced { "as asked, " } else { "" };
    let mut line = format!(
        "{name}: {why}{all:.1} µs predicted, {latency:.1} µs latency + {bandwidth:.1} µs bandwidth"
    );
    if let Some(next) = candidates.iter().find(|other| other.name != *name) {
        let rank = if is_forced { "best other" } else { "next" };
        let _ =
            write!(line, "; {rank} is {} with {:.1} µs", next.name, next.estimate.seconds * 1e6);
    }
    if estimate.seconds.is_infinite() {
        line.push_str("; it needs a rail between hosts that have none in common, as all others do");
    }
    if let Some(forced) = forced.filter(|_| !is_forced) {
        let is_planned = candidates.iter().any(|candidate| candidate.name == forced);
        let what = match is_planned {
            true => "needs a rail between hosts that have none in common",
            false => "cannot be planned for these hosts and rails",
        };
        let _ = write!(line, "; {forced} was asked for, and {what}");
    }
    line
}

fn unknown(collective: Collective, forced: Option<&str>) -> Error {
    let kind = collective.name();
    let valid = names(collective).join(", ");
    Error::InvalidArgument(match forced {
        Some(name) if !valid.is_empty() => {
            format!("{kind} has no algorithm \"{name}\"; it has {valid}")
        }
        Some(_) | None => format!("{kind} has no algorithms"),
    })
}

fn digest(name: &str, layout: &Layout, topology: &Topology) -> u32 {
    let mut hash = Fnv::new();
    hash.add(name.as_bytes());
    for part in (0..layout.parts()).map(Chunk) {
        hash.add(&(layout.elements(part) as u64).to_le_bytes());
    }
    for node in (0..topology.nodes()).map(Node) {
        // Their sum would not do: which rails carry what depends on which of them is lost.
        for rail in topology.rails(node) {
            hash.add(&[u8::from(rail.up)]);
            hash.add(&rail.bytes_per_second.to_bits().to_le_bytes());
        }
        for rank in topology.ranks_of(node) {
            hash.add(&rank.0.to_le_bytes());
        }
    }
    hash.0
}

/// Fowler, Noll and Vo's hash 1a, 32 bits: fixed, so that it can be compared between processes.
struct Fnv(u32);

impl Fnv {
    fn new() -> Self {
        Self(0x811c_9dc5)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::ids::{Rail, Rank};
    use ccl_core::topology::{Host, RailCapacity};

    use super::*;

    #[test]
    fn ranks_that_miss_different_rails_of_a_host_have_different_digests() {
        let hosts = vec![Host { rails: vec![RailCapacity::up(1e9); 2], cores: 1 }; 3];
        let healthy = Topology::new([0, 1, 2].map(Node).to_vec(), hosts);
        let request = crate::tests::request(Collective::AllReduce, 1 << 20, Rank(0));
        let digest = |topology: &Topology| {
            let model = CostModel::default_for(topology);
            choose(&request, topology, &model, Some("two_shot")).unwrap().digest
        };
        let without = |rail| healthy.clone().with_rail(Node(1), Rail(rail), false);
        let digests = [&healthy, &without(0), &without(1)].map(digest);
        assert_eq!(digest(&without(1)), digests[2]);
        for (place, one) in digests.iter().enumerate() {
            assert!(!digests[..place].contains(one), "{digests:?}");
        }
    }
}
