//! From what happens to single paths to what is wrong with a rail of this rank.
//!
//! A rail has a path to every rank on another host. When all of them die the rail is down; when some
//! live, the fault may be at the other end of the dead ones, whose rank says so itself. What carries
//! traffic is found out by it; for the rest, whoever loses a path asks all other hosts on that rail
//! ([`super::witnesses`]). Likewise a rail is slow when all its paths are.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};

use ccl_core::health::{RailState, Verdict};
use ccl_core::ids::Rail;
use ccl_transport::network::events::{Evidence, RailEvent, RailEventKind};

use super::HealthBoard;
use super::board::names;
use super::witnesses::{Answers, Surroundings};
use crate::driver::lock;

/// Judges the rails of one rank.
#[derive(Debug)]
pub(crate) struct Judge {
    court: Arc<Court>,
    surroundings: OnceLock<Arc<Surroundings>>,
}

/// What is known, shared with the threads that ask around.
#[derive(Debug)]
struct Court {
    board: Arc<HealthBoard>,
    rails: Mutex<Vec<Paths>>,
}

/// The paths over one rail.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    /// How many there are.
    count: usize,
    /// To how many other hosts.
    hosts: usize,
    /// To the host with the most of them.
    most: usize,
    /// Those that are given up, by name, and whether the peer has said that its NIC is why.
    dead: BTreeMap<String, bool>,
    /// Those that carry less than their nominal capacity, with the percentage of it.
    slow: BTreeMap<String, u8>,
    survey: Survey,
}

/// Whether the other hosts are being asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Survey {
    #[default]
    Idle,
    Running,
    /// Something has happened since they were asked.
    Outdated,
}

impl Paths {
    /// So many paths to each host.
    pub(crate) fn new(by_host: impl IntoIterator<Item = usize>) -> Self {
        by_host.into_iter().fold(Self::default(), |mut paths, count| {
            paths.count += count;
            paths.hosts += 1;
            paths.most = paths.most.max(count);
            paths
        })
    }

    /// Whose fault it is that none works. Several hosts do not lose the same rail at once, unless they say so: what they have in
    /// common is this end.
    fn verdict(&self) -> Verdict {
        let excused = self.dead.values().filter(|is_excused| **is_excused).count();
        // More than one host has.
        if self.count.saturating_sub(excused) > self.most {
            Verdict::LocalNic
        } else if excused > 0 && excused == self.dead.len() {
            Verdict::RemoteNic
        } else {
            Verdict::Unknown
        }
    }

    /// The percentage of its nominal capacity that the rail is known to carry.
    fn percent(&self) -> u8 {
        let is_slow = self.slow.len() + self.dead.len() >= self.count;
        self.slow.values().copied().max().filter(|_| is_slow).unwrap_or(100)
    }
}

impl Judge {
    pub(crate) fn new(board: Arc<HealthBoard>, rails: Vec<Paths>) -> Self {
        let court = Arc::new(Court { board, rails: Mutex::new(rails) });
        Self { court, surroundings: OnceLock::new() }
    }

    /// Whom to ask when a path is lost.
    pub(crate) fn surround(&self, surroundings: Surroundings) {
        // There is one network for each judge.
        let _ = self.surroundings.set(Arc::new(surroundings));
    }

    /// A rail of this rank listens at another address.
    pub(crate) fn moved(&self, rail: usize, address: SocketAddr) {
        self.court.board.moved(rail, address);
    }

    /// Something happened to a path.
    pub(crate) fn hear(&self, event: &RailEvent) {
        let Ok(rail) = u8::try_from(event.rail).map(Rail) else { return };
        let court = &self.court;
        match &event.kind {
            RailEventKind::GivenUp { evidence, cause, .. } => {
                court.lost(rail, &event.name, *evidence, cause);
                court.board.doubt();
                if !matches!(evidence, Evidence::Carrier | Evidence::PeerCarrier) {
                    self.ask_around(rail);
                }
            }
            RailEventKind::Returned => court.returned(rail, &event.name),
            RailEventKind::Resent { tiles, bytes } => {
                court.board.resent(rail, *tiles as u64, *bytes as u64);
            }
            RailEventKind::Measured { percent } => court.measured(rail, &event.name, *percent),
            RailEventKind::Suspected | RailEventKind::Resumed => {}
        }
    }

