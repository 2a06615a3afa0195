//! The calls on Rust slices.

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{ReduceOp, Reduction};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_kernels::{Element, Region};

use crate::communicator::Communicator;
use crate::operation::{Operation, check, or_empty};

fn request<T: Element>(collective: Collective, count: usize, op: ReduceOp, root: Rank) -> Request {
    let reduction = Reduction::Builtin(op);
    Request { collective, count, datatype: T::DATATYPE, reduction, root }
}

/// Calls on slices; lengths are in elements, and every error is that of [`Communicator::run`].
impl Communicator {
    /// Reduces `send` of all ranks into `receive` of all ranks; both of the same length everywhere.
    ///
    /// # Errors
    /// The lengths differ, or see [`Self::run`].
    pub fn all_reduce<T: Element>(
        &self,
        send: &[T],
        receive: &mut [T],
        op: ReduceOp,
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
        op: ReduceOp,
    ) -> Result<(), Error> {
        let request = request::<T>(Collective::AllReduce, data.len(), op, Rank(0));
        let region = Region::of_mut(data);
        self.collective(&request, Some(region), Some(region))
    }

    /// Collects `send` of all ranks, in order of rank, in `receive`, which is `size` times as long.
    ///
    /// # Errors
    /// The lengths do not fit, or see [`Self::run`].
    pub fn all_gather<T: Element>(&self, send: &[T], receive: &mut [T]) -> Result<(), Error> {
        same_length("receive", receive.len(), send.len() * self.size() as usize)?;
        let request = request::<T>(Collective::AllGather, send.len(), ReduceOp::Sum, Rank(0));
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
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
        op: ReduceOp,
    ) -> Result<(), Error> {
        same_length("send", send.len(), receive.len() * self.size() as usize)?;
        let request = request::<T>(Collective::ReduceScatter, receive.len(), op, Rank(0));
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
    }

    /// Copies `data` of `root` to all ranks.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: Rank) -> Result<(), Error> {
        let request = request::<T>(Collective::Broadcast, data.len(), ReduceOp::Sum, root);
        let region = Region::of_mut(data);
        self.collective(&request, Some(region), Some(region))
    }

    /// Block `j` of `send` goes to rank `j`; block `i` of `receive` comes from rank `i`.
    ///
    /// # Errors
    /// The lengths differ or are no multiple of the number of ranks, or see [`Self::run`].
    pub fn all_to_all<T: Element>(&self, send: &[T], receive: &mut [T]) -> Result<(), Error> {
        let count = send.len() / self.size() as usize;
        same_length("send", send.len(), count * self.size() as usize)?;
        same_length("receive", receive.len(), send.len())?;
        let request = request::<T>(Collective::AllToAll, count, ReduceOp::Sum, Rank(0));
        self.collective(&request, Some(Region::of(send)), Some(Region::of_mut(receive)))
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

fn same_length(what: &str, given: usize, needed: usize) -> Result<(), Error> {
    if given == needed {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!("{what} has {given} elements, {needed} are needed")))
}
