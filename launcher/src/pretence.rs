//! Processes of one machine that believe to be on several hosts.

use std::num::NonZeroUsize;

/// Hosts and rails are numbers in a loopback address.
pub const MOST_HOSTS: usize = 250;
/// See [`MOST_HOSTS`].
pub const MOST_RAILS: usize = 250;

/// The settings that make process `index` of `count` believe in its host and its network interfaces;
/// none if neither is pretended. Neighbours share a host.
#[must_use]
pub fn pretended(
    (index, count): (usize, usize),
    hosts: Option<NonZeroUsize>,
    rails: Option<NonZeroUsize>,
) -> Vec<(&'static str, String)> {
    if hosts.is_none() && rails.is_none() {
        return Vec::new();
    }
    let hosts = hosts.map_or(1, NonZeroUsize::get);
    let host = index * hosts / count;
    let mut settings = vec![("R2CCL_HOST_ID", format!("host{host}"))];
    if let Some(rails) = rails {
        let address = |rail: usize| format!("127.1.{}.{}", host + 1, rail + 1);
        let addresses: Vec<String> = (0..rails.get()).map(address).collect();
        settings.push(("R2CCL_RAILS", addresses.join(",")));
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_a_host() {
        let two = NonZeroUsize::new(2);
        let hosts: Vec<_> =
            (0..5).map(|index| pretended((index, 5), two, two)[0].1.clone()).collect();
        assert_eq!(hosts, ["host0", "host0", "host0", "host1", "host1"]);
        assert_eq!(pretended((4, 5), two, two)[1].1, "127.1.2.1,127.1.2.2");
        assert!(pretended((0, 5), None, None).is_empty());
    }
}
