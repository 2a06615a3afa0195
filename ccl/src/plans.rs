//! From a request to a program, remembered: every rank of a group makes the same choices.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ccl_algorithms::degraded::Fabric;
use ccl_algorithms::{Choice, choose, explain, explore, names};
use ccl_core::collective::{Collective, Request, Signature};
use ccl_core::cost::CostModel;
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::epoch::{Commit, Table};
use ccl_core::error::Error;
use ccl_core::ids::{Epoch, Node, Rank};
use ccl_core::layout::{Layout, Ragged};
use ccl_core::program::{Program, lower};
use ccl_core::settings::{AlgorithmChoice, CrossMemoryAttach, Settings};
use ccl_core::topology::Topology;
use ccl_core::tuning::{Tuning, model};

use crate::executor::is_straight;
use crate::health::{between, with_health};
use crate::operation::Shapes;

/// More plans than this are not remembered; the oldest half would only cost memory.
const REMEMBERED: usize = 1024;

/// Spreads epochs over the digests of plans; odd, so that no two epochs coincide.
const EPOCH_STRIDE: u32 = 0x9e37_79b1;

/// Spreads what is asked for over the digests of plans, likewise.
const WISH_STRIDE: u32 = 0x85eb_ca6b;

/// More than a collective has algorithms.
const MOST_WISHES: u32 = 64;

/// A program and what the ranks compare before they run it.
#[derive(Debug)]
pub(crate) struct Plan {
    key: Key,
    pub(crate) program: Program,
    pub(crate) signature: Signature,
    /// Whether the program is [run straight through](is_straight).
    pub(crate) is_straight: bool,
    /// Whether its input must not be its output.
    pub(crate) is_apart: bool,
    /// Whether contributions are combined in order of rank, in one step: whoever does that otherwise gets the same bits.
    pub(crate) is_in_order: bool,
}

/// Makes and remembers the plans of one rank.
#[derive(Debug)]
pub(crate) struct Planner {
    me: Rank,
    /// The topology before anything failed.
    introduced: Topology,
    /// The topology of the epoch.
    topology: Topology,
    /// The hosts that reach no other in this epoch, of several.
    cut_off: Vec<Node>,
    /// What the ranks have of their rails in this epoch.
    table: Table,
    epoch: Epoch,
    /// Epochs that begin with a later collective, in order. Ranks can be ahead of each other by few
    /// collectives, and epochs in between are rare, so that these are few.
    ahead: VecDeque<Commit>,
    model: CostModel,
    tuning: Option<Tuning>,
    settings: Settings,
    /// The last epoch in which an algorithm that the settings ask for could not be had, and it was said.
    overruled: Option<Epoch>,
    remembered: HashMap<Key, Arc<Plan>>,
    /// The plan used last: most programs ask for it again. It goes from hand to hand, since even counting
    /// references would be felt in a call of a few bytes.
    latest: Option<Arc<Plan>>,
}

/// What a plan depends on. Scalars of reductions do not matter to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    collective: Collective,
    /// None for a plan that only synchronises.
    count: usize,
    datatype: DataType,
    reduction: u8,
    root: Rank,
    /// Whether the input is the output.
    is_one: bool,
}

impl Key {
    fn new(request: &Request, is_one: bool) -> Self {
        let Request { collective, count, datatype, reduction, root } = *request;
        Self { collective, count, datatype, reduction: reduction.code(), root, is_one }
    }
}

impl Planner {
    pub(crate) fn new(me: Rank, topology: Topology, settings: Settings) -> Self {
        let model = model(&topology, &settings, None);
        Self {
            me,
            introduced: topology.clone(),
            topology,
            cut_off: Vec::new(),
            table: Table::default(),
            epoch: Epoch(0),
            ahead: VecDeque::new(),
            model,
            tuning: None,
            settings,
            overruled: None,
            remembered: HashMap::new(),
            latest: None,
        }
    }

    /// The topology before anything failed.
    pub(crate) fn introduced(&self) -> &Topology {
        &self.introduced
    }

    /// Makes plans with measurements from now on.
    pub(crate) fn tuned(&mut self, tuning: &Tuning) {
        self.introduced = tuning.topology(&self.introduced);
        self.topology = tuning.topology(&self.topology);
        self.tuning = Some(tuning.clone());
        self.model = model(&self.topology, &self.settings, self.tuning.as_ref());
        self.remembered.clear();
        self.latest = None;
    }

