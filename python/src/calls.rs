//! From the arguments of a Python call to an operation.
//!
//! Counts come from the sizes of the buffers; what does not fit together is an error that names the
//! argument, before anything moves.

use std::cmp::Ordering;

use ccl::{Collective, Operation, Ragged, Rank, Reduction, Request};
use pyo3::prelude::*;

use crate::buffer::{Buffer, Home};
use crate::element::Element;
use crate::errors::{exception, invalid_argument};
use crate::reduction::ReduceOp;
use crate::work::Call;

/// Who calls.
#[derive(Clone, Copy)]
pub(crate) struct Place<'py> {
    pub(crate) py: Python<'py>,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The stream of a call on memory of a device; None if the program names none.
    pub(crate) stream: Option<usize>,
}

/// A collective call, without its buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    collective: Collective,
    op: ReduceOp,
    root: i64,
}

/// What a rank passes; `None`: nothing, or in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given<'a, 'py> {
    pub(crate) input: Option<&'a Bound<'py, PyAny>>,
    pub(crate) output: Option<&'a Bound<'py, PyAny>>,
}

/// Blocks that a rank reads and writes; `None`: it has no such buffer.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    input: Option<usize>,
    output: Option<usize>,
}

/// The arguments of `all_to_all_v`, in elements by rank.
#[derive(Debug)]
pub(crate) struct RaggedCounts {
    pub(crate) send: Vec<usize>,
    pub(crate) receive: Vec<usize>,
    pub(crate) send_displacements: Option<Vec<usize>>,
    pub(crate) receive_displacements: Option<Vec<usize>>,
}

impl Kind {
    /// A collective with neither reduction nor root.
    pub(crate) fn of(collective: Collective) -> Self {
        Self { collective, op: ReduceOp::SUM, root: 0 }
    }

    /// The same with a reduction.
    pub(crate) fn op(self, op: ReduceOp) -> Self {
        Self { op, ..self }
    }

    /// The same with a root.
    pub(crate) fn root(self, root: i64) -> Self {
        Self { root, ..self }
    }

    /// The call on these buffers.
    pub(crate) fn on(self, place: Place<'_>, given: Given<'_, '_>) -> PyResult<Call> {
        let root = rank(place, "root", self.root)?;
        let blocks = Blocks::of(self.collective, place, root);
        match (blocks.input, blocks.output) {
            (Some(sent), Some(received)) => match given.output {
                Some(output) => {
                    let input = read("input", given.input, place)?;
                    let output = Buffer::to_write("output", output, place.stream)?;
                    self.apart(place, root, (input, sent), (output, received))
                }
                None => {
                    let buffer = required("input", given.input, place)?;
                    let buffer =
                        Buffer::to_write("input (without an output)", buffer, place.stream)?;
                    self.in_place(place, root, buffer, blocks)
                }
            },
            (Some(sent), None) => {
                let input = read("input", given.input, place)?;
                let count = divide(place, "input", input.count(), sent)?;
                let request = self.request(place, root, count, input.element())?;
                let region = Some(input.region());
                let operation = Operation::Collective { request, input: region, output: None };
                Ok(Call { operation, buffers: vec![input] })
            }
            (None, _) => {
                let output = required("output", given.output, place)?;
                let output = Buffer::to_write("output", output, place.stream)?;
                let request = self.request(place, root, output.count(), output.element())?;
                let region = Some(output.region());
                let operation = Operation::Collective { request, input: None, output: region };
                Ok(Call { operation, buffers: vec![output] })
            }
        }
    }

    /// With two buffers, of which the smaller says how many elements a block has.
    fn apart(
        self,
        place: Place<'_>,
        root: Rank,
        (input, sent): (Buffer, usize),
        (output, received): (Buffer, usize),
    ) -> PyResult<Call> {
        same_element(place, &input, &output)?;
        let count = if sent <= received {
            let count = divide(place, "input", input.count(), sent)?;
            expect(place, "output", output.count(), count * received)?;
            count
        } else {
            let count = divide(place, "output", output.count(), received)?;
            expect(place, "input", input.count(), count * sent)?;
            count
        };
        let request = self.request(place, root, count, input.element())?;
        let (from, to) = (Some(input.region()), Some(output.region()));
        let operation = Operation::Collective { request, input: from, output: to };
        Ok(Call { operation, buffers: vec![input, output] })
    }

