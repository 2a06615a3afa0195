//! Has devices keep ends ready for the spares of a pool, where they can make some before it is known whom they are for:
//! those of mlx5 (docs/rdma.md, Dynamically connected queue pairs).

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use ccl_transport::verbs::Depth;
use ccl_transport::verbs::virtual_qp::{Evidence, VirtualDomain};

use super::super::Error;
use super::filler::begin;
use crate::driver::lock;

/// What is asked of the thread, which a first order begins and which ends with the keeper, or when it finds that
/// no device makes such ends.
enum Order {
    /// Queue pairs of this kind may want one.
    Serve(Kind),
    /// Some may have been taken.
    Refill,
}

/// Depth and evidence: what the ends of devices depend on.
type Kind = (usize, usize, bool);

/// For the devices of one domain.
#[derive(Debug)]
pub(super) struct Keeper {
    domain: VirtualDomain,
    /// How many of each kind.
    count: usize,
    orders: Mutex<Option<Sender<Order>>>,
}

impl Keeper {
    pub(super) fn new(domain: VirtualDomain, count: usize) -> Self {
        Self { domain, count, orders: Mutex::default() }
    }

    /// A queue pair of this kind has joined.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn serve(&self, depth: Depth, evidence: Evidence) -> Result<(), Error> {
        let kind = (depth.sends, depth.receives, evidence == Evidence::Log);
        let mut orders = lock(&self.orders);
        if orders.is_none() {
            let (sender, receiver) = channel();
            let (domain, count) = (self.domain.clone(), self.count);
            begin(move || keep(&domain, count, &receiver))?;
            *orders = Some(sender);
        }
        tell(orders.as_ref(), Order::Serve(kind));
        Ok(())
    }

    /// Some may have been taken.
    pub(super) fn refill(&self) {
        tell(lock(&self.orders).as_ref(), Order::Refill);
    }
}

/// A thread that has found nothing to do has gone.
fn tell(orders: Option<&Sender<Order>>, order: Order) {
    let _ = orders.map(|orders| orders.send(order));
}

fn keep(domain: &VirtualDomain, count: usize, orders: &Receiver<Order>) {
    let mut kinds = BTreeSet::new();
    while let Ok(order) = orders.recv() {
        if let Order::Serve(kind) = order
            && !kinds.insert(kind)
        {
            continue;
        }
        for &(sends, receives, has_log) in &kinds {
            let evidence = if has_log { Evidence::Log } else { Evidence::Resend };
            match domain.keep_ready(Depth { sends, receives }, evidence, count) {
                Ok(0) => return tracing::debug!("no device keeps ends ready for a pool"),
                Ok(ready) => tracing::debug!(ready, count, "ends of devices for a pool"),
                // The rail is down, and the log says why.
                Err(reason) => tracing::debug!(%reason, "no ends of devices for a pool yet"),
            }
        }
    }
}
