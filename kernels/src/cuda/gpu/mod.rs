//! CUDA devices.
//!
//! The driver is looked for when a device is opened, kernels are loaded when they are first used, and
//! nothing of CUDA is needed to build this. A kernel that waits for others should be
//! [prepared](Gpu::prepare) before any of them runs: loading it may wait for those that run.

mod compile;
mod error;
mod exchange;
mod foreign;
mod looked;
mod loops;
mod mapped;
mod marks;
mod memory;
mod messages;
mod nic;
mod place;
mod stream;
mod supply;

pub use compile::{Compiler, Target};
pub use error::Error;
pub use exchange::{Exchange, Layout, Own, Part, Protocol, Side, Told};
pub use foreign::{BesideCaptures, KeptContext, device_of};
pub use looked::Laggards;
pub use mapped::{Allocation, Invitation, Mapped, Shown, Window};
pub use marks::{MEETING_MARKS, Moment};
pub use memory::{Buffer, DeviceRegion, Handle, Imported, Lent, Pinned};
pub use messages::{Ground, Messages, Quarrel};
pub use nic::PinnedFile;
pub use place::Place;
pub use stream::{Event, EventPool, Graph, Stream};
pub use supply::{Supply, compile_into};

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaFunction, result, sys};
use cudarc::nvrtc::Ptx;

use super::{Entry, Module, Parameters};
use supply::Device;

/// The oldest driver whose functions are those of the bindings: CUDA 13.0.
const OLDEST_DRIVER: i32 = 13_000;

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of the grid.
    pub blocks: u32,
    /// Threads of each block, at most 512.
    pub threads: u32,
}

/// One device.
#[derive(Debug)]
pub struct Gpu {
    context: Arc<CudaContext>,
    /// For copies that the host waits for.
    copies: Stream,
    device: Device,
    processors: u32,
    supply: Supply,
    /// Those of whole modules only. Every launch needs them, so nobody keeps them who compiles or loads.
    functions: Mutex<BTreeMap<String, CudaFunction>>,
    /// Whoever loads a module has it.
    loading: Mutex<()>,
}

impl Gpu {
    /// Opens the device with this number.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] or [`Error::OldDriver`], or there is no such device.
    pub fn open(ordinal: usize, supply: Supply) -> Result<Self, Error> {
        let driver = driver_version()?;
        let context = CudaContext::new(ordinal).map_err(Error::driver("open a device"))?;
        // SAFETY: the events that are not recorded any more order slices of cudarc, and there are none
        // here.
        unsafe { context.disable_event_tracking() };
        let (major, minor) =
            context.compute_capability().map_err(Error::driver("ask for the architecture"))?;
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let processors =
            context.attribute(attribute).map_err(Error::driver("ask for the processors"))?;
        let architecture = major.unsigned_abs() * 10 + minor.unsigned_abs();
        let device = Device { architecture, driver };
        let processors = processors.unsigned_abs().max(1);
        let copies = Stream::new(&context)?;
        let (functions, loading) = Default::default();
        Ok(Self { context, copies, device, processors, supply, functions, loading })
    }

