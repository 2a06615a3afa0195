//! What ends a call before it is done, and how that is explained.

use std::ops::Range;
use std::time::{Duration, Instant};

use ccl_core::collective::{Collective, Signature};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::wire::Stamp;
use ccl_transport::{TransportError, clock};

use super::{Ended, Engine};
use crate::bootstrap::Control;
use crate::executor::Failure;

/// Calls whose signature is remembered, to tell a peer that is behind what it missed.
const REMEMBERED_CALLS: usize = 64;

/// How long a broken link waits for the news of why it broke.
pub(super) const NEWS_PATIENCE: Duration = Duration::from_millis(500);

/// Hope for what they have sent who left: it arrives within the patience.
#[derive(Debug, Default)]
pub(super) struct LastHope(Option<(Instant, Error)>);

impl LastHope {
    /// Takes why the call can never end, if it looks so now; returns that once it has looked so for too long.
    pub(super) fn look(&mut self, now: Instant, hopeless: Option<Error>) -> Option<Error> {
        match (&self.0, hopeless) {
            (_, None) => self.0 = None,
            (Some((end, known)), Some(error)) if *known == error => {
                return (now >= *end).then_some(error);
            }
            (_, Some(error)) => self.0 = Some((now + NEWS_PATIENCE, error)),
        }
        None
    }
}

/// The stamps of the latest calls.
#[derive(Debug)]
pub(super) struct History([Option<Stamp>; REMEMBERED_CALLS]);

impl Default for History {
    fn default() -> Self {
        Self([None; REMEMBERED_CALLS])
    }
}

impl History {
    pub(super) fn remember(&mut self, stamp: Stamp) {
        self.0[stamp.sequence as usize % REMEMBERED_CALLS] = Some(stamp);
    }

    /// The call with this number, if it is not too long ago.
    fn call(&self, sequence: u32) -> Option<Stamp> {
        let place = sequence as usize % REMEMBERED_CALLS;
        self.0[place].filter(|stamp| stamp.sequence == sequence)
    }
}

/// Asked now and then while a call waits; a reason ends the call and the communicator.
pub(crate) type Watch<'a> = &'a (dyn Fn() -> Option<String> + Sync);

/// What ends a call early.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    pub(crate) control: &'a Control,
    pub(crate) timeout_ns: u64,
    pub(crate) watch: Option<Watch<'a>>,
}

impl Limits<'_> {
    /// How long a call may take.
    pub(crate) fn timeout(self) -> Duration {
        Duration::from_nanos(self.timeout_ns)
    }

    /// What ended the communicator, here or elsewhere, or ends it now.
    pub(crate) fn fault(self) -> Option<Error> {
        let fault = self.control.fault().map(|fault| Error::clone(fault));
        fault.or_else(|| self.abandoned())
    }

    /// Who makes the call does not want to wait any more.
    pub(super) fn abandoned(self) -> Option<Error> {
        let reason = self.watch?()?;
        Some(Error::Aborted { rank: self.control.rank(), reason })
    }

    /// Why call number `calls`, or messages with `peers` if it is none, can never end.
    pub(super) fn hopeless(self, calls: Option<u64>, peers: &[Rank]) -> Option<Error> {
        let gone = match calls {
            Some(calls) => self.control.departed_before(calls),
            None => peers.iter().copied().find(|peer| self.control.has_departed(*peer)),
        };
        gone.map(|rank| Error::PeerLost {
            rank,
            reason: "it destroyed its communicator".to_owned(),
        })
    }

    /// A failure of the executor as an error that says who and why. If a link broke because a
    /// rank gave up, the reason is on its way through the control plane: it is waited for.
    pub(super) fn error_for(
        self,
        failure: Failure,
        me: Rank,
        ours: Stamp,
        history: &History,
    ) -> Error {
        match failure {
            // The peer may be in another call because something has ended this one.
            Failure::Mismatch { peer, count, theirs } => match self.control.fault() {
                Some(fault) => Error::clone(fault),
                None => {
                    let ours = Stamp { signature: Signature { count, ..ours.signature }, ..ours };
                    disagreement(me, peer, ours, theirs, history)
                }
            },
            Failure::Link { peer, cause } => {
                let end = clock::now() + NEWS_PATIENCE;
                while clock::now() < end {
                    if let Some(fault) = self.fault() {
                        return fault;
                    }
                    clock::sleep(Duration::from_millis(1));
                }
                match cause {
                    TransportError::System { call, cause } => {
                        Error::System { call: format!("link to rank {peer}: {call}"), cause }
                    }
                    TransportError::Severed(rails) => {
                        let reason = format!(
                            "no rail between it and rank {me} can be used: {rails}; R2CCL_RAIL_PATIENCE says for how \
                             long to wait"
                        );
                        Error::PeerLost { rank: peer, reason }
                    }
                    TransportError::Unrepaired(rails) => {
                        let reason = format!(
                            "a rail between it and rank {me} is lost, and R2CCL_HOT_REPAIR is off: {rails}"
                        );
                        Error::PeerLost { rank: peer, reason }
                    }
                    TransportError::PeerGone(_)
                    | TransportError::Protocol(_)
                    | TransportError::Refused(_)
                    | TransportError::TimedOut(_) => {
                        Error::PeerLost { rank: peer, reason: cause.to_string() }
                    }
                }
            }
        }
    }
}

