//! The driver as C sees it: its functions by name, with kernels in PTX.
#![allow(clippy::disallowed_methods, reason = "the test tells its process by the environment")]

use std::env;
use std::ffi::{CString, c_char};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use libloading::os::unix::Library;

/// Numbers of results in `cuda.h`.
const OK: u32 = 0;
const INVALID_VALUE: u32 = 1;
const NOT_READY: u32 = 600;

static DRIVER: LazyLock<Library> = LazyLock::new(|| {
    let program = env::current_exe().expect("the test has a path");
    let library = program.with_file_name("libccl_fakecuda.so");
    // SAFETY: our own library, which runs nothing when it is loaded.
    unsafe { Library::new(&library) }.expect("it is built with its tests")
});

/// Calls a function whose arguments are numbers and addresses, and gives its result.
macro_rules! call {
    (@type $argument:expr) => { u64 };
    ($name:literal $(, $argument:expr)*) => {{
        type Function = unsafe extern "C" fn($(call!(@type $argument)),*) -> u32;
        // SAFETY: the function takes so many numbers or pointers.
        let function: libloading::os::unix::Symbol<Function> = unsafe { $crate::DRIVER.get($name.as_bytes()) }.expect($name);
        // SAFETY: pointers among the arguments are valid for the call.
        unsafe { function($($argument as u64),*) }
    }};
}

/// Calls a function that must succeed.
macro_rules! must {
    ($name:literal $(, $argument:expr)*) => {
        assert_eq!(call!($name $(, $argument)*), OK, $name)
    };
}

mod captures;
mod devices;
mod failures;
mod processes;

/// The address of something in which a result is put.
fn out<T>(place: &mut T) -> u64 {
    std::ptr::from_mut(place).expose_provenance() as u64
}

/// Nothing else may wait for the device while streams of it are captured.
static CAPTURE: RwLock<()> = RwLock::new(());

/// A thread with the context of device 0, in which nobody captures.
fn start() -> RwLockReadGuard<'static, ()> {
    let calm = CAPTURE.read().unwrap_or_else(PoisonError::into_inner);
    bind();
    calm
}

fn bind() {
    bind_to(0);
}

fn bind_to(device: u32) {
    must!("cuInit", 0);
    let mut context = 0u64;
    must!("cuDevicePrimaryCtxRetain", out(&mut context), device);
    must!("cuCtxSetCurrent", context);
}

fn stream(flags: u32) -> u64 {
    let mut stream = 0u64;
    must!("cuStreamCreate", out(&mut stream), flags);
    stream
}

fn event(flags: u32) -> u64 {
    let mut event = 0u64;
    must!("cuEventCreate", out(&mut event), flags);
    event
}

/// A word of pinned memory: its address, and the word.
fn word() -> (u64, &'static AtomicU32) {
    let mut address = 0u64;
    must!("cuMemHostAlloc", out(&mut address), 4, 3);
    // SAFETY: allocated, zero, aligned, never freed.
    let word = unsafe { &*std::ptr::with_exposed_provenance::<AtomicU32>(address as usize) };
    (address, word)
}

const TEXT: &str = "
.version 8.0
.target sm_80
.address_size 64
.global .align 4 .u32 seen = 77;
// Waits until the first word is not zero, then adds one to the second.
.visible .entry wait(.param .u64 first, .param .u64 second)
{ .reg .pred %p; .reg .b32 %r; .reg .b64 %a, %b;
  ld.param.u64 %a, [first]; ld.param.u64 %b, [second];
$AGAIN: ld.acquire.sys.global.u32 %r, [%a]; setp.eq.u32 %p, %r, 0; @%p bra $AGAIN;
  red.global.sys.add.u32 [%b], 1; ret; }
// Adds one to the first word, and waits until the second is as large.
.visible .entry meet(.param .u64 first, .param .u64 second) .maxntid 64, 1, 1
{ .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %a, %b; .shared .align 4 .b8 s[1024];
  ld.param.u64 %a, [first]; ld.param.u64 %b, [second];
  atom.global.sys.add.u32 %r0, [%a], 1; add.u32 %r0, %r0, 1;
$AGAIN: ld.acquire.sys.global.u32 %r1, [%b]; setp.lt.u32 %p, %r1, %r0; @%p bra $AGAIN; ret; }
";

fn load(text: &str) -> Result<u64, u32> {
    let (text, mut module) = (CString::new(text).expect("no zero bytes"), 0u64);
    match call!("cuModuleLoadData", out(&mut module), text.as_ptr().expose_provenance()) {
        OK => Ok(module),
        code => Err(code),
    }
}

