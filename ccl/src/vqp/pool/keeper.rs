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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use ccl_core::settings::Settings;
    use ccl_transport::verbs::soft::SoftDevice;
    use ccl_transport::verbs::virtual_qp::{VirtualDevice, VirtualSettings};
    use ccl_transport::verbs::{self, Access, Device, Memory, MemoryRegion};
    use ccl_transport::{TransportError, clock};

    use super::super::super::devices::ports;
    use super::super::super::meeting::Deadline;
    use super::super::super::{
        Domain, DomainConfig, Key, Listener, Meeting, QueuePair, Side, Terms,
    };
    use super::*;

    const COUNT: usize = 3;
    const LIMIT: Duration = Duration::from_secs(30);
    const DEPTH: Depth = Depth { sends: 8, receives: 4 };

    /// A software device that says it could have so many ends ready, and tells who is asked for how many.
    #[derive(Debug)]
    struct Provident {
        device: SoftDevice,
        most: usize,
        asked: Mutex<Sender<(Depth, usize)>>,
    }

    #[derive(Debug)]
    struct ProvidentDomain {
        inner: Box<dyn verbs::Domain>,
        most: usize,
        asked: Sender<(Depth, usize)>,
    }

    impl Device for Provident {
        fn name(&self) -> &str {
            self.device.name()
        }

        fn address(&self) -> IpAddr {
            self.device.address()
        }

        fn domain(&self) -> Result<Box<dyn verbs::Domain>, TransportError> {
            let (inner, asked) = (self.device.domain()?, lock(&self.asked).clone());
            Ok(Box::new(ProvidentDomain { inner, most: self.most, asked }))
        }
    }

    impl verbs::Domain for ProvidentDomain {
        fn register(
            &self,
            memory: &Memory,
            access: Access,
        ) -> Result<MemoryRegion, TransportError> {
            self.inner.register(memory, access)
        }

        fn queue_pair(&self, depth: Depth) -> Result<Box<dyn verbs::QueuePair>, TransportError> {
            self.inner.queue_pair(depth)
        }

        fn keep_ready(&self, depth: Depth, count: usize) -> usize {
            self.asked.send((depth, count)).expect("the test listens");
            count.min(self.most)
        }
    }

    fn key() -> Key {
        Key::from_passphrase("a test of pools")
    }

    /// A device, and what it is asked.
    fn provident(address: IpAddr, most: usize) -> (Provident, Receiver<(Depth, usize)>) {
        let (sender, asked) = channel();
        let device = SoftDevice::new("backup".into(), address);
        (Provident { device, most, asked: Mutex::new(sender) }, asked)
    }

    /// A keeper over a backup that can have so many ends ready, and what that is asked.
    fn keeper(most: usize) -> (Keeper, Receiver<(Depth, usize)>) {
        let (backup, asked) = provident(Ipv4Addr::LOCALHOST.into(), most);
        let default = SoftDevice::new("default".into(), Ipv4Addr::LOCALHOST.into());
        let rails: Vec<Arc<dyn Device>> = vec![Arc::new(default), Arc::new(backup)];
        let device = VirtualDevice::new(rails, VirtualSettings::new(Evidence::Handshake, 2));
        (Keeper::new(device.virtual_domain().unwrap(), COUNT), asked)
    }

    /// For how many of which depth it was asked, until nobody can ask any more.
    fn all(asked: &Receiver<(Depth, usize)>) -> Vec<(Depth, usize)> {
        std::iter::from_fn(|| asked.recv_timeout(LIMIT).ok()).collect()
    }

    #[test]
    fn every_kind_is_kept_ready_and_what_was_taken_is_made_again() {
        let (keeper, asked) = keeper(COUNT);
        // Nobody has joined.
        keeper.refill();
        for evidence in [Evidence::Resend, Evidence::Handshake] {
            keeper.serve(DEPTH, evidence).unwrap();
        }
        keeper.refill();
        keeper.serve(DEPTH, Evidence::Log).unwrap();
        drop(keeper);
        let asked = all(&asked);
        let (plain, logged) = (asked[0].0, asked[asked.len() - 1].0);
        assert!(logged.sends > plain.sends, "a log takes room: {plain:?}, {logged:?}");
        // Its first, again, and once more beside the other.
        let kinds = [plain, plain, plain, logged];
        let expected = kinds.into_iter().flat_map(|depth| (1..=COUNT).map(move |n| (depth, n)));
        assert_eq!(asked, expected.collect::<Vec<_>>());
    }

    #[test]
    fn where_no_device_keeps_any_it_is_asked_once() {
        let (keeper, asked) = keeper(0);
        keeper.serve(DEPTH, Evidence::Resend).unwrap();
        keeper.refill();
        keeper.serve(DEPTH, Evidence::Log).unwrap();
        drop(keeper);
        let asked = all(&asked);
        assert!(!asked.is_empty() && asked.iter().all(|one| *one == asked[0]), "{asked:?}");
    }

    fn poll_until(pair: &mut QueuePair, mut is_enough: impl FnMut(&QueuePair) -> bool) {
        let (end, mut completions) = (clock::now() + LIMIT, Vec::new());
        while !is_enough(pair) {
            pair.poll(&mut completions);
            assert!(clock::now() < end, "nothing has come of it");
        }
    }

    /// One end of a queue pair with a pool, until its device has made again what a fault has taken.
    fn end(mut meeting: Meeting, addresses: [&str; 2]) {
        let mut rails = ports(&addresses.join(","), &Settings::default()).unwrap();
        let (backup, asked) = provident(addresses[1].parse().unwrap(), usize::MAX);
        let last = rails.pop().unwrap();
        rails.push(last.with_device(Arc::new(backup)));
        let domain = Domain::over(&rails, &DomainConfig::default(), None, &key()).unwrap();
        let pool = domain.pool(&mut meeting, 1, LIMIT).unwrap();
        let mut pair = domain.queue_pair(&Terms::default()).unwrap();
        pair.connect_pooled(&mut meeting, &pool, LIMIT).unwrap();
        // One for the spare of each end.
        while asked.recv_timeout(LIMIT).unwrap().1 < 2 {}
        poll_until(&mut pair, |_| pool.spares() > 0);
        while asked.try_recv().is_ok() {}
        meeting.exchange(b"filled", LIMIT).unwrap();
        if meeting.side() == Side::Connecting {
            pair.suspect(0).unwrap();
        }
        poll_until(&mut pair, |pair| pair.counters().repairs > 0);
        poll_until(&mut pair, |_| asked.try_recv().is_ok());
        // The other end may not have come so far.
        let mut completions = Vec::new();
        let mut serve = || {
            pair.poll(&mut completions);
        };
        let deadline = Deadline::after("end a test", LIMIT);
        meeting.exchange_while(b"done", &deadline, Some(&mut serve)).unwrap();
    }

    #[test]
    fn what_a_queue_pair_of_a_pool_has_taken_is_made_again() {
        let listener = Listener::bind("127.0.0.1:0", key()).unwrap();
        let address = listener.address().unwrap().to_string();
        let accepting = thread::spawn(move || {
            end(listener.accept(LIMIT).unwrap(), ["127.4.5.1", "127.4.5.2"]);
        });
        end(Meeting::connect(&address, &key(), LIMIT).unwrap(), ["127.4.6.1", "127.4.6.2"]);
        accepting.join().unwrap();
    }
}
