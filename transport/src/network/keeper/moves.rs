//! NICs that come back under another address, at either end of a path.
//!
//! The end whose address changed listens and dials from the new one, and says so; the other end hears of
//! it over the control plane and dials there. A connection under an old address is dead: the links have
//! given it up, or will.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Instant;

use super::directory::Move;
use super::worker::{Rail, Worker, binding};
use crate::TransportError;
use crate::verbs::soft::socket::{self, Binding};

impl Worker {
    /// A NIC of this host has another address.
    pub(super) fn relocate(&mut self, rail: usize, address: IpAddr, now: Instant) {
        let Rail { address: own, listener } = &mut self.rails[rail];
        own.address = address;
        let binding = binding(own);
        let port = listener.local_addr().map_or(0, |known| known.port());
        let rails = self.rails.len();
        for link in self.links.iter_mut().flatten() {
            for kept in link.paths.iter_mut().skip(rail).step_by(rails) {
                kept.binding = binding.clone();
            }
        }
        self.hurry(rail, now);
        let (rank, name) = (self.identity.me.0, &self.rails[rail].address.name);
        match listen(&binding, port) {
            Ok((listener, listening)) => {
                tracing::info!(rank, name, %listening, "a NIC has another address");
                self.rails[rail].listener = listener;
                self.witness.moved(rail, listening);
            }
            // This end can still dial from there.
            Err(cause) => tracing::warn!(rank, name, %cause, "nobody listens at a new address"),
        }
    }

    /// A rail of a peer listens elsewhere.
    pub(super) fn peer_moved(&mut self, news: Move, now: Instant) {
        let Move { peer, rail, address } = news;
        let mut links = self.links.iter_mut().enumerate();
        let found = links.find_map(|(number, link)| {
            Some((number, link.as_mut().filter(|link| link.peer == peer)?))
        });
        let Some((number, link)) = found else { return };
        if rail >= link.peer_rails {
            return;
        }
        let mut moved = Vec::new();
        let theirs = link.paths.iter_mut().enumerate().skip(rail).step_by(link.peer_rails);
        for (path, kept) in theirs.filter(|(_, kept)| kept.address != address) {
            kept.address = address;
            kept.redial.hurry(now);
            moved.push(path);
        }
        tracing::debug!(rank = self.identity.me.0, peer = peer.0, rail, %address, "a peer has moved");
        // What is on its way to the old address finds nobody.
        self.attempts.retain(|attempt| attempt.link != number || !moved.contains(&attempt.path));
    }
}

/// A listener, on this port if it is free.
fn listen(binding: &Binding, port: u16) -> Result<(TcpListener, SocketAddr), TransportError> {
    let listener = socket::listen_on(binding, port).or_else(|_| socket::listen(binding))?;
    let address = listener.local_addr();
    let address = address
        .map_err(|cause| TransportError::system("ask for the address of a listener", cause))?;
    Ok((listener, address))
}
