//! How requests are executed.

use std::ffi::c_uint;
use std::time::Duration;

use super::super::abi;
use super::super::work::What;
use super::world::{Data, Entry, Kind, Pair, Part, Place, Receive, Subject, Work, World};
use crate::clock;

/// What of a message fits into a completion.
const SCATTERED_BYTES: u64 = 64;

/// What became of the oldest request of a queue pair.
enum Outcome {
    Executed,
    /// Nobody answers.
    Lost,
    /// There is no receive.
    NotReady,
    /// It cannot be executed: what its completion says, and whether the other end is in error too.
    Failed(c_uint, Option<usize>),
}

impl World {
    /// Executes as many requests as that, of all queue pairs in turn; tells how many.
    pub(super) fn progress(&mut self, most: usize) -> usize {
        let mut executed = 0;
        while !self.is_held && executed < most && self.next_step() {
            executed += 1;
        }
        executed
    }

    fn next_step(&mut self) -> bool {
        let ids: Vec<_> = self.pairs.keys().copied().collect();
        let from = ids.partition_point(|&id| id <= self.turn);
        for &id in ids[from..].iter().chain(&ids[..from]) {
            let pair = &self.pairs[&id];
            let Some(work) = pair.works.front() else { continue };
            if pair.state != abi::IBV_QPS_RTS || self.ports[pair.device].is_gone {
                continue;
            }
            let work = work.clone();
            match self.execute(id, &work) {
                Outcome::Executed => self.executed(id, &work),
                Outcome::NotReady => {
                    self.pair(id).unanswered_since = None;
                    continue;
                }
                Outcome::Lost if !self.is_given_up(id) => continue,
                Outcome::Lost => self.failed(id, abi::IBV_WC_RETRY_EXC_ERR),
                Outcome::Failed(status, other) => {
                    self.failed(id, status);
                    if let Some(other) = other {
                        self.refused(other);
                    }
                }
            }
            self.turn = id;
            return true;
        }
        false
    }

    pub(super) fn pair(&mut self, id: usize) -> &mut Pair {
        self.pairs.get_mut(&id).expect("a queue pair that exists")
    }

    fn is_given_up(&mut self, id: usize) -> bool {
        let pair = self.pair(id);
        let since = *pair.unanswered_since.get_or_insert_with(clock::now);
        clock::now() > since + Duration::from_nanos(pair.patience_ns)
    }

    fn executed(&mut self, id: usize, work: &Work) {
        let pair = self.pair(id);
        pair.works.pop_front();
        pair.unanswered_since = None;
        if work.is_signalled {
            self.sent(id, work, abi::IBV_WC_SUCCESS);
        }
    }

    /// The oldest request ends like this, and everything else comes back.
    fn failed(&mut self, id: usize, status: c_uint) {
        let work = self.pair(id).works.pop_front().expect("the one that failed");
        self.sent(id, &work, status);
        self.break_down(id);
    }

    /// A reliable queue pair refused what the other end asked for.
    fn refused(&mut self, id: usize) {
        if self.pair(id).kind != Kind::Reliable {
            return;
        }
        self.break_down(id);
        let (context, address) = (self.pair(id).context, self.pair(id).address);
        self.tell(context, Subject::Pair(address), abi::IBV_EVENT_QP_ACCESS_ERR);
    }

    /// To the error state, where everything comes back.
    pub(super) fn break_down(&mut self, id: usize) {
        self.pair(id).state = abi::IBV_QPS_ERR;
        let works = std::mem::take(&mut self.pair(id).works);
        for work in works {
            self.sent(id, &work, abi::IBV_WC_WR_FLUSH_ERR);
        }
        let (kind, receives) = (self.pair(id).kind, self.pair(id).receives);
        if kind == Kind::Reliable {
            let waiting =
                self.receives.get_mut(&receives).map(|own| std::mem::take(&mut own.waiting));
            for receive in waiting.into_iter().flatten() {
                let status = abi::IBV_WC_WR_FLUSH_ERR;
                let blank = abi::Completion::default();
                self.received(id, abi::Completion { wr_id: receive.id, status, ..blank });
            }
        }
    }

