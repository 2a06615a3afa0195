//! Runs the programs of all ranks as flows.
//!
//! A step that sends is a flow on the lane of its link, one after the other in the order of the program, as the
//! executor of the library does it. Long steps move in segments: a segment may leave when the same segment of
//! every step that its step is after has moved, and it is part of a reduction when those of all operands have
//! arrived. So what is forwarded follows what arrives, segment by segment. The rates of all flows at the same
//! time are max-min fair ([`super::sharing`]); whenever a flow begins or ends, those that share a resource with
//! it, directly or over others, get new ones.
//!
//! Reductions and copies take no time, and slots never run out: [`crate::flow`] has those, tile by tile, for
//! small groups.

use std::collections::BTreeMap;

use ccl_core::ids::{Node, Rail, Rank};
use ccl_core::program::{Port, Program};

use super::agenda::{Agenda, Event, SAME_MOMENT};
use super::fabric::{Fabric, Way};
use super::file::{Delays, Outage};
use super::lane::{Lane, State, weigh};
use super::sharing::{Sharing, Use};
use super::steps::{Step, bases, steps};
use crate::flow::Impossible;

/// What flows between hosts that share a NIC get of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Fairness {
    /// As much as each other, like connections.
    #[default]
    Links,
    /// In proportion to all that they have to carry, as if what links may have on the way were weighted so.
    Bytes,
}

/// What a run needs to know beside the programs.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Longer steps move in segments of at most so many bytes.
    pub segment_bytes: usize,
    /// What fails while the programs run.
    pub outages: &'a [Outage],
    /// How long it takes until lanes use other rails.
    pub delays: Delays,
    /// How flows share NICs.
    pub fairness: Fairness,
    /// What was on the way on a rail when it failed, in bytes, and is sent again by every lane.
    pub window_bytes: f64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// When the last step was done.
    pub seconds: f64,
    /// Segments that were sent.
    pub segments: u64,
    /// How often rates were worked out anew.
    pub fillings: u64,
}

/// Runs `programs`, one for each rank of `fabric`.
///
/// # Errors
/// Hosts that have to talk have no common rail left, or some ranks never finish.
pub fn execute(
    fabric: Fabric,
    programs: &[Program],
    options: &Options<'_>,
) -> Result<Execution, Impossible> {
    let mut run = Run::new(fabric, programs, options)?;
    for outage in options.outages {
        run.agenda.plan(outage.at, Event::Cut(outage.node, outage.rail));
        let known = outage.at + options.delays.detection + options.delays.migration;
        run.agenda.plan(known, Event::Mend(outage.node, outage.rail));
    }
    (0..run.lanes.len()).for_each(|lane| run.begin(lane));
    run.fill();
    while !run.is_over() && run.advance()? {
        run.fill();
    }
    run.finish()
}

#[derive(Debug)]
struct Run<'a> {
    now: f64,
    fabric: Fabric,
    options: &'a Options<'a>,
    agenda: Agenda,
    lanes: Vec<Lane>,
    steps: Vec<Step>,
    /// By rank: until when its processor prepares messages.
    busy_until: Vec<f64>,
    /// Steps that are not done.
    open: usize,
    /// By resource: the lanes that flow through it.
    users: Vec<Vec<u32>>,
    /// Resources on which something has changed since rates were worked out.
    stale: Vec<Use>,
    sharing: Sharing,
    rates: Vec<f64>,
    /// By lane and by resource: whether it was met in the search of what shares resources.
    met_lanes: Vec<bool>,
    met_resources: Vec<bool>,
    segments: u64,
    fillings: u64,
}

impl<'a> Run<'a> {
    fn new(
        fabric: Fabric,
        programs: &[Program],
        options: &'a Options<'a>,
    ) -> Result<Self, Impossible> {
        let steps = steps(programs, options.segment_bytes);
        let resources = fabric.capacities().len();
        let mut run = Self {
            now: 0.0,
            fabric,
            options,
            agenda: Agenda::default(),
            lanes: Vec::new(),
            open: steps.len(),
            steps,
            busy_until: vec![0.0; programs.len()],
            users: vec![Vec::new(); resources],
            stale: Vec::new(),
            sharing: Sharing::default(),
            rates: Vec::new(),
            met_lanes: Vec::new(),
            met_resources: vec![false; resources],
            segments: 0,
            fillings: 0,
        };
        run.connect(programs)?;
        run.begin_routes()?;
        run.met_lanes = vec![false; run.lanes.len()];
        let copies = programs.iter().map(|program| program.copies.len()).sum::<usize>();
        run.open -= copies;
        Ok(run)
    }

