//! Whether what arrives is stored in the memory of the application past the caches.
//!
//! What does not fit into the caches is not there any more when somebody needs it, and storing it there has cost a read of
//! every line and the place of something else. What fits is found in them by the application, and by the next call. How much
//! fits, nobody says: other processes use the last cache too, those of other virtual machines among them, and so do
//! the slots of the links. So far below the share of a rank everything is stored in the caches, far above nothing is,
//! and in between a [trial](Trial) tells which is faster. A rank tries on its own. What it compares is the time that its
//! own processor works, because how long a call waits depends on all ranks.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use ccl_core::collective::Collective;
use ccl_kernels::Region;
use smallvec::SmallVec;

use super::Task;
use crate::trial::{Trial, Turn, Way};

/// How much the last caches hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caches {
    /// Of one rank, in bytes.
    pub(crate) share: usize,
    /// Of all ranks on the machine, in bytes.
    pub(crate) all: usize,
}

impl Caches {
    /// Of a machine that does not say.
    const UNKNOWN: Self = Self { share: usize::MAX, all: usize::MAX };

    /// Buffers exceed the caches if they have half as many bytes again: what would be needed next is gone by then, if
    /// all of it is used in turn. Measured with 2 to 8 ranks that share 32 MiB: from here on nothing is slower past the
    /// caches, and collectives that store what arrives are faster by up to a third.
    fn are_exceeded_by(self, bytes: usize) -> bool {
        bytes >= self.share.saturating_add(self.share / 2)
    }

    /// Whether what a collective stores in so many bytes of buffers is usually stored past the caches. What a broadcast
    /// stores nobody looks at again, so there it is enough that it would fill them.
    fn are_passed(self, collective: Collective, bytes: usize) -> bool {
        if collective == Collective::Broadcast {
            bytes >= self.share
        } else {
            self.are_exceeded_by(bytes)
        }
    }

    /// Whether so many bytes of buffers may be faster either way. A machine was seen on which this begins with half of the
    /// share, and there is no telling how many others use its caches.
    fn are_in_doubt(self, bytes: usize) -> bool {
        (self.share / 8..self.share.saturating_add(self.share / 2)).contains(&bytes)
    }
}

/// Calls that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    collective: Collective,
    /// The output lies in the input, or the other way round.
    is_in_place: bool,
    /// Bytes of the buffers, to the next power of two.
    size: u32,
}

/// Counts how long a call works.
#[derive(Debug)]
struct Meter {
    kind: Kind,
    way: Way,
    worked: Duration,
}

/// How stores are done.
#[derive(Debug)]
pub(super) struct Stores {
    caches: Caches,
    trials: HashMap<Kind, Trial>,
    /// The call under way goes past the caches.
    pass: bool,
    /// It is part of a trial.
    meter: Option<Meter>,
}

impl Default for Stores {
    fn default() -> Self {
        Self::new(Caches::UNKNOWN)
    }
}

impl Stores {
    pub(super) fn new(caches: Caches) -> Self {
        Self { caches, trials: HashMap::new(), pass: false, meter: None }
    }

    /// Decides on the stores of a task that begins.
    pub(super) fn begin(&mut self, task: &Task<'_>) {
        let collective = task.stamp.signature.collective;
        let bytes = footprint(task.buffers);
        self.pass = self.caches.are_passed(collective, bytes);
        self.meter = None;
        if !self.caches.are_in_doubt(bytes) {
            return;
        }
        let all: usize = task.buffers.iter().map(Region::bytes).sum();
        let kind = Kind { collective, is_in_place: bytes < all, size: bytes.max(1).ilog2() };
        let trial = self.trials.entry(kind).or_default();
        let (way, is_tried) = match trial.turn() {
            Turn::Go(way) => (way, !trial.is_settled()),
            Turn::Decide => {
                let times = trial.times();
                let way = trial.decide([times]);
                tracing::debug!(
                    ?kind,
                    usually_past_caches = self.pass,
                    ?way,
                    ?times,
                    "stores compared"
                );
                (way, false)
            }
        };
        self.pass ^= way == Way::Other;
        self.meter = is_tried.then_some(Meter { kind, way, worked: Duration::ZERO });
    }

    /// Whether the call under way stores past the caches.
    pub(super) fn pass(&self) -> bool {
        self.pass
    }

