//! How long the programs of a collective take on a network with these NICs.
//!
//! The programs of all ranks ([`ccl_core::program::lower`]) run in virtual time, tile by tile, by the
//! rules of the executor and of the links between hosts; no bytes move. What is the production code
//! here: schedule, layout and lowering, the window of a link, and the split of a link over its rails.
//! What follows it line by line: the executor ([`runner`]), with its lanes, its sweeps and its rule
//! that a step stays behind the steps it is after; a slot that is free again when the receiver has
//! consumed the tile; credits, which go along with the tiles of the other direction and alone after
//! half a window.
//!
//! The model of the network:
//!
//! * Every NIC has one port per direction. A tile occupies the sending port and the receiving port for
//!   its bytes over the capacity of each, the second from the moment its first byte arrives, `alpha`
//!   after the first port began; the switch in between holds any number of tiles.
//! * Links that compete for a port, at either end, take turns tile by tile. What a link has posted on a
//!   rail leaves in order; tiles on different rails overtake each other.
//! * Rails connect NICs of the same number, and carry a link if they work at both ends.
//! * A rank is one processor, busy for `overhead` with every tile that it sends or has used up. Copies
//!   inside a host keep the sender's processor busy and arrive at once; reductions cost nothing.
//!
//! Everything is counted in whole picoseconds and decided in a fixed order, so that the same call gives
//! the same result.

mod agenda;
pub mod command;
mod gauge;
mod network;
mod parcel;
mod port;
mod runner;
pub mod strategy;
mod wire;

use std::fmt;

use ccl_algorithms::Choice;
use ccl_algorithms::degraded::rails::Division;
use ccl_core::collective::{Collective, Request};
use ccl_core::cost::bound_allreduce;
use ccl_core::ids::{Node, Rank, Timestamp};
use ccl_core::layout::{Layout, Partition};
use ccl_core::program::{Action, Program, lower};
use ccl_core::schedule::Schedule;
use ccl_core::settings::Settings;
use ccl_core::topology::Topology;
use ccl_transport::HEADER_BYTES;

use network::Network;
use runner::Runner;

/// Virtual time in picoseconds: a byte of the fastest network is several of them.
type Picos = u64;

/// What is not in the topology. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Physics {
    /// From the first byte that leaves a NIC to its arrival at the other.
    pub alpha: f64,
    /// For how long a processor is busy with a tile between hosts, at either end.
    pub overhead: f64,
    /// Payload of a tile between hosts, in bytes.
    pub tile_bytes: usize,
    /// Tiles on the way between two ranks of different hosts, in each direction.
    pub slots: usize,
    /// Whether the links of a rank begin with different rails, as those of the library do, instead of all
    /// with the first.
    pub spread_rails: bool,
    /// Bytes per second that a processor copies for another rank of its host.
    pub local_bytes_per_second: f64,
    /// Payload of a tile inside a host, in bytes.
    pub local_tile_bytes: usize,
    /// Tiles on the way between two ranks of a host, in each direction.
    pub local_slots: usize,
}

/// A collective and the way it is done.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// What is called.
    pub request: &'a Request,
    /// Who calls it, and the NICs.
    pub topology: &'a Topology,
    /// What moves.
    pub schedule: &'a dyn Schedule,
    /// How the data is cut.
    pub partition: &'a Partition,
    /// Which rails carry what, if that is not by capacity.
    pub division: Option<&'a Division>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// When the last rank had finished.
    pub seconds: f64,
    /// The time that no AllReduce can beat on these NICs; zero for other collectives.
    pub bound_seconds: f64,
    /// By rank.
    pub ranks: Vec<RankLoad>,
    /// By host.
    pub hosts: Vec<HostLoad>,
    /// Tiles sent, inside hosts too.
    pub tiles: u64,
}

/// What one rank did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankLoad {
    /// When it had finished, in seconds.
    pub finished: f64,
    /// For how many seconds its processor had something to do.
    pub worked: f64,
}

/// What went through the NICs of one host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostLoad {
    /// By number of the rail.
    pub nics: Vec<NicLoad>,
    /// What it did not send.
    pub idle: Idle,
}

