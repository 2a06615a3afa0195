//! `ccl-sim flow`: a row per algorithm.

use std::fmt::{Display, Write};

use ccl_algorithms::names;
use ccl_core::collective::{Collective, Request};
use ccl_core::cost::CostModel;
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::ids::{Node, Rail, Rank};
use ccl_core::topology::{Host, RailCapacity, Topology};
use clap::Args;

use super::strategy::Planned;
use super::{HostLoad, Outcome, Physics, run};

/// Every pair of ranks may have a link.
const MOST_RANKS: u32 = 1024;

/// What is simulated.
#[derive(Args, Clone, Debug)]
pub struct FlowArguments {
    /// Hosts.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    hosts: u32,
    /// NICs of every host.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    rails: u8,
    /// Ranks on every host.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    ranks: u32,
    /// NICs that are down, as HOST:RAIL separated by commas.
    #[arg(long, value_parser = lost, value_delimiter = ',')]
    lost: Vec<(u32, u8)>,
    /// Hosts whose NICs are slow, as HOST:SHARE of their rate, separated by commas.
    #[arg(long, value_parser = slow, value_delimiter = ',')]
    slow: Vec<(u32, f64)>,
    /// Bytes that every rank contributes.
    #[arg(long, value_parser = size, default_value = "64M")]
    bytes: usize,
    /// Algorithms of AllReduce, separated by commas; all if none is named.
    #[arg(long, value_delimiter = ',')]
    algo: Vec<String>,
    /// Latency of the network.
    #[arg(long, value_parser = seconds, default_value = "5us")]
    alpha: f64,
    /// For how long a processor is busy with a tile, at either end.
    #[arg(long, value_parser = seconds, default_value = "500ns")]
    overhead: f64,
    /// What a NIC carries in each direction.
    #[arg(long, value_parser = rate, default_value = "25GB/s")]
    rate: f64,
    /// What a processor copies for another rank of its host; nothing takes no time if it is missing.
    #[arg(long, value_parser = rate)]
    local: Option<f64>,
    /// Payload of a tile between hosts.
    #[arg(long, value_parser = size)]
    tile: Option<usize>,
    /// Tiles on the way between two ranks of different hosts; as many as those of the library if it is missing.
    #[arg(long)]
    slots: Option<usize>,
    /// Let all links of a rank begin with the same rail.
    #[arg(long)]
    same_rail: bool,
    /// Tells what went through every NIC, and what the hosts waited for.
    #[arg(long)]
    nics: bool,
}

impl FlowArguments {
    fn physics(&self) -> Physics {
        let usual = Physics::of(usize::from(self.rails), self.ranks as usize);
        Physics {
            alpha: self.alpha,
            overhead: self.overhead,
            tile_bytes: self.tile.unwrap_or(usual.tile_bytes),
            slots: self.slots.unwrap_or(usual.slots),
            local_bytes_per_second: self.local.unwrap_or(usual.local_bytes_per_second),
            spread_rails: !self.same_rail,
            ..usual
        }
    }

    fn request(&self) -> Request {
        Request {
            collective: Collective::AllReduce,
            count: self.bytes / DataType::Float32.bytes(),
            datatype: DataType::Float32,
            reduction: Reduction::Builtin(ReduceOp::Sum),
            root: Rank(0),
        }
    }

    /// The hosts with all their NICs.
    fn healthy(&self) -> Topology {
        self.cluster(|_| 1.0)
    }

    /// The hosts with all their NICs, at these shares of their rate.
    fn cluster(&self, share: impl Fn(u32) -> f64) -> Topology {
        let node_of = (0..self.hosts).flat_map(|host| (0..self.ranks).map(move |_| Node(host)));
        let host = |host| {
            let rail = RailCapacity::up(self.rate * share(host));
            Host { rails: vec![rail; usize::from(self.rails)], cores: self.ranks }
        };
        Topology::new(node_of.collect(), (0..self.hosts).map(host).collect())
    }

    /// The hosts with the NICs that are left.
    fn degraded(&self) -> Result<Topology, String> {
        if self.hosts * self.ranks > MOST_RANKS {
            let (hosts, ranks) = (self.hosts, self.ranks);
            return Err(format!(
                "{hosts} hosts with {ranks} ranks: let there be {MOST_RANKS} ranks at most"
            ));
        }
        if let Some((host, _)) = self.slow.iter().find(|(host, _)| *host >= self.hosts) {
            return Err(format!("there is no host {host}"));
        }
        let slow = |host| self.slow.iter().rev().find(|(slow, _)| *slow == host);
        let share = |host| slow(host).map_or(1.0, |(_, share)| *share);
        let strange = |(host, rail): &&(u32, u8)| *host >= self.hosts || *rail >= self.rails;
        if let Some((host, rail)) = self.lost.iter().find(strange) {
            return Err(format!("there is no NIC {host}:{rail}"));
        }
        let lose = |topology: Topology, &(host, rail): &(u32, u8)| {
            topology.with_rail(Node(host), Rail(rail), false)
        };
        Ok(self.lost.iter().fold(self.cluster(share), lose))
    }
}

