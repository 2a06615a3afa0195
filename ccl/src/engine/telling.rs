//! What ranks tell each other in the middle of a call, beside what the call moves.

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_core::wire::Stamp;
use ccl_kernels::{Source, copy};
use smallvec::SmallVec;

use super::{Ended, Engine, Limits, arithmetic};
use crate::executor::Task;

/// What all ranks have told, in order of rank.
pub(super) type Told<const BYTES: usize> = SmallVec<[[u8; BYTES]; 8]>;

impl Engine {
    /// Tells all ranks `own`, and hears what all tell: an AllGather in the middle of a call.
    pub(super) fn tell_all<const BYTES: usize>(
        &mut self,
        own: [u8; BYTES],
        stamp: Stamp,
        limits: Limits<'_>,
    ) -> Result<Told<BYTES>, Box<Error>> {
        let ranks = self.ranks as usize;
        let mut told = std::mem::take(&mut self.told);
        told.grow(BYTES * (1 + ranks));
        let (mine, all) = {
            let region = told.region();
            (region.part(0, BYTES), region.part(BYTES, BYTES * ranks))
        };
        copy(Source::from(&own[..]), mine.target(0, BYTES));
        let result = self.gather(BYTES, &[mine, all], stamp, limits).map(|()| {
            let blocks = (0..ranks).map(|rank| {
                let mut bytes = [0; BYTES];
                copy(all.source(rank * BYTES, BYTES), (&mut bytes[..]).into());
                bytes
            });
            blocks.collect()
        });
        self.told = told;
        result
    }

    fn gather(
        &mut self,
        bytes: usize,
        buffers: &[ccl_kernels::Region<'_>; 2],
        stamp: Stamp,
        limits: Limits<'_>,
    ) -> Ended {
        let gather = Request {
            collective: Collective::AllGather,
            count: bytes,
            datatype: DataType::Uint8,
            reduction: Reduction::Builtin(ReduceOp::Sum),
            root: Rank(0),
        };
        let plan = self.planner.plan(&gather, false)?;
        let (program, is_straight) = (&plan.program, plan.is_straight);
        let gather = Task { program, buffers, stamp, arithmetic: None, is_straight };
        self.drive(&gather, limits)
    }

    /// Lets nobody pass before everybody has come, in the middle of a call.
    pub(super) fn pass_together(&mut self, stamp: Stamp, limits: Limits<'_>) -> Ended {
        let plan = self.planner.plan(&Request::BARRIER, false)?;
        let arithmetic = Some(arithmetic(&Request::BARRIER, self.ranks));
        let mut token = std::mem::take(&mut self.token);
        let (program, buffers) = (&plan.program, &[token.region(); 2]);
        let barrier = Task { program, buffers, stamp, arithmetic, is_straight: plan.is_straight };
        let result = self.drive(&barrier, limits);
        self.token = token;
        result
    }
}
