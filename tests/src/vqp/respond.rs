//! The responder: serves, answers, and checks what has arrived.

use std::io::Write as _;

use ccl::vqp::{Completion, Evidence, Key, Listener, ReceiveRequest, State, WorkId};
use serde::{Deserialize, Serialize};

use super::arguments::Arguments;
use super::data::Slots;
use super::latency::{CHECKED_BYTES, WORD_OFFSET, fill_words, places, write};
use super::local;
use super::meet::{Ends, Role, stuck, succeeded, unsuccessful};
use super::plan::{Plan, Test};
use crate::Outcome;
use crate::error::Failure;
use crate::stopwatch::Stopwatch;

/// Polls in vain before the clock and the line to the initiator are looked at.
const POLLS_PER_LOOK: u32 = 32;
/// Every so many messages all bytes are compared, and of the others the ends.
const MESSAGES_PER_LOOK: u64 = 64;

/// What the responder says of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// What was wrong.
    pub wrong: Option<String>,
    /// Messages that came more than once.
    pub repeated: u64,
}

/// The responder's side of a run.
///
/// # Errors
/// The initiator goes, a queue pair fails, or what arrives is wrong.
pub fn run(test: Test, arguments: &Arguments, role: &Role) -> Outcome<()> {
    let (plan, mut ends) = match arguments.launcher {
        Some(launcher) => listen_for(launcher, test, arguments, role)?,
        None => {
            announce(arguments, role)?;
            Ends::answer(test, arguments, role)?
        }
    };
    for (index, &bytes) in plan.sizes.iter().enumerate() {
        ends.begin_row(index)?;
        let verdict = Row::new(&mut ends, &plan, bytes)?.serve()?;
        let () = ends.exchange(&verdict)?;
        if let Some(wrong) = verdict.wrong {
            return Err(Failure::Results(wrong));
        }
    }
    Ok(())
}

/// A server of `--local` says where it listens before it waits.
fn listen_for(
    launcher: i32,
    test: Test,
    arguments: &Arguments,
    role: &Role,
) -> Outcome<(Plan, Ends)> {
    let failed = |cause| Failure::system("waiting for the client", cause);
    let key = Key::from_environment().map_err(failed)?;
    let listener = Listener::bind(local::ADDRESS, key.clone()).map_err(failed)?;
    local::attach(launcher, listener.address().map_err(failed)?)?;
    let meeting = listener.accept(arguments.limit).map_err(failed)?;
    Ends::answer_over(meeting, test, (&role.devices(arguments), &key))
}

fn announce(arguments: &Arguments, role: &Role) -> Outcome<()> {
    if *role != Role::Server {
        return Ok(());
    }
    let mut output = std::io::stdout();
    writeln!(output, "# waiting for a client on port {}", arguments.port)
        .and_then(|()| output.flush())
        .map_err(|cause| Failure::system("writing", cause))
}

/// One row as the responder sees it.
#[derive(Debug)]
struct Row<'a> {
    ends: &'a mut Ends,
    plan: &'a Plan,
    bytes: usize,
    /// Of each queue pair: receives posted, and the number of the message that is next.
    received: Vec<(u64, u64)>,
    /// The number of the next answer.
    answer: u64,
    verdict: Verdict,
}

impl<'a> Row<'a> {
    fn new(ends: &'a mut Ends, plan: &'a Plan, bytes: usize) -> Outcome<Self> {
        let received = vec![(0, 1); plan.pairs];
        let verdict = Verdict::default();
        let mut row = Self { ends, plan, bytes, received, answer: 1, verdict };
        row.prepare()?;
        row.ends.agree(b"go")?;
        Ok(row)
    }

    fn prepare(&mut self) -> Outcome<()> {
        let memory = self.ends.region.memory().clone();
        for pair in 0..self.plan.pairs {
            let slots = self.ends.slots(pair, self.bytes);
            match self.plan.test {
                Test::ReadBandwidth => slots.fill(&memory),
                Test::WriteBandwidth => slots.clear(&memory),
                Test::SendBandwidth => {
                    for _ in 0..self.plan.receive_slots(self.bytes) {
                        self.post_receive(pair)?;
                    }
                }
                Test::WriteLatency => {
                    let [outgoing, incoming] = places(self.bytes);
                    outgoing.fill(&memory);
                    incoming.clear(&memory);
                }
                Test::AtomicLatency => {
                    memory.store(WORD_OFFSET, 0);
                    fill_words(&memory, self.plan);
                }
            }
        }
        Ok(())
    }

    fn receive_slots(&self, pair: usize) -> Slots {
        let slots = self.ends.slots(pair, self.bytes);
        Slots { count: self.plan.receive_slots(self.bytes), ..slots }
    }

    fn post_receive(&mut self, pair: usize) -> Outcome<()> {
        let (posted, _) = &mut self.received[pair];
        let number = *posted;
        *posted += 1;
        let slots = self.receive_slots(pair);
        let offset = slots.offset(slots.of(number));
        let target = Some(self.ends.region.segment(offset, self.bytes));
        let request = ReceiveRequest { id: WorkId(number), target };
        self.ends.pairs[pair]
            .post_receive(request)
            .map_err(|cause| Failure::system("posting a receive", cause))
    }

