//! Whether results are stored in the memory of the application past the caches.
//!
//! What does not fit into the caches is not there any more when somebody needs it, and storing it there has cost a read of
//! every line and the place of something else. What fits is found in them by the application, and by the next call. How much
//! fits, nobody says: other processes use the last cache too, those of other virtual machines among them, and so do
//! the slots of the links. So far below the share of a rank everything is stored in the caches, far above nothing is,
//! and in between a [trial](Trial) tells whether the usual way for such calls is slower than the other one. A rank tries
//! on its own. What it compares is the time that its own processor works, because how long a call waits depends on all
//! ranks.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use ccl_core::collective::Collective;
use ccl_kernels::Region;
use smallvec::SmallVec;

use crate::trial::{Course, Trial, Turn, Way};

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
    pub(crate) fn exceeding_bytes(self) -> usize {
        self.share.saturating_add(self.share / 2)
    }

    /// From how many bytes of buffers on a collective stores nothing in the caches. What a broadcast stores no rank reads
    /// again, so there it is enough that it would fill them.
    pub(crate) fn limit(self, collective: Collective) -> usize {
        if collective == Collective::Broadcast { self.share } else { self.exceeding_bytes() }
    }

    /// From how many bytes on there may be something to try.
    pub(crate) fn least_in_doubt(self) -> usize {
        self.share / 4
    }

    /// Whether there is something to try, where a collective usually stores nothing in the caches from `limit` bytes on. A
    /// machine was seen that is faster past its caches from half of the share on while others use them, and through them up to
    /// two shares while nobody does, and there is no telling who does.
    fn are_in_doubt(self, bytes: usize, limit: usize) -> bool {
        (self.least_in_doubt()..limit.saturating_mul(3)).contains(&bytes)
    }
}

/// A call, as far as it matters to its stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    /// The output lies in the input, or the other way round.
    pub(crate) is_in_place: bool,
    /// This rank is the root, and has other things to do than the others.
    pub(crate) is_root: bool,
    /// How much memory a rank goes through.
    pub(crate) bytes: usize,
}

impl Call {
    /// One that goes through all of its buffers, and has no root here.
    pub(crate) fn of(collective: Collective, buffers: &[Region<'_>]) -> Self {
        let (all, bytes) = (buffers.iter().map(Region::bytes).sum(), footprint(buffers));
        Self { collective, is_in_place: bytes < all, is_root: false, bytes }
    }

    fn kind(self, usually: Past) -> Kind {
        let Self { collective, is_in_place, is_root, bytes } = self;
        Kind { collective, is_in_place, is_root, size: bytes.max(1).ilog2(), usually }
    }
}

/// Calls that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    collective: Collective,
    is_in_place: bool,
    is_root: bool,
    /// Bytes, rounded down to a power of two.
    size: u32,
    /// What is done without a trial.
    usually: Past,
}

/// Whether results are stored past the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Past(bool);

impl Past {
    /// On one of the two ways of a [trial](Trial), if this is the usual one.
    fn by(self, way: Way) -> Self {
        Self(self.0 == (way == Way::Usual))
    }
}

/// Counts how long a call works.
#[derive(Debug)]
struct Meter {
    kind: Kind,
    bytes: usize,
    way: Way,
    worked: Duration,
}

/// How stores are done.
#[derive(Debug)]
pub(crate) struct Stores {
    caches: Caches,
    trials: HashMap<Kind, Trial>,
    /// The call under way goes past the caches.
    pass: bool,
    /// It is part of a trial.
    meter: Option<Meter>,
    /// Nothing is tried now.
    is_held: bool,
}

impl Default for Stores {
    fn default() -> Self {
        Self::new(Caches::UNKNOWN)
    }
}

impl Stores {
    pub(crate) fn new(caches: Caches) -> Self {
        Self { caches, trials: HashMap::new(), pass: false, meter: None, is_held: false }
    }

    /// Tries nothing from now on, or does again: somebody else compares calls.
    pub(crate) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Decides on the stores of a call that begins. Its kind usually stores nothing in the caches from `limit` bytes on.
    pub(crate) fn begin(&mut self, call: Call, limit: usize) {
        self.pass = self.known(call, limit);
        self.meter = None;
        // Of two groups of messages one may send what the other receives.
        let is_comparable = call.collective != Collective::PointToPoint && !self.is_held;
        if !is_comparable || !self.caches.are_in_doubt(call.bytes, limit) {
            return;
        }
        let usually = Past(call.bytes >= limit);
        let kind = call.kind(usually);
        let trial = self.trial(kind);
        let (way, is_tried) = match trial.turn() {
            Turn::Go(way) => (way, !trial.is_settled()),
            Turn::Decide => {
                let times = trial.times();
                let way = trial.decide([times]);
                tracing::debug!(?kind, past_caches = usually.by(way).0, ?times, "stores compared");
                (way, false)
            }
        };
        self.pass = usually.by(way).0;
        self.meter =
            is_tried.then_some(Meter { kind, bytes: call.bytes, way, worked: Duration::ZERO });
    }

