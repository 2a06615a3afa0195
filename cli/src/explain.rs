//! The answer as a table: one size in detail, or one line for each of several.

use std::fmt::Write as _;

use bytesize::ByteSize;
use ccl_algorithms::{Choice, choose, explain as details, explore};
use ccl_core::collective::{Collective, Request};
use ccl_core::datatype::{DataType, ReduceOp, Reduction};
use ccl_core::ids::{Node, Rank};

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
    // A barrier moves the same, whatever size is asked for.
    let sizes = if wish.collective == Collective::Barrier {
        vec![Request::BARRIER.bytes()]
    } else {
        wish.bytes.all()
    };
    let rows: Vec<Row> =
        sizes.into_iter().map(|bytes| row(wish, &cluster, bytes)).collect::<Result<_, _>>()?;
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
    if collective == Collective::Barrier {
        return Request::BARRIER;
    }
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
    let line = format!(
        "{}: {} ranks on {} nodes of {:.1} to {:.1} GB/s{lost}; latency {:.1} µs",
        wish.collective.name(),
        topology.ranks(),
        topology.nodes(),
        least / 1e9,
        most / 1e9,
        cluster.model.network.alpha * 1e6,
    );
    [line].into_iter().chain(processors(wish, cluster, most)).collect::<Vec<_>>().join("\n")
}

/// Says so where the processors of a node do not keep up with `carried` bytes per second, which its rails carry.
fn processors(wish: &Explain, cluster: &Cluster, carried: f64) -> Option<String> {
    let Cluster { topology, model, .. } = cluster;
    let ranks = (0..topology.nodes()).map(|node| topology.ranks_of(Node(node)).len()).max()?;
    #[allow(clippy::cast_precision_loss, reason = "few ranks")]
    let rate = |core: f64| core * ranks as f64;
    let copied = rate(model.copy.memory);
    let reduced = wish.collective.reduces().then(|| rate(model.reduce.memory));
    let is_slow = topology.nodes() > 1 && reduced.map_or(copied, |rate| rate.min(copied)) < carried;
    is_slow.then(|| {
        let reduced = reduced.map(|rate| format!(" and reduce {:.1} GB/s", rate / 1e9));
        let reduced = reduced.unwrap_or_default();
        // A file of measurements is of processors.
        let hint = if wish.tuning.is_none() { "; --preset has clusters of GPUs" } else { "" };
        format!("bound by processors: those of a node copy {:.1} GB/s{reduced}{hint}", copied / 1e9)
    })
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
            true => (format!("{:.1}", bound * 1e6), percent(bound, seconds)),
            false => ("-".to_owned(), "-".to_owned()),
        };
        let _ = writeln!(
            text,
            "{size:>10}{:>14.1}{:>14.1}{:>10}{bound_text:>14}{share:>10}  {}",
            seconds * 1e6,
            healthy_seconds * 1e6,
            percent(*healthy_seconds, seconds),
            choice.name,
        );
    }
    text
}

/// Nothing moves in no time, and where no plan is possible it takes for ever: that is no part of anything.
fn percent(part: f64, whole: f64) -> String {
    match whole > 0.0 && whole.is_finite() {
        true => format!("{:.1} %", 100.0 * part / whole),
        false => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::cost::CostModel;
    use ccl_core::settings::Settings;
    use ccl_core::tuning::{TunedHost, Tuning};
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn wish(line: &str) -> Explain {
        let words = ["r2ccl", "explain"].into_iter().chain(line.split(' '));
        let parsed = Arguments::try_parse_from(words).expect("a good line");
        let Command::Explain(wish) = parsed.command else { panic!("not explain: {parsed:?}") };
        wish
    }

    #[test]
    fn a_barrier_is_that_of_the_library_whatever_size_is_asked_for() {
        let texts = ["64K..4G", "1", "4G"]
            .map(|bytes| explain(&wish(&format!("barrier --nodes 4 --bytes {bytes}"))).unwrap());
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
        let Cluster { topology, model, .. } = Cluster::of(&wish("barrier --nodes 4")).unwrap();
        let barrier = choose(&Request::BARRIER, &topology, &model, None).unwrap();
        assert!(texts[0].contains(&barrier.reason), "{}", texts[0]);
    }

    #[test]
    fn tiles_inside_a_host_are_those_of_the_library() {
        for ranks in [2, 8, 16] {
            let line = format!("allreduce --nodes 2 --ranks-per-node {ranks}");
            let cluster = Cluster::of(&wish(&line)).unwrap();
            let settings = Settings::default();
            let tiles = (cluster.model.tile_bytes, cluster.model.network_tile_bytes);
            assert_eq!(tiles, (settings.pair_tile_bytes(ranks), settings.net_tile_bytes));
        }
        let cluster = Cluster::of(&wish("allreduce --nodes 2 --ranks-per-node 2")).unwrap();
        assert_ne!(cluster.model.tile_bytes, CostModel::default_for(&cluster.topology).tile_bytes);
    }

    #[test]
    fn processors_that_do_not_keep_up_are_told() {
        let text = explain(&wish("allreduce --rails 8")).unwrap();
        assert!(text.contains("copy 12.0 GB/s and reduce 9.0 GB/s; --preset"), "{text}");
        let text = explain(&wish("allgather --rails 8")).unwrap();
        assert!(text.contains("copy 12.0 GB/s; --preset"), "{text}");
        for enough in [
            "allreduce --rails 2",
            "allreduce --preset nccl-hopper",
            "allgather --rails 3",
            "barrier --nodes 1",
        ] {
            let text = explain(&wish(enough)).unwrap();
            assert!(!text.contains("bound by processors"), "{enough}: {text}");
        }
    }

    #[test]
    fn measured_processors_are_not_told_of_presets() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning");
        let hosts = vec![TunedHost { ranks: 1, rails: vec![3e9; 8] }; 2];
        std::fs::write(&file, serde_json::to_vec(&Tuning::new(hosts, 2e-5, 4e-6)).unwrap())
            .unwrap();
        let text = explain(&wish(&format!("allreduce --tuning {}", file.display()))).unwrap();
        assert!(text.contains("reduce 9.0 GB/s\n") && !text.contains("--preset"), "{text}");
    }

    #[test]
    fn a_lost_rail_that_is_not_there_names_those_that_are() {
        for (lost, words) in [("8:0", "nodes are 0 to 7"), ("3:2", "rails of node 3 are 0 to 1")] {
            let line = format!("allreduce --nodes 8 --rails 2 --lost {lost}");
            let refused = explain(&wish(&line)).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn where_nothing_moves_no_part_of_it_is_told() {
        let text = explain(&wish("allreduce --nodes 1")).unwrap();
        assert!(!text.contains("NaN") && text.contains("  -  "), "{text}");
    }

    #[test]
    fn hosts_that_no_plan_joins_are_told() {
        let text = explain(&wish("allreduce --nodes 2 --rails 2 --lost 0:0,1:1")).unwrap();
        assert!(!text.contains("NaN") && text.contains("inf"), "{text}");
        let text =
            explain(&wish("allreduce --nodes 2 --rails 2 --lost 0:0,1:1 --bytes 4")).unwrap();
        assert!(text.contains("a rail between hosts that have none in common"), "{text}");
    }

    #[test]
    fn measurements_in_another_format_are_refused_by_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tuning");
        std::fs::write(&file, r#"{"version": 2, "machines": []}"#).unwrap();
        let refused = explain(&wish(&format!("allreduce --tuning {}", file.display())));
        assert!(refused.unwrap_err().contains("it has format 2, and this is format 1"));
    }
}
