//! What is faster for calls that are alike but for their buffers, of which those in place have a trial of their own.

use std::mem;
use std::time::Duration;

use crate::trial::{Course, Trial, Turn, Way};

/// Of calls that are alike but for their buffers.
///
/// What is faster may depend on whether the output is where the input is, which every rank knows of its own buffers only. So all
/// take the calls for what they were when all told each other last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alike {
    out_of_place: Trial,
    in_place: Trial,
    /// Whether those whose inputs are read are in place.
    are_in_place: bool,
    /// Of the trial that had the last turn, whether it is that of calls in place.
    had_turn: bool,
}

impl Alike {
    /// Of calls in which others may have something to try before: those in place have done that while they were taken for others.
    pub(super) fn new(course: Course, before: Option<Course>) -> Self {
        Self {
            out_of_place: Trial::new(before.map_or(course, |before| course.after(before))),
            in_place: Trial::new(course),
            are_in_place: false,
            had_turn: false,
        }
    }

    pub(super) fn of_these(&mut self) -> &mut Trial {
        self.of(self.are_in_place)
    }

    fn of(&mut self, in_place: bool) -> &mut Trial {
        if in_place { &mut self.in_place } else { &mut self.out_of_place }
    }

    /// What the next call does.
    pub(super) fn turn(&mut self) -> Turn {
        self.had_turn = self.are_in_place;
        self.of_these().turn()
    }

    /// The call whose turn it was last has gone this way in that time, whatever it has turned out to be meanwhile.
    pub(super) fn record(&mut self, way: Way, took: Duration) {
        self.of(self.had_turn).record(way, took);
    }

    /// All have told each other whether these calls are in place; tells whether they have been taken for that.
    pub(super) fn are(&mut self, in_place: bool) -> bool {
        mem::replace(&mut self.are_in_place, in_place) == in_place
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ATTACHED, TILES};
    use super::*;
    use crate::trial::Times;

    #[test]
    fn calls_in_place_have_waited_for_others_already() {
        let (course, before) = (Course::OF_MICROSECONDS, Course::OF_STORES);
        let mut alike = Alike::new(course, Some(before));
        let usual = |alike: &mut Alike| {
            (0..100).take_while(|_| alike.of_these().turn() == Turn::Go(TILES)).count()
        };
        let after_others = usual(&mut alike);
        alike.are(true);
        assert_eq!(after_others, usual(&mut alike) + before.calls() as usize + 1);
    }

    #[test]
    fn calls_that_go_by_tiles_find_out_that_they_are_in_place() {
        let mut alike = Alike::new(Course::OF_MILLISECONDS, None);
        alike.of_these().decide([Times { usual: 1, other: 2 }]);
        let until_sure = |alike: &mut Alike| {
            (0..1000).find(|_| {
                alike.of_these().turn() == Turn::Go(TILES) && alike.of_these().makes_sure()
            })
        };
        assert_eq!([until_sure(&mut alike), until_sure(&mut alike)], [Some(15), Some(15)]);
        alike.of_these().decide([Times { usual: 2, other: 1 }]);
        assert_eq!(until_sure(&mut alike), None, "all tell each other in each call");
    }

    /// Whoever takes a call for something else adds as much to what it is compared with.
    #[test]
    fn what_was_measured_belongs_to_the_trial_whose_turn_it_was() {
        let mut alike = Alike::new(Course::OF_MILLISECONDS, None);
        let is_first = |alike: &mut Alike| {
            alike.turn();
            alike.are(true);
            alike.record(TILES, Duration::from_nanos(7));
            alike.are(false);
            alike.out_of_place.times().usual == 7
        };
        let untouched = Trial::new(Course::OF_MILLISECONDS).times();
        assert!((0..100).any(|_| is_first(&mut alike)));
        assert_eq!(alike.in_place.times(), untouched);
        alike.are(true);
        assert!(!alike.had_turn, "until it has one");
        alike.turn();
        assert!(alike.had_turn);
    }

    #[test]
    fn calls_in_place_are_tried_by_themselves() {
        let mut alike = Alike::new(Course::OF_MILLISECONDS, None);
        assert!(alike.are(false), "as they are taken for at first");
        alike.of_these().decide([Times { usual: 2, other: 1 }]);
        assert_eq!(alike.of_these().turn(), Turn::Go(ATTACHED));
        assert!(!alike.are(true));
        assert!(!alike.of_these().is_settled() && alike.are(true));
        assert!(!alike.are(false));
        assert_eq!(alike.of_these().turn(), Turn::Go(ATTACHED), "the verdict still holds");
    }
}
