//! Tiles that go right to where they belong.

use ccl_core::random::Random;

use super::*;

/// Tiles that arrive in several pieces.
const WIDE: LinkShape = LinkShape { tile_bytes: 512 << 10, slots: 6 };
const TILES: u32 = 120;

fn length(tile: u32) -> usize {
    if tile % 5 == 4 { 1000 } else { WIDE.tile_bytes - tile as usize }
}

fn content(tile: u32) -> impl Iterator<Item = u8> {
    (0..length(tile)).map(move |at| (tile as usize * 31 + at * 7 + at / 251) as u8)
}

/// Streams tiles from one end to the other, which wants them in one piece of memory, but does not always say so. Returns how
/// many have landed.
fn landed(near: Endpoint, far: Endpoint, seed: u64) -> usize {
    let mut random = Random::new(seed);
    let mut links = gather(vec![near, far], &[WIDE], LIMIT).into_iter();
    let mut only = || links.next().unwrap().unwrap().pop().unwrap().1;
    let (mut near, mut far) = (only(), only());
    let mut memory: Vec<u8> = vec![0; (0..TILES).map(length).sum()];
    let (mut sent, mut taken, mut start, mut landed) = (0, 0, 0, 0);
    let deadline = soon();
    while taken < TILES {
        assert!(clock::now() < deadline, "{taken} of {TILES} tiles: {near:?} / {far:?}");
        // The call has another stamp from tile 60 on.
        let stamp = |tile: u32| stamp(tile / 60);
        if sent < TILES
            && let Some(slot) = near.reserve(length(sent)).unwrap()
        {
            slot.iter_mut().zip(content(sent)).for_each(|(byte, right)| *byte = right);
            near.commit(&stamp(sent)).unwrap();
            sent += 1;
        }
        near.progress().unwrap();
        let end = start
            + (taken..TILES).take_while(|tile| tile / 60 == taken / 60).map(length).sum::<usize>();
        if random.percent(70) {
            far.progress_into(&stamp(taken).encode(), &mut memory[start..end]).unwrap();
        } else if random.percent(30) {
            far.progress().unwrap();
        }
        if random.percent(60)
            && let Some(tile) = far.peek()
        {
            assert_eq!(*tile.stamp, stamp(taken).encode(), "tile {taken}");
            let place = start..start + tile.payload.len();
            if tile.has_landed {
                landed += 1;
            } else {
                memory[place.clone()].copy_from_slice(tile.payload);
            }
            assert!(memory[place.clone()].iter().copied().eq(content(taken)), "tile {taken}");
            far.release().unwrap();
            (taken, start) = (taken + 1, place.end);
        }
    }
    assert!(content(0).eq(memory[..length(0)].iter().copied()), "nothing came later");
    landed
}

#[test]
fn large_tiles_land_where_they_belong() {
    for rails in 1..4 {
        let (near, far) = (endpoint(0, &vec![1.0; rails]), endpoint(1, &vec![1.0; rails]));
        let landed = landed(near, far, rails as u64);
        assert!(landed > TILES as usize / 4, "{landed} over {rails} rails");
    }
}

/// What had landed in part comes again over another rail, and what comes twice does not land twice.
#[test]
fn what_lands_while_rails_break_is_right() {
    for seed in 0..12 {
        let broken = Script {
            seed,
            fail_after: Some((5 + 7 * seed, Status::RetryExceeded)),
            ..Script::default()
        };
        let twice = Script { duplicate_every: Some(3), delay_polls: seed % 3, ..Script::default() };
        let first: Instrument = Box::new(move |rail, pair, depth| {
            let script = if rail == 0 { broken } else { Script::default() };
            Box::new(Faulty::new(pair, depth.sends, script))
        });
        let near = endpoint(0, &[1.0, 1.0]).instrument(first);
        let far = endpoint(1, &[1.0, 1.0]).instrument(script(twice));
        assert!(landed(near, far, seed) > 0, "seed {seed}");
    }
}
