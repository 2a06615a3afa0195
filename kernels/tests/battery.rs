//! One battery for all implementations: each must give the oracle's bits, for every type and
//! operation, size, alignment, number of operands and way to be in place, and touch nothing else.

mod inputs;

use std::sync::Once;

use ccl_core::datatype::DataType;
use ccl_kernels::{
    Combine, Implementation, Kernel, Region, Source, Target, copy, copy_streaming, reciprocal,
};

use inputs::{GUARD_BYTES, Random, SIZES, bits, bytes, delicate, elements, oracle, reduced, skip};

const MISALIGNMENTS: [usize; 5] = [0, 1, 3, 4, 7];
const OPERAND_COUNTS: [usize; 8] = [1, 2, 3, 4, 5, 8, 9, 17];
/// Memory in which every operand and the target have a place of their own, between guard bytes.
struct Arena {
    memory: Vec<u8>,
    bytes: usize,
    places: Vec<usize>,
    target: usize,
}

impl Arena {
    fn new(random: &mut Random, datatype: DataType, count: usize, operands: usize) -> Self {
        let bytes = count * datatype.bytes();
        let stride = (bytes + 2 * GUARD_BYTES).next_multiple_of(64);
        let mut memory = vec![0xa5; stride * (operands + 1) + GUARD_BYTES];
        let mut place = |index: usize| stride * index + GUARD_BYTES + random.pick(&MISALIGNMENTS);
        let places: Vec<usize> = (0..operands).map(&mut place).collect();
        let target = place(operands);
        for &place in &places {
            memory[place..place + bytes].copy_from_slice(&elements(random, datatype, count));
        }
        Self { memory, bytes, places, target }
    }

    /// Reduces, to the place of the target or of an operand.
    fn reduce(&mut self, by: Implementation, kernel: Kernel, in_place: Option<usize>) {
        // SAFETY: the memory outlives the call and is touched through the region only.
        let region = unsafe { Region::new(self.memory.as_mut_ptr(), self.memory.len()) };
        let operands: Vec<Source<'_>> =
            self.places.iter().map(|&place| region.source(place, self.bytes)).collect();
        let target = in_place.map_or(self.target, |operand| self.places[operand]);
        by.reduce(kernel, &operands, region.target(target, self.bytes));
    }
}

/// All but the oracle. What cannot run here is reported once.
fn implementations() -> Vec<Implementation> {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        for name in Implementation::unavailable() {
            skip(&format!("kernels {name}: this processor cannot run them"));
        }
    });
    Implementation::available().split_off(1)
}

/// Every implementation does to a copy of the arena what the oracle does.
fn compare(random: &mut Random, kernel: Kernel, count: usize, operands: usize) {
    let arena = Arena::new(random, kernel.datatype, count, operands);
    let place = random.below(operands);
    let first = random.below(operands.min(2));
    for in_place in [None, Some(first), Some(place)] {
        let run = |by: Implementation| {
            let mut copy =
                Arena { memory: arena.memory.clone(), places: arena.places.clone(), ..arena };
            copy.reduce(by, kernel, in_place);
            copy.memory
        };
        let expected = run(oracle());
        for by in implementations() {
            let memory = run(by);
            let wrong = memory.iter().zip(&expected).position(|(is, should)| is != should);
            let at = wrong.map(|byte| byte as isize - arena.target as isize);
            assert_eq!(
                at,
                None,
                "{} {kernel:?}, {count} elements, {operands} operands, in place {in_place:?}",
                by.name()
            );
        }
    }
}

#[test]
fn every_implementation_reduces_as_the_oracle() {
    let mut random = Random(2026);
    for datatype in DataType::ALL {
        for combine in Combine::ALL {
            for count in SIZES {
                for operands in OPERAND_COUNTS {
                    compare(&mut random, Kernel { datatype, combine }, count, operands);
                }
            }
        }
    }
}

