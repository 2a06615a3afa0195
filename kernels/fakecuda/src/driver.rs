//! What the handles of C stand for, and which context a thread has.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use ccl_emulator::{Kernel, Module};

use crate::allocations::Allocations;
use crate::capture::Capture;
use crate::codes::{Code, Result};
use crate::device::Device;
use crate::event::Event;
use crate::graph::{Captured, Executable, Graph};
use crate::stream::{After, Stream};
use crate::work::Work;
use crate::{bell, settings};

/// The default stream under its other name.
const LEGACY_STREAM: usize = 1;

/// A module, and the device for which it was loaded.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) module: Arc<Module>,
    pub(crate) device: &'static Device,
}

/// A kernel that a program has asked for.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) kernel: Kernel,
    /// On whose streams it is launched.
    pub(crate) device: &'static Device,
    /// The number of its module.
    pub(crate) module: usize,
    /// Shared memory that a launch may ask for.
    pub(crate) dynamic_shared_bytes: AtomicU32,
}

/// Things by the numbers that C has for them.
#[derive(Debug)]
pub(crate) struct Table<T>(BTreeMap<usize, T>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone> Table<T> {
    pub(crate) fn get(&self, number: usize) -> Result<T> {
        self.0.get(&number).cloned().ok_or(Code::InvalidHandle)
    }

    pub(crate) fn remove(&mut self, number: usize) -> Result<T> {
        self.0.remove(&number).ok_or(Code::InvalidHandle)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    /// The number of something that is already there.
    pub(crate) fn find(&self, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        self.0.iter().find(|(_, thing)| is_it(thing)).map(|(number, _)| *number)
    }

    pub(crate) fn retain(&mut self, is_kept: impl Fn(&T) -> bool) {
        self.0.retain(|_, thing| is_kept(thing));
    }
}

/// Everything that was made and not destroyed.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    made: usize,
    pub(crate) allocations: Allocations,
    pub(crate) streams: Table<Arc<Stream>>,
    /// Streams that were destroyed and still have work.
    closing: Vec<Arc<Stream>>,
    pub(crate) events: Table<Arc<Event>>,
    pub(crate) modules: Table<Loaded>,
    pub(crate) functions: Table<Arc<Function>>,
    pub(crate) graphs: Table<Arc<Graph>>,
    pub(crate) executables: Table<Arc<Executable>>,
}

impl Objects {
    /// A number that nothing else has, like an address.
    pub(crate) fn number(&mut self) -> usize {
        self.made += 1;
        0x10_0000 + 16 * self.made
    }

    /// Keeps something under a new number.
    pub(crate) fn keep<T>(&mut self, table: fn(&mut Self) -> &mut Table<T>, thing: T) -> usize {
        let number = self.number();
        table(self).0.insert(number, thing);
        number
    }

    /// Keeps something under a number that was drawn before.
    pub(crate) fn keep_stream(&mut self, stream: &Arc<Stream>) {
        self.streams.0.insert(stream.number, Arc::clone(stream));
    }

    /// Forgets a stream, but not the work in it.
    pub(crate) fn close_stream(&mut self, number: usize) -> Result<Arc<Stream>> {
        let stream = self.streams.remove(number)?;
        stream.close();
        self.closing.retain(|stream| !stream.is_idle());
        self.closing.push(Arc::clone(&stream));
        Ok(stream)
    }

    /// All streams of a device that have a number and may have work.
    fn streams_of(&self, device: &Device) -> Vec<Arc<Stream>> {
        let of_device = |stream: &&Arc<Stream>| stream.device.ordinal == device.ordinal;
        self.streams.all().chain(&self.closing).filter(of_device).cloned().collect()
    }
}

/// All objects of the process. Nobody waits while he has them.
pub(crate) fn objects() -> MutexGuard<'static, Objects> {
    static ALL: LazyLock<Mutex<Objects>> = LazyLock::new(Mutex::default);
    ALL.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

static IS_INITIALISED: AtomicBool = AtomicBool::new(false);

pub(crate) fn initialise() {
    IS_INITIALISED.store(true, Ordering::Relaxed);
}

pub(crate) fn require_initialised() -> Result<()> {
    if IS_INITIALISED.load(Ordering::Relaxed) { Ok(()) } else { Err(Code::NotInitialized) }
}

thread_local! {
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The context of this thread; 0 if it has none.
pub(crate) fn context() -> usize {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0))
}

pub(crate) fn change_contexts(change: impl FnOnce(&mut Vec<usize>)) {
    CONTEXTS.with_borrow_mut(change);
}

