//! The relay: a chain of ranks, some of them on other hosts, whose tiles a host carries.

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{Arithmetic, Entry, Family, Operation, RelayParameters, Ring, State};

use super::battery::{arithmetic, expected};
use super::machine::{Job, Launch, Machine};
use super::protocols::{compare, copy};
use crate::inputs::{Random, elements};

/// A chain of ranks that hand on what they have so far: the first sends, those between add their own,
/// the last but one keeps the result too, and the last receives it.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) datatype: DataType,
    pub(crate) operation: Operation,
    /// At least 3.
    pub(crate) ranks: usize,
    pub(crate) threads: u32,
    /// Elements of each call.
    pub(crate) counts: Vec<usize>,
    /// Elements of a slot.
    pub(crate) tile_count: usize,
    pub(crate) slots: usize,
    pub(crate) in_place: bool,
    pub(crate) seed: u64,
}

/// A ring and where its parts lie.
fn ring(machine: &dyn Machine, bytes: usize) -> Ring {
    Ring { slots: machine.allocate(bytes), head: machine.allocate(8), tail: machine.allocate(8) }
}

fn counter(machine: &dyn Machine, address: u64) -> u64 {
    u64::from_le_bytes(machine.read(address, 8).try_into().expect("eight bytes"))
}

/// What a network does: takes filled tiles from one ring into another, one at a time.
fn carry(machine: &dyn Machine, from: Ring, to: Ring, slot_bytes: usize, slots: u64) {
    let done = counter(machine, from.head);
    let is_full = done - counter(machine, to.head) == slots;
    if counter(machine, from.tail) == done || is_full {
        return;
    }
    let slot = done % slots * slot_bytes as u64;
    let tile = machine.read(from.slots + slot, slot_bytes);
    machine.write(to.slots + slot, &tile);
    machine.write(to.tail, &(done + 1).to_le_bytes());
    // The producer may overwrite the slot from here on.
    machine.write(from.head, &(done + 1).to_le_bytes());
}

/// Where a rank of a chain reads and writes.
struct Member {
    local: u64,
    output: u64,
    state: u64,
    incoming: Ring,
    outgoing: Ring,
}

impl Chain {
    fn slot_bytes(&self) -> usize {
        self.tile_count * self.datatype.bytes()
    }

    /// The operation on a rank: only the last that combines divides; who combines nothing moves bytes.
    fn operation_of(&self, rank: usize) -> (Operation, DataType) {
        let is_mean = self.operation == Operation::Mean;
        let moves = (Operation::Sum, DataType::Uint8);
        match rank {
            0 if self.operation == Operation::Scaled => (Operation::Scaled, self.datatype),
            0 => moves,
            _ if rank == self.ranks - 1 => moves,
            _ if is_mean && rank < self.ranks - 2 => (Operation::Sum, self.datatype),
            _ => (self.operation, self.datatype),
        }
    }

    fn members(&self, machine: &dyn Machine, links: &[(Ring, Ring)]) -> Vec<Member> {
        let largest = self.counts.iter().max().map_or(0, |count| count * self.datatype.bytes());
        let member = |rank: usize| {
            let local = if rank < self.ranks - 1 { machine.allocate(largest) } else { 0 };
            let keeps = rank + 2 >= self.ranks;
            let output = match () {
                () if !keeps => 0,
                () if self.in_place && local != 0 => local,
                () => machine.allocate(largest),
            };
            let state = machine.allocate(size_of::<State>());
            let incoming = if rank > 0 { links[rank - 1].1 } else { Ring::default() };
            let outgoing = links.get(rank).map_or(Ring::default(), |link| link.0);
            Member { local, output, state, incoming, outgoing }
        };
        (0..self.ranks).map(member).collect()
    }

    fn launch(
        &self,
        member: &Member,
        rank: usize,
        count: usize,
        rest: (Arithmetic, u64),
    ) -> Launch {
        let (operation, datatype) = self.operation_of(rank);
        // Of bytes there are as many more as elements are large.
        let per_element = (self.datatype.bytes() / datatype.bytes()) as u64;
        let parameters = RelayParameters {
            incoming: member.incoming,
            outgoing: member.outgoing,
            local: member.local,
            output: member.output,
            state: member.state,
            abort: rest.1,
            count: count as u64 * per_element,
            tile_count: self.tile_count as u64 * per_element,
            slots: self.slots as u64,
            arithmetic: rest.0,
        };
        let entry = Entry::Elements { family: Family::Relay, operation, datatype };
        Launch::new(rank as u32, entry, (1, self.threads), &parameters)
    }

    /// What goes out of a rank, and into its output.
    fn result(
        &self,
        rank: usize,
        local: &[u8],
        incoming: &[u8],
        arithmetic: &Arithmetic,
    ) -> Vec<u8> {
        let (operation, datatype) = self.operation_of(rank);
        if rank == self.ranks - 1 {
            return incoming.to_vec();
        }
        if rank == 0 && operation != Operation::Scaled {
            return local.to_vec();
        }
        // Only this rank's contribution, source 0, is scaled.
        let arithmetic = Arithmetic { scaled: arithmetic.scaled & 1, ..*arithmetic };
        if rank == 0 {
            return expected(datatype, operation, &arithmetic, &[local.to_vec()]);
        }
        expected(datatype, operation, &arithmetic, &[local.to_vec(), incoming.to_vec()])
    }
}

/// All calls of a chain. Every second pair of ranks has the network between it, the others share a
/// ring.
pub(crate) fn relay(machine: &dyn Machine, chain: &Chain) -> Result<(), String> {
    let mut random = Random(chain.seed);
    let slots_bytes = chain.slots * chain.slot_bytes();
    let link = |index: usize| {
        let near = ring(machine, slots_bytes);
        (near, if index % 2 == 1 { ring(machine, slots_bytes) } else { near })
    };
    let links: Vec<(Ring, Ring)> = (0..chain.ranks - 1).map(link).collect();
    let members = chain.members(machine, &links);
    let abort = machine.allocate(4);
    let (mut launches, mut results) = (Vec::new(), Vec::new());
    for (call, &count) in chain.counts.iter().enumerate() {
        let bytes = count * chain.datatype.bytes();
        let mut arriving = Vec::new();
        for (rank, member) in members.iter().enumerate() {
            let stream = rank as u32;
            let mut own = arithmetic(&mut random, chain.datatype);
            own.scaled &= 1;
            let local = elements(&mut random, chain.datatype, count);
            if member.local != 0 {
                let ready = machine.allocate(bytes);
                machine.write(ready, &local);
                launches.push(copy(stream, ready, member.local, bytes));
            }
            launches.push(chain.launch(member, rank, count, (own, abort)));
            arriving = chain.result(rank, &local, &arriving, &own);
            if member.output != 0 {
                let kept = machine.allocate(bytes);
                launches.push(copy(stream, member.output, kept, bytes));
                results.push((format!("call {call}, rank {rank}"), kept, arriving.clone()));
            }
        }
    }
    let mut network = || {
        for (near, far) in links.iter().filter(|(near, far)| near.slots != far.slots) {
            carry(machine, *near, *far, chain.slot_bytes(), chain.slots as u64);
        }
    };
    let job = Job { meanwhile: Some(&mut network), ..Job::new(&launches, chain.seed) };
    let ended = machine.run(job);
    let outcome = ended.and_then(|()| compare(machine, &results));
    machine.release();
    outcome.map_err(|wrong| format!("{wrong}: {chain:?}"))
}
