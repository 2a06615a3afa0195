//! Who can read whose memory, and whether they do: all ranks find that out together, once.

use ccl_core::settings::CrossMemoryAttach;
use ccl_transport::attach::Process;

/// Whose memory can be read.
#[derive(Debug, Default)]
pub(super) enum Peers {
    /// Nobody has tried.
    #[default]
    Unknown,
    /// That of all.
    All {
        /// In order of rank.
        processes: Vec<Process>,
        agreed: Stance,
    },
    /// Not everybody can read everybody, or somebody must not.
    NotAll,
}

impl Peers {
    /// What ranks are to each other that could examine those `processes`, or could not, and say this.
    pub(super) fn new<E>(processes: Result<Vec<Process>, E>, told: &[Told]) -> Self {
        let agreed = Stance::of_all(told);
        match processes {
            Ok(processes) if agreed.consent > Consent::No => Self::All { processes, agreed },
            _ => Self::NotAll,
        }
    }

    /// Whether a rank may try how to store what it receives in calls of which the larger buffer has about so many bytes, less
    /// than twice that: they go through both buffers.
    pub(super) fn tries_stores(&self, bytes: usize) -> bool {
        match self {
            Self::All { agreed, .. } => (bytes as u64).saturating_mul(4) > agreed.least_in_doubt,
            Self::Unknown | Self::NotAll => false,
        }
    }
}

/// What a rank says to being read; all do what the most reluctant one says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Consent {
    No = 0,
    Yes = 1,
    Always = 2,
}

impl Consent {
    /// Of a rank whose settings say so, if it can read all others.
    pub(super) fn of(setting: CrossMemoryAttach, can: bool) -> Self {
        match setting {
            _ if !can => Self::No,
            CrossMemoryAttach::Never => Self::No,
            CrossMemoryAttach::Measured => Self::Yes,
            CrossMemoryAttach::Always => Self::Always,
        }
    }

    fn decode(number: u8) -> Self {
        match number {
            1 => Self::Yes,
            2 => Self::Always,
            _ => Self::No,
        }
    }
}

/// What a rank tells all others once, or what they have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stance {
    pub(super) consent: Consent,
    /// Bytes that a call goes through from which on a rank may try [how to store](crate::stores) them.
    pub(super) least_in_doubt: u64,
}

/// A [`Stance`], as it is told.
pub(super) type Told = [u8; 9];

impl Stance {
    pub(super) fn encode(self) -> Told {
        let mut told = [self.consent as u8; 9];
        told[1..].copy_from_slice(&self.least_in_doubt.to_le_bytes());
        told
    }

    fn decode(told: &Told) -> Self {
        let [consent, least @ ..] = *told;
        Self { consent: Consent::decode(consent), least_in_doubt: u64::from_le_bytes(least) }
    }

    fn of_all(told: &[Told]) -> Self {
        let reluctant = Self { consent: Consent::No, least_in_doubt: u64::MAX };
        let least = |one: Self, other: Self| Self {
            consent: one.consent.min(other.consent),
            least_in_doubt: one.least_in_doubt.min(other.least_in_doubt),
        };
        told.iter().map(Self::decode).reduce(least).unwrap_or(reluctant)
    }
}

#[cfg(test)]
mod tests {
    use super::Consent::{Always, No, Yes};
    use super::*;

    fn stance(consent: Consent, least_in_doubt: u64) -> Stance {
        Stance { consent, least_in_doubt }
    }

    #[test]
    fn all_do_what_the_most_reluctant_rank_says() {
        for (told, all) in [
            (&[Yes, Always, Always][..], Yes),
            (&[Always, No, Yes], No),
            (&[Always, Always], Always),
            (&[], No),
        ] {
            let told: Vec<Told> = told.iter().map(|told| stance(*told, 1).encode()).collect();
            assert_eq!(Stance::of_all(&told).consent, all, "{told:?}");
        }
        assert_eq!(Consent::of(CrossMemoryAttach::Always, false), No);
        assert_eq!(Consent::of(CrossMemoryAttach::Never, true), No);
        assert_eq!(Consent::of(CrossMemoryAttach::Always, true), Always);
        let no_number_of_these = [3, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Stance::of_all(&[stance(Always, 1).encode(), no_number_of_these]).consent, No);
    }

    #[test]
    fn whoever_tries_first_is_waited_for_by_all() {
        let least = u64::from(u32::MAX) * 7;
        let told = [stance(Yes, u64::MAX), stance(Yes, least), stance(Yes, least + 1)];
        assert_eq!(Stance::of_all(&told.map(Stance::encode)), stance(Yes, least));
    }

    #[test]
    fn calls_wait_for_others_that_try_from_the_size_on_from_which_these_do() {
        let told = [stance(Yes, 4000).encode()];
        let peers = Peers::new(Ok::<_, ()>(Vec::new()), &told);
        assert!(!peers.tries_stores(1000), "both buffers have less than 4000 bytes");
        assert!(peers.tries_stores(1001) && peers.tries_stores(usize::MAX));
        assert!(!Peers::NotAll.tries_stores(usize::MAX));
    }

    #[test]
    fn nobody_is_read_whom_somebody_cannot_read_or_must_not() {
        let told = [stance(Yes, 0).encode()];
        assert!(matches!(Peers::new(Ok::<_, ()>(Vec::new()), &told), Peers::All { .. }));
        assert!(matches!(Peers::new(Err(()), &told), Peers::NotAll));
        let told = [stance(No, 0).encode()];
        assert!(matches!(Peers::new(Ok::<_, ()>(Vec::new()), &told), Peers::NotAll));
    }
}
