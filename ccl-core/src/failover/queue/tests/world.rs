//! Two ends and what lies between them, in which anything may happen at any time.

use super::*;

const RAILS: usize = 3;
const ENTRIES: u64 = 8;

/// On its way from one end to the other.
#[derive(Clone, Copy, Debug)]
enum Cargo {
    Request(Sequence),
    Entry(LogEntry),
    /// Completes the request at its origin.
    Done(Sequence),
    Mail(Message),
    ReadLog,
    LogIs([u64; ENTRIES as usize]),
}

/// One connection over a rail. What an end sent is on its way also after that end has fenced it.
#[derive(Debug, Default)]
struct Line {
    is_connected: bool,
    cargo: [VecDeque<Cargo>; 2],
    is_fenced: [bool; 2],
    is_free: [bool; 2],
}

#[derive(Debug)]
struct End {
    queue: Queue,
    kinds: Vec<Kind>,
    /// Requests of the peer in the order in which they were executed here.
    executed: Vec<Sequence>,
    log: [u64; ENTRIES as usize],
    completed: u64,
    undrained: Vec<Rail>,
    receives: u64,
}

struct World {
    now: u64,
    evidence: Evidence,
    ends: [End; 2],
    lines: Vec<Line>,
    cause: Option<Cause>,
}

impl World {
    fn new(evidence: Evidence) -> Self {
        let end = || End {
            queue: Queue::new(evidence, LIMITS, &[Standing::default(); RAILS], 8),
            kinds: Vec::new(),
            executed: Vec::new(),
            log: [0; ENTRIES as usize],
            completed: 0,
            undrained: Vec::new(),
            receives: 0,
        };
        let line = || Line { is_free: [true; 2], ..Line::default() };
        let lines = (0..RAILS).map(|_| line()).collect();
        let mut world = Self { now: 0, evidence, ends: [end(), end()], lines, cause: None };
        for rail in 0..RAILS {
            world.connect(rail);
        }
        for end in 0..2 {
            for _ in 0..200 {
                world.feed(end, Input::SubmitReceive);
            }
        }
        world
    }

    fn connect(&mut self, rail: usize) {
        if self.lines[rail].is_free != [true; 2] {
            return;
        }
        self.lines[rail] = Line { is_connected: true, ..Line::default() };
        for end in 0..2 {
            let (rail, leads) = (Rail(rail as u8), end == 0);
            self.feed(end, Input::Joined { rail, leads, log_entries: ENTRIES });
        }
    }

    fn feed(&mut self, end: usize, input: Input<'_>) {
        let mut out = Vec::new();
        self.ends[end].queue.handle(Timestamp(self.now), input, &mut out);
        for output in out {
            self.perform(end, output);
        }
    }

    fn send(&mut self, end: usize, rail: Rail, cargo: Cargo) {
        let line = &mut self.lines[rail.index()];
        assert!(!line.is_fenced[end], "posted on a rail that is fenced");
        line.cargo[end].push_back(cargo);
    }

    fn perform(&mut self, end: usize, output: Output) {
        match output {
            Output::Post { rail, sequence, entry } => {
                self.send(end, rail, Cargo::Request(sequence));
                if let Some(entry) = entry {
                    self.send(end, rail, Cargo::Entry(entry));
                }
            }
            Output::PostReceive { .. } => self.ends[end].receives += 1,
            Output::Fence(rail) => {
                let line = &mut self.lines[rail.index()];
                (line.is_fenced[end], line.is_free[end]) = (true, false);
                self.ends[end].undrained.push(rail);
            }
            Output::Revive(rail) => self.lines[rail.index()].is_free[end] = true,
            Output::Say(rail, message) => self.send(end, rail, Cargo::Mail(message)),
            Output::ReadLog(rail) => self.send(end, rail, Cargo::ReadLog),
            Output::Complete { sequence, .. } => {
                assert_eq!(sequence.0, self.ends[end].completed);
                self.ends[end].completed += 1;
            }
            Output::Step { .. } => panic!("no atomics here"),
            Output::Dead(cause) => self.cause = Some(cause),
        }
    }

