//! One end of a virtual queue pair: feeds the machine and does what it says.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccl_core::failover::queue::{Input, Output, Queue, Sequence};
use ccl_core::ids::{Rail, Timestamp};
use rustix::rand::{GetRandomFlags, getrandom};

use super::super::{
    Completion, Connection, Depth, Landings, PostError, QueuePair, ReceiveRequest, Silence, State,
    Status, Transition, WorkRequest,
};
use super::complete::Parting;
use super::control::Hello;
use super::glances::Glances;
use super::post::descriptor;
use super::rail::{Condition, RailEnd};
use super::shadow::Shadow;
use super::{Evidence, Keys, Shared, Standing, VirtualSettings};
use crate::{TransportError, clock};

/// Polls in vain before the devices are asked how long the host of the peer has been silent.
const POLLS_PER_LOOK: u32 = 256;

/// One end of a queue pair over several rails.
#[derive(Debug)]
pub struct VirtualQp {
    pub(super) machine: Queue,
    pub(super) settings: VirtualSettings,
    pub(super) depth: Depth,
    pub(super) shared: Arc<Shared>,
    pub(super) rails: Vec<RailEnd>,
    pub(super) state: State,
    pub(super) fault: Option<TransportError>,
    /// The two ends of a queue pair have different ones.
    pub(super) identity: u64,
    pub(super) peer: Option<u64>,
    /// Number of the peer among the clients of this domain.
    client: u64,
    /// Requests that have not completed, the oldest of which has number `first_request`.
    pub(super) requests: VecDeque<WorkRequest>,
    pub(super) first_request: u64,
    pub(super) receives: VecDeque<ReceiveRequest>,
    pub(super) first_receive: u64,
    /// Completed, not yet polled.
    pub(super) ready: Vec<Completion>,
    /// Which request was refused, and how.
    pub(super) refusal: Option<(Sequence, Status)>,
    pub(super) parting: Option<Parting>,
    arrived: Vec<Completion>,
    outputs: Vec<Output>,
    /// Requests are gathered for one list, and posted when it is complete.
    is_gathering: bool,
    started: Instant,
    /// The time of the last poll, once something needed it.
    polled: Option<Timestamp>,
    idle_polls: u32,
    /// Looks at rails that are not in use.
    pub(super) glances: Glances,
    /// Connections that rails were given.
    pub(super) connections: u64,
    /// Makes the connections of the rails.
    pub(super) shadow: Option<Shadow>,
}

impl VirtualQp {
    pub(super) fn new(
        rails: Vec<RailEnd>,
        shared: Arc<Shared>,
        client: u64,
        (settings, depth): (&VirtualSettings, Depth),
    ) -> Result<Self, TransportError> {
        let mut identity = [0; 8];
        getrandom(&mut identity, GetRandomFlags::empty())
            .map_err(|cause| TransportError::system("draw an identity", cause))?;
        Ok(Self {
            machine: machine(settings, depth),
            settings: settings.clone(),
            depth,
            shared,
            rails,
            state: State::Reset,
            fault: None,
            identity: u64::from_le_bytes(identity),
            peer: None,
            client,
            requests: VecDeque::with_capacity(depth.sends),
            first_request: 0,
            receives: VecDeque::with_capacity(depth.receives),
            first_receive: 0,
            ready: Vec::new(),
            refusal: None,
            parting: None,
            arrived: Vec::new(),
            outputs: Vec::new(),
            is_gathering: false,
            started: clock::now(),
            polled: None,
            idle_polls: 0,
            glances: Glances::default(),
            connections: 0,
            shadow: None,
        })
    }

    /// Sets what the rails are worth, where the peer has something to say about that.
    ///
    /// # Panics
    /// It has been connected, or there is not a standing for each rail.
    pub fn set_standings(&mut self, standings: Vec<Standing>) {
        assert!(self.state != State::ReadyToSend && standings.len() == self.rails.len());
        self.machine.set_standings(&standings);
        self.settings.standings = standings;
    }