    fn sent(&mut self, id: usize, work: &Work, status: c_uint) {
        let (queue, number) = (self.pair(id).sent, self.pair(id).number);
        let blank = abi::Completion::default();
        let completion = abi::Completion { wr_id: work.id, status, qp_num: number, ..blank };
        self.complete(queue, Entry { completion, pair: id, frees: Place::Sent(work.number) });
    }

    fn received(&mut self, id: usize, completion: abi::Completion) {
        let (queue, receives) = (self.pair(id).received, self.pair(id).receives);
        let completion = abi::Completion { qp_num: self.pair(id).number, ..completion };
        self.complete(queue, Entry { completion, pair: id, frees: Place::Received(receives) });
    }

    fn execute(&mut self, id: usize, work: &Work) -> Outcome {
        let domain = self.pairs[&id].domain;
        let here = match &work.data {
            Data::Nothing => None,
            Data::Inline(bytes) => Some((bytes.as_ptr().cast_mut(), bytes.len())),
            Data::Part(part) => match self.find(domain, *part, 0) {
                Some(start) => Some((start, usize::try_from(part.bytes).expect("64 bits"))),
                None => return Outcome::Failed(abi::IBV_WC_LOC_PROT_ERR, None),
            },
        };
        let Some(other) = self.route(id, work) else { return Outcome::Lost };
        let bytes = here.map_or(0, |(_, bytes)| bytes as u64);
        let needs = match work.what {
            What::Send => None,
            What::Write | What::WriteWithImmediate(_) => Some(abi::IBV_ACCESS_REMOTE_WRITE),
            What::Read => Some(abi::IBV_ACCESS_REMOTE_READ),
            What::CompareAndSwap { .. } | What::FetchAdd { .. } => {
                Some(abi::IBV_ACCESS_REMOTE_ATOMIC)
            }
        };
        let part = Part { key: work.remote.0, address: work.remote.1, bytes };
        let far = &self.pairs[&other];
        let there = match needs {
            Some(access) if bytes > 0 && far.access & access == 0 => None,
            Some(access) if bytes > 0 => self.find(far.domain, part, access),
            _ => Some(std::ptr::null_mut()),
        };
        let Some(there) = there else {
            return Outcome::Failed(abi::IBV_WC_REM_ACCESS_ERR, Some(other));
        };
        let start = here.map_or(std::ptr::null_mut(), |(start, _)| start);
        match work.what {
            What::Send => self.deliver(other, (start, bytes), None),
            What::WriteWithImmediate(word) => match self.next_receive(other) {
                None => Outcome::NotReady,
                Some(receive) => {
                    copy(start, there, bytes);
                    self.take_receive(other);
                    let completion = abi::Completion {
                        wr_id: receive.id,
                        opcode: abi::IBV_WC_RECV_RDMA_WITH_IMM,
                        byte_len: u32::try_from(bytes).expect("32 bits"),
                        imm_data: word.to_be(),
                        ..abi::Completion::default()
                    };
                    self.received(other, completion);
                    Outcome::Executed
                }
            },
            What::Write => {
                copy(start, there, bytes);
                Outcome::Executed
            }
            What::Read => {
                copy(there, start, bytes);
                Outcome::Executed
            }
            What::CompareAndSwap { expected, new } => {
                exchange(there, start, |word| if word == expected { new } else { word })
            }
            What::FetchAdd { addend } => exchange(there, start, |word| word.wrapping_add(addend)),
        }
    }

