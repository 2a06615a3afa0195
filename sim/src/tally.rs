//! What worlds have reached: a simulation that never gets where it hurts finds nothing.

use std::fmt;
use std::ops::AddAssign;

macro_rules! tally {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// Counts of one world, or the sums of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Tally {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl AddAssign for Tally {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }

        impl Tally {
            /// The names and the counts.
            #[must_use]
            pub fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($text, self.$name),)*]
            }
        }
    };
}

tally! {
    /// Simulations that ran to an end.
    worlds: "worlds",
    /// Calls that ended with the right result, over all ranks.
    calls: "calls",
    /// Tiles that landed.
    tiles: "tiles landed",
    /// Tiles that left from the memory of the application.
    unstaged: "tiles sent unstaged",
    /// Those of which the application had to give the bytes once more, because they were lost.
    supplied: "tiles supplied again by the application",
    /// Tiles that went right to where they belong.
    landed_elsewhere: "tiles landed where they belong",
    /// Those of which a part had, when they came over another path.
    torn_landings: "landings given up",
    /// Faults that began.
    faults: "faults",
    /// Queue pairs that went to error by themselves.
    broken: "queue pairs broken by the network",
    /// Queue pairs that a link gave up.
    failed_by_owner: "queue pairs given up by links",
    /// Times when no rail between two ranks worked.
    all_rails_lost: "all rails between two ranks lost",
    /// New connections for old ones.
    reconnects: "connections replaced",
    /// Probes sent.
    probes: "probes",
    /// Tiles that landed twice.
    landed_again: "tiles landed again",
    /// Packets of a queue pair that its owner had given up, which reached the other card.
    stale_arrivals: "packets that arrived after their sender gave up",
    /// Tiles whose bytes landed while the receiving end went to error, so that neither end knows.
    torn: "tiles landed that neither end knows of",
    /// Operations that were executed and never reported.
    completions_lost: "completions lost",
    /// Fences that reached the other end.
    fences: "fences",
    /// Paths that were suspected.
    suspected: "suspicions",
    /// Paths that were suspected although they worked.
    suspected_falsely: "suspicions of paths that worked",
    /// Paths that were given up because of what their device said.
    given_up_device: "paths given up: device error",
    /// Paths that were closed at the other end.
    given_up_closed: "paths given up: closed at the other end",
    /// Paths whose card lost its carrier.
    given_up_carrier: "paths given up: carrier lost",
    /// Paths that the peer gave up.
    given_up_peer: "paths given up: fenced by the peer",
    /// Paths that were silent.
    given_up_silence: "paths given up: silence",
    /// Paths that were given up for their silence although they worked.
    given_up_falsely: "paths given up for silence although they worked",
    /// Paths that came back.
    returned: "paths in use again",
    /// Tiles that were sent again.
    resent_tiles: "tiles sent again",
    /// Their bytes.
    resent_bytes: "bytes sent again",
    /// Calls during which a rank gave up a path.
    repaired_calls: "calls repaired",
    /// Calls during which a rank gave up two paths or more.
    repaired_twice: "calls repaired twice or more",
    /// Worlds that ended with an error because there was no rail for too long.
    gave_up: "worlds that ended with an allowed error",
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (text, count) in self.rows() {
            writeln!(f, "{count:>14}  {text}")?;
        }
        Ok(())
    }
}
