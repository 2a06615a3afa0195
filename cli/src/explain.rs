//! The answer as a table: one size in detail, or one line for each of several.

use std::fmt::Write as _;

use bytesize::ByteSize;
use ccl_algorithms::{Choice, choose, explain as details, explore};
use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::ids::Rank;

use crate::arguments::Explain;
use crate::cluster::Cluster;
use crate::plot;

/// What was chosen for one size.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) bytes: usize,
    pub(crate) choice: Choice,
    /// What would be chosen if no rail were lost, in seconds.
    healthy_seconds: f64,
}

/// Answers `wish`, and writes the curves if they are asked for.
///
/// # Errors
/// The cluster or the algorithm does not exist, or a file cannot be read or written.
pub(crate) fn explain(wish: &Explain) -> Result<String, String> {
    let cluster = Cluster::of(wish)?;
    let rows: Vec<Row> = wish
        .bytes
        .all()
        .into_iter()
        .map(|bytes| row(wish, &cluster, bytes))
        .collect::<Result<_, _>>()?;
    if let Some(file) = &wish.svg {
        plot::write(file, wish.collective, &rows)?;
    }
    Ok(match rows.as_slice() {
        [one] => format!("{}\n{}", head(wish, &cluster), details(&one.choice)),
        _ => format!("{}\n{}", head(wish, &cluster), table(&rows)),
    })
}

fn row(wish: &Explain, cluster: &Cluster, bytes: usize) -> Result<Row, String> {
    let request = request(wish.collective, bytes, cluster.topology.ranks());
    let forced = wish.algorithm.as_deref();
    let choice = explore(&request, &cluster.topology, &cluster.model, forced)
        .map_err(|error| error.to_string())?;
    let healthy = choose(&request, &cluster.healthy, &cluster.model, None)
        .map_err(|error| error.to_string())?;
    let healthy_seconds = healthy.candidates.first().map_or(0.0, |best| best.estimate.seconds);
    Ok(Row { bytes, choice, healthy_seconds })
}

/// `bytes` in the way of nccl-tests: of the whole collective, not of a block.
fn request(collective: Collective, bytes: usize, ranks: u32) -> Request {
    let datatype = DataType::Float32;
    let blocks = match collective {
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::AllToAllV
        | Collective::Gather
        | Collective::Scatter => ranks as usize,
        Collective::AllReduce
        | Collective::Broadcast
        | Collective::Reduce
        | Collective::Barrier
        | Collective::PointToPoint => 1,
    };
    let count = (bytes / datatype.bytes() / blocks).max(1);
    let reduction = Reduction::Builtin(ReduceOp::Sum);
    Request { collective, count, datatype, reduction, root: Rank(0) }
}

fn head(wish: &Explain, cluster: &Cluster) -> String {
    let topology = &cluster.topology;
    let lost = match wish.lost.len() {
        0 => String::new(),
        1 => ", 1 rail lost".to_owned(),
        count => format!(", {count} rails lost"),
    };
    let capacities = topology.capacities();
    let least = capacities.iter().copied().fold(f64::INFINITY, f64::min);
    let most = capacities.iter().copied().fold(0.0, f64::max);
    format!(
        "{}: {} ranks on {} nodes of {:.1} to {:.1} GB/s{lost}; latency {:.1} µs",
        wish.collective.name(),
        topology.ranks(),
        topology.nodes(),
        least / 1e9,
        most / 1e9,
        cluster.model.network.alpha * 1e6,
    )
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:>10}{:>14}{:>14}{:>10}{:>14}{:>10}  {}\n",
        "size", "predicted µs", "healthy µs", "kept", "bound µs", "of bound", "algorithm"
    );
    for Row { bytes, choice, healthy_seconds } in rows {
        let chosen = choice.candidates.iter().find(|candidate| candidate.name == choice.name);
        let seconds = chosen.map_or(0.0, |chosen| chosen.estimate.seconds);
        let size = ByteSize(*bytes as u64).display().iec_short().to_string();
        let bound = choice.bound_seconds;
        let (bound_text, share) = match bound > 0.0 {
            true => (format!("{:.1}", bound * 1e6), format!("{:.1} %", 100.0 * bound / seconds)),
            false => ("-".to_owned(), "-".to_owned()),
        };
        let _ = writeln!(
            text,
            "{size:>10}{:>14.1}{:>14.1}{:>10}{bound_text:>14}{share:>10}  {}",
            seconds * 1e6,
            healthy_seconds * 1e6,
            format!("{:.1} %", 100.0 * healthy_seconds / seconds),
            choice.name,
        );
    }
    text
}
