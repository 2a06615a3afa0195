//! What two ends tell each other before they connect, and the connections that follow from it.

use std::net::SocketAddr;
use std::sync::Arc;

use ccl_transport::TransportError;
use ccl_transport::verbs::Connection;
use ccl_transport::verbs::virtual_qp::{
    Attempt, Bell, Connector, Evidence, Shadow, Standing, Store, TcpConnector,
};
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use super::devices::Nature;
use super::drill::Careful;
use super::end::End;
use super::meeting::Deadline;
use super::pool::Customer;
use super::{Error, Meeting, QueuePair, Side};

/// What evidence is called where there is none.
pub(super) const OFF: &str = "off";

/// What backups are called that a queue pair has for itself; others are those of a pool.
const OWN: &str = "own";

/// What one end says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Introduction {
    evidence: String,
    /// The devices, by rail.
    rails: Vec<Nature>,
    /// What they are worth, seen from here.
    standings: Vec<Standing>,
    /// Faults to rehearse, as they were written.
    faults: String,
    /// Where its backups come from.
    backups: String,
    /// How both ends call the queue pair: the accepting end chooses.
    name: String,
    /// Where the accepting end listens, by rail.
    addresses: Vec<SocketAddr>,
}

/// Introduces the ends to each other, connects the default rail, and returns the shadow that connects
/// the others.
pub(super) fn connect(
    pair: &mut QueuePair,
    meeting: &mut Meeting,
    deadline: &Deadline,
) -> Result<Shadow, Error> {
    let side = meeting.side();
    if let Some(drill) = &pair.wiring.drill {
        drill.take_side(side)?;
    }
    let mine = introduce(pair, side)?;
    let encoded = postcard::to_stdvec(&mine)
        .map_err(|cause| Error::system("write an introduction", cause))?;
    let heard = meeting.exchange(&encoded, deadline.left("the introduction of the peer")?)?;
    let theirs: Introduction = postcard::from_bytes(&heard)
        .map_err(|_| Error::PeerLost("it does not introduce itself".into()))?;
    mine.agrees(&theirs)?;
    if let End::Surviving(surviving) = &mut pair.end {
        let standings = mine.standings_with(&theirs)?;
        if let Some(customer) = &mut pair.customer {
            customer.set_standings(&standings);
        }
        surviving.set_standings(standings);
    }
    pair.lacking = pair.lacking.take().or(lacking(&theirs.rails, pair.used_rails(), "the peer"));
    let connector = Shared(Arc::new(wire(pair, side, &mine, theirs)?));
    let first = connector.connect(0, &Attempt::new(deadline.until));
    let connection = first.map_err(|cause| {
        let overdue = match &cause {
            TransportError::TimedOut(waiting) => deadline.left(waiting).err(),
            TransportError::PeerGone(_)
            | TransportError::Severed(_)
            | TransportError::Unrepaired(_)
            | TransportError::Protocol(_)
            | TransportError::Refused(_)
            | TransportError::System { .. } => None,
        };
        overdue.unwrap_or(cause.into())
    })?;
    pair.end.pair().connect(connection)?;
    let shadow = Shadow::new(connector);
    // A pool connects the backups.
    Ok(if pair.customer.is_some() { shadow.of_default_rail() } else { shadow })
}

fn introduce(pair: &QueuePair, side: Side) -> Result<Introduction, Error> {
    let (name, addresses) = match side {
        Side::Accepting => (random_name()?, pair.wiring.switchboard()?.addresses().to_vec()),
        Side::Connecting => Default::default(),
    };
    let faults = pair.wiring.drill.as_ref().map(|drill| drill.plan().to_string());
    Ok(Introduction {
        evidence: pair.terms.evidence.map_or(OFF, Evidence::name).to_owned(),
        rails: pair.wiring.natures.clone(),
        standings: pair.wiring.standings.clone(),
        faults: faults.unwrap_or_default(),
        backups: pair.customer.as_ref().map_or(OWN, Customer::pool).to_owned(),
        name,
        addresses,
    })
}

impl Introduction {
    /// What the rails are worth to both ends, which both find out.
    fn standings_with(&self, peer: &Self) -> Result<Vec<Standing>, Error> {
        if peer.standings.len() != self.standings.len() {
            return Err(Error::PeerLost("it does not say what its rails are worth".into()));
        }
        let both = self.standings.iter().zip(&peer.standings);
        Ok(both.map(|(here, there)| here.with(*there)).collect())
    }

    /// Both ends compare the same values, so they find out the same.
    fn agrees(&self, peer: &Self) -> Result<(), Error> {
        let (rails, peers_rails) = (self.rails.len().to_string(), peer.rails.len().to_string());
        for (what, here, there) in [
            ("evidence", &self.evidence, &peer.evidence),
            ("number of rails", &rails, &peers_rails),
            ("rehearsed faults", &self.faults, &peer.faults),
            ("backups", &self.backups, &peer.backups),
        ] {
            if here != there {
                let text = format!("the ends differ: {what} {here:?} here, {there:?} at the peer");
                return Err(Error::InvalidUsage(text));
            }
        }
        let mut rails = self.rails.iter().zip(&peer.rails).enumerate();
        match rails.find(|(_, (here, there))| here.is_rdma != there.is_rdma) {
            None => Ok(()),
            Some((rail, (here, there))) => Err(Error::InvalidUsage(format!(
                "the ends differ: rail {rail} is {here} here, {there} at the peer; a rail needs RDMA \
                 devices at both ends or at none"
            ))),
        }
    }
}

