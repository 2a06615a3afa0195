//! How bytes leave this rank: copied into the slots of a link, past the caches where its readers are far, or lent.

use ccl_core::datatype::DataType;
use ccl_core::program::{Action, Port, Span, StepIndex};
use ccl_kernels::{Region, copy, copy_streaming, scale};
use ccl_transport::{Link, Loan, Stretch};

use super::unstaged::Origin;
use super::{Failure, Run};

/// Shorter stretches are copied through the slots of the link, which is quicker than to wait until
/// the peer has read them.
pub(crate) const LEAST_LOAN_BYTES: usize = 32 << 10;

/// Longer stretches are lent in pieces of this size, so that the peer's work overlaps with ours.
const LOAN_BYTES: usize = 256 << 10;

/// Shorter tiles are always stored through the caches: hardly more than their headers.
const LEAST_STREAMED_BYTES: usize = 1 << 10;

/// So much is scaled at a time where it is stored past the caches, to be read from a close one.
const SCALED_BYTES: usize = 16 << 10;

/// Whether so many bytes are stored past the caches: a tile for readers that share none with us is fetched back from
/// them, line by line, before it is stored there.
#[inline(always)]
pub(super) fn is_streamed(link: &dyn Link, bytes: usize) -> bool {
    bytes >= LEAST_STREAMED_BYTES && link.is_far()
}

/// Scales into a slot past the caches: block by block, `aside`, from where it is copied.
fn scale_streaming(
    (datatype, factor): (DataType, u64),
    source: Region<'_>,
    aside: Region<'_>,
    slot: &mut [u8],
) {
    for (block, target) in slot.chunks_mut(SCALED_BYTES).enumerate() {
        let (offset, bytes) = (block * SCALED_BYTES, target.len());
        scale(datatype, factor, source.source(offset, bytes), aside.target(0, bytes));
        copy_streaming(aside.source(0, bytes), target.into());
    }
}

/// How the next bytes of a sending step leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Not now.
    Waits,
    /// Copied into a slot, so done.
    Copied(usize),
    /// Lent, under the number of a tile.
    Lent(usize, u64),
    /// Sent from where it is, in tiles of which the last has this number.
    Unstaged(usize, u64),
}

impl Run<'_> {
    /// Hands the next bytes of a sending step to the link, if both are ready.
    pub(super) fn depart(&mut self, port: Port, step: StepIndex) -> Result<Departure, Failure> {
        let this = &self.task.program.steps[step as usize];
        let Action::Send { from, lend, .. } = this.action else { unreachable!("a lane of sends") };
        let posted = self.progress.posted[step as usize];
        let loan = self.loan(from, posted, this.bytes).filter(|_| lend);
        let limit = self.progress.limit(self.task.program, step);
        let (stamp, factor) = (self.stamp(step), self.factor(from));
        let span = Span { offset: from.offset + posted, ..from };
        let memory = *self.region(span.buffer);
        let index = self.index(port);
        let Some(link) = &mut self.links[index] else {
            unreachable!("a link for every port of the program")
        };
        let failed = |cause| Failure::Link { peer: port.rank(), cause };
        // Several readers fetch what is lent from memory each, what is copied from a cache.
        let is_multicast = matches!(port, Port::Multicast(_));
        let is_apart = self.exceeds_all && is_multicast;
        let loan = loan.filter(|_| link.lends() && !is_apart);
        let largest = match loan {
            Some(_) => LOAN_BYTES,
            // All ranks send to all, and they are many: what is on the way has to stay in the caches together.
            None if is_multicast && self.task.program.receives.len() > 1 => link.tile_bytes() / 2,
            None => link.tile_bytes(),
        };
        let unstaged = match factor {
            None => self.least.next(this.bytes, (posted, limit), &**link),
            Some(_) => 0,
        };
        if unstaged > 0 {
            let origin = Origin(memory.source(span.offset, unstaged));
            let bytes = Stretch::new(&origin, 0..unstaged);
            let sent = link.send_unstaged(&stamp, bytes).map_err(failed)?;
            return Ok(
                sent.map_or(Departure::Waits, |(bytes, tile)| Departure::Unstaged(bytes, tile))
            );
        }
        let bytes = (this.bytes - posted).min(largest);
        if limit - posted.min(limit) < bytes {
            return Ok(Departure::Waits);
        }
        if let Some(loan) = loan {
            let tile = link.lend(&stamp, &Loan { bytes, ..loan }).map_err(failed)?;
            return Ok(tile.map_or(Departure::Waits, |tile| Departure::Lent(bytes, tile)));
        }
        let is_streamed = is_streamed(&**link, bytes);
        let Some(slot) = link.reserve(bytes).map_err(failed)? else { return Ok(Departure::Waits) };
        let source = memory.source(span.offset, bytes);
        match factor {
            Some(by) if is_streamed => {
                scale_streaming(by, memory.part(span.offset, bytes), self.scaled, slot);
            }
            Some((datatype, factor)) => scale(datatype, factor, source, slot.into()),
            None if is_streamed => copy_streaming(source, slot.into()),
            None => copy(source, slot.into()),
        }
        link.commit(&stamp).map_err(failed)?;
        Ok(Departure::Copied(bytes))
    }

    /// How a peer on this host could read what is left of a step, from `posted` on.
    fn loan(&self, from: Span, posted: usize, bytes: usize) -> Option<Loan> {
        if bytes < LEAST_LOAN_BYTES || self.factor(from).is_some() {
            return None;
        }
        let whole = (*self.loans.get(from.buffer.index())?)?;
        Some(Loan { offset: whole.offset + from.offset + posted, bytes: bytes - posted, ..whole })
    }
}
