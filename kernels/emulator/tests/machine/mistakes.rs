//! What no thread may do, and no text may say.

use ccl_emulator::{Access, Memory, Module, Options, Reason};

use crate::world::{World, fault, kernel, schedules};

#[test]
fn accesses_outside_are_found() {
    let store = |offset: &str| kernel("", &format!("st.global.u32 [%d1+{offset}], %r0;"));
    let found = fault(&store("4"), 64);
    assert_eq!((found.thread, found.line), (63, 12));
    assert!(found.instruction.starts_with("st.global.u32"), "{found}");
    assert!(matches!(found.reason, Reason::OutOfBounds { access: Access::Store, bytes: 4, .. }));
    assert_eq!(fault(&store("-4"), 64).thread, 0);
    let found = fault(&store("2"), 4);
    assert!(matches!(found.reason, Reason::Misaligned { .. }), "{found}");
    let wide = kernel("", "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1];");
    let found = fault(&wide, 2);
    assert!(matches!(found.reason, Reason::Misaligned { bytes: 16, .. }), "{found}");
    let parameter = kernel("", "cvta.param.u64 %d2, p; st.u32 [%d2], %r0;");
    assert!(matches!(fault(&parameter, 1).reason, Reason::OutOfBounds { .. }));
    let found = fault(&kernel("", "ld.shared.u32 %r1, [512];"), 1);
    assert!(matches!(found.reason, Reason::OutOfBounds { .. }), "{found}");
}

#[test]
fn deadlocks_are_found_and_described() {
    let spin =
        kernel("", "$L: ld.volatile.global.u32 %r1, [%d0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra $L;");
    let found = fault(&spin, 40);
    let Reason::Deadlock(description) = &found.reason else { panic!("{found}") };
    assert!(description.contains("everybody spins"), "{description}");
    assert!(description.contains("40 threads"), "{description}");
    let vote =
        kernel("", "setp.eq.u32 %p1, %r0, 0; @%p1 bar.sync 0; vote.sync.any.pred %p2, %p1, -1;");
    let found = fault(&vote, 32);
    let Reason::Deadlock(description) = &found.reason else { panic!("{found}") };
    assert!(description.contains("1 threads, thread 0 first"), "{description}");
    assert!(description.contains("at a barrier"), "{description}");
    assert!(description.contains("for its warp"), "{description}");
}

#[test]
fn threads_that_bring_each_other_different_things_do_not_meet() {
    let both = |low: &str, high: &str| {
        let text =
            "setp.lt.u32 %p1, %r0, 16; @%p1 bra $LOW; {high} bra $END; $LOW: {low} $END: ret;";
        kernel("", &text.replace("{low}", low).replace("{high}", high))
    };
    let vote = "vote.sync.any.pred %p2, %p1, -1;";
    for (low, high) in [
        (vote, "bar.warp.sync -1;"),
        (vote, "vote.sync.all.pred %p2, %p1, -1;"),
        ("shfl.sync.up.b32 %r2, %r1, 1, 0, -1;", "shfl.sync.down.b32 %r2, %r1, 1, 31, -1;"),
        ("match.any.sync.b32 %r2, %r1, -1;", "match.any.sync.b64 %r2, %d0, -1;"),
        ("redux.sync.min.u32 %r2, %r1, -1;", "redux.sync.max.u32 %r2, %r1, -1;"),
    ] {
        let found = fault(&both(low, high), 32);
        let Reason::Deadlock(description) = &found.reason else { panic!("{found}") };
        assert!(description.contains("32 threads, thread 0 first"), "{description}");
        assert!(description.contains("for its warp"), "{description}");
    }
    // The same instruction may stand in several places.
    let world = World::new(1);
    world.run(&both(vote, vote), 1, 32, Options::default()).expect("they meet");
}

#[test]
fn warps_come_to_aligned_barriers_together() {
    let parted = |barrier: &str| {
        let text =
            "and.b32 %r1, %r0, 31; setp.lt.u32 %p1, %r1, 16; @%p1 bra $LOW; {barrier} bra $END;
            $LOW: {barrier} $END: ret;";
        kernel("", &text.replace("{barrier}", barrier))
    };
    for barrier in [
        "bar.sync 0;",
        "barrier.sync.aligned 0;",
        "bar.red.or.pred %p2, 0, %p1;",
        "bar.arrive 1, 64;",
    ] {
        let found = fault(&parted(barrier), 64);
        assert!(matches!(found.reason, Reason::Apart { .. }), "{found}");
    }
    let world = World::new(1);
    world.run(&parted("barrier.sync 0;"), 1, 64, Options::default()).expect("it is not aligned");
    // Halves of two warps are as many as one warp.
    let halves = kernel(
        "",
        "and.b32 %r1, %r0, 31; setp.lt.u32 %p1, %r1, 16; @%p1 bar.sync 1, 32; bar.sync 0;",
    );
    let found = fault(&halves, 64);
    assert_eq!(found.reason, Reason::Apart { thread: 16, line: 12 }, "{found}");
    // The same place, and another barrier.
    let numbers = kernel("", "and.b32 %r1, %r0, 1; bar.sync %r1, 32;");
    let found = fault(&numbers, 64);
    assert_eq!(found.reason, Reason::Apart { thread: 1, line: 12 }, "{found}");
}

