//! Where tiles go.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// All rails are open.
fn open(capacities: &[f64], window_bytes: usize) -> Split {
    let mut split = Split::new(capacities, window_bytes);
    (0..capacities.len()).for_each(|rail| split.open(rail));
    split
}

/// Gives tiles to rails that drain at once, and returns the bytes of each rail.
fn prompt(split: &mut Split, tiles: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut given = vec![0; split.shares.len()];
    for bytes in tiles {
        let rail = split.choose(bytes).expect("a rail is open");
        split.give(rail, bytes, Timestamp(0));
        split.finished(rail, bytes, Timestamp(0));
        given[rail] += bytes;
    }
    given
}

proptest! {
    #[test]
    fn bytes_are_in_proportion_to_capacity(
        capacities in prop::collection::vec(1u32..20, 1..8),
        sizes in prop::collection::vec(1usize..1000, 1..20),
    ) {
        let capacities: Vec<f64> = capacities.into_iter().map(f64::from).collect();
        let mut split = open(&capacities, 1_000_000);
        let given = prompt(&mut split, sizes.iter().copied().cycle().take(20_000));
        let total: usize = given.iter().sum();
        let all: f64 = capacities.iter().sum();
        for (given, capacity) in given.iter().zip(&capacities) {
            let fair = total as f64 * capacity / all;
            prop_assert!((*given as f64 - fair).abs() <= 2000.0, "{given} for {fair}");
        }
    }
}

#[test]
fn a_plan_may_divide_the_bytes_otherwise() {
    let mut split = open(&[1.0, 1.0, 2.0], 1_000_000);
    split.divide(&[300, 100, 0]);
    let given = prompt(&mut split, std::iter::repeat_n(10, 1000));
    assert!((7300..=7500).contains(&given[0]) && given[2] < 100, "{given:?}");
    split.divide(&[]);
    let given = prompt(&mut split, std::iter::repeat_n(10, 1000));
    assert_eq!(given, [2500, 2500, 5000]);
    split.divide(&[1, 1]);
    let given = prompt(&mut split, std::iter::repeat_n(10, 1000));
    assert_eq!(given, [2500, 2500, 5000], "not one for each rail");
}

#[test]
fn links_can_begin_with_different_rails() {
    let mut split = open(&[1.0; 3], 1000);
    split.begin_with(5);
    assert_eq!(split.choose(10), Some(2));
    split.give(2, 10, Timestamp(0));
    assert_eq!(split.choose(10), Some(0));
}

#[test]
fn no_more_is_on_the_way_than_queues_hold() {
    let mut split = open(&[1e9, 1e9], 1 << 20);
    assert_eq!(split.metered_bytes(), 2 * (4 << 20));
    assert_eq!(split.tune(&[1e6, 2e6], 3), 10_000);
    assert_eq!(split.metered_bytes(), 2 * (256 << 10), "32 tiles, which are small now");
    let mut given = [0, 0];
    while let Some(rail) = split.choose(1000) {
        split.give(rail, 1000, Timestamp(0));
        given[rail] += 1000;
    }
    assert_eq!(given, [10_000, 20_000]);
    assert!(split.choose(0).is_some(), "what needs no room");
    split.finished(1, 1000, Timestamp(0));
    assert_eq!((split.choose(1000), split.choose(1001)), (Some(1), None));
    split.finished(0, 10_000, Timestamp(0));
    assert_eq!(split.choose(15_000), Some(0), "one tile in any case");
    let (before, unknown) = (split.choose(1), split.tune(&[1.0, 0.0], 1));
    assert_eq!((split.choose(1), unknown), (before, usize::MAX));
}