fn function(name: &str) -> u64 {
    static MODULE: LazyLock<u64> = LazyLock::new(|| load(TEXT).expect("it is PTX"));
    function_of(*MODULE, name)
}

fn function_of(module: u64, name: &str) -> u64 {
    let (name, mut function) = (CString::new(name).expect("no zero bytes"), 0u64);
    let name = name.as_ptr().expose_provenance();
    must!("cuModuleGetFunction", out(&mut function), module, name);
    function
}

/// Where the arguments of a kernel are.
fn pointers(arguments: &[u64; 2]) -> [u64; 2] {
    arguments.each_ref().map(|it| std::ptr::from_ref(it).expose_provenance() as u64)
}

fn launch(function: u64, (grid, block): (u32, u32), stream: u64, arguments: [u64; 2]) -> u32 {
    let pointers = pointers(&arguments);
    let pointers = pointers.as_ptr().expose_provenance();
    call!("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream, pointers, 0)
}

#[test]
fn the_default_stream_and_others_take_turns() {
    let _calm = start();
    let ((gate, opened), (count, counted)) = (word(), word());
    let (blocking, free, done) = (stream(0), stream(1), event(2));
    assert_eq!(launch(function("wait"), (1, 1), blocking, [gate, count]), OK);
    // Behind the kernel, because the default stream waits for all that block.
    must!("cuMemsetD32Async", count, 5, 1, 0);
    must!("cuEventRecord", done, 0);
    let (other, _) = word();
    must!("cuMemsetD32Async", other, 5, 1, free);
    must!("cuStreamSynchronize", free);
    assert_eq!(call!("cuEventQuery", done), NOT_READY);
    assert_eq!(call!("cuStreamQuery", blocking), NOT_READY);
    opened.store(1, Ordering::Release);
    must!("cuEventSynchronize", done);
    assert_eq!(counted.load(Ordering::Acquire), 5);
    must!("cuStreamDestroy_v2", blocking);
    assert_eq!(call!("cuStreamQuery", blocking), 400);
}

/// A word of a device: a kernel that touches it when it is freed ends the device.
fn device_word() -> u64 {
    let mut address = 0u64;
    must!("cuMemAlloc_v2", out(&mut address), 4);
    must!("cuMemsetD32_v2", address, 0, 1);
    address
}

/// Long enough for what does not wait.
fn a_moment() {
    let begin = Instant::now();
    while let Some(left) = Duration::from_millis(50).checked_sub(begin.elapsed()) {
        thread::park_timeout(left);
    }
}

#[test]
fn work_of_streams_that_were_destroyed_is_waited_for() {
    let _calm = start();
    let (count, mut counted) = (device_word(), 0u32);
    let ((gate, opened), blocking) = (word(), stream(0));
    assert_eq!(launch(function("wait"), (1, 1), blocking, [gate, count]), OK);
    let (ended, done) = (event(2), event(2));
    must!("cuEventRecord", ended, blocking);
    must!("cuStreamDestroy_v2", blocking);
    // The default stream comes behind it.
    must!("cuEventRecord", done, 0);
    let (about, told) = mpsc::channel();
    let free = move || {
        bind();
        about.send(()).expect("somebody listens");
        must!("cuMemFree_v2", count);
    };
    thread::scope(|scope| {
        let freeing = scope.spawn(free);
        assert_eq!(call!("cuEventQuery", done), NOT_READY);
        told.recv().expect("it is about to be freed");
        a_moment();
        assert!(!freeing.is_finished());
        opened.store(1, Ordering::Release);
        freeing.join().expect("it is freed");
    });
    must!("cuEventSynchronize", done);
    must!("cuEventQuery", ended);
    must!("cuCtxSynchronize");
    assert_eq!(call!("cuMemcpyDtoH_v2", out(&mut counted), count, 4), INVALID_VALUE);
}

#[test]
fn launches_that_cannot_be_are_refused() {
    let _calm = start();
    let (kernel, (gate, _)) = (function("meet"), word());
    let refused = |shape| launch(kernel, shape, 0, [gate, gate]);
    assert_eq!(refused((0, 1)), INVALID_VALUE);
    assert_eq!(refused((1, 1025)), INVALID_VALUE);
    assert_eq!(refused((1, 65)), 701, "the text allows 64");
    let arguments = [gate, gate];
    let pointers = pointers(&arguments);
    let pointers = pointers.as_ptr().expose_provenance();
    let shaped = |grid: [u32; 3], block: [u32; 3], shared: u32| {
        let ([x, y, z], [i, j, k]) = (grid, block);
        call!("cuLaunchKernel", kernel, x, y, z, i, j, k, shared, 0, pointers, 0)
    };
    assert_eq!(shaped([1, 1, 1], [1, 1, 65], 0), INVALID_VALUE);
    assert_eq!(shaped([1, 65_536, 1], [1, 1, 1], 0), INVALID_VALUE);
    assert_eq!(shaped([1, 1, 65_536], [1, 1, 1], 0), INVALID_VALUE);
    assert_eq!(
        shaped([1, 1, 1], [1, 1, 1], (227 << 10) - 1023),
        INVALID_VALUE,
        "the text has 1024"
    );
    let cooperative = |blocks: u32, threads: u32| {
        call!("cuLaunchCooperativeKernel", kernel, blocks, 1, 1, threads, 1, 1, 0, 0, pointers)
    };
    assert_eq!(cooperative(16 * 32 + 1, 64), 720);
    assert_eq!(cooperative(16 * 32 + 1, 32), 720, "a multiprocessor has 32 blocks at most");
    assert_eq!(cooperative(16 * 32, 64), OK);
    must!("cuCtxSynchronize");
}

#[test]
fn texts_that_cannot_be_loaded_are_refused() {
    let _calm = start();
    assert_eq!(load(".version 8.0\n.nonsense"), Err(218));
    assert_eq!(load(".version 9.1\n"), Err(222));
    assert_eq!(load("\x7fELF"), Err(209));
    let module = load(TEXT).expect("it is PTX");
    let (mut function, name) = (0u64, c"nobody".as_ptr().expose_provenance());
    assert_eq!(call!("cuModuleGetFunction", out(&mut function), module, name), 500);
    let (mut address, mut bytes, mut seen) = (0u64, 0u64, 0u32);
    let name = c"seen".as_ptr().expose_provenance();
    must!("cuModuleGetGlobal_v2", out(&mut address), out(&mut bytes), module, name);
    assert_eq!(bytes, 4);
    let kernel = function_of(module, "wait");
    assert_eq!(function_of(module, "wait"), kernel, "the same whenever it is asked for");
    must!("cuModuleUnload", module);
    assert_eq!(call!("cuModuleUnload", module), 400);
    assert_eq!(launch(kernel, (1, 1), 0, [0, 0]), 400, "it is gone with its module");
    assert_eq!(call!("cuMemcpyDtoH_v2", out(&mut seen), 8, 4), INVALID_VALUE);
}

#[test]
fn functions_and_pointers_are_described() {
    let _calm = start();
    let (kernel, mut value) = (function("meet"), 0u32);
    let mut attribute = |number: u32| {
        must!("cuFuncGetAttribute", out(&mut value), number, kernel);
        value
    };
    assert_eq!((attribute(0), attribute(1), attribute(8)), (64, 1024, 47 << 10));
    must!("cuFuncSetAttribute", kernel, 8, 200 << 10);
    assert_eq!(call!("cuFuncSetAttribute", kernel, 8, (226 << 10) + 1), INVALID_VALUE);
    let mut blocks = 0u32;
    must!("cuOccupancyMaxActiveBlocksPerMultiprocessor", out(&mut blocks), kernel, 64, 113 << 10);
    assert_eq!(blocks, 2);
    let (mut device, mut start, mut bytes, mut kind) = (0u64, 0u64, 0u64, 0u32);
    must!("cuMemAlloc_v2", out(&mut device), 100);
    must!("cuMemGetAddressRange_v2", out(&mut start), out(&mut bytes), device + 99);
    assert_eq!((start, bytes), (device, 100));
    must!("cuPointerGetAttribute", out(&mut kind), 2, device + 5);
    assert_eq!(kind, 2, "memory of a device");
    must!("cuMemcpyDtoH_v2", out(&mut kind), device + 96, 4);
    assert_eq!(kind, 0xa5a5_a5a5, "nobody has written it");
    must!("cuPointerGetAttribute", out(&mut kind), 2, word().0);
    assert_eq!(kind, 1, "memory of the host");
    assert_eq!(call!("cuPointerGetAttribute", out(&mut kind), 2, device + 100), INVALID_VALUE);
    assert_eq!(call!("cuMemsetD32_v2", device, 1, 1u64 << 62), INVALID_VALUE);
    assert_eq!(call!("cuMemsetD8_v2", device + 4, 1, u64::MAX - 3), INVALID_VALUE);
    must!("cuMemFree_v2", device);
    assert_eq!(call!("cuMemFree_v2", device), INVALID_VALUE);
}

#[test]
fn memory_is_a_dmabuf_too() {
    let _calm = start();
    let (mut device, mut descriptor, mut value) = (0u64, -1i32, 0u32);
    must!("cuDeviceGetAttribute", out(&mut value), 124, 0);
    assert_eq!(value, 1, "dma-bufs");
    must!("cuMemAlloc_v2", out(&mut device), 8192);
    must!("cuMemsetD8_v2", device, 7, 8192);
    let export = |address: u64, bytes: u64, place: &mut i32| {
        call!("cuMemGetHandleForAddressRange", out(place), address, bytes, 1, 0)
    };
    for (address, bytes) in [(device, 100), (device + 1, 4096), (device, 12288), (device, 0)] {
        assert_eq!(export(address, bytes, &mut descriptor), INVALID_VALUE, "{bytes} bytes");
    }
    assert_eq!(call!("cuMemGetHandleForAddressRange", out(&mut descriptor), device, 4096, 2, 0), 1);
    assert_eq!(export(device, 8192, &mut descriptor), OK);
    // SAFETY: just opened for the caller.
    let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 8188).expect("it is there");
    assert_eq!(bytes, [7; 4]);
    file.write_all_at(&[1, 2, 3, 4], 0).expect("it can be written");
    let mut word = 0u32;
    must!("cuMemcpyDtoH_v2", out(&mut word), device, 4);
    assert_eq!(word, 0x0403_0201);
    must!("cuFlushGPUDirectRDMAWrites", 0, 100);
    assert_eq!(call!("cuFlushGPUDirectRDMAWrites", 1, 100), INVALID_VALUE);
    must!("cuMemFree_v2", device);
}

