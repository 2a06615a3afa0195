//! Several devices, in a process of their own.

use std::env;
use std::thread;

use super::processes::{again, end_at_the_deadline};
use super::{OK, TEXT, a_moment, bind_to, event, function_of, launch, load, out, stream, word};

/// The result of everything that has to do with a device on which a kernel has touched what it must not.
const ILLEGAL_ADDRESS: u32 = 700;

/// Runs a test in a process with two devices.
fn with_two(test: &str, act: impl FnOnce()) {
    const DEVICES: &str = "FAKECUDA_DEVICES";
    if env::var_os(DEVICES).is_some() {
        end_at_the_deadline();
        return act();
    }
    let status = again(test).env(DEVICES, "2").status();
    assert!(status.expect("it can be started again").success(), "{test}");
}

#[test]
fn what_belongs_to_one_device_is_not_for_streams_of_another() {
    with_two("devices::what_belongs_to_one_device_is_not_for_streams_of_another", || {
        bind_to(1);
        let (there, elsewhere, foreign) = (stream(1), event(0), load(TEXT).expect("it is PTX"));
        let kernel = function_of(foreign, "wait");
        must!("cuEventRecord", elsewhere, there);
        bind_to(0);
        let (here, own, (open, _)) = (stream(1), event(0), word());
        must!("cuMemsetD32_v2", open, 1, 1);
        let count = word().0;
        assert_eq!(call!("cuEventRecord", elsewhere, here), 400);
        assert_eq!(call!("cuEventRecord", own, there), 400);
        assert_eq!(
            call!("cuEventRecord", elsewhere, 0),
            400,
            "the default stream is that of device 0"
        );
        assert_eq!(launch(kernel, (1, 1), here, [open, count]), 400);
        assert_eq!(launch(kernel, (1, 1), there, [open, count]), OK);
        must!("cuEventRecord", own, here);
        must!("cuStreamWaitEvent", here, elsewhere, 0);
        must!("cuStreamSynchronize", here);
        must!("cuStreamSynchronize", there);
        let mut milliseconds = 0f32;
        assert_eq!(call!("cuEventElapsedTime", out(&mut milliseconds), own, elsewhere), 400);
    });
}

#[test]
fn nothing_on_a_device_that_has_failed_waits_for_another_device() {
    const TEST: &str = "devices::nothing_on_a_device_that_has_failed_waits_for_another_device";
    with_two(TEST, || {
        bind_to(1);
        let (there, (closed, _), never) = (stream(1), word(), event(2));
        must!("cuStreamWaitValue32_v2", there, closed, 1, 0);
        must!("cuEventRecord", never, there);
        bind_to(0);
        let (waiting, failing, (open, _)) = (stream(1), stream(1), word());
        must!("cuStreamWaitEvent", waiting, never, 0);
        must!("cuMemsetD32_v2", open, 1, 1);
        let (kernel, nowhere) = (function_of(load(TEXT).expect("it is PTX"), "wait"), 64);
        let wait = move || {
            bind_to(0);
            call!("cuStreamSynchronize", waiting)
        };
        let waits = thread::spawn(wait);
        a_moment();
        assert_eq!(launch(kernel, (1, 1), failing, [open, nowhere]), OK);
        assert_eq!(waits.join().expect("it returns"), ILLEGAL_ADDRESS);
    });
}
