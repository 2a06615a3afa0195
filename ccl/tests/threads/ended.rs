//! Calls that end because something else has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ccl::{Allocation, Communicator, Config, Error, Group, Operation, Rank, Region, UniqueId};
use ccl_core::settings::CrossMemoryAttach;
use ccl_transport::clock;

use super::{DEADLINE, config, ranks};

fn receive(communicator: &Communicator, from: u32) -> ccl::Pending {
    let data = Region::of_mut(Box::leak(Box::new([0u8; 64])));
    communicator.start(Operation::Receive { peer: Rank(from), data }).unwrap()
}

/// Waits until the communicator has failed, but not for ever.
fn wait_for_the_end(communicator: &Communicator) {
    let end = clock::now() + DEADLINE;
    while communicator.async_error().is_none() {
        assert!(clock::now() < end, "nothing has failed");
        clock::sleep(Duration::from_millis(1));
    }
}

/// Even if all that the second one needs is there: who failed may use memory for something else that its peers still read.
#[test]
fn a_call_behind_one_that_failed_does_not_begin() {
    let (start, started) = mpsc::channel();
    let started = Arc::new(Mutex::new(started));
    let results = ranks(3, &config(), move |communicator| {
        let mut results = Vec::new();
        match communicator.rank().0 {
            0 => {
                let pending = [2, 1].map(|from| receive(&communicator, from));
                start.send(()).unwrap();
                results.extend(pending.map(|pending| pending.wait()));
            }
            1 => {
                communicator.send(&[7u8; 64], Rank(0)).unwrap();
                started.lock().unwrap().recv_timeout(DEADLINE).unwrap();
                communicator.abort("enough");
            }
            _ => wait_for_the_end(&communicator),
        }
        results
    });
    let aborted = Err(Error::Aborted { rank: Rank(1), reason: "enough".into() });
    assert_eq!(results[0], [aborted.clone(), aborted]);
}

/// Ranks are numbers in a communicator, of which a program may have many.
#[test]
fn errors_name_the_communicator() {
    let named = Config { name: Some("stage".into()), ..config() };
    let results = ranks(2, &named, |communicator| {
        if communicator.rank() == Rank(1) {
            communicator.barrier().unwrap();
            communicator.abort("enough");
        } else {
            communicator.barrier().unwrap();
            wait_for_the_end(&communicator);
        }
        let pending = communicator.start(Operation::Barrier).and_then(|pending| pending.wait());
        [
            communicator.async_error().ok_or(()),
            communicator.barrier().map_or_else(Ok, |()| Err(())),
            pending.map_or_else(Ok, |()| Err(())),
        ]
    });
    let reason = "enough (communicator \"stage\")".to_owned();
    let aborted = Ok(Error::Aborted { rank: Rank(1), reason });
    assert_eq!(results, vec![[(); 3].map(|()| aborted.clone()); 2]);
}

#[test]
fn who_is_alone_is_told_which_communicator_nobody_joins() {
    let mut named = Config { name: Some("stage".into()), ..config() };
    named.settings.bootstrap_timeout = Duration::from_millis(200);
    let id = UniqueId::create(&named.settings).unwrap();
    let error = Communicator::create(&id, 0, 2, &named).unwrap_err();
    assert!(error.to_string().ends_with(" (communicator \"stage\")"), "{error}");
}

/// Whether there is no room for what is sent, or the peer should read it where it is.
#[test]
fn a_send_to_a_rank_that_has_left_is_an_error_that_names_it() {
    for is_shared in [false, true] {
        let results = ranks(2, &config(), move |communicator| {
            communicator.barrier().unwrap();
            if communicator.rank() == Rank(1) {
                return communicator.finalize();
            }
            let bytes = if is_shared { 256 << 10 } else { 64 << 20 };
            let (shared, own) = (Allocation::new(bytes).unwrap(), vec![0u8; bytes]);
            let data = match is_shared {
                // SAFETY: the allocation is as large, and only this call uses it.
                true => unsafe { Region::new(shared.address(), bytes) },
                false => Region::of(&own),
            };
            communicator.run(Operation::Send { peer: Rank(1), data })
        });
        let Err(Error::PeerLost { rank: Rank(1), reason }) = &results[0] else {
            unreachable!("{results:?}")
        };
        assert!(reason.contains("destroyed"), "{reason}");
        assert_eq!(results[1], Ok(()));
    }
}

/// In a call in which ranks tell each other something, and again. One is late, and another one, which has waited for it, is busy
/// for as long after that.
#[test]
fn the_deadline_is_that_of_the_whole_call() {
    const DEADLINE_OF_ONE: Duration = Duration::from_secs(3);
    const LATE: Duration = Duration::from_millis(2900);
    let mut config = config();
    config.settings.cross_memory_attach = CrossMemoryAttach::Always;
    let results = ranks(3, &config, |communicator| {
        let me = communicator.rank();
        let is_busy = AtomicBool::new(me == Rank(2));
        let has_failed = || communicator.async_error().is_some();
        communicator.barrier().unwrap();
        let start = clock::now();
        let busy_until = |end| {
            while clock::now() < start + end && !has_failed() {
                clock::sleep(Duration::from_millis(1));
            }
        };
        match me.0 {
            0 => communicator.set_timeout(DEADLINE_OF_ONE).unwrap(),
            1 => busy_until(LATE),
            _ => {}
        }
        let watch = || {
            if is_busy.swap(false, Ordering::Relaxed) {
                busy_until(2 * LATE);
            }
            None
        };
        let own = vec![1u8; 50_000];
        let mut all = vec![0u8; 3 * own.len()];
        let request = ccl::Request {
            collective: ccl::Collective::AllGather,
            count: own.len(),
            ..ccl::Request::BARRIER
        };
        let (input, output) = (Some(Region::of(&own)), Some(Region::of_mut(&mut all)));
        let mut group = Group::default();
        group.add(&communicator, Operation::Collective { request, input, output });
        group.run_watched(&watch)
    });
    for result in results {
        assert!(matches!(result, Err(Error::Deadline { .. })), "{result:?}");
    }
}