/// Which of these rails stands in the way of atomics, and why.
pub(super) fn lacking(rails: &[Nature], used: usize, whose: &str) -> Option<String> {
    let mut used = rails.iter().take(used).enumerate();
    let (rail, device) = used.find(|(_, device)| !device.has_atomics)?;
    Some(format!(
        "rail {rail}, {device} of {whose}, has no atomics: open domains without it, or use messages"
    ))
}

/// What makes the connections of a queue pair.
fn wire(
    pair: &QueuePair,
    side: Side,
    mine: &Introduction,
    theirs: Introduction,
) -> Result<Careful<TcpConnector>, Error> {
    let wiring = &pair.wiring;
    let inner = match side {
        Side::Accepting => {
            let nowhere: Arc<dyn Store> = Arc::new(Told(Vec::new()));
            TcpConnector::accepting(mine.name.clone(), nowhere, wiring.switchboard()?)
        }
        Side::Connecting => {
            if theirs.addresses.len() != pair.rails() || theirs.name.len() > NAME_BYTES * 2 {
                return Err(Error::PeerLost("it does not say where it listens".into()));
            }
            let told = Arc::new(Told(theirs.addresses));
            TcpConnector::dialling(theirs.name, told, wiring.bindings.clone(), wiring.key.clone())
                .watching(Arc::clone(&wiring.lookout))
        }
    };
    Ok(Careful { inner, drill: wiring.drill.clone() })
}

/// Where the peer listens, as it said when the ends met.
struct Told(Vec<SocketAddr>);

impl Store for Told {
    /// The peer was told already.
    fn put(&self, _: &str, _: &[u8]) -> Result<(), TransportError> {
        Ok(())
    }

    fn get(&self, key: &str, _: std::time::Instant) -> Result<Vec<u8>, TransportError> {
        let rail = key.rsplit(' ').next().and_then(|rail| rail.parse::<usize>().ok());
        let address = rail.and_then(|rail| self.0.get(rail));
        let text = || TransportError::TimedOut(format!("nobody told {key}"));
        address.map(|address| address.to_string().into_bytes()).ok_or_else(text)
    }
}

/// The connector of the first rail is also that of the shadow.
struct Shared(Arc<Careful<TcpConnector>>);

impl Connector for Shared {
    fn connect(&self, rail: usize, attempt: &Attempt) -> Result<Connection, TransportError> {
        self.0.connect(rail, attempt)
    }

    fn announce(&self, bell: Bell) {
        self.0.announce(bell);
    }
}

/// A name is these in hexadecimal.
pub(super) const NAME_BYTES: usize = 16;

/// A name that no other queue pair has.
pub(super) fn random_name() -> Result<String, Error> {
    let mut bytes = [0; NAME_BYTES];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|cause| Error::system("draw a name", cause))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use ccl_core::topology::Distance;

    use super::*;

    #[test]
    fn what_differs_is_named_with_both_values() {
        let rail = |name: &str, is_rdma| Nature { name: name.into(), is_rdma, has_atomics: true };
        let mine = Introduction {
            evidence: "log".into(),
            rails: vec![rail("eth0", false), rail("rxe1", true)],
            standings: vec![Standing::default(); 2],
            faults: String::new(),
            backups: OWN.into(),
            name: String::new(),
            addresses: Vec::new(),
        };
        assert_eq!(mine.agrees(&mine), Ok(()));
        let cases = [
            (
                Introduction { evidence: OFF.into(), ..mine.clone() },
                "evidence \"log\" here, \"off\"",
            ),
            (Introduction { rails: vec![], ..mine.clone() }, "number of rails \"2\" here, \"0\""),
            (
                Introduction { rails: vec![rail("eth4", false); 2], ..mine.clone() },
                "rail 1 is the RDMA device rxe1 here, the software device eth4 at the peer",
            ),
            (Introduction { faults: "f".into(), ..mine.clone() }, "faults \"\" here, \"f\""),
            (Introduction { backups: "p".into(), ..mine.clone() }, "backups \"own\" here, \"p\""),
        ];
        for (theirs, named) in cases {
            let error = mine.agrees(&theirs).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    /// Near here and far there is far.
    #[test]
    fn what_rails_are_worth_is_up_to_both_ends() {
        let introduction = |distances: &[Distance]| Introduction {
            evidence: "log".into(),
            rails: Vec::new(),
            standings: distances
                .iter()
                .map(|&distance| Standing { distance, ..Standing::default() })
                .collect(),
            faults: String::new(),
            backups: OWN.into(),
            name: String::new(),
            addresses: Vec::new(),
        };
        let near = introduction(&[Distance::Loc, Distance::Pix, Distance::Phb, Distance::Sys]);
        let far = introduction(&[Distance::Loc, Distance::Sys, Distance::Unknown, Distance::Pix]);
        let distances = [Distance::Loc, Distance::Sys, Distance::Phb, Distance::Sys];
        for (here, there) in [(&near, &far), (&far, &near)] {
            let both = here.standings_with(there).unwrap();
            assert_eq!(both, introduction(&distances).standings);
        }
        assert!(near.standings_with(&introduction(&[])).is_err());
    }

    #[test]
    fn the_rail_without_atomics_is_named() {
        let rail =
            |name: &str, has_atomics| Nature { name: name.into(), is_rdma: true, has_atomics };
        let rails = [rail("mlx5_0", true), rail("old_0", false)];
        assert_eq!(lacking(&rails, 1, "this host"), None);
        let text = lacking(&rails, 2, "the peer").unwrap();
        assert!(
            text.starts_with("rail 1, the RDMA device old_0 of the peer, has no atomics"),
            "{text}"
        );
    }
}
