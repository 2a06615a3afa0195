//! Queue pairs between two hosts whose NICs fail as NICs do: the end that has such a NIC learns it from its
//! kernel, and tells the other one. Silence would not be found out before these tests have failed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod support;

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl::vqp::{
    Access, Completion, Depth, Domain, DomainConfig, Error, Evidence, Key, Limits, Listener,
    Meeting, MemoryRegion, Operation, Pool, QueuePair, ReceiveRequest, Side, Status, Terms, WorkId,
    WorkRequest,
};
use ccl_tests::testbed::bed::Bed;
use ccl_tests::testbed::failure::Failure;
use ccl_tests::testbed::fault::{Action, Fault, Turn};
use ccl_tests::testbed::shape::{Cable, Rate, Shape, management_address, rail_address};

use support::bed::until;
use support::skip;

/// Meetings, and what else should take milliseconds.
const LIMIT: Duration = Duration::from_secs(60);
/// Longer than any test: what is found out before is found out in another way.
const SILENCE: Duration = Duration::from_secs(3600);
const NAP: Duration = Duration::from_millis(50);
const MESSAGE_BYTES: usize = 8;
/// On their way at a time.
const MESSAGES: usize = 16;
/// So many messages show that they flow.
const SOME: u64 = 100;
/// The NIC that fails.
const NIC: &str = "rail0";

/// Ends that poll need both processors.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two hosts with two rails, or nothing and a report.
fn bed() -> Option<Bed> {
    if let Err(cause) = Command::new("ip").arg("-V").output() {
        skip(&format!("NICs that fail: `ip`: {cause}"));
        return None;
    }
    match Bed::build(Shape { hosts: 2, rails: 2, rate: Rate::Unlimited }) {
        Ok(bed) => Some(bed),
        Err(failure @ Failure::Unavailable { .. }) => {
            skip(&format!("NICs that fail: {failure}"));
            None
        }
        Err(failure) => panic!("{failure}"),
    }
}

/// How a NIC fails, and works again.
#[derive(Clone, Copy, Debug)]
enum Failing {
    /// At the other end of its cable.
    Carrier,
    Off,
    Address,
    Gone,
}

impl Failing {
    fn cut(self, bed: &mut Bed, host: usize) {
        match self {
            Self::Carrier => carrier(bed, host, Turn::Cut),
            Self::Off => ip(bed, host, &format!("link set {NIC} down")),
            Self::Address => ip(bed, host, &format!("addr del {}/24 dev {NIC}", address(host))),
            Self::Gone => ip(bed, host, &format!("link del {NIC}")),
        }
    }

    /// Of what can be healed.
    fn heal(self, bed: &mut Bed, host: usize) {
        match self {
            Self::Carrier => carrier(bed, host, Turn::Heal),
            Self::Off => ip(bed, host, &format!("link set {NIC} up")),
            Self::Address => ip(bed, host, &format!("addr add {}/24 dev {NIC}", address(host))),
            Self::Gone => panic!("what is gone stays so"),
        }
    }

    /// What the queue pair says of it. What goes is off first.
    fn words(self, host: usize) -> Vec<String> {
        match self {
            Self::Carrier => vec![format!("{NIC} has no carrier")],
            Self::Off => vec![format!("{NIC} is off")],
            Self::Address => vec![format!("this host has lost the address {}", address(host))],
            Self::Gone => vec![format!("{NIC} is off"), format!("{NIC} does not exist any more")],
        }
    }
}

fn address(host: usize) -> String {
    rail_address(Cable { host, rail: 0 }).to_string()
}

fn carrier(bed: &mut Bed, host: usize, turn: Turn) {
    bed.apply(Action { turn, fault: Fault::Carrier, cable: Cable { host, rail: 0 } }).unwrap();
}

