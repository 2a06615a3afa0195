//! From agreed health to the topology that plans are made for.

use ccl_core::epoch::Table;
use ccl_core::ids::{Node, Rank};
use ccl_core::topology::{Host, RailCapacity, Topology};

/// `introduced`, with the rails as they are in `table`, and the hosts of which a rank reaches no other host.
///
/// The ranks of a host share its NICs: a rail that is bad for one of them is not counted on, and it is as
/// fast as for the slowest. A host without a rail that is good for all is planned for as if all were good: no plan
/// helps it, and the links decide what becomes of it. They may do well: each rank may have lost another rail.
pub(crate) fn with_health(introduced: &Topology, table: &Table) -> (Topology, Vec<Node>) {
    let node_of = (0..introduced.ranks()).map(|rank| introduced.node_of(Rank(rank))).collect();
    let (mut hosts, mut cut_off) = (Vec::new(), Vec::new());
    for node in (0..introduced.nodes()).map(Node) {
        let (cores, ranks) = (introduced.cores(node), introduced.ranks_of(node));
        let mut rails = seen(introduced, node, ranks, table);
        let are_down = |rails: &[RailCapacity]| rails.iter().all(|rail| !rail.up);
        if are_down(&rails) && introduced.nodes() > 1 {
            rails = introduced.rails(node).to_vec();
            let mut rows = ranks.iter().filter_map(|rank| table.row(*rank));
            cut_off.extend(rows.any(|row| are_down(&row.rails)).then_some(node));
        }
        hosts.push(Host { rails, cores });
    }
    (Topology::new(node_of, hosts), cut_off)
}

/// Two hosts with one rank each, which have what `ranks` have of the rails of theirs: what these can do between them does not
/// depend on what has become of the rails for others.
pub(crate) fn between(introduced: &Topology, table: &Table, ranks: [Rank; 2]) -> Topology {
    let host = |rank: Rank| {
        let node = introduced.node_of(rank);
        Host { rails: seen(introduced, node, &[rank], table), cores: introduced.cores(node) }
    };
    Topology::new(vec![Node(0), Node(1)], ranks.map(host).into())
}

/// The rails of a host as these of its ranks have them.
fn seen(introduced: &Topology, node: Node, ranks: &[Rank], table: &Table) -> Vec<RailCapacity> {
    let mut rails = introduced.rails(node).to_vec();
    for row in ranks.iter().filter_map(|rank| table.row(*rank)) {
        for (rail, seen) in rails.iter_mut().zip(&row.rails) {
            *rail = RailCapacity {
                bytes_per_second: rail.bytes_per_second.min(seen.bytes_per_second),
                up: rail.up && seen.up,
            };
        }
    }
    rails
}

#[cfg(test)]
mod tests {
    use ccl_core::epoch::Row;

    use super::*;

    fn row(rails: &[(f64, bool)]) -> Row {
        let rail = |(bytes_per_second, up): &(f64, bool)| RailCapacity {
            bytes_per_second: *bytes_per_second,
            up: *up,
        };
        Row { version: 1, rails: rails.iter().map(rail).collect() }
    }

    fn planned_for(rows: &[(u32, Row)]) -> (Topology, Vec<Node>) {
        let host = Host { rails: vec![RailCapacity::up(2.0), RailCapacity::up(4.0)], cores: 1 };
        let topology = Topology::new(vec![Node(0), Node(0), Node(1)], vec![host.clone(), host]);
        let mut table = Table::default();
        rows.iter().for_each(|(rank, row)| table.learn(Rank(*rank), row));
        with_health(&topology, &table)
    }

    fn capacities(rows: &[(u32, Row)]) -> Vec<f64> {
        planned_for(rows).0.capacities()
    }

    #[test]
    fn a_host_has_what_all_its_ranks_have() {
        assert_eq!(capacities(&[]), [6.0, 6.0]);
        assert_eq!(capacities(&[(1, row(&[(2.0, false), (4.0, true)]))]), [4.0, 6.0]);
        assert_eq!(capacities(&[(2, row(&[(2.0, true), (1.0, true)]))]), [6.0, 3.0]);
        let one = (0, row(&[(2.0, false), (4.0, true)]));
        assert_eq!(capacities(&[one, (1, row(&[(2.0, true), (3.0, true)]))]), [3.0, 6.0]);
    }

    #[test]
    fn a_host_without_rails_is_planned_for_as_before_and_is_known() {
        let none = || row(&[(2.0, false), (4.0, false)]);
        let (topology, cut_off) = planned_for(&[(2, none())]);
        assert_eq!((topology.capacities(), cut_off), (vec![6.0, 6.0], vec![Node(1)]));
        assert_eq!(planned_for(&[(1, none())]).1, [Node(0)]);
        assert_eq!(planned_for(&[]).1, []);
    }

    #[test]
    fn a_host_whose_ranks_have_lost_different_rails_is_planned_for_as_before_and_works() {
        let half = [[false, true], [true, false]].map(|up| row(&[(2.0, up[0]), (4.0, up[1])]));
        let [one, other] = half;
        let (topology, cut_off) = planned_for(&[(0, one), (1, other)]);
        assert_eq!((topology.capacities(), cut_off), (vec![6.0, 6.0], vec![]));
    }
}
