//! Keepers with NICs whose cables can be pulled: two network namespaces, joined by veth pairs. Needs
//! root and `ip`.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use ccl_core::ids::Rank;
use rustix::thread::{UnshareFlags, gettid, unshare_unsafe};

use super::super::events::{RailEvent, RailEventKind, Witness};
use super::super::tests::{SHAPE, announced, key, stream};
use super::super::{Endpoint, PeerLink, RailAddress, Terms};
use super::tests::{Candidate, Kept, replace, send, soon};
use super::{Directory, News};
use crate::clock;
use crate::nics::{Change, ChangeKind, Listeners, Look, Nics};
use crate::verbs::soft::socket::{self, Binding};

type Task = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which ends with it.
struct Host {
    tasks: Sender<Task>,
    thread_id: i32,
}

impl Host {
    /// None if that is not permitted.
    fn new() -> Option<Self> {
        let (tasks, orders) = channel::<Task>();
        let (born, birth) = channel();
        thread::spawn(move || {
            // SAFETY: only descriptors and memory must not be unshared under other threads' feet.
            let permitted = unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.is_ok();
            born.send(permitted.then(|| gettid().as_raw_nonzero().get())).unwrap();
            orders.into_iter().for_each(|task| task());
        });
        Some(Self { tasks, thread_id: birth.recv().unwrap()? })
    }