fn ip(bed: &Bed, host: usize, arguments: &str) {
    let run = || Command::new("ip").args(arguments.split(' ')).output();
    let output = bed.on_host(host, run).unwrap().unwrap();
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What an end shows while it works.
#[derive(Debug, Default)]
struct Shown {
    rail: AtomicUsize,
    /// Rails that it could use, of its own or of its pool.
    usable: AtomicUsize,
    /// Messages sent, or received.
    messages: AtomicU64,
    fault: Mutex<Option<String>>,
}

/// Both ends, each in a thread of its host.
struct Ends {
    shown: [Arc<Shown>; 2],
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Ends {
    /// Messages flow from host 0, which dials, to host 1. Between polls their threads sleep, or do not.
    fn begin(bed: &Bed, evidence: Option<Evidence>, sleeps: bool, is_pooled: bool) -> Self {
        let key = Key::from_passphrase("NICs that fail");
        let place = format!("{}:0", management_address(1));
        let listener = bed.on_host(1, || Listener::bind(&place, key.clone())).unwrap().unwrap();
        let place = listener.address().unwrap().to_string();
        let is_over = Arc::<AtomicBool>::default();
        let shown = [0; 2].map(|_| Arc::<Shown>::default());
        let end = |host: usize| End {
            evidence,
            sleeps,
            is_pooled,
            shown: Arc::clone(&shown[host]),
            is_over: Arc::clone(&is_over),
        };
        let (near, far) = (end(0), end(1));
        let near = move || near.live(Meeting::connect(&place, &key, LIMIT).unwrap());
        let far = move || far.live(listener.accept(LIMIT).unwrap());
        let far = bed.on_host(1, || std::thread::spawn(far)).unwrap();
        let near = bed.on_host(0, || std::thread::spawn(near)).unwrap();
        Self { shown, is_over, threads: vec![near, far] }
    }

    /// Waits until both use this rail, and messages flow.
    fn flow_on(&self, rail: usize) {
        let before = self.shown[1].messages.load(Ordering::Relaxed);
        until(&format!("traffic on rail {rail}"), || {
            self.check();
            let is_there = |shown: &Arc<Shown>| shown.rail.load(Ordering::Relaxed) == rail;
            let has_moved = self.shown[1].messages.load(Ordering::Relaxed) >= before + SOME;
            (self.shown.iter().all(is_there) && has_moved).then_some(())
        });
    }

    /// Waits until both have a backup besides the rail in use.
    fn have_backups(&self) {
        until("the backup", || {
            self.check();
            let mut usable = self.shown.iter().map(|end| end.usable.load(Ordering::Relaxed));
            usable.all(|usable| usable >= 2).then_some(())
        });
    }

    /// A thread that has panicked has said why.
    fn check(&self) {
        assert!(!self.threads.iter().any(JoinHandle::is_finished), "an end is over: {self:?}");
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

impl std::fmt::Debug for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.shown).finish()
    }
}

/// One end.
struct End {
    evidence: Option<Evidence>,
    sleeps: bool,
    is_pooled: bool,
    shown: Arc<Shown>,
    is_over: Arc<AtomicBool>,
}

impl End {
    fn live(&self, mut meeting: Meeting) {
        let key = Key::from_passphrase("NICs that fail");
        let config = DomainConfig { devices: "rail0,rail1".into(), ..DomainConfig::default() };
        let domain = Domain::open(&config, &key).unwrap();
        let region = domain.allocate(MESSAGES * MESSAGE_BYTES, Access::ALL).unwrap();
        let patience_ns = u64::try_from(LIMIT.as_nanos()).unwrap();
        let limits = Limits {
            settle_ns: 50_000_000,
            retry_ns: 10_000_000,
            patience_ns,
            ..Limits::default()
        };
        let depth = Depth { sends: MESSAGES, receives: MESSAGES };
        let terms = Terms { evidence: self.evidence, depth, silence: SILENCE, limits };
        let mut pair = domain.queue_pair(&terms).unwrap();
        let sends = meeting.side() == Side::Connecting;
        let free = if sends { 0 } else { MESSAGES as u64 };
        (0..free).for_each(|number| receive(&mut pair, &region, number));
        let pool = self.is_pooled.then(|| domain.pool(&mut meeting, 1, LIMIT).unwrap());
        match &pool {
            Some(pool) => pair.connect_pooled(&mut meeting, pool, LIMIT).unwrap(),
            None => pair.connect(&mut meeting, LIMIT).unwrap(),
        }
        let mut work = Work { pair, region, posted: free, done: 0, sends };
        while !self.is_over.load(Ordering::Relaxed) {
            work.turn(self.sleeps);
            self.show(&work, pool.as_ref());
            if work.pair.is_over() {
                return;
            }
        }
    }

    fn show(&self, Work { pair, done, .. }: &Work, pool: Option<&Pool>) {
        let spares = pool.map_or(0, Pool::spares);
        self.shown.rail.store(pair.active_rail(), Ordering::Relaxed);
        self.shown.usable.store(pair.connected_rails() + spares, Ordering::Relaxed);
        self.shown.messages.store(*done, Ordering::Relaxed);
        if let Some(fault) = pair.fault() {
            *self.shown.fault.lock().unwrap() = Some(fault);
        }
    }
}

/// What one end does. Messages are numbered, and come in order, each once.
struct Work {
    pair: QueuePair,
    region: MemoryRegion,
    posted: u64,
    done: u64,
    sends: bool,
}

impl Work {
    fn turn(&mut self, sleeps: bool) {
        while self.sends && self.posted < self.done + MESSAGES as u64 {
            send(&mut self.pair, &self.region, self.posted);
            self.posted += 1;
        }
        let mut completions = Vec::new();
        if sleeps {
            match self.pair.wait(&mut completions, NAP) {
                Ok(()) | Err(Error::Deadline { .. } | Error::PeerLost(_)) => {}
                Err(other) => panic!("{other}"),
            }
        } else {
            self.pair.poll(&mut completions);
        }
        for completion in completions {
            self.completed(&completion);
        }
    }

    fn completed(&mut self, completion: &Completion) {
        if completion.status != Status::Success {
            return assert!(self.pair.fault().is_some(), "{completion:?}");
        }
        assert_eq!(completion.id, WorkId(self.done));
        if !self.sends {
            assert_eq!(self.region.memory().load(place(self.done)), self.done);
            receive(&mut self.pair, &self.region, self.posted);
            self.posted += 1;
        }
        self.done += 1;
    }
}

/// Where a message lies.
fn place(number: u64) -> usize {
    (number as usize % MESSAGES) * MESSAGE_BYTES
}

fn send(pair: &mut QueuePair, region: &MemoryRegion, number: u64) {
    region.memory().store(place(number), number);
    let source = region.segment(place(number), MESSAGE_BYTES);
    let (id, operation) = (WorkId(number), Operation::Send { source });
    pair.post_send(WorkRequest { id, operation, signalled: true }).unwrap();
}

fn receive(pair: &mut QueuePair, region: &MemoryRegion, number: u64) {
    let target = Some(region.segment(place(number), MESSAGE_BYTES));
    pair.post_receive(ReceiveRequest { id: WorkId(number), target }).unwrap();
}

/// Whichever end has the NIC, and whatever the NIC has lost.
fn every_loss_is_survived(sleeps: bool, is_pooled: bool) {
    let _turn = turn();
    let Some(mut bed) = bed() else { return };
    let ends = Ends::begin(&bed, Some(Evidence::Handshake), sleeps, is_pooled);
    for host in [0, 1] {
        for failing in [Failing::Carrier, Failing::Off, Failing::Address] {
            ends.flow_on(0);
            ends.have_backups();
            failing.cut(&mut bed, host);
            ends.flow_on(1);
            failing.heal(&mut bed, host);
        }
    }
    ends.flow_on(0);
    ends.have_backups();
    Failing::Gone.cut(&mut bed, 0);
    ends.flow_on(1);
    ends.end();
}

#[test]
fn ends_that_poll_survive_the_loss_of_a_nic_at_once() {
    every_loss_is_survived(false, false);
}

#[test]
fn ends_that_sleep_survive_the_loss_of_a_nic_at_once() {
    every_loss_is_survived(true, false);
}

/// An end that follows has nothing but a line of the pool to say that its rail is lost.
#[test]
fn ends_with_a_pool_survive_the_loss_of_a_nic_at_once() {
    every_loss_is_survived(true, true);
}

/// Whoever waits for connections at a NIC has to hear the one that takes its place. Backups of a queue pair are its
/// own, or those of a pool.
fn a_nic_that_is_put_in_again_is_used_again(is_pooled: bool) {
    let _turn = turn();
    let Some(mut bed) = bed() else { return };
    let ends = Ends::begin(&bed, Some(Evidence::Handshake), is_pooled, is_pooled);
    for host in [1, 0] {
        for rail in [0, 1] {
            ends.flow_on(0);
            ends.have_backups();
            ip(&bed, host, &format!("link del rail{rail}"));
            ends.flow_on(1 - rail);
            bed.insert(Cable { host, rail }).unwrap();
            if rail == 1 {
                carrier(&mut bed, 1 - host, Turn::Cut);
                ends.flow_on(1);
                carrier(&mut bed, 1 - host, Turn::Heal);
            }
            ends.flow_on(0);
        }
    }
    ends.have_backups();
    ends.end();
}

#[test]
fn a_nic_that_is_put_in_again_is_used_again_with_own_backups() {
    a_nic_that_is_put_in_again_is_used_again(false);
}

#[test]
fn a_nic_that_is_put_in_again_is_used_again_with_a_pool() {
    a_nic_that_is_put_in_again_is_used_again(true);
}

#[test]
fn a_plain_queue_pair_ends_and_says_what_its_nic_has_lost() {
    let _turn = turn();
    for failing in [Failing::Carrier, Failing::Off, Failing::Address, Failing::Gone] {
        for host in [0, 1] {
            let Some(mut bed) = bed() else { return };
            let ends = Ends::begin(&bed, None, host == 1, false);
            ends.flow_on(0);
            failing.cut(&mut bed, host);
            let fault = until("the end", || ends.shown[host].fault.lock().unwrap().clone());
            let is_named = failing.words(host).iter().any(|words| fault.contains(words));
            assert!(is_named, "{failing:?}: {fault}");
            ends.end();
        }
    }
}