/// Sends tiles for which two rails need so long each, and then waits until all have arrived. Returns
/// what was told and how much was on the way on each rail at most.
fn told(
    (split, now): (&mut Split, &mut u64),
    tile_ns: [u64; 2],
    nics: [f64; 2],
) -> (Vec<(usize, f64)>, [usize; 2]) {
    const TILE: usize = 1000;
    let (mut told, mut most, mut tiles) = (Vec::new(), [0; 2], 4000);
    let mut ends = [const { VecDeque::new() }; 2];
    loop {
        while tiles > 0
            && let Some(rail) = split.choose(TILE)
        {
            tiles -= 1;
            split.give(rail, TILE, Timestamp(*now));
            let start = ends[rail].back().copied().unwrap_or(*now);
            ends[rail].push_back(start + tile_ns[rail]);
            most[rail] = most[rail].max(ends[rail].len() * TILE);
            told.extend(split.news(&nics));
        }
        let next = |rail: &usize| ends[*rail].front().copied().unwrap_or(u64::MAX);
        let rail = [0, 1].into_iter().min_by_key(next).expect("there are two");
        let Some(end) = ends[rail].pop_front() else { return (told, most) };
        *now = end;
        split.finished(rail, TILE, Timestamp(end));
    }
}

#[test]
fn less_waits_for_a_slow_nic_but_not_for_one_that_others_use() {
    for (nics, share) in [([1.0, 0.1], 0.1), ([1.0, 1.0], 1.0)] {
        let (mut split, mut now) = (open(&[1e9, 1e9], 1 << 20), 0);
        split.tune(&[1e9, 1e9], 1000);
        let limit = queue_bytes(1e9, 1000);
        let (heard, _) = told((&mut split, &mut now), [1000, 10_000], nics);
        assert!(matches!(heard[..], [(1, heard)] if (heard - share).abs() < 0.02), "{heard:?}");
        let (heard, _) = told((&mut split, &mut now), [1000, 5000], nics);
        let share = share.max(0.2);
        assert!(matches!(heard[..], [(1, heard)] if (heard - share).abs() < 0.02), "{heard:?}");
        let (heard, most) = told((&mut split, &mut now), [1000, 5000], nics);
        assert_eq!(heard, []);
        assert!(most[1] as f64 <= limit as f64 * share, "{most:?} of {limit}");
        let (healed, _) = told((&mut split, &mut now), [1000, 1000], [1.0, 1.0]);
        assert_eq!(healed.last(), Some(&(1, 1.0)), "{healed:?}");
        let (_, most) = told((&mut split, &mut now), [1000, 1000], [1.0, 1.0]);
        assert_eq!(most, [limit; 2]);
    }
}

const TILE: usize = 16 << 10;

/// Sends messages of a tile for every rail, with so many nanoseconds between their arrivals, until the last of the rails has
/// none. Returns how many there were.
fn until_passed_over(split: &mut Split, tile_ns: &[u64], now: &mut u64) -> usize {
    let last = tile_ns.len() - 1;
    (0..1000)
        .position(|_| {
            let mut rails: Vec<usize> = tile_ns
                .iter()
                .map(|_| {
                    let rail = split.choose(TILE).expect("all are open");
                    split.give(rail, TILE, Timestamp(*now));
                    rail
                })
                .collect();
            rails.sort_unstable();
            for rail in &rails {
                *now += tile_ns[*rail];
                split.finished(*rail, TILE, Timestamp(*now));
            }
            assert_eq!(
                split.news(&vec![1.0; tile_ns.len()]),
                None,
                "it is no news for anybody else"
            );
            !rails.contains(&last)
        })
        .expect("it is passed over")
}

/// How many tiles go elsewhere, while nothing arrives, before the rail has one.
fn tiles_before(split: &mut Split, rail: usize, now: u64) -> Option<usize> {
    (0..64).position(|_| {
        let chosen = split.choose(TILE).expect("there is room");
        split.give(chosen, TILE, Timestamp(now));
        chosen == rail
    })
}

#[test]
fn messages_that_fill_no_rail_do_not_wait_for_one_that_is_slow() {
    let (mut split, mut now) = (open(&[1e9, 1e9], 64 * TILE), 0);
    let before = until_passed_over(&mut split, &[20_000, 200_000], &mut now);
    assert!((30..100).contains(&before), "{before} messages have waited for it");
    let first = tiles_before(&mut split, 1, now).expect("once the other is full");
    assert!((7..16).contains(&first), "{first} went elsewhere");
}

