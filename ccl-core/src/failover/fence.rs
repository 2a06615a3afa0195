//! Which paths the peer must give up before it may take anything more.

use std::collections::VecDeque;

/// Largest number of an incarnation that a fence can name.
pub const LAST_INCARNATION: u32 = (1 << 24) - 1;

/// Tells the peer that every incarnation of `path` before `below` is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The path that is given up.
    pub path: usize,
    /// The first incarnation that is not.
    pub below: u32,
}

/// The incarnations of the paths of a link, and the fences that every path has to carry first.
///
/// Invariant: the peer never takes what was handed to a path that is given up after something that was handed
/// to another path later, because the fence travels on that other path before it. A NIC that writes by itself knows
/// nothing of fences: what it writes late is harmless once the peer has [closed](Self::closed_below) the connection.
#[derive(Clone, Debug)]
pub struct Fences {
    paths: Vec<Path>,
}

#[derive(Clone, Debug, Default)]
struct Path {
    incarnation: u32,
    is_up: bool,
    /// The peer takes nothing from incarnations before this one.
    closed_below: u32,
    /// To be sent on this path before anything else.
    due: VecDeque<Fence>,
}

impl Fences {
    /// All paths are up, with their first connections.
    #[must_use]
    pub fn new(paths: usize) -> Self {
        Self { paths: vec![Path { is_up: true, ..Path::default() }; paths] }
    }

    /// The number of the latest connection of a path.
    #[must_use]
    pub fn incarnation(&self, path: usize) -> u32 {
        self.paths[path].incarnation
    }

    /// Whether the path has a connection that was not given up.
    #[must_use]
    pub fn is_up(&self, path: usize) -> bool {
        self.paths[path].is_up
    }

    /// Whether no path is up.
    #[must_use]
    pub fn is_severed(&self) -> bool {
        self.paths.iter().all(|path| !path.is_up)
    }

    /// Gives a path up: every other one has to say so first.
    pub fn give_up(&mut self, path: usize) {
        self.paths[path].is_up = false;
        self.paths[path].due.clear();
        let fence = Fence { path, below: self.paths[path].incarnation + 1 };
        for (index, other) in self.paths.iter_mut().enumerate() {
            if index != path && other.is_up {
                other.due.push_back(fence);
            }
        }
    }

    /// A path has a new connection. It has to repeat the fences that older connections carried: it
    /// may be faster than they are.
    ///
    /// # Panics
    /// The path was not given up, or the incarnation is not newer.
    pub fn renew(&mut self, path: usize, incarnation: u32) {
        assert!(!self.paths[path].is_up, "path {path} was not given up");
        assert!(incarnation > self.paths[path].incarnation, "an old connection of path {path}");
        let fences = self.paths.iter().enumerate().filter(|(index, _)| *index != path);
        let due = fences
            .map(|(index, other)| Fence {
                path: index,
                below: other.incarnation + u32::from(!other.is_up),
            })
            .filter(|fence| fence.below > 0)
            .collect();
        let closed_below = self.paths[path].closed_below;
        self.paths[path] = Path { incarnation, is_up: true, closed_below, due };
    }

    /// The peer takes nothing more from incarnations of a path before `below`: its own fence says so, or what it says on a
    /// new connection.
    pub fn heard(&mut self, fence: Fence) {
        if let Some(path) = self.paths.get_mut(fence.path) {
            path.closed_below = path.closed_below.max(fence.below);
        }
    }

    /// The first incarnation of a path from which the peer may still take something.
    #[must_use]
    pub fn closed_below(&self, path: usize) -> u32 {
        self.paths[path].closed_below
    }

    /// The fence to send next on a path.
    #[must_use]
    pub fn due(&self, path: usize) -> Option<Fence> {
        self.paths[path].due.front().copied()
    }

    /// Whether any path has a fence to send.
    #[must_use]
    pub fn any_due(&self) -> bool {
        self.paths.iter().any(|path| !path.due.is_empty())
    }

    /// The fence that was due was handed to the path.
    pub fn sent(&mut self, path: usize) {
        self.paths[path].due.pop_front();
    }

    /// Whether a fence of the peer hits the connection that this end still uses.
    #[must_use]
    pub fn hits(&self, fence: Fence) -> bool {
        let path = self.paths.get(fence.path);
        path.is_some_and(|path| path.is_up && path.incarnation < fence.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(fences: &mut Fences, path: usize) -> Vec<(usize, u32)> {
        std::iter::from_fn(|| {
            let fence = fences.due(path)?;
            fences.sent(path);
            Some((fence.path, fence.below))
        })
        .collect()
    }

    #[test]
    fn every_other_path_says_first_what_was_given_up() {
        let mut fences = Fences::new(3);
        fences.give_up(1);
        assert_eq!(due(&mut fences, 0), [(1, 1)]);
        assert_eq!(due(&mut fences, 1), []);
        fences.give_up(0);
        assert_eq!(due(&mut fences, 2), [(1, 1), (0, 1)]);
        assert!(!fences.is_severed());
        fences.give_up(2);
        assert!(fences.is_severed());
    }

    #[test]
    fn a_new_connection_repeats_what_the_others_said() {
        let mut fences = Fences::new(3);
        for path in 0..3 {
            fences.give_up(path);
        }
        fences.renew(0, 1);
        assert_eq!(due(&mut fences, 0), [(1, 1), (2, 1)]);
        fences.renew(1, 3);
        assert_eq!(due(&mut fences, 1), [(0, 1), (2, 1)]);
        fences.give_up(1);
        assert_eq!(due(&mut fences, 0), [(1, 4)]);
    }

    #[test]
    fn what_the_peer_has_closed_it_never_opens_again() {
        let mut fences = Fences::new(2);
        for (below, known) in [(2, 2), (1, 2), (3, 3)] {
            fences.heard(Fence { path: 1, below });
            assert_eq!((fences.closed_below(0), fences.closed_below(1)), (0, known));
        }
        fences.heard(Fence { path: 7, below: 1 });
        fences.give_up(1);
        fences.renew(1, 5);
        assert_eq!(fences.closed_below(1), 3, "a new connection here says nothing of the peer");
    }

    #[test]
    fn an_old_fence_hits_nothing() {
        let mut fences = Fences::new(2);
        assert!(fences.hits(Fence { path: 1, below: 1 }));
        assert!(!fences.hits(Fence { path: 1, below: 0 }));
        assert!(!fences.hits(Fence { path: 7, below: 1 }), "there is no such path");
        fences.give_up(1);
        assert!(!fences.hits(Fence { path: 1, below: 1 }), "given up already");
        fences.renew(1, 1);
        assert!(!fences.hits(Fence { path: 1, below: 1 }), "the new connection is not meant");
        assert!(fences.hits(Fence { path: 1, below: 2 }));
    }
}
