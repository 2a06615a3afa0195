//! Counts and writes down what links say about their paths.

use ccl_transport::network::events::{Evidence, RailEvent, RailEventKind, Witness};

use crate::network::Shared;

/// Hears one end of a link.
#[derive(Debug)]
pub(crate) struct SimulatedWitness {
    network: Shared,
    link: usize,
    side: usize,
}

impl SimulatedWitness {
    pub(crate) fn new(network: Shared, link: usize, side: usize) -> Self {
        Self { network, link, side }
    }
}

impl Witness for SimulatedWitness {
    fn witness(&self, event: RailEvent) {
        let mut network = self.network.lock();
        if network.over {
            return;
        }
        let RailEvent { path, incarnation, ref kind, .. } = event;
        let rank = network.link(self.link).ranks[self.side];
        let link = self.link;
        network
            .note(|_| format!("rank {rank}, path {path}.{incarnation} of link {link}: {kind:?}"));
        let works = network.works(link, path);
        let given_up = matches!(kind, RailEventKind::GivenUp { .. });
        network.given_up[rank] += u64::from(given_up);
        let tally = &mut network.tally;
        match *kind {
            RailEventKind::Suspected => {
                tally.suspected += 1;
                tally.suspected_falsely += u64::from(works);
            }
            RailEventKind::GivenUp { evidence, .. } => match evidence {
                Evidence::Device => tally.given_up_device += 1,
                Evidence::Closed => tally.given_up_closed += 1,
                Evidence::Carrier | Evidence::PeerCarrier => tally.given_up_carrier += 1,
                Evidence::Peer => tally.given_up_peer += 1,
                Evidence::Silence => {
                    tally.given_up_silence += 1;
                    tally.given_up_falsely += u64::from(works);
                }
            },
            RailEventKind::Resent { tiles, bytes } => {
                tally.resent_tiles += tiles as u64;
                tally.resent_bytes += bytes as u64;
            }
            RailEventKind::Resumed | RailEventKind::Measured { .. } => {}
            RailEventKind::Returned => tally.returned += 1,
        }
    }
}
