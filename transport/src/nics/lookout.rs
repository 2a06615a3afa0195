//! Watches NICs for all that use them, without a thread.
//!
//! Whoever uses a NIC polls, or sleeps until a descriptor is readable. So whoever has polled in vain, or is
//! about to sleep, [looks](Watched::look), for everybody who shares the lookout; all others see what was
//! found in a flag, which costs a poll next to nothing. Those who sleep are woken by the announcements of
//! the kernel: all wait on the same [descriptor](Lookout::descriptor). Where nobody polls nothing happens.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{ChangeKind, LOOK_EVERY, Look, Nics};
use crate::verbs::soft::socket::Binding;
use crate::{TransportError, clock};

/// Watches several NICs.
#[derive(Debug)]
pub struct Lookout {
    posts: Vec<Post>,
    glass: Mutex<Glass>,
}

/// What everybody sees of one NIC.
#[derive(Debug, Default)]
struct Post {
    is_severed: AtomicBool,
    /// How often it has begun to work again.
    returns: AtomicU32,
    /// How often another interface of the same name has taken its place.
    replacements: AtomicU32,
}

/// What only one looks through at a time.
#[derive(Debug)]
struct Glass {
    nics: Nics,
    next_look: Instant,
    /// What is wrong with each NIC.
    ailments: Vec<Option<String>>,
}

/// One NIC of a lookout.
#[derive(Clone, Debug)]
pub struct Watched {
    lookout: Arc<Lookout>,
    rail: usize,
}

impl Lookout {
    /// Watches the NICs of these rails, in the network namespace of this thread. They work as far as anybody
    /// knows. A NIC that has lost its address works again when that is back, under no other.
    ///
    /// # Errors
    /// The system has no socket left.
    pub fn over(bindings: Vec<Binding>) -> Result<Arc<Self>, TransportError> {
        let ailments = vec![None; bindings.len()];
        let posts = bindings.iter().map(|_| Post::default()).collect();
        let nics = Nics::watch_in_place(bindings)?;
        let glass = Mutex::new(Glass { nics, next_look: clock::now(), ailments });
        Ok(Arc::new(Self { posts, glass }))
    }

    /// One of its NICs.
    ///
    /// # Panics
    /// There is no such rail.
    #[must_use]
    pub fn nic(self: &Arc<Self>, rail: usize) -> Watched {
        assert!(rail < self.posts.len(), "there are {} NICs", self.posts.len());
        Watched { lookout: Arc::clone(self), rail }
    }

    /// Readable when somebody should look; `None` where the kernel announces nothing. It lives as long as
    /// the lookout.
    #[must_use]
    pub fn descriptor(&self) -> Option<RawFd> {
        self.glass().nics.descriptor().map(|descriptor| descriptor.as_raw_fd())
    }

    fn glass(&self) -> MutexGuard<'_, Glass> {
        self.glass.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks if something was announced, or it is time. Whoever sleeps on the [descriptor](Self::descriptor) does it
    /// before, since it stays readable until somebody has looked.
    pub fn look(&self) {
        let mut glass = self.glass();
        let was_told = glass.nics.was_told();
        let is_due = || glass.nics.needs_looks() && glass.next_look <= clock::now();
        if was_told || is_due() {
            let look = if was_told { Look::Thorough } else { Look::Quick };
            self.look_through(&mut glass, look);
        }
    }

    fn look_through(&self, glass: &mut Glass, look: Look) {
        glass.next_look = clock::now() + LOOK_EVERY;
        for change in glass.nics.changes(look) {
            let (rail, post) = (change.rail, &self.posts[change.rail]);
            match change.kind {
                ChangeKind::Severed(reason) => {
                    tracing::warn!(rail, reason, "a NIC does not work");
                    glass.ailments[rail] = Some(reason);
                    post.is_severed.store(true, Ordering::Release);
                }
                kind @ (ChangeKind::Restored | ChangeKind::Replaced | ChangeKind::Moved(_)) => {
                    tracing::info!(rail, "a NIC works again");
                    if kind == ChangeKind::Replaced {
                        post.replacements.fetch_add(1, Ordering::Release);
                    }
                    glass.ailments[rail] = None;
                    post.is_severed.store(false, Ordering::Release);
                    post.returns.fetch_add(1, Ordering::Release);
                }
            }
        }
    }
}

impl Watched {
    /// Finds out how it is, if that may have changed: for whoever has polled in vain.
    pub fn look(&self) {
        self.lookout.look();
    }

    /// What is wrong with it, as of the last look.
    #[must_use]
    pub fn ailment(&self) -> Option<String> {
        self.is_severed().then(|| self.lookout.glass().ailments[self.rail].clone()).flatten()
    }

    /// Whether it did not work at the last look.
    #[must_use]
    pub fn is_severed(&self) -> bool {
        self.post().is_severed.load(Ordering::Acquire)
    }

    /// How often it has begun to work again: where that has grown, it is worth trying anew.
    #[must_use]
    pub fn returns(&self) -> u32 {
        self.post().returns.load(Ordering::Acquire)
    }

    /// How often another interface of the same name has taken its place: connections from before are dead, and
    /// nobody says so where they are idle.
    #[must_use]
    pub fn replacements(&self) -> u32 {
        self.post().replacements.load(Ordering::Acquire)
    }

    /// A new connection over it shows that it has a carrier, which the kernel may find out up to a second
    /// later: what it says of the carrier until then is old.
    pub(crate) fn prove(&self) {
        let look = if self.is_severed() { Look::Thorough } else { Look::Quick };
        let mut glass = self.lookout.glass();
        glass.nics.prove(self.rail);
        self.lookout.look_through(&mut glass, look);
    }

    fn post(&self) -> &Post {
        &self.lookout.posts[self.rail]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookout(address: &str, interface: Option<&str>) -> Arc<Lookout> {
        let interface = interface.map(str::to_owned);
        Lookout::over(vec![Binding { address: address.parse().unwrap(), interface }]).unwrap()
    }

    #[test]
    fn a_nic_without_a_cable_is_never_lost() {
        let nic = lookout("127.3.4.5", None).nic(0);
        nic.look();
        nic.prove();
        assert_eq!((nic.ailment(), nic.returns()), (None, 0));
    }

    /// What one finds, all see, and a connection proves nothing of an address.
    #[test]
    fn what_is_wrong_is_told_to_everybody() {
        let lookout = lookout("203.0.113.77", None);
        let [one, other] = [0; 2].map(|_| lookout.nic(0));
        lookout.look_through(&mut lookout.glass(), Look::Thorough);
        let reason = "this host has lost the address 203.0.113.77";
        for nic in [&one, &other] {
            assert!(nic.is_severed());
            assert_eq!(nic.ailment().as_deref(), Some(reason));
        }
        one.prove();
        assert!(other.is_severed());
    }

    #[test]
    fn an_interface_that_is_gone_is_told_by_name() {
        let lookout = lookout("127.0.0.1", Some("nonesuch0"));
        lookout.look_through(&mut lookout.glass(), Look::Thorough);
        assert!(lookout.nic(0).ailment().is_some_and(|reason| reason.contains("127.0.0.1")));
    }
}
