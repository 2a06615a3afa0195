//! What all ranks have to count alike, so that they change the way of calls at the same one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ccl_core::collective::Signature;

use super::described;
use super::meeting::{Meeting, Step};
use super::windows::Windows;

/// What goes which way.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Whether ranks meet.
    is_opened: bool,
    /// Collectives so far, whichever way they went.
    pub(super) calls: u64,
    /// Those that have not been compared.
    untold: VecDeque<Signature>,
    /// Modules of kernels that were asked for.
    pub(super) asked: BTreeSet<&'static str>,
    /// For modules that all ranks have: the last call that goes through the host.
    pub(super) behind: BTreeMap<&'static str, u64>,
    pub(super) windows: Windows,
    /// Why some calls, or all, go through the host.
    pub(super) refused: Option<String>,
    /// Nobody compares calls any more.
    is_over: bool,
}

impl Routes {
    /// Before anything else ranks open what they have.
    pub(super) fn open(&mut self, meeting: &mut Meeting) {
        if !std::mem::replace(&mut self.is_opened, true) {
            meeting.ask(Step::Open);
        }
    }

    pub(super) fn count(&mut self, call: Signature) {
        self.calls += 1;
        // Who goes through the host with all calls need not: it does it for every one.
        if !self.is_over {
            self.untold.push_back(call);
        }
    }

    /// The calls that have not been compared, up to this one, and the number of the first of them.
    pub(super) fn called(&mut self, number: u64) -> (u64, Vec<String>) {
        let later = (self.calls - number) as usize;
        let told = self.untold.len().saturating_sub(later);
        let first = number + 1 - told as u64;
        (first, self.untold.drain(..told).map(|call| described(&call)).collect())
    }

    /// Some calls go through the host.
    pub(super) fn refuse(&mut self, reason: &str) {
        self.refused.get_or_insert_with(|| reason.to_owned());
    }

    /// Ranks have no way without the host, or do not meet any more.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.untold.clear();
    }
}
