//! Executes the programs of all ranks symbolically: what is verified is what runs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Action, Buffer, Operand, Port, Program, Span};
use crate::ids::{Chunk, Rank};
use crate::layout::Layout;
use crate::topology::Topology;

/// Why a set of programs is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramFault {
    /// Nobody can go on; the ranks and the step each one is stuck at.
    Deadlock(Vec<(Rank, u32)>),
    /// A step reads memory that holds nothing.
    ReadsNothing(Rank, u32),
    /// A reduction would count a contribution twice.
    CountedTwice(Rank, u32),
    /// What arrived has another length than the step that takes it.
    LengthMismatch(Rank, u32),
    /// A message was sent that nobody takes.
    LeftOver(Rank, Rank),
    /// The output does not hold what the collective promises.
    WrongOutput(Rank, Chunk),
}

type Contributions = BTreeSet<Rank>;

/// A message: its contributions and its length.
type Message = (Contributions, usize);

struct World<'a> {
    programs: &'a [Program],
    topology: &'a Topology,
    memory: Vec<BTreeMap<Span, Contributions>>,
    /// By receiver and by its name of the link.
    links: BTreeMap<(Rank, Port), VecDeque<Message>>,
    done: Vec<Vec<bool>>,
}

/// Runs one program per rank to the end, a step at a time, and compares the outputs with what the
/// collective of `layout` promises.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(
    programs: &[Program],
    layout: &Layout,
    element_bytes: usize,
    topology: &Topology,
) -> Result<(), ProgramFault> {
    let done = programs.iter().map(|program| vec![false; program.steps.len()]).collect();
    let memory = (0..layout.ranks()).map(|rank| inputs(Rank(rank), layout, element_bytes));
    let links = BTreeMap::new();
    let mut world = World { programs, topology, memory: memory.collect(), links, done };
    world.run()?;
    world.compare(layout, element_bytes)
}

fn inputs(rank: Rank, layout: &Layout, element_bytes: usize) -> BTreeMap<Span, Contributions> {
    let held = |chunk| {
        let at = layout.input(rank, chunk)?;
        let span = Span { buffer: Buffer::INPUT, offset: at * element_bytes };
        (layout.elements(chunk) > 0).then(|| (span, BTreeSet::from([rank])))
    };
    (0..layout.chunks()).map(Chunk).filter_map(held).collect()
}

