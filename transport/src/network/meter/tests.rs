//! What is told of rails, and what is not.

use super::brief::AGREEING;
use super::trial::FIRST as FIRST_TRIAL;
use super::*;

const WINDOW: u64 = 10 << 20;
const DEEP: usize = 128 << 10;
const TILE: usize = 64 << 10;
/// What the NICs of the rails carry.
const SLOW: [f64; 3] = [0.0; 3];

/// Sends messages of so many tiles, each on all rails at once, one message after the other; a tile
/// takes so many nanoseconds on each rail. All rails say that they are equally fast. Returns what is
/// told.
fn told(meter: &mut Meter, tile_ns: &[u64], tiles: usize, messages: u64) -> Vec<(usize, f64)> {
    let mut told = Vec::new();
    for message in 0..messages {
        let start = Timestamp(message * 1_000_000_000);
        for rail in 0..tile_ns.len() {
            (1..=tiles).for_each(|tile| meter.given(rail, (TILE, tile * TILE), start));
        }
        let mut arrivals = Vec::new();
        for (rail, tile_ns) in tile_ns.iter().enumerate() {
            let tiles = (1..=tiles as u64).zip((0..tiles).rev());
            arrivals.extend(tiles.map(|(tile, left)| (tile * tile_ns, rail, left * TILE)));
        }
        arrivals.sort_unstable();
        for (time, rail, backlog) in arrivals {
            meter.arrived(rail, (TILE, backlog), start.after(time), |_| 1.0);
        }
        told.extend(meter.news(&SLOW).map(|news| (news.rail, news.share)));
    }
    told
}

#[test]
fn a_slow_rail_is_noticed_and_so_is_its_recovery() {
    let mut meter = Meter::new(3, DEEP, WINDOW);
    assert_eq!(told(&mut meter, &[100, 100, 100], 8, 100), []);
    let slow = told(&mut meter, &[100, 400, 110], 8, 100);
    let last = slow.last().expect("the rail is slow");
    assert!(slow.iter().all(|(rail, _)| *rail == 1), "{slow:?}");
    assert!((0.24..0.26).contains(&last.1), "{slow:?}");
    let healed = told(&mut meter, &[100, 100, 100], 8, 100);
    assert_eq!(healed.last(), Some(&(1, 1.0)), "{healed:?}");
    assert_eq!(told(&mut meter, &[100, 100, 100], 8, 100), [], "told once");
}

#[test]
fn a_rail_that_others_use_is_not_slow_unless_it_is_very_slow() {
    for (tile_ns, share) in [(140, None), (250, None), (500, Some(0.2))] {
        let mut meter = Meter::new(2, DEEP, WINDOW);
        told(&mut meter, &[100, tile_ns], 8, 100);
        let mut meter = Meter { is_fresh: true, ..meter };
        meter.gauges.iter_mut().for_each(|gauge| gauge.told = 1.0);
        let heard = meter.news(&[1.0; 2]);
        assert_eq!(heard.map(|heard| heard.rail), share.map(|_| 1), "{tile_ns}");
        assert!(heard.is_none_or(|heard| (heard.share - 0.2).abs() < 0.01), "{heard:?}");
    }
}

#[test]
fn a_rail_for_which_all_others_wait_is_slow() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    let mut told = Vec::new();
    // Rail 0 is done with its tile at once, and gets the next when rail 1 is done with one.
    meter.given(1, (TILE, TILE), Timestamp(0));
    for tile in 0..1000 {
        let start = Timestamp(tile * 400);
        meter.given(0, (TILE, TILE), start);
        meter.given(1, (TILE, 2 * TILE), start);
        meter.arrived(0, (TILE, 0), start.after(100), |_| TILE as f64 * 1e7);
        meter.arrived(1, (TILE, TILE), start.after(400), |_| TILE as f64 * 1e7);
        told.extend(meter.news(&SLOW).map(|news| (news.rail, news.share)));
    }
    assert!(matches!(told[..], [(1, share)] if (0.24..0.26).contains(&share)), "{told:?}");
}

#[test]
fn bursts_that_pass_a_shaped_port_make_no_sibling_slow() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    let capacity = |_| TILE as f64 * 1e7;
    for tile in 0..4000 {
        let (start, end) = (Timestamp(tile * 100), Timestamp(tile * 100 + 100));
        meter.given(0, (TILE, TILE), start);
        meter.arrived(0, (TILE, 0), start.after(1), capacity);
        meter.given(1, (TILE, 2 * TILE), start);
        meter.arrived(1, (TILE, 2 * TILE), end, capacity);
        assert_eq!(meter.news(&SLOW), None);
    }
}

#[test]
fn a_rail_that_has_had_little_says_nothing_about_the_others() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    for tile in 0..1000 {
        let start = Timestamp(tile * 400);
        if tile % 4 == 0 {
            meter.given(0, (TILE, TILE), start);
            meter.arrived(0, (TILE, 0), start.after(10), |_| TILE as f64 * 1e8);
        }
        (1..=4).for_each(|tiles| meter.given(1, (TILE, tiles * TILE), start));
        (1..=4).for_each(|tile| {
            let arrived = (TILE, (4 - tile as usize) * TILE);
            meter.arrived(1, arrived, start.after(tile * 100), |_| TILE as f64 * 1e8);
        });
        assert_eq!(meter.news(&SLOW), None);
    }
}

