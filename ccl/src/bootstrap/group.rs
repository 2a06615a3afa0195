//! What the store knows and decides, without sockets: requests in, pushes out.
//!
//! ```text
//! Gathering ──all have joined──▶ Formed ──all have gone──▶ over
//!     └──two claims, a death, a rank that waits no longer──▶ Failed ──all have gone──▶ over
//! ```
//!
//! A failure is final and told to everybody, also to ranks that come later. Once the group is formed,
//! strangers cannot disturb it: a late claim of a rank fails alone, and so does a rank that is not wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::message::{
    ControlEvent, Failure, MAX_BLOB_BYTES, MAX_NAME_BYTES, MAX_PUSH_BYTES, MAX_RANKS, Numbered,
    Process, Push, Reply, Request, name_ranks,
};

/// Most bytes of values and contributions that a store keeps.
const MAX_STORED_BYTES: usize = 512 << 20;
/// Most unanswered requests for keys.
const MAX_WAITERS: usize = 1 << 20;

/// An authenticated connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Peer(pub(super) u64);

/// A message to be sent, the same to everyone in `to`.
#[derive(Debug, PartialEq)]
pub(super) struct Output {
    pub(super) to: Vec<Peer>,
    pub(super) push: Push,
}

#[derive(Debug, PartialEq)]
enum Phase {
    Gathering,
    Formed,
    Failed(Failure),
}

#[derive(Debug)]
struct Member {
    peer: Peer,
    process: Process,
}

/// The rank in whose process a store is, and those that it goes on without.
#[derive(Clone, Debug, Default)]
pub(super) struct Founder {
    pub(super) rank: u32,
    pub(super) absent: BTreeSet<u32>,
}

/// What a rank says when it joins.
struct Wish {
    size: u32,
    absent: BTreeSet<u32>,
    process: Process,
}

/// The ranks of one communicator as the store sees them.
#[derive(Debug)]
pub(super) struct Group {
    host: Process,
    /// Where ranks whose connection broke find the store.
    places: Vec<SocketAddr>,
    founder: Founder,
    /// It has joined, or was told that it cannot, or will not come.
    has_founder_come: bool,
    phase: Phase,
    size: u32,
    members: BTreeMap<u32, Member>,
    /// Ranks that left.
    left: Vec<u32>,
    values: BTreeMap<String, Vec<u8>>,
    waiters: BTreeMap<String, Vec<(Peer, u64)>>,
    gathers: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    waiting: usize,
    stored_bytes: usize,
}

impl Group {
    /// A group without members; `host` is the process of the store and of its founder, and `places` where it is found.
    pub(super) fn new(host: Process, founder: Founder, places: Vec<SocketAddr>) -> Self {
        Self {
            host,
            places,
            founder,
            has_founder_come: false,
            phase: Phase::Gathering,
            size: 0,
            members: BTreeMap::new(),
            left: Vec::new(),
            values: BTreeMap::new(),
            waiters: BTreeMap::new(),
            gathers: BTreeMap::new(),
            waiting: 0,
            stored_bytes: 0,
        }
    }

    /// Whether ranks may still join.
    pub(super) fn is_gathering(&self) -> bool {
        self.phase == Phase::Gathering
    }

    /// Whether nobody needs to come any more: it is complete, or has failed, and the founder knows.
    pub(super) fn is_settled(&self) -> bool {
        match self.phase {
            Phase::Gathering => false,
            Phase::Formed => true,
            Phase::Failed(_) => self.has_founder_come,
        }
    }

    /// Whether the group was complete once.
    pub(super) fn is_formed(&self) -> bool {
        self.phase == Phase::Formed
    }

    /// Takes a request of `rank`, which `peer` speaks for. The error is a breach of the protocol; the
    /// connection is of no use after it.
    pub(super) fn handle(
        &mut self,
        peer: Peer,
        rank: u32,
        numbered: Numbered,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let Numbered { number, request } = numbered;
        let speaks_for_member = self.members.get(&rank).is_some_and(|member| member.peer == peer);
        if let Request::Join { size, absent, process } = request {
            if speaks_for_member {
                return Err("joined twice".to_owned());
            }
            self.join(peer, rank, Wish { size, absent, process }, out);
            return Ok(());
        }
        if self.left.contains(&rank) && matches!(request, Request::Relay { .. }) {
            // It was written before its writer knew that this rank leaves.
            return Ok(());
        }
        if !speaks_for_member {
            if !matches!(request, Request::Announce(_) | Request::Leave { .. }) {
                return Err("spoke without having joined".to_owned());
            }
            // Who was not admitted says why it goes, and goes.
            let push = Push::Reply { number, reply: Reply::Done };
            out.push(Output { to: vec![peer], push });
            return Ok(());
        }
        match request {
            Request::Join { .. } => {}
            Request::GiveUp { seconds } => self.give_up(seconds, out),
            Request::Awaited => {
                let reply = Reply::Missing(self.unjoined().collect());
                out.push(Output { to: vec![peer], push: Push::Reply { number, reply } });
            }
            Request::Gone { ranks } => self.lose(&ranks, out),
            Request::Set { key, value } => self.set(peer, number, key, value, out),
            Request::Get { key } => self.get(peer, number, key, out),
            Request::Gather { name, value } => self.gather(peer, rank, name, value, out)?,
            Request::Missing { name } => {
                let reply = Reply::Missing(self.missing(self.gathers.get(&name)));
                out.push(Output { to: vec![peer], push: Push::Reply { number, reply } });
            }
            Request::Announce(event) => self.announce(rank, event, out),
            Request::Relay { to, letter } => self.relay(rank, &to, letter, out),
            Request::Leave { calls } => self.leave(peer, number, rank, calls, out),
        }
        Ok(())
    }

