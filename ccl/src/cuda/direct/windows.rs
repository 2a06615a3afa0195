//! Windows: memory of the program of which all ranks have told each other where it is, so that the host knows it, and copy
//! engines can fetch from there.
//!
//! Always true: ranks register windows in the same order, so the numbers of windows are the same on all; and a window is
//! of use on all ranks or on none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ccl_core::error::Error;
use ccl_core::settings::CudaPeers;
use ccl_kernels::cuda::gpu::{self, Allocation, DeviceRegion, Gpu, Invitation, Mapped};
use serde::{Deserialize, Serialize};

use super::agreement::Letter;
use super::hold::Marks;
use super::meeting::{Agenda, Host, Step};
use super::{Direct, Way};
use crate::driver::lock;

/// What a program promises of the memory of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Promise {
    /// Nothing. Such a window changes nothing.
    Nothing,
    /// If the memory of a collective is in the window on one rank, it is on all, at the same offset.
    Symmetric,
}

/// Memory that all ranks have registered together.
#[derive(Debug)]
pub struct Window {
    number: u64,
    obstacle: Option<String>,
}

impl Window {
    /// Why it is of no use, if that is so. It is then on all ranks.
    #[must_use]
    pub fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }
}

/// What a rank registers.
#[derive(Clone, Copy, Debug)]
struct Own {
    address: u64,
    bytes: usize,
    promise: Promise,
}

/// What it says of that.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claim {
    bytes: u64,
    promise: Promise,
    /// Of a block, for copy engines.
    least_bytes: u64,
    /// Its allocation, and how far into it the window begins; or why others cannot have it.
    memory: Result<(Letter, u64), String>,
}

/// A window that is of use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) number: u64,
    address: u64,
    bytes: usize,
    allocation: Allocation,
    least_bytes: usize,
    /// Where the others are.
    pub(super) view: gpu::Window,
}

/// A window that is of use; or why it is not.
type Settled = Result<Arc<Shared>, String>;

#[derive(Debug)]
enum State {
    Asked(Own),
    Settled(Settled),
    /// Ranks do not agree on it.
    Wrong(Error),
}

/// Those of one rank.
#[derive(Debug, Default)]
pub(super) struct Windows {
    made: u64,
    known: BTreeMap<u64, State>,
    /// Calls in windows so far, and the mark of the last one.
    calls: u64,
    mark: u32,
}

impl Windows {
    fn ask(&mut self, own: Own) -> u64 {
        self.made += 1;
        self.known.insert(self.made, State::Asked(own));
        self.made
    }

    /// What has come of it; None if nothing has yet.
    fn outcome(&mut self, number: u64) -> Option<Result<Window, Error>> {
        let outcome = match self.known.get(&number)? {
            State::Asked(_) => return None,
            State::Settled(settled) => {
                Ok(Window { number, obstacle: settled.as_ref().err().cloned() })
            }
            State::Wrong(error) => Err(error.clone()),
        };
        if outcome.is_err() {
            self.known.remove(&number);
        }
        Some(outcome)
    }

    fn settled(&self) -> impl Iterator<Item = &Settled> {
        self.known.values().filter_map(|state| match state {
            State::Settled(settled) => Some(settled),
            State::Asked(_) | State::Wrong(_) => None,
        })
    }

    /// Why a window is of no use, if there is such a one.
    pub(super) fn obstacle(&self) -> Option<&str> {
        self.settled().find_map(|settled| settled.as_ref().err().map(String::as_str))
    }

    /// The first window that has all this memory, and how far into it the memory begins, if blocks of so many bytes are
    /// for copy engines.
    pub(super) fn find(
        &self,
        memory: &DeviceRegion<'_>,
        block_bytes: usize,
    ) -> Option<(Arc<Shared>, usize)> {
        let mut open = self.settled().filter_map(|settled| settled.as_ref().ok());
        let window = open.find(|window| window.offset(memory).is_some())?;
        let offset = window.offset(memory)?;
        (block_bytes >= window.least_bytes).then(|| (Arc::clone(window), offset))
    }

