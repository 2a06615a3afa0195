//! One call on its way around: launches kernels for the tiles that have come, and gives their results to the NICs.

use std::collections::VecDeque;
use std::iter::Peekable;
use std::thread;
use std::time::Duration;

use ccl_core::error::Error;
use ccl_kernels::cuda::gpu::{BesideCaptures, DeviceRegion, Event};
use ccl_transport::clock;
use smallvec::SmallVec;

use super::recipe::Recipe;
use super::ring::{Label, Ring, Spot};
use super::script::{Act, Acts, Script};
use super::{Call, Ending, Wire};
use crate::cuda::deadline::Deadline;
use crate::cuda::digest::digest;
use crate::cuda::error::error as from_device;

/// Looks in vain before a pause.
const LOOKS: u32 = 256;
/// While a kernel runs, which nothing tells of.
const KERNEL_PAUSE: Duration = Duration::from_micros(20);
/// While only the network is waited for, which wakes whoever sleeps.
const NETWORK_PAUSE: Duration = Duration::from_millis(1);
/// Polls behind the last tile, so that the neighbours hear at once that it has come.
const MOST_FAREWELLS: u32 = 1 << 10;

/// What one kernel reads, or writes.
type Regions<'a> = SmallVec<[DeviceRegion<'a>; 2]>;

/// A kernel that was launched.
struct Launched {
    ended: Event,
    /// The slot that it empties, and the one that it fills.
    from: Option<Spot>,
    to: Option<Spot>,
    bytes: usize,
}

/// One call.
pub(super) struct Passage<'a> {
    wire: &'a Wire,
    ring: &'a mut Ring,
    call: &'a Call,
    recipe: Option<Recipe>,
    acts: Peekable<Acts>,
    /// In the order of their launches, in which they end.
    launched: VecDeque<Launched>,
    /// Whether something may have been launched behind the last of them: its event is missing.
    has_unmarked: bool,
    /// How tiles of this call are marked.
    mark: u16,
}

impl<'a> Passage<'a> {
    pub(super) fn new(wire: &'a Wire, ring: &'a mut Ring, call: &'a Call, script: Script) -> Self {
        let recipe = Recipe::of(&call.request, call.contributions);
        let acts = script.acts().peekable();
        let mark = mark(call.sequence, &described(call));
        let launched = VecDeque::new();
        Self { wire, ring, call, recipe, acts, launched, has_unmarked: false, mark }
    }

    /// Does all of it. When it returns no kernel works on the memory of the call. That may take until the stream of the
    /// call goes on, so `ending` tells an error before.
    ///
    /// # Errors
    /// What ended it.
    pub(super) fn run(mut self, ending: &Ending, deadline: &Deadline) -> Result<(), Error> {
        let _beside = BesideCaptures::begin();
        let result = self.go_around(ending, deadline);
        result.map_err(|error| {
            let error = ending.tell(&error);
            // Whoever has launched nothing need not wait for a driver that does not answer.
            if self.has_unmarked || !self.launched.is_empty() {
                // A device that fails has its own error, and no kernel works any more.
                let _ = self.wire.stream.synchronise();
            }
            error
        })
    }

    fn go_around(&mut self, ending: &Ending, deadline: &Deadline) -> Result<(), Error> {
        let mut idle = 0;
        loop {
            if let Some(error) = ending.told() {
                return Err(error);
            }
            let moved = match self.advance(ending) {
                Ok(moved) => moved,
                Err(error) => return self.end_early(error),
            };
            if self.has_result() {
                match self.ring.is_delivered() {
                    Ok(true) => {
                        self.take_leave();
                        return Ok(());
                    }
                    Ok(false) => {}
                    Err(error) => return self.end_early(error),
                }
            }
            if !moved && deadline.is_past() {
                let error = self.late(deadline);
                return self.end_early(error);
            }
            idle = if moved { 0 } else { idle + 1 };
            self.rest(idle);
        }
    }

    /// Whether this rank has what it is to have.
    fn has_result(&mut self) -> bool {
        self.launched.is_empty() && self.acts.peek().is_none()
    }

    /// Whoever has its result needs no answer of the next rank: that one says by itself what it lacks.
    fn end_early(&mut self, error: Error) -> Result<(), Error> {
        if !self.has_result() {
            return Err(error);
        }
        let rank = self.wire.place.rank(self.wire.place.me).0;
        tracing::warn!(rank, %error, "a collective on a device has ended without an answer");
        Ok(())
    }