    /// Asks the other hosts on a rail, in a thread of its own: nobody waits here.
    fn ask_around(&self, rail: Rail) {
        let Some(surroundings) = self.surroundings.get() else { return };
        if !self.court.begin_survey(rail) {
            return;
        }
        let (court, surroundings) = (Arc::clone(&self.court), Arc::clone(surroundings));
        let ask = move || {
            while court.surveyed(rail, surroundings.ask(rail)) {}
        };
        let thread = std::thread::Builder::new().name("r2ccl-survey".into()).spawn(ask);
        if let Err(cause) = thread {
            tracing::debug!(rail = rail.0, %cause, "nobody is asked about a rail");
            self.court.change(rail, |paths| paths.survey = Survey::Idle);
        }
    }
}

impl Court {
    /// Changes what is known of the paths over a rail, and with it how fast the rail is taken to be.
    fn change<T>(&self, rail: Rail, change: impl FnOnce(&mut Paths) -> T) -> Option<T> {
        let mut rails = lock(&self.rails);
        let paths = rails.get_mut(rail.index())?;
        let result = change(paths);
        let percent = paths.percent();
        drop(rails);
        self.board.measured(rail, percent);
        Some(result)
    }

    fn lost(&self, rail: Rail, path: &str, evidence: Evidence, cause: &str) {
        let known = self.change(rail, |paths| {
            paths.dead.insert(path.to_owned(), evidence == Evidence::PeerCarrier);
            paths.slow.remove(path);
            (paths.dead.len(), paths.count, paths.hosts, paths.verdict())
        });
        let Some((dead, count, hosts, verdict)) = known else { return };
        if evidence == Evidence::Carrier {
            return self.board.report(rail, RailState::Down, Verdict::LocalNic, cause);
        }
        if dead >= count {
            let text = format!("none of {dead} paths to {hosts} hosts works; the last: {cause}");
            self.board.report(rail, RailState::Down, verdict, &text);
        }
    }

    fn returned(&self, rail: Rail, path: &str) {
        let all_work = self.change(rail, |paths| {
            paths.dead.remove(path);
            paths.dead.is_empty()
        });
        self.board.recovered(rail);
        if all_work == Some(true) {
            self.board.missing(rail, Vec::new());
        }
    }

    fn measured(&self, rail: Rail, path: &str, percent: u8) {
        self.change(rail, |paths| match percent {
            100 => paths.slow.remove(path),
            _ => paths.slow.insert(path.to_owned(), percent),
        });
    }

    /// Whether nobody asks about the rail yet; then the caller does.
    fn begin_survey(&self, rail: Rail) -> bool {
        let was = self.change(rail, |paths| {
            let next = match paths.survey {
                Survey::Idle => Survey::Running,
                Survey::Running | Survey::Outdated => Survey::Outdated,
            };
            std::mem::replace(&mut paths.survey, next)
        });
        was == Some(Survey::Idle)
    }

