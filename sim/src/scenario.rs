//! A world as a value: who there is, what they call, what goes wrong and when.
//!
//! Everything is drawn from the seed before anything happens, so that a failing world can be made
//! smaller by leaving out calls and faults.

use std::fmt;

use ccl_core::collective::Collective;
use ccl_core::datatype::DataType;
use ccl_core::ids::{Node, Rank};
use ccl_core::random::Random;
use ccl_core::topology::{Host, RailCapacity, Topology};
use ccl_transport::network::LinkShape;

use crate::Nanos;
use crate::retreat::Retreat;

/// Ranks of one world, at most: sums of the values that ranks contribute stay exact in 8 bits.
const MOST_RANKS: usize = 8;

/// Bytes per nanosecond of the slowest and the fastest rail.
const CAPACITY: f64 = 1e9;

/// No link waits so long for a path.
pub(crate) const LONGER_THAN_PATIENCE: Nanos = 8_000_000_000;

/// One world.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it was drawn from.
    pub seed: u64,
    /// The hosts.
    pub hosts: Vec<HostShape>,
    /// The host of every rank.
    pub host_of: Vec<usize>,
    /// Rings of the links between hosts.
    pub shape: LinkShape,
    /// How the network behaves while nothing is broken.
    pub physics: Physics,
    /// What the ranks do, one after the other.
    pub calls: Vec<CallPlan>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// Calls whose plans do without some cards.
    pub retreat: Option<Retreat>,
}

/// One host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostShape {
    /// Its ranks.
    pub ranks: usize,
    /// Its network cards.
    pub rails: usize,
}

/// How the network and the hosts behave.
#[derive(Clone, Copy, Debug)]
pub struct Physics {
    /// From one card to another.
    pub latency: Nanos,
    /// Added to some packets, at most.
    pub jitter: Nanos,
    /// Bytes that a card moves in a microsecond.
    pub bytes_per_microsecond: u64,
    /// Whether the peer's card executes what arrives, or its process when it polls.
    pub execution: Execution,
    /// After how long without an answer a card gives up; some never do.
    pub retry: Option<Nanos>,
    /// Whether an end that breaks says nothing, and one that is given up says so once only, so that
    /// nobody hears it while the path does not work. Else the other end hears of it sooner or later.
    pub loses_notices: bool,
    /// How long completions may take to show, at most.
    pub completion_delay: Nanos,
    /// How long a rank that has nothing to do looks away, at most.
    pub longest_nap: Nanos,
    /// Whether cards take bytes from the memory of the application, as kernels do.
    pub unstaged: bool,
}

/// Who executes what a peer has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The card.
    AtArrival,
    /// The process, when it polls.
    WhenPolled,
}

/// One call that all ranks make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallPlan {
    /// Which.
    pub collective: Collective,
    /// Elements, as in a request.
    pub count: usize,
    /// Their type.
    pub datatype: DataType,
    /// Which reduction: a number of [`crate::calls`].
    pub reduction: u8,
    /// The root.
    pub root: usize,
    /// Which of the algorithms, by number; `None` for the cheapest.
    pub algorithm: Option<usize>,
    /// Whether input and output are the same memory, where that is simple.
    pub in_place: bool,
    /// Seed of the contributions, and of counts that differ between ranks.
    pub flavour: u8,
    /// How long ranks compute before the call, at most.
    pub pause: Nanos,
}

impl CallPlan {
    /// Whether nothing moves but what tells that everybody has come.
    #[must_use]
    pub fn only_synchronises(&self) -> bool {
        let has_counts =
            matches!(self.collective, Collective::PointToPoint | Collective::AllToAllV);
        self.collective == Collective::Barrier || self.count == 0 && !has_counts
    }
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When so many packets have arrived anywhere.
    pub packets: u64,
    /// So long after that.
    pub delay: Nanos,
    /// For so long.
    pub lasts: Nanos,
    /// The host.
    pub host: usize,
    /// Its card.
    pub rail: usize,
    /// What.
    pub kind: FaultKind,
}

/// What goes wrong with a card, or with its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The card loses its carrier; its host is told, perhaps late, perhaps not.
    Carrier {
        /// After how long the host's links hear of it.
        told: Option<Nanos>,
    },
    /// Packets do not pass, and nobody says so.
    Silent {
        /// What the card sends.
        outgoing: bool,
        /// What it should receive.
        incoming: bool,
    },
    /// The cable to one other card does not pass packets.
    Path {
        /// The other host.
        host: usize,
        /// Its card.
        rail: usize,
    },
    /// All connections over the card break, at each end in its own time.
    Break,
    /// The card is slower by this factor.
    Slow {
        /// The factor.
        factor: u64,
    },
    /// Completions of operations over the card do not show.
    Mute,
    /// The host's processes stand still, its kernel and its cards do not.
    Freeze,
}

