//! The life of a queue pair, as a table.

use std::fmt;

/// Where a queue pair is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing may be posted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Messages of the peer are taken.
    ReadyToReceive,
    /// Everything works.
    ReadyToSend,
    /// Everything posted is flushed.
    Error,
}

/// What moves a queue pair on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Assign it to a port.
    Initialise,
    /// Tell it about the peer's end.
    EnableReceive,
    /// Let it send.
    EnableSend,
    /// A fault, or the owner's wish to fence it.
    Fail,
    /// Start over.
    Reset,
}

impl State {
    /// The next state, or `None` where the transition is not allowed.
    #[must_use]
    pub fn after(self, transition: Transition) -> Option<Self> {
        match (self, transition) {
            (
                Self::Reset | Self::Init | Self::ReadyToReceive | Self::ReadyToSend | Self::Error,
                Transition::Reset,
            ) => Some(Self::Reset),
            (
                Self::Reset | Self::Init | Self::ReadyToReceive | Self::ReadyToSend | Self::Error,
                Transition::Fail,
            ) => Some(Self::Error),
            (Self::Reset, Transition::Initialise) => Some(Self::Init),
            (Self::Init, Transition::EnableReceive) => Some(Self::ReadyToReceive),
            (Self::ReadyToReceive, Transition::EnableSend) => Some(Self::ReadyToSend),
            (
                Self::Init | Self::ReadyToReceive | Self::ReadyToSend | Self::Error,
                Transition::Initialise,
            )
            | (
                Self::Reset | Self::ReadyToReceive | Self::ReadyToSend | Self::Error,
                Transition::EnableReceive,
            )
            | (
                Self::Reset | Self::Init | Self::ReadyToSend | Self::Error,
                Transition::EnableSend,
            ) => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    const TABLE: &str = "\
state          Initialise     EnableReceive  EnableSend     Fail           Reset
Reset          Init           -              -              Error          Reset
Init           -              ReadyToReceive -              Error          Reset
ReadyToReceive -              -              ReadyToSend    Error          Reset
ReadyToSend    -              -              -              Error          Reset
Error          -              -              -              Error          Reset
";

    #[test]
    fn the_table_is_that_of_the_verbs_specification() {
        let states =
            [State::Reset, State::Init, State::ReadyToReceive, State::ReadyToSend, State::Error];
        let transitions = [
            Transition::Initialise,
            Transition::EnableReceive,
            Transition::EnableSend,
            Transition::Fail,
            Transition::Reset,
        ];
        let cell = |text: String| format!("{text:<15}");
        let line = |cells: Vec<String>| cells.concat().trim_end().to_owned() + "\n";
        let heading = transitions.iter().map(|transition| cell(format!("{transition:?}")));
        let mut table = line([cell("state".to_owned())].into_iter().chain(heading).collect());
        for state in states {
            let row = transitions.iter().map(|&transition| {
                cell(state.after(transition).map_or("-".to_owned(), |next| next.to_string()))
            });
            let row = [cell(state.to_string())].into_iter().chain(row).collect();
            write!(table, "{}", line(row)).unwrap();
        }
        assert_eq!(table, TABLE);
    }
}
