//! Operations whose last bytes are elsewhere.

use super::*;
use crate::Stretch;

const BYTES: usize = 3000;
const HEAD: usize = 100;

#[test]
fn what_is_lent_for_the_call_arrives() {
    every_variant(|bench| {
        let mut posted = 0;
        for turn in 0..200 {
            let (first, many) = (turn % 7, 1 + turn % 3);
            let places = first..first + many;
            // What the memory has behind its first bytes is of no use.
            bench.left.fill(0, &[0xee; 10 * BYTES]);
            places.clone().for_each(|place| bench.left.fill(place * BYTES, &pattern(turn, HEAD)));
            let mut contents: Vec<Vec<u8>> =
                places.clone().map(|place| pattern(turn + place, BYTES - HEAD)).collect();
            let slices: Vec<&[u8]> = contents.iter().map(|content| &content[..]).collect();
            let operations: Vec<Unstaged<'_>> = (places.clone().zip(&slices))
                .map(|(place, rest)| {
                    let source = bench.left.region.segment(place * BYTES, BYTES);
                    let target = bench.right.region.remote(place * BYTES);
                    let operation = Operation::Write { source, target };
                    let request =
                        WorkRequest { id: WorkId(place as u64), operation, signalled: true };
                    Unstaged { request, rest: Stretch::new(rest, 0..rest.len()) }
                })
                .collect();
            let Some(unfilled) = bench.left.pair.post_unstaged(&operations) else {
                bench.poll();
                continue;
            };
            assert!(bench.left.pair.sends_unstaged() && unfilled <= many);
            let filled = places.clone().zip(&contents).skip(unfilled);
            for (place, content) in filled {
                assert_eq!(&bench.left.bytes(place * BYTES + HEAD, content.len()), content);
            }
            let expected = contents.clone();
            contents.iter_mut().for_each(|content| content.fill(0));
            posted += many;
            bench.until(|bench| bench.left.done.len() >= posted);
            for (place, content) in places.zip(expected) {
                let [head, rest] = [(0, HEAD), (HEAD, BYTES - HEAD)]
                    .map(|(offset, bytes)| bench.right.bytes(place * BYTES + offset, bytes));
                assert!(head == pattern(turn, HEAD) && rest == content, "turn {turn}");
            }
        }
        assert_eq!(posted > 0, bench.left.pair.sends_unstaged());
    });
}
