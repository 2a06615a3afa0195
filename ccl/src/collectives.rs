//! The calls on Rust slices.

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{ReduceOp, Reduction};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::layout::Ragged;
use ccl_kernels::{Element, Region};

use crate::communicator::Communicator;
use crate::operation::{Operation, check, or_empty};

fn request<T: Element>(
    collective: Collective,
    count: usize,
    op: impl Into<Reduction>,
    root: Rank,
) -> Request {
    Request { collective, count, datatype: T::DATATYPE, reduction: op.into(), root }
}

/// Calls on slices; lengths are in elements, and every error is that of [`Communicator::run`]. `op` is a
/// [`ReduceOp`](ccl_core::datatype::ReduceOp), or a [`Reduction`] for a sum of scaled contributions. Block `i` of a
/// slice is its `i`-th of as many equal parts as there are ranks.
impl Communicator {
    /// Reduces `send` of all ranks into `receive` of all ranks; both of the same length everywhere.
    ///
    /// # Errors
    /// The lengths differ, or see [`Self::run`].
    pub fn all_reduce<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<(), Error> {
        same_length("receive", receive.len(), send.len())?;
        let request = request::<T>(Collective::AllReduce, send.len(), op, Rank(0));
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
    }

    /// Reduces `data` of all ranks, in place.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn all_reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<(), Error> {
        let request = request::<T>(Collective::AllReduce, data.len(), op, Rank(0));
        let region = Region::of_mut(data);
        self.collective(&request, Some(region), Some(region))
    }

    /// Reduces `send` of all ranks into `receive` of `root`, of the same length; elsewhere `receive` is not
    /// looked at and may be empty.
    ///
    /// # Errors
    /// The lengths differ at the root, or see [`Self::run`].
    pub fn reduce<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        op: impl Into<Reduction>,
        root: Rank,
    ) -> Result<(), Error> {
        let request = request::<T>(Collective::Reduce, send.len(), op, root);
        self.at_root("receive", receive.len(), send.len(), root)?;
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
    }

    /// Reduces `data` of all ranks into that of `root`; elsewhere it stays as it is.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn reduce_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: impl Into<Reduction>,
        root: Rank,
    ) -> Result<(), Error> {
        let request = request::<T>(Collective::Reduce, data.len(), op, root);
        let region = Region::of_mut(data);
        self.collective(&request, Some(region), (self.rank() == root).then_some(region))
    }

    /// Collects `send` of all ranks, in order of rank, in `receive`, which is `size` times as long.
    ///
    /// # Errors
    /// The lengths do not fit, or see [`Self::run`].
    pub fn all_gather<T: Element>(&self, send: &[T], receive: &mut [T]) -> Result<(), Error> {
        same_length("receive", receive.len(), send.len() * self.size() as usize)?;
        let request = request::<T>(Collective::AllGather, send.len(), NONE, Rank(0));
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
    }

    /// Collects in `data` block `i` of that of every rank `i`.
    ///
    /// # Errors
    /// The length is no multiple of the number of ranks, or see [`Self::run`].
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        let count = self.block_of(data)?;
        let request = request::<T>(Collective::AllGather, count, NONE, Rank(0));
        let region = Region::of_mut(data);
        self.collective(&request, Some(self.own_block(region)), Some(region))
    }

    /// Reduces `send` of all ranks; rank `i` gets block `i` of the result in `receive`, whose length
    /// is that of a block.
    ///
    /// # Errors
    /// The lengths do not fit, or see [`Self::run`].
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<(), Error> {
        same_length("send", send.len(), receive.len() * self.size() as usize)?;
        let request = request::<T>(Collective::ReduceScatter, receive.len(), op, Rank(0));
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
    }

    /// Reduces `data` of all ranks; rank `i` gets block `i` of the result in block `i` of its `data`.
    ///
    /// # Errors
    /// The length is no multiple of the number of ranks, or see [`Self::run`].
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        op: impl Into<Reduction>,
    ) -> Result<(), Error> {
        let count = self.block_of(data)?;
        let request = request::<T>(Collective::ReduceScatter, count, op, Rank(0));
        let region = Region::of_mut(data);
        self.collective(&request, Some(region), Some(self.own_block(region)))
    }

    /// Copies `data` of `root` to all ranks.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: Rank) -> Result<(), Error> {
        let request = request::<T>(Collective::Broadcast, data.len(), NONE, root);
        let region = Region::of_mut(data);
        self.collective(&request, Some(region), Some(region))
    }

    /// Collects `send` of all ranks, in order of rank, in `receive` of `root`, which is `size` times as long;
    /// elsewhere `receive` is not looked at and may be empty.
    ///
    /// # Errors
    /// The lengths do not fit at the root, or see [`Self::run`].
    pub fn gather<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let request = request::<T>(Collective::Gather, send.len(), NONE, root);
        self.at_root("receive", receive.len(), send.len() * self.size() as usize, root)?;
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
    }

    /// Block `i` of `send` of `root` becomes `receive` of rank `i`; elsewhere `send` is not looked at and may
    /// be empty.
    ///
    /// # Errors
    /// The lengths do not fit at the root, or see [`Self::run`].
    pub fn scatter<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        root: Rank,
    ) -> Result<(), Error> {
        let request = request::<T>(Collective::Scatter, receive.len(), NONE, root);
        self.at_root("send", send.len(), receive.len() * self.size() as usize, root)?;
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
    }

    /// Block `j` of `send` goes to rank `j`; block `i` of `receive` comes from rank `i`.
    ///
    /// # Errors
    /// The lengths differ or are no multiple of the number of ranks, or see [`Self::run`].
    pub fn all_to_all<T: Element>(&self, send: &[T], receive: &mut [T]) -> Result<(), Error> {
        let count = self.block_of(send)?;
        same_length("receive", receive.len(), send.len())?;
        let request = request::<T>(Collective::AllToAll, count, NONE, Rank(0));
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
    }

    /// Block `j` of `data` goes to rank `j`; what rank `i` sends takes the place of block `i`.
    ///
    /// # Errors
    /// The length is no multiple of the number of ranks, or see [`Self::run`].
    pub fn all_to_all_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), Error> {
        let count = self.block_of(data)?;
        let request = request::<T>(Collective::AllToAll, count, NONE, Rank(0));
        let region = Region::of_mut(data);
        self.collective(&request, Some(region), Some(region))
    }

    /// Sends `counts.send[j]` of `send` to rank `j` and receives `counts.receive[i]` of `receive` from rank
    /// `i`: pairs of elements and of the first of them.
    ///
    /// # Errors
    /// The counts do not fit into the slices, or see [`Self::run`].
    pub fn all_to_all_v<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        counts: Ragged,
    ) -> Result<(), Error> {
        let (input, output) = (Region::of(send), Region::of_mut(receive));
        self.run(Operation::AllToAllV { datatype: T::DATATYPE, counts, input, output })
    }

    /// Sends `data` to `peer`, which must receive as much.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn send<T: Element>(&self, data: &[T], peer: Rank) -> Result<(), Error> {
        self.run(Operation::Send { peer, data: Region::of(data) })
    }

    /// Fills `data` with what `peer` sends.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn receive<T: Element>(&self, data: &mut [T], peer: Rank) -> Result<(), Error> {
        self.run(Operation::Receive { peer, data: Region::of_mut(data) })
    }

    /// Runs a collective that is described by a request, as [`Self::run`] does with an
    /// [`Operation::Collective`], which has the shapes.
    ///
    /// # Errors
    /// As [`Self::run`].
    #[inline(always)]
    pub fn collective(
        &self,
        request: &Request,
        input: Option<Region<'_>>,
        output: Option<Region<'_>>,
    ) -> Result<(), Error> {
        self.usable()?;
        check(request, input.as_ref(), output.as_ref(), (self.rank(), self.size()))?;
        let buffers = [or_empty(input), or_empty(output)];
        self.with_engine(None, |engine, limits| engine.described(request, &buffers, limits))
    }
}

impl Communicator {
    /// Elements of a block of `data`.
    fn block_of<T>(&self, data: &[T]) -> Result<usize, Error> {
        let ranks = self.size() as usize;
        if data.len().is_multiple_of(ranks) {
            return Ok(data.len() / ranks);
        }
        let text = format!("{} elements are no multiple of {ranks} ranks", data.len());
        Err(Error::InvalidArgument(text))
    }

    /// The block of this rank in the blocks of all.
    fn own_block<'a>(&self, all: Region<'a>) -> Region<'a> {
        let bytes = all.bytes() / self.size() as usize;
        all.part(self.rank().index() * bytes, bytes)
    }

    /// [`same_length`], where this rank is `root`.
    fn at_root(&self, what: &str, given: usize, needed: usize, root: Rank) -> Result<(), Error> {
        if self.rank() == root { same_length(what, given, needed) } else { Ok(()) }
    }
}

/// Of calls that reduce nothing.
const NONE: ReduceOp = ReduceOp::Sum;

fn same_length(what: &str, given: usize, needed: usize) -> Result<(), Error> {
    if given == needed {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{what} has {given} elements, {needed} are needed")))
}
