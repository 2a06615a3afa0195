//! Collectives in the memory of all ranks of a host, without any tile.
//!
//! Where the buffers of all ranks lie in memory of the library, every rank does its [part](parts) in the memory of all.
//! Contributions are combined in order of rank, so the results are those of `two_shot` and `direct` to the bit.
//!
//! 1. All ranks tell each other where their buffers are: an AllGather of a few bytes. It is also the proof that
//!    everybody has come, and that all have called the same.
//! 2. If all of them can be reached, each does its part.
//! 3. A barrier: nobody returns while somebody still works in his memory.
//!
//! If one of them cannot be reached, the plan that was made for the call is carried out, and the next calls of that
//! collective and size may [not ask](super::pauses). All ranks have seen the same answers, so all of them ask again at the same
//! call.
//!
//! A rank whose call ends early waits for those that write its memory; see [`ccl_transport::window`]. Those that read it
//! find out before they come to the barrier, and fail as well.

use ccl_core::collective::{Collective, Request};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_kernels::{Kernel, Region, Scratch};
use ccl_transport::window::{Window, Windows};
use ccl_transport::{TransportError, clock};
use smallvec::SmallVec;

use super::parts::{Of, Part, largest_bytes, part};
use super::places::{
    Contribution, Input, Output, PlaceOfResult, Places, Watch, Watched, carry_out,
};
use super::{Ended, Engine, Limits};
use crate::executor::{Failure, Task};
use crate::operation::Shapes;
use crate::stores::{Caches, Call, Stores};

/// From so many bytes on, of the larger buffer of a rank, this is faster than tiles: measured with 2 to 8 ranks on
/// two processors.
fn least_bytes(collective: Collective) -> Option<usize> {
    match collective {
        // Smaller ones are done in the time in which all ranks tell each other where their buffers are.
        Collective::AllReduce => Some(64 << 10),
        Collective::Reduce => Some(256 << 10),
        Collective::Broadcast | Collective::AllGather => Some(512 << 10),
        Collective::Gather => Some(1 << 20),
        // Tiles are as good until what is read does not stay in caches.
        Collective::ReduceScatter => Some(16 << 20),
        Collective::AllToAll
        | Collective::AllToAllV
        | Collective::Scatter
        | Collective::Barrier
        | Collective::PointToPoint => None,
    }
}

/// What is remembered from call to call.
#[derive(Debug, Default)]
pub(super) struct Direct {
    windows: Windows,
    block: Scratch,
    stores: Stores,
}

impl Direct {
    /// Results go past these caches where that is [better](crate::stores).
    pub(super) fn new(caches: Caches) -> Self {
        Self { stores: Stores::new(caches), ..Self::default() }
    }

    /// Does a part of a call in these places, with stores of which it is known, or tried, that they are the faster ones.
    fn carry_out(
        &mut self,
        call: Call,
        (part, kernel): (&Part, Kernel),
        places: Places<'_>,
        watch: impl Watch,
    ) -> Ended {
        let Self { block, stores, .. } = self;
        stores.begin(call, stores.caches().share);
        let started = stores.is_tried().then(clock::worked);
        carry_out(part, kernel, places, block, stores.pass(), watch)?;
        if let Some(started) = started {
            stores.count(clock::worked().saturating_sub(started));
            stores.end();
        }
        Ok(())
    }
}

/// What a rank tells of its buffers: where they can be reached, and by what its contribution is scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answer {
    input: Option<Window>,
    output: Option<Window>,
    /// As bits of the element type.
    factor: Option<u64>,
}

impl Answer {
    const ENCODED_BYTES: usize = 2 * Self::WINDOW_BYTES + Self::FACTOR_BYTES;
    const WINDOW_BYTES: usize = 1 + Window::ENCODED_BYTES;
    const FACTOR_BYTES: usize = 1 + size_of::<u64>();

