//! Calls that fail because the environment says so, in processes of their own.

use std::env;

use super::processes::{again, end_at_the_deadline};
use super::{OK, bind, out};

/// Runs a test in a process where this is to fail.
fn where_fails(test: &str, failure: &str, act: impl FnOnce()) {
    const FAIL: &str = "FAKECUDA_FAIL";
    if env::var_os(FAIL).is_some() {
        end_at_the_deadline();
        return act();
    }
    let status = again(test).env(FAIL, failure).status();
    assert!(status.expect("it can be started again").success(), "{test}");
}

#[test]
fn one_call_of_one_function_fails() {
    const TEST: &str = "failures::one_call_of_one_function_fails";
    where_fails(TEST, "cuMemAlloc_v2:2:CUDA_ERROR_OUT_OF_MEMORY", || {
        bind();
        let mut places = [0u64; 3];
        let codes = places.each_mut().map(|place| call!("cuMemAlloc_v2", out(place), 64));
        assert_eq!(codes, [OK, 2, OK]);
        assert_eq!(places[1], 0, "nothing was allocated");
    });
}

#[test]
fn nothing_succeeds_where_the_failure_is_not_understood() {
    const TEST: &str = "failures::nothing_succeeds_where_the_failure_is_not_understood";
    where_fails(TEST, "cuMemAlloc_v2", || assert_eq!(call!("cuInit", 0), 999));
}