/// Requires `expected` of every implementation, the oracle too, in every lane of a vector.
fn require(datatype: DataType, combine: Combine, operands: &[u64], expected: u64) {
    const LANES: usize = 71;
    let kernel = Kernel { datatype, combine };
    let vectors: Vec<Vec<u8>> =
        operands.iter().map(|&operand| bytes(datatype, &[operand; LANES])).collect();
    for by in Implementation::available() {
        let result = bits(datatype, &reduced(by, kernel, &vectors));
        let name = by.name();
        assert_eq!(result, [expected; LANES], "{name} {kernel:?} of {operands:x?}");
    }
}

#[test]
fn every_pair_of_narrow_floats() {
    let one_byte: Vec<u64> = (0..256).collect();
    let two_bytes: Vec<u64> = (0..65536).collect();
    let partners = |datatype| {
        if datatype == DataType::Float16 || datatype == DataType::Bfloat16 {
            (two_bytes.clone(), delicate(datatype))
        } else {
            (one_byte.clone(), one_byte.clone())
        }
    };
    for datatype in DataType::ALL.into_iter().filter(|t| t.is_float() && t.bytes() < 4) {
        let (all, others) = partners(datatype);
        let left = bytes(datatype, &all);
        for (other, combine) in others.iter().flat_map(|&b| Combine::ALL.map(|c| (b, c))) {
            let operands = [left.clone(), bytes(datatype, &vec![other; all.len()])];
            let kernel = Kernel { datatype, combine };
            let expected = reduced(oracle(), kernel, &operands);
            for by in implementations() {
                let same = reduced(by, kernel, &operands) == expected;
                assert!(same, "{} {kernel:?} with {other:#x}", by.name());
            }
        }
    }
}

/// The bits of: one NaN, another NaN, the NaN of results, infinity (if any), one, minus one.
#[rustfmt::skip]
const FLOATS: [(DataType, [u64; 6]); 6] = [
    (DataType::Float16, [0x7d01, 0xffff, 0x7e00, 0x7c00, 0x3c00, 0xbc00]),
    (DataType::Bfloat16, [0x7f81, 0xffff, 0x7fc0, 0x7f80, 0x3f80, 0xbf80]),
    (DataType::Float32, [0x7f80_0001, 0xffff_ffff, 0x7fc0_0000, 0x7f80_0000, 0x3f80_0000, 0xbf80_0000]),
    (DataType::Float64, [
        0x7ff0_0000_0000_0001, 0xffff_ffff_ffff_ffff, 0x7ff8_0000_0000_0000,
        0x7ff0_0000_0000_0000, 0x3ff0_0000_0000_0000, 0xbff0_0000_0000_0000,
    ]),
    (DataType::Float8E4m3, [0x7f, 0xff, 0x7f, 0x7e, 0x38, 0xb8]),
    (DataType::Float8E5m2, [0x7d, 0xff, 0x7e, 0x7c, 0x3c, 0xbc]),
];

#[test]
fn a_nan_gives_the_one_nan() {
    for (datatype, [nan, other, result, infinity, one, _]) in FLOATS {
        for combine in Combine::ALL {
            for operands in [[nan, one], [one, nan], [other, infinity], [nan, other], [other, nan]]
            {
                require(datatype, combine, &operands, result);
            }
            require(datatype, combine, &[one, one, one, one, nan, one, one], result);
            require(datatype, combine, &[other, one, one], result);
        }
    }
}

#[test]
fn zeros_are_ordered_by_sign() {
    for (datatype, [.., one, minus_one]) in FLOATS {
        let minus_zero = 1 << (8 * datatype.bytes() - 1);
        for operands in [[0, minus_zero], [minus_zero, 0]] {
            require(datatype, Combine::Max, &operands, 0);
            require(datatype, Combine::Min, &operands, minus_zero);
            require(datatype, Combine::Sum, &operands, 0);
            require(datatype, Combine::Prod, &operands, minus_zero);
        }
        require(datatype, Combine::Max, &[minus_zero, minus_zero, minus_one], minus_zero);
        require(datatype, Combine::Min, &[0, one, 0, 0, 0], 0);
    }
}

