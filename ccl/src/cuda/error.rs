//! What a device refuses, as an error of the library.

use ccl_core::error::Error;
use ccl_kernels::cuda::gpu;

/// With what to do about it.
pub(crate) fn from_device(error: gpu::Error) -> Error {
    if let gpu::Error::Misuse(text) = error {
        return Error::InvalidArgument(text);
    }
    Error::system("CUDA", format!("{error} ({})", error.remedy()))
}