    /// Whether such a call had better store past the caches, as far as is known.
    pub(crate) fn known(&self, call: Call, limit: usize) -> bool {
        let usually = Past(call.bytes >= limit);
        let verdict = self.trials.get(&call.kind(usually)).and_then(Trial::verdict);
        usually.by(verdict.unwrap_or(Way::Usual)).0
    }

    /// Whether the call under way stores past the caches.
    pub(crate) fn pass(&self) -> bool {
        self.pass
    }

    /// Whether the call under way is part of a trial.
    pub(crate) fn is_tried(&self) -> bool {
        self.meter.is_some()
    }

    /// So long has this thread worked for the call under way since it began, or since this was told last.
    pub(crate) fn count(&mut self, worked: Duration) {
        if let Some(meter) = &mut self.meter {
            meter.worked += worked;
        }
    }

    /// This rank has done its part of the call under way.
    pub(crate) fn end(&mut self) {
        if let Some(Meter { kind, bytes, way, worked }) = self.meter.take() {
            // Calls of a kind are not equally long.
            #[allow(clippy::cast_precision_loss, reason = "a time is not as precise as that")]
            let of_a_mebibyte = worked.mul_f64((1_u64 << 20) as f64 / bytes.max(1) as f64);
            self.trial(kind).record(way, of_a_mebibyte);
        }
    }

    fn trial(&mut self, kind: Kind) -> &mut Trial {
        self.trials.entry(kind).or_insert(const { Trial::new(Course::OF_STORES) })
    }

    /// What was measured of calls of this kind.
    #[cfg(test)]
    pub(crate) fn times(&self, call: Call) -> Option<crate::trial::Times> {
        let usually = Past(call.bytes >= self.caches.limit(call.collective));
        self.trials.get(&call.kind(usually)).map(Trial::times)
    }

    /// What is known of the caches.
    pub(crate) fn caches(&self) -> Caches {
        self.caches
    }
}