    /// Takes note of an epoch that begins later.
    pub(crate) fn expect(&mut self, commit: Commit) {
        // An epoch that begins where the next one does is never used.
        while self.ahead.back().is_some_and(|earlier| earlier.first >= commit.first) {
            self.ahead.pop_back();
        }
        self.ahead.push_back(commit);
    }

    /// From here on plans are for collective number `sequence` or later ones.
    #[inline]
    pub(crate) fn advance(&mut self, sequence: u64) {
        if !self.ahead.is_empty() {
            self.go_ahead(sequence);
        }
    }

    #[cold]
    fn go_ahead(&mut self, sequence: u64) {
        while let Some(commit) = self.ahead.pop_front_if(|commit| commit.first <= sequence) {
            (self.topology, self.cut_off) = with_health(&self.introduced, &commit.table);
            self.table = commit.table;
            self.epoch = commit.epoch;
            self.model = model(&self.topology, &self.settings, self.tuning.as_ref());
            // No call goes back to the epoch before.
            self.remembered.clear();
            self.latest = None;
        }
    }

    /// The epoch of the plans.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The plan of a collective that is described by a request. `is_one` says of an AllToAll that its input
    /// is its output; those of the others may be, where it is documented.
    ///
    /// # Errors
    /// The settings force an algorithm that does not exist.
    #[inline]
    pub(crate) fn plan(&mut self, request: &Request, is_one: bool) -> Result<Arc<Plan>, Error> {
        let key = Key::new(request, is_one);
        match self.known(&key) {
            Some(plan) => Ok(plan),
            None => self.make(request, key),
        }
    }

    #[cold]
    fn make(&mut self, request: &Request, key: Key) -> Result<Arc<Plan>, Error> {
        let choice = self.choose(request)?;
        self.tell_if_overruled(request.collective, &choice);
        let signature = request.signature(self.digest(request.collective, choice.digest));
        let layout = Layout::new(request, self.topology.ranks(), choice.partition.clone());
        let program = self.lower(&choice, &layout, request.datatype);
        let is_in_order = !request.collective.reduces()
            || self.topology.ranks() <= 2
            || matches!(choice.name, "one_shot" | "two_shot" | "direct");
        let plan = self.finished(program, signature, key);
        Ok(self.remember(Plan { is_in_order, ..plan }))
    }

    /// Says once in every epoch that an algorithm that was asked for gave way to another.
    fn tell_if_overruled(&mut self, collective: Collective, choice: &Choice) {
        let is_forced = forced(&self.settings, collective).is_some_and(|name| name != choice.name);
        if is_forced && self.overruled.replace(self.epoch) != Some(self.epoch) {
            let (rank, epoch) = (self.me.0, self.epoch.0);
            let (collective, reason) = (collective.name(), &choice.reason);
            tracing::warn!(rank, epoch, collective, reason, "R2CCL_ALGO cannot be followed");
        }
    }

    /// Takes note of the plan that was used last, so that it need not be looked for if it is asked for again.
    #[inline]
    pub(crate) fn keep(&mut self, plan: Arc<Plan>) {
        self.latest = Some(plan);
    }

    #[inline]
    fn known(&mut self, key: &Key) -> Option<Arc<Plan>> {
        let latest = self.latest.take_if(|latest| latest.key == *key);
        latest.or_else(|| self.recall(key))
    }

    /// A plan that was not the last one.
    #[inline(never)]
    fn recall(&self, key: &Key) -> Option<Arc<Plan>> {
        self.remembered.get(key).map(Arc::clone)
    }

    fn remember(&mut self, plan: Plan) -> Arc<Plan> {
        let plan = Arc::new(plan);
        if self.remembered.len() >= REMEMBERED {
            self.remembered.clear();
        }
        self.remembered.insert(plan.key, Arc::clone(&plan));
        plan
    }

