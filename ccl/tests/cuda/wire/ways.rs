//! Which way calls between hosts go, and where their slots are.

use ccl::DataType;
use ccl::cuda::Paths;

use super::{member, ready, ready_with};
use crate::calls::changing;
use crate::ranks::{processes_where, processes_with};
use crate::{Member, all_reduce, download, words};

/// Three sums, and which way they went.
pub(crate) fn three_sums(member: &Member) -> (Paths, Option<String>) {
    let data = member.upload(&words([1; 900]));
    for _ in 0..3 {
        member.cuda.enqueue(all_reduce(&data), &member.stream).unwrap();
    }
    member.stream.synchronise().unwrap();
    member.cuda.wait().unwrap();
    assert!(download(&data) == words([i64::from(member.size()).pow(3); 900]));
    member.cuda.paths()
}

const INT: [DataType; 1] = [DataType::Int64];

#[test]
fn one_rank_whose_setting_is_off_turns_it_off_for_all() {
    const TEST: &str = "wire::ways::one_rank_whose_setting_is_off_turns_it_off_for_all";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let way = ("R2CCL_CUDA_NETWORK", if rank == 1 { "0" } else { "1" });
        let (paths, reason) = three_sums(&ready_with(rank, size, &id, (&INT, &[way])));
        assert_eq!(paths, Paths { host: 3, ..Paths::default() });
        assert_eq!(reason.as_deref(), Some("rank 1: R2CCL_CUDA_NETWORK is 0"));
    });
}

#[test]
fn slots_are_where_each_rank_can_have_them() {
    const TEST: &str = "wire::ways::slots_are_where_each_rank_can_have_them";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let way = ("R2CCL_CUDA_NETWORK", if rank == 1 { "pinned" } else { "1" });
        let (paths, reason) = three_sums(&ready_with(rank, size, &id, (&INT, &[way])));
        let expected = Paths { wire: 3, gpudirect: 3 * u64::from(rank == 0), ..Paths::default() };
        assert_eq!(paths, expected);
        assert_eq!(reason.as_deref(), (rank == 1).then_some("R2CCL_CUDA_NETWORK is pinned"));
    });
}

fn pinned_where(test: &str, dmabuf: &str, because: &str) {
    processes_where(test, 2, &[], &[("FAKECUDA_DMABUF", dmabuf)], |rank, size, id| {
        let (paths, reason) = three_sums(&ready(rank, size, &id, &INT));
        assert_eq!(paths, Paths { wire: 3, ..Paths::default() });
        let reason = reason.unwrap();
        assert!(reason.contains(because), "{reason}");
    });
}

#[test]
fn a_device_that_exports_nothing_has_pinned_slots() {
    let because = "the device exports no dma-buf";
    pinned_where("wire::ways::a_device_that_exports_nothing_has_pinned_slots", "0", because);
}

#[test]
fn memory_that_a_nic_refuses_has_pinned_slots() {
    let because = "register memory with a software device";
    pinned_where("wire::ways::memory_that_a_nic_refuses_has_pinned_slots", "sealed", because);
}

#[test]
fn ranks_of_which_two_share_a_host_go_through_it() {
    const TEST: &str = "wire::ways::ranks_of_which_two_share_a_host_go_through_it";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let host = ("R2CCL_HOST_ID", if rank < 2 { "one" } else { "another" });
        let (paths, reason) = three_sums(&ready_with(rank, size, &id, (&INT, &[host])));
        assert_eq!(paths, Paths { host: 3, ..Paths::default() });
        assert!(reason.unwrap().starts_with("3 ranks are on 2 hosts"));
    });
}

#[test]
fn ranks_with_more_rails_than_others_use_as_many() {
    const TEST: &str = "wire::ways::ranks_with_more_rails_than_others_use_as_many";
    processes_with(TEST, 2, &[], |rank, size, id| {
        let rails = ["127.0.91.1,127.0.91.2,127.0.91.3", "127.0.91.4"][rank as usize];
        let rails = ("R2CCL_RAILS", rails);
        let (paths, reason) = three_sums(&ready_with(rank, size, &id, (&INT, &[rails])));
        assert_eq!((paths.wire, paths.gpudirect, reason), (3, 3, None));
    });
}

#[test]
fn queue_pairs_without_repair_do_as_well_as_long_as_their_rails_live() {
    const TEST: &str =
        "wire::ways::queue_pairs_without_repair_do_as_well_as_long_as_their_rails_live";
    processes_with(TEST, 3, &[], |rank, size, id| {
        let repair = ("R2CCL_HOT_REPAIR", "0");
        let (paths, _) = three_sums(&ready_with(rank, size, &id, (&INT, &[repair])));
        assert_eq!(paths.wire, 3);
    });
}

#[test]
fn the_way_changes_between_calls_without_harm() {
    const TEST: &str = "wire::ways::the_way_changes_between_calls_without_harm";
    processes_with(TEST, 3, &[], |rank, size, id| {
        changing(&member(rank, size, &id, &[]), |paths| paths.wire);
    });
}
