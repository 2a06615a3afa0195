//! The memory of a [part](super::parts), and what is done with it there.

use ccl_core::datatype::DataType;
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::wire::Stamp;
use ccl_kernels::{
    Kernel, Region, Scratch, Source, Target, copy, copy_streaming, fill, reduce, scale,
};
use ccl_transport::attach::Process;
use ccl_transport::window::{Opened, View};
use smallvec::SmallVec;

use super::ending::History;
use super::parts::Part;
use super::{Ended, Limits};
use crate::executor::Failure;

/// So much is moved at a time: small beside a second-level cache, of which all operands take a part.
const BLOCK_BYTES: usize = 16 << 10;

/// So much where the system reads inputs: every time it has to be asked anew.
const ATTACHED_BLOCK_BYTES: usize = 64 << 10;

/// So much where results go past the caches. Memory takes long stretches faster than many short ones in turn, and only
/// the block itself has to stay in a cache until it is in all outputs.
const STREAMED_BLOCK_BYTES: usize = 128 << 10;

/// Bytes between two looks whether the call has ended elsewhere.
const LOOK_BYTES: usize = 1 << 20;

/// Who is asked during a part whether the call has ended elsewhere, and told of an input that cannot be read.
pub(super) trait Watch {
    /// Whether it goes on.
    fn look(&self) -> Ended;
    /// The error of the call that this is.
    fn failed(&self, failure: Failure) -> Box<Error>;
}

/// A part of a call of this rank.
pub(super) struct Watched<'a> {
    pub(super) limits: Limits<'a>,
    pub(super) me: Rank,
    pub(super) stamp: Stamp,
    pub(super) history: &'a History,
}

impl Watch for Watched<'_> {
    fn look(&self) -> Ended {
        self.limits.fault().map_or(Ok(()), |fault| Err(fault.into()))
    }

    fn failed(&self, failure: Failure) -> Box<Error> {
        self.limits.error_for(failure, self.me, self.stamp, self.history).into()
    }
}

/// Where a part is read.
pub(super) enum Input<'a> {
    Here(Region<'a>),
    There(View),
    /// At an address of a peer's process, from where the system copies it.
    Attached {
        peer: Rank,
        process: Process,
        address: u64,
    },
}

/// Where a part is written.
pub(super) enum Output<'a> {
    Here(Region<'a>),
    There(Opened),
}

impl Input<'_> {
    /// Where it is in this process.
    pub(super) fn address(&self) -> Option<usize> {
        match self {
            Self::Here(region) => Some(region.address()),
            Self::There(view) => Some(view.address()),
            Self::Attached { .. } => None,
        }
    }

    /// As many bytes of it as `aside` has, which are read to there if they are not here.
    fn source<'a>(&'a self, offset: usize, aside: Region<'a>) -> Result<Source<'a>, Failure> {
        let bytes = aside.bytes();
        match self {
            Self::Here(region) => Ok(region.source(offset, bytes)),
            Self::There(view) => Ok(view.bytes(offset..offset + bytes).into()),
            Self::Attached { peer, process, address } => {
                let address = address.wrapping_add(offset as u64);
                fill(aside.target(0, bytes), |into| process.read(address, into))
                    .map_err(|cause| Failure::Link { peer: *peer, cause })?;
                Ok(aside.source(0, bytes))
            }
        }
    }
}

impl Output<'_> {
    pub(super) fn address(&self) -> usize {
        match self {
            Self::Here(region) => region.address(),
            Self::There(opened) => opened.address(),
        }
    }

    fn target(&mut self, offset: usize, bytes: usize) -> Target<'_> {
        match self {
            Self::Here(region) => region.target(offset, bytes),
            Self::There(opened) => opened.bytes_mut(offset..offset + bytes).into(),
        }
    }
}

