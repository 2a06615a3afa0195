//! Small kernels, written in PTX by hand: what threads do together, and what they must not do.

mod mistakes;
mod order;
mod world;

use std::thread;

use ccl_emulator::{Buffer, Memory, Module, Options, Progress};

use world::{World, kernel, result};

#[test]
fn threads_part_and_meet() {
    let source = kernel(
        "",
        "and.b32 %r1, %r0, 1; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, %r0;
        @%p1 bra $EVEN; mul.lo.u32 %r3, %r3, 100; bra.uni $MEET;
        $EVEN: add.u32 %r3, %r3, 7;
        $LOOP: setp.ge.u32 %p2, %r2, %r0; @%p2 bra $MEET; add.u32 %r2, %r2, 1; bra.uni $LOOP;
        $MEET: add.u32 %r3, %r3, %r2; st.global.u32 [%d1], %r3; ret;",
    );
    let expected: Vec<u32> =
        (0..70).map(|thread| if thread % 2 == 0 { 2 * thread + 7 } else { 100 * thread }).collect();
    assert_eq!(result(&source, 1, 70, 70), expected);
}

/// What stands in registers before they are written.
const GARBAGE: u32 = 0xa5a5_a5a5;

#[test]
fn what_nobody_has_written_is_garbage() {
    let source = kernel(
        ".shared .align 4 .b8 s[4];
        .func (.param .b32 out) unwritten() { .reg .b32 %r<2>; st.param.b32 [out], %r1; ret; }",
        ".local .align 4 .b8 mine[4]; ld.shared.u32 %r1, [s]; ld.local.u32 %r2, [mine];
        { .param .b32 a; call (a), unwritten; ld.param.b32 %r3, [a]; }
        ld.shared.u32 %r4, [s+16]; add.s64 %d1, %d0, 12; st.global.u32 [%d1], %r4;
        st.global.u32 [%d0], %r1; st.global.u32 [%d0+4], %r2; st.global.u32 [%d0+8], %r3;",
    );
    assert_eq!(result(&source, 1, 1, 4), [GARBAGE; 4]);
}

#[test]
fn registers_that_are_needed_for_a_moment_share_room() {
    // %r9 is written by nobody and %r8 by some threads, both after others have been needed; %r3 and %r4 go round a loop.
    let source = kernel(
        "",
        "add.u32 %r1, %r0, 1; add.u32 %r2, %r1, 1; mov.u32 %r3, 0; mov.u32 %r4, 0; setp.lt.u32 %p1, %r0, 2;
        $LOOP: add.u32 %r5, %r3, %r2; add.u32 %r6, %r5, 1; add.u32 %r4, %r4, %r6; add.u32 %r3, %r3, 1;
        setp.lt.u32 %p2, %r3, 3; @%p2 bra $LOOP;
        mul.wide.u32 %d2, %r0, 8; add.s64 %d3, %d1, %d2; @%p1 mov.u32 %r8, 7;
        st.global.u32 [%d3], %r4; st.global.u32 [%d3+4], %r8; st.global.u32 [%d3+8], %r9; ret;",
    );
    let of_thread = |thread: u32| {
        let written = if thread < 2 { 7 } else { GARBAGE };
        [3 * (thread + 3) + 3, written, GARBAGE]
    };
    let expected: Vec<u32> = (0..40).flat_map(of_thread).collect();
    assert_eq!(result(&source, 1, 40, 120), expected);
    let module = Module::load(&source, &Memory::new()).expect("it was loaded before");
    let registers = module.kernel("k").expect("a kernel k").registers();
    // Of 65 that are declared 8 are needed for longer, and never more than 2 for a moment; the rest are constants.
    assert_eq!(registers, 18);
}

/// Thread 31 of every warp waits for thread 0 of its warp, which is behind it in the text, and the
/// first warp for the last.
#[test]
fn who_spins_starves_nobody() {
    let source = kernel(
        "",
        "setp.eq.u32 %p1, %r0, 0; setp.eq.u32 %p2, %r0, 64; mov.u32 %r1, 1;
        @%p1 bra $FIRST; @%p2 bra $LAST;
        $SPIN: ld.volatile.global.u32 %r2, [%d0]; setp.ne.u32 %p3, %r2, 2; @%p3 bra $SPIN;
        bra.uni $END;
        $FIRST: ld.acquire.sys.global.u32 %r2, [%d0]; setp.ne.u32 %p3, %r2, 1; @%p3 bra $FIRST;
        mov.u32 %r2, 2; st.release.sys.global.u32 [%d0], %r2; bra.uni $END;
        $LAST: membar.sys; st.volatile.global.u32 [%d0], %r1;
        $END: ret;",
    );
    assert_eq!(result(&source, 1, 96, 1), [2]);
}