    /// With one buffer: where one side has a single block, that is this rank's place in the other.
    fn in_place(
        self,
        place: Place<'_>,
        root: Rank,
        buffer: Buffer,
        blocks: Blocks,
    ) -> PyResult<Call> {
        let (sent, received) = (blocks.input.unwrap_or(1), blocks.output.unwrap_or(1));
        let count = divide(place, "input", buffer.count(), sent.max(received))?;
        let request = self.request(place, root, count, buffer.element())?;
        let whole = buffer.region();
        let bytes = count * buffer.element().bytes();
        let own = || match bytes {
            0 => whole,
            _ => whole.part(place.rank as usize * bytes, bytes),
        };
        let (input, output) = match sent.cmp(&received) {
            Ordering::Less => (own(), whole),
            Ordering::Equal => (whole, whole),
            Ordering::Greater => (whole, own()),
        };
        let operation = Operation::Collective { request, input: Some(input), output: Some(output) };
        Ok(Call { operation, buffers: vec![buffer] })
    }

    /// What all ranks have to agree on.
    pub(crate) fn request(
        self,
        place: Place<'_>,
        root: Rank,
        count: usize,
        element: Element,
    ) -> PyResult<Request> {
        let reduction = if self.collective.reduces() {
            self.op.of(place.py, element)?
        } else {
            Reduction::Builtin(ccl::ReduceOp::Sum)
        };
        let Element { datatype, .. } = element;
        Ok(Request { collective: self.collective, count, datatype, reduction, root })
    }

    /// The request of a call on `count` elements of the type with this name.
    pub(crate) fn planned(self, place: Place<'_>, count: usize, dtype: &str) -> PyResult<Request> {
        let root = rank(place, "root", self.root)?;
        let element = Element::from_name(dtype);
        let element =
            element.map_err(|unsupported| invalid_argument(place.py, unsupported.to_string()))?;
        self.request(place, root, count, element)
    }
}

impl Blocks {
    fn of(collective: Collective, place: Place<'_>, root: Rank) -> Self {
        let all = place.size as usize;
        let at_root = |blocks| (place.rank == root.0).then_some(blocks);
        let (input, output) = match collective {
            Collective::AllReduce => (Some(1), Some(1)),
            Collective::AllGather => (Some(1), Some(all)),
            Collective::ReduceScatter => (Some(all), Some(1)),
            Collective::AllToAll => (Some(all), Some(all)),
            Collective::Broadcast => (at_root(1), Some(1)),
            Collective::Reduce => (Some(1), at_root(1)),
            Collective::Gather => (Some(1), at_root(all)),
            Collective::Scatter => (at_root(all), Some(1)),
            Collective::AllToAllV | Collective::Barrier | Collective::PointToPoint => (None, None),
        };
        Self { input, output }
    }
}

/// `broadcast`: one buffer, which the root reads and the others write.
pub(crate) fn broadcast(place: Place<'_>, root: i64, buffer: &Bound<'_, PyAny>) -> PyResult<Call> {
    let given = Given { input: Some(buffer), output: None };
    if i64::from(place.rank) == root {
        return Kind::of(Collective::Broadcast).root(root).on(place, given);
    }
    let given = Given { input: None, output: Some(buffer) };
    Kind::of(Collective::Broadcast).root(root).on(place, given)
}

/// `all_to_all_v`.
pub(crate) fn all_to_all_v(
    place: Place<'_>,
    given: Given<'_, '_>,
    counts: RaggedCounts,
) -> PyResult<Call> {
    let input = read("input", given.input, place)?;
    let output = required("output", given.output, place)?;
    let output = Buffer::to_write("output", output, place.stream)?;
    same_element(place, &input, &output)?;
    let send = pairs(place, "send", counts.send, counts.send_displacements)?;
    let receive = pairs(place, "receive", counts.receive, counts.receive_displacements)?;
    let operation = Operation::AllToAllV {
        datatype: input.element().datatype,
        counts: Ragged { send, receive },
        input: input.region(),
        output: output.region(),
    };
    Ok(Call { operation, buffers: vec![input, output] })
}

/// `send`.
pub(crate) fn send(place: Place<'_>, buffer: &Bound<'_, PyAny>, peer: i64) -> PyResult<Call> {
    let peer = rank(place, "peer", peer)?;
    let buffer = Buffer::to_read("buffer", buffer, place.stream)?;
    let operation = Operation::Send { peer, data: buffer.region() };
    Ok(Call { operation, buffers: vec![buffer] })
}

/// `recv`.
pub(crate) fn receive(place: Place<'_>, buffer: &Bound<'_, PyAny>, peer: i64) -> PyResult<Call> {
    let peer = rank(place, "peer", peer)?;
    let buffer = Buffer::to_write("buffer", buffer, place.stream)?;
    let operation = Operation::Receive { peer, data: buffer.region() };
    Ok(Call { operation, buffers: vec![buffer] })
}