#[test]
fn narrow_floats_are_rounded_once() {
    // One, and so many quarters of its last place that rounding each sum would lose them all.
    for (datatype, one, quarter, count, result) in [
        (DataType::Bfloat16, 0x3f80, 0x3b00, 16, 0x3f84),
        (DataType::Bfloat16, 0x3f80, 0x3b00, 4, 0x3f81),
        (DataType::Float16, 0x3c00, 0x0c00, 16, 0x3c04),
        (DataType::Float16, 0x3c00, 0x0c00, 8, 0x3c02),
        (DataType::Float8E4m3, 0x38, 0x10, 7, 0x3a),
        (DataType::Float8E5m2, 0x3c, 0x2c, 4, 0x3d),
    ] {
        let operands = [vec![one], vec![quarter; count]].concat();
        require(datatype, Combine::Sum, &operands, result);
    }
    // Halfway between two numbers: the even one.
    require(DataType::Bfloat16, Combine::Sum, &[0x3f80, 0x3b80], 0x3f80);
    require(DataType::Bfloat16, Combine::Sum, &[0x3f81, 0x3b80], 0x3f82);
}

#[test]
fn overflow_is_infinite_or_saturates() {
    require(DataType::Float16, Combine::Sum, &[0x7bff, 0x7bff], 0x7c00);
    require(DataType::Float16, Combine::Prod, &[0xfbff, 0x7bff], 0xfc00);
    require(DataType::Bfloat16, Combine::Sum, &[0xff7f, 0xff7f], 0xff80);
    require(DataType::Float8E4m3, Combine::Sum, &[0x7e, 0x7e], 0x7e);
    require(DataType::Float8E4m3, Combine::Prod, &[0xfe, 0x7e], 0xfe);
    require(DataType::Float8E5m2, Combine::Sum, &[0x7b, 0x7b], 0x7b);
    require(DataType::Float8E5m2, Combine::Max, &[0x7c, 0x3c], 0x7b);
    require(DataType::Float8E5m2, Combine::Sum, &[0x7c, 0xfc], 0x7e);
}

#[test]
fn integers_wrap() {
    require(DataType::Int8, Combine::Sum, &[0x7f, 1], 0x80);
    require(DataType::Uint8, Combine::Prod, &[0xff, 0xff], 1);
    require(DataType::Int32, Combine::Prod, &[0xffff_ffff, 5], 0xffff_fffb);
    require(DataType::Uint64, Combine::Sum, &[u64::MAX, 3], 2);
    require(DataType::Int64, Combine::Max, &[u64::MAX, 3], 3);
    require(DataType::Uint64, Combine::Max, &[u64::MAX, 3], u64::MAX);
}

#[test]
fn division_truncates_toward_zero() {
    let mut random = Random(7);
    let divisors = [1, 2, 3, 5, 7, 8, 255, 256, 1 << 31, 0x1_0000_0003, u64::MAX];
    for datatype in DataType::ALL.into_iter().filter(|datatype| !datatype.is_float()) {
        for (divisor, count) in divisors.into_iter().flat_map(|d| SIZES.map(|s| (d, s))) {
            let values = elements(&mut random, datatype, count);
            let divided = |by: Implementation| {
                let mut padded = [vec![0xa5; 3], values.clone(), vec![0xa5; GUARD_BYTES]].concat();
                by.divide(datatype, divisor, (&mut padded[3..3 + values.len()]).into());
                padded
            };
            let expected = divided(oracle());
            for by in implementations() {
                assert!(divided(by) == expected, "{} {datatype:?} / {divisor}", by.name());
            }
        }
    }
    let mut minus_seven = (-7_i32).to_le_bytes();
    ccl_kernels::divide(DataType::Int32, 2, minus_seven.as_mut_slice().into());
    assert_eq!(i32::from_le_bytes(minus_seven), -3);
}

