//! No CUDA devices: the program is built without them, and refuses `--device cuda`.

use ccl::{Communicator, Error, Operation, Region, Request};

/// There is none.
#[derive(Debug)]
pub enum Device {}

impl Device {
    /// Says what is missing.
    ///
    /// # Errors
    /// Always.
    pub fn open(_ordinal: usize) -> Result<Self, Error> {
        Err(Error::InvalidUsage("the program is built without the feature cuda".to_owned()))
    }

    /// As [`Self::open`].
    ///
    /// # Errors
    /// Always.
    pub fn shared_out(local_rank: usize) -> Result<Self, Error> {
        Self::open(local_rank)
    }

    /// Its number, its name, and where it is on the bus.
    #[must_use]
    pub fn description(&self) -> (usize, &str, &str) {
        match *self {}
    }
}

/// There is none.
#[derive(Debug)]
pub enum Gpu {}

type Position = (bool, usize, usize);

#[allow(missing_docs, clippy::missing_errors_doc, reason = "there is no value to call them on")]
impl Gpu {
    pub fn new(device: &Device, _group: &Communicator, _bytes: usize) -> Result<Self, Error> {
        match *device {}
    }

    #[must_use]
    pub fn region(&self, _position: Position) -> Region<'_> {
        match *self {}
    }

    pub fn prepare(&self, _request: Request) -> Result<(), Error> {
        match *self {}
    }

    pub fn register(&mut self) -> Result<(), Error> {
        match *self {}
    }

    pub fn deregister(&mut self) -> Result<(), Error> {
        match *self {}
    }

    #[must_use]
    pub fn ways(&self) -> String {
        match *self {}
    }

    pub fn enqueue(&self, _operations: &[Operation<'_>]) -> Result<(), Error> {
        match *self {}
    }

    pub fn copy(&self, _from: Position, _to: Position) -> Result<(), Error> {
        match *self {}
    }

    pub fn finish(&self) -> Result<(), Error> {
        match *self {}
    }

    pub fn upload(&self, _start: usize, _both: [&mut [u8]; 2]) -> Result<(), Error> {
        match *self {}
    }

    pub fn download(&self, _start: usize, _both: [&mut [u8]; 2]) -> Result<(), Error> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let error = Device::open(0).unwrap_err();
        let is_said = |text: &str| text.contains("built without the feature cuda");
        assert!(matches!(&error, Error::InvalidUsage(text) if is_said(text)), "{error}");
    }
}