    /// Makes the lanes, and lets every receiving step know what it waits for.
    fn connect(&mut self, programs: &[Program]) -> Result<(), Impossible> {
        let bases = bases(programs);
        let mut lanes: BTreeMap<(Rank, Port), usize> = BTreeMap::new();
        for ((rank, program), base) in (0..).map(Rank).zip(programs).zip(&bases) {
            for sends in &program.sends {
                let steps: Vec<usize> =
                    sends.steps.iter().map(|step| base + *step as usize).collect();
                lanes.insert((rank, sends.port), self.lanes.len());
                for step in &steps {
                    self.steps[*step].sends = Some(self.lanes.len());
                }
                let steps: Vec<_> =
                    steps.iter().map(|step| (*step, self.steps[*step].bytes)).collect();
                self.lanes.push(Lane::new(&self.fabric, rank, sends.port, program, &steps));
            }
        }
        for ((rank, program), base) in (0..).map(Rank).zip(programs).zip(&bases) {
            for receives in &program.receives {
                let source = receives.port.rank();
                let port = match receives.port {
                    Port::Pair(_) => Port::Pair(rank),
                    Port::Multicast(_) => receives.port,
                };
                let Some(lane) = lanes.get(&(source, port)) else {
                    return Err(Impossible::Stuck(vec![rank]));
                };
                for (turn, step) in receives.steps.iter().enumerate() {
                    let step = base + *step as usize;
                    self.steps[step].receives.push((*lane, turn));
                    let receivers = self.lanes[*lane].receivers.get_mut(turn);
                    receivers.ok_or_else(|| Impossible::Stuck(vec![rank]))?.push(step);
                }
            }
        }
        Ok(())
    }

    /// What every lane uses, as the options want it.
    fn begin_routes(&mut self) -> Result<(), Impossible> {
        if self.options.fairness == Fairness::Bytes {
            weigh(&mut self.lanes);
        }
        for number in 0..self.lanes.len() {
            self.lanes[number].uses = self.route(&self.lanes[number])?;
        }
        Ok(())
    }

    fn route(&self, lane: &Lane) -> Result<Vec<Use>, Impossible> {
        let route = self.fabric.route(lane.source, &lane.targets, lane.proportions.as_deref());
        let node = |rank| self.fabric.topology().node_of(rank);
        let nothing = || Impossible::NoCommonRail(node(lane.source), node(lane.targets[0]));
        let mut uses = route.ok_or_else(nothing)?;
        uses.iter_mut().for_each(|used| used.share *= lane.weight);
        Ok(uses)
    }

    fn is_over(&self) -> bool {
        self.open == 0
    }

    /// Lets time pass until something happens, and does all that happens then; whether anything did.
    fn advance(&mut self) -> Result<bool, Impossible> {
        let Some(moment) = self.agenda.next() else { return Ok(false) };
        self.now = self.now.max(moment);
        while let Some(event) = self.agenda.take_until(self.now + SAME_MOMENT) {
            match event {
                Event::Sent(lane, version) if self.lanes[lane].version == version => {
                    self.sent(lane)
                }
                Event::Sent(..) => {}
                Event::Prepared(lane) => self.start(lane),
                Event::Landed(lane, turn) => self.landed(lane, turn),
                Event::Cut(node, rail) => self.cut(node, rail),
                Event::Mend(node, rail) => self.mend(node, rail)?,
            }
        }
        Ok(true)
    }

