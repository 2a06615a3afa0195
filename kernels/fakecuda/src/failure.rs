//! A call that fails because the environment says so: for tests of what a program does then.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::codes::{Code, Result};
use crate::outside::say;
use crate::settings::{self, FAIL};

/// One call of one function.
#[derive(Debug)]
struct Failure {
    function: String,
    /// Which call of it, counted from 1 in all threads of the process.
    nth: u64,
    code: Code,
    calls: AtomicU64,
}

impl Failure {
    /// From `cuMemAlloc_v2:2:CUDA_ERROR_OUT_OF_MEMORY`.
    fn of(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':');
        let function = parts.next()?.to_owned();
        let nth = parts.next()?.parse().ok()?;
        let code = Code::of_symbol(parts.next()?)?;
        Some(Self { function, nth, code, calls: AtomicU64::new(0) })
    }

    fn permit(&self, function: &str) -> Result<()> {
        if self.function != function || self.calls.fetch_add(1, Ordering::Relaxed) + 1 != self.nth {
            return Ok(());
        }
        say(&format!("call {} of {function} fails, as {FAIL} says", self.nth));
        Err(self.code)
    }
}

/// What every call asks: whether it may succeed.
///
/// # Panics
///
/// If the environment says something that is no failure, so that no call succeeds.
pub(crate) fn permit(function: &str) -> Result<()> {
    static FAILURE: OnceLock<Option<Failure>> = OnceLock::new();
    let read = |text: String| {
        let example = "cuMemAlloc_v2:2:CUDA_ERROR_OUT_OF_MEMORY";
        Failure::of(&text).unwrap_or_else(|| panic!("{FAIL} is {text}: it is to be as {example}"))
    };
    let failure = FAILURE.get_or_init(|| settings::failure().map(read));
    failure.as_ref().map_or(Ok(()), |failure| failure.permit(function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_with_the_number_fails_and_no_other() {
        let failure = Failure::of("cuInit:2:CUDA_ERROR_NOT_FOUND").expect("it is one");
        let calls = ["cuInit", "cuMemAlloc_v2", "cuInit", "cuInit"];
        let expected = [Ok(()), Ok(()), Err(Code::NotFound), Ok(())];
        assert_eq!(calls.map(|function| failure.permit(function)), expected);
    }

    #[test]
    fn what_is_no_failure_is_refused() {
        let wrong = ["", "cuInit", "cuInit:2", "cuInit:x:CUDA_ERROR_NOT_FOUND", "cuInit:2:404"];
        assert!(wrong.iter().all(|text| Failure::of(text).is_none()));
        assert!(Failure::of("cuInit:1:CUDA_SUCCESS").is_none(), "it is to fail");
    }
}
