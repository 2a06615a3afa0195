//! How long the peer's host has been silent, as the kernel sees it.
//!
//! The peer's kernel confirms bytes whether or not the peer's process is scheduled, so a host that
//! confirms nothing is out of reach, not slow. Of the last confirmation the kernel says when it came,
//! but not whether there has been anything to confirm since: a connection that was idle for a minute
//! would look as if it had been silent for a minute. So this remembers what was on the way when it
//! last looked.
//!
//! A peer whose process reads nothing closes its window. Then nothing is on the way, however much
//! waits, and that is no silence.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::super::Silence;
use crate::clock;

/// What the kernel knows of the bytes that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Confirmed {
    /// All that the peer's host has confirmed since the connection was made.
    bytes: u64,
    /// Whether there are sent bytes that it has not.
    awaited: bool,
    /// How long ago it confirmed anything, sent bytes or not.
    ago: Duration,
    /// How long a confirmation may take on this path, as it has been so far.
    usual: Duration,
}

/// Deviations from the mean round trip that are usual; the kernel repeats what takes longer.
const DEVIATIONS: u32 = 4;
/// No path is given more time than this.
const LONGEST_USUAL: Duration = Duration::from_millis(500);

/// The memory of one connection.
#[derive(Debug, Default)]
pub(super) struct Confirmations(Cell<Option<Watched>>);

/// Bytes that were on the way.
#[derive(Clone, Copy, Debug)]
struct Watched {
    /// Those behind so many.
    confirmed: u64,
    since: Instant,
}

impl Confirmations {
    /// What is heard on `stream`, if anything is on the way.
    pub(super) fn silence(&self, stream: &TcpStream) -> Option<Silence> {
        let confirmed = confirmed(stream)?;
        self.judge(clock::now(), confirmed)
    }

    fn judge(&self, now: Instant, confirmed: Confirmed) -> Option<Silence> {
        let before = self.0.get();
        let same = before.filter(|watched| watched.confirmed == confirmed.bytes);
        let watched = same.unwrap_or(Watched { confirmed: confirmed.bytes, since: now });
        self.0.set(confirmed.awaited.then_some(watched));
        let since = now.saturating_duration_since(watched.since);
        let (lasts, usual) = (since.min(confirmed.ago), confirmed.usual);
        let is_broken = before.is_some() && same.is_none();
        confirmed.awaited.then_some(Silence { lasts, usual, is_broken })
    }
}

fn usual(round_trip: Duration, deviation: Duration) -> Duration {
    (round_trip + DEVIATIONS * deviation).min(LONGEST_USUAL)
}

fn confirmed(stream: &TcpStream) -> Option<Confirmed> {
    let mut report = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut bytes = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: the descriptor is open, and the kernel writes at most `bytes` bytes into the report.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            report.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    // SAFETY: all its fields are integers, for which zeros are as good as what the kernel wrote.
    let report = unsafe { report.assume_init() };
    let microseconds = |value: u32| Duration::from_micros(value.into());
    (result == 0).then(|| Confirmed {
        bytes: report.tcpi_bytes_acked,
        awaited: report.tcpi_unacked > 0,
        ago: Duration::from_millis(report.tcpi_last_ack_recv.into()),
        usual: usual(microseconds(report.tcpi_rtt), microseconds(report.tcpi_rttvar)),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(bytes: u64, awaited: bool, ago: Duration) -> Confirmed {
        Confirmed { bytes, awaited, ago, usual: Duration::ZERO }
    }

    #[test]
    fn only_what_is_on_the_way_makes_silence() {
        let (confirmations, start) = (Confirmations::default(), clock::now());
        let mut steps = Vec::new();
        for (second, confirmed) in [
            (0, at(0, false, SECOND * 60)),
            (1, at(0, true, SECOND * 61)),
            (2, at(0, true, SECOND * 62)),
            (4, at(0, true, SECOND)),
            (5, at(9, true, SECOND / 2)),
            (6, at(9, true, SECOND * 3 / 2)),
            // Confirmed and sent again while nobody looked.
            (90, at(10, true, SECOND * 80)),
            (91, at(10, false, SECOND)),
            (92, at(10, true, SECOND)),
        ] {
            let judged = confirmations.judge(start + SECOND * second, confirmed);
            steps.push(judged.map(|silence| (silence.lasts.as_secs_f64(), silence.is_broken)));
        }
        let (on, broken) = (|seconds| Some((seconds, false)), Some((0.0, true)));
        assert_eq!(steps[..4], [None, on(0.0), on(1.0), on(1.0)]);
        assert_eq!(steps[4..], [broken, on(1.0), broken, None, on(0.0)]);
    }

    #[test]
    fn a_confirmation_may_take_as_long_as_it_did_and_be_repeated() {
        let ms = Duration::from_millis;
        assert_eq!(usual(ms(20), ms(5)), ms(40));
        assert_eq!(usual(SECOND, SECOND), LONGEST_USUAL);
        let silence = |lasts| Silence { usual: ms(40), ..Silence::of(lasts) };
        assert_eq!(silence(ms(70)).beyond_repetition(), Duration::ZERO);
        assert_eq!(silence(ms(105)).beyond_repetition(), ms(25));
    }

    #[test]
    fn a_peer_that_does_not_read_is_not_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        let confirmations = Confirmations::default();
        assert_eq!(confirmations.silence(&near), None);
        let limit = clock::now() + SECOND * 20;
        let full = loop {
            let wrote = near.write(&[0; 1 << 16]);
            if matches!(wrote, Err(cause) if cause.kind() == std::io::ErrorKind::WouldBlock)
                && confirmed(&near).is_some_and(|confirmed| !confirmed.awaited)
            {
                break confirmed(&near).unwrap();
            }
            assert!(clock::now() < limit, "the window never closed");
        };
        assert!(full.bytes > 1 << 16, "{full:?}");
        assert_eq!(confirmations.silence(&near), None);
    }
}
