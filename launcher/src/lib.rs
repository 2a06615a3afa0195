//! Starts the ranks of a program as processes of this machine and watches over them: what `r2ccl run`
//! and `--ranks` of the benchmarks have in common.
//!
//! The launcher starts [`Processes`] and waits for them; a process that ends with an error ends all, and so
//! does a signal to the launcher: what ranks have started ends with them. In each, a [`Member`] takes its place: it
//! binds itself to a processor, and the kernel kills it when the launcher was killed. [`pretended`] lets ranks believe
//! that they are on several hosts.
#![forbid(unsafe_code)]

mod failure;
mod member;
mod pretence;
mod processes;
mod signals;

pub use failure::{Failure, STATUS_OF_SIGNAL};
pub use member::{Binding, Member};
pub use pretence::{check as check_pretence, pretended};
pub use processes::Processes;