    /// One more call: its number, and its mark, which `mark` makes of that, behind the one before.
    pub(super) fn follow(&mut self, mark: impl FnOnce(u64) -> u32) -> (u64, Marks) {
        self.calls += 1;
        let own = mark(self.calls);
        (self.calls, Marks { before: std::mem::replace(&mut self.mark, own), own })
    }
}

impl Shared {
    fn offset(&self, memory: &DeviceRegion<'_>) -> Option<usize> {
        let offset = usize::try_from(memory.address().checked_sub(self.address)?).ok()?;
        (memory.bytes() <= self.bytes.checked_sub(offset)?).then_some(offset)
    }

    /// Whether what is so far into it is still that memory: what was freed, against the rules, may have come again, and the
    /// others have what was there before.
    pub(super) fn is_there(&self, gpu: &Gpu, offset: usize) -> bool {
        let found = gpu.allocation(self.address + offset as u64);
        found.is_ok_and(|found| found.number == self.allocation.number)
    }
}

/// What all ranks make of what all have said: None if the window is of use, else why it is not.
///
/// # Errors
/// Ranks have said what cannot be one window.
fn judged(claims: &[Claim]) -> Result<Option<String>, Error> {
    let differs = |is_other: &dyn Fn(&Claim) -> bool| claims.iter().position(is_other);
    let first = &claims[0];
    if let Some(rank) = differs(&|claim| claim.bytes != first.bytes) {
        return Err(Error::InvalidArgument(format!(
            "a window has {} bytes on rank 0 and {} on rank {rank}",
            first.bytes, claims[rank].bytes
        )));
    }
    if let Some(rank) = differs(&|claim| claim.promise != first.promise) {
        return Err(Error::InvalidArgument(format!(
            "a window is {} on rank 0 and {} on rank {rank}",
            first.promise.described(),
            claims[rank].promise.described()
        )));
    }
    if let Some(rank) = differs(&|claim| claim.least_bytes != first.least_bytes) {
        return Ok(Some(format!(
            "R2CCL_CUDA_COPY_ENGINE_BYTES is {} on rank 0 and {} on rank {rank}",
            first.least_bytes, claims[rank].least_bytes
        )));
    }
    if first.promise == Promise::Nothing {
        return Ok(Some("nothing is promised of a window".to_owned()));
    }
    if first.least_bytes == 0 {
        return Ok(Some("R2CCL_CUDA_COPY_ENGINE_BYTES is 0".to_owned()));
    }
    Ok(first_refusal(claims.iter().map(|claim| claim.memory.as_ref().map(|_| ()))))
}

/// Who cannot, and why.
fn first_refusal<'a>(said: impl Iterator<Item = Result<(), &'a String>>) -> Option<String> {
    let named = |(rank, said): (usize, Result<(), &'a String>)| {
        said.err().map(|reason| format!("rank {rank}: {reason}"))
    };
    said.enumerate().find_map(named)
}

impl Promise {
    fn described(self) -> &'static str {
        match self {
            Self::Nothing => "not symmetric",
            Self::Symmetric => "symmetric",
        }
    }
}

impl Host {
    pub(super) fn register(&mut self, number: u64, agenda: &Agenda) -> Result<(), Error> {
        let Some(State::Asked(own)) = lock(&self.routes).windows.known.remove(&number) else {
            return Err(Error::Internal("a window is registered that nobody asked for".into()));
        };
        let (claim, allocation) = self.claim(own);
        let claims: Vec<Claim> = self.gather(&claim, agenda)?;
        let state = match (judged(&claims), self.distance(), allocation) {
            (Err(error), ..) => State::Wrong(error),
            (Ok(None), None, Some(allocation)) => {
                let view = self.view(&claims, own.bytes, agenda)?;
                let least_bytes = claim.least_bytes as usize;
                let Own { address, bytes, .. } = own;
                State::Settled(view.map(|view| {
                    Arc::new(Shared { number, address, bytes, allocation, least_bytes, view })
                }))
            }
            (Ok(reason), distance, _) => {
                State::Settled(Err(distance.or(reason).unwrap_or_default()))
            }
        };
        if let State::Settled(Err(reason)) = &state {
            tracing::info!(rank = self.me, window = number, reason, "a window is of no use");
        }
        lock(&self.routes).windows.known.insert(number, state);
        Ok(())
    }

