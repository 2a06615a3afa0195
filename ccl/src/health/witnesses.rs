//! Whose fault it is that two ranks do not reach each other over a rail.
//!
//! A rank that loses a path asks all other hosts on the same rail. If none answers, its own NIC is
//! broken, and it says so. If some do, it says whom it does not reach, and what is broken follows from
//! what the other end says: both ends have asked the same third hosts.

use std::net::SocketAddr;
use std::sync::Arc;

use ccl_core::health::{Probe, Probes, Verdict, localise};
use ccl_core::ids::{Rail, Rank};
use ccl_transport::network::RailAddress;
use ccl_transport::network::rehearsal::Part;
use ccl_transport::network::survey::survey;

use super::RailNews;
use super::moves::Moves;

/// The hosts around a rank, and the rails from which it can ask them.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// This rank's rails.
    pub(crate) rails: Vec<RailAddress>,
    /// One rank of every other host, and where its rails listen.
    pub(crate) hosts: Vec<(Rank, Vec<SocketAddr>)>,
    /// What has changed since.
    pub(crate) moves: Arc<Moves>,
    /// If faults are rehearsed.
    pub(crate) part: Option<Arc<Part>>,
}

/// Who answers on a rail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    pub(crate) reached: Vec<Rank>,
    pub(crate) unreached: Vec<Rank>,
}

impl Surroundings {
    /// Asks all other hosts from one rail; takes up to half a second.
    pub(crate) fn ask(&self, rail: Rail) -> Answers {
        let Some(known) = self.rails.get(rail.index()) else { return Answers::default() };
        let moved = self.moves.here(rail.index()).map(|address| address.ip());
        let address = RailAddress { address: moved.unwrap_or(known.address), ..known.clone() };
        let of = |(rank, rails): &(Rank, Vec<SocketAddr>)| {
            let index = rail.index() % rails.len();
            self.moves.elsewhere(*rank, index).unwrap_or(rails[index])
        };
        let addresses: Vec<SocketAddr> = self.hosts.iter().map(of).collect();
        let mut answers = Answers::default();
        for ((rank, rails), answered) in self.hosts.iter().zip(survey(&address, &addresses)) {
            let is_whole =
                |part: &Arc<Part>| part.reaches(rail.index(), *rank, rail.index() % rails.len());
            let answered = answered && self.part.as_ref().is_none_or(is_whole);
            let side = if answered { &mut answers.reached } else { &mut answers.unreached };
            side.push(*rank);
        }
        answers
    }
}

/// Completes the verdicts on rails that work but do not reach everybody, from what both ends say.
pub(super) fn conclude(rails: &mut [Vec<RailNews>]) {
    let mut conclusions = Vec::new();
    for (near, own) in rails.iter().enumerate() {
        for (rail, news) in own.iter().enumerate().filter(|(_, news)| news.state.is_usable()) {
            let Some(far) = news.unreached.first() else { continue };
            conclusions.push((near, rail, verdict(rails, near, rail, *far)));
        }
    }
    for (near, rail, verdict) in conclusions {
        rails[near][rail].verdict = verdict;
    }
}

fn verdict(rails: &[Vec<RailNews>], near: usize, rail: usize, far: Rank) -> Verdict {
    let theirs = rails.get(far.index()).filter(|theirs| !theirs.is_empty());
    let Some(theirs) = theirs.map(|theirs| &theirs[rail % theirs.len()]) else {
        return Verdict::Unknown;
    };
    let misses_near = theirs.unreached.iter().any(|rank| rank.index() == near);
    let (inward, third_to_far) = match (theirs.state.is_usable(), misses_near) {
        (false, _) => (Probe::Unanswered, Probe::Unanswered),
        (true, true) => (Probe::Unanswered, Probe::Answered),
        (true, false) => (Probe::Missing, Probe::Missing),
    };
    localise(Probes {
        outward: Probe::Unanswered,
        inward,
        third_to_near: Probe::Answered,
        third_to_far,
    })
}

#[cfg(test)]
mod tests {
    use ccl_core::health::RailState;

    use super::*;

    /// Three ranks with one rail, rank 0 of which does not reach rank 1.
    fn verdict_of(far: RailState, far_misses: &[u32]) -> Verdict {
        let news = |state, unreached: &[u32]| {
            let unreached = unreached.iter().copied().map(Rank).collect();
            vec![RailNews { state, unreached, ..RailNews::introduced(&1.0) }]
        };
        let up = RailState::Up;
        let mut rails = vec![news(up, &[1]), news(far, far_misses), news(up, &[])];
        conclude(&mut rails);
        assert_eq!(rails[2][0].verdict, Verdict::Unknown, "it misses nobody");
        rails[0][0].verdict
    }

    #[test]
    fn both_ends_together_know_what_is_broken() {
        assert_eq!(verdict_of(RailState::Down, &[]), Verdict::RemoteNic);
        assert_eq!(verdict_of(RailState::Up, &[0]), Verdict::Path);
        assert_eq!(verdict_of(RailState::Up, &[]), Verdict::Unknown, "it has not said anything");
    }
}
