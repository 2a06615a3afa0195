//! Bugs on purpose in compiled CUDA kernels: what a compiler or a wrong line of inline PTX could do,
//! and what the text of the kernels cannot show. The battery and the protocols must find every one.

mod cuda;
mod inputs;
#[path = "cuda/interpreter.rs"]
mod interpreter;
#[path = "cuda/nvrtc.rs"]
mod nvrtc;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use ccl_core::datatype::DataType;
use ccl_kernels::cuda::{Family, Module, Operation};

use cuda::battery::{self, Cases};
use cuda::suite;
use inputs::skip;
use interpreter::Interpreter;

use DataType::{Bfloat16, Float8E4m3, Float8E5m2, Float16, Float32, Int32, Uint8};

/// What must find a bug.
#[derive(Clone, Copy, Debug)]
enum Finder {
    Copies,
    Reduces(DataType),
    LowLatency,
    Push,
    Pull,
    Relays,
    GivingUp,
}

/// What the bug is; how the instructions begin in which it is; what becomes of such an instruction,
/// with `$1` for the first of its operands and so on; who finds it.
type Mutant = (&'static str, &'static str, &'static str, Finder);

use Finder::{Copies, GivingUp, LowLatency, Pull, Push, Reduces, Relays};

#[rustfmt::skip]
const MUTANTS: [Mutant; 22] = [
    ("lanes of bf16x2 are swapped",
     "cvt.rn.bf16x2.f32", "cvt.rn.bf16x2.f32 $1, $3, $2;", Reduces(Bfloat16)),
    ("lanes of f16x2 are swapped",
     "cvt.rn.f16x2.f32", "cvt.rn.f16x2.f32 $1, $3, $2;", Reduces(Float16)),
    ("f16 is not rounded to the nearest",
     "cvt.rn.f16x2.f32", "cvt.rz.f16x2.f32 $1, $2, $3;", Reduces(Float16)),
    ("lanes of e4m3x2 are swapped",
     "cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e4m3x2.f32 $1, $3, $2;", Reduces(Float8E4m3)),
    ("e4m3 instead of e5m2",
     "cvt.rn.satfinite.e5m2x2.f32", "cvt.rn.satfinite.e4m3x2.f32 $1, $2, $3;", Reduces(Float8E5m2)),
    ("a sum is rounded to zero",
     "add.rn.f32", "add.rz.f32 $1, $2, $3;", Reduces(Float32)),
    ("a NaN loses",
     "max.NaN.f32", "max.f32 $1, $2, $3;", Reduces(Float32)),
    ("integers without sign",
     "max.s32", "max.u32 $1, $2, $3;", Reduces(Int32)),
    ("halves of a vector are read in the wrong order",
     "ld.global.L1::no_allocate.v2.u64", "ld.global.L1::no_allocate.v2.u64 {$2, $1}, [$3];", Reduces(Int32)),
    ("half of a vector is stored twice",
     "st.global.v2.u64", "st.global.v2.u64 [$1], {$2, $2};", Reduces(Int32)),
    ("a vector goes to the next place",
     "st.global.cs.v2.u64", "st.global.cs.v2.u64 [$1+16], {$2, $3};", Copies),
    ("bytes at the ends are left out",
     "st.global.u8", "", Copies),
    ("bytes at the ends are written as two",
     "st.global.u8", "st.global.u16 [$1], $2;", Copies),
    ("flags do not stand beside their data",
     "st.volatile.global.v4.u32", "st.volatile.global.v4.u32 [$1], {$2, $4, $3, $5};", LowLatency),
    ("data is read before its flag",
     "ld.volatile.global.v4.u32",
     "ld.volatile.global.u32 $1, [$5]; ld.volatile.global.u32 $2, [$5+4]; \
      ld.volatile.global.u32 $4, [$5+12]; ld.volatile.global.u32 $3, [$5+8];", LowLatency),
    ("the second flag is not looked at",
     "ld.volatile.global.v4.u32", "ld.volatile.global.v4.u32 {$1, $2, $3, _}, [$5]; mov.u32 $4, $2;", LowLatency),
    ("blocks do not meet in a push",
     "bar.red.or.pred", "mov.pred $1, $3;", Push),
    ("nobody waits in a push",
     "ld.acquire.sys.global.u64", "mov.u64 $1, -1;", Push),
    ("tickets of 32 bits",
     "st.release.sys.global.u64", "cvt.u64.u32 $2, $2; st.release.sys.global.u64 [$1], $2;", Push),
    ("blocks do not meet in a relay",
     "bar.red.or.pred", "mov.pred $1, $3;", Relays),
    ("nobody waits in a relay",
     "ld.acquire.sys.global.u64", "mov.u64 $1, -1;", Relays),
    ("the abort word is not looked at",
     "ld.volatile.global.u32", "mov.u32 $1, 0;", GivingUp),
];

/// The text with every instruction that begins so replaced. Says how many there were.
fn replaced(text: &str, begin: &str, template: &str) -> (String, usize) {
    let mut found = 0;
    let change = |line: &str| {
        let instruction = line.trim();
        let Some(operands) = instruction.strip_prefix(begin) else { return line.to_owned() };
        if !operands.is_empty() && !operands.starts_with(char::is_whitespace) {
            return line.to_owned();
        }
        found += 1;
        let is_end = |character: char| !character.is_alphanumeric() && !"%_+".contains(character);
        let operands: Vec<&str> = operands.split(is_end).filter(|part| !part.is_empty()).collect();
        let mut changed = template.to_owned();
        for (index, operand) in operands.iter().enumerate() {
            changed = changed.replace(&format!("${}", index + 1), operand);
        }
        changed
    };
    let lines: Vec<String> = text.lines().map(change).collect();
    (lines.join("\n"), found)
}

impl Finder {
    /// The modules whose kernels it runs.
    fn modules(self) -> Vec<Module> {
        let elements = Module::Elements;
        match self {
            Copies | Pull => vec![Module::Copies],
            Reduces(datatype) => vec![elements(datatype)],
            LowLatency | Push => vec![Module::Copies, elements(Float32)],
            Relays => vec![Module::Copies, elements(Uint8), elements(Float32)],
            GivingUp => vec![elements(Float32)],
        }
    }

    /// What it says about the kernels.
    fn find(self, kernels: &Interpreter) -> Result<(), String> {
        let sum = Operation::Sum;
        let all_reduces =
            |family| suite::all_reduces(kernels, family, Float32, sum, 0..30).map(drop);
        match self {
            Copies => battery::copies(kernels, Cases::Every, 1).map(drop),
            Reduces(datatype) => battery::reduces(kernels, datatype, Cases::Few, 2).map(drop),
            LowLatency => all_reduces(Family::LowLatency),
            Push => all_reduces(Family::Push),
            Pull => suite::pulls(kernels, 0..20).map(drop),
            Relays => suite::relays(kernels, Float32, sum, 20),
            GivingUp => suite::all_give_up(kernels),
        }
    }
}

/// Whether the finder finds what becomes of these instructions; None if there is no compiler.
fn is_found(name: &str, changes: &[(&str, &str)], finder: Finder) -> Option<bool> {
    let found = Cell::new(0);
    let change = |mut text: String| {
        for (begin, template) in changes {
            let (changed, count) = replaced(&text, begin, template);
            found.set(found.get() + count);
            text = changed;
        }
        text
    };
    // What cannot be loaded has not been found: it ends the test.
    let kernels = Interpreter::with_text(&finder.modules(), 90, change)?;
    assert!(found.get() > 0, "{name}: no instruction begins so: {changes:?}");
    // A protocol that is broken may break its scene, too.
    let outcome = catch_unwind(AssertUnwindSafe(|| finder.find(&kernels)));
    Some(outcome.unwrap_or_else(|_| Err("a scene broke".into())).is_err())
}

fn skip_all() {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| skip("bugs in compiled CUDA kernels: pip cannot install NVRTC"));
}

