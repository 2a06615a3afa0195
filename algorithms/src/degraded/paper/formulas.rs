//! The closed forms of §5.2 and appendix A, as printed and as they must be.
//!
//! `n` hosts with `g` GPUs each form one flat ring of `ng`. One host has lost the fraction `X` of its
//! bandwidth. The fraction `Y` of the data goes through an AllReduce without that host, at the same time
//! as the rest goes through one with it (stage 1), and is then broadcast through it (stage 2). In units of
//! the time that the data needs at the full bandwidth of a host:
//!
//! * `T1 = a (1 - Y) / (1 - X)`, all hosts, with `a = 2(ng - 1) / (ng)`;
//! * `T2 = b Y / X`, the healthy ones beside it, with `b` the same as `a` for `n - 1` hosts;
//! * `T3`, the broadcast; the whole is `max(T1, T2) + T3`.
//!
//! The text of §5.2 writes `T1` with `2(n - 1) / (ng)`, which contradicts its own `T2` and appendix A.
//! `T1 = T2` at [`optimal_share`], and there the paper and this module agree.
//!
//! The paper prints `T3 = Y / X`: as if the healthy hosts had only the bandwidth that the degraded one has
//! lost. But stage 2 comes after stage 1, so they have all of theirs, and the degraded host has `1 - X`:
//! it must send `Y` and receive `Y`, so **`T3 = Y / (1 - X)`**. The printed form makes small faults look
//! worse than they are (hence the threshold below which the paper uses a plain ring, [`threshold`]) and
//! large ones better: from `X = 3/4` on it promises less time than the degraded host needs to send its
//! data once. With the right one the threshold disappears: `T` falls until [`optimal_share`] for every `X`.

/// Retained throughput of one large AllReduce on hosts of which one is degraded, as a fraction of what a
/// flat ring achieves when nothing is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retained {
    /// R²CCL-Balance: a ring at the pace of the degraded host.
    pub balance: f64,
    /// R²CCL-AllReduce if the printed formulas were true: [`printed_share`] with `T3 = Y / X`.
    pub printed: f64,
    /// R²CCL-AllReduce: [`optimal_share`] with `T3 = Y / (1 - X)`.
    pub corrected: f64,
    /// The artefact published with the paper: a ring of all hosts on `1 - X` of the data, and then a
    /// broadcast of the rest (which it does not reduce).
    pub artefact: f64,
    /// The traffic of R²CCL-AllReduce if stage 2 could overlap stage 1 entirely, with the share that is
    /// best then.
    pub pipelined: f64,
}

/// `a = 2(ng - 1) / (ng)`: what every host sends and receives in a flat ring of `hosts` with `gpus` each,
/// in units of the data.
#[must_use]
pub fn ring_volume(hosts: u32, gpus: u32) -> f64 {
    let positions = f64::from(hosts) * f64::from(gpus);
    if positions > 1.0 { 2.0 * (positions - 1.0) / positions } else { 0.0 }
}

/// The fraction `Y` for which both rings of stage 1 take equally long when one host has `lost` the
/// fraction `X`: `aX / (aX + b(1 - X))`, which the paper writes
/// `X + X(1 - X) / (X + (g(n - 1) - 1)n)`. It is 1 for two hosts with one GPU each: no network is needed
/// for what a single host reduces.
#[must_use]
pub fn optimal_share(hosts: u32, gpus: u32, lost: f64) -> f64 {
    if hosts < 2 || lost <= 0.0 {
        return 0.0;
    }
    let everyone = ring_volume(hosts, gpus) * lost.min(1.0);
    let healthy = ring_volume(hosts - 1, gpus) * (1.0 - lost).max(0.0);
    everyone / (everyone + healthy)
}

/// `ng / (3ng - 2)`: appendix A uses the plain ring if at most this fraction is lost. (§5.2 rounds it to
/// one third.)
#[must_use]
pub fn threshold(hosts: u32, gpus: u32) -> f64 {
    1.0 / (1.0 + ring_volume(hosts, gpus))
}

/// The fraction `Y` that the paper chooses: none up to the [`threshold`], then [`optimal_share`].
#[must_use]
pub fn printed_share(hosts: u32, gpus: u32, lost: f64) -> f64 {
    if lost <= threshold(hosts, gpus) { 0.0 } else { optimal_share(hosts, gpus, lost) }
}

