//! The CUDA kernels on this processor: the text that a GPU compiles, behind a port of C++.

mod cuda;
mod inputs;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::Module;

use cuda::battery;
use cuda::host::Host;
use inputs::skip;

/// The processor with these modules, or a report that they are not tested.
fn host(modules: &[Module]) -> Option<Host> {
    let host = Host::new(modules);
    if host.is_none() {
        skip("CUDA kernels on a processor: there is no g++");
    }
    host
}

fn right<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// One test per type: they are compiled and run side by side.
macro_rules! every_reduction {
    ($($name:ident: $datatype:ident;)*) => {$(
        #[test]
        fn $name() {
            let datatype = DataType::$datatype;
            let Some(host) = host(&[Module::Elements(datatype)]) else { return };
            assert!(right(battery::reduces(&host, datatype, 4)) > 0);
            if datatype.is_float() && datatype.bytes() < 4 {
                assert!(right(battery::pairs(&host, datatype)) > 0);
            }
        }
    )*};
}

every_reduction! {
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

#[test]
fn copies() {
    let Some(host) = host(&[Module::Copies]) else { return };
    assert!(right(battery::copies(&host, 100)) > 0);
}
