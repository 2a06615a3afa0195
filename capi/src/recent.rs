//! The communicators that a thread has used last: found without a search, and without counting references.
//!
//! A search in the table of all communicators takes four locked instructions, and one that holds the object for
//! as long as it is used takes two more; a broadcast of 8 bytes has time for none. So every thread keeps a few of them, behind
//! [locks](Biased) that are its own but for the moment in which another thread ends a communicator.

use std::array;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ccl::Error;
use ccl_transport::biased::{Biased, Guard};
use ccl_transport::fence;

use crate::handles::{Table, locked};

/// So many per thread; a power of two.
const PLACES: usize = 4;
/// The number of nothing.
const NONE: usize = 0;

/// A table, some of whose objects threads keep at hand.
#[derive(Debug)]
pub(crate) struct Recent<T> {
    table: Table<T>,
    threads: Mutex<Vec<Weak<Seat<T>>>>,
}

/// What one thread keeps.
#[derive(Debug)]
pub(crate) struct Seat<T>([Place<T>; PLACES]);

#[derive(Debug)]
struct Place<T> {
    /// What is kept here, or about to be, or [`NONE`].
    number: AtomicUsize,
    /// Locked while the thread uses it.
    kept: Biased<Option<Arc<T>>>,
}

impl<T> Recent<T> {
    /// An empty table; `kind` is what messages call an entry.
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { table: Table::new(kind), threads: Mutex::new(Vec::new()) }
    }

    /// Adds an object and returns its number.
    pub(crate) fn insert(&self, object: Arc<T>) -> usize {
        self.table.insert(object)
    }

    /// The object with this number.
    pub(crate) fn get(&self, number: usize) -> Result<Arc<T>, Error> {
        self.table.get(number)
    }

    /// What this thread will keep of this table.
    pub(crate) fn seat(&self) -> Arc<Seat<T>> {
        let place = |_| Place { number: AtomicUsize::new(NONE), kept: Biased::mine(None) };
        let seat = Arc::new(Seat(array::from_fn(place)));
        let mut threads = locked(&self.threads);
        threads.retain(|thread| thread.strong_count() > 0);
        threads.push(Arc::downgrade(&seat));
        seat
    }

    /// Uses the object with this number, which the thread of this seat keeps from now on.
    #[inline(always)]
    pub(crate) fn with<R>(
        &self,
        seat: &Seat<T>,
        number: usize,
        body: impl FnOnce(&Arc<T>) -> R,
    ) -> Result<R, Error> {
        self.table.check(number)?;
        let place = seat.place(number);
        let is_kept = place.number.load(Ordering::Relaxed) == number;
        let kept = if is_kept { place.kept.try_lock() } else { None };
        let found;
        let object = match kept.as_deref() {
            Some(Some(object)) => object,
            _ => {
                found = self.keep(place, number)?;
                &found
            }
        };
        let result = body(object);
        if let Some(kept) = kept {
            place.leave(kept, number);
        }
        Ok(result)
    }

    #[cold]
    fn keep(&self, place: &Place<T>, number: usize) -> Result<Arc<T>, Error> {
        let Some(mut kept) = place.kept.try_lock() else { return self.table.get(number) };
        // Either this sees that the object is gone, or who takes it away sees this.
        place.number.store(number, Ordering::Relaxed);
        fence::light();
        let found = self.table.get(number);
        let before = std::mem::replace(&mut *kept, found.as_ref().ok().cloned());
        place.leave(kept, number);
        // The last one who has it may end it, which takes a while.
        drop(before);
        found
    }

    /// Takes the object with this number out of the table, and away from threads that keep it. One that uses it
    /// gives it up afterwards: nobody waits.
    pub(crate) fn remove(&self, number: usize) -> Result<Arc<T>, Error> {
        let object = self.table.remove(number)?;
        let seats: Vec<_> = locked(&self.threads).iter().filter_map(Weak::upgrade).collect();
        fence::heavy();
        for place in seats.iter().map(|seat| seat.place(number)) {
            let asked = (Ordering::Relaxed, Ordering::Relaxed);
            if place.number.compare_exchange(number, NONE, asked.0, asked.1).is_ok() {
                // Either its thread sees this, or it is not inside any more.
                fence::heavy();
                place.give_up();
            }
        }
        Ok(object)
    }
}

