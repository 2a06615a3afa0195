//! How a link begins: both ends tell where their memory is, on every path.

use super::super::carrier::{Carrier, Live};
use super::super::events::Evidence;
use super::super::landing::Landing;
use super::super::meet::FIRST_INCARNATION;
use super::NetworkLink;
use crate::{TransportError, clock};

impl NetworkLink {
    /// The paths over which the ends have met and whose other end has not announced its memory. Of later connections the peer
    /// may hear when it uses the link.
    fn unannounced(&self) -> impl Iterator<Item = usize> {
        let carriers = self.carriers.iter().enumerate();
        let is_silent =
            |carrier: &Carrier| carrier.live.as_ref().is_some_and(|live| live.block.is_none());
        let is_first = |path: usize| self.fences.incarnation(path) == FIRST_INCARNATION;
        let silent = carriers.filter(move |(path, carrier)| is_first(*path) && is_silent(carrier));
        silent.map(|(path, _)| path)
    }

    /// Their rails.
    pub(in super::super) fn unannounced_rails(&self) -> Vec<usize> {
        self.unannounced().map(|path| self.carriers[path].rail).collect()
    }

    /// The connections on which the peer has announced its memory.
    fn announced_lives(&self) -> impl Iterator<Item = &Live> {
        let live = self.carriers.iter().filter_map(|carrier| carrier.live.as_ref());
        live.filter(|live| live.block.is_some())
    }

    /// Whether any path has been announced, so that tiles can be sent.
    pub(in super::super) fn is_announced(&self) -> bool {
        self.announced_lives().next().is_some()
    }

    /// Whether only some of the paths have been announced, which happens at about the same time.
    pub(in super::super) fn is_partly_announced(&self) -> bool {
        self.is_announced() && self.unannounced().next().is_some()
    }

    /// Whether this end has said on all paths that have been announced where its memory is, and what was given up.
    pub(in super::super) fn has_announced(&self) -> bool {
        !self.owes_fence() && self.announced_lives().all(|live| live.pair.flushed())
    }

    /// Goes on without the paths that the peer has not announced, if it may.
    pub(in super::super) fn begin_without_unannounced(&mut self) {
        let silent: Vec<usize> = self.unannounced().collect();
        for path in silent {
            self.give_up(path, Evidence::Silence, "the peer has announced nothing on it".into());
        }
    }

    /// Progress before the link is in use: it waits for paths that die, and for the peer, as long as whoever calls this.
    pub(in super::super) fn settle(&mut self) -> Result<(), TransportError> {
        self.poll_paths(&mut Landing::none());
        self.take_news();
        self.end_holds(clock::now());
        self.post_staged();
        self.failure.clone().map_or(Ok(()), Err)
    }
}
