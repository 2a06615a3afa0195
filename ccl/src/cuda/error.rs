//! Errors of devices.

use ccl_core::error::Error;
use ccl_kernels::cuda::gpu;

/// What a device refuses, as an error of the library that says what to do about it.
#[must_use]
pub fn error(error: gpu::Error) -> Error {
    described(&error)
}

/// The same, for who passes it on.
pub(crate) fn described(error: &gpu::Error) -> Error {
    if let gpu::Error::Misuse(text) = error {
        return Error::InvalidArgument(text.clone());
    }
    Error::Cuda(format!("{error} ({})", error.remedy()))
}