    /// Does something in the namespace.
    fn run<T: Send + 'static>(&self, task: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, outcome) = channel();
        self.tasks.send(Box::new(move || done.send(task()).unwrap())).unwrap();
        outcome.recv().unwrap()
    }

    fn ip(&self, arguments: &str) {
        let arguments = arguments.to_owned();
        let output = self.run(move || Command::new("ip").args(arguments.split(' ')).output());
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Writes past the harness, which hides what tests that pass print. See docs/testing.md.
fn skip() {
    let line = b"skip: cables that are pulled: network namespaces need root and `ip`\n";
    std::io::stderr().write_all(line).expect("somebody listens");
}

const RAILS: [u8; 2] = [0, 1];
const LIMIT: Duration = Duration::from_secs(60);

fn interface(host: usize, rail: u8) -> String {
    format!("{}{rail}", ["near", "far"][host])
}

fn address(host: usize, rail: u8) -> IpAddr {
    IpAddr::from([10, 77, rail, 1 + host as u8])
}

/// Two hosts with a cable for each rail.
fn hosts() -> Option<[Host; 2]> {
    let hosts = [Host::new()?, Host::new()?];
    Command::new("ip").arg("-V").output().ok()?;
    RAILS.iter().for_each(|&rail| plug(&hosts, rail));
    Some(hosts)
}

/// Makes a cable, and waits until both ends have a carrier.
fn plug(hosts: &[Host; 2], rail: u8) {
    let [near, far] = [0, 1].map(|host| interface(host, rail));
    let peer = hosts[1].thread_id;
    hosts[0].ip(&format!("link add {near} type veth peer name {far} netns {peer}"));
    for (number, host) in hosts.iter().enumerate() {
        let (name, address) = (interface(number, rail), address(number, rail));
        host.ip(&format!("addr add {address}/24 dev {name}"));
        host.ip(&format!("link set {name} up"));
    }
    for (number, host) in hosts.iter().enumerate() {
        let limit = soon();
        let is_sound = move || {
            let interface = Some(interface(number, rail));
            let nic = Binding { address: address(number, rail), interface };
            Nics::watch(vec![nic]).unwrap().changes(Look::Thorough).is_empty()
        };
        while !host.run(is_sound) {
            assert!(clock::now() < limit, "rail {rail} does not come up");
            thread::yield_now();
        }
    }
}

fn rails(host: usize) -> Vec<RailAddress> {
    let rail = |rail| RailAddress {
        name: interface(host, rail),
        address: address(host, rail),
        interface: Some(interface(host, rail)),
        capacity: 1.0,
    };
    RAILS.map(rail).into()
}

fn candidate(host: usize) -> Candidate {
    Candidate::new(u32::try_from(host).unwrap(), rails(host))
}

/// The keepers of both hosts.
fn keepers(hosts: &[Host; 2]) -> (Kept, Kept) {
    let near = hosts[0].run(|| candidate(0));
    let far = hosts[1].run(|| candidate(1));
    let (here, there) = (near.addresses(), far.addresses());
    (hosts[0].run(move || near.keep(1, &there)), hosts[1].run(move || far.keep(0, &here)))
}

/// Both ends of rail 1 say that it is severed, and why.
fn hear_severed(near: &mut Kept, far: &mut Kept, causes: [&str; 2]) {
    for (end, wanted) in [near, far].into_iter().zip(causes) {
        match end.hear() {
            News::Severed { path: 1, cause } => {
                assert!(cause.starts_with(wanted), "{cause} instead of {wanted}");
            }
            other @ (News::Severed { .. }
            | News::Answered { .. }
            | News::Confirmed { .. }
            | News::Unreachable { .. }
            | News::Connected { .. }) => panic!("{other:?} instead of {wanted}"),
        }
    }
}

#[test]
fn cables_are_pulled_and_come_back() {
    let Some(hosts) = hosts() else { return skip() };
    let (mut near, mut far) = keepers(&hosts);

    hosts[1].ip("link set far1 down");
    hear_severed(&mut near, &mut far, ["near1 has no carrier", "far1 is off"]);
    assert_eq!(far.answer(1), "Unreachable { path: 1 }");
    assert_eq!(far.answer(0), "Answered { path: 0 }");
    far.keeper.reconnect(1, 0);
    hosts[1].ip("link set far1 up");
    let (mut one, mut other) = replace(&mut near, &mut far, 1, 0);
    send(&mut one, &mut other);

    // An interface that another one replaces, with a listener that hears the old one.
    hosts[0].ip("link del near1");
    hear_severed(&mut near, &mut far, ["near1 ", "far1 "]);
    plug(&hosts, 1);
    let (mut one, mut other) = replace(&mut near, &mut far, 1, one.1);
    send(&mut other, &mut one);
}

/// Nobody has looked in between.
#[test]
fn an_interface_that_is_another_one_is_noticed_although_it_was_never_seen_gone() {
    let Some(hosts) = hosts() else { return skip() };
    let near = || Binding { address: address(0, 1), interface: Some(interface(0, 1)) };
    let (mut nics, mut listeners) = hosts[0]
        .run(move || (Nics::watch(vec![near()]).unwrap(), Listeners::open(&[near()]).unwrap()));
    let places = listeners.addresses();
    hosts[0].ip("link del near1");
    plug(&hosts, 1);
    let seen = hosts[0].run(move || {
        assert!(nics.was_told());
        [Look::Thorough, Look::Quick, Look::Thorough].map(|look| nics.changes(look))
    });
    let cause = "near1 is another interface than before".to_owned();
    let severed = Change { rail: 0, kind: ChangeKind::Severed(cause) };
    let replaced = Change { rail: 0, kind: ChangeKind::Replaced };
    assert_eq!(seen, [vec![severed], vec![replaced], vec![]]);

    let far = || Binding { address: address(1, 1), interface: Some(interface(1, 1)) };
    let place = places[0];
    let dial = move || socket::dial(&far(), place, Duration::from_millis(100)).is_ok();
    assert!(!hosts[1].run(dial), "a listener hears another interface");
    let listeners = hosts[0].run(move || {
        listeners.follow();
        listeners
    });
    assert!(hosts[1].run(dial));
    assert_eq!(listeners.addresses(), places);
}

#[test]
fn an_address_that_is_taken_away_severs_a_rail() {
    let Some(hosts) = hosts() else { return skip() };
    let (mut near, mut far) = keepers(&hosts);
    hosts[1].ip("addr del 10.77.1.2/24 dev far1");
    match far.hear() {
        News::Severed { path: 1, cause } => {
            assert_eq!(cause, "this host has lost the address 10.77.1.2");
        }
        other @ (News::Severed { .. }
        | News::Answered { .. }
        | News::Confirmed { .. }
        | News::Unreachable { .. }
        | News::Connected { .. }) => panic!("{other:?}"),
    }
    hosts[1].ip("addr add 10.77.1.2/24 dev far1");
    let (mut one, mut other) = replace(&mut near, &mut far, 1, 0);
    send(&mut one, &mut other);
}

/// Gives the NIC of rail 1 another address. Rail 0 is used in between.
fn readdress(hosts: &[Host; 2], host: usize, (near, far): (&mut Kept, &mut Kept)) -> IpAddr {
    let (name, old) = (interface(host, 1), address(host, 1));
    hosts[host].ip(&format!("addr del {old}/24 dev {name}"));
    let end = if host == 0 { &mut *near } else { &mut *far };
    match end.hear() {
        News::Severed { path: 1, cause } => {
            assert_eq!(cause, format!("this host has lost the address {old}"));
        }
        other @ (News::Severed { .. }
        | News::Answered { .. }
        | News::Confirmed { .. }
        | News::Unreachable { .. }
        | News::Connected { .. }) => panic!("{other:?}"),
    }
    // From now on the end that dials tries in vain.
    far.keeper.reconnect(1, 0);
    let (mut one, mut other) = replace(near, far, 0, 0);
    send(&mut one, &mut other);
    let new = IpAddr::from([10, 77, 1, 101 + host as u8]);
    hosts[host].ip(&format!("addr add {new}/24 dev {name}"));
    new
}

/// As a lease that is not given again. What the interface had all along besides is not taken.
#[test]
fn a_nic_comes_back_under_another_address() {
    let Some(hosts) = hosts() else { return skip() };
    hosts[1].ip("addr add 192.168.77.2/24 dev far1");
    let (mut near, mut far) = keepers(&hosts);

    let new = readdress(&hosts, 1, (&mut near, &mut far));
    let (mut one, mut other) = replace(&mut near, &mut far, 1, 0);
    send(&mut one, &mut other);
    let moved = far.moves.recv_timeout(LIMIT).unwrap();
    assert_eq!((moved.0, moved.1.ip()), (1, new));
    near.directory.moved(Rank(1), 1, moved.1);
    assert_eq!(near.answer(1), "Answered { path: 1 }");
    assert_eq!(far.answer(1), "Answered { path: 1 }");
}

#[test]
fn a_peer_is_dialled_at_its_new_address() {
    let Some(hosts) = hosts() else { return skip() };
    let (mut near, mut far) = keepers(&hosts);

    let new = readdress(&hosts, 0, (&mut near, &mut far));
    let moved = near.moves.recv_timeout(LIMIT).unwrap();
    assert_eq!((moved.0, moved.1.ip()), (1, new));
    far.directory.moved(Rank(0), 1, moved.1);
    let (mut one, mut other) = replace(&mut near, &mut far, 1, 0);
    send(&mut one, &mut other);
    assert_eq!(near.answer(1), "Answered { path: 1 }");
    assert_eq!(far.answer(1), "Answered { path: 1 }");
}

/// Tells the peer where a rail of this end is, as a control plane would, and counts what comes back.
#[derive(Debug)]
struct Courier {
    me: Rank,
    peer: Directory,
    returned: AtomicU32,
}

impl Witness for Courier {
    fn witness(&self, event: RailEvent) {
        let is_return = event.rail == 1 && event.kind == RailEventKind::Returned;
        self.returned.fetch_add(u32::from(is_return), Ordering::Relaxed);
    }

    fn moved(&self, rail: usize, address: SocketAddr) {
        self.peer.moved(self.me, rail, address);
    }
}

/// Links between two hosts, and who hears what happens to them.
fn links(hosts: &[Host; 2]) -> [(PeerLink, Arc<Courier>); 2] {
    let endpoints =
        [0, 1].map(|host| hosts[host].run(move || Endpoint::bind(rails(host), key()).unwrap()));
    let directories = [endpoints[1].directory(), endpoints[0].directory()];
    let announced = [0, 1].map(|rank| announced(rank, &endpoints[rank as usize]));
    let mut ends = endpoints.into_iter().zip(directories).enumerate();
    thread::scope(|scope| {
        let threads = [0, 1].map(|_| {
            let (host, (endpoint, peer)) = ends.next().unwrap();
            let me = Rank(host as u32);
            let courier = Arc::new(Courier { me, peer, returned: AtomicU32::new(0) });
            let terms = Terms { witness: Arc::clone(&courier) as _, ..Terms::default() };
            let peers = [announced[1 - host].clone()];
            let connect = move || endpoint.terms(terms).connect(me, 77, &peers, SHAPE, soon());
            scope.spawn(move || (hosts[host].run(connect).unwrap().remove(0), courier))
        });
        threads.map(|thread| thread.join().unwrap())
    })
}

/// Tiles flow all the time, and in the end over the rail that has moved, whichever end of it did.
#[test]
fn links_use_a_rail_that_has_moved() {
    let Some(hosts) = hosts() else { return skip() };
    let [((_, mut near), near_courier), ((_, mut far), far_courier)] = links(&hosts);
    for (round, host) in [(1, 1), (2, 0)] {
        let (name, old) = (interface(host, 1), address(host, 1));
        stream(&mut *near, &mut *far, 20, 1000);
        hosts[host].ip(&format!("addr del {old}/24 dev {name}"));
        stream(&mut *near, &mut *far, 20, 1000);
        stream(&mut *far, &mut *near, 20, 1000);
        hosts[host].ip(&format!("addr add 10.77.1.{}/24 dev {name}", 101 + host));
        let limit = soon();
        while [&near_courier, &far_courier]
            .iter()
            .any(|courier| courier.returned.load(Ordering::Relaxed) < round)
        {
            assert!(clock::now() < limit, "rail 1 does not come back: {near:?} / {far:?}");
            stream(&mut *near, &mut *far, 5, 1000);
            stream(&mut *far, &mut *near, 5, 1000);
        }
    }
}
