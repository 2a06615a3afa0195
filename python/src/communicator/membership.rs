//! How a communicator gets its member of the group, and lets go of it.

use std::sync::{Arc, Mutex};

use ccl::{Config, Error};
use pyo3::prelude::*;

use super::Communicator;
use crate::calls::Place;
use crate::errors::{exception, invalid_usage};
use crate::interrupts::{interruptible, seconds};
use crate::work::{Member, check_process, locked};

impl Communicator {
    pub(super) fn create(
        py: Python<'_>,
        name: Option<String>,
        timeout: Option<f64>,
        create: impl FnOnce(&Config) -> Result<ccl::Communicator, Error> + Send + 'static,
    ) -> PyResult<Self> {
        let read = ccl::log::to_standard_error().and_then(|()| Config::from_environment());
        let environment = read.map_err(|error| exception(py, &error))?;
        let timeout = timeout.map(|value| seconds(py, "timeout", value)).transpose()?;
        let config = Config { name, timeout, ..environment };
        let wish = config.clone();
        // If a signal interrupts the wait, the thread that creates the member drops it again.
        let member = interruptible(py, move || create(&wish), || ())?;
        Ok(Self::of(member.map_err(|error| exception(py, &error))?, config))
    }

    pub(super) fn of(member: ccl::Communicator, config: Config) -> Self {
        Self {
            rank: member.rank().0,
            size: member.size(),
            name: config.name.clone(),
            member: Mutex::new(Some(Member::new(member))),
            config,
            process: std::process::id(),
        }
    }

    /// What `create` makes of this communicator, and the configuration with which it does. A signal that interrupts this
    /// `call` aborts this communicator.
    pub(super) fn derive<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: &str,
        name: Option<String>,
        timeout: Option<f64>,
        create: impl FnOnce(&ccl::Communicator, &Config) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<(T, Config)> {
        let timeout = timeout.map(|value| seconds(py, "timeout", value)).transpose()?;
        let timeout = timeout.or(self.config.timeout);
        let config = Config { name, timeout, ..self.config.clone() };
        let communicator = self.member(py)?.communicator.clone();
        let (parent, wish) = (communicator.clone(), config.clone());
        let end = || communicator.abort(&format!("a signal interrupted {call}()"));
        let made = interruptible(py, move || create(&parent, &wish), end)?;
        made.map(|made| (made, config)).map_err(|error| exception(py, &error))
    }

    pub(super) fn place<'py>(&self, py: Python<'py>) -> Place<'py> {
        Place { py, rank: self.rank, size: self.size, stream: None }
    }

    /// The member, unless it is gone or another process's.
    pub(super) fn member(&self, py: Python<'_>) -> PyResult<Arc<Member>> {
        check_process(self.process).map_err(|error| exception(py, &error))?;
        let member = locked(&self.member).clone();
        member.ok_or_else(|| invalid_usage(py, "the communicator was destroyed"))
    }

    /// Takes the member out, if it is this process's.
    pub(super) fn take(&self) -> Option<Arc<Member>> {
        check_process(self.process).ok()?;
        locked(&self.member).take()
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let member = locked(&self.member).take();
        // A forked child has neither the threads nor a sound state of their locks.
        if check_process(self.process).is_err() {
            std::mem::forget(member);
            return;
        }
        // The last clone waits for what was started, and must not keep other threads waiting for the
        // interpreter meanwhile.
        let mut member = Some(member);
        Python::try_attach(|py| {
            let member = member.take();
            py.detach(|| drop(member));
        });
    }
}