/// A row per algorithm: its time, the bandwidth of the bus, and how near it is to what it does on a healthy
/// network (where it applies to one), to a ring on a healthy network, and to the lower bound. If no algorithm is named,
/// those that cannot work here are left out, and the table ends with the reasons.
///
/// # Errors
/// What is impossible about the arguments.
pub fn table(arguments: &FlowArguments) -> Result<String, String> {
    let degraded = arguments.degraded()?;
    let known = names(Collective::AllReduce);
    let asked = arguments.algo.iter().map(String::as_str);
    let all: Vec<&str> = if arguments.algo.is_empty() { known.to_vec() } else { asked.collect() };
    let mut table = format!(
        "{:32}{:>12}{:>10}{:>12}{:>10}{:>10}\n",
        "algorithm", "us", "busbw", "of healthy", "of ring", "of bound"
    );
    let mut left_out = String::new();
    for name in &all {
        let outcome = match one(name, arguments, &degraded) {
            Err(why) if arguments.algo.is_empty() => {
                let _ = writeln!(left_out, "left out: {why}");
                continue;
            }
            outcome => outcome?,
        };
        let healthy = one(name, arguments, &arguments.healthy()).ok();
        row(&mut table, name, arguments, &outcome, healthy.map(|healthy| healthy.seconds));
        if arguments.nics {
            outcome.hosts.iter().enumerate().for_each(|(host, load)| nics(&mut table, host, load));
        }
    }
    if left_out.lines().count() == all.len() {
        return Err(left_out);
    }
    Ok(table + &left_out)
}

fn one(name: &str, arguments: &FlowArguments, topology: &Topology) -> Result<Outcome, String> {
    let request = arguments.request();
    let physics = arguments.physics();
    let mut model = CostModel::default_for(topology);
    (model.network.alpha, model.network.overhead) = (physics.alpha, physics.overhead);
    model.tile_bytes = physics.tile_bytes;
    let said = |why: &dyn Display| format!("{name}: {why}");
    let planned = Planned::named(name, &request, topology, &model).map_err(|why| said(&why))?;
    run(&planned.job(&request, topology), &physics).map_err(|why| said(&why))
}

fn row(
    table: &mut String,
    name: &str,
    arguments: &FlowArguments,
    outcome: &Outcome,
    healthy_seconds: Option<f64>,
) {
    let seconds = outcome.seconds;
    let shared = |members: u32| 2.0 * f64::from(members - 1) / f64::from(members);
    let volume = arguments.bytes as f64;
    let moved = shared(arguments.hosts * arguments.ranks) * volume / 1e9;
    let busbw = if seconds > 0.0 { moved / seconds } else { 0.0 };
    let ring = shared(arguments.hosts) * volume / (f64::from(arguments.rails) * arguments.rate);
    let percent = |of: f64| match seconds > 0.0 {
        true => format!("{:.1}%", 100.0 * of / seconds),
        false => "-".to_owned(),
    };
    let _ = writeln!(
        table,
        "{name:32}{:12.1}{busbw:10.2}{:>12}{:>10}{:>10}",
        seconds * 1e6,
        healthy_seconds.map_or_else(|| "-".to_owned(), percent),
        percent(ring),
        percent(outcome.bound_seconds)
    );
}

fn nics(table: &mut String, host: usize, load: &HostLoad) {
    let percent = |of: fn(&super::NicLoad) -> f64| -> String {
        let shares = load.nics.iter().map(|nic| format!("{:4.0}", 100.0 * of(nic)));
        shares.collect()
    };
    let [credit, data, over] =
        [load.idle.for_credit, load.idle.for_data, load.idle.nothing_left].map(|s| s * 1e6);
    let _ = writeln!(
        table,
        "  host {host:3}  out %{}  in %{}  us idle: {credit:.1} for credit, {data:.1} for data, {over:.1} at the end",
        percent(|nic| nic.sending),
        percent(|nic| nic.receiving),
    );
}

/// `HOST:RAIL`.
pub(crate) fn lost(text: &str) -> Result<(u32, u8), String> {
    let parse = || {
        let (host, rail) = text.split_once(':')?;
        Some((host.parse().ok()?, rail.parse().ok()?))
    };
    parse().ok_or_else(|| format!("{text:?} is not HOST:RAIL"))
}

/// `HOST:SHARE`.
fn slow(text: &str) -> Result<(u32, f64), String> {
    let parse = || {
        let (host, share) = text.split_once(':')?;
        Some((host.parse().ok()?, share.parse().ok()?))
    };
    let is_share = |(_, share): &(u32, f64)| *share > 0.0 && *share <= 1.0;
    parse().filter(is_share).ok_or_else(|| format!("{text:?} is not HOST:SHARE"))
}

