//! What every rank says and does in a collective on mapped memory, as values.
//!
//! A collective is cut into the same pieces on all ranks, small enough for staging memory, because no
//! rank knows whether another one stages. In a piece every rank combines a part of the inputs and stores
//! it in the outputs, for each of which the owner tells the others where it is.

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_kernels::cuda::{Arithmetic, MOST_RANKS, Operation, slice};
use ccl_kernels::reciprocal;

/// Pieces are multiples of so many elements, where they can be.
const GRAIN: usize = 64;

/// Which kernel combines, and how contributions are changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) operation: Operation,
    pub(super) datatype: DataType,
    pub(super) arithmetic: Arithmetic,
}

impl Work {
    /// Of which type the kernels of a collective are; None for what goes another way.
    pub(super) fn datatype(collective: Collective, datatype: DataType) -> Option<DataType> {
        match collective {
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                Some(datatype)
            }
            // The sum of one contribution of bytes is that contribution.
            Collective::Broadcast
            | Collective::AllGather
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll => Some(DataType::Uint8),
            Collective::AllToAllV | Collective::Barrier | Collective::PointToPoint => None,
        }
    }

    /// For a request, where there are as many ranks as kernels can have.
    pub(super) fn of(request: &Request, me: usize, ranks: usize) -> Self {
        match request.collective {
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {
                Self::combine(request, me, ranks)
            }
            Collective::Broadcast
            | Collective::AllGather
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::PointToPoint => Self {
                operation: Operation::Sum,
                datatype: DataType::Uint8,
                arithmetic: Arithmetic::default(),
            },
        }
    }

    fn combine(request: &Request, me: usize, ranks: usize) -> Self {
        let (datatype, n) = (request.datatype, ranks as u32);
        let scaled = |scalar| {
            let mut arithmetic = Arithmetic { scaled: (1 << ranks) - 1, ..Arithmetic::default() };
            arithmetic.scalars[me] = scalar;
            (Operation::Scaled, arithmetic)
        };
        let plain = |operation| (operation, Arithmetic::default());
        let (operation, arithmetic) = match request.reduction {
            Reduction::Builtin(ReduceOp::Sum) => plain(Operation::Sum),
            Reduction::Builtin(ReduceOp::Prod) => plain(Operation::Prod),
            Reduction::Builtin(ReduceOp::Max) => plain(Operation::Max),
            Reduction::Builtin(ReduceOp::Min) => plain(Operation::Min),
            Reduction::Builtin(ReduceOp::Avg) if datatype.is_float() => {
                scaled(reciprocal(datatype, n))
            }
            Reduction::Builtin(ReduceOp::Avg) => (Operation::Mean, Arithmetic::mean(n)),
            Reduction::PreMulSum { scalar, .. } => scaled(scalar),
        };
        Self { operation, datatype, arithmetic }
    }
}

/// A place in a buffer of blocks: bytes from the beginning of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) block: usize,
    pub(super) offset: usize,
}

/// Blocks of a rank's buffers that a collective touches; all of them have the bytes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) input: usize,
    pub(super) output: usize,
}

/// How blocks lie where a buffer has those of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Bytes from the beginning of a block to that of the next one.
    pub(super) pitch: usize,
    /// Bytes from the beginning of the first block: what would be behind is in no block, so the last ones may be shorter
    /// than the first, or empty. Those of a buffer with one block are shorter with them.
    pub(super) reach: usize,
}

/// Who takes part, and in what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cast {
    pub(super) request: Request,
    pub(super) me: usize,
    pub(super) ranks: usize,
    pub(super) form: Form,
}

/// The same bytes of all blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Where they begin in a block.
    pub(super) start: usize,
    pub(super) bytes: usize,
    /// Bytes to the beginning of the next such piece: all are cut into slices as those are that have as many.
    pub(super) pitch: usize,
}

/// What a rank says and does in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Roles {
    /// What each rank takes from this one.
    pub(super) sources: [Option<Spot>; MOST_RANKS],
    /// Where each rank stores at this one.
    pub(super) destinations: [Option<Spot>; MOST_RANKS],
    /// Bytes that this rank combines, and those that any rank combines at most.
    pub(super) bytes: usize,
    pub(super) largest: usize,
    /// Bytes from the first of these to behind the last one of all pieces that follow.
    pub(super) reach: usize,
}

impl Cast {
    /// On blocks of one size without gaps.
    pub(super) fn even(request: Request, me: usize, ranks: usize) -> Self {
        let pitch = request.bytes();
        Self { request, me, ranks, form: Form { pitch, reach: ranks * pitch } }
    }

    /// How many bytes of a stretch are in a block of a buffer with so many.
    pub(super) fn held(&self, blocks: usize, block: usize, stretch: Stretch) -> usize {
        // The one block of a buffer is that of this rank.
        let block = if blocks == 1 { self.me } else { block };
        let start = block * self.form.pitch + stretch.start;
        stretch.bytes.min(self.form.reach.saturating_sub(start))
    }