/// Other processes tell a kernel that waits for them of memory that was opened for it since.
#[test]
fn memory_that_is_registered_while_a_kernel_waits_is_found() {
    let source = kernel(
        "",
        "mov.u32 %r1, 1; st.volatile.global.u32 [%d0], %r1;
        $AGAIN: ld.acquire.sys.global.u32 %r2, [%d0+4]; setp.eq.u32 %p1, %r2, 0; @%p1 bra $AGAIN;
        ld.global.u64 %d2, [%d0+8]; ld.global.u32 %r3, [%d2]; add.u32 %r3, %r3, 1;
        st.global.u32 [%d2+4], %r3; st.global.u32 [%d0+16], %r3;",
    );
    for weak in [false, true] {
        let world = World::new(5);
        let options = Options { weak, patience: Some(1_000_000_000), ..Options::default() };
        let mut machine = world.launch(&[&source], 1, 1, options);
        thread::scope(|scope| {
            // In one step, as long as it may take.
            let running = scope.spawn(|| machine.step(u64::MAX / 2));
            while world.words()[0] == 0 && !running.is_finished() {
                thread::yield_now();
            }
            let late = Buffer::of(&world.memory, &[41, 0, 0, 0, 0, 0, 0, 0], 0);
            world.buffer.write(8, &late.address().to_le_bytes());
            world.buffer.write(4, &[1]);
            let ended = running.join().expect("no panic");
            assert!(matches!(ended, Ok(Progress::Idle)), "{ended:?}");
            assert_eq!((late.read()[4], world.words()[4]), (42, 42));
        });
    }
}

#[test]
fn barriers_count_threads() {
    // Thread 5 of a warp comes late; nobody may pass before it has written.
    let source = kernel(
        ".shared .align 4 .b8 s[512];",
        "mov.u32 %r9, s; shl.b32 %r1, %r0, 2; add.u32 %r1, %r9, %r1; mov.u32 %r4, 0;
        setp.ne.u32 %p1, %r0, 5; @%p1 bra $GO;
        $WORK: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 500; @%p2 bra $WORK;
        $GO: add.u32 %r5, %r4, %r0; st.shared.u32 [%r1], %r5; bar.sync 0;
        ld.shared.u32 %r6, [s+20]; st.global.u32 [%d1], %r6;
        setp.gt.u32 %p3, %r0, 90; @%p3 exit;
        setp.lt.u32 %p4, %r0, 10; bar.red.popc.u32 %r7, 0, %p4; add.u32 %r6, %r6, %r7;
        bar.red.or.pred %p5, 1, !%p4; selp.u32 %r7, 1000, 0, %p5; add.u32 %r6, %r6, %r7;
        st.global.u32 [%d1], %r6; ret;",
    );
    let expected: Vec<u32> =
        (0..100).map(|thread| if thread > 90 { 505 } else { 505 + 10 + 1000 }).collect();
    assert_eq!(result(&source, 1, 100, 100), expected);
}

#[test]
fn warps_exchange() {
    let source = kernel(
        "",
        "mul.lo.u32 %r1, %r0, %r0; mov.u32 %r8, 0;
        shfl.sync.bfly.b32 %r2, %r1, 3, 31, -1; add.u32 %r8, %r8, %r2;
        shfl.sync.down.b32 %r2|%p1, %r1, 30, 31, -1; selp.u32 %r3, 100000, 0, %p1;
        add.u32 %r8, %r8, %r2; add.u32 %r8, %r8, %r3;
        shfl.sync.up.b32 %r2|%p1, %r1, 1, 0, -1; selp.u32 %r3, 200000, 0, %p1;
        add.u32 %r8, %r8, %r2; add.u32 %r8, %r8, %r3;
        shfl.sync.idx.b32 %r2, %r1, 5, 0x101f, -1; add.u32 %r8, %r8, %r2;
        setp.lt.u32 %p2, %r0, 4; vote.sync.ballot.b32 %r2, %p2, -1; add.u32 %r8, %r8, %r2;
        vote.sync.any.pred %p3, %p2, 0xffffffff; selp.u32 %r2, 1000000, 0, %p3; add.u32 %r8, %r8, %r2;
        vote.sync.all.pred %p3, %p2, 0xffffffff; selp.u32 %r2, 5000000, 0, %p3; add.u32 %r8, %r8, %r2;
        redux.sync.max.u32 %r2, %r1, -1; add.u32 %r8, %r8, %r2;
        and.b32 %r2, %r0, 3; match.any.sync.b32 %r2, %r2, -1; popc.b32 %r2, %r2; add.u32 %r8, %r8, %r2;
        elect.sync _|%p4, -1; selp.u32 %r2, 7, 0, %p4; add.u32 %r8, %r8, %r2;
        st.global.u32 [%d1], %r8; ret;",
    );
    let square = |lane: u32| lane * lane;
    let expected: Vec<u32> = (0..32)
        .map(|lane| {
            let down = if lane < 2 { 100_000 + square(lane + 30) } else { square(lane) };
            let up = if lane > 0 { 200_000 + square(lane - 1) } else { 0 };
            let segment = square(lane & 16 | 5);
            let sum = square(lane ^ 3) + down + up + segment + 0xf + 1_000_000 + square(31) + 8;
            sum + if lane == 0 { 7 } else { 0 }
        })
        .collect();
    assert_eq!(result(&source, 1, 32, 32), expected);
}

