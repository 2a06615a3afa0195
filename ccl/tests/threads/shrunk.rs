//! Communicators that go on without some of their ranks.

use std::sync::Barrier;

use super::*;

/// The ranks of a communicator, by what they say that they were `first`: it works.
fn members(communicator: &Communicator, first: Rank) -> Vec<u32> {
    let mut members = vec![0u32; communicator.size() as usize];
    communicator.all_gather(&[first.0], &mut members).unwrap();
    members
}

fn is_lost(error: &Error, rank: u32) -> bool {
    matches!(error, Error::PeerLost { rank: lost, .. } if *lost == Rank(rank))
}

#[test]
fn those_who_are_left_go_on_in_order() {
    let results = ranks(5, &config(), |communicator| {
        let me = communicator.rank();
        if [Rank(0), Rank(3)].contains(&me) {
            return None;
        }
        let error = communicator.barrier().unwrap_err();
        assert!(is_lost(&error, 0) || is_lost(&error, 3), "{error}");
        let left = communicator.shrink(&[Rank(3), Rank(0)], Ongoing::Finish, None).unwrap();
        Some((left.rank().0, members(&left, me)))
    });
    for (rank, place) in [(1, 0), (2, 1), (4, 2)] {
        assert_eq!(results[rank], Some((place, vec![1, 2, 4])));
    }
}

#[test]
fn one_rank_may_be_left_of_several_or_of_one() {
    for size in [1, 3] {
        let results = ranks(size, &config(), move |communicator| {
            let me = communicator.rank();
            let others: Vec<Rank> = (1..size).map(Rank).collect();
            (me == Rank(0)).then(|| {
                let left = communicator.shrink(&others, Ongoing::Finish, None).unwrap();
                (left.size(), members(&left, me))
            })
        });
        assert_eq!(results[0], Some((1, vec![0])));
    }
}

/// A deadline or an abort loses nobody. What is shrunk can be shrunk again, and so can what comes of it.
#[test]
fn all_may_go_on_after_an_error_and_more_than_once() {
    let results = ranks(3, &config(), |communicator| {
        let me = communicator.rank();
        if me == Rank(1) {
            communicator.abort("enough");
        }
        assert!(matches!(communicator.barrier(), Err(Error::Aborted { rank: Rank(1), .. })));
        let again = communicator.shrink(&[], Ongoing::Finish, None).unwrap();
        let third = communicator.shrink(&[], Ongoing::Finish, None).unwrap();
        let fourth = third.shrink(&[], Ongoing::Finish, None).unwrap();
        [again, third, fourth].map(|communicator| members(&communicator, me))
    });
    for result in results {
        assert_eq!(result, [(); 3].map(|()| vec![0, 1, 2]));
    }
}

#[test]
fn what_is_going_on_is_aborted_if_that_is_asked_for() {
    let have_started = Arc::new(Barrier::new(2));
    let results = ranks(3, &config(), move |communicator| {
        let me = communicator.rank();
        if me == Rank(1) {
            // It takes no part, and hears of it.
            return (end_of(&communicator), Vec::new());
        }
        let pending = communicator.start(Operation::Barrier).unwrap();
        have_started.wait();
        let left = communicator.shrink(&[Rank(1)], Ongoing::Abort, None).unwrap();
        (pending.test().unwrap().unwrap_err(), members(&left, me))
    });
    for (rank, (error, members)) in results.into_iter().enumerate() {
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        assert_eq!(members, if rank == 1 { vec![] } else { vec![0, 2] });
    }
}

#[test]
fn a_communicator_that_has_not_failed_can_be_used_on() {
    let results = ranks(3, &config(), |communicator| {
        let me = communicator.rank();
        let left = if me == Rank(1) {
            clock::sleep(Duration::from_millis(200));
            communicator.barrier().unwrap();
            None
        } else {
            let pending = communicator.start(Operation::Barrier).unwrap();
            let left = communicator.shrink(&[Rank(1)], Ongoing::Finish, None).unwrap();
            assert_eq!(pending.test(), Some(Ok(())), "what was started is waited for");
            Some(left)
        };
        (members(&communicator, me), left.map(|left| members(&left, me)))
    });
    let left = || Some(vec![0, 2]);
    let all = || vec![0, 1, 2];
    assert_eq!(results, [(all(), left()), (all(), None), (all(), left())]);
}

