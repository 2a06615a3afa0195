//! From the socket to frames.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionread;

use super::super::landings::Nowhere;
use super::super::{Landings, State};
use super::inbox::Fill;
use super::queue_pair::{Fault, SoftQueuePair, gone};
use super::responder::Step;
use crate::TransportError;

/// Reads from the socket per poll, so that one busy rail does not starve the others.
const READS_PER_POLL: usize = 8;

impl SoftQueuePair {
    /// Takes what has arrived, frame by frame.
    pub(super) fn receive(&mut self, landings: &mut dyn Landings) -> Result<bool, Fault> {
        let mut moved = false;
        for _ in 0..READS_PER_POLL {
            match self.digest(landings)? {
                Step::Stalled => return self.look_for_the_end().map(|()| moved),
                Step::Hungry => {}
            }
            match self.read(landings)? {
                Fill::Bytes { more, .. } => {
                    moved = true;
                    if !more {
                        break;
                    }
                }
                Fill::Empty => return Ok(moved),
                Fill::Closed => {
                    let text = format!("{}: the connection was closed", self.path());
                    return Err(Fault::lost(TransportError::PeerGone(text)));
                }
            }
        }
        self.digest(landings)?;
        Ok(moved)
    }

    /// Executes what has reached this host, as a NIC has executed what has reached it: it need not be sent again.
    /// What comes from now on is not taken. Nor are acknowledgements: what a NIC has not reported before it fails
    /// it never will.
    pub(super) fn take_what_has_arrived(&mut self) {
        self.is_fencing = true;
        let there = self.stream.as_ref().and_then(|stream| ioctl_fionread(stream).ok());
        let mut left = there.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
        // The fence that follows ends it whatever goes wrong here.
        while let (State::ReadyToSend, Ok(Step::Hungry)) = (self.state, self.digest(&mut Nowhere))
            && left > 0
            && let Ok(Fill::Bytes { count, .. }) = self.read(&mut Nowhere)
        {
            left = left.saturating_sub(count);
        }
    }

    /// While nothing is read, only this tells that the connection is lost.
    fn look_for_the_end(&self) -> Result<(), Fault> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let mut polled = [PollFd::new(stream, PollFlags::empty())];
        let ended = poll(&mut polled, Some(&Timespec::default()));
        if matches!(ended, Ok(1..)) {
            let text = format!("{}: the connection was reset", self.path());
            return Err(Fault::lost(TransportError::PeerGone(text)));
        }
        Ok(())
    }

    fn read(&mut self, landings: &mut dyn Landings) -> Result<Fill, Fault> {
        let Some(stream) = &self.stream else { return Ok(Fill::Empty) };
        let fill = match &mut self.arriving {
            None => Some(self.inbox.fill(stream, &mut [])),
            Some(arriving) => arriving.write(landings, |target| {
                let fill = self.inbox.fill(stream, target);
                (fill.as_ref().map_or(0, Fill::direct), fill)
            }),
        };
        let fill = fill.unwrap_or(Ok(Fill::Empty));
        fill.map_err(|cause| Fault::lost(gone(self.path(), &cause)))
    }
}
