//! The library's side of CUDA on a driver whose devices are interpreters.
//!
//! Every test starts its own program again, with a library path on which that driver is found as
//! `libcuda.so.1`, and does its work there.
#![allow(clippy::disallowed_methods, reason = "the test tells its processes by the environment")]

#[path = "fake_driver/access.rs"]
mod access;
mod cuda;
mod inputs;
#[path = "fake_driver/late.rs"]
mod late;
#[path = "fake_driver/meetings.rs"]
mod meetings;
#[path = "cuda/nvrtc.rs"]
mod nvrtc;
#[path = "fake_driver/refusals.rs"]
mod refusals;

use std::env;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::gpu::{Buffer, Error, Gpu, Handle, Supply};
use ccl_kernels::cuda::{Arithmetic, Family, Module, Operation};
use cudarc::driver::sys;

use cuda::battery::{self, Cases};
use cuda::device::Device;
use cuda::{neighbours, suite};
use inputs::skip;

/// Set in the programs that find the driver.
const INSIDE: &str = "CCL_TEST_FAKE_DRIVER";
/// Where the first of two processes listens for the other.
const MEETING: &str = "CCL_TEST_FAKE_DRIVER_MEETING";

/// No test takes as long.
const DEADLINE: Duration = Duration::from_secs(300);

/// Modules that some test needs.
const MODULES: [Module; 6] = [
    Module::Copies,
    Module::Elements(DataType::Uint8),
    Module::Elements(DataType::Float32),
    Module::Elements(DataType::Bfloat16),
    Module::Elements(DataType::Float8E4m3),
    Module::Elements(DataType::Int64),
];

/// Does it in a program that finds the driver, with so many devices.
fn inside(test: &str, devices: usize, act: impl FnOnce()) {
    inside_where(test, devices, &[], act);
}

/// As [`inside`], with settings of the driver.
fn inside_where(test: &str, devices: usize, settings: &[(&str, &str)], act: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        thread::spawn(end_at_the_deadline);
        return act();
    }
    let Some(kernels) = nvrtc::compiled(&MODULES) else {
        static REPORTED: Once = Once::new();
        let missing = "CUDA devices that are interpreters: pip cannot install NVRTC";
        return REPORTED.call_once(|| skip(missing));
    };
    let mut command = start(test, &kernels);
    command.env("FAKECUDA_DEVICES", devices.to_string()).envs(settings.iter().copied());
    let status = command.status();
    assert!(status.expect("the test can be started again").success(), "{test}");
}

/// Ends a program that hangs.
fn end_at_the_deadline() {
    let begin = Instant::now();
    while let Some(left) = DEADLINE.checked_sub(begin.elapsed()) {
        thread::park_timeout(left);
    }
    // Its parent names the test.
    process::abort();
}

/// This program again, with that test only.
fn start(test: &str, kernels: &Path) -> Command {
    let mut command = Command::new(env::current_exe().expect("the test has a path"));
    command.args([test, "--exact", "--nocapture"]);
    command.env(INSIDE, kernels).env("LD_LIBRARY_PATH", driver());
    command
}

/// A folder in which the driver has its name.
fn driver() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fake-driver");
    ccl_fakecuda::install(&folder).expect("it is built with its tests, beside them");
    folder
}

/// A device, inside.
fn gpu(ordinal: usize) -> Gpu {
    let prebuilt = env::var_os(INSIDE).map(PathBuf::from);
    let supply = Supply { prebuilt, ..Supply::default() };
    Gpu::open(ordinal, supply).unwrap_or_else(|error| panic!("{error}"))
}

fn right<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|wrong| panic!("{wrong}"))
}

#[test]
fn the_battery() {
    inside("the_battery", 1, || {
        let device = Device::new(gpu(0)).unwrap();
        assert!(device.gpu.name().unwrap().starts_with("PTX interpreter"));
        assert!(right(battery::copies(&device, Cases::Few, 1)) > 0);
        for datatype in [DataType::Float32, DataType::Bfloat16, DataType::Float8E4m3] {
            assert!(right(battery::reduces(&device, datatype, Cases::Few, 1)) > 0);
        }
    });
}