/// Until this rank knows that just these are lost.
fn await_loss(communicator: &Communicator, of: &[Rank]) {
    let deadline = clock::now() + DEADLINE;
    while communicator.lost_ranks() != of {
        assert!(clock::now() < deadline, "{:?} are lost, not {of:?}", communicator.lost_ranks());
        clock::sleep(Duration::from_millis(1));
    }
}

/// Nobody waits for who has gone, whichever rank that is; those who are left try again.
#[test]
fn another_rank_may_go_meanwhile() {
    for gone in [0, 1] {
        let are_here = Arc::new(Barrier::new(2));
        let results = ranks(4, &config(), move |communicator| {
            let me = communicator.rank();
            if [Rank(gone), Rank(3)].contains(&me) {
                return None;
            }
            communicator.barrier().unwrap_err();
            are_here.wait();
            let patient = patient(2 * DEADLINE);
            let error = communicator.shrink(&[Rank(3)], Ongoing::Finish, Some(&patient));
            let error = error.unwrap_err();
            assert!(is_lost(&error, gone), "{error}");
            await_loss(&communicator, &[Rank(gone), Rank(3)]);
            let excluded = communicator.lost_ranks();
            let left = communicator.shrink(&excluded, Ongoing::Finish, None).unwrap();
            Some(members(&left, me))
        });
        let left: Vec<u32> = (0..3).filter(|rank| *rank != gone).collect();
        for rank in &left {
            assert_eq!(results[*rank as usize], Some(left.clone()));
        }
    }
}

/// Who knows of more losses than the rest tells them: the next time all agree.
#[test]
fn those_who_disagree_learn_from_each_other() {
    let all = Arc::new(Barrier::new(4));
    let results = ranks(4, &config(), move |communicator| {
        let me = communicator.rank();
        let excluded = match me {
            Rank(0) => vec![Rank(3)],
            Rank(1) => vec![Rank(2), Rank(3)],
            _ => Vec::new(),
        };
        let members = (!excluded.is_empty()).then(|| {
            let error = communicator.shrink(&excluded, Ongoing::Finish, None).unwrap_err();
            let Error::InvalidUsage(text) = error else { panic!("{error}") };
            assert!(
                text.contains("without rank 3") && text.contains("without ranks 2, 3"),
                "{text}"
            );
            await_loss(&communicator, &[Rank(2), Rank(3)]);
            let lost = communicator.lost_ranks();
            members(&communicator.shrink(&lost, Ongoing::Finish, None).unwrap(), me)
        });
        // The others live: nobody has heard of them.
        all.wait();
        members
    });
    assert_eq!(results, [Some(vec![0, 1]), Some(vec![0, 1]), None, None]);
}

/// It wakes up after it was given up, and wants to go on without others.
#[test]
fn who_is_excluded_keeps_nobody_from_going_on() {
    let results = ranks(4, &config(), |communicator| {
        let me = communicator.rank();
        if me == Rank(3) {
            let error = communicator.shrink(&[Rank(1)], Ongoing::Finish, None).unwrap_err();
            let Error::Aborted { rank: Rank(0), reason } = error else { panic!("{error}") };
            assert!(reason.contains("it goes on without rank 3"), "{reason}");
            return Vec::new();
        }
        if me == Rank(0) {
            // The others wait at its door, rank 3 among them.
            clock::sleep(Duration::from_millis(300));
        }
        let left = communicator.shrink(&[Rank(3)], Ongoing::Finish, None).unwrap();
        members(&left, me)
    });
    assert_eq!(results, [vec![0, 1, 2], vec![0, 1, 2], vec![0, 1, 2], vec![]]);
}