/// It never has as much on the way as would fill one like the others.
#[test]
fn a_slow_rail_does_not_wait_for_one_of_little_capacity_to_be_full() {
    let (mut split, mut now) = (open(&[1e9, 1e8, 1e9], 64 * TILE), 0);
    until_passed_over(&mut split, &[20_000, 20_000, 800_000], &mut now);
    assert!(tiles_before(&mut split, 2, now).is_some());
}

const WINDOW: usize = 64;

/// Sends a message of so many tiles, of which at most a window is on the way, the oldest included, when a tile takes so
/// many nanoseconds on each rail. Returns what was told, and how many tiles each rail has had.
fn sent(
    (split, now): (&mut Split, &mut u64),
    tiles: usize,
    tile_ns: &[u64],
) -> (Vec<(usize, f64)>, Vec<usize>) {
    let rails = tile_ns.len();
    let (mut told, mut given) = (Vec::new(), vec![0; rails]);
    let mut ends = vec![VecDeque::new(); rails];
    let (mut posted, mut arrived) = (0, vec![false; tiles]);
    loop {
        let oldest = arrived.iter().position(|arrived| !arrived).unwrap_or(tiles);
        while posted < tiles.min(oldest + WINDOW)
            && let Some(rail) = split.choose(TILE)
        {
            split.give(rail, TILE, Timestamp(*now));
            let start = ends[rail].back().map_or(*now, |(end, _)| *end);
            ends[rail].push_back((start + tile_ns[rail], posted));
            (posted, given[rail]) = (posted + 1, given[rail] + 1);
            told.extend(split.news(&vec![0.0; rails]));
        }
        let next = |rail: &usize| ends[*rail].front().map_or(u64::MAX, |(end, _)| *end);
        let rail = (0..rails).min_by_key(next).expect("there are rails");
        let Some((end, tile)) = ends[rail].pop_front() else {
            return (told, given);
        };
        (*now, arrived[tile]) = (end, true);
        split.finished(rail, TILE, Timestamp(end));
    }
}

const FAST: [u64; 4] = [16_384; 4];
const VERY_SLOW: [u64; 4] = [16_384, 16_384, 80 * 16_384, 16_384];

/// As when a tile there takes longer than a window on the others.
#[test]
fn no_message_waits_for_a_tile_on_a_very_slow_rail() {
    let (mut split, mut now) = (open(&[1e9; 4], WINDOW * TILE), 0);
    let (told, _) = sent((&mut split, &mut now), 12_000, &VERY_SLOW);
    assert!(matches!(told[..], [.., (2, share)] if share < 0.02), "{told:?}");
    let start = now;
    let (told, given) = sent((&mut split, &mut now), 3000, &VERY_SLOW);
    assert_eq!((told, given), (Vec::new(), vec![1000, 1000, 0, 1000]));
    assert!(now - start < 1010 * 16_384, "{} of 1000 tiles", (now - start) / 16_384);
}

#[test]
fn a_slow_rail_has_what_it_can_carry_before_the_window_is_over() {
    let (mut split, mut now) = (open(&[1e9; 4], WINDOW * TILE), 0);
    let slow = [16_384, 16_384, 10 * 16_384, 16_384];
    sent((&mut split, &mut now), 6000, &slow);
    let start = now;
    let (_, given) = sent((&mut split, &mut now), 3100, &slow);
    assert!((90..=105).contains(&given[2]), "{given:?}");
    assert!(now - start < 1030 * 16_384, "{} of 1000 tiles", (now - start) / 16_384);
}

/// By single tiles, and later and later if they take as long as before.
#[test]
fn a_very_slow_rail_is_tried_again() {
    let mut now = 0;
    let mut split = with_a_very_slow_rail(&mut now);
    let (told, given) = sent((&mut split, &mut now), 100_000, &VERY_SLOW);
    assert_eq!((told, given[2]), (Vec::new(), 3), "after 256, 512 and 1024 looks of 32 tiles");
    let (told, given) = sent((&mut split, &mut now), 100_000, &FAST);
    assert_eq!(told, [(2, 1.0)]);
    assert!(given[2] > 5000, "{given:?}");
    let (_, given) = sent((&mut split, &mut now), 4000, &FAST);
    assert!(given.iter().all(|tiles| (990..=1010).contains(tiles)), "{given:?}");
}

