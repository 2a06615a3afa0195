//! Operations on bytes that are not all in registered memory.

use super::WorkRequest;
use crate::Stretch;

/// An operation of which the last bytes are elsewhere than it says.
#[derive(Clone, Copy, Debug)]
pub struct Unstaged<'a> {
    /// The operation, on memory for all of its bytes.
    pub request: WorkRequest,
    /// The last of its bytes.
    pub rest: Stretch<'a>,
}