/// Adds one to a word.
#[test]
fn words_are_written_in_the_order_of_a_stream() {
    let _calm = start();
    let ((gate, opened), (target, written)) = (word(), word());
    let (first, second) = (stream(1), stream(1));
    must!("cuStreamWaitValue32_v2", first, gate, 3, 1);
    must!("cuStreamWriteValue32_v2", first, target, 8, 0);
    // Whoever waits for exactly one value is not let go by a larger one.
    must!("cuStreamWaitValue32_v2", second, target, 7, 1);
    opened.store(4, Ordering::Release);
    assert_eq!(call!("cuStreamQuery", first), NOT_READY);
    opened.store(3, Ordering::Release);
    must!("cuStreamSynchronize", first);
    assert_eq!(written.load(Ordering::SeqCst), 8);
    assert_eq!(call!("cuStreamQuery", second), NOT_READY);
    must!("cuStreamWriteValue32_v2", first, target, 7, 1);
    must!("cuStreamSynchronize", second);
    assert_eq!(call!("cuStreamWriteValue32_v2", first, target + 1, 7, 0), INVALID_VALUE);
    assert_eq!(call!("cuStreamWriteValue32_v2", first, 64, 7, 0), INVALID_VALUE);
    assert_eq!(call!("cuStreamWriteValue32_v2", first, target, 7, 2), INVALID_VALUE);
}

