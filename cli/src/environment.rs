//! The only place of the command that reads environment variables.
#![allow(clippy::disallowed_methods, reason = "the environment is read here only")]

/// The pass phrase of the job.
pub(crate) const JOB_KEY: &str = "R2CCL_JOB_KEY";

/// Whether the user has given the job a pass phrase.
pub(crate) fn has_job_key() -> bool {
    std::env::var_os(JOB_KEY).is_some_and(|key| !key.is_empty())
}
