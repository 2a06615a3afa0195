//! Figures 11 to 14: inference.

use rayon::prelude::*;

use super::{Curve, Part, Plot, Row, Unit};
use crate::cluster::Cluster;
use crate::cluster::montecarlo::Summary;
use crate::presets::server;
use crate::workload::serving::{Load, Reaction, Served, Server};

/// Requests per second at which servers are tried: steps of so much, and how many of them.
const STEP: f64 = 0.1;
const STEPS: u32 = 160;

/// The limits of section 8.3, in seconds: to the first token, and for every other.
const FIRST_TOKEN: f64 = 5.0;
const PER_TOKEN: f64 = 0.4;

/// A server is saturated where 1 of 100 requests waits so many times longer than at an idle one.
const KNEE: f64 = 2.0;

/// Which number is whose.
const CAVEAT: &str = "first: 70B, prefill and decode apart; second: 405B in a pipeline";

/// The step of generation at which a failure is injected in figure 14.
const STEP_OF_FAILURE: u32 = 800;

/// A server at all rates, by reaction.
struct Sweep {
    server: Server,
    cluster: Cluster,
    rates: Vec<f64>,
    served: Vec<Vec<Served>>,
}

impl Sweep {
    fn new(name: &str) -> Result<Self, String> {
        let (server, cluster) = server(name, None)?;
        let rates: Vec<f64> = (1..=STEPS).map(|step| f64::from(step) * STEP).collect();
        let all = |reaction: &Reaction| {
            rates.par_iter().map(|rate| server.serve(&cluster, *rate, 1, *reaction)).collect()
        };
        let served = Reaction::ALL.iter().map(all).collect();
        Ok(Self { server, cluster, rates, served })
    }

    fn of(&self, reaction: Reaction) -> &[Served] {
        &self.served[reaction as usize]
    }

    /// The highest rate up to which all rates are good; zero if none is.
    fn capacity(&self, reaction: Reaction, is_good: impl Fn(&Served) -> bool) -> f64 {
        let good = self.of(reaction).iter().take_while(|served| is_good(served)).count();
        if good == 0 { 0.0 } else { self.rates[good - 1] }
    }

    /// How many times more requests than with another reaction.
    fn gain(&self, over: Reaction, is_good: impl Fn(&Served) -> bool + Copy) -> f64 {
        self.capacity(Reaction::Repair, is_good) / self.capacity(over, is_good)
    }

    /// The shares that a failure in the middle adds to percentiles of the time to the first token, at all rates with
    /// which the limit is kept.
    fn added(&self) -> Vec<f64> {
        let until = self.capacity(Reaction::NoFailure, |served| served.first(99) <= FIRST_TOKEN);
        self.longer(self.of(Reaction::Repair), until)
    }

    /// The same for requests that all come after the failure, at all rates before saturation.
    fn added_when_steady(&self) -> Vec<f64> {
        let idle = self.of(Reaction::NoFailure)[0].first(99);
        let until = self.capacity(Reaction::NoFailure, |served| served.first(99) <= KNEE * idle);
        let mut server = self.server.clone();
        server.load.failure_at = -1.0;
        let serve = |rate: &f64| server.serve(&self.cluster, *rate, 1, Reaction::Repair);
        let served: Vec<Served> = self.rates.par_iter().map(serve).collect();
        self.longer(&served, until)
    }

    /// By which shares percentiles of the time to the first token are longer than without a failure, at all rates up to
    /// `until`.
    fn longer(&self, served: &[Served], until: f64) -> Vec<f64> {
        let pairs = served.iter().zip(self.of(Reaction::NoFailure)).zip(&self.rates);
        let before = pairs.filter(|(_, rate)| **rate <= until);
        let added = before.flat_map(|((repaired, whole), _)| {
            [50, 95, 99].map(|percent| repaired.first(percent) / whole.first(percent) - 1.0)
        });
        added.collect()
    }
}

pub(super) fn part() -> Result<Part, String> {
    let sweeps = [Sweep::new("serve-70b")?, Sweep::new("serve-405b")?];
    let mut rows = Vec::new();
    let each = |of: &dyn Fn(&Sweep) -> f64| sweeps.iter().map(of).collect::<Vec<f64>>();
    rows.extend(first_tokens(&each));
    for percent in [50, 95, 99] {
        let is_good = move |served: &Served| served.first(percent) <= FIRST_TOKEN;
        let kept = each(&|sweep| {
            sweep.capacity(Reaction::Repair, is_good) / sweep.capacity(Reaction::NoFailure, is_good)
        });
        rows.push(Row::new(
            ("11", format!("requests per second with p{percent} of 5 s that are kept")),
            "99 to 100 %",
            &kept,
            (0.97, 1.03),
            Unit::Percent,
            CAVEAT,
        ));
        let restart = each(&|sweep| sweep.gain(Reaction::Restart, is_good));
        rows.push(Row::new(("11", format!("the same (p{percent}), beside a restart of the server")), "1.2 to 8.7 x", &restart, (1.0, f64::INFINITY), Unit::Times, "a restart of 35 s lets 35 of 100 requests wait: p95 and p99 never meet 5 s, and the ratio is that of the grid of rates"));
        let reroute = each(&|sweep| sweep.gain(Reaction::Reroute, is_good));
        let accepted = if percent == 50 { (0.7, 1.7) } else { (1.6, 2.4) };
        rows.push(Row::new(
            ("11", format!("the same (p{percent}), beside requests sent elsewhere")),
            "1.6 to 1.9 x",
            &reroute,
            accepted,
            Unit::Times,
            CAVEAT,
        ));
    }
    let is_steady = |served: &Served| served.token(95) <= PER_TOKEN;
    for (over, paper) in [(Reaction::Restart, "1.9 x"), (Reaction::Reroute, "2.6 x")] {
        let gain = [sweeps[1].gain(over, is_steady)];
        let what = format!(
            "405B: requests per second with 0.4 s for 95 of 100 tokens, beside: {}",
            over.name()
        );
        rows.push(Row::new(
            ("12", what),
            paper,
            &gain,
            (1.0, f64::INFINITY),
            Unit::Times,
            "an order is expected, no value",
        ));
    }
    rows.push(many_lost(&sweeps[1]));
    rows.extend(interrupted()?);
    let plots = sweeps.iter().map(plot).collect();
    Ok((rows, plots))
}