#[test]
fn noise_is_no_news() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    for _ in 0..30 {
        assert_eq!(told(&mut meter, &[110, 100], 8, 100), []);
        assert_eq!(told(&mut meter, &[100, 110], 8, 100), []);
    }
}

#[test]
fn messages_that_fill_no_rail_are_no_news_but_one_that_is_very_slow_counts_for_less() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    assert_eq!(told(&mut meter, &[100, 290], 1, 10_000), []);
    let mostly_small = |meter: &mut Meter| {
        [told(meter, &[100, 290], 1, 60), told(meter, &[100, 290], 2, 1)].concat()
    };
    assert!((0..1000).all(|_| mostly_small(&mut meter).is_empty()));
    assert_eq!(meter.share(1), 1.0);
    let mut meter = Meter::new(2, DEEP, WINDOW);
    let looks = AGREEING * LOOKED_AT;
    assert_eq!(told(&mut meter, &[100, 900], 1, looks as u64 - 1), []);
    assert_eq!(meter.share(1), 1.0);
    assert_eq!(told(&mut meter, &[100, 900], 1, 1), []);
    assert!((0.1..0.12).contains(&meter.share(1)), "{}", meter.share(1));
    assert_eq!(meter.share(0), 1.0);
}

/// Looks at messages of one tile a rail, all of them on the way for as long.
fn look_at_short_tiles(meter: &mut Meter, (bytes, looks): (usize, usize), rails: [(f64, u64); 2]) {
    for message in 0..(looks * LOOKED_AT) as u64 {
        let start = Timestamp(message * 1_000_000);
        (0..2).for_each(|rail| meter.given(rail, (bytes, bytes), start));
        let mut ends = [0, 1].map(|rail| (rails[rail].1, rail));
        ends.sort_unstable();
        for (end, rail) in ends {
            meter.arrived(rail, (bytes, 0), start.after(end), |rail| rails[rail].0);
        }
    }
}

/// They take their time because of the way, or of a peer that answers late.
#[test]
fn short_tiles_make_no_rail_slow() {
    for (bytes, is_slow) in [(LEAST_BRIEF_BYTES - 1, false), (LEAST_BRIEF_BYTES, true)] {
        let mut meter = Meter::new(2, DEEP, WINDOW);
        look_at_short_tiles(&mut meter, (bytes, AGREEING), [(1.0, 100), (1.0, 900)]);
        assert_eq!(meter.share(1) < FULL, is_slow, "{bytes} bytes");
    }
}

/// Where the way decides, the faster of two rails is no faster.
#[test]
fn a_rail_is_not_slow_for_being_as_fast_as_one_of_less_capacity() {
    for (fast, slow, share) in
        [(100, 100, [1.0, 1.0]), (110, 400, [1.0, 1.0]), (500, 100, [0.2, 1.0])]
    {
        let mut meter = Meter::new(2, DEEP, WINDOW);
        look_at_short_tiles(&mut meter, (LEAST_BRIEF_BYTES, AGREEING), [(4.0, fast), (1.0, slow)]);
        assert_eq!([meter.share(0), meter.share(1)], share, "{fast} and {slow} ns");
    }
    let mut meter = Meter::new(2, DEEP, WINDOW);
    look_at_short_tiles(&mut meter, (LEAST_BRIEF_BYTES, AGREEING), [(4.0, 100), (1.0, 2000)]);
    assert!((0.19..0.21).contains(&meter.share(1)), "{}", meter.share(1));
}

/// Looks at messages of one tile a rail. Whether rail 1 is slow from now on, if that has changed.
fn look(meter: &mut Meter, tile_ns: u64) -> Option<bool> {
    let before = meter.share(1) < FULL;
    // Who believes that it is slow gives it nothing.
    let rails = if before { &[100][..] } else { &[100, tile_ns] };
    let messages = 2 * LOOKED_AT / rails.len();
    assert_eq!(told(meter, rails, 1, messages as u64), []);
    let after = meter.share(1) < FULL;
    (after != before).then_some(after)
}

/// How many looks it takes.
fn looks_until(meter: &mut Meter, tile_ns: u64, is_slow: bool) -> u32 {
    let mut looks = 1..10_000;
    looks.find(|_| look(meter, tile_ns) == Some(is_slow)).expect("it changes")
}

/// Where it is as slow as before, after a time that doubles.
#[test]
fn a_rail_that_is_slow_for_small_messages_is_tried_again_later_and_later() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    let found =
        [true, false, true, false, true].map(|is_slow| looks_until(&mut meter, 900, is_slow));
    let agreeing = AGREEING as u32;
    assert_eq!(found, [agreeing, FIRST_TRIAL, agreeing, 2 * FIRST_TRIAL, agreeing]);
    assert_eq!(looks_until(&mut meter, 100, false), 4 * FIRST_TRIAL);
    assert!((0..9).all(|_| look(&mut meter, 100).is_none()));
    assert_eq!(meter.gauges[1].trial.wait, FIRST_TRIAL);
}

