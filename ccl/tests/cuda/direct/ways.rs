//! Which way calls go, and whose memory is mapped.

use std::fs;

use ccl::cuda::Paths;
use ccl::{Collective, DataType, Error, OperationOn, ReduceOp};

use super::{
    SOME, assert_direct, config, member, newest_kernels, prepared, quarrel_about_operations,
    request,
};
use crate::calls::changing;
use crate::ranks::{processes_where, processes_with};
use crate::{Member, all_reduce, download, skip, words};

#[test]
fn the_way_changes_between_calls_without_harm() {
    processes_with(
        "direct::ways::the_way_changes_between_calls_without_harm",
        3,
        &[],
        |rank, size, id| {
            let member = member(rank as usize % 2, (rank, size), &id, "1");
            changing(&member, |paths| paths.push);
        },
    );
}
/// Nothing of CUDA is asked by the thread for which streams wait: a driver that loads kernels may answer only when they have come past.
#[test]
fn kernels_are_loaded_while_many_calls_are_under_way() {
    processes_where(
        "direct::ways::kernels_are_loaded_while_many_calls_are_under_way",
        2,
        &[],
        &[("FAKECUDA_LATE", "1")],
        |rank, size, id| {
            let member = member(rank as usize, (rank, size), &id, "1");
            let data = member.upload(&words([1; 900]));
            let calls = 60;
            for _ in 0..calls {
                member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            }
            member.stream.synchronise().unwrap();
            assert!(download(&data) == words([2i64.pow(calls); 900]));
        },
    );
}

/// A rank that is ahead of another one waits in the driver, whose queue is full, nearly all the time. Those that meet do not wait for it.
#[test]
fn kernels_are_loaded_while_a_rank_waits_for_room_in_its_stream() {
    processes_where(
        "direct::ways::kernels_are_loaded_while_a_rank_waits_for_room_in_its_stream",
        2,
        &[],
        &[("FAKECUDA_QUEUE", "32")],
        |rank, size, id| {
            let member = member(rank as usize, (rank, size), &id, "1");
            let member = prepared(member, &[DataType::Int64], &[]);
            let data = member.upload(&words([1; 900]));
            let others = [DataType::Float32, DataType::Uint8, DataType::Int32, DataType::Float64];
            let spare = member.upload(&words([0; 900]));
            for (round, datatype) in (1..).zip(others) {
                let request = request(Collective::AllReduce, 900, datatype, ReduceOp::Sum);
                let region = Some(spare.region());
                let operation = OperationOn::Collective { request, input: region, output: region };
                member.cuda.enqueue(operation, &member.stream).unwrap();
                for _ in 0..60 {
                    member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
                    if rank == 0 {
                        member.stream.synchronise().unwrap();
                    }
                }
                member.stream.synchronise().unwrap();
                let expected = 1i64.checked_shl(60 * round).unwrap_or(0);
                assert!(download(&data) == words([expected; 900]), "rank {rank}, {datatype:?}");
            }
            member.cuda.wait().unwrap();
        },
    );
}

#[test]
fn memory_that_was_freed_is_not_told_again() {
    processes_with(
        "direct::ways::memory_that_was_freed_is_not_told_again",
        2,
        &[],
        |rank, size, id| {
            let member =
                prepared(member(rank as usize, (rank, size), &id, "1"), &[DataType::Int64], &[]);
            let count = 8192;
            let (mut reused, mut last) = (0, 0);
            for round in 0..12i64 {
                let data = member.upload(&words(vec![round + i64::from(rank); count]));
                let address = data.region().address();
                reused += u32::from(address == last);
                last = address;
                let before = member.cuda.paths().0;
                // Sometimes the others have the buffer of this round, sometimes only that of an earlier one.
                let is_shown = round % 3 == 0;
                if is_shown {
                    member.cuda.prepare(&[], &[data.region()]).unwrap();
                }
                member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
                member.stream.synchronise().unwrap();
                let paths = assert_direct(&member, before);
                let mapped = paths.mapped_buffers - before.mapped_buffers;
                assert!(!is_shown || mapped == 2, "round {round}: {paths:?}");
                assert!(
                    download(&data) == words(vec![2 * round + 1; count]),
                    "round {round}, rank {rank}"
                );
            }
            assert!(reused > 0, "the driver gives addresses again");
        },
    );
}