#[test]
fn all_are_found() {
    for (name, begin, template, finder) in MUTANTS {
        let Some(found) = is_found(name, &[(begin, template)], finder) else { return skip_all() };
        assert!(found, "{name}: {finder:?} did not find it");
    }
}

/// A fence is taken for a release where it stands before one, so neither may order enough.
#[test]
fn missing_order_is_found() {
    const FENCE: &str = "membar.sys;";
    const RELEASE: &str = "st.release.sys.global.u64";
    const NO_FENCE: (&str, &str) = (FENCE, "");
    const NO_RELEASE: (&str, &str) = (RELEASE, "st.relaxed.sys.global.u64 [$1], $2;");
    const NARROW_FENCE: (&str, &str) = (FENCE, "membar.gl;");
    const NARROW_RELEASE: (&str, &str) = (RELEASE, "st.release.gpu.global.u64 [$1], $2;");
    const NARROWEST_RELEASE: (&str, &str) = (RELEASE, "st.release.cta.global.u64 [$1], $2;");
    let orders = [
        [NO_FENCE, NO_RELEASE],
        [NO_FENCE, NARROW_RELEASE],
        [NO_FENCE, NARROWEST_RELEASE],
        [NARROW_FENCE, NO_RELEASE],
        [NARROW_FENCE, NARROW_RELEASE],
    ];
    for finder in [Push, Pull, Relays] {
        for order in orders {
            let Some(found) = is_found("no order", &order, finder) else { return skip_all() };
            assert!(found, "{finder:?} did not find what is missing in {order:?}");
        }
        for one in [NO_FENCE, NO_RELEASE] {
            let found = is_found("half of it", &[one], finder);
            assert_eq!(found, Some(false), "{finder:?}: the other half orders");
        }
    }
}
