//! Calls that end because something else has.

use std::time::Duration;

use ccl::{Allocation, Communicator, Error, Operation, Rank, Region};
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
    let results = ranks(3, &config(), |communicator| {
        let mut results = Vec::new();
        match communicator.rank().0 {
            0 => {
                let pending = [2, 1].map(|from| receive(&communicator, from));
                results.extend(pending.map(|pending| pending.wait()));
            }
            1 => {
                communicator.send(&[7u8; 64], Rank(0)).unwrap();
                communicator.abort("enough");
            }
            _ => wait_for_the_end(&communicator),
        }
        results
    });
    let aborted = Err(Error::Aborted { rank: Rank(1), reason: "enough".into() });
    assert_eq!(results[0], [aborted.clone(), aborted]);
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
