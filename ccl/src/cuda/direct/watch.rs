//! Watches a call that kernels do, or copy engines: who does not come ends it, and no kernel and no stream waits for ever.
//!
//! Always true: the driver is asked by errands of the [envoy](crate::cuda::envoy) only, for which this waits a while and no
//! longer.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_kernels::cuda::gpu::{BesideCaptures, Exchange, Laggards, Protocol};
use ccl_transport::clock;

use super::hold::{Absent, Hold};
use crate::cuda::deadline::Deadline;
use crate::cuda::envoy::patience;
use crate::cuda::error::error as from_device;
use crate::cuda::staging::{Milestone, Staging};
use crate::cuda::uneven::Party;
use crate::driver::panicked;

/// Looks before the first pause.
const LOOKS: u32 = 64;
const LEAST_PAUSE: Duration = Duration::from_micros(20);
const MOST_PAUSE: Duration = Duration::from_millis(1);

/// What does a call.
#[derive(Debug)]
pub(super) enum Means {
    /// Kernels; with a party, if ranks may expect other sizes than they get.
    Kernels(Protocol, Option<Party>),
    /// Copy engines. What is held is let go when this goes.
    Copies(Hold),
}

/// What the driver thread does for such a call.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(super) exchange: Arc<Exchange>,
    pub(super) staging: Arc<Staging>,
    pub(super) call: &'static str,
    pub(super) means: Means,
    /// The ranks of the exchange, in its order.
    pub(super) members: Arc<[Rank]>,
    /// Happens when the stream comes to the call.
    pub(super) entered: Milestone,
    /// Happens when the call is over.
    pub(super) ended: Arc<Milestone>,
}

impl Watch {
    /// Waits for the stream, and then for the call, at most `timeout`. What ends it, which `fault` tells or
    /// `fail` is told, lets all kernels go.
    ///
    /// # Errors
    /// Whatever ended it, which is kept.
    pub(crate) fn run(
        self,
        fault: &dyn Fn() -> Option<Error>,
        fail: &dyn Fn(&Error),
        timeout: Duration,
    ) -> Result<(), Error> {
        let deadline = Deadline::new(timeout);
        let result = guarded(&self.staging, &self.exchange, || self.wait(fault, &deadline));
        if let Err(error) = &result {
            // Before streams go on with nothing.
            self.staging.keep(error);
            self.exchange.give_up();
            fail(error);
            self.leave();
        }
        result
    }

    /// Lets a stream go that is in the call, and waits for it: who frees memory next waits for the device, and while he
    /// does a driver may let nobody else write the marks.
    fn leave(self) {
        let Self { means, entered, ended, .. } = self;
        let is_copied = matches!(means, Means::Copies(_));
        drop(means);
        if is_copied && entered.has_happened() {
            let is_over = patience();
            // What went wrong is known.
            let _left = until(&ended, || is_over().then(silent));
        }
    }

    /// As [`Self::run`], and what ends it is for whoever calls to tell.
    pub(super) fn wait(
        &self,
        fault: &dyn Fn() -> Option<Error>,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        // Of calls that follow each other closely, most are over when their turn comes.
        if !self.ended.has_happened() {
            let mut first_look = None;
            until(&self.entered, || {
                fault().or_else(|| self.staging.is_overdue(self.call, &mut first_look))
            })?;
        }
        deadline.begin();
        until(&self.ended, || {
            let quarrel = || fault().or_else(|| self.quarrel());
            quarrel().or_else(|| {
                let late = self.late(deadline)?;
                let left =
                    matches!(self.means, Means::Copies(_)) && !self.exchange.gone().is_empty();
                // Whoever has left was earlier, and tells more.
                Some(left.then(|| told(fault)).flatten().unwrap_or(late))
            })
        })?;
        // Kernels and streams that were let go have ended with nothing.
        fault().map_or(Ok(()), Err)?;
        match &self.means {
            Means::Kernels(..) => Ok(()),
            Means::Copies(_) => self.trust(fault),
        }
    }

    /// Whether nobody has let its streams go before this call was over: marks of such a rank mean nothing.
    fn trust(&self, fault: &dyn Fn() -> Option<Error>) -> Result<(), Error> {
        let Some(place) = self.exchange.reported_gone().first().copied() else { return Ok(()) };
        let reason = "it has left a call that copies".to_owned();
        let unknown = || Error::Aborted { rank: self.members[place], reason };
        Err(told(fault).unwrap_or_else(unknown))
    }

