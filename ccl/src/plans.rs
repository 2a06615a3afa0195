//! From a request to a program, remembered: every rank of a group makes the same choices.

use std::collections::HashMap;
use std::sync::Arc;

use ccl_algorithms::{Choice, choose, explain, names};
use ccl_core::collective::{Collective, Request, Signature};
use ccl_core::cost::CostModel;
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::layout::{Layout, Ragged};
use ccl_core::program::{Program, lower};
use ccl_core::settings::{AlgorithmChoice, Settings};
use ccl_core::topology::Topology;

/// More plans than this are not remembered; the oldest half would only cost memory.
const REMEMBERED: usize = 1024;

/// A program and what the ranks compare before they run it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) program: Program,
    pub(crate) signature: Signature,
}

/// Makes and remembers the plans of one rank.
#[derive(Debug)]
pub(crate) struct Planner {
    me: Rank,
    topology: Topology,
    model: CostModel,
    settings: Settings,
    remembered: HashMap<Key, Arc<Plan>>,
    /// The plan asked for last: most programs ask for it again.
    latest: Option<(Key, Arc<Plan>)>,
}

/// What a plan depends on. Scalars of reductions do not matter to it.
type Key = (Collective, usize, DataType, u8, Rank);

impl Planner {
    pub(crate) fn new(me: Rank, topology: Topology, settings: Settings) -> Self {
        let mut model = CostModel::default_for(&topology);
        model.tile_bytes = settings.tile_bytes;
        Self { me, topology, model, settings, remembered: HashMap::new(), latest: None }
    }

    /// The plan of a collective that is described by a request.
    ///
    /// # Errors
    /// The settings force an algorithm that does not exist.
    pub(crate) fn plan(&mut self, request: &Request) -> Result<Arc<Plan>, Error> {
        let Request { collective, count, datatype, reduction, root } = *request;
        let key = (collective, count, datatype, reduction.code(), root);
        if let Some((_, plan)) = self.latest.as_ref().filter(|(latest, _)| *latest == key) {
            return Ok(Arc::clone(plan));
        }
        let plan = self.remember(key, request)?;
        self.latest = Some((key, Arc::clone(&plan)));
        Ok(plan)
    }

    /// The plan of `request`, made at most once.
    fn remember(&mut self, key: Key, request: &Request) -> Result<Arc<Plan>, Error> {
        if let Some(plan) = self.remembered.get(&key) {
            return Ok(Arc::clone(plan));
        }
        let choice = self.choose(request)?;
        let signature = request.signature(choice.digest);
        let layout = Layout::new(request, self.topology.ranks(), choice.partition.clone());
        let program = self.lower(&choice, &layout, request.datatype);
        let plan = Arc::new(Plan { program, signature });
        if self.remembered.len() >= REMEMBERED {
            self.remembered.clear();
        }
        self.remembered.insert(key, Arc::clone(&plan));
        Ok(plan)
    }

    /// The plan of an AllToAllV, whose counts differ from call to call and from rank to rank.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(crate) fn ragged(&self, datatype: DataType, counts: Ragged) -> Result<Plan, Error> {
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
        Ok(Plan { program, signature: request.signature(choice.digest) })
    }

    /// A plan that only synchronises, under the name of `request`: for calls with nothing to move.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(crate) fn synchronising(&mut self, request: &Request) -> Result<Plan, Error> {
        let barrier = self.plan(&barrier_request())?;
        Ok(Plan { program: barrier.program.clone(), signature: request.signature(0) })
    }

    /// The candidates for `request`, as text.
    ///
    /// # Errors
    /// As [`Self::plan`].
    pub(crate) fn explain(&self, request: &Request) -> Result<String, Error> {
        Ok(explain(&self.choose(request)?))
    }

    fn lower(&self, choice: &Choice, layout: &Layout, datatype: DataType) -> Program {
        lower(&*choice.schedule, layout, self.me, datatype.bytes(), &self.topology)
    }

    fn choose(&self, request: &Request) -> Result<Choice, Error> {
        let forced = forced(&self.settings, request.collective);
        let choice = choose(request, &self.topology, &self.model, forced)?;
        tracing::debug!(
            collective = request.collective.name(),
            count = request.count,
            algorithm = choice.name,
            reason = choice.reason,
            "plan"
        );
        Ok(choice)
    }
}

/// One byte from everybody to everybody.
pub(crate) fn barrier_request() -> Request {
    Request {
        collective: Collective::Barrier,
        count: 1,
        datatype: DataType::Uint8,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    }
}

/// The algorithm that the settings ask for: the first that names this collective, or none.
fn forced(settings: &Settings, collective: Collective) -> Option<&str> {
    let concerns = |choice: &&AlgorithmChoice| match choice.collective {
        Some(named) => named == collective,
        None => names(collective).contains(&choice.algorithm.as_str()),
    };
    settings.algorithms.iter().find(concerns).map(|choice| choice.algorithm.as_str())
}
