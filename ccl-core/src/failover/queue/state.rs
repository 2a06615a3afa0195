//! Which rail the sending half of a queue uses, as a table.
//!
//! A queue falls back at a fault, at once. It goes back to its default rail without one, so nothing
//! may be outstanding then: it posts up to the next signalled request, whose completion says that
//! everything before it is done, and withholds what follows until then. That is the execution fence.

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendState {
    /// To the default rail.
    Default,
    /// To a backup.
    Fallback,
    /// To a backup, up to the next signalled request.
    WaitSignaled,
    /// Nowhere: what was posted on the backup has to complete first.
    WaitDrained,
}

/// Where messages of the peer are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveState {
    /// From the default rail.
    Default,
    /// From a backup.
    Fallback,
}

/// What moves the sending half on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendSignal {
    /// Both ends agreed to go on with the default rail.
    OnDefault,
    /// Both ends agreed to go on with a backup.
    OnBackup,
    /// The default rail is to be used again.
    Return,
    /// The newest request posted is a signalled one, or none is outstanding.
    FencePosted,
    /// The return takes too long.
    Abandon,
}

impl SendState {
    /// The next state.
    #[must_use]
    pub fn after(self, signal: SendSignal) -> Self {
        match (self, signal) {
            (
                Self::Default | Self::Fallback | Self::WaitSignaled | Self::WaitDrained,
                SendSignal::OnDefault,
            ) => Self::Default,
            (
                Self::Default | Self::Fallback | Self::WaitSignaled | Self::WaitDrained,
                SendSignal::OnBackup,
            ) => Self::Fallback,
            (Self::Default, SendSignal::Return | SendSignal::FencePosted | SendSignal::Abandon) => {
                Self::Default
            }
            (Self::Fallback, SendSignal::Return) => Self::WaitSignaled,
            (Self::Fallback, SendSignal::FencePosted | SendSignal::Abandon) => Self::Fallback,
            (Self::WaitSignaled, SendSignal::Return) => Self::WaitSignaled,
            (Self::WaitSignaled | Self::WaitDrained, SendSignal::FencePosted) => Self::WaitDrained,
            (Self::WaitDrained, SendSignal::Return) => Self::WaitDrained,
            (Self::WaitSignaled | Self::WaitDrained, SendSignal::Abandon) => Self::Fallback,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
state        OnDefault    OnBackup     Return       FencePosted  Abandon
Default      Default      Fallback     Default      Default      Default
Fallback     Default      Fallback     WaitSignaled Fallback     Fallback
WaitSignaled Default      Fallback     WaitSignaled WaitDrained  Fallback
WaitDrained  Default      Fallback     WaitDrained  WaitDrained  Fallback
";

    #[test]
    fn table() {
        use SendSignal::{Abandon, FencePosted, OnBackup, OnDefault, Return};
        let signals = [OnDefault, OnBackup, Return, FencePosted, Abandon];
        let cell = |text: String| format!("{text:<13}");
        let line = |cells: Vec<String>| cells.concat().trim_end().to_owned() + "\n";
        let heading = signals.iter().map(|signal| cell(format!("{signal:?}")));
        let mut table = line([cell("state".to_owned())].into_iter().chain(heading).collect());
        let states = [
            SendState::Default,
            SendState::Fallback,
            SendState::WaitSignaled,
            SendState::WaitDrained,
        ];
        for state in states {
            let row = signals.iter().map(|&signal| cell(format!("{:?}", state.after(signal))));
            table += &line([cell(format!("{state:?}"))].into_iter().chain(row).collect());
        }
        assert_eq!(table, TABLE);
    }
}