impl<T> Place<T> {
    /// After a use of the object with this number, which may have been taken away meanwhile.
    #[inline]
    fn leave(&self, kept: Guard<'_, Option<Arc<T>>>, number: usize) {
        drop(kept);
        fence::light();
        if self.number.load(Ordering::Relaxed) != number {
            self.give_up();
        }
    }

    /// Keeps nothing any more, unless somebody is inside, who then does this, or something else is kept meanwhile.
    #[cold]
    fn give_up(&self) {
        let Some(mut kept) = self.kept.try_lock() else { return };
        let is_nothing = self.number.load(Ordering::Relaxed) == NONE;
        let before = if is_nothing { kept.take() } else { None };
        drop(kept);
        drop(before);
    }
}

impl<T> Seat<T> {
    fn place(&self, number: usize) -> &Place<T> {
        &self.0[number % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn what_is_removed_is_kept_by_nobody() {
        let table = Recent::new("thing");
        let seat = table.seat();
        let thing = Arc::new(7);
        let number = table.insert(Arc::clone(&thing));
        for _ in 0..3 {
            assert_eq!(table.with(&seat, number, |thing| **thing), Ok(7));
        }
        assert_eq!(Arc::strong_count(&thing), 3, "the thread keeps it");
        drop(table.remove(number));
        assert_eq!(Arc::strong_count(&thing), 1);
        assert!(table.with(&seat, number, |_| ()).is_err());
    }

    #[test]
    fn more_things_than_places_are_all_found() {
        let table = Recent::new("thing");
        let seat = table.seat();
        let numbers: Vec<_> = (0..3 * PLACES).map(|thing| table.insert(Arc::new(thing))).collect();
        for _ in 0..2 {
            for (thing, number) in numbers.iter().enumerate() {
                assert_eq!(table.with(&seat, *number, |found| **found), Ok(thing));
            }
        }
        let inside =
            table.with(&seat, numbers[0], |_| table.with(&seat, numbers[0], |thing| **thing));
        assert_eq!(inside, Ok(Ok(0)), "one use within another");
    }

    #[test]
    fn what_is_taken_away_while_it_is_used_is_given_up_afterwards() {
        let table = &Recent::new("thing");
        let thing = &Arc::new(1);
        let number = table.insert(Arc::clone(thing));
        let (inside, entered) = mpsc::channel();
        let (leave, left) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let other = scope.spawn(move || {
                let seat = table.seat();
                table.with(&seat, number, |_| ()).expect("it is there");
                let used = table.with(&seat, number, |thing| {
                    inside.send(()).expect("somebody waits");
                    left.recv().expect("a word");
                    **thing
                });
                assert_eq!(used, Ok(1));
                assert_eq!(Arc::strong_count(thing), 1, "its own seat still there");
            });
            entered.recv().expect("a thread that uses it");
            drop(table.remove(number));
            assert_eq!(Arc::strong_count(thing), 2, "it is used");
            leave.send(()).expect("a thread that uses it");
            other.join().expect("no panic");
        });
    }

    /// Objects that come, are used by two threads, and go, again and again: none is left behind.
    #[test]
    fn nothing_is_left_behind_when_threads_and_objects_come_and_go() {
        let table = &Recent::new("thing");
        let things: Vec<_> = (0..2000).map(Arc::new).collect();
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::sync_channel(1);
            scope.spawn(move || {
                let seat = table.seat();
                for (number, thing) in receiver {
                    // Gone, or the right one.
                    for _ in 0..20 {
                        let found = table.with(&seat, number, |found| **found);
                        assert!(found.is_err() || found == Ok(thing));
                    }
                }
            });
            let seat = table.seat();
            for (index, thing) in things.iter().enumerate() {
                let number = table.insert(Arc::clone(thing));
                sender.send((number, index)).expect("a thread that uses it");
                assert_eq!(table.with(&seat, number, |found| **found), Ok(index));
                drop(table.remove(number));
            }
        });
        assert!(things.iter().all(|thing| Arc::strong_count(thing) == 1));
    }
}
