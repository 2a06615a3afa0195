//! One rank and its program, by the rules of the executor.
//!
//! A rank looks at its links in sweeps: credits that are due, then every lane on which it sends, then
//! every lane on which it receives. A sweep sees what had arrived when it began; what it does takes the
//! processor some time per tile, one after the other.

use std::rc::Rc;

use ccl_core::program::{Program, StepIndex};

use super::Picos;
use super::gauge::Held;
use super::network::Network;

/// One rank.
#[derive(Debug)]
pub(super) struct Runner<'a> {
    rank: usize,
    /// Among the ranks of its host.
    place: usize,
    program: &'a Program,
    /// Bytes moved, by step.
    done: Vec<usize>,
    /// Steps handed over, by lane of sends, and the wire of the lane.
    sent: Vec<usize>,
    wires: Vec<usize>,
    /// Steps completed, by lane of receives, and where what arrives is found.
    received: Vec<usize>,
    inboxes: Vec<(usize, usize)>,
    /// The lanes of receives that a receiving step stands in, by step.
    lanes: Vec<Rc<[usize]>>,
    /// Steps with bytes left.
    left: usize,
    /// The processor's time.
    clock: Picos,
    pub(super) finished: Option<Picos>,
    /// For how long the processor had something to do.
    pub(super) worked: Picos,
}

impl<'a> Runner<'a> {
    /// None if something is to arrive on a link on which nobody sends.
    pub(super) fn new(
        (rank, place): (usize, usize),
        program: &'a Program,
        network: &Network,
    ) -> Option<Self> {
        let inboxes = program.receives.iter().map(|lane| network.inbox_of(rank, lane.port));
        Some(Self {
            rank,
            place,
            program,
            done: vec![0; program.steps.len()],
            sent: vec![0; program.sends.len()],
            wires: program.sends.iter().map(|lane| network.index(rank, lane.port)).collect(),
            received: vec![0; program.receives.len()],
            inboxes: inboxes.collect::<Option<_>>()?,
            lanes: lanes(program),
            left: program.steps.len(),
            clock: 0,
            finished: None,
            worked: 0,
        })
    }

    /// Moves what can be moved now. Tells whether anything did.
    pub(super) fn sweep(&mut self, network: &mut Network) -> bool {
        let is_first = self.left == self.program.steps.len();
        self.clock = network.now;
        for &(wire, _) in &self.inboxes {
            network.post_credit(wire, network.physics.slots / 2, self.clock);
        }
        let mut moved = false;
        let mut held = Held::default();
        for lane in 0..self.sent.len() {
            moved |= self.send(lane, network, &mut held);
        }
        if is_first {
            moved |= self.copy();
        }
        for lane in 0..self.received.len() {
            moved |= self.receive(lane, network);
        }
        self.worked += self.clock - network.now;
        network.occupy(self.rank, self.place, self.clock, held);
        if self.left == 0 && self.finished.is_none() {
            self.finished = Some(self.clock);
        }
        moved
    }

    /// Copies cost nothing: they are local and depend on nothing.
    fn copy(&mut self) -> bool {
        for &step in &self.program.copies {
            self.advance(step, self.program.steps[step as usize].bytes);
        }
        !self.program.copies.is_empty()
    }

    fn send(&mut self, lane: usize, network: &mut Network, held: &mut Held) -> bool {
        let (steps, wire) = (&self.program.sends[lane].steps, self.wires[lane]);
        let mut moved = false;
        while let Some(&step) = steps.get(self.sent[lane]) {
            let done = self.done[step as usize];
            let left = self.program.steps[step as usize].bytes - done;
            let bytes = left.min(network.wire(wire).tile_bytes);
            if self.limit(step) - done < bytes {
                held.by_data += 1;
                break;
            }
            let now = network.now;
            if !network.wire(wire).has_room(now) {
                held.by_credit += 1;
                break;
            }
            self.clock += network.price_of_sending(wire, bytes);
            network.send(wire, bytes, self.clock);
            self.sent[lane] += usize::from(self.advance(step, bytes));
            moved = true;
        }
        moved
    }

    fn receive(&mut self, lane: usize, network: &mut Network) -> bool {
        let program = self.program;
        let mut moved = false;
        while let Some(&step) = program.receives[lane].steps.get(self.received[lane]) {
            let lanes = Rc::clone(&self.lanes[step as usize]);
            let bytes = self.available(step, lane, &lanes, network);
            if bytes == 0 {
                break;
            }
            moved = true;
            let complete = self.advance(step, bytes);
            for &lane in &*lanes {
                self.received[lane] += usize::from(complete);
                if network.use_up(self.inboxes[lane], bytes, self.clock) {
                    self.clock += network.price_of_receiving(self.inboxes[lane].0);
                }
            }
        }
        moved
    }

    /// How many bytes of a receiving step can move now. A reduction is run by the first of its lanes,
    /// once all of them have come to it.
    fn available(
        &self,
        step: StepIndex,
        lane: usize,
        lanes: &[usize],
        network: &mut Network,
    ) -> usize {
        let mut bytes = self.limit(step) - self.done[step as usize];
        for &other in lanes {
            let head = self.program.receives[other].steps.get(self.received[other]);
            if other < lane || head != Some(&step) || bytes == 0 {
                return 0;
            }
            let (wire, inbox) = self.inboxes[other];
            bytes = bytes.min(network.wire(wire).inboxes[inbox].left());
        }
        bytes
    }

    /// How many bytes of a step may have moved now.
    fn limit(&self, step: StepIndex) -> usize {
        let this = &self.program.steps[step as usize];
        let ahead = this.after.iter().map(|before| self.done[*before as usize]);
        ahead.min().unwrap_or(this.bytes)
    }

    /// Counts bytes as moved; tells whether they were the last of the step.
    fn advance(&mut self, step: StepIndex, bytes: usize) -> bool {
        let done = &mut self.done[step as usize];
        *done += bytes;
        let complete = *done == self.program.steps[step as usize].bytes;
        self.left -= usize::from(complete);
        complete
    }
}

/// The lanes in which every receiving step stands, in the order of the lanes.
fn lanes(program: &Program) -> Vec<Rc<[usize]>> {
    let mut lanes = vec![Vec::new(); program.steps.len()];
    for (index, lane) in program.receives.iter().enumerate() {
        lane.steps.iter().for_each(|step| lanes[*step as usize].push(index));
    }
    lanes.into_iter().map(Rc::from).collect()
}
