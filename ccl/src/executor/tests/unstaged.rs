//! Links that send from the memory of the application, and may want it once more.

use std::collections::VecDeque;

use ccl_transport::Stretch;
use ccl_transport::ring::RingLink;

use super::*;

/// Sends some of what it is given unstaged, and some staged. What it has sent comes back late, is wanted before that now and
/// then, and must still be what it was.
#[derive(Debug)]
struct Borrowing {
    ring: RingLink,
    random: Random,
    /// Tiles that were sent.
    sent: u64,
    /// The contents of those that have not returned; none of those that were staged.
    kept: VecDeque<Option<Vec<u8>>>,
    is_wanted: bool,
    /// Nothing comes back by itself.
    is_mute: bool,
}

impl Borrowing {
    fn new(ring: RingLink, seed: u64) -> Self {
        let (random, kept) = (Random(0x9E37_79B9 + seed), VecDeque::new());
        Self { ring, random, sent: 0, kept, is_wanted: false, is_mute: false }
    }

    fn copy(&mut self, stamp: &Stamp, bytes: &[u8]) -> bool {
        let Some(slot) = self.ring.reserve(bytes.len()).unwrap() else { return false };
        slot.copy_from_slice(bytes);
        self.ring.commit(stamp).unwrap();
        self.sent += 1;
        true
    }
}

impl Link for Borrowing {
    as_ring!(tile_bytes, peek, release);

    fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError> {
        if self.wanted().is_some() {
            return Ok(None);
        }
        self.ring.reserve(bytes)
    }

    fn commit(&mut self, stamp: &Stamp) -> Result<(), TransportError> {
        self.sent += 1;
        self.kept.push_back(None);
        self.ring.commit(stamp)
    }

    fn unstaged_bytes(&self) -> usize {
        // Not always, as if rails came and went that can do it and others that cannot.
        if self.random.0 & 0x70 == 0 { 0 } else { 3 * self.tile_bytes() }
    }

    fn send_unstaged(
        &mut self,
        stamp: &Stamp,
        bytes: Stretch<'_>,
    ) -> Result<Option<(usize, u64)>, TransportError> {
        let mut all = vec![0; bytes.bytes()];
        bytes.read_from(0, &mut all);
        let most = if self.wanted().is_some() { 0 } else { self.random.below(4) };
        let mut taken = 0;
        for tile in all.chunks(self.tile_bytes()).take(most) {
            if !self.copy(stamp, tile) {
                break;
            }
            self.kept.push_back(Some(tile.to_vec()));
            taken += tile.len();
        }
        Ok((taken > 0).then_some((taken, self.sent)))
    }

    fn wanted(&self) -> Option<u64> {
        let first = self.kept.iter().position(Option::is_some).filter(|_| self.is_wanted)?;
        Some(self.sent - (self.kept.len() - first) as u64 + 1)
    }

    fn supply(&mut self, tile: u64, bytes: Stretch<'_>) {
        let first = self.sent - self.kept.len() as u64 + 1;
        let kept = &mut self.kept[usize::try_from(tile - first).unwrap()];
        let mut supplied = vec![0; bytes.bytes()];
        bytes.read_from(0, &mut supplied);
        if let Some(sent) = kept.take() {
            assert!(sent == supplied, "tile {tile} has changed since it was sent");
        }
        self.is_wanted = false;
    }

    fn returned(&mut self) -> u64 {
        while self.kept.front().is_some_and(Option::is_none) {
            self.kept.pop_front();
        }
        if !self.is_mute {
            self.is_wanted |= self.random.below(5) == 0;
            let is_back = !self.is_wanted && self.random.below(3) == 0;
            self.kept.drain(..usize::from(is_back).min(self.kept.len()));
        }
        self.sent - self.kept.len() as u64
    }
}

/// As [`executors`], with such links between pairs.
fn borrowing(ranks: u32, seed: u64) -> Vec<Executor> {
    let mut executors = executors(ranks);
    for low in 0..ranks as usize {
        for high in low + 1..ranks as usize {
            let (a, b) = memory::pair(SHAPES[usize::from((low + high).is_multiple_of(3))]);
            let [a, b] = [a, b].map(|end| Box::new(Borrowing::new(end, seed)));
            executors[low].links[high] = Some(a);
            executors[high].links[low] = Some(b);
        }
    }
    executors.into_iter().map(|executor| executor.unstaging(Least::NOTHING)).collect()
}

#[test]
fn memory_stays_as_it_is_while_it_is_lent() {
    let mut random = Random(0x5851_F42D_4C95_7F2D);
    for collective in Collective::UNIFORM {
        for name in names(collective) {
            for ranks in [2, 3, 4, 7] {
                for count in [3, 257, 1000] {
                    let mut case = Case::new(collective, ranks, count, 0);
                    let executors = borrowing(ranks, random.0);
                    assert!(case.play(name, false, executors, &mut random));
                    case.check(name);
                }
            }
        }
    }
}

/// Nothing says that what is out has come: then it is staged, once there is nothing else to do.
#[test]
fn who_hears_nothing_stages_what_is_out() {
    let mut case = Case::new(Collective::Broadcast, 2, 100, 0);
    let mut executors = borrowing(2, 1);
    let shape = RingShape { tile_bytes: 64, slots: 64, tiles: 64 };
    for (rank, end) in <[_; 2]>::from(memory::pair(shape)).into_iter().enumerate() {
        let link = Borrowing { is_mute: true, ..Borrowing::new(end, 1) };
        executors[rank].links[1 - rank] = Some(Box::new(link));
    }
    assert!(case.play("direct", false, executors, &mut Random(77)));
    case.check("direct");
}

/// In the middle of a lane too, whoever has waited for long.
#[test]
fn who_confirms_stages_what_is_out() {
    let mut case = Case::new(Collective::Broadcast, 2, 1000, 0);
    let topology = Topology::single_host(2, 2);
    let model = CostModel::default_for(&topology);
    let choice = choose(&case.request, &topology, &model, Some("direct")).unwrap();
    let layout = Layout::new(&case.request, 2, choice.partition);
    let program = lower(&*choice.schedule, &layout, Rank(0), 4, &topology);
    let mut executor = borrowing(2, 1).remove(0);
    let (end, _peer) = memory::pair(SHAPES[1]);
    executor.links[1] = Some(Box::new(Borrowing { is_mute: true, ..Borrowing::new(end, 1) }));
    let buffers = [Region::of(&case.inputs[0]), Region::of_mut(&mut case.outputs[0])];
    let stamp = Stamp { sequence: 1, signature: case.request.signature(choice.digest) };
    let task =
        Task { program: &program, buffers: &buffers, stamp, arithmetic: None, is_straight: false };
    let mut run = begin(&mut executor, &task, &[]);
    // The peer takes nothing, so there is room for a part of it only.
    for _ in 0..10 * crate::executor::unstaged::PATIENCE {
        run.sweep().unwrap();
    }
    let out = |run: &Run<'_>| run.progress.lent.iter().map(VecDeque::len).sum::<usize>();
    assert!(out(&run) > 0 && run.progress.sent == [0], "it waits for room");
    run.confirm();
    run.sweep().unwrap();
    assert_eq!(out(&run), 0);
}
