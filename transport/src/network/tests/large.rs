//! Tiles that are large enough to wait for each other.

use super::*;

const LARGE: LinkShape = LinkShape { tile_bytes: 64 << 10, slots: 8 };

#[test]
fn tiles_that_wait_leave_on_whatever_rail_the_next_one_is_expected() {
    let endpoints = vec![endpoint(0, &[1.0, 1.0]), endpoint(1, &[1.0, 1.0])];
    let mut links = gather(endpoints, &[LARGE], LIMIT).into_iter();
    let mut only = || links.next().unwrap().unwrap().pop().unwrap().1;
    let (mut near, mut far) = (only(), only());
    let deadline = soon();
    for turn in 0..3 {
        // So that `near` expects the next tile on one of the rails, and looks at that one.
        stream(&mut *far, &mut *near, 3, 100);
        let tiles = [2 * turn, 2 * turn + 1];
        assert!(tiles.iter().all(|tile| try_send(&mut *near, *tile, LARGE.tile_bytes)));
        assert!(!near.flushed(), "there could be more");
        near.progress().unwrap();
        assert!(near.flushed(), "there was no more");
        for tile in tiles {
            while !try_take(&mut *far, tile) {
                assert!(clock::now() < deadline);
                far.progress().unwrap();
            }
        }
    }
}
