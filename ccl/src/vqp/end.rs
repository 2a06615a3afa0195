//! What a queue pair is made of: one of a device, or one over several rails.

use ccl_transport::TransportError;
use ccl_transport::verbs::virtual_qp::{SendState, VirtualQp};
use ccl_transport::verbs::{self, QueuePair as _, State};

use super::event::Snapshot;
use super::plain::Plain;

/// What it is made of.
#[derive(Debug)]
pub(super) enum End {
    Surviving(Box<VirtualQp>),
    Plain(Plain),
}

impl End {
    pub(super) fn pair(&mut self) -> &mut dyn verbs::QueuePair {
        match self {
            Self::Surviving(pair) => &mut **pair,
            Self::Plain(plain) => &mut *plain.pair,
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        match self {
            Self::Surviving(pair) => Snapshot {
                is_running: pair.is_running(),
                has_failed: pair.state() == State::Error,
                is_returning: matches!(
                    pair.send_state(),
                    SendState::WaitSignaled | SendState::WaitDrained
                ),
                rail: pair.active(),
                repairs: pair.counters().repairs,
            },
            Self::Plain(plain) => {
                let state = plain.pair.state();
                Snapshot {
                    is_running: state == State::ReadyToSend,
                    has_failed: state == State::Error,
                    ..Snapshot::default()
                }
            }
        }
    }

    /// Gives up a rail, for a reason that its device does not know. A plain queue pair ends with its only one.
    pub(super) fn give_up(&mut self, rail: usize, why: &str) {
        match self {
            Self::Surviving(pair) => pair.suspect(rail),
            Self::Plain(plain) if rail == 0 => {
                plain.give_up(TransportError::PeerGone(why.to_owned()));
            }
            Self::Plain(_) => {}
        }
    }
}