    /// Has the region of this rank looked at.
    fn looked(&self) -> Result<(), Error> {
        let exchange = Arc::clone(&self.exchange);
        let is_copied = matches!(self.means, Means::Copies(_));
        let look = move || {
            let _beside = BesideCaptures::begin();
            let look = if is_copied { exchange.look_at_marks() } else { exchange.look() };
            look.and_then(|seen| seen.synchronise()).map_err(from_device)
        };
        let is_over = patience();
        self.staging.envoy().send(look, || is_over().then(silent))?
    }

    /// A rank that sends something else than is expected of it.
    fn quarrel(&self) -> Option<Error> {
        let Means::Kernels(_, party) = &self.means else { return None };
        let (party, quarrel) = ((*party)?, self.exchange.quarrel()?);
        Some(party.disagreement(Rank(quarrel.sender as u32), quarrel.sent, quarrel.expected))
    }

    /// What ends a call that something else waits for: it looks without waiting.
    pub(super) fn look(&self, deadline: &Deadline) -> Option<Error> {
        if self.entered.has_happened() { self.late(deadline) } else { self.entered.broken() }
    }

    /// Who has not come, if it is too late.
    fn late(&self, deadline: &Deadline) -> Option<Error> {
        deadline.is_past().then(|| deadline.error(self.call, self.awaited()))
    }

    fn awaited(&self) -> String {
        if let Err(error) = self.looked() {
            return format!("who has not come is not known: {error}");
        }
        let absent = match &self.means {
            Means::Kernels(protocol, _) => {
                let Laggards { late, slow } = self.exchange.awaited(*protocol);
                Absent { late, slow, ..Absent::default() }
            }
            Means::Copies(hold) => hold.awaited(),
        };
        absent.described(&self.members)
    }
}

/// Does something for which kernels wait: if it panics they are let go, and nobody takes that for a result.
pub(super) fn guarded<T>(staging: &Staging, exchange: &Exchange, act: impl FnOnce() -> T) -> T {
    let _guard = OnPanic(|| {
        staging.keep(&panicked());
        exchange.give_up();
    });
    act()
}

/// What is done if the thread panics as long as this lives.
pub(super) struct OnPanic<F: Fn()>(pub(super) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}

/// The reason of a rank that has let its streams go: it has told it before, on another way.
fn told(fault: &dyn Fn() -> Option<Error>) -> Option<Error> {
    let is_over = patience();
    loop {
        if let Some(error) = fault() {
            return Some(error);
        }
        if is_over() {
            return None;
        }
        clock::sleep(MOST_PAUSE);
    }
}

fn silent() -> Error {
    Error::Cuda("the device is silent, or its driver".to_owned())
}

/// Waits for a moment, until `hopeless` returns an error or the device does.
fn until(awaited: &Milestone, mut hopeless: impl FnMut() -> Option<Error>) -> Result<(), Error> {
    let (mut looks, mut pause) = (0, LEAST_PAUSE);
    while !awaited.has_happened() {
        let broken = if pause < MOST_PAUSE { None } else { awaited.broken() };
        if let Some(error) = broken.or_else(&mut hopeless) {
            return Err(error);
        }
        if looks < LOOKS {
            looks += 1;
            thread::yield_now();
        } else {
            clock::sleep(pause);
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }
    Ok(())
}

/// An error if a communicator was closed, and a stream has not come for longer than it is waited for.
pub(in crate::cuda) fn overdue(
    call: &str,
    patience: Option<Duration>,
    first_look: &mut Option<Instant>,
) -> Option<Error> {
    let (patience, now) = (patience?, clock::now());
    let waited = now.saturating_duration_since(*first_look.get_or_insert(now));
    (waited > patience).then(|| Error::Deadline {
        call: call.to_owned(),
        seconds: patience.as_secs_f64(),
        waiting: "its CUDA stream has not come to it".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_is_noticed_and_nothing_else() {
        let noticed = Cell::new(0);
        let act = |panics: bool| {
            let _guard = OnPanic(|| noticed.set(noticed.get() + 1));
            assert!(!panics, "on purpose");
        };
        act(false);
        assert_eq!(noticed.get(), 0);
        assert!(catch_unwind(AssertUnwindSafe(|| act(true))).is_err());
        assert_eq!(noticed.get(), 1);
    }
}
