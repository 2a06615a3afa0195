//! What belongs to the program around the library: its streams, its captures, and the contexts of its threads.

use std::cell::Cell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::null_mut;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::driver_version;
use super::error::Error;

/// Gives the thread back the context that it had when this was made. The library binds contexts of its
/// devices to the threads that call it; a program goes on with its own.
///
/// Belongs to the thread that made it.
#[derive(Debug)]
pub struct KeptContext(sys::CUcontext);

impl KeptContext {
    /// Looks at what this thread has.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] or [`Error::OldDriver`], or the driver does not answer.
    pub fn of_this_thread() -> Result<Self, Error> {
        driver_version()?;
        result::init().map_err(Error::driver("start the driver"))?;
        let current = result::ctx::get_current().map_err(Error::driver("ask for the context"))?;
        Ok(Self(current.unwrap_or_else(null_mut)))
    }
}

impl Drop for KeptContext {
    fn drop(&mut self) {
        if result::ctx::get_current()
            .is_ok_and(|current| current.unwrap_or_else(null_mut) == self.0)
        {
            return;
        }
        // SAFETY: the context was current in this thread; the program may have destroyed it since, which
        // the driver refuses.
        let restored = unsafe { sys::cuCtxSetCurrent(self.0) }.result();
        // Nobody is left to hear of it, and the thread has a context that works.
        let _ = restored;
    }
}

/// As long as it lives, captures of the program do not mind what this thread does. A capture of mode `GLOBAL`, which is
/// usual, else forbids every thread to allocate, to free, to wait for streams and to look at events: such a call is refused,
/// *and* the capture comes to nothing.
///
/// Belongs to the thread that made it.
#[derive(Debug)]
pub struct BesideCaptures {
    /// The mode of the thread, if this has changed it.
    before: Option<sys::CUstreamCaptureMode>,
    of_this_thread: PhantomData<*const ()>,
}

thread_local! {
    /// Whether there is one that has changed the mode: those inside of it ask the driver nothing.
    static IS_BESIDE: Cell<bool> = const { Cell::new(false) };
}

impl BesideCaptures {
    /// From now on.
    #[must_use]
    pub fn begin() -> Self {
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // A driver that refuses it refuses what comes next, too, and that is told.
        let before = if IS_BESIDE.get() { None } else { exchange(relaxed).ok() };
        IS_BESIDE.set(IS_BESIDE.get() || before.is_some());
        Self { before, of_this_thread: PhantomData }
    }

    /// As [`Self::begin`], in a thread that has this context from then on.
    pub(super) fn with(context: &CudaContext) -> Result<Self, Error> {
        context.bind_to_thread().map_err(Error::driver("bind the context"))?;
        Ok(Self::begin())
    }
}

impl Drop for BesideCaptures {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        IS_BESIDE.set(false);
        // Nobody is left to hear of it.
        let _ = exchange(before);
    }
}

/// Gives this thread another mode; the one that it had.
fn exchange(mut mode: sys::CUstreamCaptureMode) -> Result<sys::CUstreamCaptureMode, DriverError> {
    // SAFETY: a mode is read and written where it is told.
    unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) }.result().map(|()| mode)
}

/// Gives something back to the driver, for a destructor: captures of the program do not mind it, and nobody hears of an
/// error, of which the next call for the device would be accused. Whoever makes that call hears what is wrong with the
/// device.
pub(super) fn give_back(context: &CudaContext, act: impl FnOnce() -> Result<(), DriverError>) {
    // SAFETY: the context stays as long as whatever belongs to it.
    let bound = unsafe { result::ctx::set_current(context.cu_ctx()) };
    let _beside = BesideCaptures::begin();
    let _ = bound.and_then(|()| act());
}

/// Whether this is no stream of its own, but stands for one of the context that is current: null,
/// `CU_STREAM_LEGACY` or `CU_STREAM_PER_THREAD`.
pub(super) fn is_default(stream: *mut c_void) -> bool {
    stream.addr() <= 2
}

/// The number of the device of a stream; of the current context if it is a default stream.
///
/// # Safety
///
/// It is a default stream or a stream (`CUstream`, `cudaStream_t`) that exists.
///
/// # Errors
///
/// [`Error::NoDriver`] or [`Error::OldDriver`], or the driver does not know the stream.
pub unsafe fn device_of(stream: *mut c_void) -> Result<usize, Error> {
    driver_version()?;
    result::init().map_err(Error::driver("start the driver"))?;
    let mut device = 0;
    // SAFETY: the caller answers for the stream; a number is written where it is told.
    unsafe { sys::cuStreamGetDevice(stream.cast(), &raw mut device) }
        .result()
        .map_err(Error::driver("ask for the device of a stream"))?;
    let count = CudaContext::device_count().map_err(Error::driver("count devices"))?;
    let is_meant = |ordinal: &i32| result::device::get(*ordinal).is_ok_and(|one| one == device);
    let unknown = || Error::Misuse("the stream is of no device of this process".to_owned());
    (0..count).find(is_meant).and_then(|found| usize::try_from(found).ok()).ok_or_else(unknown)
}

/// The context of a stream.
///
/// # Safety
///
/// As for [`device_of`].
pub(super) unsafe fn context_of(stream: *mut c_void) -> Result<sys::CUcontext, Error> {
    let mut context = null_mut();
    // SAFETY: the caller answers for the stream; a context is written where it is told.
    unsafe { sys::cuStreamGetCtx(stream.cast(), &raw mut context) }
        .result()
        .map_err(Error::driver("ask for the context of a stream"))?;
    Ok(context)
}
