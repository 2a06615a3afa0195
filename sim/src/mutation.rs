//! Bugs on purpose, to see whether the simulation finds them.
//!
//! The device and the keeper do what the link would do wrong, so that the production code needs no
//! hooks: what one end of a link says is falsified on its way to the other, or what its queue pair
//! should do is left out.

/// A deliberately broken variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A queue pair in the error state goes on executing what the peer has sent: there is no fence.
    WritesAfterFailure,
    /// Fences never hit: the peer goes on using what was given up.
    IgnoredFence,
    /// Of what is given up with a queue pair, one operation more than was executed counts as executed:
    /// sending again begins one tile too late.
    RewindOffByOne,
    /// Fences do not tell one connection of a path from the next: they mean the first.
    FenceWithoutIncarnation,
    /// Renewed queue pairs do not get their receives back.
    LostReceives,
    /// Credits that are sent over renewed queue pairs are forgotten.
    ForgottenCredit,
    /// A tile that comes a second time is taken for the next one.
    AcceptedDuplicate,
    /// What is sent on a renewed queue pair arrives in the wrong order.
    WrongOrder,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::WritesAfterFailure,
        Self::IgnoredFence,
        Self::RewindOffByOne,
        Self::FenceWithoutIncarnation,
        Self::LostReceives,
        Self::ForgottenCredit,
        Self::AcceptedDuplicate,
        Self::WrongOrder,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WritesAfterFailure => "writes-after-failure",
            Self::IgnoredFence => "ignored-fence",
            Self::RewindOffByOne => "rewind-off-by-one",
            Self::FenceWithoutIncarnation => "fence-without-incarnation",
            Self::LostReceives => "lost-receives",
            Self::ForgottenCredit => "forgotten-credit",
            Self::AcceptedDuplicate => "accepted-duplicate",
            Self::WrongOrder => "wrong-order",
        }
    }
}
