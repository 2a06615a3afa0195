//! Whether ranks can do collectives without the host, and how: all of them decide it alike, from what all have said.

use ccl_kernels::cuda::gpu::{Handle, Invitation};
use ccl_kernels::cuda::{MOST_BLOCKS, MOST_RANKS};
use serde::{Deserialize, Serialize};

use super::grid::Grid;
use crate::cuda::wire::{Means, Shape};

/// An [`Invitation`] on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Letter {
    process: u32,
    word: u64,
    device: u32,
    address: u64,
    handle: Vec<u8>,
    bytes: usize,
}

impl From<Invitation> for Letter {
    fn from(invitation: Invitation) -> Self {
        let Invitation { process, word, device, address, handle } = invitation;
        let (handle, bytes) = (handle.bytes.to_vec(), handle.size);
        Self { process, word, device, address, handle, bytes }
    }
}

impl TryFrom<&Letter> for Invitation {
    type Error = String;

    fn try_from(letter: &Letter) -> Result<Self, String> {
        let wrong = |_| "a handle has a strange size".to_owned();
        let bytes: [u8; Handle::BYTES] = letter.handle.as_slice().try_into().map_err(wrong)?;
        let Letter { process, word, device, address, .. } = *letter;
        let handle = Handle { bytes, size: letter.bytes };
        Ok(Self { process, word, device, address, handle })
    }
}

/// What a rank says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Facts {
    /// What shares memory: ranks with other hosts are elsewhere.
    pub(super) host: String,
    /// The device, as all processes name it.
    pub(super) bus: String,
    /// How many blocks the device runs at once at least.
    pub(super) processors: u32,
    pub(super) staging_bytes: usize,
    /// Whether buffers of the program are mapped.
    pub(super) maps_buffers: bool,
    /// Nothing; or why ranks of its host can do nothing without the host.
    pub(super) peers: Result<(), String>,
    /// The region, for all ranks if there are not too many; or why there is none.
    pub(super) region: Result<Letter, String>,
    /// What there is for a ring between hosts; or why there is nothing.
    pub(super) network: Result<Means, String>,
}

/// On what ranks of one host have agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Near {
    /// Blocks of a kernel, at most.
    pub(super) blocks: u32,
    pub(super) maps_buffers: bool,
}

/// What ranks have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    /// All are on one host.
    Near(Near),
    /// Each is on a host of its own.
    Far(Shape),
    /// Every host has as many as each other.
    Columns(Near, Shape, Grid),
}

/// Decides, or says why not.
pub(super) fn agree(facts: &[Facts]) -> Result<Agreement, String> {
    for (rank, fact) in facts.iter().enumerate() {
        if fact.staging_bytes != facts[0].staging_bytes {
            return Err(format!(
                "R2CCL_CUDA_STAGING_BYTES is {} on rank 0 and {} on rank {rank}",
                facts[0].staging_bytes, fact.staging_bytes
            ));
        }
    }
    let grid = Grid::of(facts.iter().map(|fact| fact.host.as_str()));
    match (grid.height(), grid.width()?) {
        (1, _) => {
            all(facts, |fact| &fact.region)?;
            near(facts).map(Agreement::Near)
        }
        (_, 1) => far(facts).map(Agreement::Far),
        (_, width) if width > MOST_RANKS => {
            Err(format!("every host has {width} ranks: kernels do it among {MOST_RANKS} at most"))
        }
        _ => {
            all(facts, |fact| &fact.peers)?;
            Ok(Agreement::Columns(near(facts)?, far(facts)?, grid))
        }
    }
}

/// What all ranks have; or which has it not, and why.
fn all<'a, T>(
    facts: &'a [Facts],
    of: fn(&'a Facts) -> &'a Result<T, String>,
) -> Result<Vec<&'a T>, String> {
    let named = |(rank, said): (usize, &'a Result<T, String>)| {
        said.as_ref().map_err(|reason| format!("rank {rank}: {reason}"))
    };
    facts.iter().map(of).enumerate().map(named).collect()
}

fn far(facts: &[Facts]) -> Result<Shape, String> {
    let means: Vec<Means> = all(facts, |fact| &fact.network)?.into_iter().cloned().collect();
    Shape::of(&means, facts[0].staging_bytes)
}

