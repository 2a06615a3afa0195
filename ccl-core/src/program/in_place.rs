//! Programs of calls whose input and output are the same memory.
//!
//! What a stretch receives is stored only as far as the stretch has been sent. So blocks are exchanged tile by
//! tile, and no more is put aside than there is on the links.
//!
//! **Nobody waits for ever**, if a link carries one stretch in each direction at most. Suppose that nothing
//! moves, and look at the stretch that has received least, `r` bytes, of those that are not done. Either it
//! has not been sent further than that. Then whoever gets it, who has received at least as much of what takes
//! the place of his, has taken all that is on the link: there is room, and it is sent further. Or what it
//! receives has not been sent further than that: nothing is on that link, and the sender has room.

use std::collections::BTreeMap;

use super::{Action, Buffer, Program, Span, Step, StepIndex};
use crate::ids::Rank;

/// The steps that use one stretch of the memory.
#[derive(Debug, Default)]
struct Uses {
    sends: Vec<StepIndex>,
    receives: Vec<StepIndex>,
    copies: Vec<StepIndex>,
}

impl Program {
    /// The program of `rank` for a call whose output begins where its input does, as in an AllToAll.
    ///
    /// `None` unless every stretch that is written is exactly one that is sent, to whomever, or not read at
    /// all; nothing is sent that has to arrive first; and every link carries one stretch in each direction at
    /// most.
    ///
    /// The other ranks need not know: on every link the same is sent.
    #[must_use]
    pub fn in_place(self, rank: Rank) -> Option<Self> {
        let Self { mut steps, scratch_bytes, rails, .. } = self;
        // Everything is sent before it is overwritten, so that a step still depends only on earlier ones.
        steps.sort_by_key(|step| !matches!(step.action, Action::Send { .. }));
        for Uses { sends, receives, copies } in uses(&steps)?.into_values() {
            if receives.len() + copies.len() > 1 || (!copies.is_empty() && !sends.is_empty()) {
                return None;
            }
            for &receive in &receives {
                steps[receive as usize].after.clone_from(&sends);
                for &send in &sends {
                    if let Action::Send { lend, .. } = &mut steps[send as usize].action {
                        *lend = false;
                    }
                }
            }
        }
        let program = Self::from_steps(steps, rank, scratch_bytes);
        let mut lanes = program.sends.iter().chain(&program.receives);
        if !lanes.all(|lane| lane.steps.len() == 1) {
            return None;
        }
        Some(Self { rails, ..program })
    }
}

/// Who uses which stretch, by its beginning and its length; `None` if there is more to it than a program in
/// place can be made of.
fn uses(steps: &[Step]) -> Option<BTreeMap<(usize, usize), Uses>> {
    let mut uses: BTreeMap<(usize, usize), Uses> = BTreeMap::new();
    for (index, step) in (0..).zip(steps) {
        let place = |span: Span| (span.offset, step.bytes);
        match &step.action {
            _ if !step.after.is_empty() => return None,
            Action::Send { from, .. } if from.buffer == Buffer::INPUT => {
                uses.entry(place(*from)).or_default().sends.push(index);
            }
            Action::Receive { into, .. } if into.buffer == Buffer::OUTPUT => {
                uses.entry(place(*into)).or_default().receives.push(index);
            }
            // A block that stays where it is.
            Action::Copy { from, into } if from.offset == into.offset => {
                uses.entry(place(*into)).or_default().copies.push(index);
            }
            Action::Send { .. }
            | Action::Receive { .. }
            | Action::Reduce { .. }
            | Action::Copy { .. } => {
                return None;
            }
        }
    }
    let mut end = 0;
    let mut apart = |(start, bytes): &(usize, usize)| {
        let is_behind = *start >= end;
        end = start + bytes;
        is_behind
    };
    uses.keys().all(&mut apart).then_some(uses)
}

#[cfg(test)]
mod tests {
    use super::super::{Port, point_to_point};
    use super::*;

    const HERE: Span = Span { buffer: Buffer::INPUT, offset: 0 };

    /// Rank 0 sends and receives these stretches: to or from whom, where from, how many bytes.
    fn program(sends: &[(u32, usize, usize)], receives: &[(u32, usize, usize)]) -> Program {
        let port = |peer: &u32| Port::Pair(Rank(*peer));
        let send = |(peer, offset, bytes): &(u32, usize, usize)| {
            let from = Span { offset: *offset, ..HERE };
            (Action::Send { port: port(peer), from, lend: true }, *bytes)
        };
        let receive = |(peer, offset, bytes): &(u32, usize, usize)| {
            let into = Span { buffer: Buffer::OUTPUT, offset: *offset };
            (Action::Receive { port: port(peer), into }, *bytes)
        };
        let steps = receives.iter().map(receive).chain(sends.iter().map(send));
        let step = |(action, bytes)| Step { action, bytes, after: Vec::new() };
        Program::from_steps(steps.map(step).collect(), Rank(0), 0)
    }

    #[test]
    fn blocks_are_exchanged() {
        let blocks = [(1, 8, 8), (2, 16, 8)];
        let exchanged = program(&blocks, &blocks).in_place(Rank(0)).unwrap();
        let after: Vec<&[u32]> = exchanged.steps.iter().map(|step| &step.after[..]).collect();
        assert_eq!(
            after,
            [&[][..], &[], &[0], &[1]],
            "every block is sent before it is overwritten"
        );
        let lent = |step: &Step| matches!(step.action, Action::Send { lend: true, .. });
        assert!(!exchanged.steps.iter().any(lent), "a peer might read it too late");
    }

    #[test]
    fn what_is_not_overwritten_can_be_lent() {
        let moved = program(&[(1, 0, 8), (2, 16, 8)], &[(1, 16, 8), (2, 24, 8)]);
        let moved = moved.in_place(Rank(0)).unwrap();
        let lent = |step: &Step| matches!(step.action, Action::Send { lend: true, .. });
        let lent: Vec<bool> = moved.steps.iter().map(lent).collect();
        assert_eq!(lent, [true, false, false, false]);
        assert_eq!(moved.steps[2].after, [1], "what goes to one peer may come from another");
    }

    #[test]
    fn what_lies_across_is_put_aside() {
        let across = program(&[(1, 0, 8), (2, 8, 8)], &[(1, 4, 8)]);
        assert_eq!(across.in_place(Rank(0)), None);
        let longer = program(&[(1, 0, 8)], &[(1, 0, 12)]);
        assert_eq!(longer.in_place(Rank(0)), None);
        let twice = program(&[(1, 0, 8)], &[(1, 0, 8), (2, 0, 8)]);
        assert_eq!(twice.in_place(Rank(0)), None);
        let two_on_a_link = program(&[(1, 0, 8), (1, 8, 8)], &[(1, 8, 8), (1, 0, 8)]);
        assert_eq!(two_on_a_link.in_place(Rank(0)), None, "these two could wait for each other");
    }

    #[test]
    fn copies_must_stay_where_they_are() {
        let copy = |offset| {
            let into = Span { buffer: Buffer::OUTPUT, offset };
            Step { action: Action::Copy { from: HERE, into }, bytes: 8, after: Vec::new() }
        };
        let program = |offset| Program::from_steps(vec![copy(offset)], Rank(0), 0);
        assert!(program(0).in_place(Rank(0)).is_some());
        assert_eq!(program(16).in_place(Rank(0)), None);
    }

    #[test]
    fn other_memory_is_not_in_place() {
        let message = point_to_point(Rank(0), &[(Rank(1), Buffer(3), 8)], &[]);
        assert_eq!(message.in_place(Rank(0)), None);
    }
}
