//! Communicators that go on with more ranks.

use std::sync::Barrier;

use super::*;

/// The ranks of a communicator, each of which says `word`: it works.
fn words(communicator: &Communicator, word: u32) -> Vec<u32> {
    let mut words = vec![0u32; communicator.size() as usize];
    communicator.all_gather(&[word], &mut words).unwrap();
    words
}

/// A new rank, which says ten times its number.
fn newcomer(id: UniqueId, rank: u32, size: u32) -> thread::JoinHandle<Result<Vec<u32>, Error>> {
    thread::spawn(move || {
        let communicator = Communicator::create(&id, rank, size, &config())?;
        Ok(words(&communicator, 10 * rank))
    })
}

#[test]
fn new_ranks_stand_behind_those_that_were_there() {
    let results = ranks(2, &config(), |communicator| {
        let me = communicator.rank();
        // Any rank may be the one where all meet.
        let newcomers: Vec<_> = if me == Rank(1) {
            let id = communicator.growth_id().unwrap();
            (2..5).map(|rank| newcomer(id, rank, 5)).collect()
        } else {
            Vec::new()
        };
        let grown = communicator.grow(5, None).unwrap();
        let told = (grown.rank(), grown.size(), words(&grown, me.0));
        for newcomer in newcomers {
            assert_eq!(newcomer.join().unwrap().unwrap(), told.2);
        }
        (told, words(&communicator, me.0))
    });
    for (rank, result) in (0..).map(Rank).zip(results) {
        assert_eq!(result, ((rank, 5, vec![0, 1, 20, 30, 40]), vec![0, 1]));
    }
}

/// A rank that is lost is replaced, whichever it is, more than once.
#[test]
fn those_who_are_left_take_others_in() {
    let results = ranks(3, &config(), |communicator| {
        let me = communicator.rank();
        if me == Rank(0) {
            return Vec::new();
        }
        communicator.barrier().unwrap_err();
        let mut current = communicator;
        (0..3)
            .map(|_| {
                let left = match current.size() {
                    // The one that came last leaves at once.
                    4 => current.shrink(&[Rank(2), Rank(3)], Ongoing::Finish, None).unwrap(),
                    _ => current.shrink(&[Rank(0)], Ongoing::Finish, None).unwrap(),
                };
                let newcomers = if left.rank() == Rank(0) {
                    let id = left.growth_id().unwrap();
                    vec![newcomer(id, 2, 4), newcomer(id, 3, 4)]
                } else {
                    Vec::new()
                };
                current = left.grow(4, None).unwrap();
                let words = words(&current, me.0);
                for newcomer in newcomers {
                    newcomer.join().unwrap().unwrap();
                }
                words
            })
            .collect()
    });
    assert_eq!(results[1], vec![vec![1, 2, 20, 30]; 3]);
    assert_eq!(results[2], results[1]);
}

#[test]
fn one_rank_becomes_two() {
    let results = ranks(1, &config(), |communicator| {
        let id = communicator.growth_id().unwrap();
        let newcomer = newcomer(id, 1, 2);
        let grown = communicator.grow(2, None).unwrap();
        let words = words(&grown, 7);
        assert_eq!(newcomer.join().unwrap().unwrap(), words);
        words
    });
    assert_eq!(results, [vec![7, 10]]);
}

#[test]
fn new_ranks_that_do_not_come_leave_everything_as_it_is() {
    let have_asked = Arc::new(Barrier::new(2));
    let results = ranks(2, &config(), move |communicator| {
        let me = communicator.rank();
        let ask = || (me == Rank(0)).then(|| communicator.growth_id().unwrap());
        let _nobody_hears_of_it = ask();
        have_asked.wait();
        let hasty = patient(Duration::from_secs(2));
        let error = communicator.grow(4, Some(&hasty)).unwrap_err();
        assert_eq!(words(&communicator, me.0), [0, 1]);
        // The id is used up, and they may try again.
        let used_up = communicator.grow(4, None).unwrap_err();
        let newcomer = ask().map(|id| newcomer(id, 2, 3));
        let grown = communicator.grow(3, None).unwrap();
        let words = words(&grown, me.0);
        if let Some(newcomer) = newcomer {
            assert_eq!(newcomer.join().unwrap().unwrap(), words);
        }
        (error, used_up, words)
    });
    for (error, used_up, words) in results {
        assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
        assert!(error.to_string().contains("ranks 2, 3 did not come"), "{error}");
        assert!(used_up.to_string().contains("no rank has asked for the id"), "{used_up}");
        assert_eq!(words, [0, 1, 20]);
    }
}

