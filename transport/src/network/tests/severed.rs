//! Links of which no rail is left.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;

const PATIENCE: Duration = Duration::from_secs(1);

fn terms() -> Terms {
    Terms { patience: PATIENCE, ..Terms::default() }
}

/// Two rails that break one after the other, and those that replace them until `are_healed`.
fn broken(are_healed: &Arc<AtomicBool>) -> Instrument {
    let (connected, are_healed) = (AtomicUsize::new(0), Arc::clone(are_healed));
    Box::new(move |rail, pair, depth| {
        let is_first = connected.fetch_add(1, Ordering::Relaxed) < 2;
        let posted = if is_first { 20 + 10 * rail as u64 } else { 0 };
        let breaks = is_first || !are_healed.load(Ordering::Relaxed);
        let fail_after = breaks.then_some((posted, Status::RetryExceeded));
        Box::new(Faulty::new(pair, depth.sends, Script { fail_after, ..Script::default() }))
    })
}

#[test]
fn without_a_rail_left_all_are_named() {
    let near = endpoint(0, &[1.0, 1.0]).terms(terms()).instrument(broken(&Arc::default()));
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0, 1.0]).terms(terms()));
    let error = failure_of_traffic(&mut *near, &mut *far);
    for name in ["rank 0 rail 0 (nic0) to rank 1", "rank 0 rail 1 (nic1) to rank 1"] {
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(failure(&mut *far).to_string().contains("rail 1 (nic1) to rank 0"));
}

/// A rank that needs nothing of its peer has time until the rails are whole again; then everything arrives.
#[test]
fn who_is_spared_outlives_its_patience() {
    let are_healed = Arc::<AtomicBool>::default();
    let near = endpoint(0, &[1.0, 1.0]).terms(terms()).instrument(broken(&are_healed));
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0, 1.0]).terms(terms()));
    let deadline = soon();
    let (mut sent, mut received, mut severed) = (0, 0, None);
    while sent < 200 || received < sent {
        let now = clock::now();
        assert!(now < deadline, "{received} of {sent} have come");
        if near.is_out_of_reach() {
            let severed = *severed.get_or_insert(now);
            are_healed.fetch_or(now > severed + 3 * PATIENCE, Ordering::Relaxed);
        } else if sent < 200 && near.reserve(10).unwrap().is_some() {
            near.commit(&stamp(sent)).unwrap();
            sent += 1;
        }
        for link in [&mut near, &mut far] {
            link.spare();
            link.progress().unwrap();
        }
        if let Some(tile) = far.peek() {
            assert_eq!(*tile.stamp, stamp(received).encode());
            far.release().unwrap();
            received += 1;
        }
    }
    assert!(severed.is_some(), "no rail was left");
}

/// A new connection is of no use until the peer has announced its memory.
#[test]
fn a_peer_that_is_connected_and_says_nothing_is_out_of_reach() {
    let are_healed = Arc::<AtomicBool>::default();
    let near = endpoint(0, &[1.0, 1.0]).terms(terms()).instrument(broken(&are_healed));
    let (mut near, mut far) = pair(near, endpoint(1, &[1.0, 1.0]).terms(terms()));
    let deadline = soon();
    let (mut sent, mut received) = (0, 0);
    let mut receive = |far: &mut dyn Link| {
        far.progress().unwrap();
        while let Some(tile) = far.peek() {
            assert_eq!(*tile.stamp, stamp(received).encode());
            far.release().unwrap();
            received += 1;
        }
        received
    };
    while !near.is_out_of_reach() {
        assert!(clock::now() < deadline, "no rail breaks");
        if near.reserve(10).unwrap().is_some() {
            near.commit(&stamp(sent)).unwrap();
            sent += 1;
        }
        near.progress().unwrap();
        receive(&mut *far);
    }
    are_healed.store(true, Ordering::Relaxed);
    // The peer's host answers, and the peer does not look at its link.
    let before = near.revision();
    let end = clock::now() + 3 * PATIENCE;
    while clock::now() < end {
        assert!(near.is_out_of_reach());
        near.spare();
        far.spare();
        near.progress().unwrap();
        clock::sleep(Duration::from_millis(1));
    }
    assert_ne!(near.revision(), before, "nothing is connected again");
    while receive(&mut *far) < sent {
        assert!(clock::now() < deadline, "not all of {sent} have come");
        near.progress().unwrap();
    }
    assert!(!near.is_out_of_reach());
}

/// Each would be waited for until it is known that nobody answers, which takes half a second or more.
#[test]
fn who_has_left_many_peers_that_answer_nothing_waits_for_none() {
    const PEERS: u32 = 40;
    let mut links: Vec<_> = (0..PEERS)
        .map(|_| {
            let silent = endpoint(0, &[1.0]).instrument(breaking(&[Some(24)], true));
            let (mut near, mut far) = pair(silent, endpoint(1, &[1.0]));
            stream(&mut *near, &mut *far, 20, 1000);
            (0..20).for_each(|tile| {
                try_send(&mut *near, tile, 1000);
            });
            (near, far)
        })
        .collect();
    let limit = clock::now() + Duration::from_secs(15);
    assert!(links.iter_mut().all(|(near, _)| !near.leave()), "nobody confirms anything");
    links.iter_mut().for_each(|(_, far)| {
        far.leave();
    });
    drop(links);
    assert!(clock::now() < limit, "they were waited for one after the other");
}
