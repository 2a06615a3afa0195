//! The results of calls, as `cuda.h` numbers them.

use std::ffi::CStr;

macro_rules! codes {
    ($($(#[$about:meta])* $name:ident = $number:literal, $text:literal, $symbol:literal;)*) => {
        /// What a call that failed returns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code {
            $($name,)*
        }

        impl Code {
            pub(crate) fn number(self) -> u32 {
                match self {
                    $(Self::$name => $number,)*
                }
            }

            pub(crate) fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The error with this name in the header.
            pub(crate) fn of_symbol(symbol: &str) -> Option<Self> {
                let is_meant = |code: &Self| code.symbol().to_bytes() == symbol.as_bytes();
                [$(Self::$name,)*].into_iter().filter(|code| *code != Self::Success).find(is_meant)
            }

            /// Its name in the header.
            pub(crate) fn symbol(self) -> &'static CStr {
                match self {
                    $(Self::$name => $symbol,)*
                }
            }

            /// What it means.
            pub(crate) fn text(self) -> &'static CStr {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    Success = 0, c"no error", c"CUDA_SUCCESS";
    InvalidValue = 1, c"invalid argument", c"CUDA_ERROR_INVALID_VALUE";
    OutOfMemory = 2, c"out of memory", c"CUDA_ERROR_OUT_OF_MEMORY";
    NotInitialized = 3, c"initialization error", c"CUDA_ERROR_NOT_INITIALIZED";
    InvalidDevice = 101, c"invalid device ordinal", c"CUDA_ERROR_INVALID_DEVICE";
    InvalidContext = 201, c"invalid device context", c"CUDA_ERROR_INVALID_CONTEXT";
    MapFailed = 205, c"mapping of buffer object failed", c"CUDA_ERROR_MAP_FAILED";
    NoBinary = 209, c"no kernel image is available for execution on the device",
        c"CUDA_ERROR_NO_BINARY_FOR_GPU";
    InvalidPtx = 218, c"a PTX JIT compilation failed", c"CUDA_ERROR_INVALID_PTX";
    UnsupportedPtx = 222, c"the provided PTX was compiled with an unsupported toolchain.",
        c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION";
    FileNotFound = 301, c"file not found", c"CUDA_ERROR_FILE_NOT_FOUND";
    InvalidHandle = 400, c"invalid resource handle", c"CUDA_ERROR_INVALID_HANDLE";
    NotFound = 500, c"named symbol not found", c"CUDA_ERROR_NOT_FOUND";
    NotReady = 600, c"device not ready", c"CUDA_ERROR_NOT_READY";
    IllegalAddress = 700, c"an illegal memory access was encountered",
        c"CUDA_ERROR_ILLEGAL_ADDRESS";
    OutOfResources = 701, c"too many resources requested for launch",
        c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES";
    PeerEnabled = 704, c"peer access is already enabled",
        c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED";
    PeerNotEnabled = 705, c"peer access has not been enabled",
        c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED";
    HostRegistered = 712, c"part or all of the requested memory range is already mapped",
        c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    HostNotRegistered = 713, c"pointer does not correspond to a registered memory region",
        c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    Misaligned = 716, c"misaligned address", c"CUDA_ERROR_MISALIGNED_ADDRESS";
    LaunchFailed = 719, c"unspecified launch failure", c"CUDA_ERROR_LAUNCH_FAILED";
    CooperativeTooLarge = 720, c"too many blocks in cooperative launch",
        c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE";
    NotPermitted = 800, c"operation not permitted", c"CUDA_ERROR_NOT_PERMITTED";
    NotSupported = 801, c"operation not supported", c"CUDA_ERROR_NOT_SUPPORTED";
    CaptureUnsupported = 900, c"operation not permitted when stream is capturing",
        c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    CaptureInvalidated = 901, c"operation failed due to a previous error during capture",
        c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    CaptureMerge = 902, c"operation would result in a merge of separate capture sequences",
        c"CUDA_ERROR_STREAM_CAPTURE_MERGE";
    CaptureUnmatched = 903, c"capture was not initiated in this stream",
        c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
    CaptureUnjoined = 904, c"capturing stream has unjoined work",
        c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
    CaptureIsolation = 905, c"dependency created on uncaptured work in another stream",
        c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION";
    CaptureImplicit = 906, c"operation would make the legacy stream depend on a capturing blocking stream",
        c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    CapturedEvent = 907, c"operation not permitted on an event last recorded in a capturing stream",
        c"CUDA_ERROR_CAPTURED_EVENT";
    CaptureWrongThread = 908, c"attempt to terminate a thread-local capture sequence from another thread",
        c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD";
    Unknown = 999, c"unknown error", c"CUDA_ERROR_UNKNOWN";
}

pub(crate) type Result<T> = std::result::Result<T, Code>;