impl Engine {
    /// A call has failed: what peers still read of its memory is in doubt from now on, and they begin to write none.
    pub(crate) fn renounce(&self) {
        self.executor.renounce();
    }

    /// Afterwards the caller of the call that failed may have its memory back.
    pub(crate) fn await_writers(&mut self) {
        if !self.executor.await_writers() {
            tracing::warn!(
                rank = self.me.0,
                "a peer may still write into the output of the call that failed"
            );
        }
    }

    /// Whether what was read of the memory of these ranks is what belongs to the call; asked before this rank tells
    /// anybody that it has finished.
    pub(super) fn check_read(&self, of: Range<usize>, stamp: Stamp, limits: Limits<'_>) -> Ended {
        let mut ranks = (0..self.ranks).map(Rank).filter(|rank| of.contains(&rank.index()));
        let checked = ranks.try_for_each(|rank| self.executor.check_read(rank));
        checked.map_err(|failure| limits.error_for(failure, self.me, stamp, &self.history).into())
    }
}

/// Whether two calls differ in nothing but their plans.
fn is_same_call(ours: Signature, theirs: Signature) -> bool {
    ours.plan != theirs.plan && Signature { plan: theirs.plan, ..ours } == theirs
}

fn disagreement(me: Rank, peer: Rank, ours: Stamp, theirs: Stamp, history: &History) -> Error {
    let numbered = |stamp: Stamp| format!("{} as call {}", stamp.signature, stamp.sequence);
    let is_message = |stamp: Stamp| stamp.signature.collective == Collective::PointToPoint;
    let then =
        if theirs.sequence == ours.sequence { Some(ours) } else { history.call(theirs.sequence) };
    let (sequence, call, other_call) = match then {
        _ if is_message(ours) && is_message(theirs) => {
            let call = format!("recv({} bytes) from rank {peer}", ours.signature.count);
            (ours.sequence, call, format!("send({} bytes) to rank {me}", theirs.signature.count))
        }
        Some(then) if is_same_call(then.signature, theirs.signature) => {
            let other_call =
                "the same with another plan (is R2CCL_ALGO the same on all ranks?)".to_owned();
            (then.sequence, then.signature.to_string(), other_call)
        }
        Some(then) if then.signature != theirs.signature => {
            (then.sequence, then.signature.to_string(), theirs.signature.to_string())
        }
        _ => (ours.sequence, numbered(ours), numbered(theirs)),
    };
    Error::Disagreement { sequence, rank: me, call, other: peer, other_call }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let signature =
            Signature { collective: Collective::Broadcast, plan: 1, ..Signature::POINT_TO_POINT };
        let (ours, mut history) = (Stamp { sequence: 5, signature }, History::default());
        history.remember(ours);
        let text = |theirs: Signature| {
            let theirs = Stamp { signature: theirs, ..ours };
            disagreement(Rank(0), Rank(1), ours, theirs, &history).to_string()
        };
        assert_eq!(
            text(Signature { plan: 2, ..signature }),
            "ranks disagree on call 5: rank 0 called broadcast(count=0, type=uint8, root=0), rank 1 called the same with \
             another plan (is R2CCL_ALGO the same on all ranks?)"
        );
        assert_eq!(
            text(Signature { plan: 2, count: 3, ..signature }),
            "ranks disagree on call 5: rank 0 called broadcast(count=0, type=uint8, root=0), rank 1 called \
             broadcast(count=3, type=uint8, root=0)"
        );
    }

    #[test]
    fn messages_that_differ_are_named_with_their_bytes() {
        let message = |count| Stamp {
            sequence: 0,
            signature: Signature { count, ..Signature::POINT_TO_POINT },
        };
        let error = disagreement(Rank(1), Rank(0), message(16), message(32), &History::default());
        assert_eq!(
            error.to_string(),
            "ranks disagree on call 0: rank 1 called recv(16 bytes) from rank 0, rank 0 called send(32 bytes) to rank 1"
        );
    }

    #[test]
    fn hope_for_another_rank_begins_anew() {
        let start = clock::now();
        let left = |rank| Some(Error::PeerLost { rank: Rank(rank), reason: "it left".into() });
        let mut hope = LastHope::default();
        let mut look = |halves: u32, error| hope.look(start + NEWS_PATIENCE / 2 * halves, error);
        assert_eq!(look(0, left(1)), None);
        // What the first had sent has come.
        assert_eq!(look(1, None), None);
        assert_eq!(look(5, left(1)), None);
        assert_eq!(look(6, left(2)), None);
        assert_eq!(look(7, left(2)), None);
        assert_eq!(look(8, left(2)), left(2));
    }
}