    /// Whether the call under way is part of a trial.
    pub(super) fn is_tried(&self) -> bool {
        self.meter.is_some()
    }

    /// So long has a sweep of the call under way worked, in which something moved.
    pub(super) fn count(&mut self, worked: Duration) {
        if let Some(meter) = &mut self.meter {
            meter.worked += worked;
        }
    }

    /// The last byte of the call under way has moved.
    pub(super) fn end(&mut self) {
        if let Some(Meter { kind, way, worked }) = self.meter.take() {
            self.trials.entry(kind).or_default().record(way, worked);
        }
    }

    /// Whether nothing of these buffers stays in a cache until somebody needs it.
    pub(super) fn exceed(&self, buffers: &[Region<'_>]) -> bool {
        self.caches.are_exceeded_by(footprint(buffers))
    }

    /// Whether one of these buffers does not even fit into all caches together.
    pub(super) fn exceed_all(&self, buffers: &[Region<'_>]) -> bool {
        buffers.iter().any(|buffer| buffer.bytes() > self.caches.all)
    }

    /// Whether so many bytes are as many as this rank's share of the caches.
    pub(super) fn fill(&self, bytes: usize) -> bool {
        bytes >= self.caches.share
    }
}

/// Bytes of buffers; those that lie in several of them count once.
fn footprint(buffers: &[Region<'_>]) -> usize {
    let range = |buffer: &Region<'_>| buffer.address()..buffer.address() + buffer.bytes();
    let mut ranges: SmallVec<[Range<usize>; 4]> = buffers.iter().map(range).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut counted = 0;
    let mut sum = 0;
    for Range { start, end } in ranges {
        sum += end.saturating_sub(start.max(counted));
        counted = counted.max(end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use ccl_core::collective::{Request, Signature};
    use ccl_core::program::Program;
    use ccl_core::wire::Stamp;

    use super::*;

    const KIB: usize = 1024;
    const CACHES: Caches = Caches { share: 16 * KIB, all: 32 * KIB };

    /// The turns before a verdict, and how many calls it holds for the first time.
    const TRIED: [bool; 8] = [false, false, true, true, true, false, false, false];
    const HELD: usize = 128;

    /// Does calls that take so many microseconds through the caches, and past them. Tells which way each went.
    fn calls(stores: &mut Stores, task: &Task<'_>, [cached, past]: [u64; 2]) -> Vec<bool> {
        let call = |_| {
            stores.begin(task);
            let pass = stores.pass();
            // In two sweeps.
            let half = Duration::from_micros(if pass { past } else { cached }) / 2;
            (0..2).for_each(|_| stores.count(half));
            stores.end();
            pass
        };
        (0..TRIED.len() + HELD).map(call).collect()
    }

    /// Does as much in a collective with buffers of so many bytes.
    fn calls_of(
        stores: &mut Stores,
        (collective, bytes): (Collective, [usize; 2]),
        micros: [u64; 2],
    ) -> Vec<bool> {
        let (input, mut output) = (vec![0_u8; bytes[0]], vec![0_u8; bytes[1]]);
        let buffers = [Region::of(&input), Region::of_mut(&mut output)];
        calls(stores, &task(collective, &buffers), micros)
    }

    fn task<'a>(collective: Collective, buffers: &'a [Region<'a>]) -> Task<'a> {
        static NOTHING: LazyLock<Program> = LazyLock::new(Program::default);
        let signature = Signature { collective, ..Request::BARRIER.signature(0) };
        let stamp = Stamp { sequence: 1, signature };
        Task { program: &NOTHING, buffers, stamp, arithmetic: None, is_straight: false }
    }

    fn tried_then(verdict: bool) -> Vec<bool> {
        TRIED.into_iter().chain([verdict; HELD]).collect()
    }

    #[test]
    fn what_is_in_doubt_goes_the_way_that_was_faster() {
        let call = (Collective::AllGather, [4 * KIB, 8 * KIB]);
        for (micros, past) in [([100, 80], true), ([100, 95], false), ([80, 100], false)] {
            assert_eq!(
                calls_of(&mut Stores::new(CACHES), call, micros),
                tried_then(past),
                "{micros:?}"
            );
        }
        // Broadcasts that would fill the caches usually go past them.
        let call = (Collective::Broadcast, [8 * KIB; 2]);
        let usual =
            |past: bool| tried_then(!past).into_iter().map(|tried| !tried).collect::<Vec<_>>();
        assert_eq!(calls_of(&mut Stores::new(CACHES), call, [80, 100]), usual(false));
        assert_eq!(calls_of(&mut Stores::new(CACHES), call, [100, 80]), usual(true));
    }

    #[test]
    fn calls_of_another_kind_are_tried_by_themselves() {
        let mut stores = Stores::new(CACHES);
        let gather = (Collective::AllGather, [4 * KIB, 8 * KIB]);
        assert_eq!(calls_of(&mut stores, gather, [100, 80]), tried_then(true));
        let other = (Collective::AllToAll, [6 * KIB, 6 * KIB]);
        assert_eq!(calls_of(&mut stores, other, [80, 100]), tried_then(false), "collective");
        let smaller = (Collective::AllGather, [2 * KIB, 4 * KIB]);
        assert_eq!(calls_of(&mut stores, smaller, [80, 100]), tried_then(false), "size");
        let mut output = vec![0_u8; 12 * KIB];
        let output = Region::of_mut(&mut output);
        let in_place = [output.part(6 * KIB, 6 * KIB), output];
        let in_place = task(Collective::AllGather, &in_place);
        assert_eq!(calls(&mut stores, &in_place, [80, 100]), tried_then(false), "in place");
    }

    #[test]
    fn small_and_large_buffers_are_in_no_doubt() {
        for (collective, bytes, past) in [
            (Collective::AllReduce, 2 * KIB - 1, false),
            (Collective::AllReduce, 24 * KIB, true),
            (Collective::Broadcast, 24 * KIB, true),
        ] {
            let calls = calls_of(&mut Stores::new(CACHES), (collective, [bytes, 0]), [100, 100]);
            assert!(calls.iter().all(|call| *call == past), "{collective:?} of {bytes} bytes");
        }
        assert!(
            calls_of(&mut Stores::default(), (Collective::AllReduce, [1 << 20; 2]), [9, 1])
                .iter()
                .all(|past| !past)
        );
    }

    #[test]
    fn a_call_that_fails_is_not_part_of_the_trial() {
        let mut stores = Stores::new(CACHES);
        let buffers = [Region::empty(); 2];
        let (input, mut output) = (vec![0_u8; 8 * KIB], vec![0_u8; 4 * KIB]);
        let whole = [Region::of(&input), Region::of_mut(&mut output)];
        stores.begin(&task(Collective::AllGather, &whole));
        assert!(stores.is_tried());
        stores.begin(&task(Collective::Barrier, &buffers));
        assert!(!stores.is_tried() && !stores.pass());
    }

    #[test]
    fn a_broadcast_usually_goes_past_the_caches_sooner() {
        let passing = |bytes| {
            [Collective::Broadcast, Collective::AllReduce, Collective::AllToAll]
                .map(|collective| CACHES.are_passed(collective, bytes))
        };
        assert_eq!(passing(16 * KIB - 1), [false, false, false]);
        assert_eq!(passing(16 * KIB), [true, false, false]);
        assert_eq!(passing(24 * KIB), [true, true, true]);
    }

    #[test]
    fn what_is_unknown_is_never_exceeded() {
        assert!(CACHES.are_exceeded_by(24 * KIB) && !CACHES.are_exceeded_by(24 * KIB - 1));
        assert!(!Caches::UNKNOWN.are_exceeded_by(1 << 40));
    }

    #[test]
    fn memory_in_two_roles_counts_once() {
        let (mut one, other) = ([0_u8; 100], [0_u8; 20]);
        let whole = Region::of_mut(&mut one);
        let [block, part, tail] =
            [(40, 20), (20, 30), (30, 70)].map(|(at, bytes)| whole.part(at, bytes));
        assert_eq!(footprint(&[whole, block]), 100, "in place");
        assert_eq!(footprint(&[block, whole]), 100, "a part first");
        assert_eq!(footprint(&[tail, block, part]), 80, "overlapping");
        assert_eq!(footprint(&[whole, Region::of(&other)]), 120);
        assert_eq!(footprint(&[]), 0);
    }
}