#[test]
fn the_protocols() {
    inside("the_protocols", 1, || {
        let device = Device::new(gpu(0)).unwrap();
        for family in [Family::LowLatency, Family::Push] {
            let sum = Operation::Sum;
            assert!(right(suite::all_reduces(&device, family, DataType::Float32, sum, 0..2)) > 0);
        }
        right(suite::relays(&device, DataType::Bfloat16, Operation::Scaled, 2));
        assert!(right(suite::pulls(&device, 0..2)) > 0);
        right(suite::pulls_in_vain(&device, 0..1));
        right(suite::flags_return(&device, 1));
        right(suite::all_give_up(&device));
    });
}

#[test]
fn there_are_as_many_devices_as_are_asked_for() {
    inside("there_are_as_many_devices_as_are_asked_for", 3, || {
        assert_eq!(Gpu::count().unwrap(), 3);
        assert!(matches!(Gpu::open(3, Supply::default()), Err(Error::Driver { .. })));
        assert_eq!((gpu(2).architecture(), gpu(2).driver()), (90, 13000));
    });
}

#[test]
fn kernels_run_while_others_are_compiled() {
    inside("kernels_run_while_others_are_compiled", 1, || {
        let (gpu, compiled) = (gpu(0), env::var_os(INSIDE).expect("they were made"));
        let module = Module::Elements(DataType::Float32);
        let is_meant = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(module.name()) && name.ends_with("ptx")
        };
        let files = fs::read_dir(&compiled).unwrap().map(|entry| entry.unwrap().path());
        let made = |path: &PathBuf| fs::metadata(path).unwrap().modified().unwrap();
        let file = files.filter(is_meant).max_by_key(made).expect("it was compiled");
        // A folder whose kernels come when somebody writes them.
        let folder = tempfile::tempdir().unwrap();
        let slow = folder.path().join(file.file_name().unwrap());
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &slow, kind, mode, 0).unwrap();
        let supply = Supply { prebuilt: Some(folder.path().into()), ..Supply::default() };
        gpu.prepare(Module::Copies).unwrap();
        let (stream, words) = (gpu.stream().unwrap(), gpu.allocate(64).unwrap());
        thread::scope(|scope| {
            let loading = scope.spawn(|| gpu.prepare_from(&supply, module));
            // It can be opened when the other thread reads it.
            let mut pipe = fs::OpenOptions::new().write(true).open(&slow).unwrap();
            let halves = (words.region().part(0, 32), words.region().part(32, 32));
            gpu.copy(&stream, halves.0, &[halves.1]).unwrap();
            stream.synchronise().unwrap();
            assert!(!loading.is_finished());
            pipe.write_all(&fs::read(&file).unwrap()).unwrap();
            drop(pipe);
            loading.join().unwrap().unwrap();
        });
        gpu.prepare(module).unwrap();
    });
}

