//! The only place of the benchmark that reads environment variables.
#![allow(clippy::disallowed_methods, reason = "the environment is read here only")]

use std::ffi::OsString;

/// Any of these says that a launcher started the process.
const LAUNCHER_VARIABLES: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

/// The first of these that is there says which process of the machine this is.
const LOCAL_VARIABLES: [&str; 4] =
    ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// Variables whose values stay out of reports.
const SECRETS: [&str; 1] = ["R2CCL_JOB_KEY"];

/// What the environment asks of a benchmark.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// `NCCL_TESTS_MIN_BW`: average bus bandwidth in GB/s of which 90 % must be reached.
    pub least_bandwidth: Option<f64>,
    /// `NCCL_TESTS_ALLTOALLV_MATRIX_FILE`: bytes from every rank to every rank.
    pub matrix_file: Option<OsString>,
    /// `NCCL_TESTS_ALLTOALLV_MATRIX_SCALE`: factor for the numbers of that file.
    pub matrix_scale: Option<f64>,
    /// `NCCL_TESTS_ALLTOALLV_SPREAD`: 0 (all pairs alike) to 1 (by distance of the ranks).
    pub spread: Option<f64>,
    /// `AND` and the value of `NCCL_TESTS_SPLIT_MASK`, or `NCCL_TESTS_SPLIT`.
    pub split: Option<String>,
    /// `NCCL_TESTS_DEVICE`: the device of the first rank of every process; the others have those behind it.
    pub first_device: Option<usize>,
}

/// Reads the variables that nccl-tests reads.
///
/// # Errors
/// The sentence names a variable that should be a number and is none.
pub fn wishes() -> Result<Wishes, String> {
    let mask = text("NCCL_TESTS_SPLIT_MASK").map(|mask| {
        let digits = mask.trim_start_matches("0x");
        format!("AND 0x{digits}")
    });
    Ok(Wishes {
        least_bandwidth: number("NCCL_TESTS_MIN_BW")?,
        matrix_file: std::env::var_os("NCCL_TESTS_ALLTOALLV_MATRIX_FILE"),
        matrix_scale: number("NCCL_TESTS_ALLTOALLV_MATRIX_SCALE")?,
        spread: number("NCCL_TESTS_ALLTOALLV_SPREAD")?,
        split: mask.or(text("NCCL_TESTS_SPLIT")),
        first_device: device()?,
    })
}

/// Which process of its machine this is; 0 if nobody says.
#[must_use]
pub fn local_rank() -> usize {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    LOCAL_VARIABLES.into_iter().find_map(number).unwrap_or(0)
}

/// Whether a launcher (`r2ccl run`, torchrun, mpirun, Slurm) started this process.
#[must_use]
pub fn has_launcher() -> bool {
    LAUNCHER_VARIABLES.iter().any(|name| std::env::var_os(name).is_some())
}

/// The variables that influence a run, for reports; secrets are masked.
#[must_use]
pub fn relevant() -> Vec<String> {
    let mut variables: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with("R2CCL_") || name.starts_with("NCCL_TESTS_"))
        .map(|(name, value)| {
            let value = if SECRETS.contains(&name.as_str()) { "(hidden)".into() } else { value };
            format!("{name}={value}")
        })
        .collect();
    variables.sort();
    variables
}

/// Of nccl-tests, -1 stands for none.
fn device() -> Result<Option<usize>, String> {
    const NAME: &str = "NCCL_TESTS_DEVICE";
    text(NAME)
        .filter(|value| value.trim() != "-1")
        .map(|value| value.trim().parse().map_err(|_| format!("{NAME}={value:?} is no device")))
        .transpose()
}

fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

fn number(name: &str) -> Result<Option<f64>, String> {
    text(name)
        .map(|value| match value.trim().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(number),
            _ => Err(format!("{name}={value:?} is not a number")),
        })
        .transpose()
}
