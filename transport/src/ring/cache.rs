//! Lines that are wanted soon: to ask early hides how far away they are.

use std::ptr::NonNull;

/// Begins to fetch the line at `place`.
#[inline]
pub(super) fn fetch(place: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it touches nothing and never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(place.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Begins to fetch the line at `place` from whoever has it, to write to it.
#[inline]
pub(super) fn fetch_to_write(place: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, as above; processors that do not know it do nothing. The intrinsic for it becomes an
    // ordinary prefetch unless the whole program is built for newer processors.
    unsafe {
        std::arch::asm!(
            "prefetchw byte ptr [{place}]",
            place = in(reg) place.as_ptr(),
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