    /// The queue pair that the packets of a request reach.
    fn route(&self, id: usize, work: &Work) -> Option<usize> {
        let pair = &self.pairs[&id];
        let own = &self.ports[pair.device];
        let (gid, number) = match work.target {
            Some((gid, number, _)) => (gid, number),
            None => pair.peer?,
        };
        let device = self.ports.iter().position(|port| port.rows().any(|own| own == gid))?;
        let works = |port: &super::world::Port| port.is_up && !port.is_cut;
        if !works(own) || !works(&self.ports[device]) {
            return None;
        }
        let (&other, far) = self
            .pairs
            .iter()
            .find(|(_, far)| far.device == device && far.number == number && far.number != 0)?;
        let listens = [abi::IBV_QPS_RTR, abi::IBV_QPS_RTS].contains(&far.state);
        let is_meant = match (far.kind, work.target) {
            (Kind::Reliable, None) => {
                own.rows().any(|row| row == pair.own)
                    && far.peer == Some((pair.own, pair.number))
                    && far.first_received == pair.first_sent
            }
            (Kind::Target(key), Some((_, _, known))) => key == known && pair.mtu <= far.mtu,
            _ => false,
        };
        (listens && is_meant).then_some(other)
    }

    fn next_receive(&self, id: usize) -> Option<Receive> {
        self.receives[&self.pairs[&id].receives].waiting.front().copied()
    }

    fn take_receive(&mut self, id: usize) {
        let receives = self.pairs[&id].receives;
        self.receives.get_mut(&receives).and_then(|own| own.waiting.pop_front());
    }

    /// A message fills the oldest receive.
    fn deliver(
        &mut self,
        id: usize,
        (start, bytes): (*mut u8, u64),
        imm_data: Option<u32>,
    ) -> Outcome {
        let Some(receive) = self.next_receive(id) else { return Outcome::NotReady };
        self.take_receive(id);
        let completion = abi::Completion {
            wr_id: receive.id,
            byte_len: u32::try_from(bytes).expect("32 bits"),
            imm_data: imm_data.unwrap_or(0),
            ..abi::Completion::default()
        };
        let domain = self.pairs[&id].domain;
        let room = receive.target.map_or(0, |part| part.bytes);
        let place = match receive.target {
            _ if bytes == 0 => Ok(std::ptr::null_mut()),
            _ if bytes > room => Err(abi::IBV_WC_LOC_LEN_ERR),
            Some(part) => self.find(domain, part, 0).ok_or(abi::IBV_WC_LOC_PROT_ERR),
            None => Err(abi::IBV_WC_LOC_LEN_ERR),
        };
        match place {
            Ok(place) => {
                // libmlx5 copies it from the completion to the address that the receive names, which is
                // none of this process.
                if !(self.pairs[&id].scatters && bytes <= SCATTERED_BYTES) {
                    copy(start, place, bytes);
                }
                self.received(id, completion);
                Outcome::Executed
            }
            Err(status) => {
                self.received(id, abi::Completion { status, ..completion });
                Outcome::Failed(abi::IBV_WC_REM_INV_REQ_ERR, Some(id))
            }
        }
    }
}

fn copy(from: *const u8, to: *mut u8, bytes: u64) {
    if bytes > 0 {
        let bytes = usize::try_from(bytes).expect("64 bits");
        // SAFETY: both are inside of regions, as was checked, which stay mapped while they are registered;
        // or what was inline. They may overlap.
        unsafe { std::ptr::copy(from, to, bytes) };
    }
}

/// Replaces a word, and tells what it was.
fn exchange(word: *mut u8, result: *mut u8, change: impl Fn(u64) -> u64) -> Outcome {
    let word = word.cast::<u64>();
    // SAFETY: it is inside of a region, as was checked.
    let before = unsafe { word.read_unaligned() };
    // SAFETY: as above.
    unsafe { word.write_unaligned(change(before)) };
    // SAFETY: so is the result, which has eight bytes.
    unsafe { result.cast::<u64>().write_unaligned(before) };
    Outcome::Executed
}