/// A whole number and at most one of `K`, `M`, `G`, powers of 1024.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("allowed: a whole number, optionally with K, M or G".to_owned()),
    };
    let number: usize = number.parse().map_err(|_| "allowed: a whole number".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "the size is too large".to_owned())
}

/// `25GB/s`: powers of 1000 per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let wrong = || format!("{text:?} is not a rate such as 25GB/s");
    let amount = text.strip_suffix("/s").unwrap_or(text);
    let digits = amount.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match amount[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return Err(wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    (number > 0.0 && number.is_finite()).then_some(number * factor).ok_or_else(wrong)
}

/// `20us`.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    Ok(duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flow: FlowArguments,
    }

    fn table_of(line: &str) -> Result<String, String> {
        let words = std::iter::once("flow").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        table(&line.flow)
    }

    #[test]
    fn a_row_tells_how_far_from_the_bound() {
        let line = "--hosts 4 --rails 2 --rate 1GB/s --lost 1:0 --bytes 64M --alpha 0s \
                    --overhead 0s --tile 64K --algo one_way_ring --nics";
        let table = table_of(line).unwrap();
        let row = table.lines().nth(1).unwrap();
        assert!(row.starts_with("one_way_ring "), "{table}");
        let shares: Vec<f64> = row.split_whitespace().skip(3).map(share).collect();
        for (share, expected) in shares.into_iter().zip([50.0, 50.0, 66.7]) {
            assert!((share - expected).abs() < 0.7, "{table}");
        }
        assert_eq!(table.lines().count(), 6, "a line for every host: {table}");
    }

    fn share(text: &str) -> f64 {
        text.trim_end_matches('%').parse().unwrap()
    }

    #[test]
    fn what_is_impossible_is_said() {
        let halves = format!("{HALVES} --algo balance");
        for (line, part) in [
            ("--lost 8:0", "no NIC 8:0"),
            ("--lost 3", "HOST:RAIL"),
            ("--algo sorcery", "sorcery"),
            ("--hosts 2 --rails 1 --lost 0:0 --algo ring", "no rail works"),
            ("--slots 0 --algo ring", "slots"),
            ("--slots 1000000000 --algo ring", "slots"),
            ("--hosts 1024 --ranks 256", "1024 ranks at most"),
            ("--rate 1B/s --algo ring", "ring: it may take more than 12 days"),
            ("--hosts 3 --rails 2 --lost 1:0,1:1 --algo two_shot", "no rail works"),
            ("--slow 0:1.5", "HOST:SHARE"),
            ("--hosts 3 --rails 2 --lost 0:0,1:1 --algo ring", "ring was asked for, and needs"),
            (halves.as_str(), "balance was asked for, and cannot be planned"),
        ] {
            let error = table_of(line).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    /// Two hosts that have no rail in common, and two that reach both.
    const HALVES: &str = "--hosts 4 --bytes 1M --lost 0:0,0:1,0:2,0:3,1:4,1:5,1:6,1:7";

    #[test]
    fn rows_are_of_the_algorithms_that_they_name() {
        let table = table_of(HALVES).unwrap();
        let names = names(Collective::AllReduce);
        assert_eq!(table.lines().count(), 1 + names.len(), "{table}");
        let (left_out, rows): (Vec<&str>, Vec<&str>) =
            table.lines().skip(1).partition(|line| line.starts_with("left out: "));
        assert!(rows.iter().any(|row| row.starts_with("hub_shares ")), "{table}");
        assert!(rows.iter().all(|row| !row.starts_with("balance ")), "{table}");
        assert!(left_out.iter().any(|line| line.starts_with("left out: balance: ")), "{table}");
    }

    #[test]
    fn nothing_to_do_takes_no_time() {
        for line in ["--hosts 1 --algo ring", "--hosts 1 --ranks 4", "--hosts 3 --bytes 0"] {
            let table = table_of(line).unwrap();
            assert!(table.lines().skip(1).all(|row| row.contains(" 0.0 ")), "{line}: {table}");
        }
    }

    #[test]
    fn units_are_those_of_the_other_tools() {
        assert_eq!((size("64M"), size("2GiB"), size("17")), (Ok(64 << 20), Ok(2 << 30), Ok(17)));
        assert_eq!((rate("25GB/s"), rate("2.5GB/s"), rate("7")), (Ok(25e9), Ok(2.5e9), Ok(7.0)));
        assert_eq!((seconds("20us"), seconds("500ns")), (Ok(20e-6), Ok(0.5e-6)));
        assert!(size("M").is_err() && rate("-1GB/s").is_err() && rate("fast").is_err());
    }
}