    /// How far a buffer with so many blocks reaches.
    pub(super) fn extent(&self, blocks: usize) -> usize {
        let end = |block| block * self.form.pitch + self.held(blocks, block, self.from(0));
        (0..blocks).map(end).max().unwrap_or(0).min(self.form.reach)
    }

    /// Everything from there on, as one piece.
    fn from(&self, start: usize) -> Stretch {
        let bytes = self.request.bytes() - start;
        Stretch { start, bytes, pitch: bytes }
    }

    /// Whether every rank combines a slice of a block, rather than a whole one.
    fn is_cut(&self) -> bool {
        use Collective::{AllReduce, Broadcast, Reduce};
        matches!(self.request.collective, AllReduce | Broadcast | Reduce)
    }

    /// Which blocks this rank has.
    pub(super) fn blocks(&self) -> Blocks {
        let is_root = self.request.root.index() == self.me;
        let at_root = |blocks| if is_root { blocks } else { 0 };
        let (input, output) = match self.request.collective {
            Collective::AllGather => (1, self.ranks),
            Collective::ReduceScatter => (self.ranks, 1),
            Collective::Broadcast => (at_root(1), 1),
            Collective::Reduce => (1, at_root(1)),
            Collective::Gather => (1, at_root(self.ranks)),
            Collective::Scatter => (at_root(self.ranks), 1),
            Collective::AllToAll => (self.ranks, self.ranks),
            Collective::AllReduce
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::PointToPoint => (1, 1),
        };
        Blocks { input, output }
    }

    /// How many times ranks meet for a piece: in an AllToAll every rank has something else for each, and
    /// combines from one rank at a time.
    pub(super) fn turns(&self) -> usize {
        if self.request.collective == Collective::AllToAll { self.ranks } else { 1 }
    }

    /// Whether a rank whose input is its output has to keep a copy of the input: others read it after turns that
    /// have written there.
    pub(super) fn needs_copy(&self) -> bool {
        self.turns() > 1
    }

    /// The pieces: all blocks of one fit into staging memory of `staging_bytes`, on any rank.
    pub(super) fn pieces(&self, staging_bytes: usize) -> Vec<Stretch> {
        let size = self.request.datatype.bytes();
        let blocks = if self.is_cut() { 1 } else { self.ranks };
        let most = staging_bytes / size / blocks;
        let most = if most > GRAIN { most / GRAIN * GRAIN } else { most.max(1) } * size;
        let bytes = self.request.bytes();
        (0..bytes)
            .step_by(most)
            .map(|start| Stretch { start, bytes: most.min(bytes - start), pitch: most.min(bytes) })
            .collect()
    }

    /// What this rank says and does in a turn for a piece of every block; in all turns if none is given.
    pub(super) fn roles(&self, work: &Work, piece: Stretch, turn: Option<usize>) -> Roles {
        let size = work.datatype.bytes();
        let slice_of = |rank| slice(piece.pitch / size, size, self.ranks, rank);
        let cut = |rank| Some(Spot { block: 0, offset: slice_of(rank).0 * size });
        let block = |block| Some(Spot { block, offset: 0 });
        let root = self.request.root.index();
        let (me, is_root) = (self.me, root == self.me);
        let own = |rank: usize| if rank == me { block(0) } else { None };
        let told = |spot: &dyn Fn(usize) -> Option<Spot>| -> [Option<Spot>; MOST_RANKS] {
            std::array::from_fn(|rank| if rank < self.ranks { spot(rank) } else { None })
        };
        let (sources, destinations) = match self.request.collective {
            Collective::Reduce => (told(&cut), told(&|rank| cut(rank).filter(|_| is_root))),
            Collective::Broadcast => (told(&|rank| cut(rank).filter(|_| is_root)), told(&cut)),
            Collective::AllGather => (told(&own), told(&block)),
            Collective::ReduceScatter => (told(&block), told(&own)),
            Collective::Gather => (told(&own), told(&|rank| block(rank).filter(|_| is_root))),
            Collective::Scatter => (told(&|rank| block(rank).filter(|_| is_root)), told(&own)),
            // Who takes from this rank, and from whom this one does: nobody from one rank at the same time.
            Collective::AllToAll => match turn {
                Some(turn) => (
                    told(&|rank| block(rank).filter(|_| (rank + turn) % self.ranks == me)),
                    told(&|rank| block((me + turn) % self.ranks).filter(|_| rank == me)),
                ),
                None => (told(&block), told(&block)),
            },
            Collective::AllReduce
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::PointToPoint => (told(&cut), told(&cut)),
        };
        let (first, most, rest) = if self.is_cut() {
            let (first, count) = slice_of(me);
            (first * size, count * size, self.from(piece.start).bytes)
        } else {
            (0, piece.bytes, self.held(self.ranks, me, self.from(piece.start)))
        };
        let reach = rest.saturating_sub(first);
        let bytes = piece.bytes.saturating_sub(first).min(most).min(reach);
        // The last piece has as many blocks as the others: some ranks do all pieces with one kernel.
        let largest = if self.is_cut() { slice_of(0).1 * size } else { piece.pitch };
        Roles { sources, destinations, bytes, largest, reach }
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::ids::Rank;

    use super::*;

    const COLLECTIVES: [Collective; 8] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllToAll,
    ];

