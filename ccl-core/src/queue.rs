//! How much of a link is on the way at a time.
//!
//! What is on the way waits in queues of hosts and switches, in front of a rail and behind it. A window
//! that is larger than those loses what does not fit, to send it again; tiles that are large beside it
//! leave rails idle.

/// A queue holds what its rail carries in so many seconds. Shaped ports and the port buffers of switches
/// for slow rails hold a few tens of milliseconds; for the rails of clusters this is more than any window.
const QUEUE_SECONDS: f64 = 0.03;
/// So many tiles fit into the part of a queue that a link has, but none is smaller than this.
const TILES_PER_QUEUE: usize = 4;
const LEAST_TILE_BYTES: usize = 8 << 10;

/// Bytes that one of `sharing` links may have on the way on a rail with this rate, in bytes per second.
#[must_use]
pub fn queue_bytes(rate: f64, sharing: usize) -> usize {
    #[allow(clippy::cast_precision_loss, reason = "a number of links")]
    let bytes = rate * QUEUE_SECONDS / sharing.max(1) as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    let bytes = bytes as usize;
    bytes
}

/// Payload of a tile where a link may have `queue_bytes` on the way on its slowest rail: a power of two, or
/// the `largest` that fits into a slot.
#[must_use]
pub fn tile_bytes(queue_bytes: usize, largest: usize) -> usize {
    let fitting = 1 << (queue_bytes / TILES_PER_QUEUE).max(1).ilog2();
    LEAST_TILE_BYTES.max(fitting).min(largest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_rails_have_full_tiles_and_slow_ones_small_ones() {
        let tile = |rate, sharing| tile_bytes(queue_bytes(rate, sharing), 128 << 10);
        assert_eq!(tile(12.5e9, 7), 128 << 10);
        assert_eq!(tile(125e6, 3), 128 << 10);
        assert_eq!(tile(125e6, 7), 128 << 10);
        assert_eq!(tile(25e6, 3), 32 << 10);
        assert_eq!(tile(6.25e6, 3), 8 << 10);
        assert_eq!(tile(1.0, 3), 8 << 10);
        assert_eq!(tile_bytes(usize::MAX, 1000), 1000);
        assert_eq!(queue_bytes(6e6, 3), 60_000);
        assert_eq!(queue_bytes(6e6, 0), 180_000);
    }
}