    /// Nobody copies from there any more.
    pub(super) fn deregister(&mut self, number: u64, agenda: &Agenda) -> Result<(), Error> {
        let all: Vec<u64> = self.gather(&number, agenda)?;
        if let Some(rank) = all.iter().position(|other| *other != all[0]) {
            let error = Error::InvalidUsage(format!(
                "rank 0 deregisters window {}, rank {rank} window {}",
                all[0], all[rank]
            ));
            self.correspondence.fail(&error);
            return Err(error);
        }
        let closed = lock(&self.routes).windows.known.remove(&number);
        // Closing it may wait for the device.
        drop(closed);
        // Memory that is freed next is mapped nowhere.
        self.gather(&(), agenda).map(|_: Vec<()>| ())
    }

    /// Why ranks have no memory of each other, if that is so: the same on all of them.
    fn distance(&self) -> Option<String> {
        let way = lock(&self.way).clone();
        match way {
            Some(Way::Near(_)) => None,
            Some(Way::Far(_) | Way::Columns(_)) => Some("ranks are on several hosts".to_owned()),
            None => Some(lock(&self.routes).refused.clone().unwrap_or_default()),
        }
    }

    fn claim(&self, own: Own) -> (Claim, Option<Allocation>) {
        let settings = self.correspondence.settings();
        let offered = match settings.cuda_peers {
            CudaPeers::Off => Err("R2CCL_CUDA_P2P is 0".to_owned()),
            CudaPeers::Staged => Err("R2CCL_CUDA_P2P is staged".to_owned()),
            CudaPeers::Mapped => self.offer(own),
        };
        let (allocation, memory) = match offered {
            Ok((allocation, letter)) => {
                (Some(allocation), Ok((letter, own.address - allocation.start)))
            }
            Err(reason) => (None, Err(reason)),
        };
        let (bytes, promise) = (own.bytes as u64, own.promise);
        let least_bytes = settings.cuda_copy_engine_bytes as u64;
        (Claim { bytes, promise, least_bytes, memory }, allocation)
    }

    /// The allocation of a window, and what others need to map it.
    fn offer(&self, own: Own) -> Result<(Allocation, Letter), String> {
        let allocation = self.gpu.allocation(own.address).map_err(|error| error.to_string())?;
        let offset = (own.address - allocation.start) as usize;
        if own.bytes > allocation.bytes.saturating_sub(offset) {
            return Err("the window is in several allocations".to_owned());
        }
        let invitation = self.gpu.invitation(&allocation).map_err(|error| error.to_string())?;
        Ok((allocation, invitation.into()))
    }

    /// Maps the memory of the others, if all ranks can do that; else says who cannot.
    fn view(
        &mut self,
        claims: &[Claim],
        bytes: usize,
        agenda: &Agenda,
    ) -> Result<Result<gpu::Window, String>, Error> {
        let views = claims.iter().enumerate().map(|(rank, claim)| {
            let mapped = || self.mapped(claim, bytes).map_err(|e| format!("of rank {rank}: {e}"));
            if rank == self.me { Ok(None) } else { mapped().map(Some) }
        });
        let views: Result<Vec<_>, String> = views.collect();
        let said = views.as_ref().map(|_| ()).map_err(Clone::clone);
        let all: Vec<Result<(), String>> = self.gather(&said, agenda)?;
        let refusal = first_refusal(all.iter().map(|said| said.as_ref().copied()));
        Ok(refusal.map_or_else(|| views.map(|views| gpu::Window::new(views, bytes)), Err))
    }

    fn mapped(&self, claim: &Claim, bytes: usize) -> Result<(Mapped, usize), String> {
        let (letter, offset) = claim.memory.as_ref().map_err(Clone::clone)?;
        let invitation = Invitation::try_from(letter)?;
        let offset = usize::try_from(*offset).map_err(|error| error.to_string())?;
        if invitation.handle.size.checked_sub(offset).is_none_or(|rest| bytes > rest) {
            return Err("its window is not in its allocation".to_owned());
        }
        let mapped = self.gpu.map(&invitation).map_err(|error| error.to_string())?;
        Ok((mapped, offset))
    }
}