/// What went through one NIC. Shares are of the time of the whole collective.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NicLoad {
    /// With headers.
    pub sent_bytes: u64,
    /// With headers.
    pub received_bytes: u64,
    /// Share of the time in which it was sending.
    pub sending: f64,
    /// Share of the time in which it was receiving.
    pub receiving: f64,
}

/// For how many seconds a host could have sent and did not, weighted with the capacity of the NICs that
/// were idle. While several lanes are held up for different reasons, each reason gets its part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Idle {
    /// Lanes had data to send, and their window was full.
    pub for_credit: f64,
    /// Lanes had nothing to send yet.
    pub for_data: f64,
    /// No lane had anything left to send.
    pub nothing_left: f64,
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Impossible {
    /// A parameter makes no sense.
    Physics(&'static str),
    /// Ranks of these hosts exchange something, and no rail works at both.
    NoCommonRail(Node, Node),
    /// These ranks never finish: the schedule is wrong.
    Stuck(Vec<Rank>),
    /// More time may pass than can be counted.
    TooLong,
}

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Physics(what) => write!(f, "{what} makes no sense"),
            Self::NoCommonRail(one, other) => {
                write!(f, "no rail works at both host {} and host {}", one.0, other.0)
            }
            Self::Stuck(ranks) => write!(f, "ranks {ranks:?} never finish"),
            Self::TooLong => {
                let days = MOST_SECONDS / 86400.0;
                write!(
                    f,
                    "it may take more than {days:.0} days; let there be fewer bytes or faster NICs"
                )
            }
        }
    }
}

/// Of a host.
const USUAL_RAILS: usize = 8;
const USUAL_RANKS: usize = 8;

/// Tiles on the way between two hosts, as links have them by default: so many for each rail, and so many at least.
const SLOTS_PER_RAIL: usize = 8;
const LEAST_SLOTS: usize = 16;

/// No window has more tiles.
const MOST_SLOTS: usize = 1 << 16;

/// Virtual time lasts ten times as long, and some more.
const MOST_SECONDS: f64 = 1e6;

impl Default for Physics {
    /// Between hosts with eight rails and ranks.
    fn default() -> Self {
        Self::of(USUAL_RAILS, USUAL_RANKS)
    }
}

impl Physics {
    /// No latency, no processors, and the links as they are by default between hosts with so many rails and ranks.
    #[must_use]
    pub fn of(rails: usize, ranks: usize) -> Self {
        let settings = Settings::default();
        Self {
            alpha: 0.0,
            overhead: 0.0,
            tile_bytes: settings.net_tile_bytes,
            slots: (SLOTS_PER_RAIL * rails).max(LEAST_SLOTS),
            spread_rails: true,
            local_bytes_per_second: f64::INFINITY,
            local_tile_bytes: settings.pair_tile_bytes(ranks),
            local_slots: settings.pair_slots(ranks),
        }
    }

    /// Whether there is time enough for everything, even one after the other.
    fn lasts_for(&self, programs: &[Program], topology: &Topology) -> bool {
        let steps = programs.iter().flat_map(|program| &program.steps);
        let sends = steps.filter(|step| matches!(step.action, Action::Send { .. }));
        let tile_bytes = self.tile_bytes.min(self.local_tile_bytes);
        let (bytes, tiles) = sends.fold((0.0, 0.0), |(bytes, tiles), step| {
            let own = step.bytes.div_ceil(tile_bytes) as f64;
            (bytes + step.bytes as f64 + own * HEADER_BYTES as f64, tiles + own)
        });
        let rails = (0..topology.nodes()).flat_map(|node| topology.rails(Node(node)));
        let rates = rails.filter(|rail| rail.up).map(|rail| rail.bytes_per_second);
        let slowest = rates.fold(self.local_bytes_per_second, f64::min);
        bytes / slowest + tiles * (self.alpha + 2.0 * self.overhead) < MOST_SECONDS
    }

