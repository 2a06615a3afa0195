//! How the unique id gets to ranks that a launcher started.
//!
//! Where a place is known to all, there is nothing to pass on: everybody derives the same id, and rank 0
//! listens at its port. Otherwise all ranks are on one host, and rank 0 leaves the id in a file that the
//! store removes once all have joined. A file that a dead job left behind is recognised by asking: its
//! store does not answer, or does not know the key.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Instant;

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_core::settings::{Endpoint, Settings};
use ccl_transport::clock;
use sha2::{Digest, Sha256};

use super::connect::{Pauses, attempt};
use super::group::Founder;
use super::heard::Heard;
use super::private_file::PrivateFile;
use super::server::Tie;
use super::unique_id::{Door, NewStore, UniqueId};
use crate::environment::Environment;
use crate::launch::{self, Launch, Meeting};

/// Where ranks meet. In the process that has started the store for it, its rank joins while this is there: if it is
/// dropped before, the store tells those who came, and ends.
#[derive(Debug)]
pub struct Place {
    id: UniqueId,
    store: Option<Tie>,
}

impl Place {
    /// A new one, with its store in this process, which is that of rank 0.
    ///
    /// # Errors
    /// As [`UniqueId::create`].
    pub fn create(settings: &Settings) -> Result<Self, Error> {
        Self::of(Rank(0), settings)
    }

    /// A new one, with its store in this process, which is that of rank `founder`.
    ///
    /// # Errors
    /// As [`UniqueId::create`].
    pub fn of(founder: Rank, settings: &Settings) -> Result<Self, Error> {
        let mut store = NewStore::on_any_port(settings)?;
        store.founder = Founder { rank: founder.0, ..Founder::default() };
        Self::with(store)
    }

    /// Whether ranks can still join: not once all have, or one that has come is gone or has waited too long.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.store.as_ref().is_none_or(Tie::is_gathering)
    }

    /// What all ranks join.
    #[must_use]
    pub fn id(&self) -> &UniqueId {
        &self.id
    }

    /// One behind a door of this rank, its `founder`.
    pub(super) fn behind(door: &Door, founder: Founder) -> Result<Self, Error> {
        Self::with(door.store(founder)?)
    }

    fn with(store: NewStore) -> Result<Self, Error> {
        let (id, tie) = store.start()?;
        Ok(Self { id, store: Some(tie) })
    }

    pub(super) fn elsewhere(id: UniqueId) -> Self {
        Self { id, store: None }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(store) = &self.store {
            store.abandon();
        }
    }
}

/// Finds the other ranks of this process' launcher: where to join, this rank, and how many there are.
/// On rank 0 it starts the store.
///
/// # Errors
/// As [`launch::resolve`] and [`meet`].
pub fn rendezvous(
    environment: &Environment,
    settings: &Settings,
) -> Result<(Place, Rank, u32), Error> {
    let launch = launch::resolve(None, environment, settings)?;
    let place = meet(&launch, environment, settings)?;
    Ok((place, launch.rank, launch.size))
}

/// Where the ranks of `launch` meet. On rank 0 it starts the store.
///
/// # Errors
/// [`Error::System`] if rank 0 cannot listen, or the file cannot be used; [`Error::Deadline`] if rank 0
/// does not come within the bootstrap timeout.
pub fn meet(
    launch: &Launch,
    environment: &Environment,
    settings: &Settings,
) -> Result<Place, Error> {
    let deadline = clock::now() + settings.bootstrap_timeout;
    match &launch.meeting {
        Meeting::Alone => Place::create(settings),
        Meeting::At { endpoint, job } => {
            if settings.job_key.is_none() {
                tracing::info!(job, "the key is derived from the job; R2CCL_JOB_KEY is stronger");
            }
            // The endpoint keeps jobs apart whose launcher gave them no name.
            let job = format!("{job} at {endpoint}");
            meet_at(endpoint, &job, launch.rank, settings, deadline)
        }
        Meeting::File { job } => {
            let file = file_of(job, &environment.runtime_directory)?;
            if launch.rank == Rank(0) {
                leave_in_file(file, settings)
            } else {
                find_in_file(&file, launch.rank, settings, deadline).map(Place::elsewhere)
            }
        }
    }
}

fn meet_at(
    endpoint: &Endpoint,
    job: &str,
    rank: Rank,
    settings: &Settings,
    deadline: Instant,
) -> Result<Place, Error> {
    if rank == Rank(0) {
        let loopback = [IpAddr::from([127, 0, 0, 1])];
        let id = UniqueId::at_fixed_port(&loopback, endpoint.port, job, settings);
        return Place::with(NewStore::on_port_of(id, settings)?);
    }
    let addresses = resolve(endpoint, settings, deadline)?;
    Ok(Place::elsewhere(UniqueId::at_fixed_port(&addresses, endpoint.port, job, settings)))
}

/// The addresses of a host. The names of hosts that are being started may not be known yet.
fn resolve(
    endpoint: &Endpoint,
    settings: &Settings,
    deadline: Instant,
) -> Result<Vec<IpAddr>, Error> {
    let mut pauses = Pauses::until(deadline);
    loop {
        let cause = match (endpoint.host.as_str(), endpoint.port).to_socket_addrs() {
            Ok(found) => {
                let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
                addresses.dedup();
                if !addresses.is_empty() {
                    return Ok(addresses);
                }
                "it has no address".to_owned()
            }
            Err(cause) => cause.to_string(),
        };
        if !pauses.pause() {
            return Err(Error::Deadline {
                call: format!("looking up the host {:?} of rank 0", endpoint.host),
                seconds: settings.bootstrap_timeout.as_secs_f64(),
                waiting: cause,
            });
        }
    }
}

fn leave_in_file(file: PrivateFile, settings: &Settings) -> Result<Place, Error> {
    let mut store = NewStore::on_any_port(settings)?;
    let id = store.id;
    file.write(&id.to_bytes())?;
    store.settled = Box::new(move || file.remove(&id.to_bytes()));
    Place::with(store)
}

fn find_in_file(
    file: &PrivateFile,
    rank: Rank,
    settings: &Settings,
    deadline: Instant,
) -> Result<UniqueId, Error> {
    let mut pauses = Pauses::until(deadline);
    loop {
        let stale = match file.read()?.map(|bytes| UniqueId::from_bytes(&bytes)) {
            None => "it is not there",
            Some(Err(_)) => "it holds no unique id",
            Some(Ok(id)) if attempt(&id, &Heard::new(rank), deadline).is_ok() => return Ok(id),
            Some(Ok(_)) => "it is of a job that has ended",
        };
        if !pauses.pause() {
            return Err(Error::Deadline {
                call: "looking for rank 0 on this host".to_owned(),
                seconds: settings.bootstrap_timeout.as_secs_f64(),
                waiting: format!(
                    "the file {} of rank 0: {stale}; if the launcher starts the ranks by way of other \
                     processes, set R2CCL_BOOTSTRAP=host:port on all of them",
                    file.path()
                ),
            });
        }
    }
}

/// The file through which the ranks of `job` meet. Names of jobs may contain anything.
pub(super) fn file_of(job: &str, directory: &Path) -> Result<PrivateFile, Error> {
    let digest = Sha256::digest(job.as_bytes());
    let digits: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    PrivateFile::new(directory, format!("{digits}.id"))
}