/// Plans hear of its recovery when it is measured while it is full.
#[test]
fn a_rail_that_was_slow_while_it_was_full_is_tried_by_small_messages() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    assert!((0..9).all(|_| look(&mut meter, 100).is_none()));
    assert!(!told(&mut meter, &[100, 900], 8, 100).is_empty());
    // The last comparison of full rails is in the first look.
    assert_eq!(looks_until(&mut meter, 100, false), 1 + FIRST_TRIAL);
    assert!((0..9).all(|_| look(&mut meter, 100).is_none()));
    assert_eq!(told(&mut meter, &[100, 100], 8, 100), [(1, 1.0)]);
}

#[test]
fn a_rail_that_is_tried_and_is_as_slow_while_it_is_full_is_no_news() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    assert!(!told(&mut meter, &[100, 900], 8, 100).is_empty());
    looks_until(&mut meter, 100, false);
    assert_eq!(told(&mut meter, &[100, 900], 8, 100), []);
    assert!(meter.share(1) < 0.2, "{}", meter.share(1));
}

#[test]
fn what_was_measured_while_a_rail_was_full_counts_for_more() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    assert_eq!(looks_until(&mut meter, 900, true), AGREEING as u32);
    assert_eq!(told(&mut meter, &[100, 100], 8, 100), []);
    assert_eq!(meter.share(1), 1.0);
}

/// It is full with little, while the others are not with more.
#[test]
fn a_rail_stays_slow_for_small_messages_however_slow_it_is_measured() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    looks_until(&mut meter, 900, true);
    for share in [0.3, 0.05] {
        meter.gauges[1].measured(share);
        assert!(meter.share(1) < 0.2, "{share}");
    }
    // Other links may be why.
    meter.gauges[1].measured(0.4);
    assert_eq!(meter.share(1), 1.0);
}

/// Nobody else has heard of it before.
#[test]
fn what_small_messages_have_found_is_told_once_full_rails_say_so_too() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    looks_until(&mut meter, 900, true);
    let window = WINDOW / (2 * 8 * TILE as u64);
    assert_eq!(told(&mut meter, &[100, 400], 8, 3 * window), [], "in three measurements");
    assert!((0.1..0.12).contains(&meter.share(1)), "{}", meter.share(1));
    let slow = told(&mut meter, &[100, 400], 8, 100);
    assert!(matches!(slow[..], [(1, share)] if (0.24..0.26).contains(&share)), "{slow:?}");
    assert!((0.24..0.26).contains(&meter.share(1)), "{}", meter.share(1));
}

/// Looks go on meanwhile, and full rails are compared.
#[test]
fn a_trial_of_what_is_not_told_yet_ends() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    looks_until(&mut meter, 900, true);
    // Nothing else says how slow it is.
    let is_tried = |meter: &mut Meter| {
        told(meter, &[100], 16, 1);
        meter.is_tried(1, TILE)
    };
    assert!((0..1000).any(|_| is_tried(&mut meter)));
    for _ in 0..trial::TILES {
        assert!(meter.is_tried(1, TILE));
        told(&mut meter, &[100], 16, 1);
        meter.given(1, (TILE, TILE), Timestamp(u64::MAX / 2));
        meter.arrived(1, (TILE, 0), Timestamp(u64::MAX / 2 + 100), |_| 1.0);
    }
    assert!(!meter.is_tried(1, TILE));
}

#[test]
fn a_rail_that_was_measured_for_a_moment_only_is_not_compared() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    for message in 0..1000 {
        assert_eq!(told(&mut meter, &[100], 8, 20), [], "message {message}");
        meter.given(1, (DEEP, DEEP), Timestamp(0));
        meter.arrived(1, (TILE, 0), Timestamp(4000), |_| 1.0);
        assert_eq!(meter.news(&SLOW), None, "message {message}");
    }
}

#[test]
fn hiccups_are_no_news() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    for _ in 0..10 {
        assert_eq!(told(&mut meter, &[100, 100], 8, 100), []);
        assert_eq!(told(&mut meter, &[100, 100_000], 8, 25), [], "in three measurements");
    }
}

#[test]
fn a_rail_that_returns_is_presumed_fast() {
    let mut meter = Meter::new(2, DEEP, WINDOW);
    assert!(!told(&mut meter, &[100, 500], 8, 1000).is_empty());
    meter.reset(1);
    assert_eq!(told(&mut meter, &[100, 100], 8, 1000), []);
}

/// Whatever it was that has ended the need for it.
#[test]
fn a_rail_that_is_taken_to_be_good_is_not_tried() {
    let ends: [fn(&mut Gauge); 2] =
        [|gauge| gauge.trial.found_good(), |gauge| while !gauge.is_tried(true) {}];
    for end in ends {
        let mut gauge = Gauge::new();
        gauge.trial.begin();
        gauge.trial.arrived(true);
        assert!(gauge.trial.is_on());
        end(&mut gauge);
        assert!(!gauge.trial.is_on());
    }
}
