//! What one run measures, as both ends know it.

use std::time::Duration;

use ccl::vqp::{Depth, DomainConfig, Evidence, Limits, Terms};
use serde::{Deserialize, Serialize};

use super::arguments::Arguments;
use crate::Outcome;
use crate::error::Failure;

/// The largest size of `--all`, as in perftest.
const LARGEST_SHIFT: u32 = 23;
/// Memory of one end, for all queue pairs.
const MOST_MEMORY: usize = 256 << 20;
/// Memory of one queue pair at one end.
const MOST_OF_A_PAIR: usize = 64 << 20;
/// Bytes of the word of an atomic.
const WORD: usize = 8;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    /// Bandwidth of writes.
    WriteBandwidth,
    /// Latency of writes that answer each other.
    WriteLatency,
    /// Bandwidth of messages into receives.
    SendBandwidth,
    /// Bandwidth of reads.
    ReadBandwidth,
    /// Latency of atomics.
    AtomicLatency,
}

/// Which atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum AtomicType {
    /// Fetch-and-add.
    #[value(name = "FETCH_AND_ADD")]
    FetchAndAdd,
    /// Compare-and-swap.
    #[value(name = "CMP_AND_SWAP")]
    CompareAndSwap,
}

impl Test {
    /// The name of the binary.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteBandwidth => "vqp_write_bw",
            Self::WriteLatency => "vqp_write_lat",
            Self::SendBandwidth => "vqp_send_bw",
            Self::ReadBandwidth => "vqp_read_bw",
            Self::AtomicLatency => "vqp_atomic_lat",
        }
    }

    /// Whether one operation at a time is timed.
    #[must_use]
    pub fn is_latency(self) -> bool {
        matches!(self, Self::WriteLatency | Self::AtomicLatency)
    }

    fn default_bytes(self) -> usize {
        match self {
            Self::WriteBandwidth | Self::SendBandwidth | Self::ReadBandwidth => 65536,
            Self::WriteLatency => 2,
            Self::AtomicLatency => WORD,
        }
    }

    fn default_iterations(self) -> u64 {
        if self.is_latency() { 1000 } else { 5000 }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured.
    pub test: Test,
    /// Bytes of an operation, a row each.
    pub sizes: Vec<usize>,
    /// Operations of a row and queue pair, unless there is a duration.
    pub iterations: u64,
    /// Seconds that a row takes instead.
    pub duration_s: Option<f64>,
    /// Queue pairs.
    pub pairs: usize,
    /// Spares of each end in a pool, in place of own backups.
    pub pool: Option<usize>,
    /// Requests outstanding on each, at most.
    pub tx_depth: usize,
    /// Receives posted on each.
    pub rx_depth: usize,
    /// The name of the evidence.
    pub evidence: String,
    /// Faults to rehearse; empty for none.
    pub faults: String,
    /// Which atomic.
    pub atomic: AtomicType,
    /// Atomics that are timed together.
    pub batch: usize,
    /// Reads behind each of them.
    pub reads: usize,
    /// Whether both ends sleep where there is nothing to do.
    pub events: bool,
    /// See [`Terms::silence`].
    pub silence: Duration,
    /// See [`Limits::patience_ns`].
    pub patience: Duration,
    /// See [`Limits::settle_ns`].
    pub settle: Duration,
    /// How long anything may take that waits for the other end.
    pub limit: Duration,
}

impl Plan {
    /// What the command line asks for.
    #[must_use]
    pub fn new(test: Test, arguments: &Arguments) -> Self {
        let sizes = match (arguments.all, arguments.size) {
            (true, _) => (1..=LARGEST_SHIFT).map(|shift| 1 << shift).collect(),
            (false, size) => vec![size.unwrap_or(test.default_bytes())],
        };
        let depth = if test.is_latency() { 1 } else { arguments.tx_depth.get() };
        Self {
            test,
            sizes: if test == Test::AtomicLatency { vec![WORD] } else { sizes },
            iterations: arguments.iterations.map_or(test.default_iterations(), |n| n.get()),
            duration_s: arguments.duration.map(|duration| duration.as_secs_f64()),
            pairs: if test.is_latency() { 1 } else { arguments.pairs.get() },
            pool: arguments.pool,
            tx_depth: depth,
            rx_depth: arguments.rx_depth.get(),
            evidence: arguments.evidence.name().to_owned(),
            faults: arguments.faults.join(";"),
            atomic: arguments.atomic,
            batch: arguments.batch,
            reads: arguments.reads,
            events: arguments.events,
            silence: arguments.silence,
            patience: arguments.patience,
            settle: arguments.settle,
            limit: arguments.limit,
        }
    }

