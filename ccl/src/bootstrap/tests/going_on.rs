//! Ranks that meet again when some of them are gone.

use std::sync::{Barrier, Mutex};

use super::super::group::Founder;
use super::super::heard::lock;
use super::super::rendezvous::Place;
use super::super::reunion::Reunion;
use super::super::unique_id::Door;
use super::*;

/// The doors of so many ranks, each as its rank sees all of them.
fn doors<const N: usize>() -> [Option<Reunion>; N] {
    let (all, are_open) = (Mutex::new(vec![Vec::new(); N]), Barrier::new(N));
    let open = |rank: usize| {
        Reunion::prepare(&Settings::default(), |own| {
            lock(&all)[rank] = own.clone();
            are_open.wait();
            Ok(lock(&all).clone())
        })
    };
    thread::scope(|scope| {
        let opened: [_; N] = std::array::from_fn(|rank| scope.spawn(move || open(rank)));
        opened.map(|thread| Some(thread.join().unwrap().unwrap()))
    })
}

/// What those get who are still there, by rank, when each does that.
fn each<T: Send>(
    doors: &[Option<Reunion>],
    act: impl Fn(Rank, &Reunion) -> Result<T, Error> + Sync,
) -> Vec<Result<T, Error>> {
    thread::scope(|scope| {
        let act = &act;
        let there =
            (0..).map(Rank).zip(doors).filter_map(|(rank, door)| Some((rank, door.as_ref()?)));
        let acting: Vec<_> =
            there.map(|(rank, door)| scope.spawn(move || act(rank, door))).collect();
        acting.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn meet_without(absent: &[u32], rank: Rank, door: &Reunion) -> Result<Place, Error> {
    let absent = absent.iter().copied().collect();
    door.meet(door.call(rank), &absent, &Settings::default(), deadline())
}

fn is_loss<T>(outcome: &Result<T, Error>, of: u32) -> bool {
    matches!(outcome, Err(Error::PeerLost { rank, .. }) if *rank == Rank(of))
}

#[test]
fn who_is_gone_is_waited_for_neither_where_ranks_meet_nor_where_they_go_on() {
    let mut doors = doors::<5>();
    (doors[2], doors[4]) = (None, None);
    let met = each(&doors, |rank, door| meet_without(&[], rank, door));
    assert!(met.iter().all(|outcome| is_loss(outcome, 2)), "{met:?}");
    for door in doors.iter().flatten() {
        assert_eq!(door.lost(), [Rank(2), Rank(4)].into());
    }
    let met = each(&doors, |rank, door| meet_without(&[2, 4], rank, door));
    let places: Vec<Place> = met.into_iter().collect::<Result<_, _>>().unwrap();
    let (id, left) = (*places[0].id(), [Rank(0), Rank(1), Rank(3)]);
    doors[3] = None;
    let joined = each(&doors, |rank, door| door.join(&id, rank, &left, deadline()));
    assert!(
        joined.iter().all(|outcome| is_loss(outcome, 2)),
        "as those count that go on: {joined:?}"
    );
}

#[test]
fn of_ranks_that_are_gone_all_are_known_up_to_the_first_that_is_not() {
    let mut doors = doors::<6>();
    [0, 1, 2, 4].iter().for_each(|gone| doors[*gone] = None);
    let met = each(&doors, |rank, door| meet_without(&[1], rank, door));
    assert!(met.iter().all(|outcome| is_loss(outcome, 0)), "{met:?}");
    for door in doors.iter().flatten() {
        assert_eq!(door.lost(), [Rank(0), Rank(2)].into());
    }
}

/// It has let another one in, and ends before all have come.
#[test]
fn who_ends_while_others_meet_behind_its_door_is_lost_to_them() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let id = UniqueId::at_fixed_port(&[[127, 0, 0, 1].into()], port, "j", &Settings::default());
    let ended = thread::scope(|scope| {
        scope.spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            auth::accept(&stream, &id.key(), deadline()).unwrap();
            drop(listener);
        });
        let heard = Arc::new(Heard::new(Rank(3)));
        let control = Control::return_to(&id, Rank(1), heard, 4, deadline()).unwrap();
        control.await_others(BTreeSet::new(), clock::now(), deadline())
    });
    assert!(is_loss(&ended, 1), "{ended:?}");
}

#[test]
fn a_place_whose_process_is_gone_is_the_loss_of_that() {
    let doors = doors::<2>();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let id = UniqueId::at_fixed_port(&[[127, 0, 0, 1].into()], port, "j", &Settings::default());
    let [Some(_), Some(door)] = &doors else { unreachable!("all are there") };
    let deadline = deadline();
    let joined = door.join(&id, Rank(1), &[Rank(0), Rank(1)], deadline);
    assert!(is_loss(&joined, 0), "{joined:?}");
    assert!(clock::now() < deadline, "it is not waited for");
}

#[test]
fn what_ends_a_group_ends_what_is_tied_to_it_unless_that_stands_alone() {
    let abort = || ControlEvent::Aborted { rank: Rank(0), reason: "enough".into() };
    for stands_alone in [false, true] {
        let group = formed(1).remove(0);
        let tied = group.tie(Rank(0));
        let new = tied.join(&new_id(), 1, deadline()).unwrap();
        if stands_alone {
            new.stand_alone().unwrap();
        }
        group.announce(&abort()).unwrap();
        assert_eq!(new.fault().is_none(), stands_alone);
        // Those who have been told that this rank goes on are not told otherwise.
        assert_eq!(new.stand_alone().is_ok(), stands_alone);
        new.leave(0);
        group.leave(0);
    }
}

/// The others are at the door before there is a store behind it, and may have spoken before its founder has come in.
#[test]
fn a_founder_is_told_of_what_failed_before_it_has_come() {
    let door = Door::open(&Settings::default()).unwrap();
    let absent = BTreeSet::from([2]);
    let _place = Place::behind(&door, Founder { rank: 0, absent: absent.clone() }).unwrap();
    let objected = Control::join(&door.id, Rank(1), 3, deadline()).unwrap_err();
    assert!(matches!(objected, Error::InvalidUsage(_)), "{objected:?}");
    let (start, end) = (clock::now(), deadline());
    let heard = Arc::new(Heard::new(Rank(0)));
    let founder = Control::return_to(&door.id, Rank(0), heard, 3, end).unwrap();
    assert_eq!(founder.await_others(absent, start, end), Err(objected));
}
