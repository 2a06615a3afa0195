//! Ranks meet beside the calls.

use std::sync::Arc;
use std::time::Duration;

use ccl_core::error::Error;
use ccl_core::settings::Settings;
use ccl_transport::auth::JobKey;
use ccl_transport::clock;

use super::core::Core;

/// Longer than any program.
const EVER: Duration = Duration::from_secs(1 << 32);

/// What a thread has that meets other ranks beside the calls. It does not keep the communicator from ending.
#[derive(Debug)]
pub(crate) struct Correspondence {
    core: Arc<Core>,
    number: u32,
}

impl Correspondence {
    pub(super) fn new(core: Arc<Core>, number: u32) -> Self {
        Self { core, number }
    }

    /// Which one it is of the communicator.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// What the communicator was made with.
    pub(crate) fn settings(&self) -> &Settings {
        &self.core.config.settings
    }

    /// What connections between its ranks prove.
    pub(crate) fn key(&self) -> &JobKey {
        &self.core.key
    }

    /// What all ranks say under a name. Waits for them, as long as a call may take if they come `soon`, else until
    /// they leave or [`Self::forget`] is called.
    pub(crate) fn gather(
        &self,
        name: &str,
        blob: &[u8],
        soon: bool,
    ) -> Result<Vec<Vec<u8>>, Error> {
        let patience = if soon { self.core.timeout() } else { EVER };
        self.core.control.all_gather(name, blob, clock::now() + patience)
    }

    /// Ends the communicator, on all ranks.
    pub(crate) fn fail(&self, error: &Error) {
        self.core.fail(error);
    }

    /// Ends a [`Self::gather`] in another thread, if it waits.
    pub(crate) fn forget(&self, name: &str) {
        self.core.control.forget(name);
    }
}
