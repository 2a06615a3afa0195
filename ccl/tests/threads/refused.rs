//! Calls that are refused before anything moves.

use ccl::{
    Collective, DataType, Error, Group, Operation, Rank, ReduceOp, Reduction, Region, Request,
};

use super::{config, ranks};

fn all_reduce(reduction: Reduction) -> Request {
    let (collective, datatype) = (Collective::AllReduce, DataType::Float32);
    Request { collective, count: 4, datatype, reduction, root: Rank(0) }
}

#[test]
fn of_a_group_with_a_message_to_oneself_that_nobody_receives_nothing_is_done() {
    ranks(2, &config(), |communicator| {
        let me = communicator.rank();
        let mut values = [1f32; 4];
        let all = Region::of_mut(&mut values);
        let request = all_reduce(Reduction::Builtin(ReduceOp::Sum));
        let sum = Operation::Collective { request, input: Some(all), output: Some(all) };
        let mut group = Group::default();
        group.add(&communicator, sum);
        for peer in [Rank(1 - me.0), me] {
            group.add(&communicator, Operation::Send { peer, data: Region::of(&[7u8; 8]) });
        }
        let refused = group.run().unwrap_err();
        assert!(matches!(refused, Error::InvalidUsage(_)), "{refused}");
        assert!(refused.to_string().contains("[8] bytes to itself"), "{refused}");
        assert_eq!(values, [1f32; 4]);
        communicator.all_reduce_in_place(&mut values, ReduceOp::Sum).unwrap();
        assert_eq!(values, [2f32; 4]);
        let send = Operation::Send { peer: me, data: Region::of(&[7u8; 8]) };
        assert!(communicator.predict(&send).is_ok(), "it may be one of a group");
        let data = Region::of_mut(Box::leak(Box::new([7u8; 8])));
        let refused = communicator.start(Operation::Send { peer: me, data });
        assert!(matches!(refused, Err(Error::InvalidUsage(_))), "{refused:?}");
    });
}

#[test]
fn a_scalar_of_another_type_is_refused() {
    ranks(2, &config(), |communicator| {
        let mut values = [1f32; 4];
        let all = Region::of_mut(&mut values);
        let scaled = |datatype, scalar| {
            let request = all_reduce(Reduction::PreMulSum { datatype, scalar });
            communicator.run(Operation::Collective { request, input: Some(all), output: Some(all) })
        };
        let refused = scaled(DataType::Float16, 0x3c00).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        assert!(refused.to_string().contains("is half, elements are float"), "{refused}");
        scaled(DataType::Float32, 3f32.to_bits().into()).unwrap();
        assert_eq!(values, [6f32; 4]);
    });
}