    /// The plan of an AllToAllV, whose counts differ from call to call and from rank to rank. `is_one` says
    /// that its input is its output.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(crate) fn ragged(
        &self,
        datatype: DataType,
        counts: Ragged,
        is_one: bool,
    ) -> Result<Plan, Error> {
        let request = Request {
            collective: Collective::AllToAllV,
            count: 0,
            datatype,
            reduction: Reduction::Builtin(ReduceOp::Sum),
            root: Rank(0),
        };
        let choice = self.choose(&request)?;
        let layout = Layout::ragged(self.me, self.topology.ranks(), counts);
        let program = self.lower(&choice, &layout, datatype);
        let signature = request.signature(self.digest(request.collective, choice.digest));
        let plan = self.finished(program, signature, Key::new(&request, is_one));
        Ok(Plan { is_straight: false, ..plan })
    }

    /// A plan that only synchronises, under the name of `request`: for calls with nothing to move.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(crate) fn synchronising(&mut self, request: &Request) -> Result<Arc<Plan>, Error> {
        let key = Key::new(&Request { count: 0, ..*request }, false);
        if let Some(plan) = self.known(&key) {
            return Ok(plan);
        }
        let barrier = self.plan(&Request::BARRIER, false)?;
        let signature = request.signature(barrier.signature.plan);
        let program = barrier.program.clone();
        Ok(self.remember(Plan { key, program, signature, ..*barrier }))
    }

    /// What there is to know about a program before it is run.
    fn finished(&self, program: Program, signature: Signature, key: Key) -> Plan {
        let (program, is_apart) = match key.is_one.then(|| program.clone().in_place(self.me)) {
            None => (program, false),
            Some(Some(program)) => (program, false),
            Some(None) => (program, true),
        };
        let is_straight = self.topology.nodes() == 1 && is_straight(&program);
        Plan { key, program, signature, is_straight, is_apart, is_in_order: false }
    }

    /// How many seconds a collective would take.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(crate) fn predict(&self, request: &Request) -> Result<f64, Error> {
        let choice = self.choose(request)?;
        let chosen = choice.candidates.iter().find(|candidate| candidate.name == choice.name);
        Ok(chosen.map_or(0.0, |chosen| chosen.estimate.seconds))
    }

    /// How many seconds a message takes between this rank and another, or itself: nobody passes one on, so it takes for
    /// ever between two on different hosts that have no rail in common.
    pub(crate) fn predict_message(&self, peer: Rank, bytes: usize) -> f64 {
        let (link, rate) = if self.topology.together(self.me, peer) {
            (self.model.local, self.model.local.bytes_per_second)
        } else {
            let link = self.model.network;
            let both = between(&self.introduced, &self.table, [self.me, peer]);
            (link, Fabric::of(&both).between(0, 1).min(link.bytes_per_second))
        };
        #[allow(clippy::cast_precision_loss, reason = "a size in a model")]
        let bytes = bytes as f64;
        if rate > 0.0 { link.alpha + link.overhead + bytes / rate } else { f64::INFINITY }
    }

    /// Whether the system copies between processes, as far as the settings of this rank go.
    pub(crate) fn cross_memory_attach(&self) -> CrossMemoryAttach {
        self.settings.cross_memory_attach
    }

    /// Whether the settings ask for an algorithm of this collective.
    pub(crate) fn is_forced(&self, collective: Collective) -> bool {
        forced(&self.settings, collective).is_some()
    }

    /// The candidates for `request`, as text.
    ///
    /// # Errors
    /// As [`Self::plan`], or no memory is so large.
    pub(crate) fn explain(&self, request: &Request) -> Result<String, Error> {
        let forced = forced(&self.settings, request.collective);
        let request = match request.collective {
            // As [`Self::ragged`] chooses: no rank knows what the others send to each other.
            Collective::AllToAllV => Request { count: 0, ..*request },
            Collective::Barrier => Request::BARRIER,
            // Which has no algorithm.
            Collective::PointToPoint => *request,
            Collective::AllReduce
            | Collective::AllGather
            | Collective::ReduceScatter
            | Collective::Broadcast
            | Collective::Reduce
            | Collective::AllToAll
            | Collective::Gather
            | Collective::Scatter => {
                Shapes::of(request, self.me, self.topology.ranks())?;
                *request
            }
        };
        let choice = explore(&request, &self.topology, &self.model, forced)?;
        Ok(explain(&self.in_sight_of_the_cut_off(choice)))
    }

    /// Ranks in different epochs must not take each other's plans for their own, even where they are
    /// equal by chance: the next ones would not be. Nor must those that are asked for different algorithms, even where one
    /// would choose what another is asked for: calls whose algorithm is asked for go by tiles only, and the others may first tell
    /// each other something, with an AllGather and a barrier in the middle of them.
    fn digest(&self, collective: Collective, plan: u32) -> u32 {
        let asked_for = [collective, Collective::AllGather, Collective::Barrier];
        let wishes = asked_for.into_iter().fold(0_u32, |wishes, collective| {
            wishes.wrapping_mul(MOST_WISHES).wrapping_add(self.wish(collective))
        });
        plan.wrapping_add(self.epoch.0.wrapping_mul(EPOCH_STRIDE))
            .wrapping_add(wishes.wrapping_mul(WISH_STRIDE))
    }

    /// The number of the algorithm that the settings ask for, below [`MOST_WISHES`]; 0 if it is none.
    fn wish(&self, collective: Collective) -> u32 {
        let Some(wish) = forced(&self.settings, collective) else { return 0 };
        (1..)
            .zip(names(collective))
            .find(|(_, name)| **name == wish)
            .map_or(0, |(number, _)| number)
    }

    fn lower(&self, choice: &Choice, layout: &Layout, datatype: DataType) -> Program {
        let program = lower(&*choice.schedule, layout, self.me, datatype.bytes(), &self.topology);
        let division = choice.division.as_ref();
        let rails = division.map(|division| division.of_rank(self.me, &self.topology));
        Program { rails: rails.unwrap_or_default(), ..program }
    }

    fn choose(&self, request: &Request) -> Result<Choice, Error> {
        let forced = forced(&self.settings, request.collective);
        let choice = choose(request, &self.topology, &self.model, forced)?;
        let choice = self.in_sight_of_the_cut_off(choice);
        tracing::debug!(
            collective = request.collective.name(),
            count = request.count,
            algorithm = choice.name,
            reason = choice.reason,
            "plan"
        );
        Ok(choice)
    }

    /// A collective needs all ranks: where one reaches no other host it ends never, whatever the plan.
    fn in_sight_of_the_cut_off(&self, mut choice: Choice) -> Choice {
        if let Some(Node(host)) = self.cut_off.first() {
            let estimates = choice.candidates.iter_mut().map(|candidate| &mut candidate.estimate);
            estimates.for_each(|estimate| estimate.seconds = f64::INFINITY);
            let were_it_not = std::mem::take(&mut choice.reason);
            choice.reason = format!(
                "a rank of host {host} has lost all its rails, and every plan needs one; with them: {were_it_not}"
            );
        }
        choice
    }
}

