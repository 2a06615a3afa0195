//! Stores that end while they tell their ranks that all are connected, between threads: each is a rank.

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::bootstrap::{UniqueId, end_next_stores};
use crate::shrink::Ongoing;

/// No test takes longer than this, or it hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// Whoever waits for somebody in vain waits longer than any test.
fn config() -> Config {
    let mut config = Config { timeout: Some(4 * DEADLINE), ..Config::default() };
    config.settings.bootstrap_timeout = 4 * DEADLINE;
    config
}

/// The ranks of a communicator, each of which says `word`: it works.
fn words(communicator: &Communicator, word: u32) -> Vec<u32> {
    let mut words = vec![0u32; communicator.size() as usize];
    communicator.all_gather(&[word], &mut words).unwrap();
    words
}

/// What all ranks of a communicator do, in order of rank.
fn ranks<T: Send + 'static>(
    size: u32,
    body: impl Fn(Communicator) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let id = UniqueId::create(&config().settings).unwrap();
    let (sender, receiver) = mpsc::channel();
    for rank in 0..size {
        let (body, sender) = (body.clone(), sender.clone());
        thread::spawn(move || {
            let communicator = Communicator::create(&id, rank, size, &config()).unwrap();
            sender.send((rank, body(communicator))).unwrap();
        });
    }
    drop(sender);
    let mut results: Vec<(u32, T)> =
        (0..size).map(|_| receiver.recv_timeout(DEADLINE).unwrap()).collect();
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Goes on without whoever is lost, however often that takes.
fn without_who_is_lost(communicator: &Communicator) -> Result<Communicator, Error> {
    let once = || communicator.shrink(&communicator.lost_ranks(), Ongoing::Finish, None);
    (0..4 * communicator.size()).fold(once(), |next, _| next.or_else(|_| once()))
}

fn is_lost(error: &Error, rank: u32) -> bool {
    matches!(error, Error::PeerLost { rank: lost, .. } if *lost == Rank(rank))
}

/// What has ended it; waits for that.
fn end_of(communicator: &Communicator) -> Error {
    let begin = clock::now();
    while clock::now() < begin + DEADLINE {
        if let Some(error) = communicator.async_error() {
            return error;
        }
        clock::sleep(Duration::from_millis(1));
    }
    panic!("it has not ended");
}

/// All go on together with whoever is left of a `communicator` of which some have the `next` one. Rank 0 had the store of that.
/// In that no others than these can be `lost`.
fn words_of_who_is_left(
    communicator: &Communicator,
    next: Result<Communicator, Error>,
    lost: &[u32],
) -> Vec<u32> {
    let left = match &next {
        Ok(next) => {
            assert!(is_lost(&end_of(next), 0));
            let left = without_who_is_lost(next).unwrap();
            let seem_lost = next.lost_ranks();
            let is_lost = |rank: &Rank| lost.contains(&rank.0);
            assert!(seem_lost.iter().all(is_lost), "{seem_lost:?}, and of those only {lost:?} are");
            left
        }
        Err(error) => {
            assert!(is_lost(error, 0), "{error}");
            without_who_is_lost(communicator).unwrap()
        }
    };
    words(&left, communicator.rank().0)
}

#[test]
fn who_has_the_new_communicator_and_who_has_not_find_each_other() {
    // In the new one ranks 2 and 3 are 1 and 2.
    for told in [2, 3] {
        let results = ranks(4, move |communicator| {
            let me = communicator.rank().0;
            if me == 0 {
                end_next_stores("connected", &[told - 1]);
            }
            if me == 1 {
                return Vec::new();
            }
            let next = communicator.shrink(&[Rank(1)], Ongoing::Finish, None);
            assert_eq!(next.is_ok(), me == told, "{next:?}");
            if me == 0 { Vec::new() } else { words_of_who_is_left(&communicator, next, &[0]) }
        });
        assert_eq!(results, [vec![], vec![], vec![2, 3], vec![2, 3]], "rank {told} has it");
    }
}

/// Whoever is late finds nobody where the others were.
#[test]
fn who_has_it_may_come_when_the_others_have_gone_back() {
    for late in [1, 2, 3] {
        let results = ranks(4, move |communicator| {
            let me = communicator.rank().0;
            if me == 0 {
                end_next_stores("connected", &[1, 2]);
            }
            let next = communicator.shrink(&[], Ongoing::Finish, None);
            if me == late {
                clock::sleep(Duration::from_millis(700));
            }
            if me == 0 { Vec::new() } else { words_of_who_is_left(&communicator, next, &[0]) }
        });
        let left = vec![1, 2, 3];
        assert_eq!(results, [vec![], left.clone(), left.clone(), left], "rank {late} is late");
    }
}

#[test]
fn who_is_lost_as_well_is_known_where_all_have_gone_back() {
    let results = ranks(4, move |communicator| {
        let me = communicator.rank().0;
        if me == 0 {
            end_next_stores("connected", &[2]);
        }
        let next = communicator.shrink(&[], Ongoing::Finish, None);
        let is_left = [1, 2].contains(&me);
        if is_left { words_of_who_is_left(&communicator, next, &[0, 3]) } else { Vec::new() }
    });
    assert_eq!(results, [vec![], vec![1, 2], vec![1, 2], vec![]]);
}

