//! Memory that stays mapped until the program ends.

use std::os::fd::AsFd;
use std::ptr;

use ccl_kernels::{Region, Source, Target};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};

/// A huge page.
pub(crate) const HUGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;
/// Values repeat after so many elements, which no tile, page or slot is a multiple of.
const PERIOD: usize = 251;

/// Pages that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Ordinary,
    Huge,
}

/// Whole pages, aligned to huge ones; nothing is mapped next to them, so that smaps shows them alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    start: *mut u8,
    bytes: usize,
}

impl Area {
    /// Memory of this process, all of it entered.
    pub(crate) fn anonymous(bytes: usize, pages: Pages) -> Self {
        let start = reserve(bytes);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the range was reserved for this, and nothing else is in it.
        let start = unsafe { mmap_anonymous(start.cast(), bytes, protection(), flags) }.unwrap();
        let area = Self { start: start.cast(), bytes };
        let advice = match pages {
            Pages::Ordinary => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        };
        // A kernel without huge pages refuses; what was given is seen in smaps.
        let _ = area.advise(advice);
        area.enter();
        area
    }

    /// Shared memory.
    pub(crate) fn of_file(file: impl AsFd, offset: usize, bytes: usize) -> Self {
        Self::try_of_file(file, offset, bytes).unwrap()
    }

    /// Shared memory, unless there is no such memory.
    pub(crate) fn try_of_file(
        file: impl AsFd,
        offset: usize,
        bytes: usize,
    ) -> rustix::io::Result<Self> {
        let start = reserve(bytes).cast();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range was reserved for this, and nothing else is in it.
        let start = unsafe { mmap(start, bytes, protection(), flags, file, offset as u64) }?;
        Ok(Self { start: start.cast(), bytes })
    }

    pub(crate) fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: advice about pages does not change what is in them.
        unsafe { madvise(self.start.cast(), self.bytes, advice) }
    }

    /// Asks for huge pages now, whatever the settings of the system say about faults.
    pub(crate) fn collapse(&self) -> bool {
        // SAFETY: collapsing moves what is in pages and does not change it.
        unsafe { libc::madvise(self.start.cast(), self.bytes, libc::MADV_COLLAPSE) == 0 }
    }

    /// Writes to every page, so that no page fault is timed.
    pub(crate) fn enter(&self) {
        for offset in (0..self.bytes).step_by(PAGE_BYTES) {
            let page = self.start.wrapping_add(offset);
            // SAFETY: inside the area, and nobody reads it yet.
            unsafe { page.write_volatile(0) };
        }
    }

    pub(crate) fn region(&self) -> Region<'static> {
        // SAFETY: it stays mapped; the two processes touch it in turns, which they tell each other by flags.
        unsafe { Region::new(self.start, self.bytes) }
    }

    pub(crate) fn source(&self, offset: usize, bytes: usize) -> Source<'static> {
        self.region().source(offset, bytes)
    }

    pub(crate) fn target(&self, offset: usize, bytes: usize) -> Target<'static> {
        self.region().target(offset, bytes)
    }

    /// The part from `offset` on.
    pub(crate) fn from(&self, offset: usize) -> Self {
        assert!(offset <= self.bytes, "outside the area");
        Self { start: self.start.wrapping_add(offset), bytes: self.bytes - offset }
    }

    pub(crate) fn address(&self) -> usize {
        self.start.expose_provenance()
    }

    /// Makes every `f32` what `value` says of its index.
    pub(crate) fn fill(&self, value: impl Fn(usize) -> f32) {
        self.elements().enumerate().for_each(|(index, element)| {
            // SAFETY: inside the area and aligned, and nobody else touches it now.
            unsafe { element.write(value(index)) };
        });
    }

    /// How many of the first `bytes` bytes are in an `f32` that `value` does not say.
    pub(crate) fn wrong(&self, bytes: usize, value: impl Fn(usize) -> f32) -> u64 {
        let elements = self.elements().take(bytes / size_of::<f32>());
        let wrong = elements.enumerate().filter(|(index, element)| {
            // SAFETY: inside the area and aligned, and nobody else touches it now.
            let found = unsafe { element.read() };
            found.to_bits() != value(*index).to_bits()
        });
        (wrong.count() * size_of::<f32>()) as u64
    }

    fn elements(&self) -> impl Iterator<Item = *mut f32> + use<> {
        let start = self.start.cast::<f32>();
        (0..self.bytes / size_of::<f32>()).map(move |index| start.wrapping_add(index))
    }

    /// Bytes of it that are in huge pages, as the kernel tells.
    pub(crate) fn huge_bytes(&self) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = format!("{:08x}-", self.start.addr());
        let mapping = smaps.lines().skip_while(|line| !line.starts_with(&begins)).skip(1);
        let fields = mapping.take_while(|line| line.split(' ').next().unwrap().ends_with(':'));
        let kilobytes = fields.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            let huge = name == "AnonHugePages" || name.ends_with("PmdMapped");
            let huge = huge || name.ends_with("_Hugetlb");
            huge.then(|| value.trim().trim_end_matches(" kB").parse::<usize>().unwrap())
        });
        kilobytes.sum::<usize>() << 10
    }

    /// The same in words.
    pub(crate) fn given(&self) -> String {
        format!("{} of {} MB", self.huge_bytes() >> 20, self.bytes >> 20)
    }
}

/// What the element `index` of a source of the side or run `seed` is: small whole numbers, whose sums are exact.
pub(crate) fn pattern(seed: usize) -> impl Fn(usize) -> f32 + Copy {
    move |index| ((index * 7 + seed * 13) % PERIOD + 1) as f32
}

fn protection() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

/// Addresses for so many bytes, aligned to huge pages, with room on both sides that nothing else gets.
fn reserve(bytes: usize) -> *mut u8 {
    let room = bytes + 3 * HUGE_BYTES;
    // SAFETY: a new mapping where the kernel likes; nothing is at stake.
    let start =
        unsafe { mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE) };
    let start = start.unwrap().cast::<u8>();
    let past = start.addr() + PAGE_BYTES;
    start.wrapping_add(past.next_multiple_of(HUGE_BYTES) - start.addr())
}
