//! What comes to the keeper: connections to the listeners of its rails.
//!
//! Whoever connects and says nothing is left in peace: a peer may only want to know whether the
//! network answers. Whoever speaks has to prove the key, and then to offer a connection that is newer
//! than the present one.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ccl_core::failover::fence::LAST_INCARNATION;

use super::super::medium::Medium;
use super::super::meet::{FIRST_INCARNATION, Hello};
use super::greeter::Verdict;
use super::worker::Worker;
use crate::{TransportError, descriptors, visitors};

/// How long not to accept when the system has no descriptors left.
const CLOSED_PAUSE: Duration = Duration::from_millis(100);

impl Worker {
    /// Accepts whoever has come, and turns to those who have spoken.
    pub(super) fn receive(&mut self, now: Instant) {
        self.closed_until = self.closed_until.filter(|until| *until > now);
        if self.accepts() {
            for rail in 0..self.rails.len() {
                self.accept(rail, now);
            }
        }
        while self.greeter.room() > 0
            && let Some((stream, (from, rail))) = self.visitors.next_speaker(now)
        {
            if let Err(reason) = self.greeter.accept(stream, from, rail) {
                tracing::debug!(rank = self.identity.me.0, %reason, "a visitor was dropped");
            }
        }
    }

    /// Whether whoever comes is accepted. While nobody can be heard they wait in the kernel.
    pub(super) fn accepts(&self) -> bool {
        self.closed_until.is_none() && self.greeter.room() > 0
    }

    fn accept(&mut self, rail: usize, now: Instant) {
        for _ in 0..visitors::FEW {
            if !self.visitors.has_room() {
                return;
            }
            match self.rails[rail].listener.accept() {
                Ok((stream, from)) => self.visitors.add(stream, (from, rail), now),
                Err(cause) => {
                    let door = &self.rails[rail].listener;
                    let lacks_memory =
                        matches!(cause.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM));
                    let lacks_descriptors = || {
                        descriptors::are_short(&cause)
                            && descriptors::is_anybody_at(door)
                            && !descriptors::raise_limit()
                    };
                    if lacks_memory || lacks_descriptors() {
                        self.closed_until = Some(now + CLOSED_PAUSE);
                    }
                    // Else nobody is there, or whoever was has left.
                    return;
                }
            }
        }
    }

    /// A visitor has proved the key, or not.
    pub(super) fn visited(
        &mut self,
        rail: usize,
        from: SocketAddr,
        outcome: Result<(TcpStream, Hello), TransportError>,
    ) {
        let seated = outcome.and_then(|(stream, hello)| {
            let seat = self.seat(&hello, rail);
            let stranger = || TransportError::Refused("it belongs to another communicator".into());
            Ok((seat.ok_or_else(stranger)?, hello, stream))
        });
        match seated {
            Ok((seat, Hello { incarnation, medium, .. }, stream)) => {
                if let Err(reason) = self.admit(seat, incarnation, (stream, medium)) {
                    let (link, path) = seat;
                    let rank = self.identity.me.0;
                    tracing::debug!(rank, link, path, incarnation, %reason, "a connection was not taken");
                }
            }
            Err(reason) => self.refuse(from, &reason),
        }
    }

    /// The link and the path that a peer means.
    fn seat(&self, hello: &Hello, rail: usize) -> Option<(usize, usize)> {
        let path = usize::try_from(hello.index).ok()?;
        let is_ours =
            hello.communicator == self.identity.communicator && hello.to == self.identity.me;
        let is_possible = hello.incarnation <= LAST_INCARNATION;
        let link = self.links.iter().position(|link| {
            link.as_ref().is_some_and(|link| link.peer == hello.from && !link.dials)
        })?;
        let kept = self.links[link].as_ref()?.paths.get(path)?;
        let is_here = path % self.rails.len() == rail && kept.choice.admits(hello.medium);
        (is_ours && is_possible && is_here).then_some((link, path))
    }

    /// Takes a connection if it is newer than the present one, and tells the peer.
    fn admit(
        &mut self,
        (link, path): (usize, usize),
        incarnation: u32,
        (stream, medium): (TcpStream, Medium),
    ) -> Result<(), TransportError> {
        if incarnation == FIRST_INCARNATION {
            return Err(TransportError::PeerGone("the ranks do not meet any more".into()));
        }
        if self.is_broken(link, path) {
            return Err(TransportError::PeerGone("the rail is broken on purpose".into()));
        }
        let Some((kept, _)) = self.path(link, path) else { return Ok(()) };
        if let Err(present) = kept.redial.admit(incarnation) {
            Verdict::Outdone(present).tell(&stream)?;
            return Err(TransportError::Refused(format!("connection {present} is as new")));
        }
        Verdict::Welcome.tell(&stream)?;
        self.hand_over((link, path), incarnation, (stream, medium))
    }

    /// Logs the first stranger, and leaves the rest: a port scan must not fill the log.
    fn refuse(&mut self, from: SocketAddr, reason: &TransportError) {
        if !std::mem::replace(&mut self.was_stranger_reported, true) {
            tracing::warn!(%from, %reason, rank = self.identity.me.0, "refused a connection");
        }
    }
}
