//! Two processes on one device: each maps memory of the other, and they are two ranks.
#![allow(clippy::disallowed_methods, reason = "a neighbour that does not come is given up")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::gpu::{Buffer, Error, Gpu, Handle, Imported, Pinned, Shape, Stream};
use ccl_kernels::cuda::{
    ARRIVAL_BYTES, Arithmetic, Entry, Family, LowLatencyParameters, MOST_BLOCKS, MOST_RANKS,
    Module, Operation, PushParameters, State, slice,
};

const RANKS: usize = 2;
const CALLS: usize = 10;
const COUNT: usize = 1000;
const BYTES: usize = 4 * COUNT;
const SLOT_BYTES: usize = 2 * BYTES;
const SHAPE: Shape = Shape { blocks: 2, threads: 128 };
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

/// What the neighbour maps: mailbox, counters, input and output.
const SHARED_BYTES: [usize; 4] =
    [2 * RANKS * SLOT_BYTES, MOST_BLOCKS * MOST_RANKS * ARRIVAL_BYTES, BYTES, BYTES];
const HANDLE_BYTES: usize = Handle::BYTES + 8;

/// Starts the neighbour, which is to call [`follow`] with the same path, and is rank 0.
pub(crate) fn lead(gpu: &Gpu, path: &Path, neighbour: &mut Command) -> Result<(), String> {
    let listener = UnixListener::bind(path).map_err(|error| error.to_string())?;
    listener.set_nonblocking(true).map_err(|error| error.to_string())?;
    let mut child = neighbour.spawn().map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let met = loop {
        if let Ok((stream, _)) = listener.accept() {
            break stream
                .set_nonblocking(false)
                .map_err(|error| error.to_string())
                .and_then(|()| meet(gpu, 0, &stream));
        }
        let is_gone = child.try_wait().is_ok_and(|status| status.is_some());
        if is_gone || begin.elapsed() > PATIENCE {
            break Err("the neighbour did not come".into());
        }
        std::thread::sleep(POLL);
    };
    if met.is_err() {
        // It may have gone by itself.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    met?;
    if status.success() { Ok(()) } else { Err(format!("the neighbour: {status}")) }
}

/// Is rank 1.
pub(crate) fn follow(gpu: &Gpu, path: &Path) -> Result<(), String> {
    meet(gpu, 1, &UnixStream::connect(path).map_err(|error| error.to_string())?)
}

struct Rank<'a> {
    gpu: &'a Gpu,
    rank: usize,
    stream: Stream,
    own: Vec<Buffer>,
    other: Vec<Imported>,
    /// Where the neighbour finds this rank's input and output.
    seen: [u64; 2],
    states: [Buffer; 2],
    abort: Pinned,
}

fn meet(gpu: &Gpu, rank: usize, mut neighbour: &UnixStream) -> Result<(), String> {
    let said = |error: std::io::Error| error.to_string();
    neighbour.set_read_timeout(Some(PATIENCE)).map_err(said)?;
    let own: Result<Vec<Buffer>, Error> =
        SHARED_BYTES.iter().map(|&bytes| gpu.allocate(bytes)).collect();
    let own = own.map_err(|error| error.to_string())?;
    for buffer in &own {
        let handle = buffer.export().map_err(|error| error.to_string())?;
        neighbour.write_all(&handle.bytes).map_err(said)?;
        neighbour.write_all(&(handle.size as u64).to_le_bytes()).map_err(said)?;
    }
    let mut other = Vec::new();
    for _ in &own {
        let mut bytes = [0; HANDLE_BYTES];
        neighbour.read_exact(&mut bytes).map_err(said)?;
        other.push(gpu.import(&handle(&bytes)).map_err(|error| error.to_string())?);
    }
    // Where each of them is found here: what kernels are told by their peers is in their own addresses.
    let mut seen = [0; 2];
    for (imported, place) in other[2..].iter().zip(&mut seen) {
        neighbour.write_all(&imported.region().address().to_le_bytes()).map_err(said)?;
        let mut address = [0; 8];
        neighbour.read_exact(&mut address).map_err(said)?;
        *place = u64::from_le_bytes(address);
    }
    Rank::new(gpu, rank, (own, other, seen))
        .and_then(|r| r.calls(neighbour))
        .map_err(|e| e.to_string())
}

fn handle(bytes: &[u8; HANDLE_BYTES]) -> Handle {
    let (name, size) = bytes.split_at(Handle::BYTES);
    let size = u64::from_le_bytes(size.try_into().expect("eight bytes")) as usize;
    Handle { bytes: name.try_into().expect("the rest"), size }
}

