//! Faults that are rehearsed: devices whose queue pairs behave as over broken cables.
//!
//! Both ends have the same plan and begin it together, when their first queue pair is connected; then
//! each looks at the plan and at its own clock. The accepting end is host 0, the connecting one host 1.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ccl_core::fault::{Cable, Condition, Direction, Rehearsal};
use ccl_transport::verbs::fault::{Interrupted, Loss, Lossy};
use ccl_transport::verbs::virtual_qp::{Attempt, Bell, Connector};
use ccl_transport::verbs::{
    Access, Connection, Depth, Device, Domain, Memory, MemoryRegion, QueuePair,
};
use ccl_transport::{TransportError, clock};

use super::{Error, Side};

/// How often a connector looks whether a cable is whole again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A plan of faults and since when it counts.
#[derive(Debug)]
pub(super) struct Drill {
    plan: Rehearsal,
    /// This host and that of the peer, as the plan counts them.
    hosts: OnceLock<[usize; 2]>,
    /// Whether which end accepts says nothing about which host it is.
    is_cast: bool,
    /// What the plan calls the default rail, of so many.
    first: usize,
    rails: usize,
    start: OnceLock<Instant>,
}

impl Drill {
    /// A drill that has not begun, between two hosts with so many rails.
    pub(super) fn new(plan: Rehearsal, rails: usize) -> Result<Self, Error> {
        plan.check(&[rails; 2])
            .map_err(|cause| Error::InvalidArgument(format!("faults \"{plan}\": {cause}")))?;
        tracing::warn!(faults = %plan, "rails of virtual queue pairs will fail on purpose");
        let (hosts, start) = Default::default();
        Ok(Self { plan, hosts, is_cast: false, first: 0, rails, start })
    }

    /// One between two hosts of many, this one and that of the peer, for a queue pair whose default rail is
    /// `first` of so many. Whoever has the plan has checked it.
    #[cfg(feature = "cuda")]
    pub(super) fn between(plan: Rehearsal, hosts: [usize; 2], first: usize, rails: usize) -> Self {
        Self { plan, hosts: hosts.into(), is_cast: true, first, rails, start: OnceLock::new() }
    }

    /// What both ends must have alike.
    pub(super) fn plan(&self) -> &Rehearsal {
        &self.plan
    }

    /// Says which host this is: the same for all queue pairs.
    pub(super) fn take_side(&self, side: Side) -> Result<(), Error> {
        let hosts = match side {
            Side::Accepting => [0, 1],
            Side::Connecting => [1, 0],
        };
        if *self.hosts.get_or_init(|| hosts) == hosts || self.is_cast {
            return Ok(());
        }
        let text =
            "where faults are rehearsed, a domain accepts all its queue pairs or connects them all";
        Err(Error::InvalidUsage(text.into()))
    }

    /// From now on the time counts, unless it does already.
    pub(super) fn begin(&self) {
        self.start.get_or_init(clock::now);
    }