/// Rank 2 never comes, and rank 1 does not wait for that.
#[test]
fn an_abort_ends_a_meeting() {
    let all = Arc::new(Barrier::new(3));
    let results = ranks(3, &config(), move |communicator| {
        let error = (communicator.rank() != Rank(2)).then(|| {
            let patient = patient(4 * DEADLINE);
            thread::scope(|scope| {
                let shrink = || communicator.shrink(&[], Ongoing::Finish, Some(&patient));
                let meeting = scope.spawn(shrink);
                while communicator.rank() == Rank(1) && !meeting.is_finished() {
                    clock::sleep(Duration::from_millis(300));
                    communicator.abort("enough");
                }
                meeting.join().unwrap().unwrap_err()
            })
        });
        let lost = communicator.lost_ranks();
        all.wait();
        (error, lost)
    });
    for (error, lost) in &results[..2] {
        let Some(Error::Aborted { rank: Rank(1), reason }) = error else { panic!("{error:?}") };
        assert!(reason.contains("enough"), "{reason}");
        assert_eq!(lost, &[]);
    }
}

/// What rank 1 of three ends up with, of which rank 2 is lost, and rank 0 lives and does not come: as when its host has no
/// power any more, or it hangs.
fn at_a_shut_door(left: impl Fn(&Communicator) -> Communicator + Send + Clone + 'static) {
    let is_over = Arc::new(Barrier::new(2));
    let results = ranks(3, &config(), move |communicator| {
        let me = communicator.rank();
        if me == Rank(0) {
            is_over.wait();
        }
        if me != Rank(1) {
            return None;
        }
        await_loss(&communicator, &[Rank(2)]);
        let left = left(&communicator);
        is_over.wait();
        Some(members(&left, me))
    });
    assert_eq!(results, [None, Some(vec![1]), None]);
}

#[test]
fn the_lowest_rank_may_not_come() {
    at_a_shut_door(|communicator| {
        let hasty = patient(Duration::from_millis(500));
        let error = communicator.shrink(&[Rank(2)], Ongoing::Finish, Some(&hasty)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(error.to_string().contains("rank 0, where the ranks meet"), "{error}");
        let lost = communicator.lost_ranks();
        assert_eq!(lost, [Rank(0), Rank(2)]);
        communicator.shrink(&lost, Ongoing::Finish, None).unwrap()
    });
}

#[test]
fn who_waits_in_vain_may_call_anew() {
    at_a_shut_door(|communicator| {
        let patient = patient(4 * DEADLINE);
        let left = thread::scope(|scope| {
            let shrink = || communicator.shrink(&[Rank(2)], Ongoing::Finish, Some(&patient));
            let in_vain = scope.spawn(shrink);
            loop {
                clock::sleep(Duration::from_millis(300));
                let left = communicator.shrink(&[Rank(0), Rank(2)], Ongoing::Finish, None);
                if in_vain.is_finished() {
                    in_vain.join().unwrap().unwrap_err();
                    return left.unwrap();
                }
            }
        });
        assert_eq!(communicator.lost_ranks(), [Rank(2)], "nobody was waited for until the end");
        left
    });
}

/// As a program that hears of another loss while it waits.
#[test]
fn a_rank_may_meet_others_anew() {
    let results = ranks(3, &config(), |communicator| {
        let me = communicator.rank();
        if me == Rank(2) {
            return Vec::new();
        }
        let patient = patient(4 * DEADLINE);
        thread::scope(|scope| {
            let shrink = || communicator.shrink(&[], Ongoing::Finish, Some(&patient));
            let in_vain = scope.spawn(shrink);
            communicator.barrier().unwrap_err();
            clock::sleep(Duration::from_millis(300));
            let left = communicator.shrink(&[Rank(2)], Ongoing::Abort, None);
            in_vain.join().unwrap().unwrap_err();
            // The other one may have come with the list of before.
            let left = left.or_else(|_| communicator.shrink(&[Rank(2)], Ongoing::Finish, None));
            members(&left.unwrap(), me)
        })
    });
    assert_eq!(results, [vec![0, 1], vec![0, 1], vec![]]);
}

#[test]
fn what_was_finalized_is_not_shrunk() {
    ranks(2, &config(), |communicator| {
        communicator.finalize().unwrap();
        let error = communicator.shrink(&[], Ongoing::Finish, None).unwrap_err();
        assert!(matches!(error, Error::InvalidUsage(_)), "{error}");
    });
}