#[test]
fn buffers_become_known_by_themselves() {
    processes_with("direct::ways::buffers_become_known_by_themselves", 2, &[], |rank, size, id| {
        let member =
            prepared(member(rank as usize, (rank, size), &id, "1"), &[DataType::Int64], &[]);
        let data = member.upload(&words([0; 2000]));
        for _ in 0..200 {
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.stream.synchronise().unwrap();
        }
        let paths = member.cuda.paths().0;
        assert!(paths.mapped_buffers > 0, "{paths:?}");
    });
}

#[test]
fn the_setting_turns_it_off_for_all() {
    processes_with("direct::ways::the_setting_turns_it_off_for_all", 3, &[], |rank, size, id| {
        let member =
            member(rank as usize % 2, (rank, size), &id, if rank == 1 { "0" } else { "1" });
        let member = prepared(member, &SOME, &[]);
        let data = member.upload(&words([1; 900]));
        for _ in 0..3 {
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        }
        member.stream.synchronise().unwrap();
        assert!(download(&data) == words([27; 900]));
        let (paths, reason) = member.cuda.paths();
        assert_eq!(paths, Paths { host: 3, ..Paths::default() });
        assert_eq!(reason.as_deref(), Some("rank 1: R2CCL_CUDA_P2P is 0"));
    });
}

#[test]
fn kernels_that_one_rank_lacks_are_used_by_none() {
    processes_with(
        "direct::ways::kernels_that_one_rank_lacks_are_used_by_none",
        2,
        &[],
        |rank, size, id| {
            let mut config = config("1");
            config.settings.cuda_kernels = config.settings.cuda_kernels.filter(|_| rank == 0);
            let member = prepared(Member::with(0, (rank, size), &id, &config), &SOME, &[]);
            let data = member.upload(&words([1; 900]));
            member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
            member.stream.synchronise().unwrap();
            assert!(download(&data) == words([2; 900]));
            let (paths, reason) = member.cuda.paths();
            assert_eq!(paths.host, 1, "{paths:?}");
            let reason = reason.unwrap();
            if reason.contains("there is no libnvrtc") {
                assert!(reason.starts_with("rank 1: no kernels for"), "{reason}");
            } else {
                skip("kernels that cannot be had: NVRTC is installed");
            }
        },
    );
}

#[test]
fn kernels_that_one_rank_lacks_end_no_comparison_of_other_calls() {
    const TEST: &str = "direct::ways::kernels_that_one_rank_lacks_end_no_comparison_of_other_calls";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let (some, kernels) = (tempfile::tempdir().unwrap(), newest_kernels("int64"));
        fs::copy(&kernels, some.path().join(kernels.file_name().unwrap())).unwrap();
        let mut config = config("1");
        if rank == 1 {
            config.settings.cuda_kernels = Some(some.path().into());
        }
        let member = Member::with(rank as usize, (rank, size), &id, &config);
        let member = prepared(member, &SOME, &[]);
        let data = member.upload(&words([1; 90]));
        let enqueue = |op| {
            let request = request(Collective::AllReduce, 90, DataType::Int64, op);
            let (input, output) = (Some(data.region()), Some(data.region()));
            let operation = OperationOn::Collective { request, input, output };
            member.cuda.enqueue(operation, &member.stream)
        };
        enqueue(ReduceOp::Sum).unwrap();
        let (paths, reason) = member.cuda.paths();
        let Some(reason) = reason else {
            return skip("kernels that cannot be had: NVRTC is installed");
        };
        assert!(reason.starts_with("rank 1: no kernels for"), "{reason}");
        assert_eq!((paths.low_latency, paths.host), (1, 0), "{paths:?}");
        let error = quarrel_about_operations(&member, rank, enqueue);
        member.stream.synchronise().unwrap();
        assert!(matches!(error, Error::Disagreement { sequence: 2, .. }), "{error}");
    });
}
