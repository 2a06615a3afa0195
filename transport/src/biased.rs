//! A lock that costs nothing to the thread that uses it over and over.
//!
//! Whoever makes call after call from one thread takes a lock that nobody else wants. An ordinary mutex is two locked
//! instructions then, which is a sixth of a broadcast of 8 bytes. This one belongs to one thread, the *owner*: it
//! says that it is inside and looks whether the lock is still its own. Any other thread first takes the lock away
//! from the owner, and then waits until it is not inside. Each must see what the other did: there are
//! [fences](crate::fence) between the two steps of both, such that only taking the lock away costs something.
//!
//! A lock that nobody owns is a mutex. The owner gets it back when it has taken it often enough with nobody in
//! between, and every time that takes twice as often, so that threads which take turns have a mutex. It is always
//! the same thread, the first one that came so often: of another one, what the owner before does late would be taken
//! for its own.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::fence;

#[cfg(not(all(loom, test)))]
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError},
};

#[cfg(all(loom, test))]
use {
    loom::sync::atomic::{AtomicBool, AtomicU64, Ordering},
    loom::sync::{Condvar, Mutex, MutexGuard},
    std::sync::{PoisonError, TryLockError},
};

#[cfg(all(loom, test))]
mod model;

/// No thread is the owner.
const NOBODY: u64 = 0;
/// So often a thread takes a lock, with nobody in between, before it is the owner: more often than who only
/// prepares something for another thread.
const FIRST_PATIENCE: u32 = if cfg!(loom) { 1 } else { 500 };

/// A value that one thread at a time may use, above all its owner.
pub struct Biased<T> {
    /// The thread that need not ask, by its number, or [`NOBODY`]. Changes while `others` is held only.
    owner: AtomicU64,
    /// Whether the owner has the value, without having asked. Nobody else ever writes this.
    inside: AtomicBool,
    /// Who is not the owner, or was not when it began.
    others: Mutex<Turns>,
    /// The owner is not inside any more.
    left: Condvar,
    value: UnsafeCell<T>,
}

/// Who has had the lock while it had no owner.
#[derive(Debug)]
struct Turns {
    /// The only thread that can be the owner, once there was one.
    heir: u64,
    last: u64,
    /// How often in a row.
    row: u32,
    /// The length of a row that makes an owner.
    patience: u32,
}