    /// The connection of `rank` ended.
    pub(super) fn gone(&mut self, peer: Peer, rank: u32, reason: &str, out: &mut Vec<Output>) {
        if self.members.get(&rank).is_none_or(|member| member.peer != peer) {
            return;
        }
        self.members.remove(&rank);
        let reason = reason.to_owned();
        match self.phase {
            Phase::Gathering => self.fail(Failure::Lost { rank, reason }, None, out),
            Phase::Formed => {
                let event =
                    ControlEvent::Lost { rank: ccl_core::ids::Rank(rank), reason, by: None };
                out.push(Output { to: self.others(rank), push: Push::Event(event) });
            }
            Phase::Failed(_) => {}
        }
    }

    fn join(&mut self, peer: Peer, rank: u32, wish: Wish, out: &mut Vec<Output>) {
        self.has_founder_come |= rank == self.founder.rank && wish.process == self.host;
        if self.founder.absent.contains(&rank) {
            let reason = format!("it goes on without rank {rank}");
            let failure = Failure::Aborted { rank: self.founder.rank, reason };
            return out.push(Output { to: vec![peer], push: Push::Failed(failure) });
        }
        match &self.phase {
            Phase::Gathering => {}
            Phase::Formed => {
                let failure = Failure::Usage(self.too_late(rank, &wish.process));
                return out.push(Output { to: vec![peer], push: Push::Failed(failure) });
            }
            Phase::Failed(failure) => {
                let push = Push::Failed(failure.clone());
                return out.push(Output { to: vec![peer], push });
            }
        }
        if let Some(failure) = self.objection(rank, &wish) {
            return self.fail(failure, Some(peer), out);
        }
        self.size = wish.size;
        self.members.insert(rank, Member { peer, process: wish.process });
        if self.members.len() == self.full() {
            self.phase = Phase::Formed;
            out.push(Output {
                to: self.everyone(),
                push: Push::Formed { host_rank: self.host_rank(), places: self.places.clone() },
            });
        }
    }

    fn objection(&self, rank: u32, wish: &Wish) -> Option<Failure> {
        let Wish { size, absent, process } = wish;
        let size = *size;
        if size == 0 || size > MAX_RANKS || rank >= size {
            let text = format!("{process} claims rank {rank} of {size}, at most {MAX_RANKS}");
            return Some(Failure::Usage(text));
        }
        if let Some(first) = self.members.get(&rank) {
            return Some(Failure::Usage(claimed_twice(rank, &first.process, process)));
        }
        if absent.last().is_some_and(|absent| *absent >= size) || absent.contains(&rank) {
            let absent = name_all(absent);
            let text = format!("rank {rank} of {size} ({process}) is to do without {absent}");
            return Some(Failure::Usage(text));
        }
        let Founder { rank: founder, absent: missed } = &self.founder;
        if absent != missed {
            let text = format!(
                "rank {rank} ({process}) goes on {}, rank {founder} ({}) {}",
                without(absent),
                self.host,
                without(missed)
            );
            return Some(Failure::Apart { text, absent: absent | missed });
        }
        let (other, member) = self.members.first_key_value()?;
        (size != self.size).then(|| {
            Failure::Usage(format!(
                "rank {rank} ({process}) expects {size} ranks, rank {other} ({}) expects {} ranks",
                member.process, self.size
            ))
        })
    }

    fn too_late(&self, rank: u32, process: &Process) -> String {
        match self.members.get(&rank) {
            Some(first) => claimed_twice(rank, &first.process, process),
            None => {
                format!("{process} claims rank {rank} of a communicator that was complete before")
            }
        }
    }

    fn host_rank(&self) -> Option<u32> {
        self.members.iter().find(|(_, member)| member.process == self.host).map(|(rank, _)| *rank)
    }