/// The device of this thread, if it works.
pub(crate) fn device() -> Result<&'static Device> {
    require_initialised()?;
    let device = Device::of_context(context())?;
    device.check()?;
    Ok(device)
}

/// The stream that a number stands for, of this thread's device if it has no name.
pub(crate) fn stream(number: usize) -> Result<Arc<Stream>> {
    let device = device()?;
    if number == 0 || number == LEGACY_STREAM {
        return Ok(Arc::clone(device.default_stream()));
    }
    let stream = objects().streams.get(number)?;
    stream.device.check()?;
    Ok(stream)
}

/// The streams that take turns with the default stream of a device.
fn blocking_streams(device: &Device) -> Vec<Arc<Stream>> {
    let mut streams = objects().streams_of(device);
    streams.retain(|stream| stream.is_blocking);
    streams
}

/// Where a capture has come to in a stream. Nobody knows it of the default stream while one goes on that takes turns
/// with it.
pub(crate) fn captured(stream: &Arc<Stream>) -> Result<Option<Captured>> {
    let is_default = stream.number == 0;
    if is_default && blocking_streams(stream.device).iter().any(|other| other.is_capturing()) {
        return Err(Code::CaptureImplicit);
    }
    Ok(stream.captured())
}

/// Puts work into a stream. The default stream waits for all that block, and they for it.
pub(crate) fn push(stream: &Arc<Stream>, work: Work) -> Result<()> {
    push_after(stream, work, None).map(drop)
}

/// As [`push`], behind what another stream has been given. Gives how far this one will have come.
pub(crate) fn push_after(stream: &Arc<Stream>, work: Work, before: Option<After>) -> Result<After> {
    let is_default = stream.number == 0;
    let others: Vec<Arc<Stream>> = if is_default {
        blocking_streams(stream.device)
    } else if stream.is_blocking {
        vec![Arc::clone(stream.device.default_stream())]
    } else {
        Vec::new()
    };
    if is_default {
        let refused = |captured: Captured| Err(captured.capture.invalidate(Code::CaptureImplicit));
        others
            .iter()
            .filter_map(|other| other.captured())
            .map(refused)
            .fold(Ok(()), Result::and)?;
    }
    let after = others.into_iter().map(|other| (Arc::clone(&other), other.entered()));
    let entered = stream.push(work, after.chain(before).collect())?;
    Ok((Arc::clone(stream), entered))
}

/// Whether a thread has the driver for itself.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// While it lives a thread has the driver for itself.
struct Taken;

impl Taken {
    /// Waits until nobody else has it.
    fn take() -> Self {
        let (take, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        bell::wait_until(|| IS_TAKEN.compare_exchange(false, true, take, relaxed).is_ok());
        Self
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        IS_TAKEN.store(false, Ordering::Release);
        bell::ring();
    }
}

/// Waits until nobody has the driver for itself: what every call begins with.
pub(crate) fn enter() {
    if IS_TAKEN.load(Ordering::Acquire) {
        bell::wait_until(|| !IS_TAKEN.load(Ordering::Acquire));
    }
}

/// Does something for which a late driver waits for the device, and keeps all others away.
pub(crate) fn alone<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    if settings::is_late() { when_idle(act) } else { act() }
}

/// Does something when the device has nothing to do. A late driver keeps all others away until then.
pub(crate) fn when_idle<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    let _taken = settings::is_late().then(Taken::take);
    device().and_then(drain).and_then(|()| act())
}

/// Waits for all work of a device. Nobody may while a stream of it is captured.
pub(crate) fn finish(device: &'static Device) -> Result<()> {
    let streams = objects().streams_of(device);
    for stream in streams {
        stream.finish()?;
    }
    device.default_stream().finish()
}

/// Waits for all work of a device; what is captured is not begun yet.
pub(crate) fn drain(device: &'static Device) -> Result<()> {
    let streams = objects().streams_of(device);
    for stream in streams {
        stream.drain()?;
    }
    device.default_stream().drain()
}

/// Ends a capture in all streams that take part.
pub(crate) fn end_capture(capture: &Arc<Capture>) {
    capture.end();
    let is_of_it = |captured: &Captured| Arc::ptr_eq(&captured.capture, capture);
    let streams: Vec<Arc<Stream>> = objects().streams.all().cloned().collect();
    for stream in streams {
        if stream.captured().as_ref().is_some_and(is_of_it) {
            stream.set_captured(None);
        }
    }
}
