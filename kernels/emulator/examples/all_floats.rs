//! Every number of 32 bits through the conversions of the interpreter, against other crates: minutes.
#![allow(clippy::print_stdout, reason = "a command")]

use ccl_emulator::{Buffer, Launch, Machine, Memory, Module, Options};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// Each converts one number.
const THREADS: u32 = 1 << 20;
/// Together they convert all.
const LAUNCHES: u32 = 1 << 12;

/// Converts the number whose bits are `first` plus the number of the thread: f16, bf16, e4m3, e5m2.
const TEXT: &str = "
.version 9.0
.target sm_90
.address_size 64
.visible .entry convert(.param .u64 to, .param .u32 first)
{ .reg .b32 %r<6>; .reg .b64 %d<3>; .reg .b16 %h<5>; .reg .f32 %f, %zero;
  ld.param.u64 %d0, [to]; ld.param.u32 %r0, [first];
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.u32 %r1, %r1, %r2, %r3; add.u32 %r0, %r0, %r1; mov.b32 %f, %r0; mov.f32 %zero, 0f00000000;
  cvt.rn.f16.f32 %h0, %f; cvt.rn.bf16.f32 %h1, %f;
  cvt.rn.satfinite.e4m3x2.f32 %h2, %zero, %f; cvt.rn.satfinite.e5m2x2.f32 %h3, %zero, %f;
  mul.wide.u32 %d1, %r1, 8; add.u64 %d0, %d0, %d1; st.global.v4.b16 [%d0], {%h0, %h1, %h2, %h3};
  ret; }";

/// What the other crates say. An 8-bit float beyond the largest becomes the largest.
fn expected(bits: u32) -> [u16; 4] {
    let value = f32::from_bits(bits);
    if value.is_nan() {
        return [0x7fff, 0x7fff, 0x7f, 0x7f];
    }
    let limited = |code: u8, largest: u8| {
        u16::from(if code & 0x7f > largest { largest | code & 0x80 } else { code })
    };
    [
        f16::from_f32(value).to_bits(),
        bf16::from_f32(value).to_bits(),
        limited(F8E4M3::from_f32(value).to_bits(), 0x7e),
        limited(F8E5M2::from_f32(value).to_bits(), 0x7b),
    ]
}

fn main() {
    let memory = Memory::new();
    let module = Module::load(TEXT, &memory).unwrap_or_else(|error| panic!("{error}"));
    let results = Buffer::new(&memory, THREADS as usize * 8, 0);
    for launch in 0..LAUNCHES {
        let first = launch * THREADS;
        let mut arguments = results.address().to_le_bytes().to_vec();
        arguments.extend(first.to_le_bytes());
        let kernel = module.kernel("convert").expect("the text has it");
        let (grid, block) = ([THREADS / 256, 1, 1], [256, 1, 1]);
        let mut machine = Machine::new(&memory, Options::default());
        let convert = Launch { kernel, grid, block, shared_bytes: 0, arguments };
        machine.launch(0, convert).unwrap_or_else(|error| panic!("{error}"));
        machine.run().unwrap_or_else(|fault| panic!("{fault}"));
        for (bits, codes) in (first..=first + (THREADS - 1)).zip(results.read().chunks(8)) {
            let code = |index: usize| u16::from_le_bytes([codes[2 * index], codes[2 * index + 1]]);
            assert_eq!([0, 1, 2, 3].map(code), expected(bits), "{bits:#x}");
        }
        if launch % 256 == 255 {
            println!("{} of {LAUNCHES} parts agree", launch + 1);
        }
    }
    println!("all 2^32 numbers agree");
}
