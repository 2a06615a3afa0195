//! Processes of one machine that believe to be on several hosts.

use std::num::NonZeroUsize;

/// Hosts and rails are numbers in a loopback address.
const MOST_HOSTS: usize = 250;
/// See [`MOST_HOSTS`].
const MOST_RAILS: usize = 250;

/// Whether `ranks` can be shared out among `hosts` with `rails` each.
///
/// # Errors
/// They cannot, and why.
pub fn check(
    ranks: NonZeroUsize,
    hosts: Option<NonZeroUsize>,
    rails: Option<NonZeroUsize>,
) -> Result<(), String> {
    match (hosts.map_or(1, NonZeroUsize::get), rails.map_or(1, NonZeroUsize::get)) {
        (hosts, _) if hosts > ranks.get() => {
            Err(format!("{hosts} hosts need at least as many ranks, not {ranks}"))
        }
        (hosts, _) if hosts > MOST_HOSTS => Err(format!("{hosts} hosts: at most {MOST_HOSTS}")),
        (_, rails) if rails > MOST_RAILS => Err(format!("{rails} rails: at most {MOST_RAILS}")),
        _ => Ok(()),
    }
}

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
    fn no_host_is_without_a_rank_or_an_address() {
        let checked = |ranks, hosts, rails| {
            check(
                NonZeroUsize::new(ranks).unwrap(),
                NonZeroUsize::new(hosts),
                NonZeroUsize::new(rails),
            )
        };
        for (ranks, hosts, rails) in [(1, 0, 0), (2, 2, 0), (5, 2, 250), (250, 250, 1)] {
            assert_eq!(checked(ranks, hosts, rails), Ok(()));
        }
        for (ranks, hosts, rails) in [(2, 3, 0), (300, 251, 1), (2, 2, 251), (1, 0, 251)] {
            assert!(checked(ranks, hosts, rails).is_err(), "{ranks} {hosts} {rails}");
        }
    }

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
