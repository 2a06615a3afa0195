//! One seed is one world, to the last line of its transcript.

use ccl_sim::Plans;
use ccl_sim::scenario::Scenario;
use ccl_sim::world::{Options, run};

#[test]
fn the_same_seed_gives_the_same_transcript() {
    let options = Options { transcript: true, mutation: None };
    let mut lines = 0;
    for seed in 0..50 {
        let scenario = Scenario::draw(seed);
        let first = run(&scenario, &mut Plans::default(), options);
        let again = run(&scenario, &mut Plans::default(), options);
        assert_eq!(first.transcript, again.transcript, "seed {seed}");
        assert_eq!((first.tally, first.elapsed), (again.tally, again.elapsed), "seed {seed}");
        lines += first.transcript.len();
    }
    assert!(lines > 1000, "transcripts of {lines} lines say nothing");
}