/// What one rank says that the others do not is an error of all, and nobody waits, the new rank neither.
#[test]
fn ranks_that_differ_end_nothing_but_the_attempt() {
    let results = ranks(2, &config(), |communicator| {
        let me = communicator.rank();
        let newcomer = (me == Rank(1)).then(|| newcomer(communicator.growth_id().unwrap(), 2, 3));
        let error = communicator.grow(3 + me.0, None).unwrap_err();
        let told = newcomer.map(|newcomer| newcomer.join().unwrap().unwrap_err());
        (error, told, words(&communicator, me.0))
    });
    for (error, _, words) in &results {
        assert!(matches!(error, Error::InvalidArgument(_)), "{error:?}");
        assert!(error.to_string().contains("rank 0 wants to grow to 3 ranks, rank 1 to 4"));
        assert_eq!(words, &[0, 1]);
    }
    let told = results[1].1.as_ref().unwrap();
    assert!(matches!(told, Error::Aborted { rank: Rank(1), .. }), "{told:?}");
}

/// A new rank that takes the number of an old one keeps all from the new communicator, and is told which.
#[test]
fn a_number_that_is_taken_is_told_to_all() {
    let results = ranks(2, &config(), |communicator| {
        let id = (communicator.rank() == Rank(0)).then(|| communicator.growth_id().unwrap());
        let newcomer = id.map(|id| newcomer(id, 1, 3));
        let error = communicator.grow(3, None).unwrap_err();
        let told = newcomer.map_or(error.clone(), |newcomer| newcomer.join().unwrap().unwrap_err());
        communicator.barrier().unwrap();
        [error, told]
    });
    for error in results.into_iter().flatten() {
        assert!(error.to_string().contains("rank 1 is claimed by two processes"), "{error}");
    }
}

/// Whether it is finalized, with its handle still there, or dropped.
#[test]
fn new_ranks_hear_of_a_communicator_that_goes() {
    for is_kept in [true, false] {
        let results = ranks(2, &config(), move |communicator| {
            let id = (communicator.rank() == Rank(1)).then(|| communicator.growth_id().unwrap());
            let newcomer = id.map(|id| newcomer(id, 2, 3));
            communicator.barrier().unwrap();
            let _kept = is_kept.then(|| communicator.clone());
            communicator.finalize().unwrap();
            drop(communicator);
            newcomer.map(|newcomer| newcomer.join().unwrap().unwrap_err())
        });
        let error = results[1].as_ref().unwrap();
        assert!(error.to_string().contains("gave up before it joined"), "{error}");
    }
}

/// What a rank lacks that has joined the others is told to all, the new rank too; the old communicator remains.
#[test]
fn a_rank_without_rails_for_the_larger_group_says_so() {
    let results = ranks(2, &config(), |communicator| {
        let mut impossible = config();
        if communicator.rank() == Rank(1) {
            let settings = Settings::parse([("R2CCL_NIC", "nowhere0")]).unwrap().settings;
            impossible.settings.interfaces = settings.interfaces;
        }
        let id = (communicator.rank() == Rank(0)).then(|| communicator.growth_id().unwrap());
        let newcomer = id.map(|id| newcomer(id, 2, 3));
        let error = communicator.grow(3, Some(&impossible)).unwrap_err();
        communicator.barrier().unwrap();
        [Some(error), newcomer.map(|newcomer| newcomer.join().unwrap().unwrap_err())]
    });
    let errors: Vec<Error> = results.into_iter().flatten().flatten().collect();
    assert!(errors.iter().all(|error| error.to_string().contains("nowhere0")), "{errors:?}");
    assert_eq!(errors.len(), 3);
}

/// The new rank, which waits already, is told.
#[test]
fn a_communicator_that_has_failed_does_not_grow() {
    let results = ranks(2, &config(), |communicator| {
        let id = (communicator.rank() == Rank(0)).then(|| communicator.growth_id().unwrap());
        let newcomer = id.map(|id| newcomer(id, 2, 3));
        communicator.barrier().unwrap();
        if communicator.rank() == Rank(1) {
            communicator.abort("enough");
        }
        let fault = end_of(&communicator);
        assert_eq!(communicator.growth_id().unwrap_err(), fault);
        assert_eq!(communicator.grow(3, None).unwrap_err(), fault);
        let told = newcomer.map(|newcomer| newcomer.join().unwrap().unwrap_err());
        (fault, told)
    });
    let told = results[0].1.as_ref().unwrap();
    assert!(told.to_string().contains("gave up before it joined"), "{told}");
    assert!(results.iter().all(|(fault, _)| matches!(fault, Error::Aborted { .. })));
}