/// Refuses names of algorithms that do not exist: who misspells one would believe to have it.
///
/// # Errors
/// [`Error::InvalidArgument`] names the setting, what it says, and the names that exist.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    settings.algorithms.iter().try_for_each(|choice| {
        let (who, known) = match choice.collective {
            Some(collective) => (collective.name(), names(collective).to_vec()),
            None => ("no collective", all_names()),
        };
        if known.contains(&choice.algorithm.as_str()) {
            return Ok(());
        }
        let has = if choice.collective.is_some() { "has no" } else { "has an" };
        let (algorithm, known) = (&choice.algorithm, known.join(", "));
        Err(Error::InvalidArgument(format!(
            "R2CCL_ALGO=\"{choice}\" is not allowed: {who} {has} algorithm {algorithm:?}; there are: {known}"
        )))
    })
}

/// The names of the algorithms of all collectives, each once.
fn all_names() -> Vec<&'static str> {
    let mut all = Vec::new();
    for name in Collective::ALL.into_iter().flat_map(names) {
        if !all.contains(name) {
            all.push(*name);
        }
    }
    all
}

/// The algorithm that the settings ask for: the first that names this collective, or none.
fn forced(settings: &Settings, collective: Collective) -> Option<&str> {
    let concerns = |choice: &&AlgorithmChoice| match choice.collective {
        Some(named) => named == collective,
        None => names(collective).contains(&choice.algorithm.as_str()),
    };
    settings.algorithms.iter().find(concerns).map(|choice| choice.algorithm.as_str())
}

#[cfg(test)]
mod tests;