    /// The other hosts have answered, or not. Tells whether to ask them again.
    fn surveyed(&self, rail: Rail, answers: Answers) -> bool {
        let Answers { reached, unreached } = answers;
        let known = self.change(rail, |paths| {
            let again = paths.survey == Survey::Outdated;
            paths.survey = if again { Survey::Running } else { Survey::Idle };
            (again, paths.dead.is_empty(), paths.verdict())
        });
        let (again, all_work, verdict) = known.unwrap_or((false, true, Verdict::Unknown));
        if again || all_work {
            // What was found out meanwhile counts more.
            return again;
        }
        if reached.is_empty() && unreached.len() > 1 {
            let text = format!("no host answers on it: {}", names(&unreached));
            self.board.report(rail, RailState::Down, verdict, &text);
        } else if !reached.is_empty() {
            self.board.missing(rail, unreached);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use ccl_core::ids::Rank;
    use ccl_transport::clock;

    use super::*;

    fn event(path: &str, kind: RailEventKind) -> RailEvent {
        let (name, at) = (path.to_owned(), clock::now());
        RailEvent { at, name, path: 0, rail: 1, incarnation: 0, kind }
    }

    fn given_up(evidence: Evidence) -> RailEventKind {
        RailEventKind::GivenUp { evidence, cause: "a test".into(), tiles: 0, bytes: 0 }
    }

    fn judge(hosts: usize) -> (Judge, Arc<HealthBoard>) {
        let board = Arc::new(HealthBoard::new(&[1.0, 1.0]));
        let rails = vec![Paths::new(vec![1; hosts]); 2];
        (Judge::new(Arc::clone(&board), rails), board)
    }

    fn standing(board: &HealthBoard) -> (RailState, Verdict) {
        let news = &board.news()[1];
        (news.state, news.verdict)
    }

    #[test]
    fn a_rail_is_down_when_all_its_paths_are() {
        let (judge, board) = judge(2);
        assert!(!board.is_in_doubt());
        judge.hear(&event("to rank 1", given_up(Evidence::Silence)));
        assert_eq!(standing(&board).0, RailState::Up, "the other end may be to blame");
        assert!(board.is_in_doubt(), "but the store may be behind it");
        judge.hear(&event("to rank 2", given_up(Evidence::Closed)));
        assert_eq!(standing(&board), (RailState::Down, Verdict::LocalNic));
        judge.hear(&event("to rank 2", RailEventKind::Returned));
        assert_eq!(standing(&board).0, RailState::Up);
    }

    #[test]
    fn a_rail_is_slow_when_all_its_paths_are() {
        let (judge, board) = judge(2);
        let measured =
            |path, percent| judge.hear(&event(path, RailEventKind::Measured { percent }));
        let capacity = || board.news()[1].bytes_per_second;
        measured("to rank 1", 25);
        assert_eq!(capacity(), 1.0, "the other end may be to blame");
        measured("to rank 2", 40);
        assert_eq!(capacity(), 0.4);
        judge.hear(&event("to rank 2", given_up(Evidence::Closed)));
        judge.hear(&event("to rank 2", RailEventKind::Returned));
        assert_eq!(capacity(), 1.0, "a new connection is presumed to be fast");
        measured("to rank 2", 30);
        assert_eq!(capacity(), 0.3);
        measured("to rank 1", 100);
        assert_eq!(capacity(), 1.0);
    }

    #[test]
    fn who_answers_tells_whether_the_rail_is_down() {
        let (judge, board) = judge(3);
        let answers = |reached: &[u32], unreached: &[u32]| Answers {
            reached: reached.iter().copied().map(Rank).collect(),
            unreached: unreached.iter().copied().map(Rank).collect(),
        };
        let ask = |answers| {
            assert!(judge.court.begin_survey(Rail(1)));
            judge.court.surveyed(Rail(1), answers)
        };
        ask(answers(&[], &[1, 2, 3]));
        assert_eq!(standing(&board).0, RailState::Up, "no path is lost");
        judge.hear(&event("to rank 1", given_up(Evidence::Silence)));
        ask(answers(&[2, 3], &[1]));
        assert_eq!(standing(&board).0, RailState::Up);
        assert_eq!(board.news()[1].unreached, [Rank(1)]);
        ask(answers(&[], &[1, 2, 3]));
        assert_eq!(standing(&board), (RailState::Down, Verdict::LocalNic));
        judge.hear(&event("to rank 1", RailEventKind::Returned));
        assert_eq!(board.news()[1].unreached, []);
    }

    #[test]
    fn what_happens_during_a_survey_makes_another() {
        let (judge, _) = judge(3);
        let begin = || judge.court.begin_survey(Rail(1));
        assert!(begin() && !begin() && !begin());
        assert!(judge.court.surveyed(Rail(1), Answers::default()));
        assert!(!judge.court.surveyed(Rail(1), Answers::default()));
        assert!(begin());
    }

    #[test]
    fn two_hosts_cannot_tell_whose_fault_it_is() {
        let (judge, board) = judge(1);
        judge.hear(&event("to rank 1", given_up(Evidence::Silence)));
        assert_eq!(standing(&board), (RailState::Down, Verdict::Unknown));
    }

    #[test]
    fn hosts_that_say_that_their_cards_are_off_are_believed() {
        let (judge, board) = judge(2);
        judge.hear(&event("to rank 1", given_up(Evidence::PeerCarrier)));
        assert_eq!(standing(&board).0, RailState::Up);
        judge.hear(&event("to rank 2", given_up(Evidence::PeerCarrier)));
        assert_eq!(standing(&board), (RailState::Down, Verdict::RemoteNic));
        judge.hear(&event("to rank 2", RailEventKind::Returned));
        judge.hear(&event("to rank 2", given_up(Evidence::Silence)));
        assert_eq!(standing(&board), (RailState::Down, Verdict::Unknown), "one says nothing");
    }

    #[test]
    fn a_host_whose_card_is_off_excuses_no_other() {
        let (judge, board) = judge(3);
        judge.hear(&event("to rank 1", given_up(Evidence::PeerCarrier)));
        for path in ["to rank 2", "to rank 3"] {
            judge.hear(&event(path, given_up(Evidence::Silence)));
        }
        assert_eq!(standing(&board), (RailState::Down, Verdict::LocalNic));
    }

    #[test]
    fn a_card_without_carrier_is_its_own_witness() {
        let (judge, board) = judge(3);
        judge.hear(&event("to rank 1", given_up(Evidence::Carrier)));
        assert_eq!(standing(&board), (RailState::Down, Verdict::LocalNic));
    }
}