    /// Whether a rail may be given a connection: it never had one, or the last one has failed and the
    /// pause after that is over.
    #[must_use]
    pub fn wants(&self, rail: usize) -> bool {
        let is_usable = matches!(self.state, State::ReadyToSend);
        is_usable && self.rails[rail].condition == Condition::Free
    }

    /// Gives a rail its connection. The peer does the same with the other end of it. The device of a backup is
    /// opened for its first one, unless it is open.
    ///
    /// # Errors
    /// The rail is not [wanted](Self::wants), or the connection cannot be used.
    ///
    /// # Panics
    /// There is no such rail.
    pub fn attach(&mut self, rail: usize, connection: Connection) -> Result<(), TransportError> {
        if !self.wants(rail) {
            let text = format!("it is {:?}", self.rails[rail].condition);
            return Err(TransportError::system(format!("attach rail {rail}"), text));
        }
        self.rails[rail].reset();
        let prepared = self.rails[rail].initialise(self.depth, connection.is_spare());
        self.shared.note(rail, prepared.as_ref().err());
        prepared?;
        self.open(rail, connection)
    }

    fn open(&mut self, rail: usize, connection: Connection) -> Result<(), TransportError> {
        let hello = self.hello(rail);
        self.connections += 1;
        self.rails[rail].connect(connection, &hello)
    }

    /// Says that a rail has failed, whatever its device thinks.
    ///
    /// # Panics
    /// There is no such rail.
    pub fn suspect(&mut self, rail: usize) {
        if self.rails[rail].condition == Condition::Attached {
            self.polled = None;
            self.feed(Input::Failed(rail_name(rail)));
        }
    }

    /// Looks at the NICs, gives up rails that are silent, seeks what is missing, and has the next poll look at every rail: for
    /// whoever sleeps between polls. Many polls in vain do the same.
    pub fn look_around(&mut self) {
        self.glances.hurry();
        self.look_further();
    }

    fn look_further(&mut self) {
        self.idle_polls = 0;
        self.look_at_nic();
        self.look_for_silence();
        // Where there was no thread to be had there may be one now.
        self.seek();
    }

    /// Gives up rails whose other host is out of reach although nothing else says so.
    fn look_for_silence(&mut self) {
        for rail in 0..self.rails.len() {
            let pair = self.rails[rail].pair.as_ref();
            let silence = pair.and_then(|pair| pair.silence());
            if silence.is_some_and(|silence| silence.beyond_repetition() > self.settings.silence) {
                self.suspect(rail);
            }
        }
    }