    /// The domain that it needs, over these devices.
    ///
    /// # Errors
    /// The faults are not understood.
    pub fn domain(&self, devices: &str) -> Outcome<DomainConfig> {
        let config = DomainConfig { devices: devices.to_owned(), ..DomainConfig::default() };
        if self.faults.is_empty() {
            return Ok(config);
        }
        config.with_faults(&self.faults).map_err(|error| Failure::Input(error.to_string()))
    }

    /// The queue pairs that it needs.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let limits = Limits {
            patience_ns: nanoseconds(self.patience),
            settle_ns: nanoseconds(self.settle),
            ..Limits::default()
        };
        // A latency test has its request, the answer, and the next request before both are reaped.
        let sends =
            if self.test.is_latency() { self.batch_requests().max(16) } else { self.tx_depth };
        let receives = if self.test == Test::SendBandwidth { self.rx_depth } else { 0 };
        let evidence = Evidence::ALL.into_iter().find(|one| one.name() == self.evidence);
        Terms { evidence, depth: Depth { sends, receives }, silence: self.silence, limits }
    }

    /// Requests of a batch of atomics, each with a word of its own for its result.
    #[must_use]
    pub fn batch_requests(&self) -> usize {
        self.batch * (1 + self.reads)
    }

    /// Operations of one queue pair that are on the way at a time, each with a slot of its own.
    #[must_use]
    pub fn slots(&self, bytes: usize) -> usize {
        self.fitting(bytes, self.tx_depth)
    }

    /// Receives of one queue pair, each with a slot of its own.
    #[must_use]
    pub fn receive_slots(&self, bytes: usize) -> usize {
        self.fitting(bytes, self.rx_depth)
    }

    fn fitting(&self, bytes: usize, wanted: usize) -> usize {
        let budget = MOST_OF_A_PAIR.min(MOST_MEMORY / self.pairs);
        (budget / bytes.max(1)).clamp(1, wanted)
    }

    /// Bytes of one queue pair at one end.
    #[must_use]
    pub fn stride(&self) -> usize {
        let needed = |&bytes: &usize| bytes * self.slots(bytes).max(self.receive_slots(bytes));
        let most = self.sizes.iter().map(needed).max().unwrap_or(0);
        // A latency test sends from one half and is answered in the other; words are aligned.
        (2 * most).max(self.batch_requests() * WORD).next_multiple_of(4 * WORD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(test: Test, line: &str) -> Plan {
        Plan::new(test, &Arguments::parsed(test, line.split_whitespace()).unwrap())
    }

    #[test]
    fn defaults_are_those_of_perftest() {
        let bandwidth = plan(Test::WriteBandwidth, "");
        assert_eq!((bandwidth.sizes, bandwidth.iterations), (vec![65536], 5000));
        assert_eq!((bandwidth.pairs, bandwidth.tx_depth, bandwidth.rx_depth), (1, 128, 512));
        let latency = plan(Test::WriteLatency, "-q 4");
        assert_eq!((latency.sizes, latency.iterations, latency.pairs), (vec![2], 1000, 1));
        assert_eq!(plan(Test::AtomicLatency, "-a").sizes, [8]);
        let all = plan(Test::ReadBandwidth, "-a").sizes;
        assert_eq!((all.len(), all[0], all[22]), (23, 2, 8 << 20));
    }

    #[test]
    fn memory_is_bounded() {
        let large = plan(Test::SendBandwidth, "-s 8M -q 16");
        assert_eq!((large.slots(8 << 20), large.receive_slots(8 << 20)), (2, 2));
        assert_eq!(large.stride(), 32 << 20);
        assert_eq!(plan(Test::WriteBandwidth, "-s 1").slots(1), 128);
        assert_eq!(plan(Test::WriteBandwidth, "-s 1G").slots(1 << 30), 1);
    }
}