#[test]
fn scaling_is_multiplication() {
    let mut random = Random(11);
    for datatype in DataType::ALL {
        for (scalar, count) in delicate(datatype).into_iter().flat_map(|d| SIZES.map(|s| (d, s))) {
            let source = elements(&mut random, datatype, count);
            let scalars = bytes(datatype, &vec![scalar; count]);
            let product = Kernel { datatype, combine: Combine::Prod };
            let expected = reduced(oracle(), product, &[source.clone(), scalars]);
            for by in Implementation::available() {
                let mut target = vec![0; source.len()];
                let from = Source::from(source.as_slice());
                by.scale(datatype, scalar, from, target.as_mut_slice().into());
                assert!(target == expected, "{} {datatype:?} * {scalar:#x}", by.name());
                // SAFETY: the copy outlives the call and is touched through the region only.
                let here = unsafe { Region::new(target.as_mut_ptr(), target.len()) };
                copy(source.as_slice().into(), here.target(0, here.bytes()));
                let whole = here.source(0, here.bytes());
                by.scale(datatype, scalar, whole, here.target(0, here.bytes()));
                assert!(target == expected, "{} {datatype:?} in place", by.name());
            }
        }
    }
}

#[test]
fn reciprocals_are_the_nearest_numbers() {
    assert_eq!(reciprocal(DataType::Float64, 3), (1.0_f64 / 3.0).to_bits());
    assert_eq!(reciprocal(DataType::Float32, 3), (1.0_f32 / 3.0).to_bits().into());
    for n in 1..=1000 {
        let single = 1.0 / n as f32;
        assert_eq!(reciprocal(DataType::Float16, n), half::f16::from_f32(single).to_bits().into());
        assert_eq!(
            reciprocal(DataType::Bfloat16, n),
            half::bf16::from_f32(single).to_bits().into()
        );
        let e4m3 = float8::F8E4M3::from_f32(single).to_bits();
        assert_eq!(reciprocal(DataType::Float8E4m3, n), e4m3.into());
        let e5m2 = float8::F8E5M2::from_f32(single).to_bits();
        assert_eq!(reciprocal(DataType::Float8E5m2, n), e5m2.into());
    }
}

#[test]
fn copies_arrive_and_touch_nothing_else() {
    let mut random = Random(3);
    let sizes = [0, 1, 63, 64, 65, 127, 128, 129, 1000, 4097, 100_000];
    let starts = MISALIGNMENTS.map(|at| GUARD_BYTES + at);
    let copies: [fn(Source<'_>, Target<'_>); 2] = [copy, copy_streaming];
    for (size, copy) in sizes.into_iter().flat_map(|size| copies.map(|copy| (size, copy))) {
        for (from, to) in starts.into_iter().flat_map(|from| starts.map(|to| (from, to))) {
            let source = elements(&mut random, DataType::Uint8, from + size);
            let mut target = vec![0xa5; to + size + GUARD_BYTES];
            copy(source[from..].into(), (&mut target[to..to + size]).into());
            assert!(target[to..to + size] == source[from..], "{size} bytes from {from} to {to}");
            assert!(target[..to].iter().chain(&target[to + size..]).all(|&byte| byte == 0xa5));
        }
    }
}

#[test]
fn a_copy_in_place_or_overlapping_is_right() {
    for copy in [copy, copy_streaming] {
        let mut memory: Vec<u8> = (0..=255).cycle().take(5000).collect();
        let expected = [&memory[..100], &memory[..4900]].concat();
        // SAFETY: the memory outlives the calls and is touched through the region only.
        let region = unsafe { Region::new(memory.as_mut_ptr(), memory.len()) };
        copy(region.source(0, 5000), region.target(0, 5000));
        copy(region.source(0, 4900), region.target(100, 4900));
        assert_eq!(memory, expected);
    }
}

