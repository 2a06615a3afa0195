//! How contributions are combined on their way around.

use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_kernels::cuda::{Arithmetic, Operation};
use ccl_kernels::reciprocal;

/// The reduction of a request, as kernels do it with one contribution after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) datatype: DataType,
    operation: Operation,
    /// What is done when all contributions are there.
    last: Operation,
    /// By what this rank's contribution is multiplied.
    scalar: Option<u64>,
    ranks: u32,
}

impl Recipe {
    /// Of a request, whose mean is of so many contributions; None for what only moves bytes.
    pub(super) fn of(request: &Request, contributions: usize) -> Option<Self> {
        match request.collective {
            Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter => {}
            Collective::AllGather
            | Collective::Broadcast
            | Collective::Gather
            | Collective::Scatter
            | Collective::AllToAll
            | Collective::AllToAllV
            | Collective::Barrier
            | Collective::PointToPoint => return None,
        }
        let (datatype, ranks) = (request.datatype, u32::try_from(contributions).ok()?);
        let (operation, last, scalar) = match request.reduction {
            Reduction::Builtin(ReduceOp::Sum) => (Operation::Sum, Operation::Sum, None),
            Reduction::Builtin(ReduceOp::Prod) => (Operation::Prod, Operation::Prod, None),
            Reduction::Builtin(ReduceOp::Max) => (Operation::Max, Operation::Max, None),
            Reduction::Builtin(ReduceOp::Min) => (Operation::Min, Operation::Min, None),
            Reduction::Builtin(ReduceOp::Avg) if datatype.is_float() => {
                let scalar = Some(reciprocal(datatype, ranks));
                (Operation::Scaled, Operation::Scaled, scalar)
            }
            Reduction::Builtin(ReduceOp::Avg) => (Operation::Sum, Operation::Mean, None),
            Reduction::PreMulSum { scalar, .. } => {
                (Operation::Scaled, Operation::Scaled, Some(scalar))
            }
        };
        Some(Self { datatype, operation, last, scalar, ranks })
    }

    /// What is done where this rank's contribution is source number `own`; `is_last` if no other one is missing.
    pub(super) fn step(&self, own: usize, is_last: bool) -> (Operation, Arithmetic) {
        let operation = if is_last { self.last } else { self.operation };
        let mut arithmetic = Arithmetic::mean(self.ranks);
        if let Some(scalar) = self.scalar {
            arithmetic.scaled = 1 << own;
            arithmetic.scalars[own] = scalar;
        }
        (operation, arithmetic)
    }
}
