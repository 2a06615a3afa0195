//! Links that have to be pushed, those of the network: a look at one is a system call for each socket that it has.

use std::os::fd::RawFd;

use ccl_core::program::{Lane, Port};
use ccl_transport::Link;

use super::{Failure, Run, unstaged};

/// One of so many sweeps looks at all links, whatever the program waits for.
const SWEEPS: u32 = 32;

impl Run<'_> {
    /// Looks at the links on which the next steps wait, and at all now and then. Tells whether anything has moved.
    pub(super) fn look(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        if self.pushed.is_empty() {
            return Ok(moved);
        }
        self.progress.looks = self.progress.looks.wrapping_add(1);
        if self.progress.looks.is_multiple_of(SWEEPS) {
            for place in 0..self.pushed.len() {
                self.spare(self.pushed[place]);
                moved |= self.push(self.pushed[place])?;
            }
            return Ok(moved);
        }
        let program = self.task.program;
        for (lane, Lane { port, .. }) in program.receives.iter().enumerate() {
            if self.waits_to_receive(lane) {
                moved |= self.push_once(*port)?;
            }
        }
        for (lane, Lane { port, .. }) in program.sends.iter().enumerate() {
            if self.waits_to_send(lane) {
                moved |= self.push_once(*port)?;
            }
        }
        Ok(moved)
    }

    /// Whether the next step of the lane could go on if more had arrived.
    fn waits_to_receive(&self, lane: usize) -> bool {
        let Lane { port, steps } = &self.task.program.receives[lane];
        let Some(&step) = steps.get(self.progress.received[lane]) else { return false };
        let missing = self.progress.allowed(self.task.program, step);
        if missing == 0 {
            return false;
        }
        let index = self.index(*port);
        let tile = self.links[index].as_ref().and_then(|link| link.peek());
        tile.is_none_or(|tile| tile.payload.len() - self.progress.used[index] < missing)
    }

    /// Whether the next step of the lane could go on if the link had room, or something has not left yet.
    fn waits_to_send(&self, lane: usize) -> bool {
        let Lane { port, steps } = &self.task.program.sends[lane];
        let program = self.task.program;
        let has_more =
            |step: &u32| self.progress.limit(program, *step) > self.progress.posted[*step as usize];
        let link = self.links[self.index(*port)].as_ref();
        steps.get(self.progress.sent[lane]).is_some_and(has_more)
            || !self.progress.lent[lane].is_empty()
            || link.is_some_and(|link| !link.flushed())
    }

    /// [Pushes](Self::push) a link that has to be pushed, and was not by this look.
    fn push_once(&mut self, port: Port) -> Result<bool, Failure> {
        let index = self.index(port);
        let looks = self.progress.looks;
        if self.progress.looked[index] == looks || self.pushed.binary_search(&index).is_err() {
            return Ok(false);
        }
        self.progress.looked[index] = looks;
        self.push(index)
    }

    /// Lets a link do its own work. Tells whether there was any.
    fn push(&mut self, index: usize) -> Result<bool, Failure> {
        if self.broken[index].is_none() {
            match self.progress_link(index) {
                Ok(moved) => return Ok(moved),
                Err(cause) => self.broken[index] = Some(cause),
            }
        }
        let mut open = self.open_sends().chain(self.open_receives());
        match (open.find(|port| self.index(*port) == index), &self.broken[index]) {
            (Some(port), Some(cause)) => {
                Err(Failure::Link { peer: port.rank(), cause: cause.clone() })
            }
            _ => Ok(false),
        }
    }

    /// The sockets on which something may arrive.
    pub(crate) fn sockets(&mut self) -> &[RawFd] {
        let pushed = self.pushed.iter().filter_map(|index| self.links[*index].as_ref());
        let revision = pushed.clone().fold(0, |sum: u32, link| sum.wrapping_add(link.revision()));
        if revision != *self.revision {
            *self.revision = revision;
            self.sockets.clear();
            pushed.for_each(|link| link.descriptors(self.sockets));
        }
        self.sockets
    }

    /// Asks the links that need no push whether they are still sound.
    pub(crate) fn inspect(&mut self) -> Result<(), Failure> {
        if self.task.is_straight {
            self.look_ahead()?;
        }
        (0..self.links.len()).try_for_each(|index| {
            self.spare(index);
            self.push(index).map(|_| ())
        })
    }

    /// Whether the program goes round the peer at the other end of a link, which is out of reach.
    pub(super) fn goes_round(&self, index: usize) -> bool {
        let program = self.task.program;
        let mut ports = program.sends.iter().chain(&program.receives).map(|lane| lane.port);
        self.links[index].as_ref().is_some_and(|link| link.is_out_of_reach())
            && !ports.any(|port| self.index(port) == index)
    }

    /// A peer that is out of reach has time until a call needs it: this one goes round it, or is through with it.
    fn spare(&mut self, index: usize) {
        if (self.goes_round(index) || self.is_through_with(index))
            && let Some(link) = self.links[index].as_mut()
        {
            link.spare();
        }
    }

    /// Whether the link is out of reach, and the program has moved all that it moves there.
    fn is_through_with(&self, index: usize) -> bool {
        let is_idle = |link: &dyn Link| link.is_out_of_reach() && link.flushed();
        let mut lent = self.task.program.sends.iter().zip(&self.progress.lent);
        self.links[index].as_deref().is_some_and(is_idle)
            && !lent.any(|(lane, lent)| !lent.is_empty() && self.index(lane.port) == index)
            && !self.open_sends().chain(self.open_receives()).any(|port| self.index(port) == index)
    }

    /// Tells peers what has arrived from them, on all links that have to be pushed. What is out on these is staged by the next
    /// sweep: who waits for so long had better depend on nobody.
    pub(crate) fn confirm(&mut self) {
        for &index in self.pushed {
            if let Some(link) = self.links[index].as_mut().filter(|_| self.broken[index].is_none())
            {
                link.confirm();
            }
        }
        self.progress.patience.fill(unstaged::PATIENCE);
    }
}