    fn cast(collective: Collective, count: usize, me: usize, ranks: usize) -> Cast {
        let reduction = Reduction::Builtin(ReduceOp::Sum);
        let datatype = DataType::Int32;
        let request = Request { collective, count, datatype, reduction, root: Rank(1) };
        Cast::even(request, me, ranks)
    }

    /// Does a collective as the ranks say it, on buffers of bytes, each of which says whose it is.
    fn done(collective: Collective, count: usize, ranks: usize) -> Vec<Vec<Vec<usize>>> {
        let casts: Vec<Cast> = (0..ranks).map(|me| cast(collective, count, me, ranks)).collect();
        let block = count * 4;
        let mut outputs: Vec<Vec<Vec<usize>>> =
            casts.iter().map(|cast| vec![Vec::new(); cast.blocks().output * block]).collect();
        let works: Vec<Work> = casts.iter().map(|c| Work::of(&c.request, c.me, ranks)).collect();
        let pieces = casts[0].pieces(256);
        assert!(casts.iter().all(|cast| cast.pieces(256) == pieces));
        let turns = casts[0].turns();
        for (piece, turn) in pieces.iter().flat_map(|piece| (0..turns).map(move |t| (piece, t))) {
            let roles: Vec<Roles> = casts
                .iter()
                .zip(&works)
                .map(|(cast, work)| cast.roles(work, *piece, Some(turn)))
                .collect();
            for (rank, role) in roles.iter().enumerate() {
                assert!(role.bytes <= role.largest && role.largest == roles[0].largest);
                for at in 0..role.bytes {
                    let place = |spot: Spot| spot.block * block + piece.start + spot.offset + at;
                    let taken: Vec<usize> = (0..ranks)
                        .filter_map(|k| roles[k].sources[rank].map(|spot| k * 10_000 + place(spot)))
                        .collect();
                    for k in 0..ranks {
                        if let Some(spot) = roles[k].destinations[rank] {
                            let output = &mut outputs[k][place(spot)];
                            assert!(output.is_empty(), "written twice");
                            output.clone_from(&taken);
                        }
                    }
                }
            }
        }
        outputs
    }

    #[test]
    fn everybody_gets_what_the_collective_says() {
        for (collective, count, ranks) in COLLECTIVES
            .into_iter()
            .flat_map(|c| [1, 5, 17, 100].map(|count| (c, count)))
            .flat_map(|(c, count)| [2, 3, 8].map(|ranks| (c, count, ranks)))
        {
            let (block, outputs) = (count * 4, done(collective, count, ranks));
            for (rank, output) in outputs.iter().enumerate() {
                for (at, taken) in output.iter().enumerate() {
                    let from = |rank: usize, at: usize| rank * 10_000 + at;
                    let all = |at: usize| (0..ranks).map(|k| from(k, at)).collect::<Vec<_>>();
                    let expected = match collective {
                        Collective::Broadcast => vec![from(1, at)],
                        Collective::AllGather | Collective::Gather => {
                            vec![from(at / block, at % block)]
                        }
                        Collective::ReduceScatter => all(rank * block + at),
                        Collective::Scatter => vec![from(1, rank * block + at)],
                        Collective::AllReduce | Collective::Reduce => all(at),
                        Collective::AllToAll => {
                            vec![from(at / block, rank * block + at % block)]
                        }
                        Collective::AllToAllV | Collective::Barrier | Collective::PointToPoint => {
                            unreachable!("not in the list")
                        }
                    };
                    assert_eq!(*taken, expected, "{collective:?} of {count}, rank {rank}, {at}");
                }
            }
        }
    }

    #[test]
    fn pieces_fit_into_staging_memory() {
        for collective in COLLECTIVES {
            let cast = cast(collective, 1000, 0, 3);
            let pieces = cast.pieces(4096);
            assert_eq!(pieces.iter().map(|piece| piece.bytes).sum::<usize>(), 4000);
            let blocks = cast.blocks();
            let most = blocks.input.max(blocks.output);
            assert!(pieces.iter().all(|piece| piece.bytes * most <= 4096 && piece.bytes > 0));
        }
        assert!(cast(Collective::AllReduce, 0, 0, 2).pieces(4096).is_empty());
    }
}