impl World<'_> {
    fn run(&mut self) -> Result<(), ProgramFault> {
        loop {
            let mut moved = false;
            for rank in 0..self.programs.len() {
                for step in 0..self.programs[rank].steps.len() {
                    moved |= !self.done[rank][step] && self.attempt(rank, step)?;
                }
            }
            if !moved {
                break;
            }
        }
        let stuck = |(rank, done): (usize, &Vec<bool>)| {
            let step = done.iter().position(|done| !done)?;
            Some((rank_of(rank), u32::try_from(step).unwrap_or(u32::MAX)))
        };
        let stuck: Vec<_> = self.done.iter().enumerate().filter_map(stuck).collect();
        if !stuck.is_empty() {
            return Err(ProgramFault::Deadlock(stuck));
        }
        match self.links.iter().find(|(_, queue)| !queue.is_empty()) {
            Some((&(to, port), _)) => Err(ProgramFault::LeftOver(port.rank(), to)),
            None => Ok(()),
        }
    }

    /// Runs one step if everything it needs is there.
    fn attempt(&mut self, rank: usize, index: usize) -> Result<bool, ProgramFault> {
        let step = &self.programs[rank].steps[index];
        let me = rank_of(rank);
        let name = u32::try_from(index).unwrap_or(u32::MAX);
        let ready = step.after.iter().all(|before| self.done[rank][*before as usize]);
        if !ready || !self.at_head(rank, index) {
            return Ok(false);
        }
        let read = |span: &Span| {
            self.memory[rank].get(span).cloned().ok_or(ProgramFault::ReadsNothing(me, name))
        };
        match &step.action {
            Action::Send { port, from, .. } => {
                let message = (read(from)?, step.bytes);
                self.transmit(me, *port, &message);
            }
            Action::Copy { from, into } => {
                let held = read(from)?;
                self.memory[rank].insert(*into, held);
            }
            Action::Receive { port, into } => {
                let Some(held) = self.take(*port, me, step.bytes, name)? else { return Ok(false) };
                self.memory[rank].insert(*into, held);
            }
            Action::Reduce { operands, into } => {
                if !operands.iter().all(|operand| self.arrived(*operand, me)) {
                    return Ok(false);
                }
                let mut sum = Contributions::new();
                for operand in operands {
                    let more = match operand {
                        Operand::Local(span) => self.memory[rank].get(span).cloned(),
                        Operand::Arrival(port) => self.take(*port, me, step.bytes, name)?,
                    };
                    let more = more.ok_or(ProgramFault::ReadsNothing(me, name))?;
                    if more.iter().any(|owner| !sum.insert(*owner)) {
                        return Err(ProgramFault::CountedTwice(me, name));
                    }
                }
                self.memory[rank].insert(*into, sum);
            }
        }
        self.done[rank][index] = true;
        Ok(true)
    }

    /// Whether every lane of the step has come to it.
    fn at_head(&self, rank: usize, index: usize) -> bool {
        let program = &self.programs[rank];
        let lanes = program.sends.iter().chain(&program.receives);
        lanes.filter(|lane| lane.steps.contains(&u32::try_from(index).unwrap_or(u32::MAX))).all(
            |lane| {
                let head = lane.steps.iter().find(|step| !self.done[rank][**step as usize]);
                head.is_some_and(|head| *head as usize == index)
            },
        )
    }

    fn transmit(&mut self, me: Rank, port: Port, message: &Message) {
        let (receivers, name) = match port {
            Port::Pair(peer) => (vec![peer], Port::Pair(me)),
            Port::Multicast(source) => {
                let host = self.topology.ranks_of(self.topology.node_of(source));
                (host.iter().copied().filter(|rank| *rank != me).collect(), Port::Multicast(me))
            }
        };
        for receiver in receivers {
            self.links.entry((receiver, name)).or_default().push_back(message.clone());
        }
    }

    fn arrived(&self, operand: Operand, me: Rank) -> bool {
        match operand {
            Operand::Local(_) => true,
            Operand::Arrival(port) => {
                self.links.get(&(me, port)).is_some_and(|queue| !queue.is_empty())
            }
        }
    }

    fn take(
        &mut self,
        port: Port,
        me: Rank,
        bytes: usize,
        step: u32,
    ) -> Result<Option<Contributions>, ProgramFault> {
        let message = self.links.get_mut(&(me, port)).and_then(VecDeque::pop_front);
        match message {
            Some((_, sent)) if sent != bytes => Err(ProgramFault::LengthMismatch(me, step)),
            Some((held, _)) => Ok(Some(held)),
            None => Ok(None),
        }
    }

    fn compare(&self, layout: &Layout, element_bytes: usize) -> Result<(), ProgramFault> {
        let initial = layout.initial();
        for chunk in (0..layout.chunks()).map(Chunk).filter(|chunk| layout.elements(*chunk) > 0) {
            let ranks = || (0..layout.ranks()).map(Rank);
            let all: Contributions =
                ranks().filter(|rank| !initial.held(*rank, chunk).is_empty()).collect();
            for rank in ranks() {
                let Some(at) = layout.output(rank, chunk) else { continue };
                let span = Span { buffer: Buffer::OUTPUT, offset: at * element_bytes };
                if self.memory[rank.index()].get(&span) != Some(&all) {
                    return Err(ProgramFault::WrongOutput(rank, chunk));
                }
            }
        }
        Ok(())
    }
}

