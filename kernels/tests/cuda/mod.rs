//! One battery and one suite of protocols for everything that runs the CUDA kernels.
#![allow(dead_code, reason = "every test uses a part of it")]

/// A test per type, which run side by side.
#[allow(unused_macros, reason = "as above")]
macro_rules! test_every_type {
    ($check:ident) => {
        test_every_type! { $check:
            reduces_int8: Int8;
            reduces_uint8: Uint8;
            reduces_int32: Int32;
            reduces_uint32: Uint32;
            reduces_int64: Int64;
            reduces_uint64: Uint64;
            reduces_float16: Float16;
            reduces_float32: Float32;
            reduces_float64: Float64;
            reduces_bfloat16: Bfloat16;
            reduces_float8_e4m3: Float8E4m3;
            reduces_float8_e5m2: Float8E5m2;
        }
    };
    ($check:ident: $($name:ident: $datatype:ident;)*) => {$(
        #[test]
        fn $name() {
            $check(DataType::$datatype);
        }
    )*};
}

pub(crate) mod battery;
pub(crate) mod device;
pub(crate) mod machine;
pub(crate) mod neighbours;
pub(crate) mod protocols;
pub(crate) mod pull;
pub(crate) mod relay;
pub(crate) mod suite;
