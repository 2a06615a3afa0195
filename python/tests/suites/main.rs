//! Builds the package as users do, and runs its tests and those of the backend for PyTorch: in one program, since one of
//! them waits for downloads and deadlines while another works.

mod environment;
#[path = "../../../ccl/tests/cuda/kernels.rs"]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod kernels;
#[path = "../../../kernels/tests/cuda/nvrtc.rs"]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod nvrtc;
mod package;
mod pytorch;

use environment::skip;