#[test]
fn votes_wait_for_threads_that_come_another_way() {
    let source = kernel(
        "",
        "mov.u32 %r4, 0; setp.lt.u32 %p1, %r0, 16; @%p1 bra $LOW;
        vote.sync.ballot.b32 %r4, 1, 0xffff0000; bra.uni $END;
        $LOW: add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r0; @%p2 bra $LOW;
        setp.eq.u32 %p3, %r0, 3; vote.sync.ballot.b32 %r4, %p3, 0xffff;
        $END: st.global.u32 [%d1], %r4; ret;",
    );
    let expected = [vec![8; 16], vec![0xffff_0000; 16]].concat();
    assert_eq!(result(&source, 1, 32, 32), expected);
}

#[test]
fn functions_are_called() {
    let source = kernel(
        ".func (.param .b32 out) triangle(.param .b32 n) {
          .reg .pred %p<2>; .reg .b32 %r<5>;
          ld.param.u32 %r1, [n]; setp.ne.u32 %p1, %r1, 0; @%p1 bra $MORE;
          st.param.b32 [out], %r1; ret;
          $MORE: sub.u32 %r2, %r1, 1;
          { .param .b32 a; st.param.b32 [a], %r2; .param .b32 b;
            call.uni (b), triangle, (a); ld.param.b32 %r3, [b]; }
          add.u32 %r4, %r3, %r1; st.param.b32 [out], %r4; ret; }",
        "setp.gt.u32 %p1, %r0, 40; @%p1 exit;
        { .param .b32 a; .param .b32 b; st.param.b32 [a], %r0;
          call (b), triangle, (a); ld.param.b32 %r1, [b]; }
        st.global.u32 [%d1], %r1;",
    );
    let expected: Vec<u32> = (0..=40).map(|n| n * (n + 1) / 2).chain([0; 9]).collect();
    assert_eq!(result(&source, 1, 50, 50), expected);
}

#[test]
fn private_and_shared_memory() {
    let source = kernel(
        ".extern .shared .align 16 .b8 dynamic[]; .const .align 4 .b8 table[8] = {1, 0, 0, 0, 9};
        .global .align 4 .u32 count = 5; .global .align 8 .u64 where = generic(count);",
        ".local .align 16 .b8 mine[64]; .reg .b64 %SP, %SPL;
        mov.u64 %SPL, mine; cvta.local.u64 %SP, %SPL;
        add.u32 %r1, %r0, 3; st.local.u32 [%SPL+8], %r1; ld.u32 %r2, [%SP+8];
        mov.u64 %d2, dynamic; cvta.shared.u64 %d3, %d2; add.u64 %d3, %d3, 12; 
        st.u32 [%d3], 11; bar.sync 0; ld.shared.u32 %r3, [dynamic+12]; add.u32 %r2, %r2, %r3;
        ld.const.u32 %r3, [table+4]; add.u32 %r2, %r2, %r3;
        ld.global.u64 %d4, [where]; atom.global.add.u32 %r4, [%d4], 0; add.u32 %r2, %r2, %r4;
        mov.u32 %r5, %ntid.x; add.u32 %r2, %r2, %r5; st.global.u32 [%d1], %r2;",
    );
    let expected: Vec<u32> = (0..40).map(|thread| thread + 3 + 11 + 9 + 5 + 40).collect();
    assert_eq!(result(&source, 1, 40, 40), expected);
}

