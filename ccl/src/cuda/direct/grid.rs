//! Which ranks are on which host.

use std::collections::BTreeMap;

use ccl_core::ids::Rank;

/// The ranks of every host, in order; hosts are in the order of their first ranks. A *column* is the ranks that have the
/// same place on their hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    hosts: Vec<Vec<usize>>,
}

impl Grid {
    /// Of the names of the hosts, by rank.
    pub(super) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let (mut known, mut hosts) = (BTreeMap::new(), Vec::<Vec<usize>>::new());
        for (rank, name) in names.enumerate() {
            let host = *known.entry(name).or_insert(hosts.len());
            if host == hosts.len() {
                hosts.push(Vec::new());
            }
            hosts[host].push(rank);
        }
        Self { hosts }
    }

    /// How many hosts there are.
    pub(super) fn height(&self) -> usize {
        self.hosts.len()
    }

    /// How many ranks every host has.
    ///
    /// # Errors
    /// Which two hosts differ.
    pub(super) fn width(&self) -> Result<usize, String> {
        let first = &self.hosts[0];
        let Some(other) = self.hosts.iter().find(|host| host.len() != first.len()) else {
            return Ok(first.len());
        };
        let ranks: usize = self.hosts.iter().map(Vec::len).sum();
        Err(format!(
            "{ranks} ranks are on {} hosts: {} on that of rank {}, {} on that of rank {}",
            self.hosts.len(),
            first.len(),
            first[0],
            other.len(),
            other[0],
        ))
    }

    /// The ranks of a host.
    pub(super) fn host(&self, host: usize) -> Vec<Rank> {
        self.hosts[host].iter().map(|rank| Rank(*rank as u32)).collect()
    }

    /// The ranks with that place on their hosts, where all have so many.
    pub(super) fn column(&self, place: usize) -> Vec<Rank> {
        self.hosts.iter().map(|ranks| Rank(ranks[place] as u32)).collect()
    }

    /// The host of a rank, and its place there.
    pub(super) fn position(&self, rank: usize) -> Option<(usize, usize)> {
        let place = |ranks: &Vec<usize>| ranks.iter().position(|other| *other == rank);
        self.hosts.iter().enumerate().find_map(|(host, ranks)| Some((host, place(ranks)?)))
    }

    /// Whether the ranks of a host follow each other, and those of the next host follow them.
    pub(super) fn is_in_order(&self) -> bool {
        self.hosts.iter().flatten().copied().eq(0..self.hosts.iter().map(Vec::len).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(names: &str) -> Grid {
        Grid::of(names.split(' '))
    }

    #[test]
    fn ranks_have_places_on_their_hosts() {
        let ranks = |numbers: [u32; 3]| numbers.map(Rank).to_vec();
        let mixed = grid("b a b c a c");
        assert_eq!((mixed.height(), mixed.width()), (3, Ok(2)));
        assert_eq!((mixed.column(0), mixed.column(1)), (ranks([0, 1, 3]), ranks([2, 4, 5])));
        assert_eq!((mixed.host(1), mixed.position(4)), (vec![Rank(1), Rank(4)], Some((1, 1))));
        assert!(!mixed.is_in_order() && grid("b b a a").is_in_order());
        assert_eq!(mixed.position(6), None);
    }

    #[test]
    fn hosts_that_differ_are_told() {
        let told = grid("a b a b a").width().unwrap_err();
        assert_eq!(told, "5 ranks are on 2 hosts: 3 on that of rank 0, 2 on that of rank 1");
    }
}