    /// Begins with the next segment of a lane, if it is idle and there is one to move.
    fn begin(&mut self, number: usize) {
        let lane = &self.lanes[number];
        let Some(step) = lane.steps.get(lane.turn) else { return };
        let is_ready = |before: &usize| self.steps[*before].done > lane.segment;
        if lane.state != State::Idle || !self.steps[*step].after.iter().all(is_ready) {
            return;
        }
        let overhead = self.fabric.cluster().nics.overhead;
        if lane.segment > 0 || overhead <= 0.0 || !lane.is_away {
            return self.start(number);
        }
        let busy_until = &mut self.busy_until[lane.source.index()];
        *busy_until = busy_until.max(self.now) + overhead;
        let ready = *busy_until;
        self.lanes[number].state = State::Preparing;
        self.agenda.plan(ready, Event::Prepared(number));
    }

    /// A segment begins to flow.
    fn start(&mut self, number: usize) {
        let lane = &mut self.lanes[number];
        let step = &self.steps[lane.steps[lane.turn]];
        let left = step.segment_bytes(lane.segment);
        lane.state = State::Flowing { left, rate: 0.0, since: self.now };
        lane.version += 1;
        if lane.uses.is_empty() {
            self.agenda.plan(self.now, Event::Sent(number, lane.version));
        }
        for used in &lane.uses {
            self.users[used.resource.index()].push(number as u32);
        }
        self.stale.extend(&lane.uses);
    }

    /// The last byte of a segment has left.
    fn sent(&mut self, number: usize) {
        let lane = &mut self.lanes[number];
        lane.state = State::Idle;
        lane.version += 1;
        let (turn, step) = (lane.turn, lane.steps[lane.turn]);
        lane.segment += 1;
        if lane.segment == self.steps[step].segments {
            (lane.turn, lane.segment) = (turn + 1, 0);
        }
        let lands = self.now + lane.alpha;
        self.segments += 1;
        self.leave(number);
        self.agenda.plan(lands, Event::Landed(number, turn));
        self.moved(step, 1);
        self.begin(number);
    }

    /// A lane does not flow through its resources any more.
    fn leave(&mut self, number: usize) {
        let lane = &self.lanes[number];
        for used in &lane.uses {
            let users = &mut self.users[used.resource.index()];
            if let Some(place) = users.iter().position(|user| *user as usize == number) {
                users.swap_remove(place);
            }
        }
        self.stale.extend(&lane.uses);
    }

    /// A segment has arrived.
    fn landed(&mut self, number: usize, turn: usize) {
        self.lanes[number].landed[turn] += 1;
        for receiver in 0..self.lanes[number].receivers[turn].len() {
            self.receive(self.lanes[number].receivers[turn][receiver]);
        }
    }

    /// Moves a receiving step as far as it may go.
    fn receive(&mut self, number: usize) {
        let step = &self.steps[number];
        let arrived = step.receives.iter().map(|(lane, turn)| self.lanes[*lane].landed[*turn]);
        let allowed = step.after.iter().map(|before| self.steps[*before].done);
        let possible = arrived.chain(allowed).min().unwrap_or(0);
        let more = possible.saturating_sub(step.done);
        if more > 0 {
            self.moved(number, more);
        }
    }

    /// A step has moved so many segments more; those that wait for it may follow.
    fn moved(&mut self, number: usize, more: u32) {
        let step = &mut self.steps[number];
        step.done += more;
        if step.done == step.segments {
            self.open -= 1;
        }
        for waiting in 0..self.steps[number].waiting.len() {
            let waiting = self.steps[number].waiting[waiting];
            match self.steps[waiting].sends {
                Some(lane) => self.begin(lane),
                None => self.receive(waiting),
            }
        }
    }

    fn cut(&mut self, node: Node, rail: Rail) {
        self.fabric.cut(node, rail);
        for way in [Way::Out, Way::In] {
            let resource = self.fabric.nic(node, u32::from(rail.0), way);
            self.stale.push(Use { resource, share: 0.0 });
        }
    }

