//! Copies and reductions on one stream.

use ccl_core::datatype::DataType;
use cudarc::driver::result;

use super::memory::DeviceRegion;
use super::{Error, Gpu, Shape, Stream};
use crate::cuda::{
    Arithmetic, CopyParameters, Entry, Family, MOST_RANKS, Operands, Operation, ReduceParameters,
};

/// Threads of a block.
const LOOP_THREADS: u32 = 512;
/// Blocks of a reduction per processor of the device, at most: as many as run at once.
const REDUCING_BLOCKS: u32 = 4;
/// Blocks of a copy, which is faster with more of them than run at once.
const COPYING_BLOCKS: u32 = 32;
const VECTOR_BYTES: u64 = 16;

impl Gpu {
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
