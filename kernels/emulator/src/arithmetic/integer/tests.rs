use super::*;
use ccl_core::random::Random;

fn of(name: &str) -> Type {
    Type::parse(name).expect("a type")
}

/// All bits of a value.
fn mask(of: Type) -> u64 {
    u64::MAX >> (64 - of.bits)
}

fn lanes(random: &mut Random) -> Lanes {
    std::array::from_fn(|_| match random.below(4) {
        0 => random.pick(&[0, 1, u64::MAX, 1 << 31, 1 << 63, 0x7fff_ffff, 1 << 15, 0x80]),
        1 => random.below(70),
        _ => random.number(),
    })
}

/// Sign- or zero-extended as the type says.
fn value(of: Type, lane: u64) -> i128 {
    let shift = 128 - of.bits;
    let top = i128::from(lane) << shift;
    if of.is_signed() { top >> shift } else { (top as u128 >> shift) as i128 }
}

/// Every operation, for every type, against 128-bit arithmetic written another way.
#[test]
fn two_operands() {
    let mut random = Random::new(1);
    let expected = |parts: &[&str], of: Type, a: i128, b: i128| -> i128 {
        let bits = of.bits as i128;
        match parts.join(".").as_str() {
            "add" => a + b,
            "sub" => a - b,
            "mul.lo" | "mul.wide" => a.wrapping_mul(b),
            "mul.hi" => a.wrapping_mul(b) >> bits,
            "div" => a.checked_div(b).unwrap_or(-1),
            "rem" => a.checked_rem(b).unwrap_or(a),
            "min" => a.min(b),
            "max" => a.max(b),
            "and" => a & b,
            "or" => a | b,
            "xor" => a ^ b,
            other => panic!("{other}"),
        }
    };
    let names: [&[&str]; 12] = [
        &["add"],
        &["sub"],
        &["mul", "lo"],
        &["mul", "wide"],
        &["mul", "hi"],
        &["div"],
        &["rem"],
        &["min"],
        &["max"],
        &["and"],
        &["or"],
        &["xor"],
    ];
    for parts in names {
        for of in ["s16", "u16", "s32", "u32", "s64", "u64"].map(of) {
            let Some(apply) = binary(parts, of) else {
                assert_eq!((parts, of.bits), (&["mul", "wide"][..], 64));
                continue;
            };
            let wide = if parts.contains(&"wide") { of.bits * 2 } else { of.bits };
            for _ in 0..100 {
                let (a, b) = (lanes(&mut random), lanes(&mut random));
                let mut out = [0; 32];
                apply(&mut out, &a, &b);
                for lane in 0..32 {
                    let want = expected(parts, of, value(of, a[lane]), value(of, b[lane]));
                    let mask = u64::MAX >> (64 - wide);
                    assert_eq!(out[lane] & mask, want as u64 & mask, "{parts:?} {of:?}");
                }
            }
        }
    }
}

#[test]
fn shifts_saturate() {
    let mut random = Random::new(2);
    for of in ["s16", "u16", "s32", "u32", "s64", "u64"].map(of) {
        for _ in 0..100 {
            let (a, count) = (lanes(&mut random), lanes(&mut random));
            let (mut left, mut right) = ([0; 32], [0; 32]);
            binary(&["shl"], of).expect("shl")(&mut left, &a, &count);
            binary(&["shr"], of).expect("shr")(&mut right, &a, &count);
            for lane in 0..32 {
                let count = (count[lane] as u32).min(64);
                let value = value(of, a[lane]);
                let mask = mask(of);
                assert_eq!(left[lane] & mask, (value << count) as u64 & mask);
                assert_eq!(right[lane] & mask, (value >> count) as u64 & mask);
            }
        }
    }
}

#[test]
fn comparisons() {
    let mut random = Random::new(3);
    for of in ["s16", "u16", "s32", "u32", "s64", "u64", "b32"].map(of) {
        for _ in 0..50 {
            let (a, b) = (lanes(&mut random), lanes(&mut random));
            for (name, holds) in [
                ("eq", [false, true, false]),
                ("ne", [true, false, true]),
                ("lt", [true, false, false]),
                ("le", [true, true, false]),
                ("gt", [false, false, true]),
                ("ge", [false, true, true]),
            ] {
                let mut out = [0; 32];
                compare(name, of).expect(name)(&mut out, &a, &b);
                for lane in 0..32 {
                    let order = value(of, a[lane]).cmp(&value(of, b[lane])) as i8 + 1;
                    assert_eq!(out[lane] != 0, holds[order as usize], "{name} {of:?}");
                }
            }
        }
    }
}