    /// When a poll is worthwhile although nothing is readable: pauses and limits end then.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let deadline = self.machine.deadline()?;
        self.started.checked_add(Duration::from_nanos(deadline.0))
    }

    /// Descriptors of all rails: each is readable when a poll is worthwhile.
    pub fn descriptors(&self, into: &mut Vec<RawFd>) {
        let pairs = self.rails.iter().filter_map(|rail| rail.pair.as_ref());
        into.extend(pairs.filter_map(|pair| pair.descriptor()));
    }

    /// How this end introduces itself on a rail.
    fn hello(&self, rail: usize) -> Hello {
        let (end, layout) = (&self.rails[rail], self.rails[rail].layout);
        let (mail, log) =
            (end.region().remote(layout.mail_in(rail)), end.region().remote(layout.log()));
        let opened = self.shared.opened(rail);
        let table = opened.table.remote(Keys::table(rail));
        let records = opened.records.remote(0);
        Hello {
            identity: self.identity,
            rail: rail as u64,
            evidence: self.settings.evidence as u64,
            key: u64::from(mail.key.0),
            mail: mail.address,
            log: log.address,
            log_entries: layout.entries as u64,
            table_key: u64::from(table.key.0),
            table: table.address,
            records_key: u64::from(records.key.0),
            records: records.address,
            record_count: self.shared.record_count,
            client: self.client,
        }
    }

    /// Checks how the peer introduces itself, and lets the rail join.
    pub(super) fn greeted(&mut self, rail: usize, hello: Option<Hello>) {
        let is_ours = hello.is_some_and(|hello| {
            hello.rail == rail as u64
                && hello.evidence == self.settings.evidence as u64
                && hello.identity != self.identity
                && self.peer.is_none_or(|peer| peer == hello.identity)
                && (self.settings.evidence != Evidence::Log || hello.log_entries > 0)
        });
        let (true, Some(hello)) = (is_ours, hello) else {
            let text = format!("rail {rail}: the peer is not the other end of this queue pair");
            self.fault.get_or_insert(TransportError::Protocol(text));
            return self.feed(Input::Refused(None));
        };
        if self.peer.is_none() {
            self.peer = Some(hello.identity);
            self.machine.set_client(hello.client);
        }
        self.rails[rail].hello = Some(hello);
        if rail > 0 {
            self.rails[rail].read_table();
        }
        let log_entries = match self.settings.evidence {
            Evidence::Log => self.rails[rail].log_entries() as u64,
            Evidence::Resend | Evidence::Handshake => u64::MAX,
        };
        let leads = self.identity > hello.identity;
        self.feed(Input::Joined { rail: rail_name(rail), leads, log_entries });
    }

    /// Read once in a poll, and not for what is posted until the next: nothing begins or ends with a request that
    /// could not wait for a poll.
    pub(super) fn now(&mut self) -> Timestamp {
        *self.polled.get_or_insert_with(|| {
            let elapsed = clock::now().saturating_duration_since(self.started);
            Timestamp(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
        })
    }

    /// Hands one input to the machine and does what it says.
    pub(super) fn feed(&mut self, input: Input<'_>) {
        if matches!(self.state, State::Reset | State::Error) {
            return;
        }
        let now = self.now();
        let mut outputs = std::mem::take(&mut self.outputs);
        self.machine.handle(now, input, &mut outputs);
        self.gather(|this| outputs.drain(..).for_each(|output| this.perform(output)));
        self.outputs = outputs;
    }

    /// Posts what `action` lets the rails gather as one list on each.
    pub(super) fn gather<T>(&mut self, action: impl FnOnce(&mut Self) -> T) -> T {
        let is_within = std::mem::replace(&mut self.is_gathering, true);
        let outcome = action(self);
        self.is_gathering = is_within;
        if !is_within {
            self.rails.iter_mut().for_each(RailEnd::post_gathered);
        }
        outcome
    }

    fn transition(&mut self, transition: Transition) -> Result<(), PostError> {
        self.state = self.state.after(transition).ok_or(PostError::WrongState(self.state))?;
        Ok(())
    }
}

impl QueuePair for VirtualQp {
    fn state(&self) -> State {
        self.state
    }

    fn fault(&self) -> Option<&TransportError> {
        self.fault.as_ref()
    }

    fn initialise(&mut self) -> Result<(), PostError> {
        self.transition(Transition::Initialise)?;
        let prepared = self.rails[0].initialise(self.depth, false);
        prepared.map_err(|cause| {
            self.fault = Some(cause);
            self.state = State::Reset;
            PostError::WrongState(State::Reset)
        })
    }

    fn connect(&mut self, connection: Connection) -> Result<(), TransportError> {
        if self.state != State::Init {
            let cause = PostError::WrongState(self.state);
            return Err(TransportError::system("connect a queue pair", cause));
        }
        self.open(0, connection)?;
        self.state = State::ReadyToSend;
        self.seek();
        Ok(())
    }

    fn post_send(&mut self, request: WorkRequest) -> Result<(), PostError> {
        match self.state {
            State::Reset | State::Init | State::ReadyToReceive => {
                Err(PostError::WrongState(self.state))
            }
            State::ReadyToSend | State::Error if self.requests.len() >= self.depth.sends => {
                Err(PostError::QueueFull)
            }
            State::ReadyToSend => {
                self.requests.push_back(request);
                self.feed(Input::Submit(descriptor(&request)));
                Ok(())
            }
            State::Error => {
                self.give_back(request);
                Ok(())
            }
        }
    }

    fn post_send_list(&mut self, requests: &[WorkRequest]) -> Result<(), (usize, PostError)> {
        self.gather(|this| {
            let mut numbered = requests.iter().enumerate();
            numbered.try_for_each(|(index, request)| {
                this.post_send(*request).map_err(|cause| (index, cause))
            })
        })
    }

