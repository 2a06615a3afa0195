//! The keeper of the rails of one end of a link, in the simulated network.

use ccl_core::failover::watch::Question;
use ccl_transport::network::keeper::{Keeper, News};

use crate::device::{SimulatedDomain, SimulatedPair};
use crate::network::{NewsItem, Shared};

#[derive(Debug)]
pub(crate) struct SimulatedKeeper {
    network: Shared,
    link: usize,
    side: usize,
}

impl SimulatedKeeper {
    pub(crate) fn new(network: Shared, link: usize, side: usize) -> Self {
        Self { network, link, side }
    }
}

impl Keeper for SimulatedKeeper {
    fn probe(&mut self, path: usize, _question: Question) {
        self.network.lock().probe(self.link, self.side, path);
    }

    fn reconnect(&mut self, path: usize, incarnation: u32) {
        self.network.lock().reconnect(self.link, self.side, path, incarnation);
    }

    fn has_news(&self) -> bool {
        self.network.lock().has_news(self.link, self.side)
    }

    fn news(&mut self, into: &mut Vec<News>) {
        let next = || self.network.lock().next_news(self.link, self.side);
        while let Some(item) = next() {
            into.push(match item {
                NewsItem::Answered { path } => News::Answered { path },
                NewsItem::Unreachable { path } => News::Unreachable { path },
                NewsItem::Severed { path } => {
                    News::Severed { path, cause: "the carrier is lost".into() }
                }
                NewsItem::Connected { path, incarnation, end, domain } => News::Connected {
                    path,
                    incarnation,
                    domain: Box::new(SimulatedDomain::new(self.network.clone(), domain)),
                    pair: Box::new(SimulatedPair::new(self.network.clone(), end)),
                },
            });
        }
    }
}
