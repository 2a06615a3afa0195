//! Modules, and the kernels and variables in them.

use std::ffi::{c_char, c_int, c_uint};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ccl_emulator::Module;

use super::devices::{
    MOST_SHARED_BYTES, MOST_THREADS, MULTIPROCESSOR_BLOCKS, MULTIPROCESSOR_SHARED_BYTES,
    MULTIPROCESSOR_THREADS, SHARED_BYTES,
};
use super::entry_points;
use crate::capture;
use crate::codes::{Code, Result};
use crate::driver::{self, Function, Loaded, objects};
use crate::outside::{In, Out, read, say, text};

/// The newest instruction set that a driver of CUDA 13.0 knows.
const NEWEST_PTX: (u32, u32) = (9, 0);
/// How files with machine code begin, and those with several of them.
const BINARIES: [&[u8]; 2] = [b"\x7fELF", &[0x50, 0xed, 0x55, 0xba]];

const MOST_REGISTERS: u32 = 255;

fn load(source: &str) -> Result<usize> {
    capture::permit()?;
    let device = driver::device()?;
    let module = Module::load(source, &device.memory).map_err(|error| {
        say(&error.to_string());
        Code::InvalidPtx
    })?;
    if module.version() > NEWEST_PTX {
        return Err(Code::UnsupportedPtx);
    }
    Ok(objects().keep(|objects| &mut objects.modules, Loaded { module, device }))
}

fn load_image(image: In<c_char>) -> Result<usize> {
    if image.is_null() {
        return Err(Code::InvalidValue);
    }
    let is_binary = |begin: &[u8]| {
        let same = |(index, byte): (usize, &u8)| {
            image.at(index).get().is_ok_and(|found| found as u8 == *byte)
        };
        begin.iter().enumerate().all(same)
    };
    if BINARIES.iter().any(|begin| is_binary(begin)) {
        say("only PTX can be loaded, no machine code");
        return Err(Code::NoBinary);
    }
    load(&text(image)?)
}

/// The number of a kernel of a module, the same whenever it is asked for.
fn find(module: usize, name: &str) -> Result<usize> {
    let mut objects = objects();
    let Loaded { module: loaded, device } = objects.modules.get(module)?;
    let is_it =
        |function: &Arc<Function>| function.module == module && function.kernel.name() == name;
    if let Some(number) = objects.functions.find(is_it) {
        return Ok(number);
    }
    let kernel = loaded.kernel(name).ok_or(Code::NotFound)?;
    let left = SHARED_BYTES.saturating_sub(kernel.shared_bytes() as u32);
    let dynamic_shared_bytes = AtomicU32::new(left);
    let found = Arc::new(Function { kernel, device, module, dynamic_shared_bytes });
    Ok(objects.keep(|objects| &mut objects.functions, found))
}

/// What `cuFuncGetAttribute` knows, by the numbers of `cuda.h`.
fn attribute(function: &Function, number: c_int) -> Result<u32> {
    let kernel = &function.kernel;
    Ok(match number {
        0 => kernel.maximum_threads().unwrap_or(u32::MAX).min(MOST_THREADS[0]),
        1 => kernel.shared_bytes() as u32,
        3 => kernel.local_bytes() as u32,
        4 => kernel.registers().min(MOST_REGISTERS),
        5 | 6 => 90,
        8 => function.dynamic_shared_bytes.load(Ordering::Relaxed),
        2 | 7 | 9..=15 => 0,
        _ => return Err(Code::InvalidValue),
    })
}

/// Blocks of so many threads that fit into a multiprocessor.
pub(super) fn resident_blocks(function: &Function, threads: u32, shared: usize) -> u32 {
    let shared = function.kernel.shared_bytes().saturating_add(shared).max(1);
    let by_memory = MULTIPROCESSOR_SHARED_BYTES as usize / shared;
    let by_threads = MULTIPROCESSOR_THREADS / threads.max(1).next_multiple_of(32);
    by_threads.min(by_memory as u32).min(MULTIPROCESSOR_BLOCKS)
}