    fn check(&self) -> Result<(), Impossible> {
        let is_time = |seconds: f64| (0.0..MOST_SECONDS).contains(&seconds);
        let is_count = |slots: usize| (1..=MOST_SLOTS).contains(&slots);
        let sound = [
            (is_time(self.alpha), "the latency"),
            (is_time(self.overhead), "the overhead"),
            (self.tile_bytes > 0 && self.local_tile_bytes > 0, "the size of a tile"),
            (is_count(self.slots) && is_count(self.local_slots), "the number of slots"),
            (self.local_bytes_per_second > 0.0, "the rate of copies"),
        ];
        let wrong = sound.into_iter().find(|(is_sound, _)| !is_sound);
        wrong.map_or(Ok(()), |(_, what)| Err(Impossible::Physics(what)))
    }
}

impl<'a> Job<'a> {
    /// What the planner has chosen for `request`.
    #[must_use]
    pub fn of(request: &'a Request, topology: &'a Topology, choice: &'a Choice) -> Self {
        Self {
            request,
            topology,
            schedule: &*choice.schedule,
            partition: &choice.partition,
            division: choice.division.as_ref(),
        }
    }

    /// The programs of all ranks.
    #[must_use]
    pub fn programs(&self) -> Vec<Program> {
        let ranks = self.topology.ranks();
        let layout = Layout::new(self.request, ranks, self.partition.clone());
        let element_bytes = self.request.datatype.bytes();
        let part = |rank| {
            let program = lower(self.schedule, &layout, rank, element_bytes, self.topology);
            let rails = self.division.map(|division| division.of_rank(rank, self.topology));
            Program { rails: rails.unwrap_or_default(), ..program }
        };
        (0..ranks).map(Rank).map(part).collect()
    }

    fn bound_seconds(&self) -> f64 {
        match self.request.collective == Collective::AllReduce {
            true => bound_allreduce(self.topology, self.request.bytes()),
            false => 0.0,
        }
    }
}

/// Runs the programs of `job`.
///
/// # Errors
/// There is no result; see [`Impossible`].
pub fn run(job: &Job<'_>, physics: &Physics) -> Result<Outcome, Impossible> {
    physics.check()?;
    let programs = job.programs();
    if !physics.lasts_for(&programs, job.topology) {
        return Err(Impossible::TooLong);
    }
    let mut network = Network::new(&programs, job.topology, *physics)?;
    let runner = |(rank, program)| {
        let host = job.topology.ranks_of(job.topology.node_of(Rank(rank)));
        let place = host.iter().position(|other| other.0 == rank).unwrap_or(0);
        Runner::new((rank as usize, place), program, &network)
            .ok_or_else(|| Impossible::Stuck(vec![Rank(rank)]))
    };
    let mut runners = (0..).zip(&programs).map(runner).collect::<Result<Vec<_>, _>>()?;
    (0..runners.len()).for_each(|rank| network.wake(rank, 0));
    while let Some(rank) = network.next_wake() {
        if runners[rank].sweep(&mut network) {
            network.wake(rank, network.now);
        }
    }
    outcome(job, &runners, &mut network)
}

fn outcome(
    job: &Job<'_>,
    runners: &[Runner<'_>],
    network: &mut Network,
) -> Result<Outcome, Impossible> {
    let stuck = (0..).map(Rank).zip(runners).filter(|(_, runner)| runner.finished.is_none());
    let stuck: Vec<Rank> = stuck.map(|(rank, _)| rank).collect();
    if !stuck.is_empty() {
        return Err(Impossible::Stuck(stuck));
    }
    let load = |runner: &Runner<'_>| RankLoad {
        finished: seconds(runner.finished.unwrap_or_default()),
        worked: seconds(runner.worked),
    };
    let ranks: Vec<RankLoad> = runners.iter().map(load).collect();
    Ok(Outcome {
        seconds: ranks.iter().map(|rank| rank.finished).fold(0.0, f64::max),
        bound_seconds: job.bound_seconds(),
        ranks,
        hosts: network.loads(),
        tiles: network.tiles,
    })
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a duration, rounded on purpose"
)]
fn picos(seconds: f64) -> Picos {
    (seconds * 1e12).round() as Picos
}

#[allow(clippy::cast_precision_loss, reason = "a duration in a report")]
fn seconds(picos: Picos) -> f64 {
    picos as f64 / 1e12
}

/// The moment as the code of links counts it.
fn timestamp(picos: Picos) -> Timestamp {
    Timestamp(picos / 1000)
}
