//! Who has come to a meeting so far.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::Instant;

use ccl_core::ids::Rank;

use super::{Maker, Seat};
use crate::{TransportError, clock};

/// Who has come.
#[derive(Debug)]
pub(in super::super) struct Met {
    pub(in super::super) streams: BTreeMap<Seat, TcpStream>,
    /// Why connections are not there.
    pub(super) reasons: BTreeMap<Seat, String>,
}

impl Met {
    /// Why there is no connection with a peer over one rail.
    pub(in super::super) fn reason(&self, seat: Seat) -> String {
        self.reasons.get(&seat).map_or("it did not come", String::as_str).to_owned()
    }
}

#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) seated: BTreeMap<Seat, TcpStream>,
    /// When the latest of them came.
    pub(super) latest: Option<Instant>,
    /// Why a connection is not there yet.
    pub(super) reasons: BTreeMap<Seat, String>,
    /// Why nobody can be accepted.
    pub(super) closed: Option<String>,
    /// What makes waiting pointless.
    pub(super) failure: Option<TransportError>,
    /// Connections being authenticated, to end them when the meeting is over; by who made them.
    pub(super) handshakes: BTreeMap<(Maker, u64), TcpStream>,
    pub(super) next_handshake: u64,
}

impl Progress {
    /// The first connection counts.
    pub(super) fn seat(&mut self, seat: Seat, stream: TcpStream) {
        self.seated.entry(seat).or_insert(stream);
        self.latest = Some(clock::now());
    }

    /// Whether a peer is connected over any rail.
    pub(super) fn has(&self, rank: Rank) -> bool {
        self.seated.range((rank, 0)..=(rank, usize::MAX)).next().is_some()
    }
}
