//! One call, as kernels that launch it.

use ccl_core::collective::{Collective, Request};
use ccl_kernels::cuda::gpu::{
    self, DeviceRegion, Exchange, Part, Protocol, Shown, Side, Stream, Told,
};
use ccl_kernels::cuda::{Entry, Family, MOST_RANKS};

use super::parts::{Cast, Roles, Spot, Stretch, Work};

/// A call on its way to the stream.
pub(super) struct Call<'a, 'b> {
    pub(super) exchange: &'b Exchange,
    pub(super) cast: Cast,
    pub(super) work: Work,
    pub(super) input: Option<DeviceRegion<'a>>,
    pub(super) output: Option<DeviceRegion<'a>>,
}

/// Where the others find the blocks of a buffer.
pub(super) enum Ground {
    /// In staging memory, without gaps.
    Staged(Side),
    /// Where they are.
    Mapped(Shown, usize),
}

impl Call<'_, '_> {
    pub(super) fn protocol(&self) -> Protocol {
        let Request { collective, .. } = self.cast.request;
        let is_small = self.cast.request.bytes() <= self.exchange.small_bytes();
        if collective == Collective::AllReduce && is_small {
            Protocol::LowLatency
        } else {
            Protocol::Push
        }
    }

    fn entry(&self, family: Family) -> Entry {
        let Work { operation, datatype, .. } = self.work;
        Entry::Elements { family, operation, datatype }
    }

    pub(super) fn low_latency(&self, stream: &Stream) -> Result<(), gpu::Error> {
        let (Some(input), Some(output)) = (self.input, self.output) else {
            return Err(gpu::Error::Misuse("there is no buffer".into()));
        };
        let bytes = self.cast.request.bytes();
        let memory = (input.part(0, bytes), output.part(0, bytes));
        let entry = self.entry(Family::LowLatency);
        self.exchange.low_latency(stream, entry, self.work.arithmetic, memory)
    }

    /// Where the others find the input and the output, of which `find` knows what they have mapped.
    pub(super) fn grounds(
        &self,
        find: impl Fn(&DeviceRegion<'_>) -> Option<(Shown, usize)>,
    ) -> [Ground; 2] {
        let blocks = self.cast.blocks();
        let address = |region: Option<DeviceRegion<'_>>| region.map(|region| region.address());
        let is_overwritten = self.cast.needs_copy() && address(self.input) == address(self.output);
        let input = self.input.filter(|_| !is_overwritten);
        let ground = |side, region: Option<DeviceRegion<'_>>, blocks: usize| {
            let extent = self.cast.extent(blocks);
            let used = region.filter(|_| extent > 0).map(|region| region.part(0, extent));
            let found = used.and_then(|region| find(&region));
            found.map_or(Ground::Staged(side), |(shown, offset)| Ground::Mapped(shown, offset))
        };
        [ground(Side::Input, input, blocks.input), ground(Side::Output, self.output, blocks.output)]
    }

    pub(super) fn push(&self, stream: &Stream, grounds: &[Ground; 2]) -> Result<(), gpu::Error> {
        let entry = self.entry(Family::Push);
        let blocks = self.cast.blocks();
        let pieces = self.cast.pieces(self.exchange.staging_bytes());
        let is_there =
            |ground: &Ground, blocks| blocks == 0 || matches!(ground, Ground::Mapped(..));
        if is_there(&grounds[0], blocks.input) && is_there(&grounds[1], blocks.output) {
            let Some(first) = pieces.first() else { return Ok(()) };
            let roles = self.cast.roles(&self.work, *first, None);
            let (pieces, turns) = (pieces.len(), self.cast.turns());
            // In turns nobody stores at another rank.
            let own = (turns > 1).then_some(self.cast.me);
            let part = self.part((&roles, own), grounds, *first);
            return self.exchange.push(stream, entry, &Part { pieces, turns, ..part });
        }
        for piece in pieces {
            for block in 0..blocks.input {
                if let (Ground::Staged(side), Some(input)) = (&grounds[0], self.input)
                    && let Some((there, staged)) =
                        self.both(input, *side, (blocks.input, block), piece)
                {
                    stream.copy(there, staged)?;
                }
            }
            for turn in 0..self.cast.turns() {
                let roles = self.cast.roles(&self.work, piece, Some(turn));
                let part = self.part((&roles, None), grounds, piece);
                self.exchange.push(stream, entry, &part)?;
            }
            for block in 0..blocks.output {
                if let (Ground::Staged(side), Some(output)) = (&grounds[1], self.output)
                    && let Some((there, staged)) =
                        self.both(output, *side, (blocks.output, block), piece)
                {
                    stream.copy(staged, there)?;
                }
            }
        }
        Ok(())
    }

    /// A piece of a block in a buffer with so many, and in staging memory; None if there is nothing of it.
    fn both<'c>(
        &'c self,
        buffer: DeviceRegion<'c>,
        side: Side,
        (blocks, block): (usize, usize),
        piece: Stretch,
    ) -> Option<(DeviceRegion<'c>, DeviceRegion<'c>)> {
        let there = block * self.cast.form.pitch + piece.start;
        let bytes = self.cast.held(blocks, block, piece);
        let staged = self.exchange.staging(side);
        (bytes > 0).then(|| (buffer.part(there, bytes), staged.part(block * piece.bytes, bytes)))
    }

    /// With the destinations in the addresses of one rank, if all are for that one.
    fn part(
        &self,
        (roles, at): (&Roles, Option<usize>),
        grounds: &[Ground; 2],
        piece: Stretch,
    ) -> Part {
        let size = self.work.datatype.bytes();
        let told = |ground: &Ground,
                    spots: &[Option<Spot>; MOST_RANKS],
                    at: Option<usize>|
         -> [Option<Told>; MOST_RANKS] {
            std::array::from_fn(|place| {
                let (spot, rank) = (spots[place]?, at.unwrap_or(place));
                Some(match ground {
                    Ground::Staged(side) => {
                        let offset = spot.block * piece.bytes + spot.offset;
                        self.exchange.told_staging(*side, rank).at(offset)
                    }
                    Ground::Mapped(shown, start) => {
                        let pitch = self.cast.form.pitch;
                        shown.told(rank, start + spot.block * pitch + piece.start + spot.offset)
                    }
                })
            })
        };
        Part {
            sources: told(&grounds[0], &roles.sources, None),
            destinations: told(&grounds[1], &roles.destinations, at),
            count: roles.bytes / size,
            reach: roles.reach / size,
            stride_bytes: piece.pitch,
            pieces: 1,
            turns: 1,
            largest: roles.largest / size,
            arithmetic: self.work.arithmetic,
        }
    }
}
