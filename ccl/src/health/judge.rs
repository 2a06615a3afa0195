//! From what happens to single paths to what is wrong with a rail of this rank.
//!
//! A rail has a path to every rank on another host. When all of them die the rail is down; when some
//! live, the fault is at the other end of the dead ones, whose rank says so itself. The paths to third
//! hosts are the third witness of [`ccl_core::health::localise`]: they are probed all the time, by
//! traffic.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ccl_core::health::{Probe, Probes, RailState, Verdict, localise};
use ccl_core::ids::Rail;
use ccl_transport::network::events::{Evidence, RailEvent, RailEventKind};

use super::HealthBoard;
use crate::driver::lock;

/// Judges the rails of one rank.
#[derive(Debug)]
pub(crate) struct Judge {
    board: Arc<HealthBoard>,
    rails: Mutex<Vec<Paths>>,
}

/// The paths over one rail.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paths {
    /// How many there are.
    pub(crate) paths: usize,
    /// To how many other hosts.
    pub(crate) hosts: usize,
    /// Those that are given up, by name.
    dead: BTreeSet<String>,
}

impl Paths {
    /// So many paths to so many hosts.
    pub(crate) fn new(paths: usize, hosts: usize) -> Self {
        Self { paths, hosts, dead: BTreeSet::new() }
    }
}

impl Judge {
    pub(crate) fn new(board: Arc<HealthBoard>, rails: Vec<Paths>) -> Self {
        Self { board, rails: Mutex::new(rails) }
    }

    /// Something happened to a path.
    pub(crate) fn hear(&self, event: &RailEvent) {
        let Ok(rail) = u8::try_from(event.rail).map(Rail) else { return };
        match &event.kind {
            RailEventKind::GivenUp { evidence, cause, .. } => {
                self.lost(rail, &event.name, *evidence, cause);
            }
            RailEventKind::Returned => {
                if let Some(paths) = lock(&self.rails).get_mut(rail.index()) {
                    paths.dead.remove(&event.name);
                }
                self.board.report(rail, RailState::Up, Verdict::Unknown, "connected again");
            }
            RailEventKind::Resent { tiles, bytes } => {
                self.board.resent(rail, *tiles as u64, *bytes as u64);
            }
            RailEventKind::Suspected | RailEventKind::Resumed => {}
        }
    }

    fn lost(&self, rail: Rail, path: &str, evidence: Evidence, cause: &str) {
        let mut rails = lock(&self.rails);
        let Some(paths) = rails.get_mut(rail.index()) else { return };
        paths.dead.insert(path.to_owned());
        let all = paths.dead.len() >= paths.paths;
        let (dead, hosts) = (paths.dead.len(), paths.hosts);
        drop(rails);
        if evidence == Evidence::Carrier {
            return self.board.report(rail, RailState::Down, Verdict::LocalNic, cause);
        }
        if all {
            // Several hosts do not lose the same rail at once: what they have in common is this end.
            let third = if hosts > 1 { Probe::Unanswered } else { Probe::Missing };
            let far = if hosts > 1 { Probe::Answered } else { Probe::Missing };
            let verdict = localise(Probes {
                outward: Probe::Unanswered,
                inward: Probe::Unanswered,
                third_to_near: third,
                third_to_far: far,
            });
            let text = format!("none of {dead} paths to {hosts} hosts works; the last: {cause}");
            self.board.report(rail, RailState::Down, verdict, &text);
        }
    }
}

#[cfg(test)]
mod tests {
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
        let rails = vec![Paths::new(hosts, hosts); 2];
        (Judge::new(Arc::clone(&board), rails), board)
    }

    fn standing(board: &HealthBoard) -> (RailState, Verdict) {
        let news = &board.news()[1];
        (news.state, news.verdict)
    }

    #[test]
    fn a_rail_is_down_when_all_its_paths_are() {
        let (judge, board) = judge(2);
        judge.hear(&event("to rank 1", given_up(Evidence::Silence)));
        assert_eq!(standing(&board).0, RailState::Up, "the other end may be to blame");
        judge.hear(&event("to rank 2", given_up(Evidence::Closed)));
        assert_eq!(standing(&board), (RailState::Down, Verdict::LocalNic));
        judge.hear(&event("to rank 2", RailEventKind::Returned));
        assert_eq!(standing(&board).0, RailState::Up);
    }

    #[test]
    fn two_hosts_cannot_tell_whose_fault_it_is() {
        let (judge, board) = judge(1);
        judge.hear(&event("to rank 1", given_up(Evidence::Silence)));
        assert_eq!(standing(&board), (RailState::Down, Verdict::Unknown));
    }

    #[test]
    fn a_card_without_carrier_is_its_own_witness() {
        let (judge, board) = judge(3);
        judge.hear(&event("to rank 1", given_up(Evidence::Carrier)));
        assert_eq!(standing(&board), (RailState::Down, Verdict::LocalNic));
    }
}
