//! Buffers in memory of a CUDA device, beside those of the host, in which they are filled and checked.

use std::sync::Arc;

use ccl::cuda::{
    self, Buffer, DeviceRegion, Gpu as Handle, Operation, Paths, Promise, Stream, Window,
};
use ccl::{Communicator, Error, Request};

/// The device of a rank.
#[derive(Debug)]
pub struct Device {
    handle: Arc<Handle>,
    ordinal: usize,
    name: String,
    bus: String,
}

impl Device {
    /// Opens that of the rank with this number on its machine.
    ///
    /// # Errors
    /// There is no driver, or no device.
    pub fn shared_out(local_rank: usize) -> Result<Self, Error> {
        let none = || Error::Cuda("there is a driver, and no device".to_owned());
        Self::open(local_rank.checked_rem(cuda::count()?).ok_or_else(none)?)
    }

    /// Opens the one with this number.
    ///
    /// # Errors
    /// There is no driver, or no such device.
    pub fn open(ordinal: usize) -> Result<Self, Error> {
        let count = cuda::count()?;
        if ordinal >= count {
            return Err(Error::Cuda(format!("there is no device {ordinal}, but {count}")));
        }
        let handle = cuda::open(ordinal)?;
        let name = handle.name().map_err(cuda::error)?;
        let bus = handle.bus().map_err(cuda::error)?;
        Ok(Self { handle, ordinal, name, bus })
    }

    /// Its number, its name, and where it is on the bus.
    #[must_use]
    pub fn description(&self) -> (usize, &str, &str) {
        (self.ordinal, &self.name, &self.bus)
    }
}

/// The memory of a rank, and what its calls need.
#[derive(Debug)]
pub struct Gpu {
    communicator: cuda::Communicator,
    stream: Stream,
    send: Buffer,
    receive: Buffer,
    windows: Vec<Window>,
}

/// Whether in the send buffer, the offset there, and the size in bytes.
type Position = (bool, usize, usize);

impl Gpu {
    /// Two buffers of so many bytes.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(device: &Device, group: &Communicator, bytes: usize) -> Result<Self, Error> {
        let gpu = &device.handle;
        Ok(Self {
            communicator: cuda::Communicator::new(group, gpu)?,
            stream: gpu.stream().map_err(cuda::error)?,
            send: gpu.allocate(bytes).map_err(cuda::error)?,
            receive: gpu.allocate(bytes).map_err(cuda::error)?,
            windows: Vec::new(),
        })
    }

    /// Registers both buffers as symmetric windows. All ranks do, and wait for each other.
    ///
    /// # Errors
    /// The library failed.
    pub fn register(&mut self) -> Result<(), Error> {
        for buffer in [&self.send, &self.receive] {
            let window = self.communicator.register_window(&buffer.region(), Promise::Symmetric)?;
            self.windows.push(window);
        }
        Ok(())
    }

    /// Ends these.
    ///
    /// # Errors
    /// The library failed.
    pub fn deregister(&mut self) -> Result<(), Error> {
        self.windows.drain(..).try_for_each(|window| self.communicator.deregister_window(&window))
    }

    /// The memory at a position.
    #[must_use]
    pub fn region(&self, (is_sent, offset, bytes): Position) -> DeviceRegion<'_> {
        let buffer = if is_sent { &self.send } else { &self.receive };
        buffer.region().part(offset, bytes)
    }

    /// Loads kernels for such requests, and lets the other ranks map the buffers, where both is possible.
    ///
    /// # Errors
    /// The library failed.
    pub fn prepare(&self, request: Request) -> Result<(), Error> {
        self.communicator.prepare(&[request], &[self.send.region(), self.receive.region()])
    }

    /// Which way this rank's collectives went, in words.
    #[must_use]
    pub fn ways(&self) -> String {
        let (paths, reason) = self.communicator.paths();
        let Paths {
            host,
            low_latency,
            push,
            pull,
            copied,
            wire,
            columns,
            gpudirect,
            repairs,
            mapped_buffers,
        } = paths;
        let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
        format!(
            "collectives by kernels: {low_latency} with low latency, {push} by pushing, \
             {pull} by pulling, {mapped_buffers} buffers mapped; by copy engines: {copied}; with NICs: {wire}, with both in turn: {columns}, {gpudirect} of \
             these in memory of the device, {repairs} repairs; through the host: {host}{reason}"
        )
    }

    /// Puts calls on the stream.
    ///
    /// # Errors
    /// The library failed.
    pub fn enqueue(&self, operations: &[Operation<'_>]) -> Result<(), Error> {
        self.communicator.enqueue_group(operations, &self.stream)
    }

    /// Puts a copy on the stream; the same place stays as it is.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn copy(&self, from: Position, to: Position) -> Result<(), Error> {
        if from == to {
            return Ok(());
        }
        self.stream.copy(self.region(from), self.region(to)).map_err(cuda::error)
    }

    /// Waits for the stream, and for what went wrong on the way.
    ///
    /// # Errors
    /// That.
    pub fn finish(&self) -> Result<(), Error> {
        let arrived = self.stream.synchronise().map_err(cuda::error);
        self.communicator.wait().and(arrived)
    }

    /// Copies to both buffers, from `start` on.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn upload(&self, start: usize, [send, receive]: [&mut [u8]; 2]) -> Result<(), Error> {
        self.send.write(start, send).map_err(cuda::error)?;
        self.receive.write(start, receive).map_err(cuda::error)
    }

    /// Copies from both buffers.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn download(&self, start: usize, [send, receive]: [&mut [u8]; 2]) -> Result<(), Error> {
        self.send.read(start, send).map_err(cuda::error)?;
        self.receive.read(start, receive).map_err(cuda::error)
    }
}