    fn fail(&mut self, failure: Failure, newcomer: Option<Peer>, out: &mut Vec<Output>) {
        let mut to = self.everyone();
        to.splice(..0, newcomer);
        self.phase = Phase::Failed(failure.clone());
        out.push(Output { to, push: Push::Failed(failure) });
    }

    /// The store cannot let more ranks in, for this cause.
    pub(super) fn starve(&mut self, cause: &str, out: &mut Vec<Output>) {
        if self.is_gathering() {
            let call = format!("let ranks into the store in process {}", self.host);
            self.fail(Failure::System { call, cause: cause.to_owned() }, None, out);
        }
    }

    /// The founder will not join, if it has not.
    pub(super) fn abandon(&mut self, out: &mut Vec<Output>) {
        self.has_founder_come = true;
        let rank = self.founder.rank;
        let has_come = self.members.get(&rank).is_some_and(|member| member.process == self.host);
        if self.is_gathering() && !has_come {
            let reason = format!("its process {} gave up before it joined", self.host);
            self.fail(Failure::Aborted { rank, reason }, None, out);
        }
    }

    fn announce(&mut self, rank: u32, event: ControlEvent, out: &mut Vec<Output>) {
        if let (Phase::Gathering, ControlEvent::Aborted { rank, reason }) = (&self.phase, &event) {
            let failure = Failure::Aborted { rank: rank.0, reason: reason.clone() };
            return self.fail(failure, None, out);
        }
        out.push(Output { to: self.others(rank), push: Push::Event(event) });
    }

    fn give_up(&mut self, seconds: f64, out: &mut Vec<Output>) {
        if !self.is_gathering() {
            return;
        }
        let missing = self.unjoined().collect();
        let call = "joining the communicator".to_owned();
        self.fail(Failure::Deadline { call, seconds, missing }, None, out);
    }

    /// A member has found that nobody is left in these ranks.
    fn lose(&mut self, ranks: &BTreeSet<u32>, out: &mut Vec<Output>) {
        let ranks: BTreeSet<u32> = self.unjoined().filter(|rank| ranks.contains(rank)).collect();
        if self.is_gathering() && !ranks.is_empty() {
            self.fail(Failure::Gone { ranks }, None, out);
        }
    }

    fn set(&mut self, peer: Peer, number: u64, key: String, value: Vec<u8>, out: &mut Vec<Output>) {
        let replaced = self.values.get(&key).map_or(0, Vec::len);
        let reply = match self.admit(&key, &value, replaced) {
            Err(reason) => Reply::Refused(reason),
            Ok(()) => {
                for (waiter, number) in self.waiters.remove(&key).unwrap_or_default() {
                    self.waiting -= 1;
                    let push = Push::Reply { number, reply: Reply::Value(value.clone()) };
                    out.push(Output { to: vec![waiter], push });
                }
                self.values.insert(key, value);
                Reply::Done
            }
        };
        out.push(Output { to: vec![peer], push: Push::Reply { number, reply } });
    }

    fn get(&mut self, peer: Peer, number: u64, key: String, out: &mut Vec<Output>) {
        let reply = match self.values.get(&key) {
            Some(value) => Reply::Value(value.clone()),
            None if key.len() > MAX_NAME_BYTES || self.waiting == MAX_WAITERS => {
                Reply::Refused("the key is too long, or too many ranks wait".to_owned())
            }
            None => {
                self.waiting += 1;
                self.waiters.entry(key).or_default().push((peer, number));
                return;
            }
        };
        out.push(Output { to: vec![peer], push: Push::Reply { number, reply } });
    }

    fn gather(
        &mut self,
        peer: Peer,
        rank: u32,
        name: String,
        value: Vec<u8>,
        out: &mut Vec<Output>,
    ) -> Result<(), String> {
        let known = self.gathers.get(&name);
        if known.is_some_and(|values| values.contains_key(&rank)) {
            return Err(format!("contributed twice to {name:?}"));
        }
        let lacking = self.left.iter().find(|left| known.is_none_or(|v| !v.contains_key(left)));
        let admitted = match lacking {
            Some(rank) => Err(departed(*rank)),
            None => self.admit(&name, &value, 0).map_err(Failure::Usage),
        };
        if let Err(failure) = admitted {
            let push = Push::GatherFailed { name, failure };
            out.push(Output { to: vec![peer], push });
            return Ok(());
        }
        let full = self.full();
        let values = self.gathers.entry(name.clone()).or_default();
        values.insert(rank, value);
        if values.len() == full {
            self.complete(name, out);
        }
        Ok(())
    }

