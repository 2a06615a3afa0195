//! What a call asks of the kernels.

use ccl_core::collective::{Collective, Request, Signature};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::ids::Rank;
use ccl_core::layout::Ragged;
use ccl_kernels::cuda::Module;
use ccl_kernels::cuda::gpu::{self, DeviceRegion, Exchange, Ground, Messages, Shown, Stream};

use super::parts::Work;
use crate::cuda::Operation;
use crate::operation::OperationOn;

/// A call that kernels can do.
pub(super) enum Wish<'a, 'b> {
    /// On blocks of one size.
    Even {
        request: Request,
        module: Module,
        input: Option<DeviceRegion<'a>>,
        output: Option<DeviceRegion<'a>>,
    },
    /// On blocks that differ.
    Uneven(Uneven<'a, 'b>),
}

impl<'a, 'b> Wish<'a, 'b> {
    /// None for what goes through the host.
    pub(super) fn of(batch: &'b [Operation<'a>], ranks: usize) -> Option<Self> {
        if ranks < 2 {
            return None;
        }
        match batch {
            [OperationOn::Collective { request, input, output }] if request.count > 0 => {
                let (module, input, output) = (module_of(request, ranks)?, *input, *output);
                Some(Self::Even { request: *request, module, input, output })
            }
            [OperationOn::AllToAllV { datatype, counts, input, output }] => {
                let (datatype, input, output) = (*datatype, *input, *output);
                Some(Self::Uneven(Uneven { datatype, counts, input, output }))
            }
            _ => None,
        }
    }

    /// On what ranks must agree.
    pub(super) fn signature(&self) -> Signature {
        match self {
            Self::Even { request, .. } => request.signature(0),
            Self::Uneven(uneven) => uneven.request().signature(0),
        }
    }

    /// Where its kernels are.
    pub(super) fn module(&self) -> Module {
        match self {
            Self::Even { module, .. } => *module,
            Self::Uneven(_) => Module::Copies,
        }
    }

    pub(super) fn name(&self) -> &'static str {
        self.signature().collective.name()
    }
}

/// Where the kernels of a request are, of which the collective and the type are known; None if there are none.
pub(super) fn module_of(request: &Request, ranks: usize) -> Option<Module> {
    if ranks < 2 {
        None
    } else if request.collective == Collective::AllToAllV {
        Some(Module::Copies)
    } else {
        Work::datatype(request.collective, request.datatype).map(Module::Elements)
    }
}

/// An `AllToAllV` whose input is not its output.
pub(super) struct Uneven<'a, 'b> {
    pub(super) datatype: DataType,
    pub(super) counts: &'b Ragged,
    pub(super) input: DeviceRegion<'a>,
    pub(super) output: DeviceRegion<'a>,
}

impl Uneven<'_, '_> {
    fn request(&self) -> Request {
        Request {
            collective: Collective::AllToAllV,
            count: 0,
            datatype: self.datatype,
            reduction: Reduction::Builtin(ReduceOp::Sum),
            root: Rank(0),
        }
    }

    /// Puts the kernel on the stream. Blocks that the others have mapped, which `find` knows, are taken from where they are.
    pub(super) fn pull(
        &self,
        exchange: &Exchange,
        find: impl Fn(&DeviceRegion<'_>) -> Option<(Shown, usize)>,
        stream: &Stream,
        me: usize,
    ) -> Result<(), gpu::Error> {
        let size = self.datatype.bytes();
        let place = |(count, displacement): (usize, usize)| {
            if count > 0 { (displacement * size, count * size) } else { (0, 0) }
        };
        let sent: Vec<_> = self.counts.send.iter().copied().map(place).collect();
        let to_others = || (0..).zip(&sent).filter(|(rank, (_, bytes))| *rank != me && *bytes > 0);
        let first = to_others().map(|(_, (offset, _))| *offset).min().unwrap_or(0);
        let end = to_others().map(|(_, (offset, bytes))| offset + bytes).max().unwrap_or(0);
        let used = self.input.part(first, end - first);
        let shown = (end > first).then(|| find(&used)).flatten();
        let ground = |rank: usize, (offset, bytes): (usize, usize)| match &shown {
            Some((shown, start)) if bytes > 0 && rank != me => {
                Ground::Mapped(shown.told(rank, start + offset - first))
            }
            _ => Ground::Staged(self.input.part(offset, bytes)),
        };
        let received = self.counts.receive.iter().copied().map(place);
        let messages = Messages {
            sent: (0..).zip(&sent).map(|(rank, at)| (ground(rank, *at), at.1)).collect(),
            own: self.input.part(sent[me].0, sent[me].1),
            received: received.map(|(offset, bytes)| self.output.part(offset, bytes)).collect(),
        };
        exchange.pull(stream, &messages)
    }
}
