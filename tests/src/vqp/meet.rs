//! The two processes of a run, from their meeting to their queue pairs.

use std::net::SocketAddr;
use std::time::Duration;

use ccl::vqp::{
    Access, Completion, Counters, Domain, Key, Listener, Meeting, MemoryRegion, PeerRegion, Pool,
    QueuePair, Status,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::arguments::Arguments;
use super::data::Slots;
use super::plan::{Plan, Test};
use crate::Outcome;
use crate::error::Failure;

/// Where `--local` has its devices: the server, then the client.
const PRETENDED_HOSTS: [u8; 2] = [1, 2];

/// How long one that sleeps does not look at the line to the other process.
const PAUSE: Duration = Duration::from_millis(2);

/// Which process this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listens, and answers.
    Server,
    /// Connects to this address, and measures.
    Client(String),
    /// The same for a server that this process has started.
    ClientOf(SocketAddr),
    /// Rank 0 of a launcher: listens, and measures.
    Initiator,
    /// Rank 1 of a launcher: connects to this address, and answers.
    Responder(String),
}

impl Role {
    /// What the command line and the launcher say.
    ///
    /// # Errors
    /// The launcher has started another number of processes than two.
    pub fn find(arguments: &Arguments) -> Outcome<Self> {
        let at_port = |host: &str| match host.contains(':') {
            true => format!("[{host}]:{}", arguments.port),
            false => format!("{host}:{}", arguments.port),
        };
        if let Some(server) = &arguments.server {
            return Ok(Self::Client(at_port(server)));
        }
        let variables = ccl::environment::Environment::of_this_process().variables;
        let variable = |name: &str| variables.get(name).map(String::as_str);
        let (Some(rank), None) = (variable("RANK"), arguments.launcher) else {
            return Ok(Self::Server);
        };
        match (rank, variable("WORLD_SIZE"), variable("MASTER_ADDR")) {
            ("0", Some("2"), _) => Ok(Self::Initiator),
            ("1", Some("2"), Some(host)) => Ok(Self::Responder(at_port(host))),
            (_, Some("2"), _) => Err(Failure::Input(format!("RANK={rank} without MASTER_ADDR"))),
            (_, size, _) => {
                let size = size.unwrap_or("?");
                Err(Failure::Input(format!("two processes take part, not {size} (WORLD_SIZE)")))
            }
        }
    }

    fn meet(&self, arguments: &Arguments, key: &Key) -> Outcome<Meeting> {
        let limit = arguments.limit;
        let met = match self {
            Self::Server | Self::Initiator => {
                let address = format!("0.0.0.0:{}", arguments.port);
                Listener::bind(&address, key.clone()).and_then(|listener| listener.accept(limit))
            }
            Self::Client(address) | Self::Responder(address) => {
                Meeting::connect(address, key, limit)
            }
            Self::ClientOf(address) => Meeting::connect(&address.to_string(), key, limit),
        };
        met.map_err(|cause| Failure::system("meeting the other process", cause))
    }

    /// The devices of this process.
    pub(super) fn devices(&self, arguments: &Arguments) -> String {
        let is_pretended = matches!(self, Self::ClientOf(_)) || arguments.launcher.is_some();
        if let (None, true) = (&arguments.device, is_pretended) {
            let host = PRETENDED_HOSTS[usize::from(matches!(self, Self::ClientOf(_)))];
            let address = |rail: usize| format!("127.2.{host}.{}", rail + 1);
            return (0..arguments.rails).map(address).collect::<Vec<_>>().join(",");
        }
        arguments.device.clone().unwrap_or_else(|| ccl::vqp::SOFT.to_owned())
    }
}

/// The key of both processes.
fn key() -> Outcome<Key> {
    Key::from_environment().map_err(|cause| Failure::Input(cause.to_string()))
}

/// One process in a run.
#[derive(Debug)]
pub struct Ends {
    /// Its queue pairs, connected.
    pub pairs: Vec<QueuePair>,
    /// Its memory; each queue pair has a stretch of it.
    pub region: MemoryRegion,
    /// The memory of the other process, divided alike.
    pub theirs: PeerRegion,
    /// The line to the other process.
    pub meeting: Meeting,
    domain: Domain,
    pool: Option<Pool>,
    plan: Plan,
    /// What earlier queue pairs have gone through.
    past: Counters,
}

