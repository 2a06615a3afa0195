//! The 128 bytes that make a process a member: where the store is, and the key that it asks for.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Instant;

use ccl_core::Error;
use ccl_core::settings::Settings;
use ccl_transport::auth::JobKey;
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::{Digest, Sha256};
use socket2::{Domain, Protocol, Socket, Type};

use super::group::Founder;
use super::newcomers::Admission;
use super::server::{self, Doors, Tie};
use crate::hosts::{self, HostIdentity, reach};

/// Size of a [`UniqueId`] outside this process.
pub const UNIQUE_ID_BYTES: usize = 128;

const MAGIC: [u8; 8] = *b"r2ccl-id";
const VERSION: u16 = 1;
/// Addresses of the store that an id has room for.
const MAX_ADDRESSES: usize = 4;
const ADDRESS_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
/// Connections that may wait to be accepted: all ranks come at once.
const BACKLOG: i32 = 4096;

/// Where the store of a communicator is, and the key that admits its ranks. Whoever has the id can
/// join: treat it as a secret of the job.
///
/// ```text
/// 0 magic   8 version   10 fixed   11 addresses   12 port   14 network   16 communicator   24 host   32 key   64 addresses
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    /// Whether the port was given, so that another program may be behind it for a while.
    fixed: bool,
    port: u16,
    /// Digest of the network of the store, in which loopback leads to it, 0 if that is not known.
    network: u16,
    communicator: u64,
    /// Digest of the identity of the store's host, 0 if that is not known.
    host: u64,
    secret: [u8; SECRET_BYTES],
    addresses: [Option<IpAddr>; MAX_ADDRESSES],
}

impl UniqueId {
    /// Makes a new id and starts its store in this process.
    ///
    /// The store is a thread that ends when all ranks that joined have gone; until then they need it. If
    /// nobody ever joins, it sleeps until the process ends.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if the settings admit no interface; [`Error::System`] if there is no port
    /// or no thread.
    pub fn create(settings: &Settings) -> Result<Self, Error> {
        NewStore::on_any_port(settings)?.start().map(|(id, _)| id)
    }

    /// The id of a store at a port that everybody was told. All ranks derive the same key from `job`
    /// and the pass phrase; without a pass phrase it is as hard to guess as `job`.
    pub(super) fn at_fixed_port(
        addresses: &[IpAddr],
        port: u16,
        job: &str,
        settings: &Settings,
    ) -> Self {
        let phrase = settings.job_key.as_ref().map_or("", |key| key.reveal());
        let secret = digest(&["r2ccl job key, version 1", job, phrase]);
        Self {
            fixed: true,
            port,
            network: 0,
            communicator: first_word(&digest(&["r2ccl communicator, version 1", job])),
            host: 0,
            secret,
            addresses: take(addresses),
        }
    }

    /// The id as it travels.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; UNIQUE_ID_BYTES] {
        let mut bytes = [0; UNIQUE_ID_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = u8::from(self.fixed);
        bytes[12..14].copy_from_slice(&self.port.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.network.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.communicator.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.host.to_le_bytes());
        bytes[32..64].copy_from_slice(&self.secret);
        for (slot, address) in bytes[64..].chunks_exact_mut(ADDRESS_BYTES).zip(self.addresses()) {
            slot.copy_from_slice(&as_v6(address).octets());
        }
        bytes[11] = u8::try_from(self.addresses().count()).unwrap_or(u8::MAX);
        bytes
    }

    /// Reads an id that came from another process.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if it is not an id of this version.
    pub fn from_bytes(bytes: &[u8; UNIQUE_ID_BYTES]) -> Result<Self, Error> {
        let count = usize::from(bytes[11]);
        if bytes[..8] != MAGIC || bytes[10] > 1 || count == 0 || count > MAX_ADDRESSES {
            return Err(Error::InvalidArgument("these bytes are no unique id".to_owned()));
        }
        let version = u16::from_le_bytes(part(bytes, 8));
        if version != VERSION {
            return Err(Error::InvalidArgument(format!(
                "a unique id of version {version}; this library has version {VERSION}"
            )));
        }
        let addresses: Vec<IpAddr> = (0..count)
            .map(|index| {
                Ipv6Addr::from(part::<16>(bytes, 64 + index * ADDRESS_BYTES)).to_canonical()
            })
            .collect();
        Ok(Self {
            fixed: bytes[10] == 1,
            port: u16::from_le_bytes(part(bytes, 12)),
            network: u16::from_le_bytes(part(bytes, 14)),
            communicator: u64::from_le_bytes(part(bytes, 16)),
            host: u64::from_le_bytes(part(bytes, 24)),
            secret: part(bytes, 32),
            addresses: take(&addresses),
        })
    }

