//! What happened to the rails of a communicator, in order, for people and programs.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Mutex;

use ccl_transport::clock;
use ccl_transport::network::events::{Log, RailEvent, RailEventKind, Witness};
use serde::Serialize;

use crate::driver::lock;
use crate::health::{Judge, Surroundings};

/// Older records than the last so many are forgotten.
const REMEMBERED: usize = 4096;

/// Something that happened to one path between this rank and a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RailRecord {
    /// When, on the clock `CLOCK_MONOTONIC` of the host, in nanoseconds.
    pub at_ns: u64,
    /// `suspected`, `given-up` (fenced at this end), `resent`, `resumed` (the first tile since
    /// then came from the peer, or was confirmed by it), `returned`, or `measured` (it is slower, or no
    /// longer slower, than its siblings).
    pub event: &'static str,
    /// The rail of this rank.
    pub rail: usize,
    /// Both ends, in words.
    pub path: String,
    /// Which connection of the path, counted from 0.
    pub incarnation: u32,
    /// How a fault was found out: `device`, `closed`, `carrier`, `peer` or `silence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<&'static str>,
    /// What exactly was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Tiles lost or sent again.
    #[serde(skip_serializing_if = "is_zero")]
    pub tiles: usize,
    /// Their bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: usize,
    /// Measured part of the nominal capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl RailRecord {
    fn new(event: &RailEvent) -> Self {
        let mut record = Self {
            at_ns: clock::monotonic_ns(event.at),
            event: "",
            rail: event.rail,
            path: event.name.clone(),
            incarnation: event.incarnation,
            evidence: None,
            cause: None,
            tiles: 0,
            bytes: 0,
            percent: None,
        };
        record.event = match &event.kind {
            RailEventKind::Suspected => "suspected",
            RailEventKind::GivenUp { evidence, cause, tiles, bytes } => {
                (record.evidence, record.cause) = (Some(evidence.name()), Some(cause.clone()));
                (record.tiles, record.bytes) = (*tiles, *bytes);
                "given-up"
            }
            RailEventKind::Resent { tiles, bytes } => {
                (record.tiles, record.bytes) = (*tiles, *bytes);
                "resent"
            }
            RailEventKind::Resumed => "resumed",
            RailEventKind::Returned => "returned",
            RailEventKind::Measured { percent } => {
                record.percent = Some(*percent);
                "measured"
            }
        };
        record
    }
}

/// Writes events to the log, remembers them, and lets the rails be judged by them.
#[derive(Debug)]
pub(crate) struct Timeline {
    records: Mutex<VecDeque<RailRecord>>,
    judge: Judge,
    log: Log,
}

impl Timeline {
    pub(crate) fn new(judge: Judge) -> Self {
        Self { records: Mutex::default(), judge, log: Log::default() }
    }

    /// Whom to ask when a path is lost.
    pub(crate) fn surround(&self, surroundings: Surroundings) {
        self.judge.surround(surroundings);
    }

    /// Everything that was not taken.
    pub(crate) fn remembered(&self) -> Vec<RailRecord> {
        lock(&self.records).iter().cloned().collect()
    }

    /// What happened since the last call.
    pub(crate) fn take(&self) -> Vec<RailRecord> {
        lock(&self.records).drain(..).collect()
    }
}

impl Witness for Timeline {
    fn witness(&self, event: RailEvent) {
        let mut records = lock(&self.records);
        if records.len() == REMEMBERED {
            records.pop_front();
        }
        records.push_back(RailRecord::new(&event));
        drop(records);
        self.judge.hear(&event);
        self.log.witness(event);
    }

    fn moved(&self, rail: usize, address: SocketAddr) {
        self.judge.moved(rail, address);
    }
}
