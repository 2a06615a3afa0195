//! What ranks tell each other before a call in which they may read each other's memory.

use ccl_core::collective::Request;
use smallvec::SmallVec;

use crate::trial::{Times, Trial, Way};

/// What a rank tells before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Where its input is; 0 if that must not be read.
    pub(super) input: u64,
    /// Where its output is.
    pub(super) output: u64,
    /// Whether one lies in the other.
    pub(super) is_in_place: bool,
    /// As bits of the element type, if contributions are scaled, as all ranks know.
    pub(super) factor: u64,
    pub(super) times: Times,
}

impl Answer {
    const WORDS: usize = 6;
    pub(super) const ENCODED_BYTES: usize = Self::WORDS * size_of::<u64>();

    pub(super) fn encode(self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        let Self { input, output, is_in_place, factor, times } = self;
        let words = [input, output, is_in_place.into(), factor, times.usual, times.other];
        for (part, word) in bytes.chunks_exact_mut(size_of::<u64>()).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Self {
        let word = |index: usize| {
            u64::from_le_bytes(std::array::from_fn(|at| bytes[size_of::<u64>() * index + at]))
        };
        let times = Times { usual: word(4), other: word(5) };
        let (input, output, is_in_place) = (word(0), word(1), word(2) == 1);
        Self { input, output, is_in_place, factor: word(3), times }
    }
}

/// What all ranks have told, in order of rank.
pub(super) type Answers = SmallVec<[Answer; 8]>;

/// What those have told whose inputs are read.
pub(super) fn of_read<'a>(
    request: &Request,
    told: &'a [Answer],
) -> impl Iterator<Item = &'a Answer> {
    of_some(request, told, true)
}

/// Ends a trial, by what those have measured who receive something. The root of a Broadcast is done as soon as its tiles are on
/// the way, which says little of how long it takes.
pub(super) fn decide(trial: &mut Trial, request: &Request, told: &[Answer]) -> Way {
    trial.decide(of_some(request, told, false).map(|told| told.times))
}

/// What all have told if there is no root, else the root or all others.
fn of_some<'a>(
    request: &Request,
    told: &'a [Answer],
    root_has: bool,
) -> impl Iterator<Item = &'a Answer> {
    let root = request.collective.is_rooted().then_some(request.root);
    let has = move |index| root.is_none_or(|root| (root.index() == index) == root_has);
    told.iter().enumerate().filter(move |(index, _)| has(*index)).map(|(_, told)| told)
}

#[cfg(test)]
mod tests {
    use ccl_core::collective::Collective;
    use ccl_core::ids::Rank;

    use super::*;
    use crate::trial::Course;

    #[test]
    fn answers_are_read_as_they_were_told() {
        let times = Times { usual: 1 << 40, other: u64::MAX };
        let (input, output, factor) = (0x7fff_1234_5678, u64::MAX - 7, 0x3f80_0000);
        let answer = Answer { input, output, is_in_place: true, factor, times };
        assert_eq!(Answer::decode(&answer.encode()), answer);
    }

    #[test]
    fn of_a_broadcast_only_the_root_is_read() {
        let times = Times { usual: 1, other: 1 };
        let told = |input| Answer { input, output: 9, is_in_place: false, factor: 0, times };
        let told = [told(10), told(20), told(30)];
        let read = |collective| -> Vec<u64> {
            let request = Request { collective, root: Rank(1), ..Request::BARRIER };
            of_read(&request, &told).map(|told| told.input).collect()
        };
        assert_eq!(read(Collective::Broadcast), [20]);
        assert_eq!(read(Collective::AllReduce), [10, 20, 30]);
    }

    #[test]
    fn of_a_broadcast_the_root_does_not_say_how_long_it_takes() {
        let told = [100, 1, 100].map(|usual| {
            let times = Times { usual, other: 50 };
            Answer { input: 9, output: 9, is_in_place: false, factor: 0, times }
        });
        let decided = |collective| {
            let request = Request { collective, root: Rank(1), ..Request::BARRIER };
            decide(&mut Trial::new(Course::OF_MILLISECONDS), &request, &told)
        };
        assert_eq!(decided(Collective::Broadcast), Way::Other);
        assert_eq!(decided(Collective::AllReduce), Way::Usual);
    }
}