    /// The number that all ranks of the communicator have in common, and hardly any other one has.
    #[must_use]
    pub fn communicator(&self) -> u64 {
        self.communicator
    }

    /// The key with which the ranks of the communicator authenticate each other.
    #[must_use]
    pub fn key(&self) -> JobKey {
        JobKey::from_bytes(self.secret)
    }

    /// Whether a refusal may pass, because something else still has the port.
    pub(super) fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Where to look for the store, the best place first: inside a host, connections over loopback do
    /// not depend on any NIC.
    pub(super) fn places(&self) -> Vec<SocketAddr> {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let local = (self.host == host_digest()).then_some(loopback);
        local.into_iter().chain(self.addresses()).map(|a| SocketAddr::new(a, self.port)).collect()
    }

    /// Returns when this host has a NIC that may lead to the store.
    ///
    /// # Errors
    /// [`Error::InvalidUsage`] if the store is on another host and can be reached there only;
    /// [`Error::System`] if this host has nothing but loopback, and nothing else comes up in time.
    pub(crate) fn await_way(&self, settings: &Settings, deadline: Instant) -> Result<(), Error> {
        let is_elsewhere = ![0, network_digest()].contains(&self.network);
        if is_elsewhere && self.addresses().all(|address| address.is_loopback()) {
            return Err(Error::InvalidUsage(
                "the unique id was made on another host, which had nothing but loopback then; make it when a \
                 NIC is up there, or name one with R2CCL_NIC"
                    .to_owned(),
            ));
        }
        reach::await_way(&self.places(), settings, deadline)
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().flatten().copied()
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId")
            .field("communicator", &format_args!("{:016x}", self.communicator))
            .field("port", &self.port)
            .field("addresses", &self.addresses().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// A store that has a port but does not answer yet; connections wait.
pub(super) struct NewStore {
    pub(super) id: UniqueId,
    listener: TcpListener,
    /// Where ranks return to when the listener has given its port back.
    returns: Option<TcpListener>,
    /// The addresses of this host, one for each rail.
    homes: Vec<IpAddr>,
    /// Whose process it is in.
    pub(super) founder: Founder,
    /// Runs once the group is complete or has failed, before anybody is told.
    pub(super) settled: Box<dyn FnOnce() + Send>,
}

impl NewStore {
    /// Takes a free port and a random key.
    pub(super) fn on_any_port(settings: &Settings) -> Result<Self, Error> {
        Self::at(reach::addresses(settings)?)
    }

    fn at(addresses: Vec<IpAddr>) -> Result<Self, Error> {
        let listener = listen(0)?;
        let id = UniqueId {
            fixed: false,
            port: port_of(&listener)?,
            network: network_digest(),
            communicator: u64::from_le_bytes(random()?),
            host: host_digest(),
            secret: random()?,
            addresses: take(&addresses),
        };
        Ok(Self::behind(listener, id, addresses))
    }

    /// Takes the port of `id`, which is told to nobody: everybody knows it. Ranks that return use
    /// another one, since the next job may want this one.
    pub(super) fn on_port_of(id: UniqueId, settings: &Settings) -> Result<Self, Error> {
        let listener = listen(id.port)?;
        let id = UniqueId { host: host_digest(), ..id };
        let returns = Some(listen(0)?);
        Ok(Self { returns, ..Self::behind(listener, id, homes(settings)) })
    }

    fn behind(listener: TcpListener, id: UniqueId, homes: Vec<IpAddr>) -> Self {
        let (founder, settled) = (Founder::default(), Box::new(|| {}));
        Self { id, listener, returns: None, homes, founder, settled }
    }

    /// Starts the thread of the store.
    pub(super) fn start(self) -> Result<(UniqueId, Tie), Error> {
        let port = self.returns.as_ref().map_or(Ok(self.id.port), port_of)?;
        let wherever = IpAddr::from([0, 0, 0, 0]);
        let homes = [wherever].into_iter().chain(self.homes);
        let places = homes.map(|home| SocketAddr::new(home, port)).collect();
        let admission = Admission { key: self.id.key(), communicator: self.id.communicator };
        let doors = Doors { listener: self.listener, returns: self.returns, places };
        Ok((self.id, server::start(doors, admission, self.founder, self.settled)?))
    }
}

/// A port behind which there is no store yet, and may be several, one after the other, with the same id.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) id: UniqueId,
    listener: TcpListener,
    homes: Vec<IpAddr>,
}

impl Door {
    /// Takes a free port and a random key.
    pub(super) fn open(settings: &Settings) -> Result<Self, Error> {
        let mut addresses = homes(settings);
        if addresses.is_empty() {
            addresses.push(IpAddr::from([127, 0, 0, 1]));
        }
        let NewStore { id, listener, homes, .. } = NewStore::at(addresses)?;
        Ok(Self { id, listener, homes })
    }

    /// A store. Who comes after it has settled waits for the next one.
    pub(super) fn store(&self, founder: Founder) -> Result<NewStore, Error> {
        let listener = self.listener.try_clone();
        let listener = listener.map_err(|cause| Error::system("dup of a listener", cause))?;
        let returns = Some(listen(0)?);
        Ok(NewStore { returns, founder, ..NewStore::behind(listener, self.id, self.homes.clone()) })
    }
}

/// The addresses of this host. Settings that admit no NIC are reported where the rails are made.
fn homes(settings: &Settings) -> Vec<IpAddr> {
    let nics = hosts::nics(settings).unwrap_or_default();
    nics.into_iter().map(|nic| nic.address).collect()
}

/// Listens on all addresses of both families, or of IPv4 where there is no IPv6.
fn listen(port: u16) -> Result<TcpListener, Error> {
    let any_v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let any_v4 = SocketAddr::from(([0, 0, 0, 0], port));
    bind(any_v6).or_else(|_| bind(any_v4)).map_err(|cause| {
        let remedy = if port == 0 {
            ""
        } else {
            "; choose a free port with R2CCL_BOOTSTRAP=host:port on all ranks"
        };
        Error::system(
            format!("listen on port {port} for the other ranks"),
            format!("{cause}{remedy}"),
        )
    })
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Otherwise connections of the job before would block the port for a minute.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn port_of(listener: &TcpListener) -> Result<u16, Error> {
    let address = listener.local_addr().map_err(|cause| Error::system("getsockname", cause))?;
    Ok(address.port())
}

fn host_digest() -> u64 {
    first_word(&digest(&["r2ccl host, version 1", HostIdentity::observed().as_str()]))
}

/// Never 0.
fn network_digest() -> u16 {
    let word = first_word(&digest(&["r2ccl network, version 1", &hosts::network()]));
    u16::try_from(word % u64::from(u16::MAX)).unwrap_or(0) + 1
}

fn digest(texts: &[&str]) -> [u8; SECRET_BYTES] {
    let mut digest = Sha256::new();
    for text in texts {
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        digest.update((text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    }
    digest.finalize().into()
}

fn first_word(bytes: &[u8; SECRET_BYTES]) -> u64 {
    u64::from_le_bytes(part(bytes, 0))
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[at..at + N]);
    taken
}

pub(super) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom(&mut bytes[..], GetRandomFlags::empty())
        .map_err(|cause| Error::system("getrandom", cause))?;
    Ok(bytes)
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn take(addresses: &[IpAddr]) -> [Option<IpAddr>; MAX_ADDRESSES] {
    std::array::from_fn(|index| addresses.get(index).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> UniqueId {
        let addresses = ["10.0.0.1".parse().unwrap(), "2001:db8::7".parse().unwrap()];
        UniqueId::at_fixed_port(&addresses, 4000, "job", &Settings::default())
    }

    #[test]
    fn an_id_survives_the_way_through_c() {
        let id = example();
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()), Ok(id));
        let addresses = take(&[[1, 2, 3, 4].into()]);
        let id = UniqueId { host: 9, network: 7, fixed: false, addresses, ..id };
        assert_eq!(UniqueId::from_bytes(&id.to_bytes()), Ok(id));
    }

    #[test]
    fn an_id_that_leads_to_loopback_elsewhere_is_of_no_use() {
        fn way(network: u16) -> Result<(), Error> {
            let addresses = take(&[[127, 0, 0, 1].into()]);
            let id = UniqueId { fixed: false, network, addresses, ..example() };
            id.await_way(&Settings::default(), ccl_transport::clock::now())
        }
        assert_eq!((way(0), way(network_digest())), (Ok(()), Ok(())));
        let elsewhere = network_digest() % u16::MAX + 1;
        let complaint = way(elsewhere).unwrap_err();
        assert!(complaint.to_string().contains("nothing but loopback"), "{complaint}");
    }

    #[test]
    fn other_bytes_are_no_id() {
        for (at, value) in [(0, 0), (8, 9), (10, 2), (11, 0), (11, 5)] {
            let mut bytes = example().to_bytes();
            bytes[at] = value;
            let error = UniqueId::from_bytes(&bytes).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
        }
    }

    #[test]
    fn the_key_depends_on_job_and_pass_phrase_and_is_not_printed() {
        let with = |job: &str, phrase: &str| {
            let settings = Settings::parse([("R2CCL_JOB_KEY", phrase)]).unwrap().settings;
            UniqueId::at_fixed_port(&[], 1, job, &settings)
        };
        assert_eq!(with("a", "b").secret, with("a", "b").secret);
        assert_ne!(with("a", "b").secret, with("a", "c").secret);
        assert_ne!(with("ab", "").secret, with("a", "b").secret);
        assert!(!format!("{:?}", example()).contains("secret"));
    }
}
