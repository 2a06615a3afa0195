//! The processes that are there, what they have said, and whether they are all in one communicator.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::num::NonZeroUsize;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use ccl_launcher::pretended;

use super::account::Account;
use super::words::{Admit, Meeting, Place, Said, Serial, say};
use crate::Outcome;
use crate::error::Failure;

/// Members that live. Dropping it kills them.
#[derive(Debug)]
pub struct Company {
    members: BTreeMap<Serial, Member>,
    /// The number of the next one.
    next: Serial,
    hosts: Option<NonZeroUsize>,
    /// After so long whoever has not gone on hangs.
    patience: Duration,
    /// Somebody was killed since all were together last.
    is_disturbed: bool,
    /// And may not have come to where the others wait, who know that when their time is over only.
    may_be_awaited: bool,
    heard: Receiver<Heard>,
    ears: Sender<Heard>,
    /// What has become of all of them.
    pub account: Account,
}

/// Who has said what; nothing: nothing will come any more.
type Heard = (Serial, Option<Said>);

#[derive(Debug)]
struct Member {
    process: Child,
    orders: ChildStdin,
    /// It has been in a communicator.
    has_joined: bool,
    /// With whom it has come into a communicator since something happened last.
    group: Option<Vec<Serial>>,
    /// Collectives that it has checked.
    checked: u64,
    /// What it has said last of what failed.
    complaint: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Company {
    /// Nobody yet.
    #[must_use]
    pub fn new(hosts: Option<NonZeroUsize>, patience: Duration) -> Self {
        let (ears, heard) = channel();
        Self {
            members: BTreeMap::new(),
            next: 0,
            hosts,
            patience,
            is_disturbed: false,
            may_be_awaited: false,
            heard,
            ears,
            account: Account::default(),
        }
    }

    /// So long ranks wait for each other.
    fn bootstrap_timeout(&self) -> Duration {
        (self.patience / 2).max(Duration::from_secs(1))
    }

    /// The numbers of those that live.
    #[must_use]
    pub fn serials(&self) -> Vec<Serial> {
        self.members.keys().copied().collect()
    }

    /// How many live.
    #[must_use]
    pub fn size(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// Starts the first of `size`, who says where the others join.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn found(&mut self, size: u32) -> Outcome<()> {
        self.start((0, size), None)
    }

    /// Something is about to happen to those who are together: all will tell anew with whom they are. Returns who is with whom.
    pub fn disperse(&mut self) -> Vec<Serial> {
        let mut together = None;
        for member in self.members.values_mut() {
            together = member.group.take();
        }
        together.unwrap_or_default()
    }

    /// Asks the first of those who are `with` each other to let in so many more.
    pub fn ask_to_admit(&mut self, newcomers: u32, with: Vec<Serial>) {
        let first = with.first().and_then(|first| self.members.get_mut(first));
        if let Some(member) = first {
            // If it is gone, that is heard elsewhere.
            let _ = say(&mut member.orders, &Admit { newcomers, with });
        }
    }

    /// Kills a member.
    pub fn kill(&mut self, serial: Serial) {
        if let Some(member) = self.members.remove(&serial) {
            self.is_disturbed = true;
            self.may_be_awaited |= !member.has_joined;
            self.account.killed += 1;
            self.account.checked += member.checked;
        }
    }

    /// Listens to all for so long.
    ///
    /// # Errors
    /// Somebody has said, or done, what nobody should.
    pub fn listen(&mut self, time: Duration) -> Outcome<()> {
        self.listen_until(Instant::now() + time, |_| false).map(drop)
    }

    /// Waits until all who live are in one communicator, and in no other.
    ///
    /// # Errors
    /// As [`Self::listen`], or they are not in time: who is where, and what each has said last.
    pub fn unite(&mut self) -> Outcome<()> {
        self.found_if_empty()?;
        let is_long = std::mem::take(&mut self.may_be_awaited);
        let patience =
            if is_long { self.patience } else { self.patience.min(self.bootstrap_timeout()) };
        if self.listen_until(Instant::now() + patience, Self::is_united)? {
            self.is_disturbed = false;
            return Ok(());
        }
        let state = |(serial, member): (&Serial, &Member)| {
            let Member { process, group, complaint, .. } = member;
            format!("\n  member {serial} (process {}) is with {group:?}; {complaint}", process.id())
        };
        let states: String = self.members.iter().map(state).collect();
        Err(Failure::Results(format!("not in one communicator after {patience:?}:{states}")))
    }

    /// Waits until so many more have been started than live now, or have not come.
    ///
    /// # Errors
    /// As [`Self::unite`].
    pub fn await_newcomers(&mut self, newcomers: u32) -> Outcome<()> {
        let patience = self.patience;
        let size = self.size() + newcomers;
        if self.listen_until(Instant::now() + patience, |company| company.size() == size)? {
            return Ok(());
        }
        Err(Failure::Results(format!("nobody says where others can join after {patience:?}")))
    }

    /// When those who were left had not got into a communicator yet, and were told that they will not.
    fn found_if_empty(&mut self) -> Outcome<()> {
        if self.members.is_empty() { self.found(1) } else { Ok(()) }
    }

    fn is_united(&self) -> bool {
        let is_with_all = |member: &Member| {
            let group = member.group.iter().flatten();
            group.collect::<BTreeSet<_>>().into_iter().eq(self.members.keys())
        };
        !self.members.is_empty() && self.members.values().all(is_with_all)
    }

    /// `true`, as soon as it is `enough`; `false` if it is not in time.
    fn listen_until(&mut self, deadline: Instant, enough: impl Fn(&Self) -> bool) -> Outcome<bool> {
        while !enough(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left) {
                Ok((serial, said)) => self.hear(serial, said)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn hear(&mut self, serial: Serial, said: Option<Said>) -> Outcome<()> {
        // What the dead have said.
        let Some(member) = self.members.get_mut(&serial) else { return Ok(()) };
        let unasked = |what: &str| Err(Failure::Results(format!("member {serial} {what}")));
        match said {
            Some(Said::Together { members, checked }) => {
                self.account.joined += u32::from(!member.has_joined);
                member.has_joined = true;
                member.group = Some(members);
                member.checked = checked;
            }
            Some(Said::Failed(text) | Said::Outside(text)) if !self.is_disturbed => {
                return unasked(&format!("fails, though nobody was killed: {text}"));
            }
            Some(Said::Failed(text)) => {
                self.account.failures += 1;
                member.complaint = text;
            }
            Some(Said::Join { meeting, first, newcomers }) => {
                for rank in first..first + newcomers {
                    self.start((rank, first + newcomers), Some(meeting.clone()))?;
                }
            }
            Some(Said::Outside(_)) => {
                self.account.outside += 1;
                self.members.remove(&serial);
                self.found_if_empty()?;
            }
            Some(Said::Wrong(text)) => {
                return unasked(&format!("has a wrong result: {text}"));
            }
            None => return unasked(&format!("has ended by itself; {}", member.complaint)),
        }
        Ok(())
    }

    fn start(&mut self, (rank, size): (u32, u32), meeting: Option<Meeting>) -> Outcome<()> {
        let serial = self.next;
        let failed = |cause| Failure::system(format!("starting member {serial}"), cause);
        let program = std::env::current_exe().map_err(failed)?;
        let hosts = self.hosts.map_or(1, NonZeroUsize::get);
        let member = ccl_launcher::Member::of_this_process(0, 1);
        let mut process = Command::new(program)
            .arg(format!("--member={member}"))
            .envs(pretended((serial as usize % hosts, hosts), self.hosts, None))
            .env("R2CCL_BOOTSTRAP_TIMEOUT", self.bootstrap_timeout().as_secs_f64().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (orders, output) = (process.stdin.take(), process.stdout.take());
        let (Some(mut orders), Some(output)) = (orders, output) else {
            return Err(Failure::system("starting a member", "it has no pipes"));
        };
        say(&mut orders, &Place { serial, rank, size, meeting }).map_err(failed)?;
        let ears = self.ears.clone();
        thread::spawn(move || pass_on(serial, output, &ears));
        let member = Member {
            process,
            orders,
            has_joined: false,
            group: None,
            checked: 0,
            complaint: "it has not complained".to_owned(),
        };
        self.members.insert(serial, member);
        self.next += 1;
        self.account.started += 1;
        Ok(())
    }
}

/// Everything that a member says, and that it will say nothing any more.
fn pass_on(serial: Serial, output: ChildStdout, ears: &Sender<Heard>) {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    let words = lines.map_while(|line| serde_json::from_str(&line).ok()).map(Some);
    // The director may have ended.
    let _ = words.chain([None]).try_for_each(|said| ears.send((serial, said)));
}
