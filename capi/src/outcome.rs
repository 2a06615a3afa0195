//! From a `Result` to C's number, with the message kept for `ccl_get_last_error`.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ccl::{Error, ResultCode};

use crate::abi::CommHandle;
use crate::member::{Member, with_member};

/// How far a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// It is done.
    Done,
    /// It goes on in the background.
    InProgress,
}

impl Status {
    /// Its number.
    #[inline]
    pub(crate) fn code(self) -> ResultCode {
        match self {
            Self::Done => ResultCode::Success,
            Self::InProgress => ResultCode::InProgress,
        }
    }
}

/// What the inside of every exported function returns.
pub(crate) type Outcome = Result<Status, Error>;

thread_local! {
    /// The last failure in this thread.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
    /// What [`show`] lent to the program.
    static SHOWN: RefCell<CString> = RefCell::default();
}

/// An error that a program is told.
pub(crate) trait Explained: fmt::Display {
    /// Its number.
    fn code(&self) -> ResultCode;

    /// What the reader can do about it.
    fn remedy(&self) -> &'static str;
}

impl Explained for Error {
    fn code(&self) -> ResultCode {
        self.code()
    }

    fn remedy(&self) -> &'static str {
        self.remedy()
    }
}

impl Explained for ccl::vqp::Error {
    fn code(&self) -> ResultCode {
        self.code()
    }

    fn remedy(&self) -> &'static str {
        self.remedy()
    }
}

/// Runs the inside of an exported function: no panic gets out, and a failure leaves a message.
#[inline]
pub(crate) fn entry(function: &str, body: impl FnOnce() -> Outcome) -> c_int {
    entry_with(function, body)
}

/// [`entry`] for a function that has errors of its own.
#[inline]
pub(crate) fn entry_with<E: Explained>(
    function: &str,
    body: impl FnOnce() -> Result<Status, E>,
) -> c_int {
    guarded(function, || body().map_or_else(|error| failed(function, &error), Status::code))
}

/// Lets no panic of `body` get out.
#[inline(always)]
pub(crate) fn guarded(function: &str, body: impl FnOnce() -> ResultCode) -> c_int {
    let code = catch_unwind(AssertUnwindSafe(body));
    code.unwrap_or_else(|panic| panicked(function, &*panic)) as c_int
}

#[cold]
fn panicked(function: &str, panic: &(dyn Any + Send)) -> ResultCode {
    failed(function, &from_panic(panic))
}

/// Keeps the message of a failure.
#[cold]
pub(crate) fn failed<E: Explained>(function: &str, error: &E) -> ResultCode {
    // A thread that is ending has no place for the message any more.
    let _ = LAST.try_with(|last| last.replace(message(function, error)));
    error.code()
}

/// [`entry`] for a function of a communicator.
pub(crate) fn entry_on(
    function: &str,
    comm: CommHandle,
    body: impl FnOnce(&Arc<Member>) -> Outcome,
) -> c_int {
    entry(function, || on(function, comm, body))
}

/// Does something on a communicator, which keeps the message of a failure.
#[inline]
pub(crate) fn on(
    function: &str,
    comm: CommHandle,
    body: impl FnOnce(&Arc<Member>) -> Outcome,
) -> Outcome {
    with_member(comm.addr(), |member| {
        body(member).inspect_err(|error| member.remember(message(function, error)))
    })?
}

/// What the program reads about a failure.
pub(crate) fn message<E: Explained>(function: &str, error: &E) -> String {
    format!("{function}: {error}; {}", error.remedy())
}

/// The last failure in this thread, or "".
pub(crate) fn last_in_thread() -> String {
    LAST.try_with(|last| last.borrow().clone()).unwrap_or_default()
}

/// Lends a text to the program until this thread calls it again.
pub(crate) fn show(text: String) -> *const c_char {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let lend = |shown: &RefCell<CString>| {
        shown.replace(text);
        shown.borrow().as_ptr()
    };
    SHOWN.try_with(lend).unwrap_or(c"".as_ptr())
}

/// One sentence for a number of `ccl_result_t`.
pub(crate) fn sentence(code: c_int) -> &'static CStr {
    match code {
        0 => c"success",
        1 => c"a call of CUDA failed",
        2 => c"a call of the operating system failed",
        3 => c"internal error: a bug of the library",
        4 => c"invalid argument: an argument has an impossible value",
        5 => c"invalid usage: the calls of the program, or of the ranks, do not fit together",
        6 => c"remote error: a peer is gone, or aborted the communicator",
        7 => c"in progress: the call goes on in the background",
        8 => c"timeout: the call did not finish before its deadline",
        _ => c"unknown result code",
    }
}

fn from_panic(panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Internal(text.unwrap_or_else(|| "a panic without a message".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error() {
        let reason = "of seven";
        let code = entry("ccl_test", || panic!("out {reason}"));
        assert_eq!(code, ResultCode::InternalError as c_int);
        assert_eq!(
            last_in_thread(),
            "ccl_test: internal error: out of seven; report it with the log"
        );
        assert_eq!(entry("ccl_test", || panic!("plain")), ResultCode::InternalError as c_int);
        assert_eq!(entry("ccl_test", || Ok(Status::Done)), ResultCode::Success as c_int);
        assert_eq!(entry("ccl_test", || Ok(Status::InProgress)), ResultCode::InProgress as c_int);
    }

    #[test]
    fn a_shown_text_ends_at_its_end() {
        // SAFETY: `show` returns a C string that lives until the next call in this thread.
        let shown = unsafe { CStr::from_ptr(show("one\0two".to_owned())) };
        assert_eq!(shown, c"one two");
    }

    #[test]
    fn every_code_has_its_own_sentence() {
        let mut sentences: Vec<_> = (0..=9).map(sentence).collect();
        sentences.sort();
        sentences.dedup();
        assert_eq!(sentences.len(), 10);
        assert_eq!(sentence(-1), sentence(9));
    }
}
