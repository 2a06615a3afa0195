//! The keeper of all rails of one rank: made while the links are made, at work as long as they live.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use ccl_core::ids::Rank;

use super::super::RailAddress;
use super::super::events::Witness;
use super::super::medium::Media;
use super::super::meet::PeerPlan;
use super::super::rehearsal::Part;
use super::greeter::Greeter;
use super::mailbox::{Bell, LinkKeeper, Mailbox, Office, Order, Vigil};
use super::worker::{KeptLink, Mail, Worker};
use super::{Directory, Keeper};
use crate::TransportError;
use crate::auth::JobKey;
use crate::verbs::Depth;

/// Who keeps, and for which communicator.
#[derive(Clone, Debug)]
pub(in super::super) struct Identity {
    pub(in super::super) me: Rank,
    pub(in super::super) communicator: u64,
    pub(in super::super) key: JobKey,
}

/// What a keeper has to do with besides its rails.
pub(in super::super) struct Outside {
    pub(in super::super) media: Media,
    pub(in super::super) witness: Arc<dyn Witness>,
    /// If faults are rehearsed.
    pub(in super::super) part: Option<Arc<Part>>,
}

/// A keeper that has not begun. It hands out one [`Keeper`] per link and ends with the last of them.
#[derive(Debug)]
pub(in super::super) struct RailKeeper {
    identity: Identity,
    keepers: BTreeMap<Rank, LinkKeeper>,
    links: Vec<KeptLink>,
    orders: Receiver<Order>,
    office: Arc<Office>,
}

impl RailKeeper {
    /// A keeper of the links that these plans made. `depth` says how deep the queue pairs are of a link
    /// with so many paths.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(in super::super) fn new(
        identity: Identity,
        plans: Vec<PeerPlan>,
        depth: impl Fn(usize) -> Depth,
    ) -> Result<Self, TransportError> {
        let (sender, orders) = channel();
        let bell = Arc::new(Bell::new()?);
        let links = AtomicUsize::new(plans.len());
        let vigil = Arc::<Vigil>::default();
        let thread = Mutex::default();
        let office = Arc::new(Office { orders: sender, bell, vigil, links, thread });
        let mut keepers = BTreeMap::new();
        let mut links = Vec::new();
        for (link, plan) in plans.into_iter().enumerate() {
            let mailbox = Arc::<Mailbox>::default();
            let office = Arc::clone(&office);
            let depth = depth(plan.connections.len());
            keepers.insert(plan.rank, LinkKeeper { link, mailbox: Arc::clone(&mailbox), office });
            links.push(KeptLink::new(plan, mailbox, depth));
        }
        Ok(Self { identity, keepers, links, orders, office })
    }

    /// The keeper for the link with `peer`. What it is asked for is done once the keeper has begun.
    ///
    /// # Panics
    /// There is no link with that rank, or its keeper was handed out before.
    pub(in super::super) fn keeper_for(&mut self, peer: Rank) -> Box<dyn Keeper> {
        Box::new(self.keepers.remove(&peer).expect("a link has one keeper"))
    }

    /// Lets the keeper hear of peers that move.
    pub(in super::super) fn enter(&self, directory: &Directory) {
        directory.open(&self.office);
    }

    /// Begins, in a thread of its own: from now on the keeper accepts what comes to the listeners, which
    /// are in the order of the rails, and tells the witness when one of them moves.
    ///
    /// # Errors
    /// The system has no thread or no descriptor left.
    pub(in super::super) fn begin(
        self,
        rails: Vec<RailAddress>,
        listeners: Vec<TcpListener>,
        outside: Outside,
    ) -> Result<(), TransportError> {
        let Self { identity, keepers: _unused, links, orders, office } = self;
        let bell = Arc::clone(&office.bell);
        let greeter = Greeter::new(identity.key.clone(), office.orders.clone(), bell);
        let bell = Arc::clone(&office.bell);
        let rails = rails.into_iter().zip(listeners).collect();
        let mail = Mail { orders, bell, vigil: Arc::clone(&office.vigil) };
        let worker = Worker::new(identity, rails, links, (mail, greeter), outside)?;
        let thread = std::thread::Builder::new()
            .name("r2ccl-keeper".into())
            .spawn(move || worker.run())
            .map_err(|cause| TransportError::system("start a thread", cause))?;
        office.employ(thread);
        Ok(())
    }
}
