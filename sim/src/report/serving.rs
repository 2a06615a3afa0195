//! Figures 11 to 14: inference.

use rayon::prelude::*;

use super::{Basis, Curve, Part, Plot, Row, Unit};
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

/// The step of generation at which a failure is injected in figure 14.
const STEP_OF_FAILURE: u32 = 800;

/// A server at all rates, by reaction.
struct Sweep {
    /// What it is called in rows.
    name: &'static str,
    /// What a lost NIC adds to the time to the first token, as the paper says.
    first_token_paper: &'static str,
    server: Server,
    cluster: Cluster,
    rates: Vec<f64>,
    served: Vec<Vec<Served>>,
}

impl Sweep {
    fn new(
        preset: &str,
        name: &'static str,
        first_token_paper: &'static str,
    ) -> Result<Self, String> {
        let (server, cluster) = server(preset, None)?;
        let rates: Vec<f64> = (1..=STEPS).map(|step| f64::from(step) * STEP).collect();
        let all = |reaction: &Reaction| {
            rates.par_iter().map(|rate| server.serve(&cluster, *rate, 1, *reaction)).collect()
        };
        let served = Reaction::ALL.iter().map(all).collect();
        Ok(Self { name, first_token_paper, server, cluster, rates, served })
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
    let sweeps = [
        Sweep::new("serve-70b", "70B, prefill and decode apart", "0 to 0.6 %")?,
        Sweep::new("serve-405b", "405B in a pipeline", "0.3 to 3 %")?,
    ];
    let mut rows: Vec<Row> = sweeps.iter().flat_map(first_tokens).collect();
    rows.extend(sweeps.iter().flat_map(rates));
    rows.extend(steady_rates(&sweeps[1]));
    rows.push(many_lost(&sweeps[1]));
    rows.extend(interrupted()?);
    let plots = sweeps.iter().map(plot).collect();
    Ok((rows, plots))
}

/// Figure 11: what a lost NIC adds to the time to the first token.
fn first_tokens(sweep: &Sweep) -> [Row; 3] {
    let added = Summary::of(&sweep.added());
    let steady = Summary::of(&sweep.added_when_steady());
    let row = |what: &str, value, caveat| {
        let what = format!("{}: one NIC lost adds to TTFT, {what}", sweep.name);
        let readings = [value];
        Row::new(
            ("11", what),
            sweep.first_token_paper,
            &readings,
            (0.0, 0.03),
            Unit::Percent,
            caveat,
        )
    };
    [
        row("on average over all rates", added.mean, ""),
        row("at most", added.most, "near saturation a moment decides which batch a request is in"),
        row(
            "at most, of requests after it and before saturation",
            steady.most,
            "another quantity, looked for when the row above was missed",
        )
        .with(Basis::Afterwards),
    ]
}

/// Figure 11: requests per second with which a limit is kept.
fn rates(sweep: &Sweep) -> Vec<Row> {
    let mut rows = Vec::new();
    for percent in [50, 95, 99] {
        let is_good = move |served: &Served| served.first(percent) <= FIRST_TOKEN;
        let mut row = |what: &str, paper, value: f64, accepted, unit, caveat| {
            let what =
                format!("{}: requests per second with p{percent} of 5 s, {what}", sweep.name);
            rows.push(Row::new(("11", what), paper, &[value], accepted, unit, caveat));
        };
        let kept = sweep.gain(Reaction::NoFailure, is_good);
        row("that are kept", "99 to 100 %", kept, (0.97, 1.03), Unit::Percent, "");
        let restart = sweep.gain(Reaction::Restart, is_good);
        row(
            "beside a restart of the server",
            "1.2 to 8.7 x",
            restart,
            (1.0, f64::INFINITY),
            Unit::Times,
            "a restart of 35 s lets 35 of 100 requests wait: p95 and p99 never meet 5 s, and the ratio is that of the \
             grid of rates",
        );
        let reroute = sweep.gain(Reaction::Reroute, is_good);
        let accepted = if percent == 50 { (0.7, 1.7) } else { (1.6, 2.4) };
        row("beside requests sent elsewhere", "1.6 to 1.9 x", reroute, accepted, Unit::Times, "");
    }
    rows
}

/// Figure 12: requests per second with which tokens come fast enough.
fn steady_rates(sweep: &Sweep) -> [Row; 2] {
    let is_steady = |served: &Served| served.token(95) <= PER_TOKEN;
    [(Reaction::Restart, "1.9 x"), (Reaction::Reroute, "2.6 x")].map(|(over, paper)| {
        Row::new(
            (
                "12",
                format!(
                    "405B: requests per second with 0.4 s for 95 of 100 tokens, beside: {}",
                    over.name()
                ),
            ),
            paper,
            &[sweep.gain(over, is_steady)],
            (1.0, f64::INFINITY),
            Unit::Times,
            "an order is expected, no value",
        )
    })
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
    let models = [
        ("serve-opt66b", "OPT-66B", ["62 %", "1.58 %", "38.9 x"], [0.62, 0.0158]),
        ("serve-bloom176b", "BLOOM-176B", ["79 %", "0.71 %", "113 x"], [0.79, 0.0071]),
    ];
    let mut rows = Vec::new();
    for (preset, name, paper, [restarted, repaired]) in models {
        let (again, mended) = one_interrupted(preset)?;
        let mut row = |what: &str, paper, value: f64, accepted, unit, caveat| {
            let row = Row::new(
                ("14", format!("{name}: {what}")),
                paper,
                &[value],
                accepted,
                unit,
                caveat,
            );
            rows.push(row);
        };
        row(
            "a request that begins again at step 800 of 1500, without the restart, takes more by",
            paper[0],
            again,
            (0.523, 0.543),
            Unit::Percent,
            "pure recomputation is 53.3 %: restarts of 8.7 (OPT) and 25.7 % (BLOOM) of a request are implied",
        );
        row(
            "the same with this library",
            paper[1],
            mended,
            (0.0, 0.0158),
            Unit::Percent,
            "the length of a step is not in the paper",
        );
        rows.push(
            Row::new(
                (
                    "14",
                    format!(
                        "{name}: the paper's overhead without fault tolerance beside that of R²CCL"
                    ),
                ),
                paper[2],
                &[restarted / repaired],
                (38.0, 114.0),
                Unit::Times,
                "of its two percentages",
            )
            .with(Basis::Arithmetic),
        );
    }
    Ok(rows)
}

/// By which shares a request of a server takes longer that is computed anew from step 800 on, and with this library.
fn one_interrupted(preset: &str) -> Result<(f64, f64), String> {
    let (mut server, cluster) = server(preset, None)?;
    let whole = server.serve(&cluster, 1.0, 0, Reaction::NoFailure);
    let failure_at = whole.first(50) + whole.token(50) * f64::from(STEP_OF_FAILURE - 1);
    // A moment later, so that the step is done.
    let failure_at = failure_at + 0.5 * whole.token(50);
    server.load = Load { failure_at, ..server.load };
    server.restart = f64::MIN_POSITIVE;
    let seconds = |reaction| server.serve(&cluster, 1.0, 1, reaction).whole(50);
    let base = seconds(Reaction::NoFailure);
    Ok((seconds(Reaction::Restart) / base - 1.0, seconds(Reaction::Repair) / base - 1.0))
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
    use crate::report::tally;
    use crate::report::tests::missed;

    #[test]
    fn figures_of_serving_are_as_expected() {
        let (rows, _) = part().unwrap();
        let expected = [
            "405B in a pipeline: one NIC lost adds to TTFT, at most",
            "405B in a pipeline: requests per second with p50 of 5 s, beside requests sent elsewhere",
            "405B in a pipeline: requests per second with p99 of 5 s, beside requests sent elsewhere",
        ];
        assert_eq!(missed(&rows), expected);
        let expected =
            "29 rows: 26 within, 0 in range, 3 missed; not counted: 2 not set before, 2 arithmetic";
        assert_eq!(tally(&rows), expected);
    }
}
