//! What a network consists of.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_uint};
use std::sync::Arc;
use std::time::Instant;

use super::super::abi;
use super::super::context::Gid;
use super::super::work::What;
use super::bell::Bell;

/// Targets have numbers of their own.
const FIRST_TARGET: u32 = 0x80_0000;

/// Devices, and all that was made of them.
#[derive(Debug)]
pub(super) struct World {
    pub(super) ports: Vec<Port>,
    pub(super) makes_targets: bool,
    /// Entries of ledgers that are posted have too large a length.
    pub(super) forges: bool,
    pub(super) has_atomics: bool,
    /// `ibv_fork_init` was called.
    pub(super) may_fork: bool,
    pub(super) is_held: bool,
    /// Requests that are executed while the next target is being destroyed.
    pub(super) late: usize,
    pub(super) contexts: BTreeMap<usize, Events>,
    pub(super) channels: BTreeMap<usize, Channel>,
    /// Context and device of each domain.
    pub(super) domains: BTreeMap<usize, (usize, usize)>,
    pub(super) regions: BTreeMap<u32, Region>,
    pub(super) queues: BTreeMap<usize, Completions>,
    pub(super) receives: BTreeMap<usize, Receives>,
    pub(super) pairs: BTreeMap<usize, Pair>,
    /// Address of whoever is reached by a handle.
    pub(super) handles: BTreeMap<usize, Gid>,
    next: usize,
    /// Whose turn it is.
    pub(super) turn: usize,
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) gid: Gid,
    /// A further address.
    pub(super) second: Option<Gid>,
    /// Of packets: as the enumeration of the header.
    pub(super) mtu: c_uint,
    pub(super) is_up: bool,
    pub(super) is_cut: bool,
    /// The device was removed.
    pub(super) is_gone: bool,
}

/// What announces completions.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) device: usize,
    pub(super) bell: Arc<Bell>,
}

/// What happened to the device of a context.
#[derive(Debug)]
pub(super) struct Events {
    pub(super) device: usize,
    pub(super) bell: Bell,
    pub(super) waiting: VecDeque<(Subject, c_uint)>,
}

/// What an event is about: a port, or a queue pair by its address in this process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Subject {
    Port,
    Pair(usize),
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) domain: usize,
    pub(super) start: usize,
    pub(super) bytes: u64,
    pub(super) address: u64,
    pub(super) access: c_uint,
}

/// What has completed.
#[derive(Debug)]
pub(super) struct Completions {
    pub(super) device: usize,
    pub(super) capacity: usize,
    pub(super) bell: Option<Arc<Bell>>,
    pub(super) is_armed: bool,
    pub(super) entries: VecDeque<Entry>,
}

/// A completion, and which place in a ring it frees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) completion: abi::Completion,
    pub(super) pair: usize,
    pub(super) frees: Place,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// Of a request, and all before it.
    Sent(u64),
    /// Of a receive of this queue.
    Received(usize),
}

/// Receives: those of a queue pair, or shared.
#[derive(Debug)]
pub(super) struct Receives {
    pub(super) capacity: usize,
    /// Posted, and not polled.
    pub(super) used: usize,
    pub(super) waiting: VecDeque<Receive>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Receive {
    pub(super) id: u64,
    pub(super) target: Option<Part>,
}

/// Part of a region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reliable,
    /// Sends to dynamic targets.
    Initiator,
    /// Is sent to by whoever knows its key.
    Target(u64),
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) kind: Kind,
    pub(super) device: usize,
    pub(super) context: usize,
    pub(super) domain: usize,
    pub(super) number: u32,
    /// Where it lies in this process.
    pub(super) address: usize,
    pub(super) state: c_uint,
    pub(super) sent: usize,
    pub(super) received: usize,
    pub(super) receives: usize,
    pub(super) capacity: usize,
    pub(super) inline_bytes: usize,
    /// Requests posted, and those whose places are free again.
    pub(super) posted: u64,
    pub(super) freed: u64,
    pub(super) works: VecDeque<Work>,
    pub(super) access: c_uint,
    /// From where it sends.
    pub(super) own: Gid,
    pub(super) peer: Option<(Gid, u32)>,
    pub(super) mtu: c_uint,
    pub(super) first_sent: u32,
    pub(super) first_received: u32,
    pub(super) patience_ns: u64,
    pub(super) unanswered_since: Option<Instant>,
    /// Small messages lie in completions.
    pub(super) scatters: bool,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) number: u64,
    pub(super) id: u64,
    pub(super) is_signalled: bool,
    pub(super) what: What,
    pub(super) data: Data,
    pub(super) remote: (u32, u64),
    /// Of a dynamic one: address, number and key of the target.
    pub(super) target: Option<(Gid, u32, u64)>,
}

/// What a request carries or fills.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Nothing,
    Inline(Vec<u8>),
    Part(Part),
}

impl Port {
    pub(super) fn new(gid: Gid) -> Self {
        Self { gid, second: None, mtu: 3, is_up: true, is_cut: false, is_gone: false }
    }
}

impl Port {
    /// The addresses in its table, from the first row that is in use on.
    pub(super) fn rows(&self) -> impl Iterator<Item = Gid> {
        [self.gid].into_iter().chain(self.second)
    }
}