impl Ends {
    /// The initiator's end.
    ///
    /// # Errors
    /// The other process is not there, runs another test, or a device refuses.
    pub fn meet(plan: &Plan, arguments: &Arguments, role: Role) -> Outcome<Self> {
        let (key, devices) = (key()?, role.devices(arguments));
        let mut meeting = role.meet(arguments, &key)?;
        let theirs: Test = exchange(&mut meeting, plan, plan)?;
        same_test(plan.test, theirs)?;
        Self::prepare(plan.clone(), meeting, &devices, &key)
    }

    /// The responder's end, which a meeting has been made for, with the plan.
    ///
    /// # Errors
    /// As for [`Self::meet`].
    pub fn answer(test: Test, arguments: &Arguments, role: &Role) -> Outcome<(Plan, Self)> {
        let key = key()?;
        let meeting = role.meet(arguments, &key)?;
        Self::answer_over(meeting, test, (&role.devices(arguments), &key))
    }

    /// The same over this meeting.
    ///
    /// # Errors
    /// As for [`Self::meet`].
    pub fn answer_over(
        mut meeting: Meeting,
        test: Test,
        (devices, key): (&str, &Key),
    ) -> Outcome<(Plan, Self)> {
        let limit = Duration::from_secs(30);
        let said = json(&test)?;
        let heard = meeting.exchange(&said, limit).map_err(lost)?;
        let plan: Plan = parsed(&heard)?;
        same_test(test, plan.test)?;
        let ends = Self::prepare(plan.clone(), meeting, devices, key)?;
        Ok((plan, ends))
    }

    fn prepare(plan: Plan, mut meeting: Meeting, devices: &str, key: &Key) -> Outcome<Self> {
        let mut config = plan.domain(devices)?;
        config.queue_pairs = plan.pairs * plan.sizes.len();
        let failed = |cause| Failure::system("opening the devices", cause);
        let domain = Domain::open(&config, key).map_err(failed)?;
        let region = domain.allocate(plan.stride() * plan.pairs, Access::ALL).map_err(failed)?;
        let pool = plan.pool.map(|spares| domain.pool(&mut meeting, spares, plan.limit));
        let pool = pool.transpose().map_err(|cause| Failure::system("making a pool", cause))?;
        let pairs = connected(&domain, &plan, pool.as_ref(), &mut meeting)?;
        let theirs = meeting.exchange_regions(&region, plan.limit).map_err(lost)?;
        if theirs.bytes != region.memory().bytes() as u64 {
            return Err(Failure::Input("the other process has memory of another size".into()));
        }
        let past = Counters::default();
        Ok(Self { pairs, region, theirs, meeting, domain, pool, plan, past })
    }

    /// Both ends come to a row. Receives of the row before would be too small for the messages of this
    /// one, so queue pairs with receives are replaced.
    ///
    /// # Errors
    /// The other process is elsewhere, or the queue pairs cannot be connected.
    pub fn begin_row(&mut self, index: usize) -> Outcome<()> {
        self.agree(b"begin")?;
        if index > 0 && self.plan.test == Test::SendBandwidth {
            self.past = self.counters();
            let pool = self.pool.as_ref();
            self.pairs = connected(&self.domain, &self.plan, pool, &mut self.meeting)?;
        }
        Ok(())
    }

    /// The devices, by rail.
    #[must_use]
    pub fn devices(&self) -> &[String] {
        self.domain.devices()
    }