    fn complete(&mut self, name: String, out: &mut Vec<Output>) {
        let values: Vec<Vec<u8>> =
            self.gathers.remove(&name).unwrap_or_default().into_values().collect();
        let bytes: usize = values.iter().map(Vec::len).sum();
        self.stored_bytes -= bytes;
        // Leaves room for the lengths, which take at most 10 bytes each.
        let push = if bytes + 10 * (values.len() + 2) + MAX_NAME_BYTES > MAX_PUSH_BYTES {
            let text = format!("{bytes} bytes were gathered, at most {MAX_PUSH_BYTES} can be sent");
            Push::GatherFailed { name, failure: Failure::Usage(text) }
        } else {
            Push::Gathered { name, values }
        };
        out.push(Output { to: self.everyone(), push });
    }

    /// Passes a letter on. Who has gone needs none.
    fn relay(&self, from: u32, to: &[u32], letter: Vec<u8>, out: &mut Vec<Output>) {
        let to = to.iter().filter_map(|rank| self.members.get(rank)).map(|member| member.peer);
        out.push(Output { to: to.collect(), push: Push::Relayed { from, letter } });
    }

    fn leave(&mut self, peer: Peer, number: u64, rank: u32, calls: u64, out: &mut Vec<Output>) {
        self.members.remove(&rank);
        self.left.push(rank);
        let push = Push::Left { rank, calls };
        out.push(Output { to: self.everyone(), push });
        let stuck = self.gathers.iter().filter(|(_, values)| !values.contains_key(&rank));
        let stuck: Vec<String> = stuck.map(|(name, _)| name.clone()).collect();
        for name in stuck {
            let values = self.gathers.remove(&name).unwrap_or_default();
            self.stored_bytes -= values.values().map(Vec::len).sum::<usize>();
            let waiting = values.keys().filter_map(|rank| self.members.get(rank));
            let to = waiting.map(|member| member.peer).collect();
            out.push(Output { to, push: Push::GatherFailed { name, failure: departed(rank) } });
        }
        let push = Push::Reply { number, reply: Reply::Done };
        out.push(Output { to: vec![peer], push });
    }

    /// Makes room for `value`, or says why it cannot be kept.
    fn admit(&mut self, name: &str, value: &[u8], replaced_bytes: usize) -> Result<(), String> {
        if name.len() > MAX_NAME_BYTES || value.len() > MAX_BLOB_BYTES {
            return Err(format!(
                "a name of {} and a blob of {} bytes; at most {MAX_NAME_BYTES} and {MAX_BLOB_BYTES}",
                name.len(),
                value.len()
            ));
        }
        let stored_bytes = self.stored_bytes - replaced_bytes + value.len();
        if stored_bytes > MAX_STORED_BYTES {
            return Err(format!("the store is full: at most {MAX_STORED_BYTES} bytes"));
        }
        self.stored_bytes = stored_bytes;
        Ok(())
    }

    fn missing(&self, values: Option<&BTreeMap<u32, Vec<u8>>>) -> Vec<u32> {
        let has_come = |rank: &u32| values.is_some_and(|values| values.contains_key(rank));
        self.awaited().filter(|rank| !has_come(rank)).collect()
    }

    fn awaited(&self) -> impl Iterator<Item = u32> {
        (0..self.size).filter(|rank| !self.founder.absent.contains(rank))
    }

    fn unjoined(&self) -> impl Iterator<Item = u32> {
        self.awaited().filter(|rank| !self.members.contains_key(rank))
    }

    /// How many members there are when all have come.
    fn full(&self) -> usize {
        self.size as usize - self.founder.absent.len()
    }

    fn everyone(&self) -> Vec<Peer> {
        self.peers_except(None)
    }

    fn others(&self, rank: u32) -> Vec<Peer> {
        self.peers_except(Some(rank))
    }

    /// The rank in whose process the store is comes last: when it hears of a failure that process may
    /// end, and the store with it.
    fn peers_except(&self, rank: Option<u32>) -> Vec<Peer> {
        let others = self.members.iter().filter(|(other, _)| Some(**other) != rank);
        let mut others: Vec<&Member> = others.map(|(_, member)| member).collect();
        others.sort_by_key(|member| member.process == self.host);
        others.into_iter().map(|member| member.peer).collect()
    }
}

fn without(absent: &BTreeSet<u32>) -> String {
    if absent.is_empty() { "with all".to_owned() } else { format!("without {}", name_all(absent)) }
}

fn name_all(ranks: &BTreeSet<u32>) -> String {
    name_ranks(&ranks.iter().copied().collect::<Vec<_>>())
}

fn claimed_twice(rank: u32, first: &Process, second: &Process) -> String {
    format!("rank {rank} is claimed by two processes, {first} and {second}")
}

fn departed(rank: u32) -> Failure {
    Failure::Lost { rank, reason: "it left the communicator".to_owned() }
}

#[cfg(test)]
mod tests;
