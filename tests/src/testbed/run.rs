//! One run: starts the ranks, breaks cables when it is time, and waits for the end.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::arguments::Arguments;
use super::bed::Bed;
use super::failure::Outcome;
use super::fault::Action;
use super::journal::{Event, Journal, say};
use super::ranks::Job;
use super::timeline::Timeline;
use super::{clock, control};

/// Exit status when the time is over, as that of `timeout`.
const STATUS_LIMIT: u8 = 124;

/// How long the last words of ranks that have ended are waited for: a process that they left behind
/// may hold their output open.
const LAST_WORDS_NS: u64 = 1_000_000_000;

/// Something that happened while the command runs.
#[derive(Debug)]
pub enum Notice {
    /// A rank ended.
    Ended {
        /// Which.
        rank: usize,
        /// Its exit status.
        status: u8,
    },
    /// An output of a rank, of which each has two, ended.
    Silent,
    /// Rank 0 said the words from which faults count.
    Begun,
    /// Somebody asks for an action.
    Request {
        /// The action.
        action: Action,
        /// Where the answer goes.
        answer: Sender<Event>,
    },
}

/// Makes the bed, runs the command on it, and returns the worst exit status.
///
/// # Errors
/// There can be no bed, or the command cannot be started.
pub fn run(arguments: &Arguments) -> Outcome<u8> {
    let bed = Bed::build(arguments.shape())?;
    let job = Job {
        command: &arguments.command,
        ranks_per_host: arguments.ranks_per_host,
        from: arguments.from.as_deref(),
    };
    let (notices, inbox) = channel();
    let start_ns = clock::now_ns();
    let mut journal = Journal::open(arguments.json.as_deref(), start_ns)?;
    if let Some(name) = &arguments.control {
        obey(&bed, name, &notices)?;
    }
    job.start(&bed, &notices)?;
    journal.record(&Event::started(bed.shape(), arguments.ranks(), start_ns));
    let limit = arguments.limit.map(|limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
    let shape = bed.shape();
    let mut run = Run {
        bed,
        journal,
        timeline: Timeline::new(&arguments.faults, arguments.chaos.clone(), shape),
        origin_ns: arguments.from.is_none().then_some(start_ns),
        end_ns: limit.map_or(u64::MAX, |limit_ns| start_ns.saturating_add(limit_ns)),
        running: arguments.ranks(),
        outputs: 2 * arguments.ranks(),
        worst: 0,
    };
    run.until_all_end(&inbox);
    Ok(run.worst)
}

/// Takes orders from outside and from every host: the name of a socket is known in one network only.
fn obey(bed: &Bed, name: &str, notices: &Sender<Notice>) -> Outcome<()> {
    control::listen(name, notices)?;
    (0..bed.shape().hosts)
        .try_for_each(|host| bed.on_host(host, || control::listen(name, notices)).flatten())
}

/// A run that has begun.
#[derive(Debug)]
struct Run {
    bed: Bed,
    journal: Journal,
    timeline: Timeline,
    /// From when faults count; `None` as long as rank 0 has not said the words.
    origin_ns: Option<u64>,
    /// When it must be over.
    end_ns: u64,
    /// Ranks that have not ended.
    running: usize,
    /// Outputs that have not ended.
    outputs: usize,
    /// The worst exit status so far.
    worst: u8,
}

impl Run {
    fn until_all_end(&mut self, inbox: &Receiver<Notice>) {
        while self.running > 0 || self.outputs > 0 {
            let now_ns = clock::now_ns();
            if now_ns >= self.end_ns {
                return self.give_up();
            }
            if let Some(action) = self.due(now_ns) {
                let event = self.act(action);
                self.journal.record(&event);
                continue;
            }
            match inbox.recv_timeout(Duration::from_nanos(self.next_ns() - now_ns)) {
                Ok(notice) => self.handle(notice),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
    }

    fn handle(&mut self, notice: Notice) {
        match notice {
            Notice::Ended { rank, status } => self.ended(rank, status),
            Notice::Silent => self.outputs -= 1,
            Notice::Begun => self.origin_ns = Some(clock::now_ns()),
            Notice::Request { action, answer } => {
                let event = self.act(action);
                // Who asked may have left; the event is in the journal.
                let _ = answer.send(event.clone());
                self.journal.record(&event);
            }
        }
    }

    fn ended(&mut self, rank: usize, status: u8) {
        let at_ns = clock::now_ns();
        self.journal.record(&Event::Ended { rank, status, at_ns });
        self.worst = self.worst.max(status);
        self.running -= 1;
        if self.running == 0 {
            self.end_ns = self.end_ns.min(at_ns + LAST_WORDS_NS);
        }
    }

    fn act(&mut self, action: Action) -> Event {
        match self.bed.apply(action) {
            Ok(moment) => Event::fault(&action, moment),
            Err(failure) => Event::Refused { reason: failure.to_string() },
        }
    }

    /// The next fault, if it is time for it.
    fn due(&mut self, now_ns: u64) -> Option<Action> {
        let origin_ns = self.origin_ns.filter(|_| self.running > 0)?;
        self.timeline.take_due(now_ns.checked_sub(origin_ns)?)
    }

    /// When something has to be done even if nothing happens.
    fn next_ns(&mut self) -> u64 {
        let origin_ns = self.origin_ns.filter(|_| self.running > 0);
        let due_ns = origin_ns.zip(self.timeline.next_ns()).map(|(origin, due)| origin + due);
        due_ns.unwrap_or(u64::MAX).min(self.end_ns)
    }

    /// What still runs ends with this process.
    fn give_up(&mut self) {
        if self.running > 0 {
            say(&format!("the limit is over, and {} ranks still run", self.running));
            self.worst = STATUS_LIMIT;
        }
    }
}