    /// Serves until the initiator says that it is done, and checks what it has done.
    fn serve(mut self) -> Outcome<Verdict> {
        let mut completions = Vec::new();
        let mut idle = 0;
        let mut still = Stopwatch::start();
        loop {
            let mut moved = false;
            for pair in 0..self.plan.pairs {
                moved |= self.ends.pairs[pair].poll(&mut completions);
                for completion in completions.drain(..) {
                    self.take(pair, &completion)?;
                }
            }
            moved |= self.answer()?;
            if moved {
                idle = 0;
                still = Stopwatch::start();
                continue;
            }
            idle += 1;
            self.ends.rest()?;
            if self.plan.events || idle % POLLS_PER_LOOK == 0 {
                if self.ends.meeting.has_message() {
                    break;
                }
                self.check_health(&still)?;
            }
        }
        let posted: Vec<u64> = self.ends.exchange(&())?;
        self.judge(&posted);
        Ok(self.verdict)
    }

    fn check_health(&self, still: &Stopwatch) -> Outcome<()> {
        let is_over = still.wall_s() > self.plan.limit.as_secs_f64();
        let failed = |pair: &usize| self.ends.pairs[*pair].state() == State::Error;
        match (0..self.plan.pairs).find(|pair| is_over || failed(pair)) {
            None => Ok(()),
            Some(pair) => Err(stuck(&self.ends.pairs[pair], pair, self.plan)),
        }
    }

    /// A message has arrived, or an answer has left.
    fn take(&mut self, pair: usize, completion: &Completion) -> Outcome<()> {
        if !succeeded(completion) {
            return Err(unsuccessful(&self.ends.pairs[pair], pair, completion));
        }
        if self.plan.test != Test::SendBandwidth {
            return Ok(());
        }
        let receives = self.receive_slots(pair);
        self.heard(pair, receives.offset(receives.of(completion.id.0)));
        self.post_receive(pair)
    }

    /// Checks which message it is that lies at `offset`.
    fn heard(&mut self, pair: usize, offset: usize) {
        let sends = self.ends.slots(pair, self.bytes);
        let memory = self.ends.region.memory();
        let (seen, next) = (sends.first_stamp(memory, offset), self.received[pair].1);
        let is_earlier = |back: &u64| *back < next && seen == sends.truncated(next - back);
        let may_repeat = self.plan.evidence == Evidence::Resend.name();
        if seen == sends.truncated(next) {
            let is_looked_at = next.is_multiple_of(MESSAGES_PER_LOOK);
            if is_looked_at && !sends.is_right(memory, offset, (sends.of(next), next)) {
                self.wrong(format!("message {next} of queue pair {pair} has other bytes"));
            }
            self.received[pair].1 = next + 1;
        } else if may_repeat && let Some(back) = (1..=sends.count as u64).find(is_earlier) {
            // What is repeated comes in order again, from this one to the one before the next.
            self.verdict.repeated += back;
            self.received[pair].1 = next - back + 1;
        } else {
            self.wrong(format!("queue pair {pair}: message {seen} in place of {next}"));
            self.received[pair].1 = next + 1;
        }
    }

    /// Writes back what has been written here.
    fn answer(&mut self) -> Outcome<bool> {
        if self.plan.test != Test::WriteLatency {
            return Ok(false);
        }
        let [outgoing, incoming] = places(self.bytes);
        let memory = self.ends.region.memory();
        if !incoming.has_arrived(memory, self.answer) {
            return Ok(false);
        }
        let number = self.answer;
        let is_right =
            self.bytes > CHECKED_BYTES || incoming.is_right(memory, incoming.start, (0, number));
        if !is_right {
            self.wrong(format!("write {number} has other bytes"));
        }
        write(self.ends, number, [outgoing, incoming])?;
        self.answer += 1;
        Ok(true)
    }

    /// What the initiator says it has done, against what is here.
    fn judge(&mut self, posted: &[u64]) {
        let memory = self.ends.region.memory().clone();
        for (pair, &count) in posted.iter().enumerate().take(self.plan.pairs) {
            let slots = self.ends.slots(pair, self.bytes);
            match self.plan.test {
                Test::WriteBandwidth => {
                    let wrong = slots.wrong(&memory, count);
                    if wrong > 0 {
                        self.wrong(format!("{wrong} slots of queue pair {pair} are wrong"));
                    }
                }
                Test::SendBandwidth => {
                    let heard = self.received[pair].1 - 1;
                    if heard != count {
                        let text = format!("queue pair {pair}: {heard} messages of {count} came");
                        self.wrong(text);
                    }
                }
                Test::WriteLatency if self.answer != count + 1 => {
                    let answered = self.answer - 1;
                    self.wrong(format!("{answered} writes of {count} came"));
                }
                Test::AtomicLatency if memory.load(WORD_OFFSET) != count => {
                    let word = memory.load(WORD_OFFSET);
                    self.wrong(format!("the word is {word} after {count} atomics"));
                }
                Test::ReadBandwidth | Test::WriteLatency | Test::AtomicLatency => {}
            }
        }
    }

    /// The first thing that is wrong is told.
    fn wrong(&mut self, what: String) {
        self.verdict.wrong.get_or_insert(what);
    }
}
