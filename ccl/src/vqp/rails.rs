//! The rails of a rank, for queue pairs between ranks of a communicator.
//!
//! Each lane of a communicator has a domain of its own, whose default rail is another one: so all rails are in use,
//! and each has all others as backups.

use std::net::IpAddr;

use ccl_core::fault::Rehearsal;
use ccl_core::settings::Settings;
use ccl_transport::auth::JobKey;

use super::devices::{Port, ports};
use super::drill::Drill;
use super::{Domain, DomainConfig, Error, Key, SOFT, VERBS};

/// Devices of one kind, in order.
#[derive(Debug)]
pub(crate) struct Rails {
    ports: Vec<Port>,
    key: Key,
}

/// A rehearsal of faults between two of its hosts: this one and that of the peer.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    pub(crate) plan: Rehearsal,
    pub(crate) hosts: [usize; 2],
}

impl Rails {
    /// The RDMA devices that the settings admit, or else software devices on the NICs that they admit, for connections
    /// that prove `key`.
    ///
    /// # Errors
    /// There are none.
    pub(crate) fn of(settings: &Settings, is_rdma: bool, key: &JobKey) -> Result<Self, Error> {
        let ports = ports(if is_rdma { VERBS } else { SOFT }, settings)?;
        Ok(Self { ports, key: Key(key.clone()) })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.ports.len()
    }

    /// The address of the first.
    pub(crate) fn address(&self) -> IpAddr {
        self.ports[0].binding.address
    }

    /// What both ends of a meeting have.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// A domain over the first `rails` of them, whose default rail is `first`.
    ///
    /// # Errors
    /// As for [`Domain::open`].
    pub(crate) fn domain(
        &self,
        first: usize,
        rails: usize,
        stage: Option<&Stage>,
    ) -> Result<Domain, Error> {
        let mut found = self.ports[..rails].to_vec();
        found.rotate_left(first);
        let config = DomainConfig { queue_pairs: 1, ..DomainConfig::default() };
        let drill =
            stage.map(|Stage { plan, hosts }| Drill::between(plan.clone(), *hosts, first, rails));
        Domain::over(&found, &config, drill, &self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_has_another_default_rail() {
        let variables = [("R2CCL_RAILS", "127.0.0.8,127.0.0.9,127.0.0.10")];
        let settings = Settings::parse(variables).unwrap().settings;
        let rails = Rails::of(&settings, false, &JobKey::from_passphrase("lanes")).unwrap();
        assert_eq!((rails.count(), rails.address()), (3, "127.0.0.8".parse().unwrap()));
        let names = |first, count| rails.domain(first, count, None).unwrap().devices().to_vec();
        assert_eq!(names(1, 3), ["127.0.0.9", "127.0.0.10", "127.0.0.8"]);
        assert_eq!(names(1, 2), ["127.0.0.9", "127.0.0.8"]);
    }
}