fn one(apply: Ternary, a: u64, b: u64, c: u64) -> u64 {
    let mut out = [0; 32];
    apply(&mut out, &[a; 32], &[b; 32], &[c; 32]);
    out[31]
}

#[test]
fn fields_and_permutations() {
    let field = |name, a: u64, position, length| {
        one(ternary(&["bfe"], of(name)).expect("bfe"), a, position, length) & mask(of(name))
    };
    assert_eq!(field("u32", 0xabcd_1234, 8, 12), 0xd12);
    assert_eq!(field("s32", 0xabcd_1234, 8, 12), 0xffff_fd12);
    assert_eq!(field("s32", 0xabcd_1234, 8, 13), 0xd12);
    assert_eq!(field("s32", 0xabcd_1234, 28, 12), 0xffff_fffa);
    assert_eq!(field("u32", 0xabcd_1234, 28, 12), 0xa);
    assert_eq!(field("u32", 0xabcd_1234, 40, 4), 0);
    assert_eq!(field("s64", 1 << 63, 63, 1), u64::MAX);
    assert_eq!(field("s32", 0x8000_0000, 3, 0), 0);
    let insert = |name, a: u64, b: u64, position: u64, length: u64| {
        let mut out = [0; 32];
        let apply = quaternary(&["bfi"], of(name)).expect("bfi");
        apply(&mut out, &[a; 32], &[b; 32], &[position; 32], &[length; 32]);
        out[0]
    };
    assert_eq!(insert("b32", 0xff, 0, 4, 8), 0xff0);
    assert_eq!(insert("b32", 0xff, 0x1111_1111, 28, 8), 0xf111_1111);
    assert_eq!(insert("b64", 0xff, u64::MAX, 56, 4), 0xffff_ffff_ffff_ffff);
    assert_eq!(insert("b64", 0, u64::MAX, 0, 64), 0);
    assert_eq!(insert("b32", 0xff, 7, 32, 8), 7);
    let permute = ternary(&["prmt"], of("b32")).expect("prmt");
    assert_eq!(one(permute, 0x3322_1100, 0x7766_5544, 0x7410), 0x7744_1100);
    assert_eq!(one(permute, 0x8000_0080, 0, 0x0c8b), 0x8000_ffff & 0xff_ffff | 0x8000_0000);
    let shift = ternary(&["shf", "l", "wrap"], of("b32")).expect("shf");
    assert_eq!(one(shift, 0xaabb_ccdd, 0x1122_3344, 40) & 0xffff_ffff, 0x2233_44aa);
    let dot = ternary(&["dp4a", "s32"], of("s32")).expect("dp4a");
    assert_eq!(one(dot, 0x0102_03ff, 0x0101_0102, 10) as u32, 14);
    let mut out = [0; 32];
    let logic = quaternary(&["lop3"], of("b32")).expect("lop3");
    logic(&mut out, &[0b1100; 32], &[0b1010; 32], &[0b1001; 32], &[0x96; 32]);
    assert_eq!(out[0], 0b1111, "the parity of three bits");
}

#[test]
fn counts_of_bits() {
    let one = |parts: &[&str], name, a: u64| {
        let mut out = [0; 32];
        unary(parts, of(name)).expect("known")(&mut out, &[a; 32]);
        out[5] & 0xffff_ffff
    };
    assert_eq!(one(&["popc"], "b32", 0xffff_ffff_0000_0101), 2);
    assert_eq!(one(&["clz"], "b32", 0x10), 27);
    assert_eq!(one(&["clz"], "b64", 0x10), 59);
    assert_eq!(one(&["brev"], "b32", 1), 0x8000_0000);
    assert_eq!(one(&["bfind"], "u32", 0x10), 4);
    assert_eq!(one(&["bfind"], "s32", 0xffff_ffff), 0xffff_ffff);
    assert_eq!(one(&["bfind", "shiftamt"], "u32", 0x10), 27);
    assert_eq!(one(&["abs"], "s32", 0xffff_ffff), 1);
    assert_eq!(one(&["neg"], "s32", 1), 0xffff_ffff);
    assert_eq!(one(&["not"], "b32", 1), 0xffff_fffe);
}

#[test]
fn integer_conversions() {
    let mut random = Random::new(4);
    let types = ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"].map(of);
    for to in types {
        for from in types {
            let a = lanes(&mut random);
            let mut out = [0; 32];
            convert(to, from).expect("integers")(&mut out, &a);
            for lane in 0..32 {
                let want = value(from, a[lane]) as u64 & mask(to);
                assert_eq!(out[lane] & mask(to), want, "{to:?} from {from:?}");
            }
        }
    }
}
