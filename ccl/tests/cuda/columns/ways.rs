//! Which way calls of several ranks on each of several hosts go.

use ccl::DataType;
use ccl::cuda::Paths;

use super::{ready, stranger};
use crate::calls::changing;
use crate::ranks::processes_with;
use crate::wire::{ready_with, three_sums};

const INT: [DataType; 1] = [DataType::Int64];

#[test]
fn hosts_that_differ_go_through_the_host_and_say_why() {
    const TEST: &str = "columns::ways::hosts_that_differ_go_through_the_host_and_say_why";
    processes_with(TEST, 5, &[], |rank, size, id| {
        let (paths, reason) = three_sums(&ready((rank, size, 3), &id, (&INT, &[])));
        assert_eq!(paths, Paths { host: 3, ..Paths::default() });
        let expected = "5 ranks are on 2 hosts: 3 on that of rank 0, 2 on that of rank 3";
        assert_eq!(reason.as_deref(), Some(expected));
    });
}

fn refused(test: &str, setting: &str, because: &str) {
    processes_with(test, 4, &[], |rank, size, id| {
        let way = (setting, if rank == 2 { "0" } else { "1" });
        let (paths, reason) = three_sums(&ready((rank, size, 2), &id, (&INT, &[way])));
        assert_eq!(paths, Paths { host: 3, ..Paths::default() });
        assert_eq!(reason.as_deref(), Some(because));
    });
}

#[test]
fn one_rank_without_a_network_turns_it_off_for_all() {
    let test = "columns::ways::one_rank_without_a_network_turns_it_off_for_all";
    refused(test, "R2CCL_CUDA_NETWORK", "rank 2: R2CCL_CUDA_NETWORK is 0");
}

#[test]
fn one_rank_that_maps_nothing_turns_it_off_for_all() {
    let test = "columns::ways::one_rank_that_maps_nothing_turns_it_off_for_all";
    refused(test, "R2CCL_CUDA_P2P", "rank 2: R2CCL_CUDA_P2P is 0");
}

#[test]
fn slots_are_where_each_rank_can_have_them() {
    const TEST: &str = "columns::ways::slots_are_where_each_rank_can_have_them";
    processes_with(TEST, 4, &[], |rank, size, id| {
        let host = ["one", "one", "another", "another"][rank as usize];
        let way = if rank == 1 { "pinned" } else { "1" };
        let more = [("R2CCL_HOST_ID", host), ("R2CCL_CUDA_NETWORK", way)];
        let (paths, reason) = three_sums(&ready_with(rank, size, &id, (&INT, &more)));
        assert_eq!((paths.columns, paths.gpudirect), (3, 3 * u64::from(rank != 1)));
        assert_eq!(reason.as_deref(), (rank == 1).then_some("R2CCL_CUDA_NETWORK is pinned"));
    });
}

#[test]
fn the_way_changes_between_calls_without_harm() {
    const TEST: &str = "columns::ways::the_way_changes_between_calls_without_harm";
    processes_with(TEST, 4, &[], |rank, size, id| {
        changing(&stranger((rank, size, 2), &id), |paths| paths.columns);
    });
}