/// Runs `work` while the thread rounds towards zero and takes subnormals for zeros.
#[cfg(target_arch = "x86_64")]
fn in_other_modes<R>(work: impl FnOnce() -> R) -> R {
    use std::arch::asm;

    let (mut before, mut after, other) = (0u32, 0u32, 0xffc0u32);
    // SAFETY: the modes of this thread are back before anything but `work` computes.
    unsafe {
        asm!("stmxcsr [{}]", "ldmxcsr [{}]", in(reg) &raw mut before, in(reg) &raw const other)
    };
    let result = work();
    // SAFETY: these are the modes from before.
    unsafe {
        asm!("stmxcsr [{}]", "ldmxcsr [{}]", in(reg) &raw mut after, in(reg) &raw const before)
    };
    assert_eq!(after & !0x3f, other, "the modes of the caller are its own again");
    result
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_modes_of_the_caller_do_not_matter() {
    let mut random = Random(2027);
    for datatype in DataType::ALL {
        for combine in Combine::ALL {
            let kernel = Kernel { datatype, combine };
            for operands in [2, 3, 9] {
                let arena = Arena::new(&mut random, datatype, 1000, operands);
                let special = delicate(datatype);
                let pairs = special.iter().flat_map(|a| special.iter().map(move |b| (*a, *b)));
                let (left, right): (Vec<u64>, Vec<u64>) = pairs.unzip();
                let vectors = [bytes(datatype, &left), bytes(datatype, &right)];
                for by in Implementation::available() {
                    let run = || {
                        let (memory, places) = (arena.memory.clone(), arena.places.clone());
                        let mut copy = Arena { memory, places, ..arena };
                        copy.reduce(by, kernel, None);
                        (copy.memory, reduced(by, kernel, &vectors))
                    };
                    let is_same = run() == in_other_modes(run);
                    assert!(is_same, "{} {kernel:?}, {operands} operands", by.name());
                }
            }
        }
    }
    for datatype in DataType::ALL.into_iter().filter(|datatype| datatype.is_float()) {
        for n in 1..1000 {
            assert_eq!(in_other_modes(|| reciprocal(datatype, n)), reciprocal(datatype, n));
        }
    }
}

#[test]
fn partly_overlapping_operands_harm_nobody_else() {
    for by in Implementation::available() {
        for (datatype, operands) in
            DataType::ALL.into_iter().flat_map(|datatype| [2, 3, 9].map(|count| (datatype, count)))
        {
            let mut memory = vec![0xa5; 9000];
            // SAFETY: the memory outlives the call and is touched through the region only.
            let region = unsafe { Region::new(memory.as_mut_ptr(), memory.len()) };
            let sources = vec![region.source(101, 8000); operands];
            let kernel = Kernel { datatype, combine: Combine::Sum };
            by.reduce(kernel, &sources, region.target(104, 8000));
            let outside = memory[..104].iter().chain(&memory[8104..]);
            assert!(outside.copied().all(|byte| byte == 0xa5), "{} {datatype:?}", by.name());
        }
    }
}

#[test]
fn nothing_may_be_at_a_null_pointer() {
    // SAFETY: no byte of an empty region is ever touched.
    let nothing = unsafe { Region::new(std::ptr::null_mut(), 0) };
    let (source, target) = (nothing.source(0, 0), || nothing.target(0, 0));
    for by in Implementation::available() {
        for datatype in DataType::ALL {
            let kernel = Kernel { datatype, combine: Combine::Sum };
            for operands in OPERAND_COUNTS {
                by.reduce(kernel, &vec![source; operands], target());
            }
            by.scale(datatype, 1, source, target());
        }
        by.divide(DataType::Int32, 2, target());
    }
    copy(source, target());
    copy_streaming(source, target());
}

#[test]
#[should_panic(expected = "3 bytes are not whole elements of type bfloat16")]
fn half_an_element_is_refused() {
    ccl_kernels::scale(DataType::Bfloat16, 1, [0; 3][..].into(), (&mut [0; 3][..]).into());
}

#[test]
#[should_panic(expected = "lengths differ")]
fn operands_of_another_length_are_refused() {
    let kernel = Kernel { datatype: DataType::Uint8, combine: Combine::Sum };
    let operands = [[0; 4][..].into(), [0; 3][..].into()];
    ccl_kernels::reduce(kernel, &operands, (&mut [0; 4][..]).into());
}
