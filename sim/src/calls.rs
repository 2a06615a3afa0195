//! From a call of a scenario to the programs of all ranks, through the production planner.
//!
//! Plans depend on nothing but their arguments, so they are kept from world to world.

use std::collections::HashMap;
use std::sync::Arc;

use ccl_algorithms::{choose, names};
use ccl_core::collective::{Collective, Request, Signature};
use ccl_core::cost::CostModel;
use ccl_core::ids::Rank;
use ccl_core::layout::{Layout, Ragged};
use ccl_core::program::{Buffer, Program, lower, point_to_point};
use ccl_core::topology::Topology;

use crate::oracle::{ragged_count, reduction, shift};
use crate::scenario::{CallPlan, HostShape, Scenario};

/// More plans than this are not kept.
const REMEMBERED: usize = 4096;

/// Buffers of messages stand behind input, output and scratch memory.
pub(crate) const MESSAGE_BUFFERS: [Buffer; 2] = [Buffer(3), Buffer(4)];

/// One call, planned for all ranks.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) programs: Vec<Program>,
    pub(crate) signature: Signature,
    /// What is combined, if anything is.
    pub(crate) request: Option<Request>,
}

impl Planned {
    pub(crate) fn ranks(&self) -> u32 {
        u32::try_from(self.programs.len()).unwrap_or(u32::MAX)
    }

    /// Whether anything goes between two ranks.
    pub(crate) fn joins(&self, [one, other]: [usize; 2]) -> bool {
        let Program { sends, receives, .. } = &self.programs[one];
        sends.iter().chain(receives).any(|lane| lane.port.rank().index() == other)
    }
}

/// What a plan depends on: hosts, where the ranks are, the cards that are out, and the call.
type Key = (Vec<HostShape>, Vec<usize>, Vec<(usize, usize)>, CallPlan);

/// Plans that were made already.
#[derive(Debug, Default)]
pub struct Plans {
    remembered: HashMap<Key, Arc<Planned>>,
}

impl Plans {
    /// The plan of a call, by its number.
    ///
    /// # Errors
    /// The planner refuses.
    pub(crate) fn plan(
        &mut self,
        scenario: &Scenario,
        number: usize,
    ) -> Result<Arc<Planned>, String> {
        let call = CallPlan { pause: 0, ..scenario.calls[number] };
        let out = scenario.cards_out(number).to_vec();
        let key = (scenario.hosts.clone(), scenario.host_of.clone(), out, call);
        if let Some(planned) = self.remembered.get(&key) {
            return Ok(Arc::clone(planned));
        }
        if self.remembered.len() >= REMEMBERED {
            self.remembered.clear();
        }
        let planned = Arc::new(make(scenario, number)?);
        self.remembered.insert(key, Arc::clone(&planned));
        Ok(planned)
    }
}

fn make(scenario: &Scenario, number: usize) -> Result<Planned, String> {
    let (call, topology) = (&scenario.calls[number], scenario.topology(number));
    if call.collective == Collective::PointToPoint {
        return Ok(messages(scenario, call));
    }
    if !call.only_synchronises() {
        return collective(scenario, call, &topology, &request(scenario, call));
    }
    let barrier = collective(scenario, call, &topology, &Request::BARRIER)?;
    if call.collective == Collective::Barrier {
        return Ok(barrier);
    }
    Ok(Planned { signature: request(scenario, call).signature(0), ..barrier })
}

fn request(scenario: &Scenario, call: &CallPlan) -> Request {
    let root = if call.collective.is_rooted() { call.root } else { 0 };
    let is_ragged = call.collective == Collective::AllToAllV;
    Request {
        collective: call.collective,
        count: if is_ragged { 0 } else { call.count },
        datatype: call.datatype,
        reduction: reduction(call, scenario.host_of.len()),
        root: Rank(u32::try_from(root).unwrap_or(0)),
    }
}

fn collective(
    scenario: &Scenario,
    call: &CallPlan,
    topology: &Topology,
    request: &Request,
) -> Result<Planned, String> {
    let model = CostModel::default_for(topology);
    let names = names(request.collective);
    let forced = call.algorithm.map(|number| names[number % names.len()]);
    let choice = choose(request, topology, &model, forced)
        .or_else(|_| choose(request, topology, &model, None))
        .map_err(|error| error.to_string())?;
    let lowered = |rank: Rank| {
        let layout = if request.collective == Collective::AllToAllV {
            let counts = ragged(call, rank.index(), scenario.host_of.len());
            Layout::ragged(rank, topology.ranks(), counts)
        } else {
            Layout::new(request, topology.ranks(), choice.partition.clone())
        };
        lower(&*choice.schedule, &layout, rank, request.datatype.bytes(), topology)
    };
    let programs = scenario.ranks().map(lowered).collect();
    let signature = request.signature(choice.digest);
    let combines = request.collective != Collective::AllToAllV;
    Ok(Planned { programs, signature, request: combines.then_some(*request) })
}

/// Counts of one rank, one behind the other in its buffers.
fn ragged(call: &CallPlan, rank: usize, ranks: usize) -> Ragged {
    let places = |count: &dyn Fn(usize) -> usize| {
        let mut next = 0;
        let place = |other| {
            let place = (count(other), next);
            next += count(other);
            place
        };
        (0..ranks).map(place).collect()
    };
    Ragged {
        send: places(&|other| ragged_count(call, rank, other)),
        receive: places(&|other| ragged_count(call, other, rank)),
    }
}

/// Everybody sends to a rank and receives from another.
fn messages(scenario: &Scenario, call: &CallPlan) -> Planned {
    let ranks = scenario.host_of.len();
    let (bytes, shift) = (call.count * call.datatype.bytes(), shift(call, ranks));
    let peer = |index: usize| Rank(u32::try_from(index % ranks).unwrap_or(0));
    let [from, into] = MESSAGE_BUFFERS;
    let program = |rank: Rank| {
        let to = (peer(rank.index() + shift), from, bytes);
        let by = (peer(rank.index() + ranks - shift), into, bytes);
        let (to, by) = if bytes == 0 { (vec![], vec![]) } else { (vec![to], vec![by]) };
        point_to_point(rank, &to, &by)
    };
    let programs = scenario.ranks().map(program).collect();
    Planned { programs, signature: Signature::POINT_TO_POINT, request: None }
}
