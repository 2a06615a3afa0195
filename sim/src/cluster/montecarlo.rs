//! Patterns of failures, drawn from a seed.

use ccl_core::ids::{Node, Rail};
use ccl_core::random::Random;

use super::file::{Cluster, Outage};

/// `count` different NICs of a cluster, each equally likely, of which no host loses all. The same seed and number
/// give the same pattern.
///
/// # Errors
/// There are not so many NICs that can fail.
pub fn pattern(
    cluster: &Cluster,
    count: usize,
    seed: u64,
    number: u64,
) -> Result<Vec<Outage>, String> {
    let (hosts, rails) = (cluster.hosts as usize, cluster.nics.per_host as usize);
    let most = hosts * (rails - 1);
    if count > most {
        return Err(format!(
            "{count} failures: {hosts} hosts with {rails} NICs keep one each up to {most}"
        ));
    }
    let mut random = Random::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut left = vec![rails; hosts];
    let mut is_lost = vec![false; hosts * rails];
    let mut outages = Vec::with_capacity(count);
    while outages.len() < count {
        let nic = random.index(hosts * rails);
        let host = nic / rails;
        if is_lost[nic] || left[host] == 1 {
            continue;
        }
        is_lost[nic] = true;
        left[host] -= 1;
        let node = Node(u32::try_from(host).unwrap_or(u32::MAX));
        let rail = Rail(u8::try_from(nic % rails).unwrap_or(u8::MAX));
        outages.push(Outage { at: 0.0, node, rail });
    }
    Ok(outages)
}

/// What is known of many numbers.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Their mean.
    pub mean: f64,
    /// 95 of 100 are not above this.
    pub p95: f64,
    /// The largest.
    pub most: f64,
}

impl Summary {
    /// Of some numbers, at least one.
    #[must_use]
    pub fn of(numbers: &[f64]) -> Self {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
        Self { mean, p95: percentile(&sorted, 95), most: sorted.last().copied().unwrap_or(0.0) }
    }
}

/// The number of a sorted list that `percent` of 100 do not exceed.
#[must_use]
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let place = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(place).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_different_nics_and_come_again() {
        let cluster = Cluster::plain(4, 2, 1e9);
        for number in 0..50 {
            let drawn = pattern(&cluster, 4, 7, number).unwrap();
            let mut hosts: Vec<u32> = drawn.iter().map(|outage| outage.node.0).collect();
            hosts.sort_unstable();
            assert_eq!(hosts, [0, 1, 2, 3], "no host loses both");
            assert_eq!(pattern(&cluster, 4, 7, number).unwrap(), drawn);
        }
        assert_ne!(pattern(&cluster, 2, 7, 0), pattern(&cluster, 2, 8, 0));
        assert!(pattern(&cluster, 5, 7, 0).unwrap_err().contains("up to 4"));
    }

    #[test]
    fn summaries_are_what_they_say() {
        let numbers: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(Summary::of(&numbers), Summary { mean: 50.5, p95: 95.0, most: 100.0 });
        assert_eq!(percentile(&[3.0], 50), 3.0);
    }
}
