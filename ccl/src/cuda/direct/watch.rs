//! Watches a call that kernels do: who does not come ends it, and no kernel waits for ever.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_kernels::cuda::gpu::{Event, Exchange, Protocol};
use ccl_transport::clock;

use crate::cuda::deadline::Deadline;
use crate::cuda::error::error as from_device;
use crate::cuda::staging::Staging;
use crate::cuda::uneven::Party;

/// Looks at an event before the first pause.
const LOOKS: u32 = 64;
const LEAST_PAUSE: Duration = Duration::from_micros(20);
const MOST_PAUSE: Duration = Duration::from_millis(1);
/// How long a device may take to say who has come.
const LOOK_TIME: Duration = Duration::from_secs(2);

/// What the driver thread does for such a call.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(super) exchange: Arc<Exchange>,
    pub(super) staging: Arc<Staging>,
    pub(super) call: &'static str,
    pub(super) protocol: Protocol,
    /// The ranks of the exchange, in its order.
    pub(super) members: Arc<[Rank]>,
    /// Of a call in which ranks may expect other sizes than they get.
    pub(super) party: Option<Party>,
    /// Happens when the stream comes to the call.
    pub(super) entered: Event,
    /// Happens when the call is over.
    pub(super) ended: Arc<Event>,
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
        let result = self.wait(fault, &Deadline::new(timeout));
        if let Err(error) = &result {
            self.exchange.give_up();
            fail(error);
            self.staging.keep(error);
        }
        result
    }

    /// As [`Self::run`], and what ends it is for whoever calls to tell.
    pub(super) fn wait(
        &self,
        fault: &dyn Fn() -> Option<Error>,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        let mut first_look = None;
        until(&self.entered, || {
            fault().or_else(|| self.staging.is_overdue(self.call, &mut first_look))
        })?;
        deadline.begin();
        until(&self.ended, || {
            let quarrel = || fault().or_else(|| self.quarrel());
            quarrel().or_else(|| self.late(deadline))
        })?;
        // Kernels that were let go have ended with nothing.
        fault().map_or(Ok(()), Err)
    }

    /// A rank that sends something else than is expected of it.
    fn quarrel(&self) -> Option<Error> {
        let (party, quarrel) = (self.party?, self.exchange.quarrel()?);
        Some(party.disagreement(Rank(quarrel.sender as u32), quarrel.sent, quarrel.expected))
    }

    /// What ends a call that something else waits for: it looks without waiting.
    pub(super) fn look(&self, deadline: &Deadline) -> Option<Error> {
        match self.entered.has_happened().map_err(from_device) {
            Ok(true) => self.late(deadline),
            Ok(false) => None,
            Err(error) => Some(error),
        }
    }

    /// Who has not come, if it is too late.
    fn late(&self, deadline: &Deadline) -> Option<Error> {
        deadline.is_past().then(|| deadline.error(self.call, self.awaited()))
    }

    fn awaited(&self) -> String {
        let begin = clock::now();
        let is_over = || clock::now().saturating_duration_since(begin) > LOOK_TIME;
        let silent = || is_over().then(|| Error::Cuda("the device is silent".to_owned()));
        let looked =
            self.exchange.look().map_err(from_device).and_then(|seen| until(&seen, silent));
        if let Err(error) = looked {
            return format!("who has not come is not known: {error}");
        }
        let ranks = self.exchange.awaited(self.protocol);
        let names: Vec<String> =
            ranks.iter().map(|place| format!("rank {}", self.members[*place])).collect();
        match names.as_slice() {
            [] => "all ranks have come, and some have not finished".to_owned(),
            [one] => format!("the device of {one} has not come to it"),
            several => format!("the devices of {} have not come to it", several.join(", ")),
        }
    }
}

/// Waits for an event, until `hopeless` returns an error or the device does.
fn until(event: &Event, mut hopeless: impl FnMut() -> Option<Error>) -> Result<(), Error> {
    let (mut looks, mut pause) = (0, LEAST_PAUSE);
    while !event.has_happened().map_err(from_device)? {
        if let Some(error) = hopeless() {
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
