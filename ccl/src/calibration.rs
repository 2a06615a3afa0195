//! Measures what plans are made with: the rate of every rail, and what a message costs.
//!
//! Hosts send to each other in rounds, in round `k` each to the `k`-th after it, so that a slow host
//! slows only those that speak with it. What a rail carried, over the time until everything had
//! arrived, is its rate in this round; the best round counts, at either end.

use std::path::Path;
use std::time::Instant;

use ccl_core::datatype::ReduceOp;
use ccl_core::error::Error;
use ccl_core::ids::{Node, Rank};
use ccl_core::topology::Topology;
use ccl_core::tuning::{Format, TunedHost, Tuning};
use ccl_kernels::Region;
use ccl_transport::clock;
use serde::{Deserialize, Serialize};

use crate::communicator::Communicator;
use crate::group::Group;
use crate::operation::Operation;

/// Most hosts to which a host sends, one after the other.
const ROUNDS: u32 = 3;
/// The first amount, in bytes per rank, and the one after which no larger one is tried.
const FIRST_BYTES: usize = 1 << 20;
const MOST_BYTES: usize = 256 << 20;
/// An exchange that takes so long says enough.
const LEAST_SECONDS: f64 = 0.25;
/// Short exchanges whose fastest quarter counts.
const SHORT_EXCHANGES: usize = 41;

/// What a rank has seen in one round.
#[derive(Debug, Serialize, Deserialize)]
struct Sight {
    /// Until everything from the host before had arrived.
    seconds: f64,
    /// What left on each of the own rails.
    sent: Vec<f64>,
}

/// Uses the measurements in `file`, or measures now and writes them there; collective.
///
/// # Errors
/// The file cannot be read or written, or is for another group; on all ranks alike.
pub(crate) fn tune(communicator: &Communicator, file: &Path) -> Result<(), Error> {
    let topology = communicator.introduced();
    if topology.nodes() == 1 {
        return Ok(());
    }
    let is_first = communicator.rank() == Rank(0);
    let read = if is_first { read(file, &topology) } else { Ok(None) };
    let known = agreed(communicator, read)?;
    let tuning = match known {
        Some(tuning) => tuning,
        None => {
            let tuning = measure(communicator, &topology)?;
            let written = if is_first { write(file, &tuning) } else { Ok(()) };
            agreed(communicator, written.map(|()| Some(tuning)))?
                .ok_or_else(|| Error::Internal("rank 0 has measured nothing".into()))?
        }
    };
    communicator.tuned(&tuning);
    Ok(())
}

/// What rank 0 has, on all ranks.
fn agreed(
    communicator: &Communicator,
    own: Result<Option<Tuning>, Error>,
) -> Result<Option<Tuning>, Error> {
    let internal = |cause: serde_json::Error| Error::Internal(format!("tuning: {cause}"));
    let letter: Result<&Option<Tuning>, String> = own.as_ref().map_err(ToString::to_string);
    let letters = gather(communicator, &serde_json::to_vec(&letter).map_err(internal)?)?;
    let first: Result<Option<Tuning>, String> =
        serde_json::from_slice(&letters[0]).map_err(internal)?;
    match (own, first) {
        (Err(error), _) => Err(error),
        (Ok(_), first) => first.map_err(Error::InvalidArgument),
    }
}

fn read(file: &Path, topology: &Topology) -> Result<Option<Tuning>, Error> {
    let name = file.display();
    let text = match std::fs::read(file) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(Error::system(format!("read R2CCL_TUNING={name}"), cause)),
    };
    let refused = |cause: String| {
        Error::InvalidArgument(format!(
            "R2CCL_TUNING={name}: {cause}; remove the file, and it is measured anew"
        ))
    };
    let foreign = |cause: serde_json::Error| refused(cause.to_string());
    let format: Format = serde_json::from_slice(&text).map_err(foreign)?;
    format.check().map_err(refused)?;
    let tuning: Tuning = serde_json::from_slice(&text).map_err(foreign)?;
    tuning.check(topology).map_err(refused)?;
    Ok(Some(tuning))
}

/// Nothing half-written is left.
fn write(file: &Path, tuning: &Tuning) -> Result<(), Error> {
    let failed = |cause: std::io::Error| {
        Error::system(format!("write R2CCL_TUNING={}", file.display()), cause)
    };
    let text = serde_json::to_string_pretty(tuning)
        .map_err(|cause| Error::Internal(format!("tuning: {cause}")))?;
    let draft = file.with_extension(format!("{}.draft", std::process::id()));
    let written = std::fs::write(&draft, text + "\n").and_then(|()| std::fs::rename(&draft, file));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&draft);
    }
    written.map_err(failed)
}

