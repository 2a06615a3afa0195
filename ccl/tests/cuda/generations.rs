//! Communicators that are made of others, with devices: calls on them go the same ways.

use std::process;

use ccl::cuda::Paths;
use ccl::{Communicator, Config, DataType, Error, Ongoing, Rank, UniqueId};

use super::direct::prepared;
use super::ranks::processes_with;
use super::{Member, all_collectives, all_reduce, config, direct, download, wire, words};

/// How a call on memory of devices is done.
#[derive(Clone, Copy)]
enum Way {
    Host,
    Kernels,
    Nics,
}

impl Way {
    fn config(self, rank: u32) -> Config {
        match self {
            Self::Host => config(1 << 20),
            Self::Kernels => direct::config("1"),
            Self::Nics => wire::config(rank, &[]),
        }
    }

    fn member(self, rank: u32, size: u32, id: &UniqueId) -> Member {
        let member = Member::with(rank as usize % 2, (rank, size), id, &self.config(rank));
        prepared(member, &[DataType::Int64], &[])
    }

    fn calls(self, paths: Paths) -> u64 {
        match self {
            Self::Host => paths.host,
            Self::Kernels => paths.push,
            Self::Nics => paths.wire,
        }
    }

    /// A sum of all, this way.
    fn sum(self, member: &Member) {
        let before = self.calls(member.cuda.paths().0);
        let data = member.upload(&words([1; 2000]));
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
        member.stream.synchronise().unwrap();
        member.cuda.wait().unwrap();
        assert!(download(&data) == words([member.size().into(); 2000]));
        let (paths, reason) = member.cuda.paths();
        assert_eq!(self.calls(paths), before + 1, "{paths:?}: {reason:?}");
    }

    /// A member of what was made, which works.
    fn of(self, made: &Communicator, device: usize) -> Member {
        let member = prepared(Member::over(made, device), &[DataType::Int64], &[]);
        self.sum(&member);
        all_collectives(&member);
        member
    }
}

/// What has ended a communicator while it sums.
fn end_of(member: &Member) -> Error {
    let data = member.upload(&words([1; 2000]));
    loop {
        let enqueued = member.cuda.enqueue(all_reduce(&data), &member.stream);
        member.stream.synchronise().unwrap();
        if let Err(error) = enqueued.and_then(|()| member.cuda.wait()) {
            return error;
        }
    }
}

fn who_is_left_goes_on(test: &str, way: Way) {
    processes_with(test, 3, &[1], |rank, size, id| {
        let member = way.member(rank, size, &id);
        way.sum(&member);
        if rank == 1 {
            for other in [0, 2] {
                member.host().receive(&mut [0u8], Rank(other)).unwrap();
            }
            process::abort();
        }
        // It is there until it knows that this rank has its sum, and may be gone before this rank knows that.
        let _ = member.host().send(&[0u8], Rank(1));
        let error = end_of(&member);
        assert!(matches!(error, Error::PeerLost { rank: Rank(1), .. }), "{error}");
        let left = member.host().shrink(&[Rank(1)], Ongoing::Finish, None).unwrap();
        // What has failed may go before or after.
        let member = (rank == 0).then_some(member);
        let left = way.of(&left, rank as usize % 2);
        drop(member);
        way.sum(&left);
    });
}

fn new_ranks_come(test: &str, way: Way) {
    processes_with(test, 3, &[], |rank, size, id| {
        let all = way.member(rank, size, &id);
        let (is_new, device) = (rank == 2, rank as usize % 2);
        let pair = all.host().split((!is_new).then_some(0), 0, None).unwrap();
        let pair = pair.map(|pair| way.of(&pair, device));

        let growth = pair.as_ref().filter(|_| rank == 0).map(|pair| pair.host().growth_id());
        let mut growth = growth.map_or([0; 128], |id| id.unwrap().to_bytes());
        all.host().broadcast(&mut growth, Rank(0)).unwrap();
        let grown = match &pair {
            Some(pair) => pair.host().grow(size, None),
            None => {
                let id = UniqueId::from_bytes(&growth).unwrap();
                Communicator::create(&id, rank, size, &way.config(rank))
            }
        };
        let grown = way.of(&grown.unwrap(), device);
        pair.iter().for_each(|pair| way.sum(pair));
        way.sum(&grown);
    });
}

#[test]
fn who_is_left_goes_on_through_the_host() {
    who_is_left_goes_on("generations::who_is_left_goes_on_through_the_host", Way::Host);
}

#[test]
fn who_is_left_goes_on_by_kernels() {
    who_is_left_goes_on("generations::who_is_left_goes_on_by_kernels", Way::Kernels);
}

#[test]
fn who_is_left_goes_on_by_nics() {
    who_is_left_goes_on("generations::who_is_left_goes_on_by_nics", Way::Nics);
}

#[test]
fn new_ranks_come_through_the_host() {
    new_ranks_come("generations::new_ranks_come_through_the_host", Way::Host);
}

#[test]
fn new_ranks_come_by_kernels() {
    new_ranks_come("generations::new_ranks_come_by_kernels", Way::Kernels);
}

#[test]
fn new_ranks_come_by_nics() {
    new_ranks_come("generations::new_ranks_come_by_nics", Way::Nics);
}
