//! What a part does with memory.

use std::cell::Cell;

use ccl_kernels::Combine;
use ccl_transport::attach::Witness;

use super::super::parts::Of;
use super::*;

pub(in crate::engine) const SUM: Kernel =
    Kernel { datatype: DataType::Float32, combine: Combine::Sum };
const ELEMENT_BYTES: usize = size_of::<f32>();
/// Elements before and behind what a part has.
const MARGIN: usize = 3;

pub(in crate::engine) fn contribution(region: Region<'_>) -> Contribution<'_> {
    Contribution { input: Input::Here(region), factor: None }
}

pub(in crate::engine) fn place(region: Region<'_>, is_read: bool) -> PlaceOfResult<'_> {
    PlaceOfResult { output: Output::Here(region), is_read }
}

impl<L: Fn() -> Ended> Watch for L {
    fn look(&self) -> Ended {
        self()
    }

    fn failed(&self, failure: Failure) -> Box<Error> {
        panic!("{failure:?}");
    }
}

#[test]
fn what_is_written_where_it_was_read_counts_once() {
    let mut memory = [0_u8; 300];
    let whole = Region::of_mut(&mut memory);
    let inputs = [0, 100].map(|start| contribution(whole.part(start, 100)));
    let outputs = [(0, true), (200, false)];
    let outputs = outputs.map(|(start, is_read)| place(whole.part(start, 100), is_read));
    let part = Part { from: Of::All, source: 0, to: Of::All, target: 0, bytes: 100 };
    let places =
        Places { inputs: inputs.into_iter().collect(), outputs: outputs.into_iter().collect() };
    assert_eq!(places.touched_bytes(&part), 300);
}

/// What is carried out: sums, or copies of one input, into the first input itself if it is `in_place`, and into so many
/// other outputs.
#[derive(Clone, Copy, Debug)]
struct Case {
    inputs: usize,
    in_place: bool,
    others: usize,
    streams: bool,
}

/// What buffer `index` has at `at` before.
fn before(index: usize, at: usize) -> f32 {
    (at % 1000 + 1000 * index) as f32
}

/// The inputs and the other outputs, after it was done.
fn carried(case: Case) -> Vec<Vec<f32>> {
    // Several blocks and a part of one.
    let elements = 3 * STREAMED_BLOCK_BYTES / ELEMENT_BYTES + 5;
    let buffer = |index: usize| -> Vec<u8> {
        (0..elements + 2 * MARGIN).flat_map(|at| before(index, at).to_le_bytes()).collect()
    };
    let mut memory: Vec<Vec<u8>> = (0..case.inputs + case.others).map(buffer).collect();
    {
        let regions: Vec<_> = memory.iter_mut().map(|bytes| Region::of_mut(bytes)).collect();
        let (read, written) = regions.split_at(case.inputs);
        let in_place = case.in_place.then(|| place(read[0], true));
        let elsewhere = written.iter().map(|region| place(*region, false));
        let places = Places {
            inputs: read.iter().map(|region| contribution(*region)).collect(),
            outputs: in_place.into_iter().chain(elsewhere).collect(),
        };
        let (start, bytes) = (ELEMENT_BYTES * MARGIN, ELEMENT_BYTES * elements);
        let part = Part { from: Of::All, source: start, to: Of::All, target: start, bytes };
        let mut block = Scratch::default();
        carry_out(&part, SUM, places, &mut block, case.streams, || Ok(())).unwrap();
    }
    let element = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    memory.iter().map(|bytes| bytes.chunks(ELEMENT_BYTES).map(element).collect()).collect()
}

#[test]
fn results_are_where_they_belong_and_nowhere_else() {
    for (inputs, in_place, others) in
        [(2, true, 0), (2, false, 1), (2, true, 2), (2, false, 3), (1, true, 2), (1, false, 1)]
    {
        for streams in [false, true] {
            let case = Case { inputs, in_place, others, streams };
            for (index, values) in carried(case).iter().enumerate() {
                let is_output = index >= inputs || in_place && index == 0;
                for (at, value) in values.iter().enumerate() {
                    let is_result = is_output && (MARGIN..values.len() - MARGIN).contains(&at);
                    let sum = || (0..inputs).map(|input| before(input, at)).sum();
                    let expected = if is_result { sum() } else { before(index, at) };
                    assert_eq!(*value, expected, "{at} of {index}, {case:?}");
                }
            }
        }
    }
}

#[test]
fn a_fault_ends_a_part_after_a_look() {
    let mut memory = vec![0_u8; 3 * LOOK_BYTES];
    let whole = Region::of_mut(&mut memory);
    let inputs = [contribution(whole)].into_iter().collect();
    let places = Places { inputs, outputs: SmallVec::new() };
    let bytes = 3 * LOOK_BYTES;
    let part = Part { from: Of::All, source: 0, to: Of::All, target: 0, bytes };
    let looks = Cell::new(0);
    let look = || {
        looks.set(looks.get() + 1);
        if looks.get() < 2 { Ok(()) } else { Err(Error::Internal("a fault".into()).into()) }
    };
    assert!(carry_out(&part, SUM, places, &mut Scratch::default(), true, look).is_err());
    assert_eq!(looks.get(), 2);
}

#[test]
fn what_the_system_copies_is_combined_like_any_other() {
    const ELEMENTS: usize = ATTACHED_BLOCK_BYTES / ELEMENT_BYTES + 77;
    let values = |first: f32| -> Vec<f32> { (0..ELEMENTS).map(|at| first + at as f32).collect() };
    let (mut own, other) = (values(1.0), values(5.0));
    let mut results = vec![0.0_f32; ELEMENTS];
    let told = Witness::default();
    let process = told.testimony().examine().unwrap();
    let address = other.as_ptr().expose_provenance() as u64;
    let attached = Input::Attached { peer: Rank(1), process, address };
    let half = Some(u64::from(0.5_f32.to_bits()));
    {
        let own = Contribution { input: Input::Here(Region::of_mut(&mut own)), factor: half };
        let inputs = [own, Contribution { input: attached, factor: half }].into_iter().collect();
        let outputs = [place(Region::of_mut(&mut results), false)].into_iter().collect();
        let bytes = ELEMENTS * ELEMENT_BYTES;
        let part = Part { from: Of::All, source: 0, to: Of::One(Rank(0)), target: 0, bytes };
        let places = Places { inputs, outputs };
        carry_out(&part, SUM, places, &mut Scratch::default(), false, || Ok(())).unwrap();
    }
    assert!(results.iter().enumerate().all(|(at, sum)| *sum == 3.0 + at as f32));
}
