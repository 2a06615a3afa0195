//! What other processes do.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{self, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use libloading::os::unix::Symbol;

use super::{DRIVER, NOT_READY, OK, event, function, launch, out, start, stream, word};

/// No test takes as long.
const DEADLINE: Duration = Duration::from_secs(120);

/// This program again, with that test only.
pub(crate) fn again(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("the test has a path"));
    command.args([test, "--exact", "--nocapture"]);
    command
}

/// Lets this process, which another one has started, end by itself if it hangs.
pub(crate) fn end_at_the_deadline() {
    thread::spawn(|| {
        let begin = Instant::now();
        while let Some(left) = DEADLINE.checked_sub(begin.elapsed()) {
            thread::park_timeout(left);
        }
        process::abort();
    });
}

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
    let mut command = again("processes::events_reach_other_processes");
    command.env(HANDLE, text);
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
    end_at_the_deadline();
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