    fn encode(&self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        let (windows, factor) = bytes.split_at_mut(2 * Self::WINDOW_BYTES);
        let parts = windows.chunks_exact_mut(Self::WINDOW_BYTES);
        for (part, window) in parts.zip([self.input, self.output]) {
            if let Some(window) = window {
                part[0] = 1;
                part[1..].copy_from_slice(&window.encode());
            }
        }
        if let Some(bits) = self.factor {
            factor[0] = 1;
            factor[1..].copy_from_slice(&bits.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8; Self::ENCODED_BYTES]) -> Self {
        fn what_is_there(part: &[u8]) -> Option<&[u8]> {
            part.split_first().filter(|(is_there, _)| **is_there == 1).map(|(_, rest)| rest)
        }
        let (input, rest) = bytes.split_at(Self::WINDOW_BYTES);
        let (output, factor) = rest.split_at(Self::WINDOW_BYTES);
        let [input, output] =
            [input, output].map(|part| what_is_there(part).and_then(Window::decode));
        let bits = what_is_there(factor).and_then(|bits| bits.try_into().ok());
        Self { input, output, factor: bits.map(u64::from_le_bytes) }
    }

    /// Whether everything can be reached that the collective needs of this rank.
    fn suffices(&self, shapes: Shapes) -> bool {
        let has = |window: Option<Window>, bytes: usize| {
            bytes == 0 || window.is_some_and(|window| window.bytes() == bytes)
        };
        has(self.input, shapes.input_bytes) && has(self.output, shapes.output_bytes)
    }
}

/// What all ranks have told, in order of rank.
type Answers = SmallVec<[Answer; 8]>;

impl Engine {
    /// Does a collective in the memory of all ranks, if that is possible; tells whether it has.
    pub(super) fn directly(
        &mut self,
        request: &Request,
        task: &Task<'_>,
        limits: Limits<'_>,
    ) -> Result<bool, Box<Error>> {
        let Some(arithmetic) = task.arithmetic else { return Ok(false) };
        let Some(part) = part(request, self.me, self.ranks as usize) else { return Ok(false) };
        let own = Shapes::of(request, self.me, self.ranks)?;
        let [input, output] = *task.buffers else { unreachable!("a collective has two buffers") };
        let buffers = [input.part(0, own.input_bytes), output.part(0, own.output_bytes)];
        let mut direct = std::mem::take(&mut self.direct);
        let result = self.ask(request, task, buffers, limits).and_then(|answers| {
            let Some(answers) = answers else { return Ok(false) };
            let places = self.reach(&mut direct.windows, &part, &answers, buffers);
            let places = places
                .map_err(|failure| limits.error_for(failure, self.me, task.stamp, &self.history))?;
            let bytes = places.touched_bytes(&part);
            let is_root = request.collective.is_rooted() && request.root == self.me;
            let call = Call { bytes, is_root, ..Call::of(request.collective, &buffers) };
            let (me, stamp, history) = (self.me, task.stamp, &self.history);
            let watch = Watched { limits, me, stamp, history };
            direct.carry_out(call, (&part, arithmetic.kernel), places, watch)?;
            self.check_read(part.from.indices(answers.len()), task.stamp, limits)?;
            self.pass_together(task.stamp, limits).map(|()| true)
        });
        self.direct = direct;
        result
    }

    /// Whether it is worth while to ask for [that](Self::directly), which all ranks know alike.
    #[inline]
    pub(super) fn may_be_direct(&mut self, request: &Request) -> bool {
        let bytes = largest_bytes(request, self.ranks as usize);
        least_bytes(request.collective).is_some_and(|least| bytes >= least)
            && self.ranks > 1
            && self.planner.introduced().nodes() == 1
            && !self.planner.is_forced(request.collective)
            && self.pauses.is_over(request.collective, bytes)
    }

    /// Tells all ranks where this rank's buffers are. Returns what all have told, if all can be reached.
    fn ask(
        &mut self,
        request: &Request,
        task: &Task<'_>,
        buffers: [Region<'_>; 2],
        limits: Limits<'_>,
    ) -> Result<Option<Answers>, Box<Error>> {
        let [input, output] = buffers.map(|buffer| Window::on(buffer.address(), buffer.bytes()));
        let factor = task.arithmetic.and_then(|arithmetic| arithmetic.factor);
        let answer = Answer { input, output, factor }.encode();
        let mut told = Answers::new();
        for (rank, bytes) in (0..self.ranks).zip(self.tell_all(answer, task.stamp, limits)?) {
            let answer = Answer::decode(&bytes);
            let shapes = Shapes::of(request, Rank(rank), self.ranks)?;
            if answer.suffices(shapes) {
                told.push(answer);
            }
        }
        let is_complete = told.len() == self.ranks as usize;
        let bytes = largest_bytes(request, self.ranks as usize);
        self.pauses.asked(request.collective, bytes, !is_complete);
        Ok(is_complete.then_some(told))
    }

    /// Opens the memory of a part.
    fn reach<'a>(
        &self,
        windows: &mut Windows,
        part: &Part,
        answers: &Answers,
        [input, output]: [Region<'a>; 2],
    ) -> Result<Places<'a>, Failure> {
        let is_own = |index: usize| index == self.me.index();
        #[allow(clippy::cast_possible_truncation, reason = "the index of a rank")]
        let rank = |index: usize| Rank(index as u32);
        let failure = |index: usize| move |cause| Failure::Link { peer: rank(index), cause };
        let told = |window: Option<Window>| {
            window.ok_or_else(|| TransportError::Protocol("it has not told of its memory".into()))
        };
        let mut view = |index: usize| {
            let input = if is_own(index) {
                Input::Here(input)
            } else {
                let viewed = told(answers[index].input).and_then(|w| windows.view(&w, part.read()));
                Input::There(viewed.map_err(failure(index))?)
            };
            Ok(Contribution { input, factor: answers[index].factor })
        };
        let inputs: SmallVec<_> =
            part.from.indices(answers.len()).map(&mut view).collect::<Result<_, _>>()?;
        let open = |index: usize| {
            let output = if is_own(index) {
                Output::Here(output)
            } else {
                let writing = self.executor.begin_to_write(rank(index))?;
                let opened = told(answers[index].output)
                    .and_then(|w| windows.open(&w, part.written(), writing));
                Output::There(opened.map_err(failure(index))?)
            };
            let read = match part.from {
                Of::All => inputs.get(index),
                Of::One(rank) => inputs.first().filter(|_| rank.index() == index),
            };
            let start = output.address() + part.target;
            let address = read.and_then(|read: &Contribution<'_>| read.input.address());
            let is_read = address.is_some_and(|address| address + part.source == start);
            Ok(PlaceOfResult { output, is_read })
        };
        let outputs = part.to.indices(answers.len()).map(open).collect::<Result<_, _>>()?;
        Ok(Places { inputs, outputs })
    }
}

#[cfg(test)]
mod tests;