fn occupancy(function: usize, threads: c_int, shared: usize) -> Result<c_int> {
    let function = objects().functions.get(function)?;
    let threads =
        u32::try_from(threads).ok().filter(|threads| (1..=MOST_THREADS[0]).contains(threads));
    Ok(resident_blocks(&function, threads.ok_or(Code::InvalidValue)?, shared) as c_int)
}

entry_points! {
    fn cuModuleLoadData(module: Out<usize>, image: In<c_char>) {
        module.put(driver::alone(|| load_image(image))?)
    }

    fn cuModuleLoadDataEx(
        module: Out<usize>,
        image: In<c_char>,
        count: c_uint,
        options: usize,
        values: usize,
    ) {
        let _ = (count, options, values);
        module.put(driver::alone(|| load_image(image))?)
    }

    fn cuModuleLoad(module: Out<usize>, name: In<c_char>) {
        let bytes = fs::read(text(name)?).map_err(|_| Code::FileNotFound)?;
        let source = String::from_utf8(bytes).map_err(|_| Code::NoBinary)?;
        module.put(load(&source)?)
    }

    fn cuModuleUnload(module: usize) {
        let mut objects = objects();
        objects.modules.remove(module)?;
        objects.functions.retain(|function| function.module != module);
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<usize>, module: usize, name: In<c_char>) {
        function.put(find(module, &text(name)?)?)
    }

    fn cuModuleGetGlobal_v2(
        address: Out<u64>,
        bytes: Out<usize>,
        module: usize,
        name: In<c_char>,
    ) {
        let (loaded, name) = (objects().modules.get(module)?, text(name)?);
        let found = loaded.module.variables().iter().find(|variable| variable.name == name);
        let variable = found.ok_or(Code::NotFound)?;
        if !address.is_null() {
            address.put(variable.address)?;
        }
        if bytes.is_null() { Ok(()) } else { bytes.put(variable.bytes) }
    }

    fn cuFuncGetAttribute(value: Out<c_int>, number: c_int, function: usize) {
        let function = objects().functions.get(function)?;
        value.put(attribute(&function, number)? as c_int)
    }

    fn cuFuncSetAttribute(function: usize, number: c_int, value: c_int) {
        let function = objects().functions.get(function)?;
        let most = MOST_SHARED_BYTES.saturating_sub(function.kernel.shared_bytes() as u32);
        match (number, u32::try_from(value)) {
            (8, Ok(bytes)) if bytes <= most => {
                function.dynamic_shared_bytes.store(bytes, Ordering::Relaxed);
                Ok(())
            }
            // How shared memory and the cache divide their space.
            (9, _) => Ok(()),
            _ => Err(Code::InvalidValue),
        }
    }

    fn cuFuncSetCacheConfig(function: usize, config: c_uint) {
        let _ = config;
        objects().functions.get(function).map(drop)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: Out<c_int>,
        function: usize,
        threads: c_int,
        shared: usize,
    ) {
        blocks.put(occupancy(function, threads, shared)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<c_int>,
        function: usize,
        threads: c_int,
        shared: usize,
        flags: c_uint,
    ) {
        let _ = flags;
        blocks.put(occupancy(function, threads, shared)?)
    }

    fn cuModuleGetLoadingMode(mode: Out<c_uint>) {
        // Eager: nothing is put off.
        mode.put(1)
    }
}

/// The bytes of the arguments that C gives as an array of pointers.
pub(super) fn arguments(function: &Function, pointers: In<u64>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; function.kernel.parameter_bytes()];
    for (index, parameter) in function.kernel.parameters().iter().enumerate() {
        let argument = pointers.at(index).get()?;
        let place = &mut bytes[parameter.offset..][..parameter.bytes];
        place.copy_from_slice(&read(argument, parameter.bytes));
    }
    Ok(bytes)
}