/// Reads a buffer of 32-bit words.
fn words(buffer: &Buffer, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    buffer.read(0, &mut bytes).expect("there are so many");
    let word = |word: &[u8]| u32::from_le_bytes(word.try_into().expect("4 bytes"));
    bytes.chunks(4).map(word).collect()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn graphs_are_replayed() {
    inside("graphs_are_replayed", 1, || {
        let gpu = gpu(0);
        let (stream, sum) = (gpu.stream().unwrap(), gpu.allocate(400).unwrap());
        let (more, kept) = (gpu.allocate(400).unwrap(), gpu.allocate(400).unwrap());
        let one = vec![1.0f32.to_bits(); 100];
        more.write(0, &bytes(&one)).unwrap();
        let (regions, float) = ([sum.region(), more.region()], DataType::Float32);
        gpu.prepare(Module::Elements(float)).unwrap();
        let describe = || {
            let kernel = (Operation::Sum, float);
            gpu.reduce(&stream, kernel, Arithmetic::default(), &regions, &[sum.region()])?;
            gpu.copy_plainly(&stream, sum.region(), kept.region())
        };
        let graph = stream.capture(describe).unwrap();
        stream.synchronise().unwrap();
        assert_eq!(words(&kept, 100), [0; 100], "nothing was done yet");
        for _ in 0..7 {
            graph.launch().unwrap();
        }
        stream.synchronise().unwrap();
        assert_eq!(words(&kept, 100), [7.0f32.to_bits(); 100]);
        let broken = stream.capture(|| stream.synchronise());
        assert!(matches!(broken, Err(Error::Driver { .. })), "a capture cannot wait");
    });
}

#[test]
fn what_was_written_is_there_however_late_a_driver_is() {
    let test = "what_was_written_is_there_however_late_a_driver_is";
    inside_where(test, 1, &[("FAKECUDA_LATE", "1")], || {
        let gpu = gpu(0);
        let (stream, pinned) = (gpu.stream().unwrap(), gpu.pin(64).unwrap());
        for round in 1..20u32 {
            let buffer = gpu.allocate(64).unwrap();
            stream.copy(buffer.region(), pinned.region()).unwrap();
            stream.synchronise().unwrap();
            assert_eq!(pinned.word(0).load(Ordering::Acquire), 0, "zeros");
            buffer.write(0, &round.to_le_bytes()).unwrap();
            stream.copy(buffer.region(), pinned.region()).unwrap();
            stream.synchronise().unwrap();
            assert_eq!(pinned.word(0).load(Ordering::Acquire), round);
        }
    });
}

#[test]
fn streams_wait_for_events_and_hosts_for_both() {
    inside("streams_wait_for_events_and_hosts_for_both", 1, || {
        let gpu = gpu(0);
        let streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let (pinned, buffer) = (gpu.pin(4096).unwrap(), gpu.allocate(4096).unwrap());
        let start = streams[0].record().unwrap();
        for round in 1..50u32 {
            pinned.word(0).store(round, Ordering::Release);
            gpu.copy_plainly(&streams[0], pinned.region(), buffer.region()).unwrap();
            let there = streams[0].record().unwrap();
            streams[1].wait(&there).unwrap();
            let back = pinned.region().part(2048, 2048);
            gpu.copy_plainly(&streams[1], buffer.region().part(0, 2048), back).unwrap();
            let end = streams[1].record().unwrap();
            end.synchronise().unwrap();
            assert!(end.has_happened().unwrap());
            assert_eq!(pinned.word(2048).load(Ordering::Acquire), round);
            assert!(start.seconds_until(&end).unwrap() >= 0.0);
        }
        // In the middle of a capture, too.
        let graph = streams[1].capture(|| {
            start.synchronise()?;
            assert!(start.has_happened()? && start.seconds_until(&start)? <= 0.0);
            gpu.copy_plainly(&streams[1], pinned.region(), buffer.region())
        });
        graph.unwrap().launch().unwrap();
        gpu.synchronise().unwrap();
    });
}

#[test]
fn what_it_does_not_have_says_so() {
    inside("what_it_does_not_have_says_so", 1, || {
        let _gpu = gpu(0);
        let mut pool = std::ptr::null_mut();
        // SAFETY: nobody looks at the arguments.
        let code = unsafe { sys::cuMemPoolCreate(&raw mut pool, std::ptr::null()) };
        assert_eq!(code, sys::CUresult::CUDA_ERROR_NOT_SUPPORTED);
        let mut name = std::ptr::null();
        // SAFETY: the name is written where it is told.
        unsafe { sys::cuGetErrorName(code, &raw mut name) }.result().unwrap();
        // SAFETY: names are constant strings.
        let name = unsafe { std::ffi::CStr::from_ptr(name) };
        assert_eq!(name, c"CUDA_ERROR_NOT_SUPPORTED");
    });
}

/// Another process, which finds the driver too.
fn neighbour(test: &str, meeting: &Path) -> Command {
    let kernels = env::var_os(INSIDE).expect("this is inside");
    let mut command = start(test, Path::new(&kernels));
    command.env(MEETING, meeting);
    command
}

#[test]
fn two_processes_reduce_in_each_others_memory() {
    const TEST: &str = "two_processes_reduce_in_each_others_memory";
    inside(TEST, 1, || {
        let gpu = gpu(0);
        if let Some(meeting) = env::var_os(MEETING) {
            return right(neighbours::follow(&gpu, Path::new(&meeting)));
        }
        let folder = tempfile::tempdir().unwrap();
        let meeting = folder.path().join("meeting");
        right(neighbours::lead(&gpu, &meeting, &mut neighbour(TEST, &meeting)));
    });
}

#[test]
fn memory_outlives_a_process_that_is_killed() {
    const TEST: &str = "memory_outlives_a_process_that_is_killed";
    inside(TEST, 1, || {
        let gpu = gpu(0);
        if let Some(meeting) = env::var_os(MEETING) {
            let mut peer = UnixStream::connect(meeting).unwrap();
            let buffer = gpu.allocate(4096).unwrap();
            buffer.write(0, &[5; 4096]).unwrap();
            peer.write_all(&buffer.export().unwrap().bytes).unwrap();
            // Until it is killed.
            let _ = peer.read_exact(&mut [0]);
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let meeting = folder.path().join("meeting");
        let listener = UnixListener::bind(&meeting).unwrap();
        let mut child = neighbour(TEST, &meeting).spawn().unwrap();
        let mut peer = listener.accept().unwrap().0;
        let mut handle = Handle { bytes: [0; Handle::BYTES], size: 4096 };
        peer.read_exact(&mut handle.bytes).unwrap();
        let opened = gpu.import(&handle).unwrap();
        let again = gpu.import(&handle).unwrap();
        assert_eq!(opened.region().address(), again.region().address());
        drop(again);
        let own = gpu.allocate(8).unwrap().export().unwrap();
        assert!(gpu.import(&own).is_err(), "a process cannot open its own memory");
        child.kill().unwrap();
        child.wait().unwrap();
        let copied = gpu.allocate(4096).unwrap();
        let stream = gpu.stream().unwrap();
        gpu.copy(&stream, opened.region(), &[copied.region()]).unwrap();
        stream.synchronise().unwrap();
        assert_eq!(words(&copied, 1024), [0x0505_0505; 1024]);
        drop(opened);
        assert!(gpu.import(&handle).is_err(), "and is gone when the last has closed it");
    });
}

#[test]
fn memory_that_nics_reach_is_that_of_kernels() {
    inside("memory_that_nics_reach_is_that_of_kernels", 1, || {
        use std::os::unix::fs::FileExt as _;
        let gpu = gpu(0);
        assert_eq!(gpu.nic_obstacle().expect("it answers"), None);
        assert!(gpu.needs_flush().expect("it answers"));
        let (device, odd) =
            (gpu.allocate(8192).expect("memory"), gpu.allocate(100).expect("memory"));
        let refused = odd.dmabuf().expect_err("no whole pages").to_string();
        assert!(refused.contains("no whole pages"), "{refused}");
        let dmabuf = fs::File::from(device.dmabuf().expect("it is exported"));
        let file = tempfile::tempfile().expect("a file");
        file.set_len(8192).expect("a file can grow");
        assert!(gpu.pin_file(&file, 8193).is_err(), "the file is shorter");
        let pinned = gpu.pin_file(&file, 8192).expect("it can be pinned");
        dmabuf.write_all_at(&[5; 64], 4096).expect("as a NIC");
        gpu.flush().expect("it is flushed");
        let stream = gpu.stream().expect("a stream");
        let (from, to) = (device.region().part(4096, 64), pinned.region().part(32, 64));
        gpu.copy(&stream, from, &[to]).expect("a kernel");
        stream.synchronise().expect("it has ended");
        let mut bytes = [0; 66];
        file.read_exact_at(&mut bytes, 31).expect("as a NIC");
        assert!(bytes[0] == 0 && bytes[65] == 0 && bytes[1..65] == [5; 64], "{bytes:?}");
    });
}