impl World {
    pub(super) fn new(ports: Vec<Port>) -> Self {
        Self {
            ports,
            late: 0,
            makes_targets: true,
            forges: false,
            has_atomics: true,
            may_fork: false,
            is_held: false,
            contexts: BTreeMap::new(),
            channels: BTreeMap::new(),
            domains: BTreeMap::new(),
            regions: BTreeMap::new(),
            queues: BTreeMap::new(),
            receives: BTreeMap::new(),
            pairs: BTreeMap::new(),
            handles: BTreeMap::new(),
            next: 100,
            turn: 0,
        }
    }

    /// A number that nothing else has or had.
    pub(super) fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    pub(super) fn count(&self) -> [usize; 3] {
        let mut found = [0; 3];
        for pair in self.pairs.values() {
            found[match pair.kind {
                Kind::Reliable => 0,
                Kind::Initiator => 1,
                Kind::Target(_) => 2,
            }] += 1;
        }
        found
    }

    /// The lowest number that no target has.
    pub(super) fn target_number(&self) -> u32 {
        let is_taken = |number: &u32| self.pairs.values().any(|pair| pair.number == *number);
        (FIRST_TARGET..).find(|number| !is_taken(number)).expect("few targets")
    }

    pub(super) fn set_link(&mut self, device: usize, is_up: bool) {
        self.ports[device].is_up = is_up;
        let what = if is_up { abi::IBV_EVENT_PORT_ACTIVE } else { abi::IBV_EVENT_PORT_ERR };
        self.tell_all(device, what);
    }

    pub(super) fn set_address(&mut self, device: usize, gid: Gid) {
        self.ports[device].gid = gid;
        self.tell_all(device, abi::IBV_EVENT_GID_CHANGE);
    }

    /// It was removed: everybody is told, and nothing comes of it any more.
    pub(super) fn remove_device(&mut self, device: usize) {
        (self.ports[device].is_up, self.ports[device].is_gone) = (false, true);
        self.tell_all(device, abi::IBV_EVENT_DEVICE_FATAL);
        let contexts = self.contexts.values().filter(|events| events.device == device);
        contexts.for_each(|events| events.bell.hang_up());
        let channels = self.channels.values().filter(|channel| channel.device == device);
        channels.for_each(|channel| channel.bell.hang_up());
    }

    /// What the kernel answers to everything about a device that was removed.
    pub(super) fn refusal(&self, device: usize) -> Option<c_int> {
        self.ports[device].is_gone.then_some(libc::EIO)
    }

    fn tell_all(&mut self, device: usize, what: c_uint) {
        for events in self.contexts.values_mut().filter(|events| events.device == device) {
            events.waiting.push_back((Subject::Port, what));
            events.bell.ring();
        }
    }

    pub(super) fn tell(&mut self, context: usize, subject: Subject, what: c_uint) {
        let Some(events) = self.contexts.get_mut(&context) else { return };
        events.waiting.push_back((subject, what));
        events.bell.ring();
    }

    /// Adds a completion.
    pub(super) fn complete(&mut self, queue: usize, entry: Entry) {
        let queue = self.queues.get_mut(&queue).expect("the queue of a queue pair");
        assert!(queue.entries.len() < queue.capacity, "a completion queue is overrun");
        queue.entries.push_back(entry);
        if std::mem::take(&mut queue.is_armed)
            && let Some(bell) = &queue.bell
        {
            bell.ring();
        }
    }

    /// Hands out completions, and frees what they say.
    pub(super) fn poll(&mut self, queue: usize, count: usize) -> Vec<abi::Completion> {
        let queue = self.queues.get_mut(&queue).expect("a queue that exists");
        let count = count.min(queue.entries.len());
        let entries: Vec<_> = queue.entries.drain(..count).collect();
        for entry in &entries {
            match entry.frees {
                Place::Sent(number) => {
                    if let Some(pair) = self.pairs.get_mut(&entry.pair) {
                        pair.freed = pair.freed.max(number + 1);
                    }
                }
                Place::Received(receives) => {
                    if let Some(receives) = self.receives.get_mut(&receives) {
                        receives.used -= 1;
                    }
                }
            }
        }
        entries.into_iter().map(|entry| entry.completion).collect()
    }

    /// A queue pair is gone, and with it what of its completions nobody has polled.
    pub(super) fn remove(&mut self, id: usize) {
        if matches!(self.pair(id).kind, Kind::Target(_)) {
            let (late, is_held) = (std::mem::take(&mut self.late), self.is_held);
            self.is_held = false;
            self.progress(late);
            self.is_held = is_held;
        }
        let Some(pair) = self.pairs.remove(&id) else { return };
        for queue in [pair.sent, pair.received] {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.entries.retain(|entry| entry.pair != id);
            }
        }
        if pair.kind == Kind::Reliable {
            self.receives.remove(&pair.receives);
        }
    }

    /// Where part of a region lies in this process, if it may be used so.
    pub(super) fn find(&self, domain: usize, part: Part, access: c_uint) -> Option<*mut u8> {
        let region = self.regions.get(&part.key)?;
        let offset = part.address.checked_sub(region.address)?;
        let end = offset.checked_add(part.bytes)?;
        let is_allowed =
            region.domain == domain && region.access & access == access && end <= region.bytes;
        let start = std::ptr::with_exposed_provenance_mut::<u8>(region.start);
        is_allowed.then(|| start.wrapping_add(usize::try_from(offset).expect("inside")))
    }
}