// SAFETY: as for a mutex: there is one guard at a time, see `Biased::enter` and `Biased::take_away`.
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T> Biased<T> {
    /// A lock around `value`. The first thread that takes it often will be its owner.
    pub fn new(value: T) -> Self {
        Self {
            owner: AtomicU64::new(NOBODY),
            inside: AtomicBool::new(false),
            others: Mutex::new(Turns {
                heir: NOBODY,
                last: NOBODY,
                row: 0,
                patience: FIRST_PATIENCE,
            }),
            left: Condvar::new(),
            value: UnsafeCell::new(value),
        }
    }

    /// A lock around `value` that belongs to this thread from the beginning.
    pub fn mine(value: T) -> Self {
        let (lock, me) = (Self::new(value), this_thread());
        if fence::is_light() {
            let mut turns = lock.others.lock().unwrap_or_else(PoisonError::into_inner);
            turns.heir = me;
            drop(turns);
            lock.owner.store(me, Ordering::Relaxed);
        }
        lock
    }

    /// The value, once nobody else has it. A panic elsewhere does not matter: what stands behind these locks is
    /// consistent at any time.
    ///
    /// # Panics
    /// May panic, or never return, if this thread has it already.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.enter() { Guard::new(self, None) } else { self.ask() }
    }

    /// The value, if nobody else has it.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.inside.load(Ordering::Relaxed) {
            return None;
        }
        if self.enter() { Some(Guard::new(self, None)) } else { self.try_ask() }
    }

    /// Goes inside if this thread is the owner.
    #[inline(always)]
    fn enter(&self) -> bool {
        let me = this_thread();
        if self.owner.load(Ordering::Relaxed) != me {
            return false;
        }
        // Only the owner is inside, so this thread is.
        assert!(!self.inside.load(Ordering::Relaxed), "a lock that this thread has already");
        self.inside.store(true, Ordering::Relaxed);
        fence::light();
        if self.owner.load(Ordering::Relaxed) == me {
            return true;
        }
        self.leave();
        false
    }

    /// Goes outside again; who waits for that is told.
    #[inline(always)]
    fn leave(&self) {
        self.inside.store(false, Ordering::Release);
        fence::light();
        if self.owner.load(Ordering::Relaxed) == NOBODY {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        drop(self.others.lock().unwrap_or_else(PoisonError::into_inner));
        self.left.notify_all();
    }

    /// The value for a thread that is not the owner.
    #[cold]
    fn ask(&self) -> Guard<'_, T> {
        let mut turns = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        self.take_away(&mut turns);
        while self.inside.load(Ordering::Acquire) {
            turns = self.left.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        Guard::new(self, Some(turns))
    }

    /// As [`Self::ask`], if that is at once.
    #[cold]
    fn try_ask(&self) -> Option<Guard<'_, T>> {
        let mut turns = match self.others.try_lock() {
            Ok(turns) => turns,
            Err(TryLockError::Poisoned(turns)) => turns.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        self.take_away(&mut turns);
        (!self.inside.load(Ordering::Acquire)).then(|| Guard::new(self, Some(turns)))
    }

    /// Nobody goes inside any more.
    fn take_away(&self, turns: &mut Turns) {
        if self.owner.load(Ordering::Relaxed) != NOBODY {
            self.owner.store(NOBODY, Ordering::Relaxed);
            turns.patience = turns.patience.saturating_mul(2);
            fence::heavy();
        }
    }

    /// This thread has had the value, and may be the owner from now on. Not before: as the owner it would go inside
    /// although its guard is still there.
    #[cold]
    fn had(&self, turns: &mut Turns) {
        let me = this_thread();
        turns.row = if turns.last == me { turns.row.saturating_add(1) } else { 0 };
        turns.last = me;
        let may_own = turns.heir == NOBODY || turns.heir == me;
        if turns.row >= turns.patience && may_own && fence::is_light() {
            (turns.heir, turns.row) = (me, 0);
            self.owner.store(me, Ordering::Relaxed);
        }
    }
}

impl<T> fmt::Debug for Biased<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Biased").finish_non_exhaustive()
    }
}

/// The value, until this is dropped, in the thread that has got it.
#[derive(Debug)]
pub struct Guard<'a, T> {
    lock: &'a Biased<T>,
    /// `None` where the owner has it. A guard of a mutex remains in its thread, and so does this one.
    asked: Option<MutexGuard<'a, Turns>>,
    /// Threads share a guard as they share what it leads to.
    value: PhantomData<&'a mut T>,
}

impl<'a, T> Guard<'a, T> {
    #[inline(always)]
    fn new(lock: &'a Biased<T>, asked: Option<MutexGuard<'a, Turns>>) -> Self {
        Self { lock, asked, value: PhantomData }
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: there is one guard at a time. Of those who asked, because they hold the mutex, until the guard is
        // gone. Of the owner, because it would have panicked inside. And not of both, because who asked has written
        // that there is no owner, and the owner that it is inside, each before a fence and a look at what the
        // other writes: one of them has seen the other, and has gone or waited. What the one before wrote is seen:
        // the mutex orders those who asked; `inside` goes down with release and is looked at with acquire; and a
        // thread becomes the owner with the mutex in its hand.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        match &mut self.asked {
            None => self.lock.leave(),
            Some(turns) => self.lock.had(turns),
        }
    }
}

/// A number that no other thread of this process has, or ever had.
#[cfg(not(all(loom, test)))]
#[inline(always)]
fn this_thread() -> u64 {
    use std::cell::Cell;

    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(NOBODY) };
    }

    #[cold]
    fn first() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(NOBODY + 1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(number);
        number
    }

    match NUMBER.get() {
        NOBODY => first(),
        number => number,
    }
}

