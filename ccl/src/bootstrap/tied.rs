//! A rank's way from one group into another one that ends with the first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use ccl_core::Error;
use ccl_core::ids::Rank;
use ccl_transport::clock;

use super::control::Control;
use super::heard::Heard;
use super::message::ControlEvent;
use super::unique_id::UniqueId;

/// What ends one group keeps a rank of it from waiting to join another one, while this is there.
#[derive(Debug)]
pub(crate) struct Tied<'a> {
    heard: Arc<Heard>,
    to: &'a Heard,
}

impl Tied<'_> {
    /// As [`Control::join`], by the rank that it was made for.
    ///
    /// # Errors
    /// Those, and the fault of the group that it is tied to.
    pub(crate) fn join(
        &self,
        id: &UniqueId,
        size: u32,
        deadline: Instant,
    ) -> Result<Control, Error> {
        let start = clock::now();
        let control = Control::reach(id, Arc::clone(&self.heard), size, deadline)?;
        control.await_others(BTreeSet::new(), start, deadline).inspect_err(|error| {
            if self.to.fault().is_some() {
                give_up(&control, error);
            }
        })?;
        Ok(control)
    }
}

impl Drop for Tied<'_> {
    fn drop(&mut self) {
        self.to.tie(None);
    }
}

impl Control {
    /// A membership of this rank, as `rank`, in another group that is to begin as long as nothing ends this one, until it
    /// [stands alone](Self::stand_alone).
    #[must_use]
    pub(crate) fn tie(&self, rank: Rank) -> Tied<'_> {
        let heard = Arc::new(Heard::new(rank));
        self.heard.tie(Some(Arc::clone(&heard)));
        Tied { heard, to: &self.heard }
    }

    /// From now on nothing ends this membership that ends the group to which it was [tied](Self::tie). Whoever has told the
    /// others that it goes on in the new group cannot take that back: they may have gone on already.
    ///
    /// # Errors
    /// What has ended it before.
    pub(crate) fn stand_alone(&self) -> Result<(), Error> {
        self.heard.stand_alone()
    }
}

/// Tells those who wait, too, that this rank does not any longer: it is not lost.
fn give_up(control: &Control, error: &Error) {
    let me = control.rank();
    let event = ControlEvent::Aborted { rank: me, reason: error.to_string() };
    if let Err(cause) = control.announce(&event) {
        tracing::warn!(rank = me.0, %cause, "the other ranks could not be told");
    }
}