/// What a lost NIC adds to the time to the first token.
fn first_tokens(each: &impl Fn(&dyn Fn(&Sweep) -> f64) -> Vec<f64>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mean = |sweep: &Sweep| Summary::of(&sweep.added()).mean;
    let steady = |sweep: &Sweep| Summary::of(&sweep.added_when_steady()).most;
    let most = |sweep: &Sweep| Summary::of(&sweep.added()).most;
    for (what, readings, caveat) in [
        ("on average over all rates", each(&mean), CAVEAT),
        ("at most, of requests after it and before saturation", each(&steady), CAVEAT),
        (
            "at most, of all requests",
            [each(&most), each(&steady)].concat(),
            "70B: one request was under way and waited for the repair, 3.5 beside 81 ms; 405B: at 2.3 requests per second a moment decides which batch a request is in; then those of the row above",
        ),
    ] {
        rows.push(Row::new(
            ("11", format!("one NIC lost adds to the time to the first token, {what}")),
            "0 to 0.6 %; 0.3 to 3 %",
            &readings,
            (0.0, 0.03),
            Unit::Percent,
            caveat,
        ));
    }
    rows
}

/// Figure 13: more and more NICs of a server lost, at 0.1 requests per second.
fn many_lost(sweep: &Sweep) -> Row {
    let serve = |lost, reaction| sweep.server.serve(&sweep.cluster, 0.1, lost, reaction);
    let whole = serve(0, Reaction::NoFailure);
    let added = |lost: u32| {
        let served = serve(lost, Reaction::Repair);
        let first = served.first(95) / whole.first(95);
        first.max(served.token(95) / whole.token(95)) - 1.0
    };
    let most = (1..sweep.cluster.nics.per_host).map(added).fold(0.0, f64::max);
    let what = "405B: up to seven NICs lost add to TTFT and TPOT, p95, at most";
    Row::new(
        ("13", what),
        "0 to 5 %",
        &[most],
        (0.0, 0.05),
        Unit::Percent,
        "half of the time is before the failure",
    )
}

/// Figure 14: one request, interrupted at step 800.
fn interrupted() -> Result<Vec<Row>, String> {
    let mut recomputed = Vec::new();
    let mut repaired = Vec::new();
    for name in ["serve-opt66b", "serve-bloom176b"] {
        let (mut server, cluster) = server(name, None)?;
        let whole = server.serve(&cluster, 1.0, 0, Reaction::NoFailure);
        let failure_at = whole.first(50) + whole.token(50) * f64::from(STEP_OF_FAILURE - 1);
        // A moment later, so that the step is done.
        let failure_at = failure_at + 0.5 * whole.token(50);
        server.load = Load { failure_at, ..server.load };
        server.restart = f64::MIN_POSITIVE;
        let seconds = |reaction| server.serve(&cluster, 1.0, 1, reaction).whole(50);
        let base = seconds(Reaction::NoFailure);
        recomputed.push(seconds(Reaction::Restart) / base - 1.0);
        repaired.push(seconds(Reaction::Repair) / base - 1.0);
    }
    let caveat =
        "OPT-66B, then BLOOM-176B; the length of a step and of a restart are not in the paper";
    Ok(vec![
        Row::new(
            (
                "14",
                "a request that begins again at step 800 of 1500, without the restart, takes more by",
            ),
            "62 %; 79 %",
            &recomputed,
            (0.523, 0.543),
            Unit::Percent,
            "pure recomputation is 53.3 %: restarts of 8.7 and 25.7 % of a request are implied",
        ),
        Row::new(
            ("14", "the same with this library"),
            "1.58 %; 0.71 %",
            &repaired,
            (0.0, 0.0158),
            Unit::Percent,
            caveat,
        ),
        Row::new(
            ("14", "the paper's overheads: without fault tolerance beside R²CCL"),
            "38.9 x; 113 x",
            &[0.62 / 0.0158, 0.79 / 0.0071],
            (38.0, 114.0),
            Unit::Times,
            "arithmetic with the paper's numbers, nothing is simulated",
        ),
    ])
}

fn plot(sweep: &Sweep) -> Plot {
    let curve = |reaction: Reaction| -> Curve {
        let points = sweep.rates.iter().zip(sweep.of(reaction));
        let points = points.map(|(rate, served)| (*rate, served.first(95).min(4.0 * FIRST_TOKEN)));
        (reaction.name().to_owned(), points.collect())
    };
    Plot {
        title: format!(
            "Figure 11: {}, 95th percentile of the time to the first token (shown up to 20 s)",
            sweep.server.name
        ),
        axes: ("requests per second", "seconds"),
        logarithmic: (false, false),
        curves: Reaction::ALL.map(curve).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::missed;

    #[test]
    fn figures_of_serving_are_as_expected() {
        let (rows, _) = part().unwrap();
        assert!(missed(&rows).is_empty(), "{:?}", missed(&rows));
    }
}