fn rank_of(index: usize) -> Rank {
    Rank(u32::try_from(index).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::{Lane, Step, lower};
    use super::*;
    use crate::collective::{Collective, Request};
    use crate::datatype::{DataType, ReduceOp, Reduction};
    use crate::ids::Node;
    use crate::layout::Partition;
    use crate::schedule::{Mode, Schedule, Transfer};
    use crate::topology::{Host, RailCapacity};

    /// Everybody reduces everybody's data.
    #[derive(Debug)]
    struct OneShot(u32);

    impl Schedule for OneShot {
        fn ranks(&self) -> u32 {
            self.0
        }

        fn rounds(&self) -> u32 {
            1
        }

        fn transfers(&self, _: u32, rank: Rank, into: &mut Vec<Transfer>) {
            for peer in (0..self.0).map(Rank).filter(|peer| *peer != rank) {
                for (source, target) in [(rank, peer), (peer, rank)] {
                    into.push(Transfer::new(Chunk(0), source, target, Mode::Accumulate));
                }
            }
        }
    }

    fn layout(ranks: u32) -> Layout {
        let request = Request {
            collective: Collective::AllReduce,
            count: 10,
            datatype: DataType::Float32,
            reduction: Reduction::Builtin(ReduceOp::Sum),
            root: Rank(0),
        };
        Layout::new(&request, ranks, Partition::even(10, 4, 1))
    }

    /// Every rank on a host of its own.
    fn apart(ranks: u32) -> Topology {
        let host = Host { rails: vec![RailCapacity::up(1e9)], cores: 1 };
        Topology::new((0..ranks).map(Node).collect(), vec![host; ranks as usize])
    }

    fn programs(ranks: u32, topology: &Topology) -> Vec<Program> {
        let part = |rank| lower(&OneShot(ranks), &layout(ranks), Rank(rank), 4, topology);
        (0..ranks).map(part).collect()
    }

    #[test]
    fn a_one_shot_becomes_one_reduction_in_order_of_rank() {
        let program = &programs(3, &apart(3))[1];
        let Action::Reduce { operands, into } = &program.steps[2].action else { panic!() };
        let own = Span { buffer: Buffer::INPUT, offset: 0 };
        let order = [Rank(0), Rank(2)].map(|rank| Operand::Arrival(Port::Pair(rank)));
        let order = [order[0], Operand::Local(own), order[1]];
        assert_eq!(operands, &order);
        assert_eq!(*into, Span { buffer: Buffer::OUTPUT, offset: 0 });
        assert_eq!(program.steps[2].after, [0, 1], "the input may be the output");
        assert_eq!(program.sends[0], Lane { port: Port::Pair(Rank(2)), steps: vec![1] });
        assert_eq!(check(&programs(3, &apart(3)), &layout(3), 4, &apart(3)), Ok(()));
    }

    #[test]
    fn what_goes_to_the_whole_host_leaves_once() {
        let host = Topology::single_host(3, 2);
        let program = &programs(3, &host)[1];
        assert_eq!(program.steps.len(), 2, "one send and one reduction");
        assert_eq!(program.sends, [Lane { port: Port::Multicast(Rank(1)), steps: vec![0] }]);
        let ports: Vec<Port> = program.receives.iter().map(|lane| lane.port).collect();
        assert_eq!(ports, [Port::Multicast(Rank(2)), Port::Multicast(Rank(0))]);
        assert_eq!(check(&programs(3, &host), &layout(3), 4, &host), Ok(()));
    }

    #[test]
    fn a_forgotten_send_is_a_deadlock() {
        let mut broken = programs(2, &apart(2));
        broken[0].steps.remove(0);
        broken[0].sends.clear();
        broken[0].receives[0].steps = vec![0];
        broken[0].steps[0].after.clear();
        assert_eq!(
            check(&broken, &layout(2), 4, &apart(2)),
            Err(ProgramFault::Deadlock(vec![(Rank(1), 1)]))
        );
    }

    #[test]
    fn a_message_too_many_is_left_over() {
        let mut broken = programs(2, &apart(2));
        let extra: Step = broken[0].steps[0].clone();
        broken[0].steps.push(extra);
        broken[0].sends[0].steps.push(2);
        assert_eq!(
            check(&broken, &layout(2), 4, &apart(2)),
            Err(ProgramFault::LeftOver(Rank(0), Rank(1)))
        );
    }
}
