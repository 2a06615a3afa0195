//! `r2ccl-sim serve`: how requests fare before and after a failure.

use clap::Args;
use serde::Serialize;

use super::table::{Table, duration, json};
use crate::presets::{check_is_whole, server};
use crate::workload::Reaction;

/// All that come are known from the beginning.
const MOST_REQUESTS: f64 = 1e6;

/// What is simulated.
#[derive(Args, Clone, Debug)]
pub(super) struct Serve {
    /// A server: a file, or a preset.
    #[arg(default_value = "serve-405b")]
    server: String,
    /// A cluster instead of that of the server: a file, or a preset.
    #[arg(long)]
    cluster: Option<String>,
    /// Requests per second, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = rate, default_value = "0.5,1,2,3,4")]
    rates: Vec<f64>,
    /// NICs of a host that fail.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    lost: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A rate and a reaction. In seconds: to the first token, and for every other.
#[derive(Clone, Debug, Serialize)]
struct Row {
    requests_per_second: f64,
    reaction: &'static str,
    first_token_p50: f64,
    first_token_p95: f64,
    first_token_p99: f64,
    per_token_p50: f64,
    per_token_p95: f64,
}

impl Serve {
    pub(super) fn run(&self) -> Result<String, String> {
        let (server, cluster) = server(&self.server, self.cluster.as_deref())?;
        check_is_whole(&cluster)?;
        if self.lost >= cluster.nics.per_host {
            let most = cluster.nics.per_host - 1;
            return Err(format!(
                "--lost {}: more failures than rails; let at most {most} fail",
                self.lost
            ));
        }
        let seconds = server.load.seconds;
        if let Some(rate) = self.rates.iter().find(|rate| **rate * seconds > MOST_REQUESTS) {
            return Err(format!(
                "{rate} requests per second for {seconds} s: let there be {MOST_REQUESTS} at most"
            ));
        }
        let row = |rate: f64, reaction: Reaction| {
            let served = server.serve(&cluster, rate, self.lost, reaction);
            Row {
                requests_per_second: rate,
                reaction: reaction.name(),
                first_token_p50: served.first(50),
                first_token_p95: served.first(95),
                first_token_p99: served.first(99),
                per_token_p50: served.token(50),
                per_token_p95: served.token(95),
            }
        };
        let rates = self.rates.iter();
        let rows: Vec<Row> = rates.flat_map(|rate| Reaction::ALL.map(|r| row(*rate, r))).collect();
        if self.json {
            return json(&rows);
        }
        Ok(table(&rows))
    }
}

fn table(rows: &[Row]) -> String {
    let heads = ["requests/s, reaction", "TTFT p50", "p95", "p99", "TPOT p50", "p95"];
    let mut table = Table::new(heads);
    for row in rows {
        let name = format!("{:.2} {}", row.requests_per_second, row.reaction);
        let times = [
            row.first_token_p50,
            row.first_token_p95,
            row.first_token_p99,
            row.per_token_p50,
            row.per_token_p95,
        ];
        table.row([name].into_iter().chain(times.map(duration)));
    }
    table.text()
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|rate| (1e-3..=1e4).contains(rate));
    number.ok_or_else(|| format!("{text:?} is not a rate from 0.001 to 10000"))
}
