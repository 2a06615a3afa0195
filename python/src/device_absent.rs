//! No CUDA devices: the package is built without them, and its calls on their memory say so.

use ccl::{Communicator, Error, Operation};

use crate::buffer::Buffer;

/// One call that cannot be made.
#[derive(Debug)]
#[allow(dead_code, reason = "the fields are those of a call that can be made")]
pub(crate) struct DeviceCall {
    pub(crate) operation: Operation<'static>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) stream: Option<usize>,
}

/// There is none.
#[derive(Debug, Default)]
pub(crate) struct Device {}

#[allow(clippy::unused_self, reason = "the functions are those of a device that is there")]
impl Device {
    /// Says what is missing.
    pub(crate) fn enqueue(&self, _host: &Communicator, _: Vec<DeviceCall>) -> Result<(), Error> {
        Err(Error::InvalidUsage(
            "this package is built without CUDA: build it with `pip install ./python \
             --config-settings build-args=\"--features cuda\"`, which needs nothing of CUDA"
                .into(),
        ))
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        None
    }

    pub(crate) fn finalize(&self, host: &Communicator) -> Result<(), Error> {
        host.finalize()
    }
}