#[test]
fn half_a_warp_that_comes_twice_is_no_warp() {
    let twice = |arrive: &str| {
        let text = "and.b32 %r1, %r0, 31; setp.lt.u32 %p1, %r1, 16; @%p1 {arrive}; @%p1 {arrive};
            barrier.sync 0; bar.sync 1, 128;";
        kernel("", &text.replace("{arrive}", arrive))
    };
    let world = World::new(1);
    let unaligned = twice("barrier.arrive 1, 128");
    world.run(&unaligned, 1, 64, Options::default()).expect("it is not aligned");
    for options in schedules() {
        let ended = world.run(&twice("bar.arrive 1, 128"), 1, 64, options);
        let found = ended.expect_err("they come in parts");
        assert!(matches!(found.reason, Reason::Deadlock(_)), "{options:?}: {found}");
    }
}

#[test]
fn other_mistakes_are_found() {
    assert_eq!(fault(&kernel("", "trap;"), 1).reason, Reason::Trap);
    let member = kernel("", "vote.sync.any.pred %p1, %p1, 1;");
    assert_eq!(fault(&member, 2).reason, Reason::NotAMember);
    let barrier = kernel("", "bar.sync 16;");
    assert_eq!(fault(&barrier, 1).reason, Reason::OutOfRange(16));
    let external = kernel(".extern .func f();", "call f;");
    assert_eq!(fault(&external, 1).reason, Reason::UndefinedFunction("f".to_owned()));
    let deep = kernel(".func f() { .local .b8 x[1000]; call f; ret; }", "call f;");
    assert_eq!(fault(&deep, 1).reason, Reason::StackOverflow);
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    let memory = Memory::new();
    for (body, reason) in [
        ("add.ftz.f32 %f1, %f1, %f1;", "unknown instruction add.ftz.f32"),
        ("tex.2d.v4.f32.f32 %f1, %f1;", "unknown instruction"),
        ("ld.global.secret.u32 %r1, [%d0];", "unknown instruction"),
        ("membar.secret;", "unknown instruction membar.secret"),
        ("fence.proxy.async;", "unknown instruction"),
        ("fence.acq_rel.sys.secret;", "unknown instruction"),
        ("$L: bra.secret $L;", "unknown instruction"),
        ("ret.secret;", "unknown instruction"),
        ("prefetch.secret [%d0];", "unknown instruction"),
        ("mov.b64 {%d1}, %d2;", "unknown instruction"),
        ("elect.sync;", "operands are expected"),
        ("vote.sync.any.pred;", "operands are expected"),
        ("cvt.u32.u8;", "operands are expected"),
        ("cvt.rn.f32.s32 %f1;", "unknown instruction"),
        ("mov.u32 %r99, 1;", "no register %r99"),
        ("mov.u32 %r1, nothing;", "no name nothing"),
        ("bra $NOWHERE;", "no label $NOWHERE"),
        ("call nobody;", "no function nobody"),
    ] {
        let error = Module::load(&kernel("", body), &memory).expect_err(body);
        assert!(error.reason.contains(reason), "{error}");
        assert_eq!(error.line, 12, "{body}");
    }
    for declaration in [".maxntid 65536, 65536, 2", ".maxntid 4294967297"] {
        let text = format!(".version 9.0\n.entry k() {declaration} {{ ret; }}");
        assert_eq!(Module::load(&text, &memory).expect_err(declaration).line, 2);
    }
    for declaration in [
        ".global .b64 x[0x2000000000000001];",
        ".global .align 3 .b64 x;",
        ".global .align 0x8000000000000000 .b64 x;",
        ".entry k() { .reg .b32 %r<0xffffffff>, %q<2>; }",
    ] {
        let text = format!(".version 9.0\n{declaration}");
        assert_eq!(Module::load(&text, &memory).expect_err(declaration).line, 2);
    }
}
