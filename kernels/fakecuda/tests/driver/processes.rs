//! What other processes do.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use libloading::os::unix::Symbol;

use super::{DRIVER, NOT_READY, OK, event, function, launch, out, start, stream, word};

/// Set in the process that waits for an event of another: the bytes of its handle.
const HANDLE: &str = "CCL_TEST_EVENT_HANDLE";

#[repr(C)]
#[derive(Clone, Copy)]
struct Handle([u8; 64]);

#[test]
fn events_reach_other_processes() {
    let _calm = start();
    if let Ok(text) = env::var(HANDLE) {
        return wait_for_event(&text);
    }
    let ((gate, opened), (unused, _)) = (word(), word());
    let (stream, reached, mut handle) = (stream(1), event(6), Handle([0; 64]));
    assert_eq!(launch(function("wait"), (1, 1), stream, [gate, unused]), OK);
    must!("cuEventRecord", reached, stream);
    must!("cuIpcGetEventHandle", out(&mut handle), reached);
    let text: String = handle.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut command = Command::new(env::current_exe().expect("the test has a path"));
    command
        .args(["processes::events_reach_other_processes", "--exact", "--nocapture"])
        .env(HANDLE, text);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it can be started again");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("it is text"));
    // The other process has looked, and nothing had been reached.
    assert!(lines.any(|line| line.ends_with("not ready")));
    opened.store(1, Ordering::Release);
    assert!(lines.any(|line| line.ends_with("reached")));
    assert!(child.wait().expect("it is a child").success());
}

fn wait_for_event(text: &str) {
    let byte = |index: usize| u8::from_str_radix(&text[2 * index..2 * index + 2], 16);
    let handle = Handle(std::array::from_fn(|index| byte(index).expect("hexadecimal")));
    let mut event = 0u64;
    type Open = unsafe extern "C" fn(u64, Handle) -> u32;
    // SAFETY: the type is that of the manual.
    let open: Symbol<Open> = unsafe { DRIVER.get(b"cuIpcOpenEventHandle") }.expect("it is there");
    // SAFETY: the number is written where it is told.
    assert_eq!(unsafe { open(out(&mut event), handle) }, OK);
    assert_eq!(call!("cuEventQuery", event), NOT_READY);
    let mut output = std::io::stdout();
    output.write_all(b"not ready\n").expect("somebody listens");
    output.flush().expect("somebody listens");
    let stream = stream(1);
    must!("cuStreamWaitEvent", stream, event, 0);
    must!("cuStreamSynchronize", stream);
    output.write_all(b"reached\n").expect("somebody listens");
}
