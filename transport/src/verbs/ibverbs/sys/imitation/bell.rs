//! What a descriptor of the kernel's announces.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;

/// A descriptor that is readable as long as it was rung more often than heard; and when it is hung up, for ever.
#[derive(Debug)]
pub(super) struct Bell {
    near: UnixStream,
    far: UnixStream,
}

impl Bell {
    pub(super) fn new() -> Self {
        let (near, far) = UnixStream::pair().expect("two descriptors more");
        Self { near, far }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.near.as_raw_fd()
    }

    pub(super) fn ring(&self) {
        // It fails only if it was hung up.
        let _ = (&self.far).write(&[0]);
    }

    /// Of a device that was removed.
    pub(super) fn hang_up(&self) {
        self.far.shutdown(Shutdown::Both).expect("it is connected");
    }

    /// Takes one ring; the number of the error if there is none.
    pub(super) fn hear(&self) -> Result<(), i32> {
        match (&self.near).read(&mut [0]) {
            Ok(0) => Err(libc::EIO),
            Ok(_) => Ok(()),
            Err(cause) => Err(cause.raw_os_error().expect("of the system")),
        }
    }
}