    fn post_receive(&mut self, request: ReceiveRequest) -> Result<(), PostError> {
        match self.state {
            State::Reset => Err(PostError::WrongState(self.state)),
            State::Error => {
                self.give_back_receive(request);
                Ok(())
            }
            _ if self.receives.len() >= self.depth.receives => Err(PostError::QueueFull),
            State::Init | State::ReadyToReceive | State::ReadyToSend => {
                self.receives.push_back(request);
                self.feed(Input::SubmitReceive);
                Ok(())
            }
        }
    }

    fn poll_into(&mut self, completions: &mut Vec<Completion>, _: &mut dyn Landings) -> bool {
        self.polled = None;
        let mut moved = self.has_finds();
        if moved {
            self.take_finds();
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        let (active, glances) = (self.active(), self.rails.len() > 1 && self.glances());
        for rail in 0..self.rails.len() {
            if rail == active || glances || self.rails[rail].is_busy() {
                moved |= self.poll_rail(rail, &mut arrived);
            }
        }
        self.arrived = arrived;
        moved |= self.part();
        if let Some(deadline) = self.machine.deadline()
            && deadline <= self.now()
        {
            self.feed(Input::Tick);
            moved = true;
        }
        moved |= !self.ready.is_empty();
        completions.append(&mut self.ready);
        self.idle_polls = if moved { 0 } else { self.idle_polls + 1 };
        if self.idle_polls >= POLLS_PER_LOOK {
            self.look_further();
        }
        moved
    }

    fn fail(&mut self) {
        let text = TransportError::PeerGone("fenced by its owner".into());
        self.fault.get_or_insert(text);
        self.finish(None);
    }

    fn reset(&mut self) {
        for rail in &mut self.rails {
            rail.reset();
        }
        let attempts = self.machine.attempts();
        self.machine = machine(&self.settings, self.depth);
        self.machine.set_attempts(attempts);
        let layout = self.rails[0].layout;
        for entry in 0..layout.entries {
            self.rails[0].control.store(layout.log() + entry * super::WORD, 0);
        }
        self.requests.clear();
        self.receives.clear();
        self.ready.clear();
        (self.first_request, self.first_receive) = (0, 0);
        (self.fault, self.peer) = (None, None);
        (self.refusal, self.parting) = (None, None);
        // With none left it keeps the old number, whose record is free again.
        self.client = self.shared.next_client().unwrap_or(self.client);
        self.state = State::Reset;
        self.dismiss_shadow();
    }

    fn flushed(&self) -> bool {
        let is_idle = self.requests.is_empty() || self.state == State::Error;
        let mut pairs = self.rails.iter().filter_map(|rail| rail.pair.as_ref());
        is_idle && pairs.all(|pair| pair.flushed())
    }

    fn in_flight(&self) -> bool {
        let has_requests = self.state == State::ReadyToSend && !self.requests.is_empty();
        let mut pairs = self.rails.iter().filter_map(|rail| rail.pair.as_ref());
        has_requests || pairs.any(|pair| pair.in_flight())
    }

    fn silence(&self) -> Option<Silence> {
        self.rails[self.active()].pair.as_ref()?.silence()
    }

    fn look_at_nic(&self) {
        self.rails.iter().filter_map(|rail| rail.pair.as_ref()).for_each(|pair| pair.look_at_nic());
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.rails[self.active()].pair.as_ref()?.descriptor()
    }

    fn needs_poll(&self) -> bool {
        let mut pairs = self.rails.iter().filter_map(|rail| rail.pair.as_ref());
        let is_repairing = self.state == State::ReadyToSend && !self.machine.is_running();
        let is_due = !self.ready.is_empty() || self.parting.is_some() || self.has_finds();
        is_due || is_repairing || pairs.any(|pair| pair.needs_poll())
    }
}

fn machine(settings: &VirtualSettings, depth: Depth) -> Queue {
    Queue::new(settings.evidence, settings.limits, &settings.standings, depth.sends)
}

pub(super) fn rail_name(rail: usize) -> Rail {
    Rail(u8::try_from(rail).expect("a queue has fewer than 256 rails"))
}