    /// Both ends know: lanes through that NIC use others, and send again what was on the way there.
    fn mend(&mut self, node: Node, rail: Rail) -> Result<(), Impossible> {
        let nics = [Way::Out, Way::In].map(|way| self.fabric.nic(node, u32::from(rail.0), way));
        self.fabric.lose(node, rail);
        for number in 0..self.lanes.len() {
            let through = self.lanes[number].uses.iter().find(|used| nics.contains(&used.resource));
            let weight = self.lanes[number].weight;
            let Some(share) = through.map(|used| used.share / weight) else { continue };
            if self.lanes[number].turn == self.lanes[number].steps.len() {
                continue;
            }
            let uses = self.route(&self.lanes[number])?;
            self.reroute(number, uses, share);
        }
        Ok(())
    }

    fn reroute(&mut self, number: usize, uses: Vec<Use>, lost_share: f64) {
        let flowing = self.lanes[number].state;
        if let State::Flowing { .. } = flowing {
            self.settle(number);
            self.leave(number);
        }
        let lane = &mut self.lanes[number];
        lane.uses = uses;
        lane.version += 1;
        if let State::Flowing { left, rate, since } = &mut lane.state {
            let step = &self.steps[lane.steps[lane.turn]];
            let moved = (step.segment_bytes(lane.segment) - *left).max(0.0);
            *left += lost_share * moved.min(self.options.window_bytes);
            (*rate, *since) = (0.0, self.now);
            for used in &lane.uses {
                self.users[used.resource.index()].push(number as u32);
            }
            self.stale.extend(&lane.uses);
        }
    }

    /// Brings what is left of a flow up to now.
    fn settle(&mut self, number: usize) {
        if let State::Flowing { left, rate, since } = &mut self.lanes[number].state {
            *left = (*left - *rate * (self.now - *since)).max(0.0);
            *since = self.now;
        }
    }

    /// Works out the rates of all flows that share anything, even over others, with one that has changed.
    fn fill(&mut self) {
        let flows = self.connected();
        if flows.is_empty() {
            return;
        }
        self.fillings += 1;
        let uses: Vec<&[Use]> =
            flows.iter().map(|lane| self.lanes[*lane].uses.as_slice()).collect();
        self.sharing.rates(self.fabric.capacities(), &uses, &mut self.rates);
        for (place, lane) in flows.into_iter().enumerate() {
            self.met_lanes[lane] = false;
            self.go_on(lane, self.rates[place] * self.lanes[lane].weight);
        }
    }

    /// A flow goes on at this rate.
    fn go_on(&mut self, number: usize, new: f64) {
        let State::Flowing { rate, .. } = self.lanes[number].state else { return };
        if rate == new {
            return;
        }
        self.settle(number);
        let lane = &mut self.lanes[number];
        lane.version += 1;
        if let State::Flowing { left, rate, .. } = &mut lane.state {
            *rate = new;
            if new > 0.0 {
                self.agenda.plan(self.now + *left / new, Event::Sent(number, lane.version));
            }
        }
    }

    /// The lanes that share resources with those that have changed, in the order of their numbers.
    fn connected(&mut self) -> Vec<usize> {
        let mut lanes = Vec::new();
        let mut frontier = std::mem::take(&mut self.stale);
        let mut met = Vec::new();
        while let Some(used) = frontier.pop() {
            let index = used.resource.index();
            if std::mem::replace(&mut self.met_resources[index], true) {
                continue;
            }
            met.push(index);
            for user in &self.users[index] {
                let user = *user as usize;
                if !std::mem::replace(&mut self.met_lanes[user], true) {
                    lanes.push(user);
                    frontier.extend(&self.lanes[user].uses);
                }
            }
        }
        met.into_iter().for_each(|index| self.met_resources[index] = false);
        frontier.clear();
        self.stale = frontier;
        lanes.sort_unstable();
        lanes
    }

    fn finish(self) -> Result<Execution, Impossible> {
        if self.is_over() {
            let Self { now, segments, fillings, .. } = self;
            return Ok(Execution { seconds: now, segments, fillings });
        }
        let waits = |lane: &&Lane| lane.turn < lane.steps.len();
        let mut stuck: Vec<Rank> = self.lanes.iter().filter(waits).map(|l| l.source).collect();
        stuck.dedup();
        Err(Impossible::Stuck(stuck))
    }
}