impl<'a> Rank<'a> {
    fn new(
        gpu: &'a Gpu,
        rank: usize,
        (own, other, seen): (Vec<Buffer>, Vec<Imported>, [u64; 2]),
    ) -> Result<Self, Error> {
        gpu.prepare(Module::Elements(DataType::Float32))?;
        let state = || gpu.allocate(SHAPE.blocks as usize * size_of::<State>());
        let (stream, states, abort) = (gpu.stream()?, [state()?, state()?], gpu.pin(4)?);
        Ok(Self { gpu, rank, stream, own, other, seen, states, abort })
    }

    /// Addresses of one of the shared buffers, by rank.
    fn shared(&self, which: usize) -> [u64; MOST_RANKS] {
        let (own, other) = (self.own[which].region(), self.other[which].region());
        std::array::from_fn(|k| match k {
            _ if k == self.rank => own.address(),
            0 | 1 => other.address(),
            _ => 0,
        })
    }

    fn low_latency(&self) -> Result<(), Error> {
        let parameters = LowLatencyParameters {
            input: self.own[2].region().address(),
            output: self.own[3].region().address(),
            mailboxes: self.shared(0),
            state: self.states[0].region().address(),
            abort: self.abort.region().address(),
            count: COUNT as u64,
            slot_bytes: SLOT_BYTES as u64,
            arithmetic: Arithmetic::default(),
            rank: self.rank as u32,
            ranks: RANKS as u32,
            most_blocks: SHAPE.blocks,
            most_threads: SHAPE.threads,
        };
        // SAFETY: both processes keep the memory until both are through.
        unsafe { self.gpu.launch(&self.stream, sum(Family::LowLatency), SHAPE, &parameters) }
    }

    fn push(&self) -> Result<(), Error> {
        // The neighbour has mapped this rank's buffers where this rank cannot know, and was told.
        let seen = |which: usize| {
            let (own, size) = (self.own[which].region().address(), size_of::<f32>());
            let part = |start: u64, k| start + (slice(COUNT, size, RANKS, k).0 * size) as u64;
            std::array::from_fn(|k| match k {
                _ if k == self.rank => part(own, k),
                0 | 1 => part(self.seen[which - 2], k),
                _ => 0,
            })
        };
        let parameters = PushParameters {
            sources: seen(2),
            destinations: seen(3),
            arrivals: self.shared(1),
            state: self.states[1].region().address(),
            abort: self.abort.region().address(),
            count: slice(COUNT, size_of::<f32>(), RANKS, self.rank).1 as u64,
            reach: COUNT as u64,
            pieces: 1,
            turns: 1,
            arithmetic: Arithmetic::default(),
            rank: self.rank as u32,
            ranks: RANKS as u32,
            ..PushParameters::default()
        };
        // SAFETY: as above.
        unsafe { self.gpu.launch(&self.stream, sum(Family::Push), SHAPE, &parameters) }
    }

    /// Waits for the call, and compares the output.
    fn finish(&self, call: usize, family: Family) -> Result<(), Error> {
        let (end, begin) = (self.stream.record()?, Instant::now());
        while !end.has_happened()? {
            if begin.elapsed() > PATIENCE {
                self.abort.word(0).store(1, Ordering::SeqCst);
            }
            std::thread::yield_now();
        }
        let mut result = vec![0; BYTES];
        self.own[3].read(0, &mut result)?;
        let sums: Vec<u8> = (0..COUNT)
            .flat_map(|k| (value(0, call, k) + value(1, call, k)).to_le_bytes())
            .collect();
        self.own[3].write(0, &vec![0xa5; BYTES])?;
        if self.abort.word(0).load(Ordering::SeqCst) != 0 || result != sums {
            return Err(Error::Misuse(format!("call {call}, {family:?}: the result is wrong")));
        }
        Ok(())
    }

    fn calls(&self, mut neighbour: &UnixStream) -> Result<(), Error> {
        for call in 0..CALLS {
            let input: Vec<u8> =
                (0..COUNT).flat_map(|k| value(self.rank, call, k).to_le_bytes()).collect();
            self.own[2].write(0, &input)?;
            self.low_latency()?;
            self.finish(call, Family::LowLatency)?;
            // A neighbour that is early stores into the output only when this rank has come, too.
            self.push()?;
            self.finish(call, Family::Push)?;
        }
        // Nobody frees memory that the other still uses.
        let lost = |error: std::io::Error| Error::Misuse(format!("the neighbour: {error}"));
        neighbour.write_all(&[1]).map_err(lost)?;
        neighbour.read_exact(&mut [0]).map_err(lost)
    }
}

fn sum(family: Family) -> Entry {
    Entry::Elements { family, operation: Operation::Sum, datatype: DataType::Float32 }
}

/// Element `k` of a rank's contribution; sums of two are exact.
fn value(rank: usize, call: usize, k: usize) -> f32 {
    (k * (rank + 1) + call) as f32
}
