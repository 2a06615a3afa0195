//! Clusters and jobs that a user names: files, and those that come with the program.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ccl_core::ids::{Node, Rail};

use crate::cluster::{Cluster, Outage};
use crate::workload::{Server, Training};

/// The files that come with the program, by name.
pub(crate) const PRESETS: [(&str, &str); 11] = [
    ("a100", include_str!("../presets/a100.toml")),
    ("h100", include_str!("../presets/h100.toml")),
    ("train-2.7b", include_str!("../presets/train-2.7b.toml")),
    ("train-7b", include_str!("../presets/train-7b.toml")),
    ("train-13b", include_str!("../presets/train-13b.toml")),
    ("train-175b", include_str!("../presets/train-175b.toml")),
    ("train-rlhf", include_str!("../presets/train-rlhf.toml")),
    ("serve-70b", include_str!("../presets/serve-70b.toml")),
    ("serve-405b", include_str!("../presets/serve-405b.toml")),
    ("serve-opt66b", include_str!("../presets/serve-opt66b.toml")),
    ("serve-bloom176b", include_str!("../presets/serve-bloom176b.toml")),
];

/// A file that comes with the program, or one of the user: how it is called in messages, and its text.
fn file(name: &str) -> Result<(String, String), String> {
    if let Some((_, text)) = PRESETS.iter().find(|(preset, _)| *preset == name) {
        return Ok((format!("{name}.toml"), (*text).to_owned()));
    }
    let text = std::fs::read_to_string(Path::new(name)).map_err(|cause| {
        let presets = PRESETS.map(|(preset, _)| preset).join(", ");
        format!("{name}: {cause}; name a file, or one of {presets}")
    })?;
    Ok((name.to_owned(), text))
}

/// A cluster.
pub(crate) fn cluster(name: &str) -> Result<Cluster, String> {
    let (file, text) = file(name)?;
    Cluster::parse(&file, &text).map_err(|wrong| wrong.to_string())
}

/// A training job in all its variants, on its cluster or on another one.
pub(crate) fn training(
    name: &str,
    other: Option<&str>,
) -> Result<(Vec<Training>, Cluster), String> {
    let (file, text) = file(name)?;
    let wanted = Training::cluster_of(&file, &text).map_err(|wrong| wrong.to_string())?;
    let mut cluster = cluster(other.unwrap_or(&wanted))?;
    let variants =
        Training::parse(&file, &text, cluster.gpus).map_err(|wrong| wrong.to_string())?;
    if other.is_none() {
        cluster.hosts = variants[0].hosts;
    }
    let hosts = cluster.hosts;
    let variants: Vec<Training> = variants.into_iter().map(|training| training.on(hosts)).collect();
    match variants.iter().find(|training| !training.is_divisible()) {
        Some(bad) => Err(format!(
            "{file}: {} sequences in microbatches of {} cannot be divided among {} replicas in {} stages on \
             {hosts} hosts; change sequences, micro, pipeline or the number of hosts",
            bad.sequences,
            bad.micro,
            bad.replicas(),
            bad.pipeline
        )),
        None => Ok((variants, cluster)),
    }
}

/// A server, with its cluster or another one.
pub(crate) fn server(name: &str, other: Option<&str>) -> Result<(Server, Cluster), String> {
    let (file, text) = file(name)?;
    let (wanted, server) = Server::parse(&file, &text).map_err(|wrong| wrong.to_string())?;
    Ok((server, cluster(other.unwrap_or(&wanted))?))
}

/// The NICs that a user names, which fail at this moment.
pub(crate) fn outages(named: &[(u32, u8)], at: f64) -> Vec<Outage> {
    let outage = |(host, rail): &(u32, u8)| Outage { at, node: Node(*host), rail: Rail(*rail) };
    named.iter().map(outage).collect()
}

/// Whether these NICs, of a file and of the command line, can all fail.
///
/// # Errors
/// One is not there or named twice, or a host that has others to talk to keeps none.
pub(crate) fn check<'a>(
    cluster: &Cluster,
    outages: impl Iterator<Item = &'a Outage>,
) -> Result<(), String> {
    let (hosts, rails) = (cluster.hosts, cluster.nics.per_host);
    let mut lost: BTreeMap<Node, BTreeSet<Rail>> = BTreeMap::new();
    for Outage { node, rail, .. } in outages {
        let nic = format!("NIC {}:{}", node.0, rail.0);
        if node.0 >= hosts || u32::from(rail.0) >= rails {
            let (host, rail) = (hosts - 1, rails - 1);
            return Err(format!("there is no {nic}; there are 0:0 to {host}:{rail}"));
        }
        let of_host = lost.entry(*node).or_default();
        if !of_host.insert(*rail) {
            return Err(format!("{nic} fails twice; name it once, here or in the file"));
        }
        if of_host.len() == rails as usize && hosts > 1 {
            let most = rails - 1;
            return Err(format!("host {} has no NIC left; let at most {most} of its fail", node.0));
        }
    }
    Ok(())
}

/// For commands that draw failures or count them.
///
/// # Errors
/// The file of the cluster names failures, which would count for nothing.
pub(crate) fn check_is_whole(cluster: &Cluster) -> Result<(), String> {
    let name = &cluster.name;
    match cluster.outages.len() {
        0 => Ok(()),
        count => Err(format!(
            "{name} has {count} [[failure]], but which NICs fail is not read from files here; leave them out"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_checked_together() {
        let mut cluster = Cluster::plain(2, 2, 1e9);
        let checked = |cluster: &Cluster, named: &[(u32, u8)]| {
            let named = outages(named, 0.0);
            check(cluster, cluster.outages.iter().chain(&named))
        };
        assert_eq!(checked(&cluster, &[(0, 0), (1, 1)]), Ok(()));
        assert_eq!(check_is_whole(&cluster), Ok(()));
        cluster.outages = outages(&[(1, 0)], 2e-3);
        for (named, said) in [
            (vec![(2, 0)], "there is no NIC 2:0; there are 0:0 to 1:1"),
            (vec![(0, 2)], "there is no NIC 0:2"),
            (vec![(0, 1), (0, 1)], "NIC 0:1 fails twice"),
            (vec![(1, 0)], "NIC 1:0 fails twice"),
            (vec![(1, 1)], "host 1 has no NIC left; let at most 1 of its fail"),
        ] {
            let wrong = checked(&cluster, &named).unwrap_err();
            assert!(wrong.starts_with(said), "{wrong}");
        }
        assert!(check_is_whole(&cluster).unwrap_err().contains("1 [[failure]]"));
        (cluster.hosts, cluster.outages) = (1, Vec::new());
        assert_eq!(checked(&cluster, &[(0, 0), (0, 1)]), Ok(()), "alone");
    }
}