/// The memory of one part.
pub(super) struct Places<'a> {
    pub(super) inputs: SmallVec<[Contribution<'a>; 8]>,
    pub(super) outputs: SmallVec<[PlaceOfResult<'a>; 8]>,
}

impl Places<'_> {
    /// How much memory is read and written for the part: what is written where it was read counts once.
    pub(super) fn touched_bytes(&self, part: &Part) -> usize {
        let written = self.outputs.iter().filter(|place| !place.is_read).count();
        part.bytes.saturating_mul(self.inputs.len() + written)
    }
}

/// One of the inputs of a part.
pub(super) struct Contribution<'a> {
    pub(super) input: Input<'a>,
    pub(super) factor: Option<u64>,
}

impl Contribution<'_> {
    /// As many bytes of it as `aside` has, scaled there if they have to be.
    fn source<'a>(
        &'a self,
        offset: usize,
        datatype: DataType,
        aside: Region<'a>,
    ) -> Result<Source<'a>, Failure> {
        let source = self.input.source(offset, aside)?;
        let Some(factor) = self.factor else { return Ok(source) };
        scale(datatype, factor, source, aside.target(0, aside.bytes()));
        Ok(aside.source(0, aside.bytes()))
    }
}

/// One of the outputs of a part.
pub(super) struct PlaceOfResult<'a> {
    pub(super) output: Output<'a>,
    /// The same bytes were just read as an input.
    pub(super) is_read: bool,
}

/// Combines the inputs of a part and puts the result into its outputs, past the caches if it `streams`, until who watches
/// tells what has ended the call.
pub(super) fn carry_out(
    part: &Part,
    kernel: Kernel,
    mut places: Places<'_>,
    block: &mut Scratch,
    streams: bool,
    watch: impl Watch,
) -> Ended {
    // What is put aside has to stay in a cache, too.
    let is_scaled = places.inputs.iter().any(|input| input.factor.is_some());
    let is_attached = places.inputs.iter().any(|one| matches!(one.input, Input::Attached { .. }));
    let block_bytes = match () {
        () if is_attached => ATTACHED_BLOCK_BYTES,
        () if streams && !is_scaled => STREAMED_BLOCK_BYTES,
        () => BLOCK_BYTES,
    };
    block.grow(block_bytes * (1 + places.inputs.len()));
    let (block, scaled) = {
        let all = block.region();
        (all.part(0, block_bytes), all.part(block_bytes, block_bytes * places.inputs.len()))
    };
    for offset in (0..part.bytes).step_by(block_bytes) {
        if offset % LOOK_BYTES == 0 {
            watch.look()?;
        }
        let bytes = block_bytes.min(part.bytes - offset);
        let (source, target) = (part.source + offset, part.target + offset);
        let store = |from: Source<'_>, place: &mut PlaceOfResult<'_>| {
            let target = place.output.target(target, bytes);
            // What was just read as an input is in a cache.
            if streams && !place.is_read {
                copy_streaming(from, target)
            } else {
                copy(from, target)
            }
        };
        match &places.inputs[..] {
            [one] => {
                // Where it is already it stays.
                for place in places.outputs.iter_mut().filter(|place| !place.is_read) {
                    let from = one.input.source(source, scaled.part(0, bytes));
                    store(from.map_err(|failure| watch.failed(failure))?, place);
                }
            }
            inputs => {
                let sources: SmallVec<[Source<'_>; 8]> = inputs
                    .iter()
                    .enumerate()
                    .map(|(index, contribution)| {
                        let aside = scaled.part(index * block_bytes, bytes);
                        contribution.source(source, kernel.datatype, aside)
                    })
                    .collect::<Result<_, _>>()
                    .map_err(|failure| watch.failed(failure))?;
                if let [place] = &mut places.outputs[..]
                    && (!streams || place.is_read)
                {
                    reduce(kernel, &sources, place.output.target(target, bytes));
                    continue;
                }
                reduce(kernel, &sources, block.target(0, bytes));
                drop(sources);
                places.outputs.iter_mut().for_each(|place| store(block.source(0, bytes), place));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