    /// What all queue pairs together have gone through.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let add = |sum: Counters, one: Counters| Counters {
            repairs: sum.repairs + one.repairs,
            resent: sum.resent + one.resent,
            resent_bytes: sum.resent_bytes + one.resent_bytes,
            spared: sum.spared + one.spared,
            recovered: sum.recovered + one.recovered,
            returns: sum.returns + one.returns,
        };
        self.pairs.iter().map(QueuePair::counters).fold(self.past, add)
    }

    /// The slots of a queue pair for operations that this or the other end posts.
    #[must_use]
    pub fn slots(&self, pair: usize, bytes: usize) -> Slots {
        let start = pair * self.plan.stride();
        Slots { pair, start, bytes, count: self.plan.slots(bytes) }
    }

    /// Waits for the other process to come to the same point.
    ///
    /// # Errors
    /// It does not.
    pub fn agree(&mut self, word: &[u8]) -> Outcome<()> {
        let heard = self.meeting.exchange(word, self.plan.limit).map_err(lost)?;
        if heard == word {
            return Ok(());
        }
        Err(Failure::Input("the other process is somewhere else".to_owned()))
    }

    /// Lets others have the processor while nothing moves. What is written into this memory is told by
    /// nothing but the memory, so whoever waits for an answer there cannot sleep.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn rest(&mut self) -> Outcome<()> {
        if !self.plan.events || self.plan.test == Test::WriteLatency {
            std::thread::yield_now();
            return Ok(());
        }
        let rested = QueuePair::rest(&mut self.pairs, PAUSE);
        rested.map_err(|cause| Failure::system("waiting for a completion", cause))
    }

    /// Tells something and hears something.
    ///
    /// # Errors
    /// The other process is gone.
    pub fn exchange<S: Serialize, T: DeserializeOwned>(&mut self, said: &S) -> Outcome<T> {
        exchange(&mut self.meeting, said, &self.plan)
    }
}

fn connected(
    domain: &Domain,
    plan: &Plan,
    pool: Option<&Pool>,
    meeting: &mut Meeting,
) -> Outcome<Vec<QueuePair>> {
    let terms = plan.terms();
    // Plain ones have no backups at all.
    let pool = pool.filter(|_| terms.evidence.is_some());
    let mut pairs = Vec::with_capacity(plan.pairs);
    for index in 0..plan.pairs {
        let failed = |cause| Failure::system(format!("connecting queue pair {index}"), cause);
        let mut pair = domain.queue_pair(&terms).map_err(failed)?;
        let connected = match pool {
            Some(pool) => pair.connect_pooled(meeting, pool, plan.limit),
            None => pair.connect(meeting, plan.limit),
        };
        connected.map_err(failed)?;
        pairs.push(pair);
    }
    Ok(pairs)
}

/// What became of a request that did not succeed.
#[must_use]
pub fn unsuccessful(pair: &QueuePair, index: usize, completion: &Completion) -> Failure {
    let (number, status) = (completion.id.0, completion.status);
    let reason = pair.fault().unwrap_or_else(|| "no reason is known".to_owned());
    Failure::system(format!("queue pair {index}, operation {number}: {status:?}"), reason)
}

/// Why nothing moves on a queue pair.
#[must_use]
pub fn stuck(pair: &QueuePair, index: usize, plan: &Plan) -> Failure {
    let seconds = plan.limit.as_secs_f64();
    let reason = pair.fault().unwrap_or_else(|| format!("nothing has moved for {seconds} s"));
    Failure::system(format!("queue pair {index}, rail {}", pair.active_rail()), reason)
}

/// Whether a completion is a success.
#[must_use]
pub fn succeeded(completion: &Completion) -> bool {
    completion.status == Status::Success
}

fn same_test(mine: Test, theirs: Test) -> Outcome<()> {
    if mine == theirs {
        return Ok(());
    }
    let text = format!("this is {}, the other process is {}", mine.name(), theirs.name());
    Err(Failure::Input(text))
}

fn exchange<S: Serialize, T: DeserializeOwned>(
    meeting: &mut Meeting,
    said: &S,
    plan: &Plan,
) -> Outcome<T> {
    let heard = meeting.exchange(&json(said)?, plan.limit).map_err(lost)?;
    parsed(&heard)
}

fn json<S: Serialize>(said: &S) -> Outcome<Vec<u8>> {
    serde_json::to_vec(said).map_err(|cause| Failure::system("writing a message", cause))
}

fn parsed<T: DeserializeOwned>(heard: &[u8]) -> Outcome<T> {
    let not_ours = |_| Failure::Input("the other process says something else".to_owned());
    serde_json::from_slice(heard).map_err(not_ours)
}

fn lost(cause: ccl::vqp::Error) -> Failure {
    Failure::system("asking the other process", cause)
}
