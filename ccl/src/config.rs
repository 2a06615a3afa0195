//! How a communicator is made.

use std::time::Duration;

use ccl_core::error::Error;
use ccl_core::settings::Settings;

use crate::environment;

/// How to create a communicator.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// A name for messages and logs.
    pub name: Option<String>,
    /// Deadline of every call; the setting `R2CCL_TIMEOUT` if `None`.
    pub timeout: Option<Duration>,
    /// Everything that can be set by the environment as well.
    pub settings: Settings,
}

impl Config {
    /// The settings of the process environment.
    ///
    /// # Errors
    /// A variable has an impossible value.
    pub fn from_environment() -> Result<Self, Error> {
        Ok(Self { settings: environment::settings()?, ..Self::default() })
    }

    /// As the caller of a communicator has it: ranks are numbers in one.
    pub(crate) fn named(&self, error: Error) -> Error {
        match &self.name {
            Some(name) => error.within(name),
            None => error,
        }
    }
}
