//! What ranks tell of their buffers, and when a part goes past the caches.

use ccl_transport::shm::Allocation;

use super::super::places::tests::{SUM, contribution, place};
use super::*;
use crate::trial::TRIED;

#[test]
fn answers_are_read_as_they_were_told() {
    let allocation = Allocation::new(100).unwrap();
    allocation.publish();
    let start = allocation.start().addr().get();
    let (input, output) = (Window::on(start, 40), Window::on(start + 50, 20));
    assert!(input.is_some() && output.is_some());
    let some = Some(u64::MAX - 1);
    for (input, output, factor) in
        [(None, output, some), (input, None, None), (input, output, some)]
    {
        let answer = Answer { input, output, factor };
        assert_eq!(Answer::decode(&answer.encode()), answer);
    }
    allocation.withdraw();
}

#[test]
fn parts_that_fill_their_share_of_the_caches_are_stored_both_ways() {
    const BYTES: usize = 1 << 12;
    let mut memory = [0_u8; 2 * BYTES];
    let whole = Region::of_mut(&mut memory);
    let (root, other) = (whole.part(0, BYTES), whole.part(BYTES, BYTES));
    let part = Part { from: Of::One(Rank(0)), source: 0, to: Of::All, target: 0, bytes: BYTES };
    // What is read and written is as much as the share, and a bit less.
    for (share, usual) in [(2 * BYTES, true), (2 * BYTES + 1, false)] {
        let mut direct = Direct::new(Caches { share, all: 2 * share });
        let call = Call { bytes: 2 * BYTES, ..Call::of(Collective::Broadcast, &[root, other]) };
        let ways = TRIED.map(|_| {
            let inputs = [contribution(root)].into_iter().collect();
            let outputs = [place(root, true), place(other, false)].into_iter().collect();
            direct.carry_out(call, (&part, SUM), Places { inputs, outputs }, || Ok(())).unwrap();
            direct.stores.pass() != usual
        });
        assert_eq!(ways, TRIED, "{share}");
        let times = direct.stores.times(call).unwrap();
        let is_measured = |time| (1..u64::MAX).contains(&time);
        assert!(is_measured(times.usual) && is_measured(times.other), "{times:?}");
    }
}
