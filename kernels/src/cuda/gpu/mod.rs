//! CUDA devices.
//!
//! The driver is looked for when a device is opened, kernels are loaded when they are first used, and
//! nothing of CUDA is needed to build this. A kernel that waits for others should be
//! [prepared](Gpu::prepare) before any of them runs: loading it may wait for those that run.

mod compile;
mod error;
mod exchange;
mod foreign;
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
pub use foreign::{KeptContext, device_of};
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
use std::sync::{Arc, Mutex, PoisonError};

use ccl_core::datatype::DataType;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, result, sys};
use cudarc::nvrtc::Ptx;

use super::{
    Arithmetic, CopyParameters, Entry, Family, MOST_RANKS, Module, Operands, Operation, Parameters,
    ReduceParameters,
};
use supply::Device;

/// The oldest driver whose functions are those of the bindings: CUDA 13.0.
const OLDEST_DRIVER: i32 = 13_000;
/// Threads of a block of loops over elements.
const LOOP_THREADS: u32 = 512;
/// Blocks of a reduction per processor of the device, at most: as many as run at once.
const REDUCING_BLOCKS: u32 = 4;
/// Blocks of a copy, which is faster with more of them than run at once.
const COPYING_BLOCKS: u32 = 32;
const VECTOR_BYTES: u64 = 16;

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
    copies: Arc<CudaStream>,
    device: Device,
    processors: u32,
    supply: Supply,
    functions: Mutex<BTreeMap<String, CudaFunction>>,
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
        let copies = context.new_stream().map_err(Error::driver("make a stream"))?;
        Ok(Self { context, copies, device, processors, supply, functions: Mutex::default() })
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
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if functions.contains_key(&module.entries()[0].name()) {
            return Ok(());
        }
        let image = supply.module(module, self.device)?;
        let loaded = self.context.load_module(Ptx::from_binary(image));
        let loaded = loaded.map_err(Error::driver("load kernels"))?;
        for entry in module.entries() {
            let name = entry.name();
            let function = loaded.load_function(&name).map_err(Error::driver("find a kernel"))?;
            // A question about a kernel loads it, which otherwise its first launch would do.
            function.num_regs().map_err(Error::driver("load a kernel"))?;
            functions.insert(name, function);
        }
        Ok(())
    }

    /// The kernel, which stays loaded as long as the device is open.
    fn function(&self, entry: Entry) -> Result<sys::CUfunction, Error> {
        self.prepare(entry.module())?;
        let functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(functions[&entry.name()].cu_function())
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

    /// Copies `source` to all destinations on the stream.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if there is no destination, there are more than [`MOST_RANKS`], or lengths
    /// differ; or the kernel cannot be launched.
    pub fn copy(
        &self,
        stream: &Stream,
        source: DeviceRegion<'_>,
        destinations: &[DeviceRegion<'_>],
    ) -> Result<(), Error> {
        check(&[source], destinations, 1)?;
        let parameters = CopyParameters {
            source: source.address(),
            destinations: addresses(destinations),
            bytes: source.bytes() as u64,
            destination_count: destinations.len() as u32,
            unused: 0,
        };
        let shape = self.loop_shape(source.bytes() as u64, COPYING_BLOCKS);
        // SAFETY: whoever made the regions answers for them.
        unsafe { self.launch(stream, Entry::Copy, shape, &parameters) }
    }

    /// Copies as the driver does it, which is the measure for kernels.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if lengths differ, or the driver refuses it.
    pub fn copy_plainly(
        &self,
        stream: &Stream,
        source: DeviceRegion<'_>,
        destination: DeviceRegion<'_>,
    ) -> Result<(), Error> {
        let bytes = check(&[source], &[destination], 1)?;
        let (from, to) = (source.address(), destination.address());
        self.context.bind_to_thread().map_err(Error::driver("bind the context"))?;
        // SAFETY: whoever made the regions answers for them.
        unsafe { result::memcpy_dtod_async(to, from, bytes, stream.0.cu_stream()) }
            .map_err(Error::driver("copy on the device"))
    }

    /// `destinations = reduce(sources)` on the stream, element by element, in the order of the
    /// sources. Regions overlap only if they are the same bytes. A single source whose elements are
    /// neither scaled nor divided is copied.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if there is no source or destination, there are more than [`MOST_RANKS`],
    /// lengths differ or are not whole elements, there is no such operation for the type, or the
    /// divisor is zero; or the kernel cannot be launched.
    pub fn reduce(
        &self,
        stream: &Stream,
        (operation, datatype): (Operation, DataType),
        arithmetic: Arithmetic,
        sources: &[DeviceRegion<'_>],
        destinations: &[DeviceRegion<'_>],
    ) -> Result<(), Error> {
        let bytes = check(sources, destinations, datatype.bytes())?;
        let changes = match operation {
            Operation::Scaled => arithmetic.scaled & 1 == 1,
            Operation::Mean => true,
            Operation::Sum | Operation::Prod | Operation::Max | Operation::Min => false,
        };
        if !operation.is_of(datatype) || operation == Operation::Mean && arithmetic.divisor == 0 {
            return Err(Error::Misuse(format!("no {operation:?} of {}", datatype.name())));
        }
        if let ([source], false) = (sources, changes) {
            return self.copy(stream, *source, destinations);
        }
        let operands = Operands {
            sources: addresses(sources),
            destinations: addresses(destinations),
            source_count: sources.len() as u32,
            destination_count: destinations.len() as u32,
            arithmetic,
        };
        let parameters = ReduceParameters { operands, count: (bytes / datatype.bytes()) as u64 };
        let entry = Entry::Elements { family: Family::Reduce, operation, datatype };
        // SAFETY: whoever made the regions answers for them.
        unsafe {
            self.launch(stream, entry, self.loop_shape(bytes as u64, REDUCING_BLOCKS), &parameters)
        }
    }

    /// As many blocks as there is work for, and no more for each processor.
    fn loop_shape(&self, bytes: u64, most: u32) -> Shape {
        let per_block = VECTOR_BYTES * u64::from(LOOP_THREADS);
        let most = u64::from(self.processors * most);
        let blocks = bytes.div_ceil(per_block).clamp(1, most);
        Shape { blocks: blocks as u32, threads: LOOP_THREADS }
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

/// The common length of regions.
fn check(
    sources: &[DeviceRegion<'_>],
    destinations: &[DeviceRegion<'_>],
    size: usize,
) -> Result<usize, Error> {
    for (regions, what) in [(sources, "sources"), (destinations, "destinations")] {
        if regions.is_empty() || regions.len() > MOST_RANKS {
            return Err(Error::Misuse(format!(
                "{} {what}: there are from 1 to {MOST_RANKS}",
                regions.len()
            )));
        }
    }
    let bytes = sources[0].bytes();
    let same = sources.iter().chain(destinations).all(|region| region.bytes() == bytes);
    if !same || !bytes.is_multiple_of(size) {
        return Err(Error::Misuse(format!(
            "regions of whole elements are equally long: {bytes} bytes"
        )));
    }
    Ok(bytes)
}

fn addresses(regions: &[DeviceRegion<'_>]) -> [u64; MOST_RANKS] {
    std::array::from_fn(|k| regions.get(k).map_or(0, DeviceRegion::address))
}
