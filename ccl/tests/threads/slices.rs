//! Every call on slices, with a root in the middle, and its forms in place.

use super::*;

/// Two elements for every rank, which name the rank `from` that has them and the one, `to`, they are for.
fn blocks(size: u32, from: u32) -> Vec<u32> {
    (0..size).flat_map(|to| [from * 100 + to * 10, from * 100 + to * 10 + 1]).collect()
}

/// Block `block` of what `rank` has.
fn block(size: u32, rank: u32, block: u32) -> Vec<u32> {
    blocks(size, rank)[block as usize * 2..][..2].to_vec()
}

fn sum(size: u32) -> Vec<u32> {
    (0..size * 2).map(|i| (0..size).map(|rank| blocks(size, rank)[i as usize]).sum()).collect()
}

#[test]
fn roots_get_and_give() {
    for size in [1, 2, 3, 5] {
        ranks(size, &config(), move |communicator| {
            let (me, root) = (communicator.rank().0, Rank(size / 2));
            let at_root = me == root.0;
            let own = blocks(size, me);
            let empty = Vec::new();

            let mut reduced = if at_root { vec![0; own.len()] } else { empty.clone() };
            communicator.reduce(&own, &mut reduced, ReduceOp::Sum, root).unwrap();
            assert_eq!(reduced, if at_root { sum(size) } else { empty.clone() });
            let mut data = own.clone();
            communicator.reduce_in_place(&mut data, ReduceOp::Sum, root).unwrap();
            assert_eq!(data, if at_root { sum(size) } else { own.clone() });

            let mine = block(size, me, 0);
            let mut all = if at_root { vec![0; own.len()] } else { empty.clone() };
            communicator.gather(&mine, &mut all, root).unwrap();
            let firsts: Vec<u32> = (0..size).flat_map(|rank| block(size, rank, 0)).collect();
            assert_eq!(all, if at_root { firsts } else { empty.clone() });

            let given = if at_root { &own } else { &empty };
            let mut got = [0; 2];
            communicator.scatter(given, &mut got, root).unwrap();
            assert_eq!(got.as_slice(), block(size, root.0, me));
        });
    }
}

/// Empty, or of a length that does not fit.
#[test]
fn what_only_the_root_needs_is_left_alone_elsewhere() {
    ranks(3, &config(), move |communicator| {
        let (root, own) = (Rank(1), [1u32, 2]);
        let at_root = communicator.rank() == root;
        for length in [0, 1, 2, 9] {
            let place = |needed: usize| vec![7u32; if at_root { needed } else { length }];
            let untouched = place(0);

            let mut reduced = place(2);
            communicator.reduce(&own, &mut reduced, ReduceOp::Sum, root).unwrap();
            assert_eq!(reduced, if at_root { vec![3, 6] } else { untouched.clone() });

            let mut all = place(6);
            communicator.gather(&own, &mut all, root).unwrap();
            assert_eq!(all, if at_root { [own; 3].concat() } else { untouched.clone() });

            let (given, mut got) = (place(6), [0; 2]);
            communicator.scatter(&given, &mut got, root).unwrap();
            assert_eq!(got, [7; 2]);
        }
    });
}

#[test]
fn blocks_change_places_in_place() {
    for size in [1, 2, 3, 5] {
        ranks(size, &config(), move |communicator| {
            let me = communicator.rank().0;
            let own = blocks(size, me);
            let from_all: Vec<u32> = (0..size).flat_map(|rank| block(size, rank, me)).collect();

            let mut data = own.clone();
            communicator.all_gather_in_place(&mut data).unwrap();
            let diagonal: Vec<u32> = (0..size).flat_map(|rank| block(size, rank, rank)).collect();
            assert_eq!(data, diagonal);

            let mut data = own.clone();
            communicator.reduce_scatter_in_place(&mut data, ReduceOp::Sum).unwrap();
            let place = me as usize * 2..me as usize * 2 + 2;
            assert_eq!(data[place.clone()], sum(size)[place]);

            let mut data = own.clone();
            communicator.all_to_all_in_place(&mut data).unwrap();
            assert_eq!(data, from_all);

            // The same, with each block two elements further from the one before.
            let counts: Vec<_> = (0..size as usize).map(|rank| (2, rank * 2)).collect();
            let apart: Vec<_> = (0..size as usize).map(|rank| (2, rank * 4)).collect();
            let mut received = vec![7; own.len() * 2];
            let ragged = Ragged { send: counts, receive: apart };
            communicator.all_to_all_v(&own, &mut received, ragged).unwrap();
            let expected = from_all.chunks(2).flat_map(|pair| [pair[0], pair[1], 7, 7]);
            assert_eq!(received, expected.collect::<Vec<u32>>());
        });
    }
}

#[test]
fn contributions_are_scaled() {
    let bits = |scalar: f32| u64::from(scalar.to_bits());
    ranks(3, &config(), move |communicator| {
        let half = Reduction::PreMulSum { datatype: DataType::Float32, scalar: bits(0.5) };
        let mut data = [1.0f32, 2.0];
        communicator.all_reduce_in_place(&mut data, half).unwrap();
        assert_eq!(data, [1.5, 3.0]);
    });
}

#[test]
fn lengths_that_do_not_fit_are_refused_before_anything_moves() {
    ranks(2, &config(), move |communicator| {
        let root = communicator.rank();
        let refused = |result: Result<(), Error>, needed: &str| {
            let Err(Error::InvalidArgument(text)) = result else { panic!("{result:?}") };
            assert!(text.contains(needed), "{text}");
        };
        let (short, mut long) = ([1u8, 2, 3], [0u8; 4]);
        refused(communicator.reduce(&short, &mut long, ReduceOp::Sum, root), "3 are needed");
        refused(communicator.gather(&short, &mut long, root), "6 are needed");
        refused(communicator.scatter(&short, &mut long, root), "8 are needed");
        refused(communicator.all_gather_in_place(&mut [0u8; 3]), "multiple of 2");
        refused(
            communicator.reduce_scatter_in_place(&mut [0u8; 3], ReduceOp::Sum),
            "multiple of 2",
        );
        refused(communicator.all_to_all_in_place(&mut [0u8; 3]), "multiple of 2");
        communicator.barrier().unwrap();
    });
}