impl Fault {
    /// Whether packets are lost or connections broken by it.
    #[must_use]
    pub fn severs(&self) -> bool {
        match self.kind {
            FaultKind::Carrier { .. } | FaultKind::Silent { .. } | FaultKind::Path { .. } => true,
            FaultKind::Break | FaultKind::Slow { .. } | FaultKind::Mute | FaultKind::Freeze => {
                false
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, delay, lasts, host, rail, kind } = self;
        let (delay, lasts) = (delay / 1000, lasts / 1000);
        write!(f, "host {host} rail {rail}: {kind:?}")?;
        write!(f, ", {delay} µs after packet {packets}, for {lasts} µs")
    }
}

impl Scenario {
    /// The world of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let hosts = draw_hosts(&mut random);
        let host_of = place_ranks(&mut random, &hosts);
        let tile_bytes = random.pick(&[64, 64, 128, 192, 256]);
        let slots = random.pick(&[1, 2, 3, 4, 4, 6, 8]);
        let physics = draw_physics(&mut random);
        let ranks = host_of.len();
        let count = 1 + random.index(4);
        let draw = |_| draw_call(&mut random, ranks, tile_bytes);
        let mut calls: Vec<CallPlan> = (0..count).map(draw).collect();
        let mut faults = draw_faults(&mut random, &hosts);
        let shape = LinkShape { tile_bytes, slots };
        // A NIC that works by itself sends from memory that stays.
        let unstaged = random.percent(50) && physics.execution == Execution::WhenPolled;
        let physics = Physics { unstaged, ..physics };
        let retreat = Retreat::draw(&mut random, &hosts, &mut calls, &mut faults);
        Self { seed, hosts, host_of, shape, physics, calls, faults, retreat }
    }

    /// The world as planners see it for a call.
    #[must_use]
    pub fn topology(&self, call: usize) -> Topology {
        let node = |host: &usize| Node(u32::try_from(*host).unwrap_or(u32::MAX));
        let host = |shape: &HostShape| Host {
            rails: vec![RailCapacity::up(CAPACITY); shape.rails],
            cores: 2,
        };
        let hosts = self.hosts.iter().map(host).collect();
        let whole = Topology::new(self.host_of.iter().map(node).collect(), hosts);
        match &self.retreat {
            Some(retreat) => retreat.seen(call, whole),
            None => whole,
        }
    }

    /// The cards that plans for a call do without.
    pub(crate) fn cards_out(&self, call: usize) -> &[(usize, usize)] {
        let retreat = self.retreat.as_ref().filter(|retreat| retreat.calls.contains(&call));
        retreat.map_or(&[], |retreat| &retreat.cards)
    }

    /// The last call whose plan does without some cards.
    pub(crate) fn last_without_cards(&self) -> Option<usize> {
        self.retreat.as_ref().and_then(|retreat| retreat.calls.clone().next_back())
    }

    /// The same world with a call less.
    pub(crate) fn without_call(&self, call: usize) -> Self {
        let mut world = self.clone();
        world.calls.remove(call);
        if let Some(retreat) = &mut world.retreat {
            retreat.without_call(call);
        }
        world
    }

    /// Its ranks.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..u32::try_from(self.host_of.len()).unwrap_or(u32::MAX)).map(Rank)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkShape { tile_bytes, slots } = self.shape;
        writeln!(f, "seed {}: {} ranks, hosts {:?}", self.seed, self.host_of.len(), self.host_of)?;
        writeln!(f, "  rails {:?}", self.hosts.iter().map(|host| host.rails).collect::<Vec<_>>())?;
        writeln!(f, "  {slots} slots of {tile_bytes} bytes, {:?}", self.physics)?;
        for (index, call) in self.calls.iter().enumerate() {
            writeln!(f, "  call {index}: {call:?}")?;
        }
        for fault in &self.faults {
            writeln!(f, "  fault: {fault}")?;
        }
        if let Some(Retreat { calls, cards, .. }) = &self.retreat {
            writeln!(f, "  calls {calls:?} are planned without (host, card) {cards:?}")?;
        }
        Ok(())
    }
}

fn draw_hosts(random: &mut Random) -> Vec<HostShape> {
    let count = random.pick(&[2, 2, 2, 2, 3, 3, 4, 5]);
    let crowded = random.percent(30);
    let rails = random.pick(&[1, 2, 2, 2, 3, 4]);
    let uneven = random.percent(15);
    let mut left = MOST_RANKS - count;
    let mut host = || {
        let more = usize::from(crowded && left > 0 && random.percent(60));
        left -= more;
        let rails = if uneven { 1 + random.index(4) } else { rails };
        HostShape { ranks: 1 + more, rails }
    };
    (0..count).map(|_| host()).collect()
}

/// The host of every rank: host by host, or in turn.
fn place_ranks(random: &mut Random, hosts: &[HostShape]) -> Vec<usize> {
    let mut placed: Vec<usize> = (0..hosts.len()).collect();
    let second = |host: &usize| hosts[*host].ranks > 1;
    placed.extend((0..hosts.len()).filter(second));
    if random.percent(70) {
        placed.sort_unstable();
    }
    placed
}