/// Who shrinks takes nobody in first.
#[test]
fn new_ranks_hear_of_a_communicator_that_shrinks() {
    let results = ranks(2, &config(), |communicator| {
        let me = communicator.rank();
        let id = (me == Rank(1)).then(|| communicator.growth_id().unwrap())?;
        let newcomer = newcomer(id, 2, 3);
        let left = communicator.shrink(&[Rank(0)], Ongoing::Finish, None).unwrap();
        let told = newcomer.join().unwrap().unwrap_err();
        Some((left.size(), told))
    });
    let (size, told) = results[1].as_ref().unwrap();
    assert_eq!(*size, 1);
    assert!(told.to_string().contains("gave up before it joined"), "{told}");
}

/// Of two new ranks one never comes, and the other is told why nobody waits any longer.
#[test]
fn an_abort_ends_the_wait_for_new_ranks() {
    let results = ranks(2, &config(), |communicator| {
        let id = (communicator.rank() == Rank(0)).then(|| communicator.growth_id().unwrap());
        let newcomer = id.map(|id| newcomer(id, 2, 4));
        communicator.barrier().unwrap();
        let other = communicator.clone();
        let aborting = (communicator.rank() == Rank(1)).then(|| {
            thread::spawn(move || {
                clock::sleep(Duration::from_millis(300));
                other.abort("enough");
            })
        });
        let error = communicator.grow(4, Some(&patient(2 * DEADLINE))).unwrap_err();
        aborting.into_iter().for_each(|aborting| aborting.join().unwrap());
        (error, newcomer.map(|newcomer| newcomer.join().unwrap().unwrap_err()))
    });
    let [(first, Some(told)), (second, None)] = &results[..] else { panic!("{results:?}") };
    for error in [first, second, told] {
        assert!(matches!(error, Error::Aborted { .. }), "{error:?}");
        // One of the others may have said it first.
        assert!(error.to_string().contains("aborted by rank 1: enough"), "{error}");
    }
}

/// A new rank comes, and goes again before the others grow: nobody waits where it was.
#[test]
fn who_has_waited_in_vain_is_not_waited_for() {
    let results = ranks(2, &config(), |communicator| {
        if communicator.rank() == Rank(0) {
            let id = communicator.growth_id().unwrap();
            let hasty = patient(Duration::from_millis(500));
            let error = Communicator::create(&id, 2, 3, &hasty).unwrap_err();
            assert!(error.to_string().contains("ranks 0, 1 did not come"), "{error}");
        }
        communicator.barrier().unwrap();
        let error = communicator.grow(3, Some(&patient(2 * DEADLINE))).unwrap_err();
        communicator.barrier().unwrap();
        error
    });
    for error in results {
        assert!(matches!(error, Error::InvalidUsage(_)), "{error:?}");
        assert!(error.to_string().contains("wait no longer where rank 0 has told them"), "{error}");
    }
}

/// A rank that does not grow with the others ends what they have in common, as with a split.
#[test]
fn a_rank_that_does_not_grow_in_time_is_named() {
    let results = ranks(2, &config(), |communicator| {
        if communicator.rank() == Rank(1) {
            return end_of(&communicator);
        }
        let _unused = communicator.growth_id().unwrap();
        let hasty = patient(Duration::from_millis(100));
        communicator.grow(3, Some(&hasty)).unwrap_err()
    });
    for error in results {
        assert!(error.to_string().contains("rank 1 did not contribute"), "{error}");
    }
}

#[test]
fn a_split_of_one_rank_and_a_growth_of_another_are_told_apart() {
    let results = ranks(2, &config(), |communicator| {
        let error = match communicator.rank() {
            Rank(0) => communicator.split(Some(0), 0, None).map(|_| ()).unwrap_err(),
            _ => communicator.grow(3, None).map(|_| ()).unwrap_err(),
        };
        communicator.barrier().unwrap();
        error.to_string()
    });
    assert!(results[0].contains("rank 1 calls grow, and this one split"), "{}", results[0]);
    assert!(results[1].contains("rank 0 calls split, and this one grow"), "{}", results[1]);
}
