//! The side of a rank: who it is, and what it tells its parent.

use std::env;
use std::io::{BufRead, Write};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use ccl::{Communicator, Config, Error, UniqueId};
use serde::{Deserialize, Serialize};

/// The test that a child runs: `--exact` this.
pub(crate) const ENTRY: &str = "child_entry";

/// What a line for the parent begins with; the harness prints lines of its own.
pub(crate) const MARK: &str = "@@ ";

/// Variables through which a child learns who it is.
pub(crate) const ROLE: &str = "CCL_TESTS_ROLE";
pub(crate) const RANK: &str = "CCL_TESTS_RANK";
pub(crate) const SIZE: &str = "CCL_TESTS_SIZE";
pub(crate) const ID: &str = "CCL_TESTS_ID";

/// Exit code of a child that does not know what to do.
pub(crate) const NO_SUCH_ROLE: i32 = 2;

/// What a rank says to its parent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Line {
    /// The unique id of the group, in hexadecimal digits.
    Id(String),
    /// It is in the middle of what it does, as one of so many ranks.
    Underway { of: u32 },
    /// Something ended, in the way that the role documents.
    Ended(Ending),
    /// This host does not allow what the role needs.
    Skipped(String),
}

/// How something ended: [`ccl::Error`] in a form that travels, with its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Ending {
    Done(String),
    Argument(String),
    Usage(String),
    Disagreement { rank: u32, other: u32, text: String },
    Lost { rank: u32, text: String },
    Deadline { waiting: String, text: String },
    Aborted { rank: u32, text: String },
    System { call: String, text: String },
    Internal(String),
}

impl From<Result<String, Error>> for Ending {
    fn from(result: Result<String, Error>) -> Self {
        let error = match result {
            Ok(said) => return Self::Done(said),
            Err(error) => error,
        };
        let text = error.to_string();
        match error {
            Error::InvalidArgument(_) => Self::Argument(text),
            Error::InvalidUsage(_) => Self::Usage(text),
            Error::Disagreement { rank, other, .. } => {
                Self::Disagreement { rank: rank.0, other: other.0, text }
            }
            Error::PeerLost { rank, .. } => Self::Lost { rank: rank.0, text },
            Error::Deadline { waiting, .. } => Self::Deadline { waiting, text },
            Error::Aborted { rank, .. } => Self::Aborted { rank: rank.0, text },
            Error::System { call, .. } => Self::System { call, text },
            Error::Cuda(_) => Self::System { call: "CUDA".to_owned(), text },
            Error::Internal(_) => Self::Internal(text),
        }
    }
}

/// What a rank does. A panic in it is noticed by the parent: the process ends without a report.
pub(crate) type Role = fn(&Child);

/// This process as a rank.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    id: Option<UniqueId>,
    words: Mutex<Receiver<()>>,
}

/// Plays the role that the environment asks for; `false` if this process is no child. Without such a
/// role the process ends with [`NO_SUCH_ROLE`].
pub(crate) fn enter(roles: &[(&str, Role)]) -> bool {
    let Ok(name) = env::var(ROLE) else { return false };
    let Some((_, role)) = roles.iter().find(|(known, _)| *known == name) else {
        std::process::exit(NO_SUCH_ROLE)
    };
    role(&Child::of_this_process());
    true
}

impl Child {
    fn of_this_process() -> Self {
        let number = |name| env::var(name).ok().and_then(|text| text.parse().ok());
        let id = env::var(ID).ok().map(|digits| {
            let bytes = from_hex(&digits).try_into().expect("128 bytes");
            UniqueId::from_bytes(&bytes).expect("an id")
        });
        Self {
            rank: number(RANK).expect("a rank"),
            size: number(SIZE).expect("a size"),
            id,
            words: Mutex::new(listen_to_parent()),
        }
    }

    /// Joins the group; the first rank makes its id and tells the parent.
    pub(crate) fn create(&self) -> Result<Communicator, Error> {
        let config = Config::from_environment()?;
        let id = match self.id {
            Some(id) => id,
            None => {
                let id = UniqueId::create(&config.settings)?;
                self.pass_on(&id);
                id
            }
        };
        Communicator::create(&id, self.rank, self.size, &config)
    }

    /// Has the parent tell the processes that it starts from now on where they join.
    pub(crate) fn pass_on(&self, id: &UniqueId) {
        self.report(&Line::Id(to_hex(&id.to_bytes())));
    }

    /// Joins, does `work` as a member and reports how that ended, before it leaves the group.
    pub(crate) fn as_member(&self, work: impl FnOnce(&Communicator) -> Result<String, Error>) {
        match self.create() {
            Ok(communicator) => self.end(work(&communicator)),
            Err(error) => self.end(Err(error)),
        }
    }

    pub(crate) fn end(&self, result: Result<String, Error>) {
        self.report(&Line::Ended(result.into()));
    }

    pub(crate) fn report(&self, line: &Line) {
        let text = serde_json::to_string(line).expect("a line is plain text");
        let mut out = std::io::stdout().lock();
        // One write: the harness and other threads print, too.
        let written = out.write_all(format!("{MARK}{text}\n").as_bytes());
        written.and_then(|()| out.flush()).expect("the parent reads");
    }

    /// Waits until the parent says something.
    pub(crate) fn word(&self) {
        self.words.lock().expect("no panic").recv().expect("the listening thread lives");
    }

    /// Whether the parent has said something.
    pub(crate) fn was_told(&self) -> bool {
        self.words.lock().expect("no panic").try_recv().is_ok()
    }
}

/// Passes on each line of the parent, and ends this process with it.
fn listen_to_parent() -> Receiver<()> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
            // The role may be over.
            let _ = sender.send(());
        }
        std::process::exit(1);
    });
    receiver
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}