extern "C" fn count(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn functions_of_the_host_run_in_order() {
    let _calm = start();
    let ((gate, opened), (unused, _)) = (word(), word());
    let (stream, (argument, counted)) = (stream(1), word());
    assert_eq!(launch(function("wait"), (1, 1), stream, [gate, unused]), OK);
    let function = count as extern "C" fn(&AtomicU32) as usize;
    must!("cuLaunchHostFunc", stream, function, argument);
    assert_eq!(counted.load(Ordering::SeqCst), 0);
    opened.store(1, Ordering::Release);
    must!("cuStreamSynchronize", stream);
    assert_eq!(counted.load(Ordering::SeqCst), 1);
}

/// What asks the driver something, and gives its answer.
extern "C" fn ask(answer: &AtomicU32) {
    let mut free = [0u64; 2];
    let [free, all] = free.each_mut().map(out);
    answer.store(call!("cuMemGetInfo_v2", free, all), Ordering::SeqCst);
}

#[test]
fn functions_of_the_host_must_not_call_the_driver() {
    let _calm = start();
    let (stream, (argument, answer)) = (stream(1), word());
    let function = ask as extern "C" fn(&AtomicU32) as usize;
    must!("cuLaunchHostFunc", stream, function, argument);
    must!("cuStreamSynchronize", stream);
    assert_eq!(answer.load(Ordering::SeqCst), 800);
    ask(answer);
    assert_eq!(answer.load(Ordering::SeqCst), OK, "others may");
}

#[test]
fn errors_have_names() {
    let mut name = std::ptr::null::<c_char>();
    must!("cuGetErrorString", 700, out(&mut name));
    // SAFETY: a constant string.
    let text = unsafe { std::ffi::CStr::from_ptr(name) };
    assert_eq!(text, c"an illegal memory access was encountered");
    assert_eq!(call!("cuGetErrorName", 12345, out(&mut name)), INVALID_VALUE);
    assert!(name.is_null());
}