    /// How many devices there are.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] or [`Error::OldDriver`], or the driver refuses to start.
    pub fn count() -> Result<usize, Error> {
        driver_version()?;
        result::init().map_err(Error::driver("start the driver"))?;
        let count = CudaContext::device_count().map_err(Error::driver("count devices"))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The name of the device.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn name(&self) -> Result<String, Error> {
        self.context.name().map_err(Error::driver("ask for the name"))
    }

    /// Where the device is on the bus, such as `0000:01:00.0`.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn bus(&self) -> Result<String, Error> {
        let mut text = [0u8; 32];
        // SAFETY: so many bytes can be written, the last of which stays zero.
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 31, self.context.cu_device()) }
            .result()
            .map_err(Error::driver("ask for the place on the bus"))?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    /// Major and minor number of the architecture: 90 for 9.0.
    #[must_use]
    pub fn architecture(&self) -> u32 {
        self.device.architecture
    }

    /// The driver's version: 13000 for CUDA 13.0.
    #[must_use]
    pub fn driver(&self) -> i32 {
        self.device.driver
    }

    /// Processors of the device: blocks that run at the same time at least.
    #[must_use]
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// A stream of its own.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn stream(&self) -> Result<Stream, Error> {
        Stream::new(&self.context)
    }

    /// A stream that another library has made; null is the default stream. It is not destroyed.
    ///
    /// # Safety
    ///
    /// It is a stream (`CUstream`, `cudaStream_t`) of this device's primary context, and exists for as
    /// long as the result and its clones.
    #[must_use]
    pub unsafe fn stream_of(&self, stream: *mut c_void) -> Stream {
        // SAFETY: the caller answers for it.
        unsafe { Stream::borrowed(&self.context, stream.cast()) }
    }

    /// As [`Self::stream_of`], for a stream that may be of another device or context.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if it is; or the driver does not know the stream.
    ///
    /// # Safety
    ///
    /// It is a stream (`CUstream`, `cudaStream_t`) that exists for as long as the result and its clones, or a
    /// default stream, such as null, which is that of the context that is current in this thread.
    pub unsafe fn checked_stream_of(&self, stream: *mut c_void) -> Result<Stream, Error> {
        if !foreign::is_default(stream) {
            // The driver may want to be asked with a context of its own, whichever the thread has.
            self.context.bind_to_thread().map_err(Error::driver("bind the context"))?;
        }
        // SAFETY: the caller answers for it.
        let (device, own) = (unsafe { device_of(stream) }?, self.ordinal());
        if device != own {
            let text =
                format!("the stream is of device {device}, the communicator of device {own}");
            return Err(Error::Misuse(text));
        }
        // SAFETY: the caller answers for it.
        if unsafe { foreign::context_of(stream) }? != self.context.cu_ctx() {
            return Err(Error::Misuse(format!(
                "the stream is of a context of its own: only streams of the primary context of device \
                 {own} will do, which is that of the runtime"
            )));
        }
        // SAFETY: it is of this context, which was checked, and the caller answers for its life.
        Ok(unsafe { self.stream_of(stream) })
    }

    /// Where an address is.
    ///
    /// # Errors
    ///
    /// The driver does not answer.
    pub fn place(&self, address: u64) -> Result<Place, Error> {
        self.context.bind_to_thread().map_err(Error::driver("bind the context"))?;
        Place::of(address)
    }

    /// The number of the device.
    #[must_use]
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Zeroed memory of the device.
    ///
    /// # Errors
    ///
    /// There is not so much.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        Buffer::new(&self.copies, bytes)
    }

    /// Memory of the device with anything in it. Other than [`Self::allocate`], this waits for no stream.
    ///
    /// # Errors
    ///
    /// There is not so much.
    pub fn reserve(&self, bytes: usize) -> Result<Buffer, Error> {
        Buffer::unwritten(&self.copies, bytes)
    }

    /// Zeroed memory of the host that the device knows.
    ///
    /// # Errors
    ///
    /// There is not so much that can be pinned.
    pub fn pin(&self, bytes: usize) -> Result<Pinned, Error> {
        Pinned::new(&self.context, bytes)
    }

    /// A buffer of another process. A process cannot import its own.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn import(&self, handle: &Handle) -> Result<Imported, Error> {
        Imported::new(&self.context, handle)
    }

    /// Waits until the device has nothing more to do.
    ///
    /// # Errors
    ///
    /// Something failed.
    pub fn synchronise(&self) -> Result<(), Error> {
        self.context.synchronize().map_err(Error::driver("wait for the device"))
    }

    /// Loads all kernels of a module, so that no launch has to.
    ///
    /// # Errors
    ///
    /// They are not compiled and cannot be, or the driver refuses them.
    pub fn prepare(&self, module: Module) -> Result<(), Error> {
        self.prepare_from(&self.supply, module)
    }

    /// As [`Self::prepare`], with kernels from elsewhere, if they are not loaded yet.
    ///
    /// # Errors
    ///
    /// As [`Self::prepare`].
    pub fn prepare_from(&self, supply: &Supply, module: Module) -> Result<(), Error> {
        if self.has(module) {
            return Ok(());
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may have loaded it meanwhile.
        if self.has(module) {
            return Ok(());
        }
        let image = supply.module(module, self.device)?;
        let _beside = BesideCaptures::with(&self.context)?;
        let loaded = self.context.load_module(Ptx::from_binary(image));
        let loaded = loaded.map_err(Error::driver("load kernels"))?;
        let load = |entry: Entry| {
            let name = entry.name();
            let function = loaded.load_function(&name).map_err(Error::driver("find a kernel"))?;
            // A question about a kernel loads it, which otherwise its first launch would do.
            function.num_regs().map_err(Error::driver("load a kernel"))?;
            Ok((name, function))
        };
        let all = module.entries().into_iter().map(load).collect::<Result<Vec<_>, Error>>()?;
        self.functions().extend(all);
        Ok(())
    }

    /// Whether a module is loaded.
    fn has(&self, module: Module) -> bool {
        self.functions().contains_key(&module.entries()[0].name())
    }

    fn functions(&self) -> MutexGuard<'_, BTreeMap<String, CudaFunction>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel, which stays loaded as long as the device is open.
    fn function(&self, entry: Entry) -> Result<sys::CUfunction, Error> {
        self.prepare(entry.module())?;
        Ok(self.functions()[&entry.name()].cu_function())
    }

    /// Puts one kernel on the stream.
    ///
    /// # Errors
    ///
    /// It cannot be loaded, or the driver refuses the launch.
    ///
    /// # Safety
    ///
    /// Every address in the parameter is valid for what the kernel does with it, until it has ended,
    /// and nobody else touches these bytes meanwhile but as the kernel expects it.
    ///
    /// # Panics
    ///
    /// If the parameter is not that of the kernel.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        entry: Entry,
        shape: Shape,
        parameters: &impl Parameters,
    ) -> Result<(), Error> {
        // SAFETY: the caller answers for the addresses.
        unsafe { self.launch_bytes(stream, entry, shape, parameters.bytes()) }
    }

    /// As [`Gpu::launch`], with the bytes of the parameter.
    ///
    /// # Errors
    ///
    /// As [`Gpu::launch`].
    ///
    /// # Safety
    ///
    /// As [`Gpu::launch`].
    ///
    /// # Panics
    ///
    /// As [`Gpu::launch`].
    pub unsafe fn launch_bytes(
        &self,
        stream: &Stream,
        entry: Entry,
        shape: Shape,
        parameters: &[u8],
    ) -> Result<(), Error> {
        assert_eq!(parameters.len(), entry.parameter_bytes(), "the parameter of {}", entry.name());
        let function = self.function(entry)?;
        self.context.bind_to_thread().map_err(Error::driver("bind the context"))?;
        let (grid, block) = ((shape.blocks, 1, 1), (shape.threads, 1, 1));
        let mut arguments = [parameters.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the kernel has one parameter of this size, which the driver copies before the call
        // returns; the caller answers for the addresses in it.
        unsafe {
            result::launch_kernel(function, grid, block, 0, stream.0.cu_stream(), &mut arguments)
        }
        .map_err(Error::driver("launch a kernel"))
    }
}

/// What the driver says, if there is one and it is not too old.
fn driver_version() -> Result<i32, Error> {
    // SAFETY: what the library does when it is loaded is up to whoever installed it. Whatever else of
    // cudarc is called panics where there is none.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    let mut version = 0;
    // SAFETY: the driver writes one number where it is told.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(Error::driver("ask for the driver's version"))?;
    if version < OLDEST_DRIVER { Err(Error::OldDriver { version }) } else { Ok(version) }
}
