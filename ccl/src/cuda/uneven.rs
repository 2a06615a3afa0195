//! Blocks of different sizes: what ranks tell each other of them where the host moves them, and what is said if
//! they do not fit together.

use std::sync::Arc;

use ccl_core::datatype::DataType;
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::layout::Ragged;
use ccl_kernels::Region;
use ccl_kernels::cuda::gpu::{self, Buffer, DeviceRegion, Event, Gpu, Stream};

use crate::operation::{Operation, OperationOn};

/// Bytes of a count on its way.
const COUNT_BYTES: usize = size_of::<u64>();

/// Whose blocks they are, and in which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Party {
    /// Position in the sequence of collectives.
    pub(super) sequence: u64,
    pub(super) me: Rank,
    pub(super) datatype: DataType,
}

impl Party {
    /// `sender` sends so many bytes, and others are expected of it.
    pub(super) fn disagreement(&self, sender: Rank, sent: u64, expected: u64) -> Error {
        let size = self.datatype.bytes() as u64;
        let amount = |bytes: u64| match bytes % size {
            0 => format!("count={}", bytes / size),
            _ => format!("bytes={bytes}"),
        };
        let (expected, sent) = (amount(expected), amount(sent));
        let (me, datatype) = (self.me, self.datatype.name());
        Error::Disagreement {
            sequence: u32::try_from(self.sequence).unwrap_or(u32::MAX),
            rank: me,
            call: format!("alltoallv({expected} from rank {sender}, type={datatype})"),
            other: sender,
            other_call: format!("alltoallv({sent} to rank {me})"),
        }
    }
}

/// How many elements a rank has for each rank, and expects of it: what ranks tell each other before they move
/// as messages, whose ends need not come to the same call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) me: Rank,
    pub(crate) datatype: DataType,
    pub(crate) sent: Vec<usize>,
    pub(crate) received: Vec<usize>,
}

impl Census {
    pub(crate) fn new(me: Rank, datatype: DataType, counts: &Ragged) -> Self {
        let of = |pairs: &[(usize, usize)]| pairs.iter().map(|(count, _)| *count).collect();
        Self { me, datatype, sent: of(&counts.send), received: of(&counts.receive) }
    }

    /// Tells it all ranks, with an `AllToAllV` on memory of the host that `run` does as collective number
    /// `sequence`.
    ///
    /// # Errors
    /// Those of `run`, and `Disagreement` that names a rank which sends something else than is expected of it.
    pub(crate) fn take(
        &self,
        sequence: &dyn Fn() -> u64,
        run: &mut dyn FnMut(&[Operation<'_>]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let datatype = self.datatype;
        let mut told: Vec<u64> = self.sent.iter().map(|count| *count as u64).collect();
        let mut heard = vec![0u64; told.len()];
        let each = COUNT_BYTES / datatype.bytes();
        let places: Vec<_> = (0..told.len()).map(|rank| (each, rank * each)).collect();
        let counts = Ragged { send: places.clone(), receive: places };
        let (input, output) = (Region::of_mut(&mut told), Region::of_mut(&mut heard));
        run(&[Operation::AllToAllV { datatype, counts, input, output }])?;
        for (rank, (sent, expected)) in (0..).zip(heard.into_iter().zip(&self.received)) {
            let expected = *expected as u64;
            if sent != expected {
                let party = Party { sequence: sequence(), me: self.me, datatype };
                let bytes = |count: u64| count.saturating_mul(datatype.bytes() as u64);
                return Err(party.disagreement(Rank(rank), bytes(sent), bytes(expected)));
            }
        }
        Ok(())
    }
}

/// Memory into which the input of an exchange in place is put, out of the way of its output. It is kept as long as
/// the communicator: freeing it would wait for the device.
#[derive(Debug, Default)]
pub(super) struct Aside {
    buffers: Vec<Arc<Buffer>>,
}

/// The blocks of an input, and where they are from now on, without gaps.
pub(super) struct Moved {
    pub(super) memory: Arc<Buffer>,
    pub(super) bytes: usize,
    pub(super) send: Vec<(usize, usize)>,
}

impl Aside {
    /// Lets the stream copy the blocks of an exchange whose input is its output, after `last`; None for other
    /// calls.
    pub(super) fn put(
        &mut self,
        gpu: &Gpu,
        stream: &Stream,
        last: Option<&Event>,
        operation: &OperationOn<DeviceRegion<'_>>,
    ) -> Result<Option<Moved>, gpu::Error> {
        let OperationOn::AllToAllV { datatype, counts, input, output } = operation else {
            return Ok(None);
        };
        let size = datatype.bytes();
        let bytes = counts.send.iter().map(|(count, _)| count * size).sum();
        if input.address() != output.address() || bytes == 0 {
            return Ok(None);
        }
        let memory = self.memory(gpu, bytes)?;
        // What the call before has there is no longer needed then.
        last.map_or(Ok(()), |last| stream.wait(last))?;
        let (mut send, mut at) = (Vec::new(), 0);
        for (count, displacement) in counts.send.iter().copied() {
            send.push((count, at));
            if count > 0 {
                let there = input.part(displacement * size, count * size);
                stream.copy(there, memory.region().part(at * size, count * size))?;
            }
            at += count;
        }
        Ok(Some(Moved { memory, bytes, send }))
    }

    fn memory(&mut self, gpu: &Gpu, bytes: usize) -> Result<Arc<Buffer>, gpu::Error> {
        let largest = self.buffers.last().map_or(0, |buffer| buffer.region().bytes());
        if largest < bytes {
            self.buffers.push(Arc::new(gpu.reserve(bytes.max(2 * largest))?));
        }
        Ok(Arc::clone(&self.buffers[self.buffers.len() - 1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(sent: &[usize], received: &[usize]) -> Census {
        let of = |counts: &[usize]| counts.to_vec();
        Census { me: Rank(0), datatype: DataType::Int32, sent: of(sent), received: of(received) }
    }

    /// Two ranks that say this to each other, as rank 0 hears it.
    fn heard(own: &Census, other: &[usize]) -> Result<(), Error> {
        let mut run = |operations: &[Operation<'_>]| {
            let [Operation::AllToAllV { counts, output, .. }] = operations else { unreachable!() };
            assert_eq!(counts.receive, [(2, 0), (2, 2)]);
            let counts = [own.sent[0] as u64, other[0] as u64];
            ccl_kernels::copy(Region::of(&counts).source(0, 16), output.target(0, 16));
            Ok(())
        };
        own.take(&|| 7, &mut run)
    }

    #[test]
    fn who_sends_something_else_is_named_with_both_counts() {
        assert_eq!(heard(&census(&[3, 70_000], &[3, 5]), &[5, 1]), Ok(()));
        let error = heard(&census(&[3, 70_000], &[3, 5]), &[600, 1]).unwrap_err().to_string();
        assert!(error.contains("call 7: rank 0 called alltoallv(count=5 from rank 1, type=int32)"));
        assert!(error.contains("rank 1 called alltoallv(count=600 to rank 0)"), "{error}");
        assert!(heard(&census(&[3, 1], &[3, 0]), &[1, 1]).is_err());
    }

    #[test]
    fn bytes_that_are_no_elements_are_told_as_bytes() {
        let party = Party { sequence: 1, me: Rank(2), datatype: DataType::Int64 };
        let error = party.disagreement(Rank(1), 12, 16).to_string();
        assert!(error.contains("bytes=12 to rank 2") && error.contains("count=2 from rank 1"));
    }
}
