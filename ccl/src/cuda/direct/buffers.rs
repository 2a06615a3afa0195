//! Allocations of the program that all other ranks have mapped.
//!
//! An allocation is known by its number, which the driver gives to no other one, also not at the same
//! address: what is told of an allocation that was freed is never told of the next one.

use std::sync::Mutex;

use ccl_kernels::cuda::gpu::{Allocation, DeviceRegion, Gpu, Shown};
use serde::{Deserialize, Serialize};

use super::agreement::Letter;
use crate::driver::lock;

/// Allocations of a rank that are known at a time, at most: those that others have mapped, and those that they cannot map. Others are
/// staged.
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

/// The allocations of one rank. Nobody asks the driver while they are locked: calls wait for that.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    known: Vec<Known>,
}

impl Buffers {
    /// Where the others have memory of this rank, which is in that allocation, and how far into it the region begins;
    /// None if they do not have it. What is new is remembered for the next [`news`].
    pub(super) fn find(
        &mut self,
        allocation: Allocation,
        region: &DeviceRegion<'_>,
    ) -> Option<(Shown, usize)> {
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

    /// Where all ranks have mapped an allocation; None if one of them could not.
    pub(super) fn answered(&mut self, number: u64, me: usize, seen: Option<Vec<u64>>) {
        let Some(known) = self.known(number) else { return };
        known.fate = seen.map_or(Fate::Refused, |mut seen| {
            seen[me] = known.allocation.start;
            Fate::Shown(Shown::new(seen))
        });
    }

    fn known(&mut self, number: u64) -> Option<&mut Known> {
        self.known.iter_mut().find(|known| known.allocation.number == number)
    }

    /// Forgets an allocation; tells whether others may have it: some have mapped what others could not.
    fn forget(&mut self, number: u64) -> bool {
        let is_meant = |known: &mut Known| known.allocation.number == number;
        let forgotten = self.known.extract_if(.., is_meant).next();
        forgotten.is_some_and(|known| !matches!(known.fate, Fate::New))
    }
}

/// Forgets what was freed, and says what the others have to know. Only one thread does it.
pub(super) fn news(buffers: &Mutex<Buffers>, gpu: &Gpu) -> News {
    let told = |known: &Known| (known.allocation, matches!(known.fate, Fate::New));
    let known: Vec<(Allocation, bool)> = lock(buffers).known.iter().map(told).collect();
    let (mut shown, mut gone) = (Vec::new(), Vec::new());
    for (allocation, is_new) in known {
        let number = allocation.number;
        if !gpu.allocation(allocation.start).is_ok_and(|found| found.number == number) {
            if lock(buffers).forget(number) {
                gone.push(number);
            }
            continue;
        }
        if !is_new {
            continue;
        }
        match gpu.invitation(&allocation) {
            Ok(invitation) => shown.push((number, invitation.into())),
            Err(reason) => {
                tracing::debug!(%reason, "memory of the program is staged");
                lock(buffers).answered(number, 0, None);
            }
        }
    }
    News { calls: Vec::new(), shown, gone }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_hear_of_the_end_of_everything_that_some_of_them_may_have() {
        let known = |number| {
            let allocation = Allocation { number, start: 4096, bytes: 64 };
            Known { allocation, fate: Fate::New }
        };
        let mut buffers = Buffers { known: [1, 2, 3].map(known).into() };
        buffers.answered(1, 0, Some(vec![0, 512]));
        buffers.answered(2, 0, None);
        assert_eq!([1, 2, 3, 4].map(|number| buffers.forget(number)), [true, true, false, false]);
        assert!(buffers.known.is_empty());
    }
}
