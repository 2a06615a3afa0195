//! Whether ranks can do collectives without the host: all of them decide it alike, from what all have said.

use ccl_kernels::cuda::MOST_BLOCKS;
use ccl_kernels::cuda::gpu::{Handle, Invitation};
use serde::{Deserialize, Serialize};

/// An [`Invitation`] on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Letter {
    process: u32,
    device: u32,
    address: u64,
    handle: Vec<u8>,
    bytes: usize,
}

impl From<Invitation> for Letter {
    fn from(invitation: Invitation) -> Self {
        let Invitation { process, device, address, handle } = invitation;
        Self { process, device, address, handle: handle.bytes.to_vec(), bytes: handle.size }
    }
}

impl TryFrom<&Letter> for Invitation {
    type Error = String;

    fn try_from(letter: &Letter) -> Result<Self, String> {
        let wrong = |_| "a handle has a strange size".to_owned();
        let bytes: [u8; Handle::BYTES] = letter.handle.as_slice().try_into().map_err(wrong)?;
        let Letter { process, device, address, .. } = *letter;
        Ok(Self { process, device, address, handle: Handle { bytes, size: letter.bytes } })
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
    /// The region; or why there is none.
    pub(super) region: Result<Letter, String>,
}

/// What ranks have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    /// Blocks of a kernel, at most.
    pub(super) blocks: u32,
    pub(super) maps_buffers: bool,
}

/// Decides, or says why not.
pub(super) fn agree(facts: &[Facts]) -> Result<Agreement, String> {
    for (rank, fact) in facts.iter().enumerate() {
        if let Err(reason) = &fact.region {
            return Err(format!("rank {rank}: {reason}"));
        }
        if fact.host != facts[0].host {
            return Err(format!("rank {rank} is on another host than rank 0"));
        }
        if fact.staging_bytes != facts[0].staging_bytes {
            return Err(format!(
                "R2CCL_CUDA_STAGING_BYTES is {} on rank 0 and {} on rank {rank}",
                facts[0].staging_bytes, fact.staging_bytes
            ));
        }
    }
    // The blocks of all ranks on a device have to run together.
    let beside = |fact: &Facts| facts.iter().filter(|other| other.bus == fact.bus).count() as u32;
    let blocks = facts.iter().map(|fact| fact.processors / beside(fact)).min().unwrap_or(0);
    if blocks == 0 {
        return Err("more ranks share a device than it has processors".into());
    }
    let maps_buffers = facts.iter().all(|fact| fact.maps_buffers);
    Ok(Agreement { blocks: blocks.min(MOST_BLOCKS as u32), maps_buffers })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(bus: &str) -> Facts {
        let handle = Handle { bytes: [7; Handle::BYTES], size: 100 };
        let region = Invitation { process: 1, device: 0, address: 4096, handle };
        Facts {
            host: "here".into(),
            bus: bus.into(),
            processors: 100,
            staging_bytes: 4096,
            maps_buffers: true,
            region: Ok(region.into()),
        }
    }

    #[test]
    fn blocks_of_all_ranks_on_a_device_run_together() {
        let blocks = |facts: &[Facts]| agree(facts).map(|agreement| agreement.blocks);
        assert_eq!(blocks(&[facts("a"), facts("b")]), Ok(64));
        assert_eq!(blocks(&[facts("a"), facts("b"), facts("a")]), Ok(50));
        let small = Facts { processors: 1, ..facts("a") };
        assert_eq!(blocks(&[facts("b"), small.clone()]), Ok(1));
        assert!(blocks(&[facts("a"), small]).is_err());
        let plain = Facts { maps_buffers: false, ..facts("a") };
        assert!(!agree(&[facts("b"), plain]).unwrap().maps_buffers);
    }

    #[test]
    fn who_cannot_is_named() {
        let refused = |fact: Facts| agree(&[facts("a"), fact]).unwrap_err();
        let reason = "R2CCL_CUDA_P2P is 0".to_owned();
        assert!(refused(Facts { region: Err(reason), ..facts("a") }).contains("rank 1: R2CCL"));
        assert!(refused(Facts { host: "there".into(), ..facts("a") }).contains("another host"));
        assert!(refused(Facts { staging_bytes: 8192, ..facts("a") }).contains("8192 on rank 1"));
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
