//! Ranks that meet in the order of their streams, without kernels: the stream of each writes a mark into a word that every
//! other rank has for it, and waits until the others have written theirs.
//!
//! A call has two meetings, at which all ranks have to come: first everybody is [`Moment::Ready`], then everybody has
//! [`Moment::Taken`] what it takes. Each has words of its own, so a wait for exactly one value misses nothing: a rank
//! writes its next mark to a word only after the other meeting that lies between, and comes through that only when all
//! ranks have written there, which their streams do after they have seen what was in this word.
//!
//! Always true: a mark differs from the one that was in its word before, and is not zero; and before a rank lets its own
//! streams go, which then write marks that mean nothing, it says so in a word of every other rank.

use super::DeviceRegion;
use super::error::Error;
use super::exchange::{Exchange, Layout};
use super::memory::region_at;
use super::stream::Stream;
use crate::cuda::MOST_RANKS;

/// Marks are at most as many as fit between 1 and this, one behind the other, before they come again.
pub const MEETING_MARKS: u32 = u8::MAX as u32;

const WORD_BYTES: usize = size_of::<u32>();
/// Rows of words: of both moments, and of those who have let their streams go.
const ROWS: usize = 3;
const GONE: usize = 2;
pub(super) const ROW_BYTES: usize = MOST_RANKS * WORD_BYTES;
pub(super) const MARK_BYTES: usize = ROWS * ROW_BYTES;

/// Where in a call ranks meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// What others take is there.
    Ready,
    /// Nothing is taken any more.
    Taken,
}

/// The word for a rank in a row.
fn offset(row: usize, rank: usize) -> usize {
    (row * MOST_RANKS + rank) * WORD_BYTES
}

impl Moment {
    fn row(self) -> usize {
        match self {
            Self::Ready => 0,
            Self::Taken => 1,
        }
    }
}

impl Exchange {
    /// Lets the stream tell all others that it has come so far, and wait for them.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn meet(&self, stream: &Stream, moment: Moment, mark: u32) -> Result<(), Error> {
        self.tell(stream, moment.row(), mark)?;
        self.others().try_for_each(|rank| {
            stream.wait_for_mark(self.word(self.rank(), moment.row(), rank), mark)
        })
    }

    /// Lets streams of this rank go on that wait for this mark, once: a rank that is late may still write another one.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn let_go(&self, mark: u32) -> Result<(), Error> {
        let stream = self.side_stream();
        self.tell(stream, GONE, 1)?;
        for row in [Moment::Ready, Moment::Taken].map(Moment::row) {
            for rank in self.others() {
                stream.write_mark(self.word(self.rank(), row, rank), mark)?;
            }
        }
        Ok(())
    }

    /// The last mark of every other rank, after a [look](Self::look_at_marks) has happened.
    #[must_use]
    pub fn marks(&self, moment: Moment) -> Vec<(usize, u32)> {
        self.looked(moment.row()).collect()
    }

    /// The ranks whose marks mean nothing any more, after a [look](Self::look_at_marks) has happened.
    #[must_use]
    pub fn gone(&self) -> Vec<usize> {
        self.looked(GONE).filter(|(_, word)| *word != 0).map(|(rank, _)| rank).collect()
    }

    /// Lets the stream tell the host which marks mean nothing any more: behind the last meeting of a call, those that
    /// it may have believed are among them.
    ///
    /// # Errors
    ///
    /// The driver refuses it.
    pub fn report(&self, stream: &Stream) -> Result<(), Error> {
        let (looked, region) = self.looked_at();
        looked.report(stream, region, offset(GONE, 0))
    }

    /// The ranks whose marks meant nothing any more when a stream came to its [report](Self::report), the last one so far.
    /// Nothing of the driver is asked.
    #[must_use]
    pub fn reported_gone(&self) -> Vec<usize> {
        let (looked, _) = self.looked_at();
        self.others().filter(|rank| looked.reported(offset(0, *rank)) != 0).collect()
    }

    fn looked(&self, row: usize) -> impl Iterator<Item = (usize, u32)> {
        self.others().map(move |rank| (rank, self.looked_mark(offset(row, rank))))
    }

    fn tell(&self, stream: &Stream, row: usize, value: u32) -> Result<(), Error> {
        self.others()
            .try_for_each(|rank| stream.write_mark(self.word(rank, row, self.rank()), value))
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank();
        (0..self.layout().ranks).filter(move |rank| *rank != own)
    }

    /// The word for a rank in the region of its owner.
    fn word(&self, owner: usize, row: usize, rank: usize) -> DeviceRegion<'_> {
        region_at(self.region(owner) + (Layout::MARKS + offset(row, rank)) as u64, WORD_BYTES)
    }
}