    /// Does what can be done without waiting; tells whether anything happened.
    fn advance(&mut self, ending: &Ending) -> Result<bool, Error> {
        let mut moved = self.ring.poll();
        // Every launch may take until the call has failed.
        while ending.told().is_none()
            && let Some(act) = self.acts.peek().copied()
            && (!act.receives || self.ring.has_come()?)
            && (!act.sends || self.ring.has_room()?)
        {
            self.launch(act)?;
            self.acts.next();
            moved = true;
        }
        while let Some(first) = self.launched.front()
            && first.ended.has_happened().map_err(from_device)?
            && let Some(first) = self.launched.pop_front()
        {
            let label = Label { call: self.mark, bytes: first.bytes };
            first.to.map_or(Ok(()), |to| self.ring.send(to, label))?;
            if let Some(from) = first.from {
                self.ring.taken(from);
            }
            moved = true;
        }
        Ok(moved)
    }

    /// The kernel for one tile, whose slots are ready.
    fn launch(&mut self, act: Act) -> Result<(), Error> {
        let wire = self.wire;
        if act.receives && self.ring.take_news() && wire.needs_flush {
            wire.gpu.flush().map_err(from_device)?;
        }
        let from = if act.receives { Some(self.take(act)?) } else { None };
        let to = act.sends.then(|| self.ring.begin());
        let part = |memory: Option<DeviceRegion<'static>>, at: Option<usize>| {
            Some(memory?.part(at?, act.bytes))
        };
        let own = part(self.call.input, act.input);
        let output = part(self.call.output, act.output);
        let arrived = from.map(|spot| self.ring.inward(spot.lane).tile(spot.slot, act.bytes));
        let leaves = to.map(|spot| self.ring.outward(spot.lane).tile(spot.slot, act.bytes));
        // Where nothing is combined, and the input is the output, it is there already.
        let is_there = |output: &DeviceRegion<'_>| {
            arrived.is_none() && own.is_some_and(|own| own.address() == output.address())
        };
        let output = output.filter(|output| self.recipe.is_some() || !is_there(output));
        let sources: Regions<'_> = arrived.into_iter().chain(own).collect();
        let destinations: Regions<'_> = output.into_iter().chain(leaves).collect();
        self.has_unmarked = !destinations.is_empty();
        if self.has_unmarked {
            match (&self.recipe, own) {
                (Some(recipe), Some(_)) => {
                    let (operation, arithmetic) =
                        recipe.step(sources.len() - 1, act.output.is_some());
                    let kernel = (operation, recipe.datatype);
                    wire.gpu.reduce(&wire.stream, kernel, arithmetic, &sources, &destinations)
                }
                _ => wire.copy(sources[0], &destinations),
            }
            .map_err(from_device)?;
        }
        let ended = wire.stream.mark().map_err(from_device)?;
        self.has_unmarked = false;
        self.launched.push_back(Launched { ended, from, to, bytes: act.bytes });
        Ok(())
    }

    /// The slot of the tile that has come, which must be of this call.
    fn take(&mut self, act: Act) -> Result<Spot, Error> {
        let expected = Label { call: self.mark, bytes: act.bytes };
        self.ring.take(expected)?.map_err(|found| {
            let other = self.ring.previous();
            let bytes = found.bytes;
            Error::Disagreement {
                sequence: u32::try_from(self.call.sequence).unwrap_or(u32::MAX),
                rank: self.wire.place.rank(self.wire.place.me),
                call: described(self.call),
                other,
                other_call: format!("another collective, of which a tile of {bytes} bytes came"),
            }
        })
    }

    /// So that neighbours need not wait for the next call to hear what they have sent.
    fn take_leave(&mut self) {
        for _ in 0..MOST_FAREWELLS {
            if !self.ring.owes() {
                break;
            }
            if !self.ring.poll() {
                thread::yield_now();
            }
        }
    }

    fn late(&mut self, deadline: &Deadline) -> Error {
        let receives = self
            .acts
            .peek()
            .is_some_and(|act| act.receives && !matches!(self.ring.has_come(), Ok(true)));
        deadline.error(self.call.name(), self.ring.awaited(receives))
    }

    fn rest(&mut self, idle: u32) {
        if idle < LOOKS {
            thread::yield_now();
        } else if self.launched.is_empty() {
            self.ring.rest(NETWORK_PAUSE);
        } else {
            clock::sleep(KERNEL_PAUSE);
        }
    }
}

/// The call in words, without a plan: there is none.
fn described(call: &Call) -> String {
    crate::cuda::direct::described(&call.called.signature(0))
}

/// A number that differs between most calls.
fn mark(sequence: u64, call: &str) -> u16 {
    let bytes = sequence.to_le_bytes().into_iter().chain(call.bytes());
    let hash = digest(bytes);
    (hash ^ hash >> 32) as u16 ^ (hash >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_tell_calls_from_their_neighbours() {
        let marks = |call| (0..100).map(move |sequence| mark(sequence, call));
        for (one, other) in
            marks("allreduce(count=90, op=max)").zip(marks("allreduce(count=90, op=min)"))
        {
            assert_ne!(one, other);
        }
        let (mine, later) = (marks("sum"), marks("sum").skip(1));
        assert!(mine.zip(later).all(|(one, other)| one != other));
    }
}
