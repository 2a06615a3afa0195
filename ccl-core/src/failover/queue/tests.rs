//! Transcripts of one end, and two ends over rails whose journeys take any time and end anywhere.

use std::collections::VecDeque;
use std::fmt::Write;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    answer_ns: 300,
    repair_ns: 10_000,
    patience_ns: 1_000,
    retry_ns: 10,
    settle_ns: 50,
    drain_ns: 40,
};

fn request(kind: Kind) -> Input<'static> {
    Input::Submit(Descriptor { kind, bytes: 8, signalled: true })
}

fn joined(rail: u8, leads: bool) -> Input<'static> {
    Input::Joined { rail: Rail(rail), leads, log_entries: 8 }
}

/// A scenario is a list of inputs; the expectation is the whole transcript.
fn play(evidence: Evidence, rails: usize, inputs: &[(u64, Input<'_>)]) -> String {
    let mut queue = Queue::new(evidence, LIMITS, &vec![Standing::default(); rails], 8);
    let mut out = Vec::new();
    let mut transcript = String::from("\n");
    for &(now, input) in inputs {
        queue.handle(Timestamp(now), input, &mut out);
        writeln!(transcript, "{now} {input:?}").unwrap();
        for output in out.drain(..) {
            writeln!(transcript, "    {output:?}").unwrap();
        }
    }
    transcript
}

#[test]
fn the_leader_resends_everything_without_evidence() {
    let transcript = play(
        Evidence::Resend,
        2,
        &[
            (0, joined(0, true)),
            (0, joined(1, true)),
            (1, request(Kind::Write)),
            (1, request(Kind::Write)),
            (2, Input::Executed(Sequence(0))),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
            (5, Input::Heard(Rail(1), Message::Accept { epoch: Epoch(1), delivered: 0 })),
            (6, Input::Executed(Sequence(1))),
        ],
    );
    assert_eq!(
        transcript,
        "
0 Joined { rail: Rail(0), leads: true, log_entries: 8 }
0 Joined { rail: Rail(1), leads: true, log_entries: 8 }
1 Submit(Descriptor { kind: Write, bytes: 8, signalled: true })
    Post { rail: Rail(0), sequence: Sequence(0), entry: None }
1 Submit(Descriptor { kind: Write, bytes: 8, signalled: true })
    Post { rail: Rail(0), sequence: Sequence(1), entry: None }
2 Executed(Sequence(0))
    Complete { sequence: Sequence(0), result: None }
3 Failed(Rail(0))
    Fence(Rail(0))
4 Drained(Rail(0))
    Say(Rail(1), Resume { epoch: Epoch(1), delivered: 0 })
5 Heard(Rail(1), Accept { epoch: Epoch(1), delivered: 0 })
    Post { rail: Rail(1), sequence: Sequence(1), entry: None }
6 Executed(Sequence(1))
    Complete { sequence: Sequence(1), result: None }
"
    );
}

#[test]
fn the_follower_fences_before_it_accepts_and_counts_spare_what_arrived() {
    let transcript = play(
        Evidence::Handshake,
        2,
        &[
            (0, joined(0, false)),
            (0, joined(1, false)),
            (1, Input::SubmitReceive),
            (1, Input::SubmitReceive),
            (1, request(Kind::Write)),
            (1, request(Kind::Send)),
            (1, request(Kind::Write)),
            (2, Input::Delivered),
            (3, Input::Heard(Rail(1), Message::Resume { epoch: Epoch(1), delivered: 1 })),
            (4, Input::Drained(Rail(0))),
        ],
    );
    let tail = transcript.split("3 Heard").nth(1).unwrap();
    assert_eq!(
        tail,
        "(Rail(1), Resume { epoch: Epoch(1), delivered: 1 })
    Fence(Rail(0))
4 Drained(Rail(0))
    PostReceive { rail: Rail(1), receive: Sequence(1) }
    Say(Rail(1), Accept { epoch: Epoch(1), delivered: 1 })
    Complete { sequence: Sequence(0), result: None }
    Complete { sequence: Sequence(1), result: None }
    Post { rail: Rail(1), sequence: Sequence(2), entry: None }
"
    );
}

#[test]
fn the_log_tells_in_the_middle_of_a_batch_and_a_second_failure_changes_nothing() {
    let words = [LogEntry::new(Epoch(0), Sequence(0)).0, LogEntry::new(Epoch(0), Sequence(1)).0, 0];
    let transcript = play(
        Evidence::Log,
        3,
        &[
            (0, joined(0, true)),
            (0, joined(1, true)),
            (0, joined(2, true)),
            (1, request(Kind::Write)),
            (1, request(Kind::Send)),
            (1, request(Kind::FetchAdd { addend: 5 })),
            (1, request(Kind::Write)),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
            (5, Input::Failed(Rail(1))),
            (5, Input::Heard(Rail(1), Message::Accept { epoch: Epoch(1), delivered: 0 })),
            (6, Input::Drained(Rail(1))),
            (7, Input::Heard(Rail(2), Message::Accept { epoch: Epoch(2), delivered: 0 })),
            (8, Input::Log(Rail(2), &words)),
            (9, Input::Answered(Answer::Word(40))),
        ],
    );
    let tail = transcript.split("\n1 ").nth(4).unwrap();
    let token = 0xb5c_u64 << 52;
    assert_eq!(
        tail,
        format!(
            "Submit(Descriptor {{ kind: Write, bytes: 8, signalled: true }})
3 Failed(Rail(0))
    Fence(Rail(0))
4 Drained(Rail(0))
    Say(Rail(1), Resume {{ epoch: Epoch(1), delivered: 0 }})
5 Failed(Rail(1))
    Fence(Rail(1))
5 Heard(Rail(1), Accept {{ epoch: Epoch(1), delivered: 0 }})
6 Drained(Rail(1))
    Say(Rail(2), Resume {{ epoch: Epoch(2), delivered: 0 }})
7 Heard(Rail(2), Accept {{ epoch: Epoch(2), delivered: 0 }})
    ReadLog(Rail(2))
8 Log(Rail(2), {words:?})
    Complete {{ sequence: Sequence(0), result: None }}
    Complete {{ sequence: Sequence(1), result: None }}
    Step {{ rail: Rail(2), sequence: Sequence(2), step: Look }}
9 Answered(Word(40))
    Step {{ rail: Rail(2), sequence: Sequence(2), step: Try {{ expected: 40, token: {token}, value: 45 }} }}
"
        )
    );
}

#[test]
fn an_outstanding_atomic_without_a_log_is_an_error_of_its_own() {
    let transcript = play(
        Evidence::Handshake,
        2,
        &[
            (0, joined(0, true)),
            (0, joined(1, true)),
            (1, request(Kind::FetchAdd { addend: 5 })),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
        ],
    );
    assert!(transcript.ends_with("    Dead(AtomicOutstanding(Sequence(0)))\n"), "{transcript}");
}

#[test]
fn without_a_rail_it_waits_as_long_as_it_was_told_to() {
    let start = [
        (0, joined(0, true)),
        (1, request(Kind::Write)),
        (3, Input::Failed(Rail(0))),
        (4, Input::Drained(Rail(0))),
    ];
    let mut inputs = start.to_vec();
    inputs.extend([(500, Input::Tick), (600, joined(1, true))]);
    let transcript = play(Evidence::Log, 2, &inputs);
    let end = "    Revive(Rail(0))\n600 Joined { rail: Rail(1), leads: true, log_entries: 8 }\n    \
               Say(Rail(1), Resume { epoch: Epoch(1), delivered: 0 })\n";
    assert!(transcript.ends_with(end), "{transcript}");
    let mut inputs = start.to_vec();
    inputs.push((1003, Input::Tick));
    let transcript = play(Evidence::Log, 2, &inputs);
    assert!(transcript.ends_with("1003 Tick\n    Dead(NoRail)\n"), "{transcript}");
}

/// As of lists of requests of which only the last is signalled.
#[test]
fn what_is_executed_says_the_same_of_everything_before_it() {
    let silent = |kind| Input::Submit(Descriptor { kind, bytes: 8, signalled: false });
    let inputs = [
        (0, joined(0, true)),
        (1, silent(Kind::Write)),
        (2, silent(Kind::Read)),
        (3, request(Kind::Write)),
        (4, request(Kind::Write)),
        (5, Input::Executed(Sequence(2))),
    ];
    let transcript = play(Evidence::Resend, 1, &inputs);
    let end = "5 Executed(Sequence(2))
    Complete { sequence: Sequence(0), result: None }
    Complete { sequence: Sequence(1), result: None }
    Complete { sequence: Sequence(2), result: None }\n";
    assert!(transcript.ends_with(end), "{transcript}");
}

#[test]
fn the_return_withholds_requests_until_both_ends_are_drained() {
    let silent = Input::Submit(Descriptor { kind: Kind::Write, bytes: 8, signalled: false });
    let transcript = play(
        Evidence::Log,
        2,
        &[
            (0, joined(0, true)),
            (0, joined(1, true)),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
            (5, Input::Heard(Rail(1), Message::Accept { epoch: Epoch(1), delivered: 0 })),
            (6, Input::Log(Rail(1), &[0])),
            (14, Input::Tick),
            (20, joined(0, true)),
            (60, silent),
            (70, Input::Tick),
            (71, request(Kind::Write)),
            (72, request(Kind::Write)),
            (73, Input::Executed(Sequence(0))),
            (74, Input::Executed(Sequence(1))),
            (75, Input::Heard(Rail(1), Message::Drained(1))),
            (76, Input::Drained(Rail(1))),
            (77, Input::Heard(Rail(0), Message::Accept { epoch: Epoch(2), delivered: 0 })),
            (78, Input::Log(Rail(0), &[0])),
        ],
    );
    let tail = transcript.split("\n70 ").nth(1).unwrap();
    let entry = |epoch, sequence| LogEntry::new(Epoch(epoch), Sequence(sequence));
    assert_eq!(
        tail,
        format!(
            "Tick
    Say(Rail(1), Return(1))
71 Submit(Descriptor {{ kind: Write, bytes: 8, signalled: true }})
    Post {{ rail: Rail(1), sequence: Sequence(1), entry: Some({:?}) }}
72 Submit(Descriptor {{ kind: Write, bytes: 8, signalled: true }})
73 Executed(Sequence(0))
    Complete {{ sequence: Sequence(0), result: None }}
74 Executed(Sequence(1))
    Complete {{ sequence: Sequence(1), result: None }}
75 Heard(Rail(1), Drained(1))
    Fence(Rail(1))
76 Drained(Rail(1))
    Say(Rail(0), Resume {{ epoch: Epoch(2), delivered: 0 }})
77 Heard(Rail(0), Accept {{ epoch: Epoch(2), delivered: 0 }})
    ReadLog(Rail(0))
78 Log(Rail(0), [0])
    Post {{ rail: Rail(0), sequence: Sequence(2), entry: Some({:?}) }}
",
            entry(1, 1),
            entry(2, 2)
        )
    );
}

/// The default rail fails and comes back, twice. Nothing is wrong with the backup, whose end this end hears of
/// in both ways.
#[test]
fn a_backup_that_is_left_does_not_wait_longer_for_it() {
    let resume = |rail, epoch| {
        Input::Heard(Rail(rail), Message::Resume { epoch: Epoch(epoch), delivered: 0 })
    };
    let transcript = play(
        Evidence::Handshake,
        2,
        &[
            (0, joined(0, false)),
            (0, joined(1, false)),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
            (5, resume(1, 1)),
            (14, Input::Tick),
            (20, joined(0, false)),
            (70, Input::Heard(Rail(1), Message::Return(1))),
            (71, resume(0, 2)),
            (72, Input::Drained(Rail(1))),
            (82, Input::Tick),
            (90, joined(1, false)),
            (100, Input::Failed(Rail(0))),
            (101, Input::Drained(Rail(0))),
            (102, resume(1, 3)),
            (121, Input::Tick),
            (130, joined(0, false)),
            (180, Input::Heard(Rail(1), Message::Return(2))),
            (181, Input::Failed(Rail(1))),
            (182, Input::Drained(Rail(1))),
            (183, resume(0, 4)),
            (192, Input::Tick),
        ],
    );
    for end in ["\n82 Tick\n    Revive(Rail(1))\n", "\n192 Tick\n    Revive(Rail(1))\n"] {
        assert!(transcript.contains(end), "{transcript}");
    }
}

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
