//! Numbers that C programs hold in place of pointers to our objects.
//!
//! A number has the process that made it in its upper bits and a counter in the lower ones. So a
//! forked child, where the threads behind an object do not exist, is recognised before any lock is
//! touched, and a number is never used twice.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use ccl::Error;

/// Bits of the counter. Linux limits process numbers to the remaining 22 bits.
const COUNTER_BITS: u32 = 42;

/// Objects of one kind that C programs refer to.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: &'static str,
    entries: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Table<T> {
    /// An empty table; `kind` is what messages call an entry.
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { kind, entries: RwLock::new(BTreeMap::new()) }
    }

    /// Adds an object and returns its number.
    pub(crate) fn insert(&self, object: Arc<T>) -> usize {
        let number = fresh_number();
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(number, object);
        number
    }

    /// The object with this number.
    pub(crate) fn get(&self, number: usize) -> Result<Arc<T>, Error> {
        self.check(number)?;
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(&number).cloned().ok_or_else(|| self.gone())
    }

    /// Takes the object with this number out of the table.
    pub(crate) fn remove(&self, number: usize) -> Result<Arc<T>, Error> {
        self.check(number)?;
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.remove(&number).ok_or_else(|| self.gone())
    }

    /// Whether it may be the number of an object of this process.
    #[inline(always)]
    pub(crate) fn check(&self, number: usize) -> Result<(), Error> {
        match number >> COUNTER_BITS == this_process() {
            true => Ok(()),
            false => Err(self.strange(number)),
        }
    }

    /// Why a number is none of this process.
    #[cold]
    fn strange(&self, number: usize) -> Error {
        let (kind, owner) = (self.kind, number >> COUNTER_BITS);
        if number == 0 {
            return Error::InvalidArgument(format!("the {kind} is NULL"));
        }
        if owner == 0 {
            return Error::InvalidArgument(format!("{number:#x} is no {kind}"));
        }
        Error::InvalidUsage(format!(
            "this process did not create the {kind} (process {owner} did, if it is one): after fork(), \
             a child creates its own"
        ))
    }

    fn gone(&self) -> Error {
        Error::InvalidArgument(format!("the {} does not exist any more", self.kind))
    }
}

/// A number that no other object of this process has, or ever had.
pub(crate) fn fresh_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    (this_process() << COUNTER_BITS) | NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The contents of a mutex. A panic elsewhere has been reported already and leaves nothing half done
/// in the values this crate guards.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of this process. The kernel is asked once, since every call of a program wants to know.
#[inline(always)]
fn this_process() -> usize {
    match KNOWN.load(Ordering::Relaxed) {
        0 => ask_who_we_are(),
        known => known,
    }
}

/// The number of this process, or 0 while nobody has asked.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

#[cold]
fn ask_who_we_are() -> usize {
    static WATCHING: OnceLock<bool> = OnceLock::new();
    // SAFETY: the handler does nothing but store a number, which is allowed in a child of any process.
    let watch = || unsafe { libc::pthread_atfork(None, None, Some(forget)) } == 0;
    let number = std::process::id() as usize;
    if *WATCHING.get_or_init(watch) {
        KNOWN.store(number, Ordering::Relaxed);
    }
    number
}

/// A child is another process than its parent.
unsafe extern "C" fn forget() {
    KNOWN.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_lives_as_long_as_its_object() {
        let table = Table::new("thing");
        let number = table.insert(Arc::new(7));
        let other = table.insert(Arc::new(8));
        assert_ne!(number, other);
        assert_eq!(table.get(number).map(|thing| *thing), Ok(7));
        assert_eq!(table.remove(number).map(|thing| *thing), Ok(7));
        let gone = Error::InvalidArgument("the thing does not exist any more".into());
        assert_eq!(table.get(number), Err(gone.clone()));
        assert_eq!(table.remove(number), Err(gone));
        assert_eq!(table.get(0), Err(Error::InvalidArgument("the thing is NULL".into())));
        assert_eq!(table.get(18), Err(Error::InvalidArgument("0x12 is no thing".into())));
    }

    #[test]
    fn the_number_of_another_process_is_refused() {
        let table: Table<i32> = Table::new("thing");
        let foreign = fresh_number() ^ (1 << COUNTER_BITS);
        assert!(matches!(table.get(foreign), Err(Error::InvalidUsage(_))));
        assert!(matches!(table.remove(foreign), Err(Error::InvalidUsage(_))));
    }
}
