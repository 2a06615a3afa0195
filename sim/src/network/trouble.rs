//! Cards, and what goes wrong with them.

use super::link::NewsItem;
use super::{EndId, Event, Network};
use crate::Nanos;
use crate::scenario::FaultKind;

/// Breaking a connection is noticed within this time.
const LONGEST_BREAK: Nanos = 20_000_000;

/// A network card. Faults overlap, so they are counted.
#[derive(Clone, Debug)]
pub(crate) struct Nic {
    pub(super) host: usize,
    /// When it has sent everything that it was given.
    pub(super) free_at: Nanos,
    pub(super) slowness: u64,
    outgoing_blocked: u8,
    incoming_blocked: u8,
    pub(super) carrier_lost: u8,
    pub(super) mute: u8,
}

impl Nic {
    pub(crate) fn new(host: usize) -> Self {
        Self {
            host,
            free_at: 0,
            slowness: 1,
            outgoing_blocked: 0,
            incoming_blocked: 0,
            carrier_lost: 0,
            mute: 0,
        }
    }
}

impl Network {
    /// The first card of a host, and one of them.
    fn nic(&self, host: usize, rail: usize) -> usize {
        let first = self.nics.iter().position(|nic| nic.host == host).unwrap_or(0);
        first + rail
    }

    /// Whether packets from one card do not reach the other.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.nics[from].outgoing_blocked > 0
            || self.nics[to].incoming_blocked > 0
            || self.cut_paths.iter().any(|&(a, b)| (a, b) == (from, to) || (b, a) == (from, to))
    }

    /// Whether what an end sends does not reach the other end.
    pub(super) fn is_blocked(&self, end: EndId) -> bool {
        let this = &self.ends[end];
        self.is_cut(this.place.nic, self.ends[this.peer].place.nic)
    }

    /// Whether the processes of a host stand still.
    pub(crate) fn is_frozen(&self, host: usize) -> bool {
        self.frozen[host] > 0
    }

    /// Plans the faults that waited for the packet that has just arrived.
    pub(super) fn trip(&mut self) {
        while let Some(&index) = self.armed.last()
            && self.faults[index].packets <= self.arrived
        {
            self.armed.pop();
            let begins = self.now + self.faults[index].delay;
            self.troubled_until = self.troubled_until.max(begins + self.faults[index].lasts);
            self.agenda.plan(begins, Event::FaultBegins(index));
        }
    }

    pub(super) fn begin_fault(&mut self, index: usize) {
        let fault = self.faults[index];
        self.note(|_| format!("fault begins: {fault}"));
        self.tally.faults += 1;
        let nic = self.nic(fault.host, fault.rail);
        match fault.kind {
            FaultKind::Carrier { told } => {
                self.nics[nic].carrier_lost += 1;
                self.block(nic, true, true);
                if let Some(after) = told {
                    self.tell_severed(nic, after);
                }
            }
            FaultKind::Silent { outgoing, incoming } => self.block(nic, outgoing, incoming),
            FaultKind::Path { host, rail } => {
                let other = self.nic(host, rail);
                self.cut_paths.push((nic, other));
            }
            FaultKind::Break => self.break_connections(nic),
            FaultKind::Slow { factor } => self.nics[nic].slowness *= factor,
            FaultKind::Mute => self.nics[nic].mute += 1,
            FaultKind::Freeze => self.frozen[fault.host] += 1,
        }
        self.agenda.plan(self.now + fault.lasts, Event::FaultEnds(index));
        self.look_at_paths();
    }

    pub(super) fn end_fault(&mut self, index: usize) {
        let fault = self.faults[index];
        self.note(|_| format!("fault ends: {fault}"));
        let nic = self.nic(fault.host, fault.rail);
        match fault.kind {
            FaultKind::Carrier { .. } => {
                self.nics[nic].carrier_lost -= 1;
                self.unblock(nic, true, true);
            }
            FaultKind::Silent { outgoing, incoming } => self.unblock(nic, outgoing, incoming),
            FaultKind::Path { host, rail } => {
                let other = self.nic(host, rail);
                let cut = self.cut_paths.iter().position(|path| *path == (nic, other));
                cut.map(|index| self.cut_paths.swap_remove(index));
            }
            FaultKind::Break => {}
            FaultKind::Slow { factor } => self.nics[nic].slowness /= factor,
            FaultKind::Mute => self.nics[nic].mute -= 1,
            FaultKind::Freeze => self.frozen[fault.host] -= 1,
        }
        self.release_all();
        self.look_at_paths();
        self.wakes = u32::MAX;
    }

    fn block(&mut self, nic: usize, outgoing: bool, incoming: bool) {
        self.nics[nic].outgoing_blocked += u8::from(outgoing);
        self.nics[nic].incoming_blocked += u8::from(incoming);
    }

    fn unblock(&mut self, nic: usize, outgoing: bool, incoming: bool) {
        self.nics[nic].outgoing_blocked -= u8::from(outgoing);
        self.nics[nic].incoming_blocked -= u8::from(incoming);
    }

    fn release_all(&mut self) {
        for end in 0..self.ends.len() {
            self.release(end);
        }
    }

    /// Every connection over a card breaks, at each end in its own time.
    fn break_connections(&mut self, nic: usize) {
        for end in 0..self.ends.len() {
            let peer = self.ends[end].peer;
            if self.ends[end].place.nic == nic || self.ends[peer].place.nic == nic {
                let at = self.now + self.random.magnitude(1_000, LONGEST_BREAK);
                self.agenda.plan(at, Event::Break(end));
            }
        }
    }

    /// The links of a host hear that a card has lost its carrier, each in its own time.
    fn tell_severed(&mut self, nic: usize, after: Nanos) {
        for link in 0..self.links.len() {
            for side in 0..2 {
                for path in 0..self.links[link].paths.len() {
                    if self.links[link].paths[path].nics[side] == nic {
                        let item = NewsItem::Severed { path };
                        let at = self.now + after + self.random.below(50_000);
                        self.agenda.plan(at, Event::News { link, side, item });
                    }
                }
            }
        }
    }

    /// Notes since when no path of a link has worked in both directions.
    fn look_at_paths(&mut self) {
        for link in 0..self.links.len() {
            let cut = |[a, b]: [usize; 2]| self.is_cut(a, b) || self.is_cut(b, a);
            let all = self.links[link].paths.iter().all(|path| cut(path.nics));
            let now = self.now;
            let state = &mut self.links[link];
            match (all, state.all_lost_since) {
                (true, None) => {
                    state.all_lost_since = Some(now);
                    self.tally.all_rails_lost += 1;
                }
                (false, Some(since)) => {
                    state.losses.push(since..now);
                    state.all_lost_since = None;
                }
                (true, Some(_)) | (false, None) => {}
            }
        }
    }

    /// The ranks at the ends of a link.
    pub(crate) fn ends(&self, link: usize) -> [usize; 2] {
        self.links[link].ranks
    }

    /// For how long a link has been, or was, without any path that works, at a stretch and after `first`.
    pub(crate) fn longest_loss(&self, link: usize, first: Nanos) -> Nanos {
        let state = &self.links[link];
        let current = state.all_lost_since.map(|since| since..self.now);
        let losses = state.losses.iter().cloned().chain(current);
        losses.map(|loss| loss.end.saturating_sub(loss.start.max(first))).max().unwrap_or(0)
    }
}
