//! How a link begins: both ends tell where their memory is, on every path.

use super::super::carrier::Carrier;
use super::super::events::Evidence;
use super::super::landing::Landing;
use super::NetworkLink;
use crate::TransportError;

impl NetworkLink {
    /// The paths whose other end has not announced its memory.
    fn unannounced(&self) -> impl Iterator<Item = usize> {
        let carriers = self.carriers.iter().enumerate();
        let is_silent =
            |carrier: &Carrier| carrier.live.as_ref().is_some_and(|live| live.block.is_none());
        carriers.filter(move |(_, carrier)| is_silent(carrier)).map(|(path, _)| path)
    }

    /// Their rails.
    pub(in super::super) fn unannounced_rails(&self) -> Vec<usize> {
        self.unannounced().map(|path| self.carriers[path].rail).collect()
    }

    /// Whether only some of the paths have been announced, which happens at about the same time.
    pub(in super::super) fn is_partly_announced(&self) -> bool {
        let live = self.carriers.iter().filter(|carrier| carrier.live.is_some()).count();
        (1..live).contains(&self.unannounced().count())
    }

    /// Goes on without the paths that the peer has not announced, if it may.
    pub(in super::super) fn begin_without_unannounced(&mut self) {
        let silent: Vec<usize> = self.unannounced().collect();
        for path in silent {
            self.give_up(path, Evidence::Silence, "the peer has announced nothing on it".into());
        }
    }

    /// Progress before the link is in use.
    pub(in super::super) fn settle(&mut self) -> Result<(), TransportError> {
        self.poll_paths(&mut Landing::none());
        self.post_staged();
        self.failure.clone().map_or(Ok(()), Err)
    }
}