impl Direct {
    /// Waits until all ranks have registered as much memory; None if that takes longer than `patience`.
    pub(in crate::cuda) fn register(
        &self,
        memory: &DeviceRegion<'_>,
        promise: Promise,
        patience: Duration,
    ) -> Option<Result<Window, Error>> {
        let own = Own { address: memory.address(), bytes: memory.bytes(), promise };
        let mut routes = lock(&self.routes);
        let number = routes.windows.ask(own);
        if self.ranks < 2 {
            let alone = Err("there is one rank".to_owned());
            routes.windows.known.insert(number, State::Settled(alone));
            return routes.windows.outcome(number);
        }
        let mut meeting = lock(&self.meeting);
        routes.open(&mut meeting);
        let (wait, step) = (meeting.waiter(), meeting.ask(Step::Register(number)));
        drop((meeting, routes));
        if !wait(step, patience) {
            return None;
        }
        let outcome = lock(&self.routes).windows.outcome(number);
        Some(outcome.unwrap_or_else(|| Err(apart())))
    }

    /// Waits until all ranks have deregistered the window; None if that takes longer than `patience`.
    pub(in crate::cuda) fn deregister(
        &self,
        window: &Window,
        patience: Duration,
    ) -> Option<Result<(), Error>> {
        let mut routes = lock(&self.routes);
        let known = &mut routes.windows.known;
        if !known.contains_key(&window.number) {
            let text = "this is no window of the communicator".to_owned();
            return Some(Err(Error::InvalidArgument(text)));
        }
        if self.ranks < 2 {
            known.remove(&window.number);
            return Some(Ok(()));
        }
        let mut meeting = lock(&self.meeting);
        let (wait, step) = (meeting.waiter(), meeting.ask(Step::Deregister(window.number)));
        drop((meeting, routes));
        if !wait(step, patience) {
            return None;
        }
        let is_open = lock(&self.routes).windows.known.contains_key(&window.number);
        Some(if is_open { Err(apart()) } else { Ok(()) })
    }
}

/// Why nothing has come of a step.
fn apart() -> Error {
    Error::InvalidUsage("ranks do not meet any more: one of them has left".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bytes: u64) -> Claim {
        let memory = Err("it cannot be exported".to_owned());
        Claim { bytes, promise: Promise::Symmetric, least_bytes: 4096, memory }
    }

    #[test]
    fn windows_of_different_sizes_are_wrong() {
        let wrong = |claims: &[Claim]| judged(claims).unwrap_err().to_string();
        let told = wrong(&[claim(5), claim(5), claim(7)]);
        assert!(told.contains("a window has 5 bytes on rank 0 and 7 on rank 2"), "{told}");
        let other = Claim { promise: Promise::Nothing, ..claim(5) };
        let told = wrong(&[claim(5), other]);
        assert!(told.contains("symmetric on rank 0 and not symmetric on rank 1"), "{told}");
    }

    #[test]
    fn why_a_window_is_of_no_use_is_the_same_on_all_ranks() {
        let reason = |claims: [Claim; 2]| judged(&claims).unwrap().unwrap();
        assert_eq!(reason([claim(5), claim(5)]), "rank 0: it cannot be exported");
        let less = Claim { least_bytes: 1, ..claim(5) };
        let told = reason([claim(5), less]);
        assert_eq!(told, "R2CCL_CUDA_COPY_ENGINE_BYTES is 4096 on rank 0 and 1 on rank 1");
        let never = Claim { least_bytes: 0, ..claim(5) };
        assert_eq!(reason([never.clone(), never]), "R2CCL_CUDA_COPY_ENGINE_BYTES is 0");
        let plain = Claim { promise: Promise::Nothing, ..claim(5) };
        assert_eq!(reason([plain.clone(), plain]), "nothing is promised of a window");
    }
}