#[cfg(all(loom, test))]
use model::this_thread;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::clock;

    /// Takes the lock until this thread is the owner.
    fn own<T>(lock: &Biased<T>) {
        let is_owner = || lock.owner.load(Ordering::Relaxed) == this_thread();
        for _ in 0..100_000 {
            if is_owner() {
                return;
            }
            drop(lock.lock());
        }
        assert!(is_owner(), "an owner");
    }

    #[test]
    fn a_thread_that_takes_it_often_is_the_owner_until_another_one_comes() {
        if !fence::is_light() {
            return;
        }
        let lock = Biased::new(0);
        own(&lock);
        *lock.lock() += 1;
        thread::scope(|scope| {
            scope.spawn(|| *lock.lock() += 1).join().expect("no panic");
        });
        assert_eq!(lock.owner.load(Ordering::Relaxed), NOBODY);
        *lock.lock() += 1;
        assert_eq!(*lock.lock(), 3);
        own(&lock);
    }

    #[test]
    fn nobody_else_gets_what_the_owner_has() {
        let lock = Biased::new(0);
        own(&lock);
        let mut guard = lock.lock();
        thread::scope(|scope| {
            assert!(scope.spawn(|| lock.try_lock().is_none()).join().expect("no panic"));
            let (sender, receiver) = mpsc::channel();
            let other = scope.spawn({
                let lock = &lock;
                move || {
                    sender.send(()).expect("somebody listens");
                    *lock.lock()
                }
            });
            receiver.recv().expect("a thread that begins");
            clock::sleep(Duration::from_millis(20));
            *guard = 7;
            drop(guard);
            assert_eq!(other.join().expect("no panic"), 7);
        });
        assert!(lock.try_lock().is_some());
    }

    #[test]
    #[should_panic(expected = "this thread has already")]
    fn the_owner_that_takes_it_twice_panics() {
        let lock = Biased::new(());
        own(&lock);
        let _first = lock.lock();
        drop(lock.lock());
    }

    #[test]
    fn a_thread_that_has_it_does_not_get_it_again() {
        let lock = Biased::new(());
        for call in 0..2 * FIRST_PATIENCE {
            let _guard = lock.lock();
            assert!(lock.try_lock().is_none(), "call {call}");
        }
    }

    #[test]
    fn a_panic_inside_leaves_it_open() {
        let lock = &Biased::new(());
        let inside = || {
            own(lock);
            let _guard = lock.lock();
            panic!("on purpose");
        };
        thread::scope(|scope| assert!(scope.spawn(inside).join().is_err()));
        assert!(lock.try_lock().is_some());
    }

    /// One thread all the time, others now and then: nothing that any of them counts is lost.
    #[test]
    fn what_is_counted_by_turns_is_all_there() {
        const OFTEN: u64 = 400_000;
        const RARELY: u64 = 300;
        let lock = &Biased::new((0_u64, 0_u64));
        let count = || {
            let mut both = lock.lock();
            assert_eq!(both.0, both.1);
            both.0 += 1;
            both.1 += 1;
        };
        let try_count = || match lock.try_lock() {
            Some(mut both) => {
                assert_eq!(both.0, both.1);
                both.0 += 1;
                both.1 += 1;
                true
            }
            None => false,
        };
        let tried = thread::scope(|scope| {
            scope.spawn(|| (0..OFTEN).for_each(|_| count()));
            scope.spawn(|| {
                for _ in 0..RARELY {
                    count();
                    clock::sleep(Duration::from_micros(50));
                }
            });
            let tries = scope.spawn(|| {
                let one = |_: &u64| {
                    clock::sleep(Duration::from_micros(30));
                    try_count()
                };
                (0..RARELY).filter(one).count() as u64
            });
            tries.join().expect("no panic")
        });
        assert_eq!(*lock.lock(), (OFTEN + RARELY + tried, OFTEN + RARELY + tried));
    }
}
