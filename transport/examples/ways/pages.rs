//! What shared memory costs in pages of 4 KB and in huge ones.

use std::os::fd::OwnedFd;

use ccl_kernels::copy;
use ccl_transport::clock;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::Advice;

use crate::area::{Area, Pages, pattern};
use crate::rounds::{head, interleaved, row, short};

const BYTES: usize = 64 << 20;
/// Copies in one timed run.
const CALLS: usize = 3;

/// Memory of one kind, and how long it took to enter all its pages, if the system has it.
type Made = Option<(Area, f64)>;

pub(crate) fn measure() {
    let made: [(&str, Made); 6] = [
        ("memfd", shared(|_| true)),
        ("memfd, `MADV_HUGEPAGE`", shared(|area| area.advise(Advice::LinuxHugepage).is_ok())),
        ("memfd, `MADV_COLLAPSE`", collapsed()),
        ("memfd, `MFD_HUGETLB`", reserved()),
        ("ordinary memory", entered(|| Some(Area::anonymous(BYTES, Pages::Ordinary)))),
        ("ordinary memory, `MADV_HUGEPAGE`", entered(|| Some(Area::anonymous(BYTES, Pages::Huge)))),
    ];
    let near = Area::anonymous(BYTES, Pages::Ordinary);
    let mut found: Vec<_> =
        made.iter().filter_map(|(_, made)| made.as_ref().map(|(area, _)| *area)).collect();
    found.iter().for_each(|area| verify(*area, near));
    let out = interleaved(&mut found, |area| timed(*area, near));
    let into = interleaved(&mut found, |area| timed(near, *area));
    println!("\n## Huge pages");
    head(
        "64 MB of memory, one process, GB/s",
        &["memory", "in huge pages", "entering the pages, ms, once", "copied out", "copied into"],
    );
    let mut measured = out.iter().zip(&into);
    for (name, made) in made {
        let Some((area, seconds)) = made else {
            row(&[name, "not offered", "-", "-", "-"]);
            continue;
        };
        let (out, into) = measured.next().unwrap();
        let cells = [area.given(), short(1e3 * seconds), out.rate(BYTES), into.rate(BYTES)];
        row(&[&[name.to_owned()][..], &cells].concat());
    }
}

fn timed(from: Area, to: Area) -> f64 {
    let start = clock::now();
    (0..CALLS).for_each(|_| copy(from.source(0, BYTES), to.target(0, BYTES)));
    start.elapsed().as_secs_f64() / CALLS as f64
}

fn verify(area: Area, near: Area) {
    area.fill(pattern(3));
    timed(area, near);
    assert_eq!(near.wrong(BYTES, pattern(3)), 0, "wrong bytes");
}

/// Makes memory and enters it.
fn entered(make: impl FnOnce() -> Option<Area>) -> Made {
    let start = clock::now();
    let area = make()?;
    area.enter();
    Some((area, start.elapsed().as_secs_f64()))
}

fn file(flags: MemfdFlags) -> Option<OwnedFd> {
    let file = memfd_create("ways", flags | MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&file, BYTES as u64).ok()?;
    Some(file)
}

/// A memfd for which `advise` has asked before it is entered.
fn shared(advise: impl FnOnce(&Area) -> bool) -> Made {
    entered(|| {
        let area = Area::of_file(file(MemfdFlags::empty())?, 0, BYTES);
        advise(&area).then_some(area)
    })
}

/// A memfd whose pages are made huge ones when they have been entered.
fn collapsed() -> Made {
    entered(|| {
        let area = Area::of_file(file(MemfdFlags::empty())?, 0, BYTES);
        area.enter();
        area.collapse().then_some(area)
    })
}

/// A memfd in pages that the administrator has set aside.
fn reserved() -> Made {
    let file = file(MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)?;
    entered(|| Area::try_of_file(file, 0, BYTES).ok())
}
