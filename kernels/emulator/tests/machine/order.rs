//! What one thread sees of others, and in which order.

use ccl_emulator::{Options, Schedule};

use crate::world::{World, kernel};

#[test]
fn vectors_tear_into_halves() {
    // The writer alternates between two values; a reader may see halves of both.
    let source = kernel(
        "",
        "setp.ge.u32 %p1, %r0, 32; mov.u32 %r9, 0; @%p1 bra $READ;
        $WRITE: add.u32 %r9, %r9, 1; st.global.v4.u32 [%d0], {%r9, %r9, %r9, %r9};
        setp.lt.u32 %p2, %r9, 300; @%p2 bra $WRITE; exit;
        $READ: mov.u32 %r10, 0; mov.u32 %r11, 0;
        $AGAIN: ld.volatile.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0];
        setp.ne.u32 %p3, %r1, %r2; @%p3 trap; setp.ne.u32 %p3, %r3, %r4; @%p3 trap;
        setp.ne.u32 %p4, %r1, %r3; @%p4 st.global.u32 [%d0+16], 1;
        setp.lt.u32 %p4, %r1, 300; @%p4 bra $AGAIN; setp.lt.u32 %p4, %r3, 300; @%p4 bra $AGAIN;",
    );
    let torn = |torn| {
        (0..20).any(|seed| {
            let world = World::new(5);
            let schedule = Schedule::Random(seed);
            let options = Options { schedule, torn, ..Options::default() };
            world.run(&source, 1, 64, options).unwrap_or_else(|fault| panic!("{fault}"));
            world.words()[4] == 1
        })
    };
    assert!(torn(true), "a reader sees two halves");
    assert!(!torn(false), "unless stores are whole");
}

/// Somebody writes data and then a flag; somebody else waits for the flag and looks at the data: two blocks of one
/// device, or two devices. Whether there are runs in which the data is not there.
fn overtakes(order: &str, flag: &str, are_devices: bool) -> bool {
    let source = |own: &str| {
        kernel(
            "",
            &format!(
                "mov.u32 %r1, {own}; setp.ne.u32 %p1, %r1, 0; @%p1 bra $READ;
                st.global.u32 [%d0], 5; ld.global.u32 %r4, [%d0]; setp.ne.u32 %p3, %r4, 5; @%p3 trap;
                {order} {flag} [%d0+128], 1; mov.u32 %r5, 0;
                $WORK: add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 1000; @%p4 bra $WORK; exit;
                $READ: ld.acquire.sys.global.u32 %r2, [%d0+128]; setp.eq.u32 %p2, %r2, 0;
                @%p2 bra $READ; ld.global.u32 %r3, [%d0]; st.global.u32 [%d0+256], %r3;"
            ),
        )
    };
    (0..100).any(|seed| {
        let world = World::new(65);
        let schedule = Schedule::Random(seed);
        let options = Options { schedule, weak: true, ..Options::default() };
        let ran = if are_devices {
            world.run_all(&[&source("0"), &source("1")], 1, 1, options)
        } else {
            world.run(&source("%ctaid.x"), 2, 1, options)
        };
        ran.unwrap_or_else(|fault| panic!("{fault}"));
        world.words()[64] != 5
    })
}

#[test]
fn flags_overtake_data_unless_something_orders_them() {
    const RELAXED: &str = "st.relaxed.sys.global.u32";
    const VOLATILE: &str = "st.volatile.global.u32";
    // Who may miss the data: another block, another device.
    for (order, flag, expected) in [
        ("", RELAXED, [true, true]),
        ("", VOLATILE, [true, true]),
        ("membar.cta;", RELAXED, [true, true]),
        ("fence.acq_rel.cluster;", VOLATILE, [true, true]),
        ("", "st.release.cta.global.u32", [true, true]),
        ("", "red.release.cta.global.add.u32", [true, true]),
        ("", "st.release.gpu.global.u32", [false, true]),
        ("", "red.release.gpu.global.add.u32", [false, true]),
        ("", "red.release.global.add.u32", [false, true]),
        ("membar.gl;", RELAXED, [false, true]),
        ("fence.sc.gpu;", VOLATILE, [false, true]),
        ("", "st.release.sys.global.u32", [false, false]),
        ("", "red.release.sys.global.add.u32", [false, false]),
        ("membar.sys;", RELAXED, [false, false]),
        ("fence.acq_rel.sys;", VOLATILE, [false, false]),
    ] {
        let found = [false, true].map(|are_devices| overtakes(order, flag, are_devices));
        assert_eq!(found, expected, "{order} {flag}");
    }
}

#[test]
fn what_a_block_has_seen_of_another_it_orders_too() {
    // Block 0 tells block 1 of data, for the device; that one tells another device, for the system.
    let tell = kernel(
        "",
        "mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra $PASS;
        st.global.u32 [%d0], 5; st.release.gpu.global.u32 [%d0+128], 1; exit;
        $PASS: ld.acquire.gpu.global.u32 %r2, [%d0+128]; setp.eq.u32 %p2, %r2, 0;
        @%p2 bra $PASS; st.release.sys.global.u32 [%d0+256], 1;",
    );
    let hear = kernel(
        "",
        "mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 0; @%p1 exit;
        $READ: ld.acquire.sys.global.u32 %r2, [%d0+256]; setp.eq.u32 %p2, %r2, 0;
        @%p2 bra $READ; ld.global.u32 %r3, [%d0]; st.global.u32 [%d0+384], %r3;",
    );
    for seed in 0..100 {
        let world = World::new(97);
        let schedule = Schedule::Random(seed);
        let options = Options { schedule, weak: true, ..Options::default() };
        let ran = world.run_all(&[&tell, &hear], 2, 1, options);
        ran.unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(world.words()[96], 5, "seed {seed}");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let source = kernel(
        "",
        "atom.global.add.u32 %r1, [%d0], 1; mul.wide.u32 %d2, %r1, 4; add.u64 %d2, %d0, %d2;
        mov.u32 %r2, %ctaid.x; st.global.u32 [%d2+4], %r2;",
    );
    let order = |seed| {
        let world = World::new(129);
        let schedule = Schedule::Random(seed);
        let options = Options { schedule, split: true, ..Options::default() };
        world.run(&source, 4, 32, options).unwrap_or_else(|fault| panic!("{fault}"));
        world.words()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}