#[test]
fn atomics() {
    let source = kernel(
        "",
        "mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ntid.x; mad.lo.u32 %r7, %r5, %r6, %r0;
        atom.global.add.u32 %r1, [%d0], 3; red.global.max.u32 [%d0+4], %r7;
        neg.s32 %r2, %r7; atom.global.sys.min.s32 %r1, [%d0+8], %r2;
        atom.inc.u32 %r1, [%d0+12], 4; red.or.b32 [%d0+16], %r7; atom.dec.u32 %r1, [%d0+20], 4;
        mov.f32 %f1, 0f3F000000; atom.global.add.f32 %f2, [%d0+24], %f1;
        $LOCK: atom.acquire.gpu.cas.b32 %r3, [%d0+28], 0, 1; setp.ne.u32 %p1, %r3, 0; @%p1 bra $LOCK;
        ld.global.u32 %r4, [%d0+32]; add.u32 %r4, %r4, 1; st.global.u32 [%d0+32], %r4;
        membar.gl; atom.release.gpu.exch.b32 %r3, [%d0+28], 0;
        atom.add.u64 %d2, [%d0+40], 0x100000001;",
    );
    let words = result(&source, 3, 50, 12);
    let half = 75.0f32.to_bits();
    assert_eq!(words, [450, 149, 0u32.wrapping_sub(149), 0, 255, 0, half, 0, 150, 0, 150, 150]);
}

#[test]
fn branches_by_table() {
    let source = kernel(
        "",
        "and.b32 %r1, %r0, 3; ts: .branchtargets $A, $B, $A, $C; brx.idx %r1, ts;
        $A: mov.u32 %r2, 10; bra.uni $E; $B: mov.u32 %r2, 20; bra.uni $E; $C: mov.u32 %r2, 30;
        $E: st.global.u32 [%d1], %r2;",
    );
    assert_eq!(result(&source, 1, 8, 8), [10, 20, 10, 30, 10, 20, 10, 30]);
}

#[test]
fn grids_larger_than_the_machine() {
    let source = kernel(
        "",
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %nctaid.x; mul.wide.u32 %d2, %r1, 4;
        add.u64 %d2, %d0, %d2; st.global.u32 [%d2], %r2;",
    );
    let world = World::new(100);
    let options = Options { resident_threads: 64, ..Options::default() };
    world.run(&source, 100, 32, options).expect("all blocks run");
    assert_eq!(world.words(), [100; 100]);
}

#[test]
fn who_only_comes_to_a_barrier_opens_it_too() {
    // Nobody waits the first time; the second time the first ones do not count.
    let source = kernel(
        "",
        "setp.lt.u32 %p1, %r0, 32; @!%p1 bar.arrive 1, 32; bar.sync 0; @%p1 bra $WAIT;
        mov.u32 %r2, 0; $WORK: add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 500; @%p2 bra $WORK;
        st.volatile.global.u32 [%d0], %r2; bar.arrive 1, 64; exit;
        $WAIT: bar.sync 1, 64; ld.volatile.global.u32 %r3, [%d0]; st.global.u32 [%d1+4], %r3;",
    );
    assert_eq!(result(&source, 1, 64, 33), [500; 33]);
}

#[test]
fn values_have_the_bits_of_their_type_only() {
    // -1 as a signed number, and as bits: registers hold them differently.
    let source = kernel(
        "",
        "setp.lt.u32 %p1, %r0, 16; not.b32 %r2, 0; @%p1 neg.s32 %r2, 1;
        match.any.sync.b32 %r3, %r2, -1; st.global.u32 [%d1], %r3;",
    );
    assert_eq!(result(&source, 1, 32, 32), [u32::MAX; 32]);
}

#[test]
fn two_predicates_are_written_at_once() {
    // Each of the two is read as the third operand, and as the guard.
    let source = kernel(
        "",
        "mov.u32 %r8, 0; mov.pred %p1, 0; mov.pred %p2, -1;
        setp.lt.or.u32 %p1|%p2, 5, 3, %p2; selp.u32 %r1, 1, 0, %p1; add.u32 %r8, %r8, %r1;
        mov.pred %p1, -1; setp.lt.and.u32 %p1|%p2, 3, 5, %p1; selp.u32 %r1, 10, 0, %p1; add.u32 %r8, %r8, %r1;
        selp.u32 %r1, 100, 0, %p2; add.u32 %r8, %r8, %r1;
        mov.pred %p2, -1; @%p2 setp.lt.u32 %p1|%p2, 3, 5; selp.u32 %r1, 1000, 0, %p1; add.u32 %r8, %r8, %r1;
        mov.pred %p1, -1; @%p1 setp.lt.u32 %p1|%p2, 5, 3; selp.u32 %r1, 10000, 0, %p2; add.u32 %r8, %r8, %r1;
        mov.u32 %r1, 4+8; mul.lo.u32 %r1, %r1, 100000; add.u32 %r8, %r8, %r1;
        st.global.u32 [%d0], %r8;",
    );
    assert_eq!(result(&source, 1, 1, 1), [1_211_011]);
}
