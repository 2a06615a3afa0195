//! Two ends in two threads of this process, which meet as two processes do.
//!
//! An end that fails leaves, and the other one then fails too, because it is alone. Which of the two errors
//! says what was wrong is decided by time: an end notes its error before it gives its meeting up.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ccl::vqp::{Error, Key, Listener, Meeting};

use crate::Outcome;
use crate::error::Failure;

/// The error that was first.
#[derive(Default)]
struct First(Mutex<Option<Failure>>);

impl First {
    fn note(&self, failure: Failure) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    }

    /// What an end comes to over its meeting; nothing if it fails.
    fn watch<T>(
        &self,
        meeting: Result<Meeting, Error>,
        end: impl FnOnce(&mut Meeting) -> Outcome<T>,
    ) -> Option<T> {
        let failed = |cause| Failure::system("meeting the other end", cause);
        // The meeting is dropped at the end of this function: only then does the other end learn of it.
        let mut meeting = match meeting.map_err(failed) {
            Ok(meeting) => meeting,
            Err(failure) => {
                self.note(failure);
                return None;
            }
        };
        end(&mut meeting).map_err(|failure| self.note(failure)).ok()
    }
}

/// Runs both ends, and returns what the near one has come to.
///
/// # Errors
/// The first of either end.
pub(super) fn run<T>(
    key: &Key,
    limit: Duration,
    near: impl FnOnce(&mut Meeting) -> Outcome<T>,
    far: impl FnOnce(&mut Meeting) -> Outcome<()> + Send,
) -> Outcome<T> {
    let failed = |cause| Failure::system("listening for the other end", cause);
    let listener = Listener::bind("127.0.0.1:0", key.clone()).map_err(failed)?;
    let address = listener.address().map_err(failed)?.to_string();
    let first = First::default();
    let near = thread::scope(|scope| {
        let far = scope.spawn(|| first.watch(listener.accept(limit), far));
        let near = first.watch(Meeting::connect(&address, key, limit), near);
        if far.join().is_err() {
            first.note(Failure::system("serving", "the thread panicked"));
        }
        near
    });
    match (first.0.into_inner().unwrap_or_else(PoisonError::into_inner), near) {
        (Some(failure), _) => Err(failure),
        (None, Some(near)) => Ok(near),
        (None, None) => Err(Failure::system("serving", "an end has ended without a reason")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Whichever end has the device, `measure` says its name. It is told the name, and whether it is the near end's.
    pub(in super::super) fn names_devices_that_do_not_exist(
        mut measure: impl FnMut(&str, bool) -> Outcome<()>,
    ) {
        for _ in 0..10 {
            for (name, is_near) in [("nonesuch0", true), ("nonesuch1", false)] {
                let error = measure(name, is_near).unwrap_err().to_string();
                assert!(error.contains(name), "{error}");
            }
        }
    }

    fn leaves(reason: &str) -> Outcome<()> {
        Err(Failure::Input(reason.to_owned()))
    }

    fn stays(meeting: &mut Meeting) -> Outcome<()> {
        let heard = meeting.exchange(b"here", LIMIT);
        heard.map(drop).map_err(|cause| Failure::system("waiting for the other end", cause))
    }

    /// Whichever end is alone afterwards, and however fast it notices.
    #[test]
    fn the_error_of_the_end_that_leaves_is_told() {
        let key = Key::from_passphrase("threads");
        for round in 0..50 {
            let near = run(&key, LIMIT, |_| leaves("near"), stays).unwrap_err().to_string();
            let far = run(&key, LIMIT, stays, |_| leaves("far")).unwrap_err().to_string();
            assert_eq!((near.as_str(), far.as_str()), ("near", "far"), "round {round}");
        }
        assert!(run(&key, LIMIT, stays, stays).is_ok());
    }

    #[test]
    fn a_panic_is_an_error() {
        let panics = |_: &mut Meeting| -> Outcome<()> { panic!("a panic on purpose") };
        let error = run(&Key::from_passphrase("threads"), LIMIT, |_| Ok(()), panics).unwrap_err();
        assert_eq!(error.to_string(), "serving: the thread panicked");
    }
}
