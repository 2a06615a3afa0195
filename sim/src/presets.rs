//! Clusters and jobs that a user names: files, and those that come with the program.

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

/// The NICs that a user names as lost.
pub(crate) fn outages(
    cluster: &Cluster,
    lost: &[(u32, u8)],
    at: f64,
) -> Result<Vec<Outage>, String> {
    let mut outages: Vec<Outage> = Vec::new();
    for (host, rail) in lost {
        if *host >= cluster.hosts || u32::from(*rail) >= cluster.nics.per_host {
            let (hosts, rails) = (cluster.hosts - 1, cluster.nics.per_host - 1);
            return Err(format!("there is no NIC {host}:{rail}; there are 0:0 to {hosts}:{rails}"));
        }
        outages.push(Outage { at, node: Node(*host), rail: Rail(*rail) });
    }
    Ok(outages)
}