/// Bytes of every rank, on all ranks.
fn gather(communicator: &Communicator, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let mut lengths = vec![0; communicator.size() as usize];
    communicator.all_gather(&[own.len() as u64], &mut lengths)?;
    let longest = lengths.iter().copied().max().and_then(|most| usize::try_from(most).ok());
    let longest = longest.unwrap_or(0).max(1);
    let mut padded = own.to_vec();
    padded.resize(longest, 0);
    let mut all = vec![0; longest * lengths.len()];
    communicator.all_gather(&padded, &mut all)?;
    let cut = |(part, length): (&[u8], &u64)| {
        part[..usize::try_from(*length).map_or(longest, |length| length.min(longest))].to_vec()
    };
    Ok(all.chunks(longest).zip(&lengths).map(cut).collect())
}

fn measure(communicator: &Communicator, topology: &Topology) -> Result<Tuning, Error> {
    let rounds = ROUNDS.min(topology.nodes() - 1);
    let mut sights = Vec::new();
    for round in 1..=rounds {
        let sight = exchange(communicator, topology, round)?;
        let text = serde_json::to_vec(&sight)
            .map_err(|cause| Error::Internal(format!("tuning: {cause}")))?;
        let all = gather(communicator, &text)?;
        let all: Result<Vec<Sight>, _> =
            all.iter().map(|text| serde_json::from_slice(text)).collect();
        sights.push(all.map_err(|cause| Error::Internal(format!("tuning: {cause}")))?);
    }
    let hosts = rates(topology, &sights);
    let (alpha, overhead) = latency(communicator, topology)?;
    Ok(Tuning::new(hosts, alpha, overhead))
}

/// Sends to the `round`-th host after this one and receives from the one before, with amounts that grow
/// until they take long enough.
fn exchange(communicator: &Communicator, topology: &Topology, round: u32) -> Result<Sight, Error> {
    let (to, from) = partners(topology, communicator.rank(), round);
    let mut bytes = FIRST_BYTES;
    loop {
        let (data, mut arrived) = (vec![0_u8; bytes], vec![0_u8; bytes]);
        communicator.barrier()?;
        let (start, before) = (clock::now(), sent(communicator));
        let mut group = Group::default();
        if let Some(peer) = to {
            group.add(communicator, Operation::Send { peer, data: Region::of(&data) });
        }
        if let Some(peer) = from {
            group
                .add(communicator, Operation::Receive { peer, data: Region::of_mut(&mut arrived) });
        }
        group.run()?;
        let seconds = seconds_since(start);
        let sent: Vec<f64> =
            sent(communicator).iter().zip(&before).map(|(after, before)| after - before).collect();
        let mut shortest = [0.0];
        communicator.all_reduce(&[evidence(seconds, to, from)], &mut shortest, ReduceOp::Min)?;
        if shortest[0] >= LEAST_SECONDS || bytes >= MOST_BYTES {
            return Ok(Sight { seconds, sent });
        }
        bytes *= 4;
    }
}

/// To whom rank `me` sends in a round and from whom it receives: the rank with the same place on the host, if
/// that host has so many.
fn partners(topology: &Topology, me: Rank, round: u32) -> (Option<Rank>, Option<Rank>) {
    let (nodes, node) = (topology.nodes(), topology.node_of(me).0);
    let place = topology.ranks_of(Node(node)).iter().position(|rank| *rank == me).unwrap_or(0);
    let at = |node: u32| topology.ranks_of(Node(node % nodes)).get(place).copied();
    (at(node + round), at(node + nodes - round))
}

/// What a rank says of how long an exchange took, of which the shortest counts: whoever has nobody to exchange
/// with is done at once, which says nothing.
fn evidence(seconds: f64, to: Option<Rank>, from: Option<Rank>) -> f64 {
    if to.is_none() && from.is_none() { f64::INFINITY } else { seconds }
}

/// Bytes that left on each of this rank's rails.
fn sent(communicator: &Communicator) -> Vec<f64> {
    let me = communicator.rank();
    let own = communicator.health().into_iter().filter(|health| health.rank == me);
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    own.map(|health| health.counters.bytes as f64).collect()
}

fn seconds_since(start: Instant) -> f64 {
    clock::now().saturating_duration_since(start).as_secs_f64()
}