/// `barrier`.
pub(crate) fn barrier() -> Call {
    Call { operation: Operation::Barrier, buffers: Vec::new() }
}

/// The collective with a name like `all_reduce`.
pub(crate) fn collective(py: Python<'_>, name: &str) -> PyResult<Collective> {
    let plain = name.replace('_', "");
    let mut described = Collective::ALL.into_iter().filter(|one| match one {
        Collective::AllReduce
        | Collective::AllGather
        | Collective::ReduceScatter
        | Collective::Broadcast
        | Collective::Reduce
        | Collective::AllToAll
        | Collective::Gather
        | Collective::Scatter => true,
        Collective::AllToAllV | Collective::Barrier | Collective::PointToPoint => false,
    });
    described.find(|one| one.name() == plain).ok_or_else(|| {
        invalid_argument(py, format!("\"{name}\" is no collective that plans are made for"))
    })
}

fn rank(place: Place<'_>, what: &str, number: i64) -> PyResult<Rank> {
    let rank = u32::try_from(number).ok().filter(|rank| *rank < place.size).map(Rank);
    rank.ok_or_else(|| {
        let text = format!("{what} {number} is not a rank of a group of {}", place.size);
        invalid_argument(place.py, text)
    })
}

fn required<'a, 'py>(
    what: &str,
    object: Option<&'a Bound<'py, PyAny>>,
    place: Place<'_>,
) -> PyResult<&'a Bound<'py, PyAny>> {
    object.ok_or_else(|| {
        invalid_argument(place.py, format!("{what} is None, but rank {} needs it", place.rank))
    })
}

fn read(what: &str, object: Option<&Bound<'_, PyAny>>, place: Place<'_>) -> PyResult<Buffer> {
    Buffer::to_read(what, required(what, object, place)?, place.stream)
}

/// Elements of one of `blocks` equal blocks.
fn divide(place: Place<'_>, what: &str, count: usize, blocks: usize) -> PyResult<usize> {
    if count.is_multiple_of(blocks) {
        return Ok(count / blocks);
    }
    let text = format!("{what} has {count} elements, which cannot be divided among {blocks} ranks");
    Err(invalid_argument(place.py, text))
}

fn expect(place: Place<'_>, what: &str, given: usize, needed: usize) -> PyResult<()> {
    if given == needed {
        return Ok(());
    }
    let text = format!("{what} has {given} elements, {needed} are needed");
    Err(invalid_argument(place.py, text))
}

fn same_element(place: Place<'_>, input: &Buffer, output: &Buffer) -> PyResult<()> {
    let (from, to) = (input.element(), output.element());
    if from == to {
        return Ok(());
    }
    let text = format!("input has elements of {}, output of {}", from.name(), to.name());
    Err(invalid_argument(place.py, text))
}

/// Counts with their displacements; without these, blocks follow each other.
fn pairs(
    place: Place<'_>,
    what: &str,
    counts: Vec<usize>,
    displacements: Option<Vec<usize>>,
) -> PyResult<Vec<(usize, usize)>> {
    let Some(displacements) = displacements else {
        let mut end = 0usize;
        let follow = |count| {
            let begin = end;
            end = end.saturating_add(count);
            (count, begin)
        };
        return Ok(counts.into_iter().map(follow).collect());
    };
    if displacements.len() == counts.len() {
        return Ok(counts.into_iter().zip(displacements).collect());
    }
    let text = format!("{} {what} counts have {} displacements", counts.len(), displacements.len());
    Err(invalid_argument(place.py, text))
}

/// Whether a call is on memory of a device: all of its buffers are, or none is.
pub(crate) fn is_on_device(place: Place<'_>, call: &Call) -> PyResult<bool> {
    let on_device = |buffer: &&Buffer| buffer.home() != Home::Host;
    let devices = call.buffers.iter().filter(on_device).count();
    if devices != 0 && devices != call.buffers.len() {
        let text =
            "input and output must both be in the memory of the host, or both on a CUDA device";
        return Err(invalid_argument(place.py, text));
    }
    if place.stream.is_some() && devices == 0 && !call.buffers.is_empty() {
        let text =
            "stream is for memory of a CUDA device, but the buffers are in the memory of the host";
        return Err(invalid_argument(place.py, text));
    }
    Ok(devices > 0 || (call.buffers.is_empty() && place.stream.is_some()))
}

/// Checks everything that this rank can know about its call.
pub(crate) fn validate(place: Place<'_>, call: &Call) -> PyResult<()> {
    let checked = call.operation.validate(Rank(place.rank), place.size);
    checked.map_err(|error| exception(place.py, &error))
}
