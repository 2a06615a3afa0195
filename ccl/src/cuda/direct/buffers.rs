//! Allocations of the program that all other ranks have mapped.
//!
//! An allocation is known by its number, which the driver gives to no other one, also not at the same
//! address: what is told of an allocation that was freed is never told of the next one.

use ccl_kernels::cuda::gpu::{Allocation, DeviceRegion, Gpu, Invitation, Shown};
use serde::{Deserialize, Serialize};

use super::agreement::Letter;

/// Allocations of a rank that others have mapped, at most; others are staged.
const MOST_BUFFERS: usize = 64;

/// What a rank has called since it told news before; what it lets the others map, and what they can forget,
/// by the numbers of allocations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct News {
    pub(super) calls: Vec<String>,
    pub(super) shown: Vec<(u64, Letter)>,
    pub(super) gone: Vec<u64>,
}

#[derive(Debug)]
enum Fate {
    /// The others have not been asked.
    New,
    /// Somebody cannot map it.
    Refused,
    Shown(Shown),
}

#[derive(Debug)]
struct Known {
    allocation: Allocation,
    fate: Fate,
}

/// The allocations of one rank.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    known: Vec<Known>,
    gone: Vec<u64>,
}

impl Buffers {
    /// Where the others have memory of this rank, and how far into it the region begins; None if they do not
    /// have it. What is new is remembered for the next [`Self::news`].
    pub(super) fn find(&mut self, gpu: &Gpu, region: &DeviceRegion<'_>) -> Option<(Shown, usize)> {
        let allocation = gpu.allocation(region.address()).ok()?;
        let offset = (region.address() - allocation.start) as usize;
        if region.bytes() > allocation.bytes.saturating_sub(offset) {
            return None;
        }
        match self.known.iter().find(|known| known.allocation.number == allocation.number) {
            Some(Known { fate: Fate::Shown(shown), .. }) => Some((shown.clone(), offset)),
            Some(_) => None,
            None => {
                if self.known.len() < MOST_BUFFERS {
                    self.known.push(Known { allocation, fate: Fate::New });
                }
                None
            }
        }
    }

    /// Forgets what was freed, and says what the others have to know.
    pub(super) fn news(&mut self, gpu: &Gpu) -> News {
        let is_there = |known: &Known| {
            gpu.allocation(known.allocation.start)
                .is_ok_and(|found| found.number == known.allocation.number)
        };
        let (there, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.known).into_iter().partition(is_there);
        self.known = there;
        let was_shown = |known: &Known| matches!(known.fate, Fate::Shown(_));
        self.gone.extend(gone.iter().filter(|k| was_shown(k)).map(|k| k.allocation.number));
        let mut shown: Vec<(u64, Invitation)> = Vec::new();
        for known in self.known.iter_mut().filter(|known| matches!(known.fate, Fate::New)) {
            match gpu.invitation(&known.allocation) {
                Ok(invitation) => shown.push((known.allocation.number, invitation)),
                Err(reason) => {
                    tracing::debug!(%reason, "memory of the program is staged");
                    known.fate = Fate::Refused;
                }
            }
        }
        let shown = shown.into_iter().map(|(number, invitation)| (number, invitation.into()));
        News { calls: Vec::new(), shown: shown.collect(), gone: std::mem::take(&mut self.gone) }
    }

    /// Where all ranks have mapped an allocation; None if one of them could not.
    pub(super) fn answered(&mut self, number: u64, me: usize, seen: Option<Vec<u64>>) {
        let known = self.known.iter_mut().find(|known| known.allocation.number == number);
        let Some(known) = known else { return };
        known.fate = seen.map_or(Fate::Refused, |mut seen| {
            seen[me] = known.allocation.start;
            Fate::Shown(Shown::new(seen))
        });
    }
}
