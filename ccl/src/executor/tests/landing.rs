//! Links that put what arrives where it belongs.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ccl_transport::ring::RingLink;

use super::*;

/// Puts most tiles into the memory of the application, if it fits there, and then has nothing left of them.
#[derive(Debug)]
struct Landing {
    ring: RingLink,
    random: Random,
    /// The oldest tile has landed, or a part of it: then it has not arrived until it is told once more where it belongs.
    has_landed: bool,
    has_begun: bool,
    nothing: Vec<u8>,
    landed: Arc<AtomicUsize>,
    /// Until so many bytes have come each look has to tell where they belong.
    told_bytes: usize,
}

impl Link for Landing {
    as_ring!(tile_bytes, reserve, commit);

    fn peek(&self) -> Option<Tile<'_>> {
        let tile = self.ring.peek().filter(|_| !self.has_begun || self.has_landed)?;
        let payload = match self.has_landed {
            true => &self.nothing[..tile.payload.len()],
            false => tile.payload,
        };
        Some(Tile { payload, has_landed: self.has_landed, ..tile })
    }

    fn release(&mut self) -> Result<(), TransportError> {
        let bytes = self.peek().map_or(0, |tile| tile.payload.len());
        self.told_bytes = self.told_bytes.saturating_sub(bytes);
        (self.has_landed, self.has_begun) = (false, false);
        self.ring.release()
    }

    fn progress(&mut self) -> Result<bool, TransportError> {
        assert_eq!(
            self.told_bytes, 0,
            "bytes are left of a step, and nobody knows where they belong"
        );
        self.ring.progress()
    }

    fn progress_into(
        &mut self,
        stamp: &EncodedStamp,
        landing: &mut [u8],
    ) -> Result<bool, TransportError> {
        if let Some(tile) = self.ring.peek()
            && tile.stamp == stamp
            && !self.has_landed
            && (self.has_begun || self.random.below(4) > 0)
            && let Some(place) = landing.get_mut(..tile.payload.len())
        {
            place.copy_from_slice(tile.payload);
            self.has_landed = self.random.below(2) == 0;
            self.has_begun = true;
            self.landed.fetch_add(usize::from(self.has_landed), Ordering::Relaxed);
        }
        self.ring.progress()
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(0);
    }
}

/// As [`executors`], with such links between pairs.
fn landing(
    ranks: u32,
    seed: u64,
    least: Least,
    told_bytes: usize,
    landed: &Arc<AtomicUsize>,
) -> Vec<Executor> {
    let n = ranks as usize;
    let mut links: Vec<Links> = executors(ranks)
        .into_iter()
        .map(|mut executor| std::mem::take(&mut executor.links))
        .collect();
    for low in 0..n {
        for high in low + 1..n {
            let (a, b) = memory::pair(SHAPES[usize::from((low + high).is_multiple_of(3))]);
            let [a, b] = [a, b].map(|ring| {
                let random = Random(0x9E37_79B9 + seed);
                let (nothing, landed) = (vec![0xee; ring.tile_bytes()], Arc::clone(landed));
                let (has_landed, has_begun) = (false, false);
                Box::new(Landing {
                    ring,
                    random,
                    has_landed,
                    has_begun,
                    nothing,
                    landed,
                    told_bytes,
                })
            });
            links[low][high] = Some(a);
            links[high][low] = Some(b);
        }
    }
    (0..)
        .zip(links)
        .map(|(rank, links)| Executor::new(Rank(rank), links).unstaging(least))
        .collect()
}

#[test]
fn what_has_landed_is_not_stored_again() {
    let mut random = Random(0x5851_F42D_4C95_7F2D);
    let landed = Arc::new(AtomicUsize::new(0));
    for collective in Collective::UNIFORM {
        for name in names(collective) {
            for ranks in [2, 3, 4, 7] {
                for count in [3, 257, 1000] {
                    let mut case = Case::new(collective, ranks, count, 0);
                    let landing_bytes = [0, 300][random.below(2)];
                    let least = Least { landing_bytes, ..Least::NOTHING };
                    let executors = landing(ranks, random.0, least, 0, &landed);
                    assert!(case.play(name, false, executors, &mut random));
                    case.check(name);
                }
            }
        }
    }
    assert!(landed.load(Ordering::Relaxed) > 1000, "{landed:?}");
}

/// However little is left of a step, something of it may have landed in part.
#[test]
fn where_a_step_belongs_is_told_until_its_end() {
    const COUNT: usize = 100;
    let landed = Arc::new(AtomicUsize::new(0));
    let least = Least { landing_bytes: 3 * COUNT, ..Least::NOTHING };
    for seed in 0..20 {
        let mut case = Case::new(Collective::AllGather, 2, COUNT, 0);
        let executors = landing(2, seed, least, 4 * COUNT, &landed);
        assert!(case.play("ring", false, executors, &mut Random(seed + 1)));
        case.check("ring");
    }
    assert!(landed.load(Ordering::Relaxed) > 0);
}

/// The program before had no lanes of receives.
#[test]
fn what_runs_straight_through_is_inspected_after_any_other_program() {
    let topology = Topology::single_host(3, 2);
    let model = CostModel::default_for(&topology);
    let mut executor = executors(3).remove(0);
    let kernel = Kernel { datatype: DataType::Int32, combine: Combine::Sum };
    for (collective, root, is_straight) in
        [(Collective::Broadcast, 0, false), (Collective::AllReduce, 0, true)]
    {
        let mut case = Case::new(collective, 3, 4, root);
        let name = if is_straight { "one_shot" } else { "direct" };
        let choice = choose(&case.request, &topology, &model, Some(name)).unwrap();
        let layout = Layout::new(&case.request, 3, choice.partition);
        let program = lower(&*choice.schedule, &layout, Rank(0), 4, &topology);
        assert!(!is_straight || program.receives.len() > 1, "more lanes than before");
        let buffers = [Region::of(&case.inputs[0]), Region::of_mut(&mut case.outputs[0])];
        let stamp = Stamp { sequence: 1, signature: case.request.signature(choice.digest) };
        let arithmetic = Some(Arithmetic { kernel, factor: None });
        let task = Task { program: &program, buffers: &buffers, stamp, arithmetic, is_straight };
        let mut run = begin(&mut executor, &task, &[]);
        run.sweep().unwrap();
        run.inspect().unwrap();
    }
}
