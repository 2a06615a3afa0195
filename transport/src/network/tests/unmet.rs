//! Links that begin without some of their rails.

use std::io::Read;

use super::*;

/// Two ranks with three rails, that are told of each other; where rail 1 of the first was announced nobody listens.
fn with_a_broken_rail() -> ([Endpoint; 2], [PeerAddresses; 2]) {
    let mut endpoints = [0, 1].map(|rank| endpoint(rank, &[1.0; 3]));
    let peers = [announced(1, &endpoints[1]), announced(0, &endpoints[0])];
    let binding = Binding { address: endpoints[0].rails[1].address, interface: None };
    endpoints[0].listeners[1] = socket::listen(&binding).unwrap();
    (endpoints, peers)
}

/// Both ranks connect at the same time.
fn met(endpoints: [Endpoint; 2], peers: &[PeerAddresses; 2], limit: Duration) -> [Outcome; 2] {
    let deadline = clock::now() + limit;
    let connect = |(rank, endpoint): (u32, Endpoint)| {
        let peer = peers[rank as usize].clone();
        thread::spawn(move || endpoint.connect(Rank(rank), 77, &[peer], SHAPE, deadline))
    };
    let [near, far] = endpoints;
    [(0, near), (1, far)].map(connect).map(|thread| thread.join().unwrap())
}

/// Sends until rail 1 of the second carries something.
fn until_used(traffic: &[RailTraffic], near: &mut dyn Link, far: &mut dyn Link) {
    let deadline = soon();
    while traffic[1].tiles() == 0 {
        assert!(clock::now() < deadline, "it has no connection");
        stream(far, near, 20, 1000);
        stream(near, far, 20, 1000);
    }
}

fn evidence_of(event: &RailEvent) -> Option<Evidence> {
    let RailEventKind::GivenUp { evidence, .. } = event.kind else { return None };
    Some(evidence)
}

fn one(outcome: Outcome) -> Box<dyn Link> {
    outcome.unwrap().pop().unwrap().1
}

#[test]
fn a_rail_that_is_broken_when_ranks_meet_is_used_when_it_is_whole() {
    let (endpoints, peers) = with_a_broken_rail();
    let records = [0, 1].map(|_| Arc::new(Record::default()));
    let mut of = records.iter();
    let endpoints = endpoints.map(|endpoint| {
        let witness = Arc::clone(of.next().unwrap());
        endpoint.terms(Terms { witness, ..Terms::default() })
    });
    let whole = endpoints[0].listeners[1].local_addr().unwrap();
    let (directory, traffic) = (endpoints[1].directory(), endpoints[1].traffic());
    let [mut near, mut far] = met(endpoints, &peers, LIMIT).map(one);
    for record in &records {
        let events = record.0.lock().unwrap();
        let lost =
            events.iter().filter(|event| matches!(event.kind, RailEventKind::GivenUp { .. }));
        assert_eq!(lost.map(|event| event.rail).collect::<Vec<_>>(), [1], "{events:?}");
    }
    stream(&mut *near, &mut *far, 200, 1000);
    stream(&mut *far, &mut *near, 200, 1000);
    assert_eq!(traffic[1].tiles(), 0);
    directory.moved(Rank(0), 1, whole);
    until_used(&traffic, &mut *near, &mut *far);
}