    fn condition(&self, host: usize, rail: usize) -> Condition {
        let cable = Cable { host, rail: (rail + self.first) % self.rails };
        let Some(start) = self.start.get() else { return Condition::default() };
        let elapsed = clock::now().saturating_duration_since(*start);
        self.plan.condition(cable, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    fn loss(&self, rail: usize) -> Loss {
        let Some(hosts) = self.hosts.get() else { return Loss::default() };
        let [near, far] = hosts.map(|host| self.condition(host, rail));
        let (out, back) = (Direction::Outgoing, Direction::Incoming);
        Loss {
            outgoing: near.loses(out) || far.loses(back),
            incoming: near.loses(back) || far.loses(out),
        }
    }

    /// Whether something is lost on a rail.
    pub(super) fn is_broken(&self, rail: usize) -> bool {
        self.loss(rail) != Loss::default()
    }

    /// Whether the host would be told by its kernel that its NIC is off.
    pub(super) fn is_severed(&self, rail: usize) -> bool {
        let hosts = self.hosts.get();
        hosts.is_some_and(|[here, _]| self.condition(*here, rail).severed().is_some())
    }
}

/// A device over a cable of a drill.
#[derive(Debug)]
pub(super) struct Fragile {
    pub(super) device: Arc<dyn Device>,
    pub(super) rail: usize,
    pub(super) drill: Arc<Drill>,
}

#[derive(Debug)]
struct FragileDomain {
    domain: Box<dyn Domain>,
    rail: usize,
    drill: Arc<Drill>,
}

#[derive(Debug)]
struct Path {
    rail: usize,
    drill: Arc<Drill>,
}

impl Lossy for Path {
    fn loss(&self) -> Loss {
        self.drill.loss(self.rail)
    }
}

impl Device for Fragile {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn address(&self) -> IpAddr {
        self.device.address()
    }

    fn domain(&self) -> Result<Box<dyn Domain>, TransportError> {
        let (domain, drill) = (self.device.domain()?, Arc::clone(&self.drill));
        Ok(Box::new(FragileDomain { domain, rail: self.rail, drill }))
    }
}

impl Domain for FragileDomain {
    fn register(&self, memory: &Memory, access: Access) -> Result<MemoryRegion, TransportError> {
        self.domain.register(memory, access)
    }

    fn queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        Ok(self.interrupted(self.domain.queue_pair(depth)?, depth))
    }

    fn spare_queue_pair(&self, depth: Depth) -> Result<Box<dyn QueuePair>, TransportError> {
        Ok(self.interrupted(self.domain.spare_queue_pair(depth)?, depth))
    }

    fn keep_ready(&self, depth: Depth, count: usize) -> usize {
        self.domain.keep_ready(depth, count)
    }
}

impl FragileDomain {
    fn interrupted(&self, inner: Box<dyn QueuePair>, depth: Depth) -> Box<dyn QueuePair> {
        let path = Path { rail: self.rail, drill: Arc::clone(&self.drill) };
        Box::new(Interrupted::new(inner, depth.sends, path))
    }
}

/// A connector that makes no connections over cables that are broken.
pub(super) struct Careful<C> {
    pub(super) inner: C,
    pub(super) drill: Option<Arc<Drill>>,
}

impl<C: Connector> Connector for Careful<C> {
    fn connect(&self, rail: usize, attempt: &Attempt) -> Result<Connection, TransportError> {
        let is_broken = || match &self.drill {
            Some(drill) => drill.is_broken(rail),
            None => false,
        };
        while is_broken() {
            if !attempt.is_wanted() {
                let text = format!("rail {rail} is broken on purpose");
                return Err(TransportError::TimedOut(text));
            }
            clock::sleep(LOOK_EVERY);
        }
        self.inner.connect(rail, attempt)
    }

    fn announce(&self, bell: Bell) {
        self.inner.announce(bell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drill(plan: &str, side: Side) -> Drill {
        let drill = Drill::new(plan.parse().unwrap(), 2).unwrap();
        drill.take_side(side).unwrap();
        drill.begin();
        drill
    }

    #[test]
    fn both_ends_of_a_cable_lose_what_it_loses() {
        let plan = "oneway:host=0,rail=1,at=0s,lose=outgoing;admin:host=1,rail=0,at=0s";
        let (near, far) = (drill(plan, Side::Accepting), drill(plan, Side::Connecting));
        let both = Loss { outgoing: true, incoming: true };
        assert_eq!([near.loss(0), far.loss(0)], [both; 2]);
        assert_eq!(near.loss(1), Loss { outgoing: true, incoming: false });
        assert_eq!(far.loss(1), Loss { outgoing: false, incoming: true });
        assert_eq!(
            [near.is_severed(0), far.is_severed(0), far.is_severed(1)],
            [false, true, false]
        );
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn hosts_and_rails_are_those_of_the_plan() {
        let plan = "oneway:host=4,rail=2,at=0s,lose=outgoing;silent:host=2,rail=0,at=0s";
        let drill = Drill::between(plan.parse().unwrap(), [4, 2], 1, 3);
        drill.take_side(Side::Accepting).unwrap();
        drill.take_side(Side::Connecting).unwrap();
        drill.begin();
        assert_eq!(drill.loss(0), Loss::default());
        assert_eq!(drill.loss(1), Loss { outgoing: true, incoming: false });
        assert_eq!(drill.loss(2), Loss { outgoing: true, incoming: true });
    }

    #[test]
    fn before_it_begins_nothing_is_broken() {
        let drill = Drill::new("silent:host=0,rail=0,at=0s".parse().unwrap(), 1).unwrap();
        drill.take_side(Side::Connecting).unwrap();
        assert_eq!(drill.loss(0), Loss::default());
        drill.begin();
        assert_ne!(drill.loss(0), Loss::default());
        let error = drill.take_side(Side::Accepting).unwrap_err();
        assert!(matches!(error, Error::InvalidUsage(_)), "{error}");
    }

    #[test]
    fn hosts_and_rails_that_do_not_exist_are_refused() {
        for (plan, named) in [
            ("silent:host=2,rail=0,at=0s", "there is no host 2 rail 0"),
            ("silent:host=1,rail=2,at=0s", "there is no host 1 rail 2"),
        ] {
            let error = Drill::new(plan.parse().unwrap(), 2).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains(plan), "{error}");
        }
    }
}