/// Bytes of buffers; those that lie in several of them count once.
pub(crate) fn footprint(buffers: &[Region<'_>]) -> usize {
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
    use super::*;
    use crate::trial::TRIED;

    const KIB: usize = 1024;
    const CACHES: Caches = Caches { share: 16 * KIB, all: 32 * KIB };

    /// How many calls a verdict holds for the first time, that in which it is found among them.
    const HELD: usize = 129;

    /// Does calls that take so many microseconds through the caches, and past them. Tells which way each went.
    fn calls(stores: &mut Stores, call: Call, [cached, past]: [u64; 2]) -> Vec<bool> {
        let limit = stores.caches().limit(call.collective);
        let one = |_| {
            stores.begin(call, limit);
            let pass = stores.pass();
            // In two sweeps.
            let half = Duration::from_micros(if pass { past } else { cached }) / 2;
            (0..2).for_each(|_| stores.count(half));
            stores.end();
            pass
        };
        (0..TRIED.len() + HELD).map(one).collect()
    }

    fn call(collective: Collective, bytes: usize) -> Call {
        Call { collective, is_in_place: false, is_root: false, bytes }
    }

    fn tried_then(verdict: bool) -> Vec<bool> {
        TRIED.into_iter().chain([verdict; HELD]).collect()
    }

    #[test]
    fn what_is_in_doubt_goes_the_way_that_was_faster() {
        let gather = call(Collective::AllGather, 12 * KIB);
        for (micros, past) in [([100, 80], true), ([100, 95], false), ([80, 100], false)] {
            let calls = calls(&mut Stores::new(CACHES), gather, micros);
            assert_eq!(calls, tried_then(past), "{micros:?}");
        }
    }

    #[test]
    fn what_goes_past_the_caches_as_a_rule_is_tried_through_them() {
        let gather = call(Collective::AllGather, 30 * KIB);
        for (micros, past) in [([80, 100], false), ([95, 100], true), ([100, 80], true)] {
            let calls = calls(&mut Stores::new(CACHES), gather, micros);
            let expected: Vec<bool> =
                TRIED.map(|past| !past).into_iter().chain([past; HELD]).collect();
            assert_eq!(calls, expected, "{micros:?}");
        }
    }

    #[test]
    fn calls_of_another_kind_are_tried_by_themselves() {
        let mut stores = Stores::new(CACHES);
        let gather = call(Collective::AllGather, 12 * KIB);
        assert_eq!(calls(&mut stores, gather, [100, 80]), tried_then(true));
        for other in [
            Call { collective: Collective::AllToAll, ..gather },
            Call { is_in_place: true, ..gather },
            Call { is_root: true, ..gather },
            Call { bytes: 6 * KIB, ..gather },
        ] {
            assert_eq!(calls(&mut stores, other, [80, 100]), tried_then(false), "{other:?}");
        }
        stores.begin(Call { bytes: 15 * KIB, ..gather }, 14 * KIB);
        assert!(stores.is_tried() && stores.pass(), "the usual way is another one");
        let similar = Call { bytes: 9 * KIB, ..gather };
        stores.begin(similar, 24 * KIB);
        assert!(stores.is_tried() && !stores.pass(), "the next trial of the first kind");
    }

    #[test]
    fn longer_calls_may_take_longer() {
        let mut stores = Stores::new(CACHES);
        // The calls that go past the caches are the short ones, and hardly faster than that.
        for kibibytes in TRIED.map(|past| if past { 9 } else { 15 }).into_iter().chain([15]) {
            stores.begin(call(Collective::AllGather, kibibytes * KIB), 24 * KIB);
            let of_a_kibibyte = if stores.pass() { 95 } else { 100 };
            stores.count(Duration::from_micros(kibibytes as u64 * of_a_kibibyte));
            stores.end();
        }
        assert!(!stores.pass());
    }

    #[test]
    fn messages_and_calls_that_somebody_else_compares_are_not_tried() {
        let mut stores = Stores::new(CACHES);
        stores.begin(call(Collective::PointToPoint, 12 * KIB), 24 * KIB);
        assert!(!stores.is_tried());
        let gather = call(Collective::AllGather, 12 * KIB);
        stores.hold(true);
        let held = calls(&mut stores, gather, [100, 80]);
        assert!(held.iter().all(|past| !past));
        stores.hold(false);
        assert_eq!(calls(&mut stores, gather, [100, 80]), tried_then(true), "from the start");
        stores.hold(true);
        let held = calls(&mut stores, gather, [80, 100]);
        assert!(held.iter().all(|past| *past), "as was found");
    }

    #[test]
    fn small_and_large_buffers_are_in_no_doubt() {
        for (collective, bytes, past) in [
            (Collective::AllReduce, 4 * KIB - 1, false),
            (Collective::AllReduce, 72 * KIB, true),
            (Collective::Broadcast, 4 * KIB - 1, false),
            (Collective::Broadcast, 48 * KIB, true),
        ] {
            let calls = calls(&mut Stores::new(CACHES), call(collective, bytes), [100, 100]);
            assert!(calls.iter().all(|call| *call == past), "{collective:?} of {bytes} bytes");
        }
        let unknown = calls(&mut Stores::default(), call(Collective::AllReduce, 1 << 30), [9, 1]);
        assert!(unknown.iter().all(|past| !past));
    }

    #[test]
    fn a_call_that_fails_is_not_part_of_the_trial() {
        let mut stores = Stores::new(CACHES);
        stores.begin(call(Collective::AllGather, 12 * KIB), 24 * KIB);
        assert!(stores.is_tried());
        stores.begin(call(Collective::Barrier, 0), 24 * KIB);
        assert!(!stores.is_tried() && !stores.pass());
    }

    #[test]
    fn buffers_that_overlap_are_in_place() {
        let (mut one, other) = ([0_u8; 100], [0_u8; 20]);
        let whole = Region::of_mut(&mut one);
        let in_place = |buffers: &[Region<'_>]| {
            let Call { is_in_place, bytes, .. } = Call::of(Collective::AllGather, buffers);
            (is_in_place, bytes)
        };
        assert_eq!(in_place(&[whole.part(80, 20), whole]), (true, 100));
        assert_eq!(in_place(&[Region::of(&other), whole]), (false, 120));
        assert_eq!(in_place(&[whole.part(0, 40), whole.part(40, 60)]), (false, 100));
    }

    #[test]
    fn a_broadcast_goes_past_the_caches_sooner() {
        let limits = [Collective::Broadcast, Collective::AllReduce, Collective::AllToAll]
            .map(|collective| CACHES.limit(collective));
        assert_eq!(limits, [16 * KIB, 24 * KIB, 24 * KIB]);
        assert_eq!(Caches::UNKNOWN.exceeding_bytes(), usize::MAX);
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
