//! How much of an AllReduce each owner reduces, when owners are not equally fast.
//!
//! Owner `i` reduces the fraction `w_i` and gives it back. What it sends (and receives) in all is
//! `1 + (n - 2) w_i` times the data, so with bandwidths `B_i` the shares that load everybody for the
//! same time `t` (in units of data over bandwidth) are `w_i = (t B_i - 1) / (n - 2)`, and none for an
//! owner that needs all its time for its own contribution and its result. This meets the lower bound
//! of [`ccl_core::cost::bound_allreduce`].

/// The shares of owners with these bandwidths; they sum to one. Equal bandwidths give exactly equal
/// shares. Owners without any bandwidth own nothing, unless all are like that.
#[must_use]
pub fn hub_shares(bandwidths: &[f64]) -> Vec<f64> {
    let n = bandwidths.len();
    let equal = bandwidths.iter().all(|bandwidth| *bandwidth == bandwidths[0]);
    if n <= 2 || equal {
        #[allow(clippy::cast_precision_loss, reason = "the size of a group")]
        return vec![1.0 / n as f64; n];
    }
    let time = balanced_time(bandwidths);
    #[allow(clippy::cast_precision_loss, reason = "the size of a group")]
    let hops = (n - 2) as f64;
    bandwidths.iter().map(|bandwidth| ((time * bandwidth - 1.0) / hops).max(0.0)).collect()
}

/// The time at which the shares sum to one: with the `k` fastest as owners that is
/// `(n - 2 + k) / (their total)`, and `k` is the largest for which the slowest of them still gets a
/// share.
fn balanced_time(bandwidths: &[f64]) -> f64 {
    let mut fastest = bandwidths.to_vec();
    fastest.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut total = 0.0;
    let mut time = f64::INFINITY;
    for (owners, bandwidth) in (1u32..).zip(&fastest) {
        total += bandwidth;
        #[allow(clippy::cast_precision_loss, reason = "the size of a group")]
        let candidate = (f64::from(owners) + (fastest.len() - 2) as f64) / total;
        if candidate * bandwidth < 1.0 {
            break;
        }
        time = candidate;
    }
    time
}

/// Every share in `slices` equal parts that lie side by side, as
/// [`Staggered`](crate::combine::Staggered) numbers them.
#[must_use]
pub fn sliced(shares: &[f64], slices: u32) -> Vec<f64> {
    let part = |share: &f64| vec![share / f64::from(slices.max(1)); slices as usize];
    shares.iter().flat_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_degraded_owner_gets_less_and_a_slow_one_nothing() {
        assert_eq!(hub_shares(&[2.0; 4]), [0.25; 4]);
        assert_eq!(hub_shares(&[1.0, 9.0]), [0.5; 2]);
        let mild = hub_shares(&[1.0, 1.0, 1.0, 0.75]);
        assert!(mild[3] > 0.0 && mild[3] < mild[0], "{mild:?}");
        let bad = hub_shares(&[1.0, 1.0, 0.25, 1.0, 0.0, 1.0]);
        assert!([2, 4].iter().all(|slow| bad[*slow] == 0.0), "{bad:?}");
        assert!([0, 1, 3, 5].iter().all(|fast| (bad[*fast] - 0.25).abs() < 1e-12), "{bad:?}");
    }

    #[test]
    fn slices_of_a_share_lie_side_by_side() {
        assert_eq!(sliced(&[0.5, 0.25], 2), [0.25, 0.25, 0.125, 0.125]);
    }

    proptest! {
        #[test]
        fn shares_sum_to_one_and_meet_the_bound(bandwidths in prop::collection::vec(0.1f64..8.0, 3..20)) {
            let shares = hub_shares(&bandwidths);
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            let n = bandwidths.len() as f64;
            let loads = shares.iter().zip(&bandwidths).map(|(w, b)| (1.0 + (n - 2.0) * w) / b);
            let slowest = bandwidths.iter().copied().fold(f64::INFINITY, f64::min);
            let bound = (1.0 / slowest).max(2.0 * (n - 1.0) / bandwidths.iter().sum::<f64>());
            let time = loads.fold(0.0, f64::max);
            prop_assert!((time / bound - 1.0).abs() < 1e-9, "{time} against {bound}");
        }
    }
}