/// By both ends, of which only one has the NIC.
#[test]
fn a_rail_that_is_known_to_be_broken_is_used_when_it_is_whole() {
    let [near, far] = [0, 1].map(|rank| endpoint(rank, &[1.0; 3]));
    let near = near.without(vec![false, true, false]);
    let peers = [announced(1, &far), announced(0, &near)];
    let plans = [near.plan(Rank(0), &peers[0]).unwrap(), far.plan(Rank(1), &peers[1]).unwrap()];
    for plan in plans {
        let broken = plan.connections.iter().map(|contact| contact.is_broken);
        assert_eq!(broken.collect::<Vec<_>>(), [false, true, false]);
    }
    let records = [0, 1].map(|_| Arc::new(Record::default()));
    let [near, far] = [(near, 0), (far, 1)].map(|(endpoint, rank)| {
        let witness: Arc<Record> = Arc::clone(&records[rank]);
        endpoint.terms(Terms { witness, ..Terms::default() })
    });
    let traffic = far.traffic();
    let [mut near, mut far] = met([near, far], &peers, LIMIT).map(one);
    for (record, evidence) in records.iter().zip([Evidence::Carrier, Evidence::PeerCarrier]) {
        let events = record.0.lock().unwrap();
        assert_eq!(events.iter().find_map(evidence_of), Some(evidence));
    }
    until_used(&traffic, &mut *near, &mut *far);
}

#[test]
fn a_rail_is_tried_although_it_is_broken_if_there_is_no_other() {
    let [near, far] = [0, 1].map(|rank| endpoint(rank, &[1.0; 2]));
    let (near, far) = (near.without(vec![false, true]), far.without(vec![true, false]));
    let plan = near.plan(Rank(0), &announced(1, &far)).unwrap();
    assert!(plan.connections.iter().all(|contact| !contact.is_broken));
    let (mut near, mut far) = pair(near, far);
    stream(&mut *near, &mut *far, 20, 1000);
}

/// It falls silent when the ranks have met over it.
#[test]
fn a_rail_that_says_nothing_after_the_meeting_is_not_waited_for() {
    let near = endpoint(0, &[1.0; 3]).instrument(breaking(&[None, Some(0), None], true));
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0; 3]));
    stream(&mut *near, &mut *far, 200, 1000);
    stream(&mut *far, &mut *near, 200, 1000);
}

/// A rail over which a peer is reached at `to`, and that dies in the moment in which the peer proves the key: the peer does not
/// learn that nothing has arrived.
fn dying_of_the_proof(to: SocketAddr) -> (SocketAddr, JoinHandle<impl Sized>) {
    const PREAMBLE_BYTES: usize = 48;
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap();
    let carry = move || {
        let (mut near, mut far) = (door.accept().unwrap().0, TcpStream::connect(to).unwrap());
        let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let there = thread::spawn(move || std::io::copy(&mut from, &mut to).unwrap());
        let mut preamble = [0; PREAMBLE_BYTES];
        far.read_exact(&mut preamble).unwrap();
        near.write_all(&preamble).unwrap();
        there.join().unwrap();
        // All stay open.
        (door, near, far)
    };
    (address, thread::spawn(carry))
}

/// One end begins with this rail alone; the other one comes over the others, and only to find out that nobody meets any more.
#[test]
fn ranks_of_which_only_one_has_met_the_other_begin() {
    let endpoints = [0, 1].map(|rank| endpoint(rank, &[1.0; 3]));
    let mut peers = [announced(1, &endpoints[1]), announced(0, &endpoints[0])];
    let (address, dying) = dying_of_the_proof(peers[1].addresses[0]);
    peers[1].addresses[0] = address;
    let traffic = endpoints.each_ref().map(Endpoint::traffic);
    let [mut near, mut far] = met(endpoints, &peers, LIMIT).map(one);
    until_used(&traffic[1], &mut *near, &mut *far);
    assert!(traffic.iter().all(|rails| rails[0].tiles() == 0), "it is dead");
    drop((near, far));
    dying.join().unwrap();
}

#[test]
fn without_repair_all_rails_are_needed_when_ranks_meet() {
    let (endpoints, peers) = with_a_broken_rail();
    let terms = Terms { enabled: false, ..Terms::default() };
    let endpoints = endpoints.map(|endpoint| endpoint.terms(terms.clone()));
    for (outcome, peer) in met(endpoints, &peers, Duration::from_secs(3)).into_iter().zip([1, 0]) {
        let error = outcome.unwrap_err();
        assert!(error.to_string().contains(&format!("rank {peer} rails [1]")), "{error}");
    }
}
