//! The public API between threads of one process, over shared memory: every thread is a rank.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    reason = "small numbers; what a helper of a test unwraps fails the test"
)]

mod attached;
mod ended;
mod grown;
mod memory;
mod refused;
mod renounced;
mod shrunk;
mod slices;
mod splits;

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use ccl::{
    Collective, Communicator, Config, DataType, Error, Group, Ongoing, Operation, Ragged, Rank,
    ReduceOp, Reduction, Region, Request, Settings, UniqueId,
};
use ccl_transport::clock;

/// No test takes longer than this, or it hangs.
const DEADLINE: Duration = Duration::from_secs(60);

fn config() -> Config {
    let mut config = Config { timeout: Some(Duration::from_secs(20)), ..Config::default() };
    config.settings.bootstrap_timeout = Duration::from_secs(20);
    config
}

/// A configuration with a bootstrap timeout.
fn patient(bootstrap_timeout: Duration) -> Config {
    let mut config = config();
    config.settings.bootstrap_timeout = bootstrap_timeout;
    config
}

/// Runs `body` as every rank of a group and returns the results in order of rank.
fn ranks<T: Send + 'static>(
    size: u32,
    config: &Config,
    body: impl Fn(Communicator) -> T + Send + Clone + 'static,
) -> Vec<T> {
    let id = UniqueId::create(&config.settings).unwrap();
    let (sender, receiver) = mpsc::channel();
    for rank in 0..size {
        let (id, config, body, sender) = (id, config.clone(), body.clone(), sender.clone());
        thread::spawn(move || {
            let communicator = Communicator::create(&id, rank, size, &config).unwrap();
            sender.send((rank, body(communicator))).unwrap();
        });
    }
    let mut results: Vec<(u32, T)> =
        (0..size).map(|_| receiver.recv_timeout(DEADLINE).unwrap()).collect();
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

/// What ended it; waits for that.
fn end_of(communicator: &Communicator) -> Error {
    let tries = DEADLINE.as_millis();
    let heard = (0..tries).find_map(|_| {
        clock::sleep(Duration::from_millis(1));
        communicator.async_error()
    });
    heard.unwrap()
}

#[test]
fn slices_of_all_shapes() {
    for size in [1, 2, 3, 5] {
        ranks(size, &config(), move |communicator| {
            let me = communicator.rank().0;
            for length in [1usize, 7, 1000, 100_000] {
                let own: Vec<i64> = (0..length).map(|i| i as i64 * 3 + i64::from(me)).collect();
                let mut sum = vec![0i64; length];
                communicator.all_reduce(&own, &mut sum, ReduceOp::Sum).unwrap();
                let ranks = i64::from(size);
                let expected = |i: usize| i as i64 * 3 * ranks + ranks * (ranks - 1) / 2;
                assert!((0..length).all(|i| sum[i] == expected(i)));

                let mut all = vec![0i64; length * size as usize];
                communicator.all_gather(&own, &mut all).unwrap();
                for (rank, block) in all.chunks(length).enumerate() {
                    assert!((0..length).all(|i| block[i] == i as i64 * 3 + rank as i64));
                }
                let mut block = vec![0i64; length];
                communicator.reduce_scatter(&all, &mut block, ReduceOp::Max).unwrap();
                assert!((0..length).all(|i| block[i] == i as i64 * 3 + i64::from(me)));

                let mut data = own.clone();
                communicator.broadcast(&mut data, Rank(size - 1)).unwrap();
                assert!((0..length).all(|i| data[i] == i as i64 * 3 + ranks - 1));

                let mut exchanged = vec![0i64; length * size as usize];
                communicator.all_to_all(&all, &mut exchanged).unwrap();
                for block in exchanged.chunks(length) {
                    assert!((0..length).all(|i| block[i] == i as i64 * 3 + i64::from(me)));
                }
            }
            communicator.finalize().unwrap();
        });
    }
}

/// Where the blocks of rank `me` lie in one buffer, those it sends and those it receives: block `i` is
/// `count(i, j)` long, from `i` to `j`.
fn blocks(me: u32, size: u32, count: impl Fn(u32, u32) -> usize) -> Ragged {
    let packed = |counts: Vec<usize>| {
        let place = |end: &mut usize, count: usize| {
            *end += count;
            Some((count, *end - count))
        };
        counts.into_iter().scan(0, place).collect()
    };
    let send = packed((0..size).map(|to| count(me, to)).collect());
    let receive = packed((0..size).map(|from| count(from, me)).collect());
    Ragged { send, receive }
}

#[test]
fn an_uneven_exchange_in_place() {
    let value = |from: u32, to: u32, at: usize| (from * 100 + to) * 1_000_000 + at as u32;
    // Blocks that take each other's places, and blocks that lie across others.
    let even = |from: u32, to: u32| 20_000 * ((from + to) % 3) as usize + (from * to) as usize;
    let across = |from: u32, to: u32| 10_000 * from as usize + 7 * to as usize;
    for count in [even, across] {
        for size in [1, 2, 3, 5] {
            ranks(size, &config(), move |communicator| {
                let me = communicator.rank().0;
                let counts = blocks(me, size, count);
                let ends = counts.send.iter().chain(&counts.receive).map(|(count, at)| count + at);
                let mut data = vec![u32::MAX; ends.max().unwrap()];
                for (to, (count, start)) in (0..).zip(&counts.send) {
                    let block = data[*start..start + count].iter_mut().enumerate();
                    block.for_each(|(at, place)| *place = value(me, to, at));
                }
                let (datatype, memory) = (DataType::Uint32, Region::of_mut(&mut data));
                let (received, input, output) = (counts.receive.clone(), memory, memory);
                let exchange = Operation::AllToAllV { datatype, counts, input, output };
                communicator.run(exchange).unwrap();
                for (from, (count, start)) in (0..).zip(received) {
                    let mut block = data[start..start + count].iter().enumerate();
                    assert!(block.all(|(at, got)| *got == value(from, me, at)), "{from} to {me}");
                }
                communicator.finalize().unwrap();
            });
        }
    }
}

#[test]
fn messages_in_a_group_meet_in_any_order() {
    ranks(4, &config(), |communicator| {
        let me = communicator.rank().0;
        let sent: Vec<Vec<u32>> = (0..4).map(|to| vec![me * 10 + to; 50_000]).collect();
        let mut received = vec![vec![0u32; 50_000]; 4];
        let mut group = Group::default();
        for (to, data) in (0..).zip(&sent) {
            let operation = Operation::Send { peer: Rank(to), data: Region::of(data) };
            group.add(&communicator, operation);
        }
        for (from, data) in (0..).zip(&mut received) {
            let operation = Operation::Receive { peer: Rank(from), data: Region::of_mut(data) };
            group.add(&communicator, operation);
        }
        group.run().unwrap();
        for (from, data) in (0..).zip(&received) {
            assert!(data.iter().all(|value| *value == from * 10 + me));
        }
    });
}

/// Each rank sends to the next one, receives from the one before, and sums, in this order: 0, 1, 2 or 1, 2, 0 or 2, 0, 1.
#[test]
fn messages_of_a_group_may_stand_anywhere_among_its_collectives() {
    ranks(3, &config(), |communicator| {
        let me = communicator.rank().0;
        // More than there is room for on the way.
        let (sent, mut received) = (vec![me; 1 << 20], vec![9; 1 << 20]);
        let (mut sum, mut mean) = ([me], [3 * me]);
        let request = |op| Request {
            collective: Collective::AllReduce,
            count: 1,
            datatype: DataType::Uint32,
            reduction: Reduction::Builtin(op),
            root: Rank(0),
        };
        let send = Operation::Send { peer: Rank((me + 1) % 3), data: Region::of(&sent) };
        let receive =
            Operation::Receive { peer: Rank((me + 2) % 3), data: Region::of_mut(&mut received) };
        let all_reduce = |op, all| Operation::Collective {
            request: request(op),
            input: Some(all),
            output: Some(all),
        };
        let sum_all = all_reduce(ReduceOp::Sum, Region::of_mut(&mut sum));
        let mean_all = all_reduce(ReduceOp::Avg, Region::of_mut(&mut mean));
        let mut operations = [send, receive, sum_all];
        operations.rotate_left(me as usize);
        let mut group = Group::default();
        for operation in operations {
            group.add(&communicator, operation);
        }
        group.add(&communicator, mean_all);
        group.run().unwrap();
        assert!(received.iter().all(|from| *from == (me + 2) % 3));
        assert_eq!((sum, mean), ([3], [3]));
    });
}

#[test]
fn a_group_has_as_many_messages_as_anybody_wants() {
    const MESSAGES: u32 = 70_000;
    ranks(2, &config(), |communicator| {
        let peer = Rank(1 - communicator.rank().0);
        let sent: Vec<u32> = (0..MESSAGES).collect();
        let mut received = vec![u32::MAX; sent.len()];
        let mut group = Group::default();
        for data in sent.chunks(1) {
            group.add(&communicator, Operation::Send { peer, data: Region::of(data) });
        }
        for data in received.chunks_mut(1) {
            group.add(&communicator, Operation::Receive { peer, data: Region::of_mut(data) });
        }
        group.run().unwrap();
        assert_eq!(sent, received);
    });
}

#[test]
fn a_mean_of_integers_leaves_who_is_not_the_root_alone() {
    ranks(3, &config(), |communicator| {
        let request = Request {
            collective: Collective::Reduce,
            count: 4,
            datatype: DataType::Int32,
            reduction: Reduction::Builtin(ReduceOp::Avg),
            root: Rank(1),
        };
        let mut values = [30, 60, 90, 120];
        let all = Region::of_mut(&mut values);
        let operation = Operation::Collective { request, input: Some(all), output: Some(all) };
        communicator.run(operation).unwrap();
        assert_eq!(values, [30, 60, 90, 120]);
    });
}

#[test]
fn an_algorithm_that_does_not_exist_makes_no_communicator() {
    let mut config = config();
    config.settings = Settings::parse([("R2CCL_ALGO", "allreduce:tow_shot")]).unwrap().settings;
    let id = UniqueId::create(&config.settings).unwrap();
    let refused = Communicator::create(&id, 0, 1, &config).unwrap_err();
    let Error::InvalidArgument(text) = refused else { unreachable!("{refused}") };
    assert!(text.contains("tow_shot") && text.contains("two_shot"), "{text}");
}

#[test]
fn of_a_group_that_cannot_be_started_nothing_is() {
    let [good, failed] = [(); 2].map(|()| {
        let id = UniqueId::create(&config().settings).unwrap();
        Communicator::create(&id, 0, 1, &config()).unwrap()
    });
    failed.abort("for this test");
    let [input, output] = [7, 8].map(|value| Region::of_mut(Box::leak(Box::new([value; 1]))));
    let request = Request {
        collective: Collective::AllReduce,
        count: 1,
        datatype: DataType::Uint32,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    };
    let mut group = Group::default();
    group.add(&good, Operation::Collective { request, input: Some(input), output: Some(output) });
    group.add(&failed, Operation::Barrier);
    assert!(matches!(group.start(), Err(Error::Aborted { .. })));
    good.barrier().unwrap();
    let mut bytes = [0; 4];
    ccl_kernels::copy(output.source(0, 4), (&mut bytes[..]).into());
    assert_eq!(u32::from_ne_bytes(bytes), 8);
}

#[test]
fn started_calls_run_in_order() {
    ranks(3, &config(), |communicator| {
        let request = |count| Request {
            collective: Collective::AllReduce,
            count,
            datatype: DataType::Float32,
            reduction: Reduction::Builtin(ReduceOp::Sum),
            root: Rank(0),
        };
        let buffers: Vec<&'static mut [f32]> =
            (1..20usize).map(|i| Vec::leak(vec![i as f32; i * 1000])).collect();
        let mut pending = Vec::new();
        for (i, buffer) in (1..).zip(buffers) {
            let count = buffer.len();
            let region = Region::of_mut(buffer);
            let (input, output) = (Some(region), Some(region));
            let operation = Operation::Collective { request: request(count), input, output };
            pending.push((i, region, communicator.start(operation).unwrap()));
        }
        for (i, region, pending) in pending {
            pending.wait().unwrap();
            assert_eq!(pending.test(), Some(Ok(())));
            let mut first = [0f32];
            ccl_kernels::copy(region.source(0, 4), Region::of_mut(&mut first).target(0, 4));
            assert_eq!(first[0], 3.0 * i as f32);
        }
    });
}

#[test]
fn mismatched_counts_are_an_error_that_names_both_ranks_everywhere() {
    let errors = ranks(3, &config(), |communicator| {
        let length = if communicator.rank().0 == 1 { 12 } else { 10 };
        communicator.barrier().unwrap();
        let mut data = vec![1f32; length];
        communicator.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap_err()
    });
    for error in errors {
        let Error::Disagreement { rank, other, ref call, ref other_call, .. } = error else {
            panic!("{error}")
        };
        assert!(rank == Rank(1) || other == Rank(1), "{error}");
        assert!(format!("{call} {other_call}").contains("count=12"), "{error}");
    }
}

#[test]
fn what_fails_after_a_call_does_not_fail_the_call() {
    let (enter, entered) = mpsc::channel();
    let entered = Arc::new(Mutex::new(entered));
    let results = ranks(2, &config(), move |communicator| {
        if communicator.rank() == Rank(1) {
            entered.lock().unwrap().recv_timeout(DEADLINE).unwrap();
            let result = communicator.barrier();
            communicator.abort("later");
            return result;
        }
        let mut group = Group::default();
        group.add(&communicator, Operation::Barrier);
        // The first time that rank 0 looks around, rank 1 comes, leaves and fails.
        let watch = || {
            enter.send(()).ok();
            let tries = DEADLINE.as_millis();
            let heard = (0..tries).find(|_| {
                clock::sleep(Duration::from_millis(1));
                communicator.async_error().is_some()
            });
            heard.is_none().then(|| "nothing was heard".to_owned())
        };
        let result = group.run_watched(&watch);
        assert!(communicator.barrier().is_err(), "the next one does");
        result
    });
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[test]
fn mismatched_types_operations_and_kinds_are_errors() {
    type Call = fn(&Communicator, u32) -> Result<(), Error>;
    let calls: [Call; 4] = [
        |c, me| match me {
            0 => c.all_reduce_in_place(&mut [1f32; 8], ReduceOp::Sum),
            _ => c.all_reduce_in_place(&mut [1i32; 8], ReduceOp::Sum),
        },
        |c, me| {
            let op = if me == 0 { ReduceOp::Max } else { ReduceOp::Min };
            c.all_reduce_in_place(&mut [1f32; 8], op)
        },
        |c, me| match me {
            0 => c.barrier(),
            _ => c.all_reduce_in_place(&mut [1f32; 8], ReduceOp::Sum),
        },
        |c, me| c.all_reduce_in_place(&mut vec![1f32; me as usize * 8], ReduceOp::Sum),
    ];
    for call in calls {
        let results = ranks(2, &config(), move |communicator| {
            let result = call(&communicator, communicator.rank().0);
            result.and_then(|()| communicator.barrier())
        });
        for result in results {
            assert!(matches!(result, Err(Error::Disagreement { .. })), "{result:?}");
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_a_deadline_that_names_it() {
    let mut config = config();
    config.timeout = Some(Duration::from_millis(300));
    let errors = ranks(3, &config, |communicator| {
        if communicator.rank().0 == 2 {
            // Keeps the communicator alive until the others have given up.
            while communicator.async_error().is_none() {
                thread::yield_now();
            }
            return communicator.async_error().unwrap();
        }
        communicator.all_reduce_in_place(&mut [1f32; 8], ReduceOp::Sum).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(error.to_string().contains("rank"), "{error}");
    }
}

#[test]
fn a_rank_that_left_is_an_error_that_names_it() {
    let errors = ranks(3, &config(), |communicator| {
        communicator.barrier().unwrap();
        if communicator.rank().0 == 1 {
            communicator.finalize().unwrap();
            return communicator.barrier().unwrap_err();
        }
        communicator.barrier().unwrap_err()
    });
    assert!(matches!(errors[0], Error::PeerLost { rank: Rank(1), .. }), "{}", errors[0]);
    assert!(matches!(errors[1], Error::InvalidUsage(_)), "{}", errors[1]);
    assert!(matches!(errors[2], Error::PeerLost { rank: Rank(1), .. }), "{}", errors[2]);
}

#[test]
fn a_watch_ends_the_calls_of_all_ranks() {
    let ended = ranks(2, &config(), |communicator| {
        let me = communicator.rank();
        let mut group = Group::default();
        // Both wait for messages that nobody sends.
        let mut data = [0u8; 8];
        let (peer, data) = (Rank(1 - me.0), Region::of_mut(&mut data));
        group.add(&communicator, Operation::Receive { peer, data });
        group.run_watched(&|| (me == Rank(0)).then(|| "enough".to_owned()))
    });
    let aborted = Err(Error::Aborted { rank: Rank(0), reason: "enough".into() });
    assert_eq!(ended, [aborted.clone(), aborted]);
}

#[test]
fn an_abort_ends_the_calls_of_all_ranks() {
    let errors = ranks(3, &config(), |communicator| {
        let met = communicator.barrier();
        if communicator.rank().0 == 0 {
            communicator.abort("enough");
        }
        // The abort may come before the others know that all have met.
        met.and_then(|()| communicator.barrier()).unwrap_err()
    });
    for error in errors {
        assert_eq!(error, Error::Aborted { rank: Rank(0), reason: "enough".into() });
    }
}

#[test]
fn impossible_arguments_are_refused_and_harm_nothing() {
    ranks(2, &config(), |communicator| {
        let refused = communicator.broadcast(&mut [1u8; 4], Rank(2)).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        let refused = communicator.send(&[1u8], Rank(7)).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        let refused = communicator.all_gather(&[1u8; 4], &mut [0u8; 7]).unwrap_err();
        assert!(matches!(refused, Error::InvalidArgument(_)), "{refused}");
        let mut data = [1u32; 100];
        let region = Region::of_mut(&mut data);
        let request = Request {
            collective: Collective::AllReduce,
            count: 50,
            datatype: DataType::Uint32,
            reduction: Reduction::Builtin(ReduceOp::Sum),
            root: Rank(0),
        };
        let mut counts = blocks(communicator.rank().0, 2, |_, _| 3);
        counts.receive[communicator.rank().index()].0 = 2;
        let (datatype, output) = (DataType::Uint32, region.part(200, 200));
        let exchange =
            Operation::AllToAllV { datatype, counts, input: region.part(0, 200), output };
        let refused = communicator.run(exchange).unwrap_err().to_string();
        assert!(refused.contains("sends 3 elements to itself and receives 2"), "{refused}");
        let shifted = region.part(40, region.bytes() - 40);
        let overlapping =
            Operation::Collective { request, input: Some(region), output: Some(shifted) };
        let refused = communicator.run(overlapping).unwrap_err();
        assert!(refused.to_string().contains("overlap"), "{refused}");
        communicator.all_reduce_in_place(&mut [1f32; 3], ReduceOp::Sum).unwrap();
    });
}