/// However little there may be on the way on it while it is known to be slow, and whatever a plan wants of it.
#[test]
fn a_slow_nic_that_was_tried_by_small_messages_is_measured_again() {
    for parts in [&[][..], &[330, 330, 10, 330]] {
        let (mut split, mut now) = (open(&[1e9; 4], WINDOW * TILE), 0);
        split.tune(&[1e9; 4], 64);
        let slow = [16_384, 16_384, 20 * 16_384, 16_384];
        let (told, _) = sent((&mut split, &mut now), 6000, &slow);
        assert!(matches!(told[..], [.., (2, share)] if share < 0.1), "{told:?}");
        split.divide(parts);
        let tried = (0..100_000).find(|_| sent((&mut split, &mut now), 2, &FAST).1[2] > 0);
        assert!(tried.is_some(), "it is tried again");
        let (told, _) = sent((&mut split, &mut now), 4000, &FAST);
        assert_eq!(told, [(2, 1.0)], "{parts:?}");
    }
}

/// Of four rails the third, where a tile takes longer than a window on the others.
fn with_a_very_slow_rail(now: &mut u64) -> Split {
    let mut split = open(&[1e9; 4], WINDOW * TILE);
    sent((&mut split, now), 12_000, &VERY_SLOW);
    split
}

#[test]
fn what_has_no_bytes_goes_over_a_slow_rail_only_if_there_is_no_other() {
    let mut split = with_a_very_slow_rail(&mut 0);
    assert_ne!(split.choose(0), Some(2));
    [0, 1, 3].into_iter().for_each(|rail| split.close(rail));
    assert_eq!(split.choose(0), Some(2));
}

#[test]
fn tiles_that_say_nothing_try_no_rail() {
    let mut now = 0;
    let mut split = with_a_very_slow_rail(&mut now);
    let looks = (0..10_000).find(|_| {
        sent((&mut split, &mut now), 32, &VERY_SLOW);
        split.choose(TILE) == Some(2)
    });
    assert!(looks.is_some(), "it is tried");
    assert_ne!(split.choose(TILE - 1), Some(2));
}

#[test]
fn a_slow_rail_that_gets_nothing_holds_no_other_up() {
    let mut split = with_a_very_slow_rail(&mut 0);
    let mut given = vec![0; 4];
    for _ in 0..WINDOW {
        let rail = split.choose(TILE).expect("the others are not full");
        split.give(rail, TILE, Timestamp(0));
        given[rail] += 1;
    }
    assert!(given[2] == 0 && given.iter().all(|tiles| *tiles <= 22), "{given:?}");
}

#[test]
fn a_rail_that_does_not_drain_is_passed_over() {
    let mut split = open(&[1.0, 1.0], 1000);
    let mut given = [0, 0];
    for _ in 0..1000 {
        let rail = split.choose(10).expect("a rail is open");
        split.give(rail, 10, Timestamp(0));
        given[rail] += 10;
        if rail == 0 {
            split.finished(0, 10, Timestamp(0));
        }
    }
    assert!(given[1] <= 1000 / 4 + 10, "{given:?}");
}

#[test]
fn what_was_missed_is_not_caught_up() {
    let mut split = open(&[1.0, 1.0], 1000);
    split.give(1, 300, Timestamp(0));
    for _ in 0..1000 {
        split.give(0, 10, Timestamp(0));
        split.finished(0, 10, Timestamp(0));
    }
    split.finished(1, 300, Timestamp(0));
    let given = prompt(&mut split, std::iter::repeat_n(10, 100));
    assert!(given[0] >= 400 && given[1] >= 400, "{given:?}");
}

#[test]
fn a_closed_rail_gets_nothing_and_returns_with_its_share() {
    let mut split = open(&[1.0, 3.0], 1000);
    split.give(0, 100, Timestamp(0));
    split.close(0);
    assert_eq!(prompt(&mut split, std::iter::repeat_n(10, 100)), [0, 1000]);
    split.close(1);
    assert_eq!(split.choose(10), None);
    split.open(1);
    split.open(0);
    let given = prompt(&mut split, std::iter::repeat_n(10, 400));
    assert!((980..=1020).contains(&given[0]), "a quarter of 4000, nothing caught up: {given:?}");
}
