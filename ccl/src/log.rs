//! The log on standard error, for programs that know nothing of tracing: the benchmarks, C and Python.

use std::io::IsTerminal;

use ccl_core::settings::Settings;
use tracing_subscriber::EnvFilter;

use crate::Error;
use crate::environment::variables;

/// From now on what `R2CCL_LOG` lets through goes to standard error, unless the process has a subscriber
/// already. To be called as often as one likes, best before anything else.
///
/// # Errors
/// `InvalidArgument` that names the variable, if it is no filter of tracing or another setting is
/// impossible.
pub fn to_standard_error() -> Result<(), Error> {
    let text = Settings::parse(variables())?.settings.log;
    let filter = EnvFilter::try_new(&text)
        .map_err(|cause| Error::InvalidArgument(format!("R2CCL_LOG={text}: {cause}")))?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // Whoever was first, the program or an earlier call, keeps the log.
    let _ = subscriber.try_init();
    Ok(())
}
