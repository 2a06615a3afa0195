//! No CUDA devices: the library is built without them, and its calls on their memory say so.

use std::ffi::c_void;
use std::sync::Arc;

use ccl::{Communicator, Error, OperationOn};

use crate::arguments::Buffer;
use crate::member::Member;

/// There is none.
#[derive(Debug, Default)]
pub(crate) struct Device {}

#[allow(clippy::unused_self, reason = "the functions are those of a device that is there")]
impl Device {
    pub(crate) fn is_used(&self) -> bool {
        false
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        None
    }

    pub(crate) fn finalize(&self, host: &Communicator) -> Result<(), Error> {
        host.finalize()
    }

    pub(crate) fn release(&self, _host: &Communicator) {}

    pub(crate) fn give_up(&self) {}
}

/// There is none.
#[derive(Debug)]
pub(crate) enum Call {}

impl Call {
    /// Says what is missing.
    ///
    /// # Safety
    ///
    /// Nothing is looked at.
    pub(crate) unsafe fn new(
        _device: &Device,
        _host: &Communicator,
        _operation: OperationOn<Buffer>,
        _stream: *mut c_void,
    ) -> Result<Self, Error> {
        Err(absent())
    }
}

/// There is nothing to put anywhere.
pub(crate) fn enqueue(calls: &[(Arc<Member>, Call)]) -> Result<(), Error> {
    calls.first().map_or(Ok(()), |(_, call)| match *call {})
}

/// Says what is missing.
///
/// # Safety
///
/// Nothing is looked at.
pub(crate) unsafe fn registering(
    _member: &Arc<Member>,
    _window: (Buffer, bool, usize),
    _stream: *mut c_void,
) -> Result<fn() -> Result<(), Error>, Error> {
    Err(absent())
}

/// Says what is missing.
pub(crate) fn deregistering(
    _member: &Arc<Member>,
    _number: usize,
) -> Result<fn() -> Result<(), Error>, Error> {
    Err(absent())
}

fn absent() -> Error {
    Error::InvalidUsage(
        "this library is built without CUDA: build it with `cargo build --release -p ccl-capi \
         --features cuda`, which needs nothing of CUDA"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use ccl::{Config, UniqueId};

    use super::*;

    #[test]
    fn what_is_missing_is_said_and_nothing_happens() {
        let (id, config) =
            (UniqueId::create(&Config::default().settings).unwrap(), Config::default());
        let host = Communicator::create(&id, 0, 1, &config).unwrap();
        let device = Device::default();
        let nowhere = std::ptr::null_mut();
        // SAFETY: nothing is looked at.
        let call = unsafe { Call::new(&device, &host, OperationOn::Barrier, nowhere) };
        let error = call.unwrap_err();
        assert!(matches!(&error, Error::InvalidUsage(text) if text.contains("--features cuda")));
        assert_eq!(enqueue(&[]), Ok(()));
        let member = Member::starting(true);
        let nothing = Buffer::target("buffer", nowhere, 0).unwrap();
        // SAFETY: nothing is looked at.
        let registering = unsafe { registering(&member, (nothing, true, 1), nowhere) };
        assert_eq!(
            [registering.err(), deregistering(&member, 1).err()],
            [(); 2].map(|()| Some(absent()))
        );
        assert!(!device.is_used() && device.failure().is_none());
        host.barrier().unwrap();
        assert_eq!(device.finalize(&host), Ok(()));
        device.release(&host);
        device.give_up();
    }
}