    /// The oldest cargo of one end on one rail arrives, unless the other end has fenced that.
    fn arrive(&mut self, from: usize, rail: usize) {
        let to = 1 - from;
        let line = &mut self.lines[rail];
        let Some(cargo) = line.cargo[from].pop_front() else { return };
        if line.is_fenced[to] {
            return;
        }
        let name = Rail(rail as u8);
        let is_logged = self.evidence == Evidence::Log;
        match cargo {
            Cargo::Request(sequence) => {
                let kind = self.ends[from].kinds[sequence.0 as usize];
                self.ends[to].executed.push(sequence);
                if kind == Kind::Send {
                    self.feed(to, Input::Delivered);
                }
                if !is_logged || kind == Kind::Read {
                    self.answer(to, rail, Cargo::Done(sequence));
                }
            }
            Cargo::Entry(entry) => {
                let sequence = entry.sequence(Epoch(MAX_EPOCH)).unwrap();
                self.ends[to].log[LogEntry::slot(sequence, ENTRIES) as usize] = entry.0;
                self.answer(to, rail, Cargo::Done(sequence));
            }
            Cargo::Done(sequence) => self.feed(to, Input::Executed(sequence)),
            Cargo::Mail(message) => self.feed(to, Input::Heard(name, message)),
            Cargo::ReadLog => {
                let log = self.ends[to].log;
                self.answer(to, rail, Cargo::LogIs(log));
            }
            Cargo::LogIs(words) => self.feed(to, Input::Log(name, &words)),
        }
    }

    /// An answer leaves even when the application of that end would not post any more.
    fn answer(&mut self, end: usize, rail: usize, cargo: Cargo) {
        self.lines[rail].cargo[end].push_back(cargo);
    }

    fn drain(&mut self, end: usize) {
        if let Some(rail) = self.ends[end].undrained.pop() {
            self.feed(end, Input::Drained(rail));
        }
    }

    /// An end notices that its peer has fenced a rail.
    fn notice(&mut self, end: usize, rail: usize) {
        let line = &self.lines[rail];
        if line.is_connected && line.is_fenced[1 - end] && !line.is_fenced[end] {
            self.feed(end, Input::Failed(Rail(rail as u8)));
        }
    }

    fn act(&mut self, action: u8, end: usize, rail: usize, kind: Kind) {
        self.now += 1;
        match action {
            0 if self.ends[end].kinds.len() as u64 - self.ends[end].completed < 8 => {
                self.ends[end].kinds.push(kind);
                self.feed(end, request(kind));
            }
            0..7 => self.arrive(end, rail),
            7 => self.drain(end),
            8 => self.notice(end, rail),
            9 if self.lines[rail].is_connected => self.feed(end, Input::Failed(Rail(rail as u8))),
            10 => self.feed(end, Input::Tick),
            _ => self.connect(rail),
        }
    }

    /// Faults have stopped: everything comes to an end.
    fn settle(&mut self) {
        for _ in 0..400 {
            for end in 0..2 {
                for rail in 0..RAILS {
                    for action in [8, 1, 7, 11] {
                        self.act(action, end, rail, Kind::Read);
                    }
                }
                self.act(10, end, 0, Kind::Read);
            }
        }
    }

    /// What was executed of `end`'s requests at its peer.
    fn check(&self, end: usize) {
        let (kinds, executed) = (&self.ends[end].kinds, &self.ends[1 - end].executed);
        assert_eq!(
            self.ends[end].completed,
            kinds.len() as u64,
            "{:?}\n{:?}\n{:?}",
            self.ends[end].queue.phase,
            self.ends[1 - end].queue,
            self.lines
        );
        let kind = |sequence: &Sequence| kinds[sequence.0 as usize];
        for number in 0..kinds.len() as u64 {
            assert!(executed.contains(&Sequence(number)));
        }
        if self.evidence == Evidence::Resend {
            return;
        }
        let mut newest = None;
        let lasting: Vec<Sequence> =
            executed.iter().copied().filter(|sequence| kind(sequence) != Kind::Read).collect();
        for sequence in lasting {
            match (self.evidence, kind(&sequence)) {
                (_, Kind::Send) => assert!(newest < Some(sequence), "{sequence:?} twice"),
                (Evidence::Log, _) => assert!(newest <= Some(sequence), "{sequence:?} late"),
                _ => assert!(newest < Some(sequence), "{sequence:?} after a later message"),
            }
            if self.evidence == Evidence::Log || kind(&sequence) == Kind::Send {
                newest = Some(sequence);
            }
        }
    }
}

fn any_action() -> impl Strategy<Value = (u8, usize, usize, Kind)> {
    let kind = prop_oneof![Just(Kind::Send), Just(Kind::Write), Just(Kind::Read)];
    (0u8..12, 0usize..2, 0usize..RAILS, kind)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_fails_whenever_everything_is_executed_in_order_and_completes(
        evidence in prop::sample::select(Evidence::ALL.to_vec()),
        actions in prop::collection::vec(any_action(), 0..400),
    ) {
        let mut world = World::new(evidence);
        for (action, end, rail, kind) in actions {
            world.act(action, end, rail, kind);
        }
        world.settle();
        prop_assert_eq!(world.cause, None);
        world.check(0);
        world.check(1);
    }
}
