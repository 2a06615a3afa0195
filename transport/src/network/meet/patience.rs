//! For how long a peer is waited for over one rail before another has its turn.

use std::time::Duration;

use crate::TransportError;

/// How long one attempt to connect may take, so that the end of the meeting is noticed.
pub(super) const ATTEMPT_LIMIT: Duration = Duration::from_secs(1);

/// How long one try over a rail may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// To connect.
    pub(super) attempt: Duration,
    /// For the peer to turn to the connection.
    pub(super) hearing: Duration,
}

impl Patience {
    /// The same, but the peer turns to the connection within `turn`, if that is a limit.
    pub(super) fn within(self, turn: Option<Duration>) -> Self {
        Self { hearing: turn.map_or(self.hearing, |turn| turn.min(self.hearing)), ..self }
    }

    /// What the next one may take. A peer that did not turn to the connection has twice as long: what is given up stays in the
    /// queue of one that is slow, in front of what is tried next.
    pub(super) fn after(self, failure: &TransportError) -> Self {
        let attempt = self.attempt.saturating_mul(2).min(ATTEMPT_LIMIT);
        let hearing = match failure {
            TransportError::TimedOut(_) => self.hearing.saturating_mul(2),
            TransportError::PeerGone(_)
            | TransportError::Severed(_)
            | TransportError::Unrepaired(_)
            | TransportError::Protocol(_)
            | TransportError::Refused(_)
            | TransportError::System { .. } => self.hearing,
        };
        Self { attempt, hearing }
    }
}
