//! The kernels on a device, through the library's own side of the driver.
#![allow(clippy::disallowed_methods, reason = "a device that hangs is given up at a deadline")]

use std::cell::RefCell;
use std::time::{Duration, Instant};

use ccl_kernels::cuda::gpu::{Buffer, Error, Gpu, Shape, Stream};

use super::machine::{Job, Machine};

/// No job takes as long.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than any job has ranks.
const STREAMS: usize = 8;

pub(crate) struct Device {
    pub(crate) gpu: Gpu,
    streams: Vec<Stream>,
    memory: RefCell<Vec<Buffer>>,
}

impl Device {
    pub(crate) fn new(gpu: Gpu) -> Result<Self, Error> {
        let streams = (0..STREAMS).map(|_| gpu.stream()).collect::<Result<_, _>>()?;
        Ok(Self { gpu, streams, memory: RefCell::default() })
    }

    /// Does something with the buffer in which the address lies, and with the offset in it.
    fn at<T>(&self, address: u64, act: impl FnOnce(&Buffer, usize) -> Result<T, Error>) -> T {
        let memory = self.memory.borrow();
        let offset = |buffer: &Buffer| {
            let region = buffer.region();
            let offset = address.checked_sub(region.address())? as usize;
            // Buffers lie beside each other.
            (offset < region.bytes().max(1)).then_some(offset)
        };
        let found = memory.iter().find_map(|buffer| Some((buffer, offset(buffer)?)));
        let (buffer, offset) = found.unwrap_or_else(|| panic!("no memory at {address:#x}"));
        act(buffer, offset).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_run(&self, job: Job<'_>) -> Result<bool, Error> {
        // Loading a kernel may wait for kernels that run, and those for one that is to be loaded.
        job.launches.iter().try_for_each(|launch| self.gpu.prepare(launch.entry.module()))?;
        for launch in job.launches {
            let stream = &self.streams[launch.stream as usize];
            let shape = Shape { blocks: launch.blocks, threads: launch.threads };
            // SAFETY: the addresses are those of memory that is freed after the job.
            unsafe { self.gpu.launch_bytes(stream, launch.entry, shape, &launch.parameters) }?;
        }
        let mut meanwhile = job.meanwhile;
        let (begin, mut ended) = (Instant::now(), 0);
        let events = self.streams.iter().map(Stream::record).collect::<Result<Vec<_>, _>>()?;
        while ended < events.len() {
            if events[ended].has_happened()? {
                ended += 1;
            } else if begin.elapsed() > PATIENCE {
                return Ok(false);
            }
            if let Some(meanwhile) = &mut meanwhile {
                meanwhile();
            }
        }
        Ok(true)
    }
}

impl Machine for Device {
    fn allocate(&self, bytes: usize) -> u64 {
        let buffer = self.gpu.allocate(bytes).unwrap_or_else(|error| panic!("{error}"));
        let address = buffer.region().address();
        self.memory.borrow_mut().push(buffer);
        address
    }

    fn release(&self) {
        self.memory.borrow_mut().clear();
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.at(address, |buffer, offset| buffer.write(offset, bytes));
        }
    }

    fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        if bytes > 0 {
            self.at(address, |buffer, offset| buffer.read(offset, &mut found));
        }
        found
    }

    fn run(&self, job: Job<'_>) -> Result<(), String> {
        match self.try_run(job) {
            Ok(true) => Ok(()),
            Ok(false) => {
                // To free it would wait for the kernels that hang.
                std::mem::forget(std::mem::take(&mut *self.memory.borrow_mut()));
                Err("a hang".into())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