/// What is left when one of `hosts` with `gpus` each has `lost` this fraction of its bandwidth. Everything
/// if there is nobody to talk to, or nothing lost; nothing when all of it is.
#[must_use]
pub fn retained(hosts: u32, gpus: u32, lost: f64) -> Retained {
    if hosts < 2 || lost <= 0.0 {
        return Retained::all(1.0);
    }
    if lost >= 1.0 {
        return Retained::all(0.0);
    }
    let left = 1.0 - lost;
    let volume = ring_volume(hosts, gpus);
    let stage_one = |share: f64| volume * (1.0 - share) / left;
    let printed = printed_share(hosts, gpus, lost);
    let optimal = optimal_share(hosts, gpus, lost);
    Retained {
        balance: left,
        printed: volume / (stage_one(printed) + printed / lost),
        corrected: volume / (stage_one(optimal) + optimal / left),
        artefact: volume / (volume + lost / left),
        pipelined: volume / pipelined_time(hosts, gpus, lost),
    }
}

impl Retained {
    fn all(fraction: f64) -> Self {
        Self {
            balance: fraction,
            printed: fraction,
            corrected: fraction,
            artefact: fraction,
            pipelined: fraction,
        }
    }
}

/// The longest time that a host needs for what it sends in both stages, with the best share. The degraded
/// host sends `a(1 - Y) + Y` at `1 - X`, the others `a(1 - Y) + bY + Y`; the share makes both equal, or is
/// everything.
fn pipelined_time(hosts: u32, gpus: u32, lost: f64) -> f64 {
    let everyone = ring_volume(hosts, gpus);
    let healthy = ring_volume(hosts - 1, gpus);
    let left = 1.0 - lost;
    let relief = (everyone - 1.0) + left * (healthy + 1.0 - everyone);
    let share = if relief > everyone * lost { everyone * lost / relief } else { 1.0 };
    (everyone * (1.0 - share) + share) / left
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of the comparison for eight GPUs on each host: the share for two hosts, then percent:
    /// printed, corrected and artefact for two hosts, Balance, printed and corrected for 8 and for 64.
    const ROWS: [(f64, f64, [f64; 8]); 7] = [
        (1.0, 0.1327, [87.5, 93.3, 92.9, 87.5, 87.5, 93.2, 87.5, 93.3]),
        (2.0, 0.2632, [75.0, 85.5, 84.9, 75.0, 75.0, 85.5, 75.0, 85.7]),
        (3.0, 0.3913, [65.3, 76.5, 75.8, 62.5, 66.3, 76.7, 66.6, 76.9]),
        (4.0, 0.5172, [65.9, 65.9, 65.2, 50.0, 66.3, 66.3, 66.6, 66.6]),
        (5.0, 0.6410, [66.5, 53.5, 52.9, 37.5, 66.4, 54.2, 66.6, 54.5]),
        (6.0, 0.7627, [67.0, 38.8, 38.5, 25.0, 66.4, 39.6, 66.6, 40.0]),
        (7.0, 0.8824, [67.6, 21.2, 21.1, 12.5, 66.4, 22.0, 66.6, 22.2]),
    ];

    /// One GPU on each host; percent: printed, corrected and pipelined.
    const HIERARCHICAL: [(u32, f64, [f64; 3]); 18] = [
        (2, 1.0, [87.5, 87.5, 87.5]),
        (2, 2.0, [75.0, 75.0, 75.0]),
        (2, 4.0, [50.0, 50.0, 50.0]),
        (3, 1.0, [87.5, 91.1, 91.7]),
        (3, 2.0, [75.0, 81.2, 83.3]),
        (3, 4.0, [58.3, 58.3, 66.7]),
        (4, 1.0, [87.5, 91.7, 92.2]),
        (4, 2.0, [75.0, 82.5, 84.4]),
        (4, 4.0, [60.7, 60.7, 68.7]),
        (8, 1.0, [87.5, 92.5, 93.0]),
        (8, 2.0, [75.0, 84.2, 85.9]),
        (8, 4.0, [63.8, 63.8, 71.9]),
        (16, 1.0, [87.5, 92.9, 93.4]),
        (16, 2.0, [75.0, 84.9, 86.7]),
        (16, 4.0, [65.3, 65.3, 73.4]),
        (64, 1.0, [87.5, 93.2, 93.7]),
        (64, 2.0, [75.0, 85.5, 87.3]),
        (64, 4.0, [66.3, 66.3, 74.6]),
    ];

    /// Whether `fraction` is printed as `percent`, with one digit after the point.
    fn printed_as(fraction: f64, percent: f64) -> bool {
        (100.0 * fraction - percent).abs() <= 0.05 + 1e-9
    }

    fn matches(computed: &[f64], percent: &[f64]) -> bool {
        computed.iter().zip(percent).all(|(computed, percent)| printed_as(*computed, *percent))
    }

    #[test]
    fn flat_rings_retain_what_the_theory_says() {
        for (eighths, share, percent) in ROWS {
            let lost = eighths / 8.0;
            assert!((optimal_share(2, 8, lost) - share).abs() <= 5e-5, "Y for X = {lost}");
            let [two, eight, many] = [2, 8, 64].map(|hosts| retained(hosts, 8, lost));
            let computed = [
                two.printed,
                two.corrected,
                two.artefact,
                two.balance,
                eight.printed,
                eight.corrected,
                many.printed,
                many.corrected,
            ];
            assert!(matches(&computed, &percent), "X = {lost}: {computed:?}");
        }
    }

    #[test]
    fn groups_of_16_and_32_hosts_are_like_64() {
        for (hosts, (eighths, ..)) in [16, 32].into_iter().flat_map(|n| ROWS.map(|row| (n, row))) {
            let (some, many) = (retained(hosts, 8, eighths / 8.0), retained(64, 8, eighths / 8.0));
            assert!((some.printed - many.printed).abs() < 2e-3, "{some:?}");
            assert!((some.corrected - many.corrected).abs() < 2e-3, "{some:?}");
        }
    }

    #[test]
    fn rings_of_hosts_retain_what_the_theory_says() {
        for (hosts, eighths, percent) in HIERARCHICAL {
            let got = retained(hosts, 1, eighths / 8.0);
            let computed = [got.printed, got.corrected, got.pipelined];
            assert!(matches(&computed, &percent), "{hosts} hosts, {eighths}/8: {computed:?}");
            assert!(printed_as(got.balance, 100.0 - 12.5 * eighths));
        }
    }

    #[test]
    fn thresholds_are_those_of_appendix_a() {
        for (hosts, digits) in [(2, 0.3478), (8, 0.3368), (16, 0.3351), (32, 0.3342), (64, 0.3338)]
        {
            let positions = f64::from(8 * hosts);
            let computed = threshold(hosts, 8);
            assert!((computed - positions / (3.0 * positions - 2.0)).abs() < 1e-12);
            assert!((computed - digits).abs() <= 5e-5, "{hosts} hosts: {computed}");
            assert_eq!(printed_share(hosts, 8, computed), 0.0);
            assert!(printed_share(hosts, 8, computed + 1e-6) > 0.3);
        }
    }

    #[test]
    fn the_paper_writes_the_same_share_differently() {
        for (hosts, gpus) in (2..=64).flat_map(|n| [1, 2, 4, 8].map(|g| (n, g))) {
            for lost in (1..8).map(|eighths| f64::from(eighths) / 8.0) {
                let rest = f64::from((gpus * (hosts - 1) - 1) * hosts);
                let written = lost + lost * (1.0 - lost) / (lost + rest);
                assert!((optimal_share(hosts, gpus, lost) - written).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn the_printed_time_is_impossible_for_large_losses() {
        let time = |hosts, lost| ring_volume(hosts, 8) / retained(hosts, 8, lost).printed;
        let at_least = |lost: f64| 1.0 / (1.0 - lost);
        for hosts in [2, 8, 64] {
            assert!(time(hosts, 0.5) > at_least(0.5));
            assert!([0.75, 0.875].iter().all(|lost| time(hosts, *lost) < at_least(*lost)));
        }
    }

    #[test]
    fn the_ends_are_defined() {
        assert_eq!(retained(1, 8, 0.5), Retained::all(1.0));
        assert_eq!(retained(4, 8, 0.0), Retained::all(1.0));
        assert_eq!(retained(4, 8, 1.0), Retained::all(0.0));
        assert_eq!([0.0, 1.0, 2.0].map(|lost| optimal_share(4, 1, lost)), [0.0, 1.0, 1.0]);
        assert_eq!((optimal_share(2, 1, 0.25), optimal_share(1, 8, 0.5)), (1.0, 0.0));
        assert_eq!([ring_volume(0, 8), ring_volume(1, 1), ring_volume(2, 1)], [0.0, 0.0, 1.0]);
    }
}
