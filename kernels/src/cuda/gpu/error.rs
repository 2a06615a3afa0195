//! What can go wrong with a device.

use std::io;
use std::path::PathBuf;

use cudarc::driver::DriverError;

/// Why a device cannot do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no driver.
    #[error("no CUDA driver: there is no libcuda.so.1")]
    NoDriver,
    /// The driver is older than the bindings to it.
    #[error("the CUDA driver supports CUDA {}.{}, 13.0 is needed", .version / 1000, .version % 1000 / 10)]
    OldDriver {
        /// As the driver says it: 12080 is CUDA 12.8.
        version: i32,
    },
    /// The driver refused a call.
    #[error("{call}: {code}")]
    Driver {
        /// What was attempted.
        call: &'static str,
        /// The driver's name for the reason.
        code: String,
    },
    /// Kernels are compiled nowhere, and there is nothing to compile them with.
    #[error(
        "no kernels for {module} on a device of architecture {architecture}: they are not compiled, and there is no libnvrtc.so.13"
    )]
    NoCompiler {
        /// The module.
        module: &'static str,
        /// Major and minor number: 90.
        architecture: u32,
    },
    /// The compiler refused the kernels.
    #[error("NVRTC does not compile {module}: {log}")]
    Compiler {
        /// The module.
        module: &'static str,
        /// What the compiler says.
        log: String,
    },
    /// Compiled kernels cannot be kept or read.
    #[error("{}: {cause}", .path.display())]
    Cache {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// The arguments make no sense.
    #[error("{0}")]
    Misuse(String),
}

impl Error {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoDriver => "install the driver of NVIDIA, or run where there is a GPU",
            Self::OldDriver { .. } => "install a driver of the branch 580 or later",
            Self::Driver { .. } => "see the documentation of the driver's interface for this code",
            Self::NoCompiler { .. } => {
                "install NVRTC 13, say where it is, or bring compiled kernels along"
            }
            Self::Compiler { .. } => {
                "use NVRTC 13.0 or later, and a device of architecture 8.0 or later"
            }
            Self::Cache { .. } => {
                "name a folder for compiled kernels that belongs to this user, and that others cannot write"
            }
            Self::Misuse(_) => "correct the program",
        }
    }

    /// Whether a capture of the program has forbidden it, or it has to do with one: that says nothing about the device.
    #[must_use]
    pub fn is_of_a_capture(&self) -> bool {
        let Self::Driver { code, .. } = self else { return false };
        code.starts_with("CUDA_ERROR_STREAM_CAPTURE") || code == "CUDA_ERROR_CAPTURED_EVENT"
    }

    /// A refused call. The code is named without asking the driver.
    pub(super) fn driver(call: &'static str) -> impl FnOnce(DriverError) -> Self {
        move |error| Self::Driver { call, code: format!("{:?}", error.0) }
    }
}
