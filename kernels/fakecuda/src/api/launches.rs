//! Launches of kernels.

use std::ffi::c_uint;

use ccl_emulator::Launch;

use super::devices::{MOST_BLOCKS, MOST_THREADS, MULTIPROCESSORS};
use super::entry_points;
use super::modules::{arguments, resident_blocks};
use crate::codes::{Code, Result};
use crate::driver::{self, objects, stream};
use crate::outside::{In, say};
use crate::work::Work;

/// Attributes of a launch.
const COOPERATIVE: u32 = 2;
const PRIORITY: u32 = 8;
const IGNORED: u32 = 0;

/// What a launch is asked for with.
struct Request {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    is_cooperative: bool,
}

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: usize,
    attributes: In<Attribute>,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute`
#[repr(C)]
#[derive(Clone, Copy)]
struct Attribute {
    number: c_uint,
    unused: c_uint,
    value: [u64; 8],
}

/// How many there are in all directions, if there is one at least and not too many in any; machines count them in 32 bits.
fn product(size: [c_uint; 3], most: [c_uint; 3]) -> Option<u32> {
    let is_possible = size.iter().zip(most).all(|(size, most)| (1..=most).contains(size));
    let product = || size.iter().try_fold(1u32, |product, size| product.checked_mul(*size));
    is_possible.then(product).flatten()
}

fn launch(function: usize, request: &Request, parameters: In<u64>, extra: usize) -> Result<()> {
    let function = objects().functions.get(function)?;
    let stream = stream(request.stream)?;
    if function.device.ordinal != stream.device.ordinal {
        return Err(Code::InvalidHandle);
    }
    let blocks = product(request.grid, MOST_BLOCKS).ok_or(Code::InvalidValue)?;
    let threads = product(request.block, MOST_THREADS).ok_or(Code::InvalidValue)?;
    if threads > MOST_THREADS[0] {
        return Err(Code::InvalidValue);
    }
    if function.kernel.maximum_threads().is_some_and(|most| threads > most) {
        return Err(Code::OutOfResources);
    }
    let most_shared = function.dynamic_shared_bytes.load(std::sync::atomic::Ordering::Relaxed);
    if request.shared_bytes > most_shared {
        return Err(Code::InvalidValue);
    }
    let resident = resident_blocks(&function, threads, request.shared_bytes as usize);
    if request.is_cooperative && blocks > resident * MULTIPROCESSORS {
        return Err(Code::CooperativeTooLarge);
    }
    if extra != 0 {
        say("arguments in one buffer are not supported");
        return Err(Code::NotSupported);
    }
    let launch = Launch {
        kernel: function.kernel.clone(),
        grid: request.grid,
        block: request.block,
        shared_bytes: request.shared_bytes as usize,
        arguments: arguments(&function, parameters)?,
    };
    driver::push(&stream, Work::Launch(launch))
}

entry_points! {
    fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: usize,
        parameters: In<u64>,
        extra: usize,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let request = Request { grid, block, shared_bytes, stream, is_cooperative: false };
        launch(function, &request, parameters, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: usize,
        parameters: In<u64>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let request = Request { grid, block, shared_bytes, stream, is_cooperative: true };
        launch(function, &request, parameters, 0)
    }

    fn cuLaunchKernelEx(
        config: In<Config>,
        function: usize,
        parameters: In<u64>,
        extra: usize,
    ) {
        let config = config.get()?;
        let mut is_cooperative = false;
        for index in 0..config.attribute_count as usize {
            let attribute = config.attributes.at(index).get()?;
            match attribute.number {
                COOPERATIVE => is_cooperative = attribute.value[0] as u32 != 0,
                PRIORITY | IGNORED => {}
                other => {
                    say(&format!("attribute {other} of a launch is not supported"));
                    return Err(Code::NotSupported);
                }
            }
        }
        let Config { grid, block, shared_bytes, stream, .. } = config;
        let request = Request { grid, block, shared_bytes, stream, is_cooperative };
        launch(function, &request, parameters, extra)
    }
}