/// A new rank has nothing to go back to.
#[test]
fn who_has_grown_goes_back_to_those_who_have_not() {
    for told in [&[1][..], &[2], &[1, 3], &[2, 3]] {
        let results = ranks(3, move |communicator| {
            let me = communicator.rank().0;
            let newcomer = (me == 0).then(|| {
                end_next_stores("connected", told);
                let id = communicator.growth_id().unwrap();
                thread::spawn(move || {
                    let grown = Communicator::create(&id, 3, 4, &config());
                    assert_eq!(grown.is_ok(), told.contains(&3));
                    grown.map(|grown| words(&without_who_is_lost(&grown).unwrap(), 3))
                })
            });
            let next = communicator.grow(4, None);
            assert_eq!(next.is_ok(), told.contains(&me));
            match newcomer {
                Some(newcomer) => {
                    drop((communicator, next));
                    newcomer.join().unwrap().unwrap_or_default()
                }
                None => words_of_who_is_left(&communicator, next, &[0, 3]),
            }
        });
        let alone = if told.contains(&3) { vec![3] } else { vec![] };
        assert_eq!(results, [alone, vec![1, 2], vec![1, 2]], "{told:?} have it");
    }
}

/// Those who have it disagree about who is lost.
#[test]
fn who_excludes_a_rank_that_has_it_not_learns_where_that_is() {
    let results = ranks(4, move |communicator| {
        let me = communicator.rank().0;
        if me == 0 {
            end_next_stores("connected", &[1, 2]);
        }
        let next = communicator.shrink(&[], Ongoing::Finish, None);
        if me == 2 {
            let excluded = [0, 3].map(Rank);
            next.as_ref().unwrap().shrink(&excluded, Ongoing::Finish, None).unwrap_err();
        }
        if me == 0 { Vec::new() } else { words_of_who_is_left(&communicator, next, &[0]) }
    });
    let left = vec![1, 2, 3];
    assert_eq!(results, [vec![], left.clone(), left.clone(), left]);
}

/// All have it, and nobody goes back.
#[test]
fn who_knows_that_all_have_it_and_who_does_not_meet_in_it() {
    for told in [1, 2] {
        let results = ranks(3, move |communicator| {
            let me = communicator.rank().0;
            if me == 0 {
                end_next_stores(HAD, &[told]);
            }
            let next = communicator.shrink(&[], Ongoing::Finish, None);
            if me == 0 {
                end_of(&next.unwrap());
                return Vec::new();
            }
            words_of_who_is_left(&communicator, Ok(next.unwrap()), &[0])
        });
        assert_eq!(results, [vec![], vec![1, 2], vec![1, 2]], "rank {told} knows it");
    }
}

/// The store of the communicator before tells that those leave it.
#[test]
fn who_has_left_the_communicator_before_for_the_new_one_is_not_lost() {
    let results = ranks(3, |communicator| {
        let me = communicator.rank().0;
        let newcomer = (me == 0).then(|| {
            end_next_stores("connected", &[1]);
            let id = communicator.growth_id().unwrap();
            thread::spawn(move || Communicator::create(&id, 3, 4, &config()).map(|_| ()))
        });
        let next = communicator.grow(4, None);
        assert_eq!(next.is_ok(), me == 1);
        if let Some(newcomer) = newcomer {
            communicator.abort("it is killed");
            drop((communicator, next));
            assert!(newcomer.join().unwrap().is_err());
            return Vec::new();
        }
        let current = next.ok().unwrap_or_else(|| {
            end_of(&communicator);
            while !communicator.core().control.has_departed(Rank(1)) {
                clock::sleep(Duration::from_millis(1));
            }
            communicator.clone()
        });
        drop(communicator);
        words(&without_who_is_lost(&current).unwrap(), me)
    });
    assert_eq!(results, [vec![], vec![1, 2], vec![1, 2]]);
}

/// A communicator and the one that all its three ranks have made of it, by rank, when all know that.
fn generations() -> Vec<(Communicator, Communicator)> {
    ranks(3, |communicator| {
        let next = communicator.shrink(&[], Ongoing::Finish, None).unwrap();
        while next.core().descent.origin().is_some() {
            clock::sleep(Duration::from_millis(1));
        }
        (communicator, next)
    })
}

#[test]
fn who_has_only_what_was_before_has_stayed_there() {
    let mut generations = generations();
    let (mut before, mut next) =
        generations.pop().map(|(before, next)| (Some(before), Some(next))).unwrap();
    let rank_1 = generations.remove(1);
    let origin = Origin::new(rank_1.0.core().reunion.as_ref().unwrap(), (0..3).map(Rank).collect());
    let reunion = rank_1.1.core().reunion.as_ref().unwrap();
    let stayed = || origin.stayed(reunion).unwrap();
    assert_eq!(stayed(), BTreeSet::new(), "all have both");
    drop(next.take());
    assert_eq!(stayed(), [Rank(2)].into());
    for (absent, has_some) in [(0, true), (2, false)] {
        let remainder = Remainder { reunion, me: Rank(1), absent: [absent].into() };
        assert_eq!(origin.has_some(&remainder), has_some, "without rank {absent}");
    }
    let rank_0 = generations.swap_remove(0);
    drop(rank_0.0);
    assert_eq!(stayed(), BTreeSet::new(), "rank 0 has gone on since, so all had it");
    drop(rank_0.1);
    assert_eq!(stayed(), [Rank(2)].into());
    drop(before.take());
    assert_eq!(stayed(), BTreeSet::new(), "it has nothing");
}

#[test]
fn what_a_communicator_was_made_of_goes_when_all_have_it() {
    let (mut before, next): (Vec<_>, Vec<_>) = generations().into_iter().unzip();
    let doors = before[0].core().reunion.as_ref().unwrap().again();
    let others = || [1, 2].map(Rank);
    assert_eq!(doors.vacant(others()), Ok(BTreeSet::new()));
    before.truncate(1);
    assert_eq!(doors.vacant(others()), Ok(others().into()));
    drop(next);
}
