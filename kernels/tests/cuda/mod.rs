//! One battery and one suite of protocols for everything that runs the CUDA kernels.
#![allow(dead_code, reason = "every test uses a part of it")]

pub(crate) mod battery;
pub(crate) mod device;
pub(crate) mod machine;
pub(crate) mod neighbours;
pub(crate) mod protocols;
pub(crate) mod suite;