fn draw_physics(random: &mut Random) -> Physics {
    let latency = random.magnitude(1_000, 100_000);
    Physics {
        latency,
        jitter: random.pick(&[0, latency / 4, latency * 2]),
        bytes_per_microsecond: random.magnitude(50, 20_000),
        execution: random.pick(&[Execution::AtArrival, Execution::WhenPolled]),
        retry: random.pick(&[None, Some(2_000_000), Some(50_000_000), Some(400_000_000)]),
        loses_notices: false,
        completion_delay: random.pick(&[0, 0, 10_000, 300_000]),
        longest_nap: random.pick(&[500_000, 2_000_000, 10_000_000]),
        unstaged: false,
    }
}

fn draw_call(random: &mut Random, ranks: usize, tile_bytes: usize) -> CallPlan {
    let datatype = random.pick(&DataType::ALL);
    let tile = tile_bytes / datatype.bytes();
    let counts = [0, 1, 3, tile - 1, tile, tile + 1, 2 * tile, 5 * tile + 3, 12 * tile, 30 * tile];
    CallPlan {
        collective: random.pick(&Collective::ALL),
        count: random.pick(&counts),
        datatype,
        reduction: u8::try_from(random.below(6)).unwrap_or(0),
        root: random.index(ranks),
        algorithm: random.percent(50).then(|| random.index(64)),
        in_place: random.percent(25),
        flavour: u8::try_from(random.below(8)).unwrap_or(0),
        pause: random.pick(&[0, 0, 10_000, 300_000, 5_000_000]),
    }
}

/// Few faults that come together find more than many that are far apart: often the next fault
/// follows the one before while its repair is under way, or falls on its end.
fn draw_faults(random: &mut Random, hosts: &[HostShape]) -> Vec<Fault> {
    let count = random.pick(&[0, 1, 1, 2, 2, 3, 4, 6]);
    let mut faults: Vec<Fault> = Vec::new();
    for _ in 0..count {
        let host = random.index(hosts.len());
        let rail = random.index(hosts[host].rails);
        let lasts = random.magnitude(20_000, 300_000_000);
        let kind = draw_kind(random, hosts, host);
        let (packets, delay) = match faults.last() {
            Some(last) if random.percent(70) => (last.packets, follow(random, last)),
            _ => (random.magnitude(1, 600) - 1, 0),
        };
        faults.push(Fault { packets, delay, lasts, host, rail, kind });
        flap(random, &mut faults);
    }
    if random.percent(12) {
        lose_host(random, hosts, &mut faults);
    }
    faults
}

/// When the next fault comes: while the last one lasts, about when it ends, or after that.
fn follow(random: &mut Random, last: &Fault) -> Nanos {
    match random.below(3) {
        0 => last.delay + random.below(last.lasts),
        1 => last.delay + last.lasts + random.below(1_000_000),
        _ => last.delay + random.magnitude(10_000, 200_000_000),
    }
}

/// Repeats the last fault a few times in a row.
fn flap(random: &mut Random, faults: &mut Vec<Fault>) {
    let Some(&last) = faults.last() else { return };
    if !last.severs() || !random.percent(10) {
        return;
    }
    let lasts = random.magnitude(20_000, 20_000_000);
    let mut delay = last.delay + last.lasts;
    for _ in 0..2 + random.below(3) {
        delay += random.magnitude(20_000, 20_000_000);
        faults.push(Fault { delay, lasts, ..last });
        delay += lasts;
    }
}

/// All rails of a host are gone for a while.
fn lose_host(random: &mut Random, hosts: &[HostShape], faults: &mut Vec<Fault>) {
    let host = random.index(hosts.len());
    let packets = random.magnitude(1, 400) - 1;
    let is_for_good = random.percent(4);
    for rail in 0..hosts[host].rails {
        let kind = match random.below(3) {
            0 => FaultKind::Carrier { told: Some(random.magnitude(1_000, 5_000_000)) },
            1 => FaultKind::Silent { outgoing: true, incoming: random.percent(50) },
            _ => FaultKind::Carrier { told: None },
        };
        let delay = random.below(3_000_000);
        let lasts = match is_for_good {
            true => LONGER_THAN_PATIENCE,
            false => random.magnitude(5_000_000, 500_000_000),
        };
        faults.push(Fault { packets, delay, lasts, host, rail, kind });
    }
}

fn draw_kind(random: &mut Random, hosts: &[HostShape], host: usize) -> FaultKind {
    match random.below(100) {
        0..25 => {
            let told = random.percent(80).then(|| random.magnitude(1_000, 30_000_000));
            FaultKind::Carrier { told }
        }
        25..50 => {
            let (outgoing, incoming) = random.pick(&[(true, true), (true, false), (false, true)]);
            FaultKind::Silent { outgoing, incoming }
        }
        50..60 => {
            let other = (host + 1 + random.index(hosts.len() - 1)) % hosts.len();
            FaultKind::Path { host: other, rail: random.index(hosts[other].rails) }
        }
        60..80 => FaultKind::Break,
        80..88 => FaultKind::Slow { factor: random.magnitude(2, 100) },
        88..94 => FaultKind::Mute,
        _ => FaultKind::Freeze,
    }
}
