//! Copies.

use std::ptr;

use crate::region::{Source, Target};

/// Copies; the same bytes are left alone.
///
/// # Panics
///
/// If the lengths differ.
#[inline]
pub fn copy(source: Source<'_>, mut target: Target<'_>) {
    assert_eq!(source.bytes(), target.bytes(), "lengths differ");
    if !ptr::addr_eq(source.start(), target.start()) {
        target.write(0, source);
    }
}

/// Has somebody else write a target: the system, for example.
///
/// # Errors
/// Those of `write`.
pub fn fill<E>(
    mut target: Target<'_>,
    write: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let bytes = target.bytes();
    // SAFETY: nobody else touches what is viewed (`Region::new`, or it was a slice), and this is the only view of it
    // that is used meanwhile.
    let bytes = unsafe { target.values::<[u8; 1]>(0, bytes) };
    write(bytes.as_flattened_mut())
}

/// Copies past the caches: the target's bytes go to memory without being read first.
///
/// Faster than [`copy`] where the target is larger than the last cache, or is read next by a distant
/// core; several times slower where the target would have stayed in a near cache.
///
/// # Panics
///
/// If the lengths differ.
pub fn copy_streaming(source: Source<'_>, target: Target<'_>) {
    assert_eq!(source.bytes(), target.bytes(), "lengths differ");
    #[cfg(target_arch = "x86_64")]
    x86::copy_streaming(source, target);
    #[cfg(not(target_arch = "x86_64"))]
    copy(source, target);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::sync::LazyLock;

    use raw_cpuid::CpuId;

    use super::copy;
    use crate::avx2::Avx2;
    use crate::avx512::Avx512;
    use crate::region::{Overlap, Source, Target};

    /// A streamed piece: what the processor combines into one write to memory.
    type Line = [u8; 64];

    /// Lines of a page, which the memory finds next to each other, and pages that are streamed in turns: more of the memory is at
    /// work then, and processors that fetch ahead do so in each page by itself. Page after page, two processors by Intel with AMX
    /// copy buffers of 64 MB with 8.5 GB/s each, in turns with 12.
    ///
    /// Not on others, nor by halves of lines: an AMD Zen 3 copies them with 6.3 GB/s in order, and with 2.4 in turns. It has few
    /// lines under way past its caches, and writes those that are not whole. With whole lines, on a Zen 4, collectives of 16 MB take
    /// 1 to 1.25 of the time in turns.
    const PAGE_LINES: usize = 4096 / size_of::<Line>();
    const PAGES: usize = 4;

    /// Asked once: where a hypervisor answers it takes as long as a copy.
    static IS_BY_INTEL: LazyLock<bool> = LazyLock::new(|| {
        let vendor = CpuId::new().get_vendor_info();
        vendor.is_some_and(|vendor| vendor.as_str() == "GenuineIntel")
    });

    pub(super) fn copy_streaming(source: Source<'_>, mut target: Target<'_>) {
        let stream: unsafe fn(&[Line], &mut [Line]) = match () {
            () if target.bytes() < size_of::<Line>() => return copy(source, target),
            () if target.overlap(&source) != Overlap::Disjoint => return copy(source, target),
            () if Avx512::is_available() && *IS_BY_INTEL => stream_512::<true>,
            () if Avx512::is_available() => stream_512::<false>,
            () if Avx2::is_available() => stream_256,
            () => return copy(source, target),
        };
        let head = target.start().align_offset(size_of::<Line>()).min(target.bytes());
        let lines = (target.bytes() - head) / size_of::<Line>();
        let middle = lines * size_of::<Line>();
        let tail = target.bytes() - head - middle;
        copy(source.part(0, head), target.part(0, head));
        copy(source.part(head + middle, tail), target.part(head + middle, tail));
        let from = source.part(head, middle);
        let mut to = target.part(head, middle);
        // SAFETY: source and target do not overlap, so nothing writes these bytes.
        let from = unsafe { from.values(0, lines) };
        // SAFETY: source and target do not overlap, so this is the only view of these bytes.
        let to = unsafe { to.values(0, lines) };
        // SAFETY: the processor has the instructions, and the target starts at a multiple of a line.
        unsafe { stream(from, to) }
    }

    /// Where the next of so many lines is, after so many: one of each page in turns, the last ones in order.
    #[inline]
    fn next(before: usize, lines: usize) -> usize {
        const TOGETHER: usize = PAGES * PAGE_LINES;
        let (start, within) = (before - before % TOGETHER, before % TOGETHER);
        if start + TOGETHER > lines {
            return before;
        }
        start + within % PAGES * PAGE_LINES + within / PAGES
    }

    /// # Safety
    ///
    /// `to` is aligned to its lines.
    ///
    /// # Panics
    /// If `to` is not as long as `from`.
    #[target_feature(enable = "avx512f")]
    unsafe fn stream_512<const IN_TURNS: bool>(from: &[Line], to: &mut [Line]) {
        assert_eq!(from.len(), to.len(), "as many lines");
        for before in 0..from.len() {
            let at = if IN_TURNS { next(before, from.len()) } else { before };
            // SAFETY: the line is 64 bytes long; the load needs no alignment.
            let line = unsafe { _mm512_loadu_si512(from[at].as_ptr().cast()) };
            // SAFETY: the line is 64 bytes long, and aligned (caller).
            unsafe { _mm512_stream_si512(to[at].as_mut_ptr().cast(), line) };
        }
        // Streaming stores are not ordered with the ordinary one that will announce these bytes.
        _mm_sfence();
    }

    /// # Safety
    ///
    /// As [`stream_512`].
    #[target_feature(enable = "avx2")]
    unsafe fn stream_256(from: &[Line], to: &mut [Line]) {
        assert_eq!(from.len(), to.len(), "as many lines");
        let halves = from.as_flattened().chunks_exact(32);
        for (from, to) in halves.zip(to.as_flattened_mut().chunks_exact_mut(32)) {
            // SAFETY: the half is 32 bytes long; the load needs no alignment.
            let half = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
            // SAFETY: the half is 32 bytes long, and aligned, as halves of aligned lines are.
            unsafe { _mm256_stream_si256(to.as_mut_ptr().cast(), half) };
        }
        // As in `stream_512`.
        _mm_sfence();
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        type Stream = unsafe fn(&[Line], &mut [Line]);

        #[test]
        fn lines_arrive_where_they_belong_by_all_instructions() {
            let [wide, narrow] = [Avx512::is_available(), Avx2::is_available()];
            let streams: [(bool, Stream); 3] =
                [(wide, stream_512::<true>), (wide, stream_512::<false>), (narrow, stream_256)];
            for (_, stream) in streams.into_iter().filter(|(is_available, _)| *is_available) {
                for lines in [0, 1, 255, 256, 257, 3 * 256 + 100] {
                    #[repr(align(64))]
                    #[derive(Clone, Copy, Debug, PartialEq)]
                    struct Aligned(Line);
                    let number = |at: usize| u32::try_from(at).unwrap().to_le_bytes();
                    let from: Vec<Line> = (0..lines)
                        .map(|at| [number(at); 16].concat().try_into().unwrap())
                        .collect();
                    let mut to = vec![Aligned([0; 64]); lines];
                    // SAFETY: these are as many lines, each of 64 bytes that are aligned to it.
                    let view =
                        unsafe { std::slice::from_raw_parts_mut(to.as_mut_ptr().cast(), lines) };
                    // SAFETY: the processor has the instructions, and lines are aligned.
                    unsafe { stream(&from, view) };
                    assert!(from.iter().zip(&to).all(|(from, to)| *from == to.0), "{lines} lines");
                }
            }
        }

        #[test]
        fn four_pages_are_streamed_in_turns_and_what_is_left_in_order() {
            let order: Vec<usize> = (0..600).map(|before| next(before, 600)).collect();
            assert_eq!(order[..6], [0, 64, 128, 192, 1, 65]);
            assert_eq!(order[254..258], [191, 255, 256, 320]);
            assert_eq!(order[512..], (512..600).collect::<Vec<_>>());
        }
    }
}