/// The best rate of every rail in any round, as sender or as receiver.
fn rates(topology: &Topology, sights: &[Vec<Sight>]) -> Vec<TunedHost> {
    let mut hosts: Vec<TunedHost> = (0..topology.nodes())
        .map(|node| TunedHost {
            ranks: topology.ranks_of(Node(node)).len(),
            rails: vec![0.0; topology.rails(Node(node)).len()],
        })
        .collect();
    for (round, sights) in (1..).zip(sights) {
        for node in 0..topology.nodes() {
            let target = (node + round) % topology.nodes();
            let arrived = topology.ranks_of(Node(target)).iter();
            let seconds = arrived.map(|rank| sights[rank.index()].seconds).fold(0.0, f64::max);
            for rail in 0..hosts[node as usize].rails.len() {
                let senders = topology.ranks_of(Node(node)).iter();
                let sent = senders.filter_map(|rank| sights[rank.index()].sent.get(rail));
                let rate = sent.sum::<f64>() / seconds.max(1e-9);
                improve(&mut hosts[node as usize].rails, rail, rate);
                improve(&mut hosts[target as usize].rails, rail, rate);
            }
        }
    }
    // A rail on which nothing went is as fast as the slowest one that is known.
    for host in &mut hosts {
        let known = host.rails.iter().copied().filter(|rate| *rate > 0.0);
        let least = known.fold(f64::INFINITY, f64::min);
        let least = if least.is_finite() { least } else { 1.0 };
        host.rails.iter_mut().filter(|rate| **rate <= 0.0).for_each(|rate| *rate = least);
    }
    hosts
}

fn improve(rails: &mut [f64], rail: usize, rate: f64) {
    if let Some(known) = rails.get_mut(rail) {
        *known = known.max(rate);
    }
}

/// Seconds from a send to its arrival between two hosts, and for each further message.
fn latency(communicator: &Communicator, topology: &Topology) -> Result<(f64, f64), Error> {
    let me = communicator.rank();
    let (first, other) = (topology.leader(Node(0)), topology.leader(Node(1)));
    let mut there_and_back = Vec::new();
    let mut everywhere = Vec::new();
    let mut byte = [0_u8];
    for _ in 0..SHORT_EXCHANGES {
        communicator.barrier()?;
        let start = clock::now();
        if me == first {
            communicator.send(&byte, other)?;
            communicator.receive(&mut byte, other)?;
        } else if me == other {
            communicator.receive(&mut byte, first)?;
            communicator.send(&byte, first)?;
        }
        there_and_back.push(seconds_since(start) / 2.0);
        let leaders = (0..topology.nodes()).map(|node| topology.leader(Node(node)));
        let peers: Vec<Rank> = leaders.filter(|leader| *leader != me).collect();
        communicator.barrier()?;
        let start = clock::now();
        if topology.leader(topology.node_of(me)) == me {
            let mut arrived = vec![[0_u8]; peers.len()];
            let mut group = Group::default();
            for (&peer, into) in peers.iter().zip(&mut arrived) {
                group.add(communicator, Operation::Send { peer, data: Region::of(&byte) });
                let data = Region::of_mut(into.as_mut_slice());
                group.add(communicator, Operation::Receive { peer, data });
            }
            group.run()?;
        }
        everywhere.push(seconds_since(start));
    }
    let alpha = quarter(&mut there_and_back);
    let others = f64::from(topology.nodes() - 1);
    let overhead = ((quarter(&mut everywhere) - alpha) / others).max(0.0);
    let mut agreed = [0.0; 2];
    let own = if me == first { [alpha, overhead] } else { [0.0; 2] };
    communicator.all_reduce(&own, &mut agreed, ReduceOp::Sum)?;
    Ok((agreed[0].max(1e-9), agreed[1]))
}

/// The time that a quarter of the attempts did not exceed.
fn quarter(seconds: &mut [f64]) -> f64 {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds[seconds.len() / 4]
}

#[cfg(test)]
mod tests {
    use ccl_core::topology::{Host, RailCapacity};

    use super::*;

    #[test]
    fn a_rank_without_partners_does_not_say_how_long_an_exchange_took() {
        let host = Host { rails: vec![RailCapacity::up(1e9)], cores: 1 };
        let topology = Topology::new([0, 0, 1].map(Node).to_vec(), vec![host; 2]);
        let all = [0, 1, 2].map(|rank| partners(&topology, Rank(rank), 1));
        let both = |rank| (Some(Rank(rank)), Some(Rank(rank)));
        assert_eq!(all, [both(2), (None, None), both(0)]);
        let seconds = [0.5, 1e-6, 0.25];
        let said = all.iter().zip(seconds).map(|((to, from), took)| evidence(took, *to, *from));
        assert_eq!(said.fold(f64::INFINITY, f64::min).total_cmp(&0.25), std::cmp::Ordering::Equal);
    }

    #[test]
    fn whoever_only_sends_or_only_receives_says_how_long_that_took() {
        let host = Host { rails: vec![RailCapacity::up(1e9)], cores: 1 };
        let topology = Topology::new([0, 0, 1, 2, 2].map(Node).to_vec(), vec![host; 3]);
        let (sends, receives) = (partners(&topology, Rank(4), 1), partners(&topology, Rank(1), 1));
        assert_eq!((sends, receives), ((Some(Rank(1)), None), (None, Some(Rank(4)))));
        for (to, from) in [sends, receives] {
            assert!(evidence(0.5, to, from).is_finite());
        }
    }
}