fn near(facts: &[Facts]) -> Result<Near, String> {
    // The blocks of all ranks on a device have to run together. Those of other communicators are not known: with room for no more than
    // these blocks, calls on several have to follow each other.
    let is_beside =
        |fact: &Facts, other: &&Facts| (&other.host, &other.bus) == (&fact.host, &fact.bus);
    let beside = |fact: &Facts| facts.iter().filter(|other| is_beside(fact, other)).count() as u32;
    let blocks = facts.iter().map(|fact| fact.processors / beside(fact)).min().unwrap_or(0);
    if blocks == 0 {
        return Err("more ranks share a device than it has processors".into());
    }
    let maps_buffers = facts.iter().all(|fact| fact.maps_buffers);
    Ok(Near { blocks: blocks.min(MOST_BLOCKS as u32), maps_buffers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(bus: &str) -> Facts {
        let handle = Handle { bytes: [7; Handle::BYTES], size: 100 };
        let region = Invitation { process: 1, word: 5, device: 0, address: 4096, handle };
        Facts {
            host: "here".into(),
            bus: bus.into(),
            processors: 100,
            staging_bytes: 4096,
            maps_buffers: true,
            peers: Ok(()),
            region: Ok(region.into()),
            network: Ok(Means { soft: 2, rdma: 0 }),
        }
    }

    fn blocks_and_maps(facts: &[Facts]) -> Result<(u32, bool), String> {
        match agree(facts)? {
            Agreement::Near(Near { blocks, maps_buffers }) => Ok((blocks, maps_buffers)),
            other @ (Agreement::Far(_) | Agreement::Columns(..)) => panic!("{other:?} on one host"),
        }
    }

    #[test]
    fn blocks_of_all_ranks_on_a_device_run_together() {
        let blocks = |facts: &[Facts]| blocks_and_maps(facts).map(|(blocks, _)| blocks);
        assert_eq!(blocks(&[facts("a"), facts("b")]), Ok(64));
        assert_eq!(blocks(&[facts("a"), facts("b"), facts("a")]), Ok(50));
        let small = Facts { processors: 1, ..facts("a") };
        assert_eq!(blocks(&[facts("b"), small.clone()]), Ok(1));
        assert!(blocks(&[facts("a"), small]).is_err());
        let plain = Facts { maps_buffers: false, ..facts("a") };
        assert!(!blocks_and_maps(&[facts("b"), plain]).unwrap().1);
    }

    #[test]
    fn who_cannot_is_named() {
        let refused = |fact: Facts| agree(&[facts("a"), fact]).unwrap_err();
        let reason = "R2CCL_CUDA_P2P is 0".to_owned();
        assert!(refused(Facts { region: Err(reason), ..facts("a") }).contains("rank 1: R2CCL"));
        assert!(refused(Facts { staging_bytes: 8192, ..facts("a") }).contains("8192 on rank 1"));
    }

    #[test]
    fn ranks_that_are_each_on_a_host_of_their_own_need_a_network() {
        let at = |host: &str| Facts {
            host: host.into(),
            region: Err("9 ranks do not do it".into()),
            ..facts("a")
        };
        let far = agree(&[at("x"), at("y"), at("z")]);
        let Ok(Agreement::Far(shape)) = far else { panic!("{far:?}") };
        assert_eq!((shape.lanes, shape.is_rdma), (2, false));
        let off = Facts { network: Err("it is off".into()), ..at("z") };
        assert_eq!(agree(&[at("x"), off]), Err("rank 1: it is off".into()));
        let mixed = agree(&[at("x"), at("y"), at("x")]).unwrap_err();
        assert!(mixed.contains("3 ranks are on 2 hosts"), "{mixed}");
    }

    #[test]
    fn hosts_with_as_many_ranks_as_each_other_need_both() {
        let at = |host: &str, bus: &str| Facts {
            host: host.into(),
            region: Err("9 ranks do not do it".into()),
            ..facts(bus)
        };
        // Devices of two hosts may have the same name, and are not the same.
        let all = [at("x", "a"), at("y", "a"), at("y", "a"), at("x", "b")];
        let agreed = agree(&all);
        let Ok(Agreement::Columns(near, shape, grid)) = agreed else { panic!("{agreed:?}") };
        assert_eq!((near.blocks, near.maps_buffers, shape.lanes), (50, true, 2));
        assert_eq!(grid.position(3), Some((0, 1)));
        let lacks = |fact: Facts| {
            let [first, second, third, _] = all.clone();
            agree(&[first, second, third, fact]).unwrap_err()
        };
        let off = "it is off".to_owned();
        let [plain, alone] = [at("x", "b"), at("z", "b")];
        assert_eq!(
            lacks(Facts { network: Err(off.clone()), ..plain.clone() }),
            "rank 3: it is off"
        );
        assert_eq!(lacks(Facts { peers: Err(off), ..plain }), "rank 3: it is off");
        assert!(lacks(alone).contains("1 on that of rank 0, 2 on that of rank 1"));
        let many: Vec<Facts> = (0..18).map(|k| at(["x", "y"][k % 2], "a")).collect();
        assert!(agree(&many).unwrap_err().contains("every host has 9 ranks"));
    }

    #[test]
    fn letters_are_invitations() {
        let letter = facts("a").region.unwrap();
        let invitation = Invitation::try_from(&letter).unwrap();
        assert_eq!(Letter::from(invitation), letter);
        let short = Letter { handle: vec![0; 3], ..letter };
        assert!(Invitation::try_from(&short).is_err());
    }
}
