//! What a bed looks like: how many hosts and rails, and what everything in it is called.

use std::net::Ipv4Addr;

pub use ccl::fault::{Cable, Rate};

/// Hosts and rails are numbers in an address.
pub const MOST_HOSTS: usize = 250;
/// See [`MOST_HOSTS`].
pub const MOST_RAILS: usize = 64;

/// Second byte of the addresses of the management network; larger than that of any rail.
const MANAGEMENT: u8 = 255;

/// The size of a bed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of hosts.
    pub hosts: usize,
    /// Network cards of every host, apart from the one for management.
    pub rails: usize,
    /// What each of them carries.
    pub rate: Rate,
}

impl Shape {
    /// All cables that can break.
    pub fn cables(&self) -> impl Iterator<Item = Cable> + use<> {
        let rails = self.rails;
        (0..self.hosts).flat_map(move |host| (0..rails).map(move |rail| Cable { host, rail }))
    }

    /// Whether there is such a cable.
    ///
    /// # Errors
    /// The sentence says what there is.
    pub fn check(&self, cable: Cable) -> Result<(), String> {
        if cable.host < self.hosts && cable.rail < self.rails {
            return Ok(());
        }
        let Self { hosts, rails, .. } = self;
        Err(format!("there is no {cable}: {hosts} hosts with {rails} rails are counted from 0"))
    }
}

/// Address of a host on a rail.
#[must_use]
pub fn rail_address(Cable { host, rail }: Cable) -> Ipv4Addr {
    Ipv4Addr::new(10, byte(rail), 0, byte(host + 1))
}

/// Address of a host on the management network, which no fault touches.
#[must_use]
pub fn management_address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, MANAGEMENT, 0, byte(host + 1))
}

/// Name of the network card of a rail, on every host.
#[must_use]
pub fn rail_name(rail: usize) -> String {
    format!("rail{rail}")
}

/// Name of a host, and its identity for the library.
#[must_use]
pub fn host_name(host: usize) -> String {
    format!("host{host}")
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).expect("the command line limits hosts and rails")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rail_is_a_network_of_its_own() {
        assert_eq!(rail_address(Cable { host: 2, rail: 3 }), Ipv4Addr::new(10, 3, 0, 3));
        assert_eq!(management_address(0), Ipv4Addr::new(10, 255, 0, 1));
        const { assert!(MOST_RAILS < MANAGEMENT as usize && MOST_HOSTS < 255) };
    }

    #[test]
    fn cables_that_do_not_exist_are_named() {
        let shape = Shape { hosts: 2, rails: 3, rate: Rate::Unlimited };
        assert_eq!(shape.cables().count(), 6);
        assert!(shape.cables().all(|cable| shape.check(cable).is_ok()));
        let complaint = shape.check(Cable { host: 2, rail: 0 }).unwrap_err();
        assert!(complaint.contains("no host 2 rail 0"), "{complaint}");
    }
}
