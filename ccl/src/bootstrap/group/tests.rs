//! The store's decisions, without sockets.

use super::*;

fn process(pid: u32) -> Process {
    Process { pid, host: "h".into(), identity: "i".into() }
}

fn join(size: u32, pid: u32) -> Request {
    join_without(&[], size, pid)
}

fn join_without(absent: &[u32], size: u32, pid: u32) -> Request {
    Request::Join { size, absent: absent.iter().copied().collect(), process: process(pid) }
}

/// Without members, in process `pid`, which is that of rank `rank`, and to do without those in `absent`.
fn new_group(pid: u32, rank: u32, absent: &[u32]) -> Group {
    let absent = absent.iter().copied().collect();
    Group::new(process(pid), Founder { rank, absent }, Vec::new())
}

/// Rank `rank` speaks through the peer of the same number.
fn say(group: &mut Group, rank: u32, request: Request) -> Vec<Output> {
    let mut out = Vec::new();
    let numbered = Numbered { number: 7, request };
    group.handle(Peer(u64::from(rank)), rank, numbered, &mut out).unwrap();
    out
}

fn formed(size: u32) -> Group {
    let mut group = new_group(1, 0, &[]);
    for rank in 0..size {
        say(&mut group, rank, join(size, rank));
    }
    assert!(group.is_formed());
    group
}

fn peers(numbers: &[u64]) -> Vec<Peer> {
    numbers.iter().copied().map(Peer).collect()
}

#[test]
fn the_last_rank_forms_the_group() {
    let mut group = new_group(1, 0, &[]);
    assert_eq!(say(&mut group, 1, join(2, 1)), []);
    let push = Push::Formed { host_rank: Some(1), places: Vec::new() };
    assert_eq!(say(&mut group, 0, join(2, 0)), [Output { to: peers(&[0, 1]), push }]);
}

#[test]
fn sizes_must_agree() {
    let mut group = new_group(1, 0, &[]);
    say(&mut group, 0, join(2, 0));
    let out = say(&mut group, 2, join(3, 2));
    let reason = "rank 2 (2@h) expects 3 ranks, rank 0 (0@h) expects 2 ranks".to_owned();
    let push = Push::Failed(Failure::Usage(reason));
    assert_eq!(out, [Output { to: peers(&[2, 0]), push }]);
}

#[test]
fn who_has_ended_is_not_awaited_unless_it_has_come() {
    let mut group = new_group(1, 0, &[3]);
    let gone = |ranks: &[u32]| Request::Gone { ranks: ranks.iter().copied().collect() };
    let join = |rank| join_without(&[3], 5, rank);
    say(&mut group, 0, join(0));
    say(&mut group, 2, join(2));
    let push = Push::Reply { number: 7, reply: Reply::Missing(vec![1, 4]) };
    assert_eq!(say(&mut group, 0, Request::Awaited), [Output { to: peers(&[0]), push }]);
    assert_eq!(say(&mut group, 0, gone(&[2, 3])), [], "one has come, and one is not to come");
    let ranks = [1, 4].into();
    let push = Push::Failed(Failure::Gone { ranks });
    assert_eq!(say(&mut group, 0, gone(&[1, 2, 4])), [Output { to: peers(&[0, 2]), push }]);
    assert_eq!(say(&mut group, 2, gone(&[1])), [], "it is over");
    assert_eq!(say(&mut formed(2), 0, gone(&[1])), []);
}

#[test]
fn who_is_absent_is_not_awaited() {
    let mut group = new_group(9, 1, &[0, 2]);
    assert_eq!(say(&mut group, 3, join_without(&[0, 2], 4, 3)), []);
    let mut out = Vec::new();
    group.give_up(1.0, &mut out);
    let call = "joining the communicator".to_owned();
    let push = Push::Failed(Failure::Deadline { call, seconds: 1.0, missing: vec![1] });
    assert_eq!(out, [Output { to: peers(&[3]), push }]);

    let mut group = new_group(9, 1, &[0, 2]);
    for rank in [3, 1] {
        say(&mut group, rank, join_without(&[0, 2], 4, rank));
    }
    assert!(group.is_formed());
    let gather = |value| Request::Gather { name: "g".into(), value: vec![value] };
    assert_eq!(say(&mut group, 3, gather(33)), []);
    assert_eq!(group.missing(group.gathers.get("g")), [1]);
    let push = Push::Gathered { name: "g".into(), values: vec![vec![11], vec![33]] };
    assert_eq!(say(&mut group, 1, gather(11)), [Output { to: peers(&[1, 3]), push }]);
}

#[test]
fn all_have_to_do_without_the_same_ranks_and_they_stay_away() {
    let usage = |reason: &str| Failure::Usage(reason.into());
    let text = "rank 2 (2@h) goes on without ranks 0, 4, rank 1 (9@h) without ranks 0, 3";
    let apart = Failure::Apart { text: text.into(), absent: [0, 3, 4].into() };
    let himself = usage("rank 2 of 5 (2@h) is to do without ranks 0, 2");
    let nobody = usage("rank 2 of 5 (2@h) is to do without ranks 0, 5");
    for (absent, failure) in [([0, 4], apart), ([0, 2], himself), ([0, 5], nobody)] {
        let mut group = new_group(9, 1, &[0, 3]);
        say(&mut group, 1, join_without(&[0, 3], 5, 1));
        let out = say(&mut group, 2, join_without(&absent, 5, 2));
        assert_eq!(out, [Output { to: peers(&[2, 1]), push: Push::Failed(failure) }]);
    }
}

#[test]
fn who_is_not_wanted_disturbs_nobody() {
    let mut group = new_group(9, 1, &[0, 3]);
    let turned_away = |group: &mut Group| {
        let failure = Failure::Aborted { rank: 1, reason: "it goes on without rank 3".into() };
        let push = Push::Failed(failure);
        let out = say(group, 3, join_without(&[1], 4, 3));
        assert_eq!(out, [Output { to: peers(&[3]), push }]);
        let event = ControlEvent::Aborted { rank: ccl_core::ids::Rank(3), reason: "no".into() };
        for farewell in [Request::Announce(event), Request::Leave { calls: 0 }] {
            let push = Push::Reply { number: 7, reply: Reply::Done };
            assert_eq!(say(group, 3, farewell), [Output { to: peers(&[3]), push }]);
        }
    };
    turned_away(&mut group);
    for rank in [1, 2] {
        say(&mut group, rank, join_without(&[0, 3], 4, rank));
        turned_away(&mut group);
    }
    assert!(group.is_formed());
}

#[test]
fn who_ends_a_meeting_tells_why() {
    let mut group = new_group(9, 1, &[0]);
    say(&mut group, 1, join_without(&[0], 3, 1));
    let reason = String::from("enough");
    let event = ControlEvent::Aborted { rank: ccl_core::ids::Rank(1), reason: reason.clone() };
    say(&mut group, 1, Request::Announce(event));
    let push = Push::Failed(Failure::Aborted { rank: 1, reason });
    let out = say(&mut group, 2, join_without(&[0], 3, 2));
    assert_eq!(out, [Output { to: peers(&[2]), push }]);
}

#[test]
fn a_late_claim_fails_alone() {
    let mut group = formed(2);
    let mut out = Vec::new();
    let request = join(2, 9);
    group.handle(Peer(50), 1, Numbered { number: 0, request }, &mut out).unwrap();
    let reason = "rank 1 is claimed by two processes, 1@h and 9@h".to_owned();
    let push = Push::Failed(Failure::Usage(reason));
    assert_eq!(out, [Output { to: peers(&[50]), push }]);
    assert!(group.is_formed());
}

#[test]
fn a_waiting_get_is_answered_by_the_set() {
    let mut group = formed(2);
    assert_eq!(say(&mut group, 0, Request::Get { key: "k".into() }), []);
    let out = say(&mut group, 1, Request::Set { key: "k".into(), value: vec![5] });
    let reply = |reply| Push::Reply { number: 7, reply };
    assert_eq!(
        out,
        [
            Output { to: peers(&[0]), push: reply(Reply::Value(vec![5])) },
            Output { to: peers(&[1]), push: reply(Reply::Done) }
        ]
    );
}

#[test]
fn who_leaves_ends_the_gathers_that_wait_for_it() {
    let mut group = formed(3);
    let gather = |name: &str| Request::Gather { name: name.into(), value: vec![1] };
    say(&mut group, 0, gather("waits"));
    for rank in [0, 2] {
        say(&mut group, rank, gather("has it"));
    }
    let out = say(&mut group, 2, Request::Leave { calls: 4 });
    let failed = |name: &str| Push::GatherFailed { name: name.into(), failure: departed(2) };
    assert_eq!(
        out,
        [
            Output { to: peers(&[0, 1]), push: Push::Left { rank: 2, calls: 4 } },
            Output { to: peers(&[0]), push: failed("waits") },
            Output { to: peers(&[2]), push: Push::Reply { number: 7, reply: Reply::Done } },
        ]
    );
    let out = say(&mut group, 1, gather("has it"));
    let values = vec![vec![1]; 3];
    let push = Push::Gathered { name: "has it".into(), values };
    assert_eq!(out, [Output { to: peers(&[0, 1]), push }]);
    assert_eq!(
        say(&mut group, 1, gather("later")),
        [Output { to: peers(&[1]), push: failed("later") }]
    );
    assert_eq!(group.stored_bytes, 0);
}

#[test]
fn the_end_of_a_connection_is_a_loss_unless_it_left() {
    let mut group = formed(3);
    let mut out = Vec::new();
    say(&mut group, 0, Request::Leave { calls: 0 });
    group.gone(Peer(0), 0, "closed", &mut out);
    assert_eq!(out, []);
    group.gone(Peer(1), 1, "closed", &mut out);
    let rank = ccl_core::ids::Rank(1);
    let push = Push::Event(ControlEvent::Lost { rank, reason: "closed".into(), by: None });
    assert_eq!(out, [Output { to: peers(&[2]), push }]);
}

#[test]
fn letters_go_to_those_who_are_there() {
    let mut group = formed(3);
    say(&mut group, 2, Request::Leave { calls: 0 });
    let out = say(&mut group, 0, Request::Relay { to: vec![1, 2, 9], letter: vec![5] });
    let push = Push::Relayed { from: 0, letter: vec![5] };
    assert_eq!(out, [Output { to: peers(&[1]), push }]);
    assert_eq!(say(&mut group, 2, Request::Relay { to: vec![1], letter: vec![6] }), []);
}

#[test]
fn limits_are_kept() {
    let mut group = formed(1);
    let value = vec![0; MAX_BLOB_BYTES + 1];
    let out = say(&mut group, 0, Request::Set { key: "k".into(), value });
    let refused =
        |out: &[Output]| matches!(&out[0].push, Push::Reply { reply: Reply::Refused(_), .. });
    assert!(refused(&out));
    let value = vec![0; MAX_BLOB_BYTES];
    for index in 0..MAX_STORED_BYTES / MAX_BLOB_BYTES {
        group.admit(&index.to_string(), &value, 0).unwrap();
    }
    assert!(refused(&say(&mut group, 0, Request::Set { key: "k".into(), value: vec![0] })));
}

#[test]
fn breaches_of_the_protocol_are_errors() {
    let mut group = formed(2);
    let mut out = Vec::new();
    let mut say =
        |peer, request| group.handle(Peer(peer), 0, Numbered { number: 0, request }, &mut out);
    let gather = || Request::Gather { name: "g".into(), value: vec![] };
    assert!(say(50, gather()).is_err());
    assert!(say(0, join(2, 0)).is_err());
    assert!(say(0, gather()).is_ok());
    assert!(say(0, gather()).is_err());
}

#[test]
fn a_store_that_has_no_room_or_is_given_up_fails_who_waits() {
    let mut starved = new_group(9, 0, &[]);
    say(&mut starved, 1, join(3, 1));
    let mut out = Vec::new();
    starved.starve("too many", &mut out);
    starved.starve("too many", &mut out);
    let call = "let ranks into the store in process 9@h".to_owned();
    let failure = Failure::System { call, cause: "too many".into() };
    assert_eq!(out, [Output { to: peers(&[1]), push: Push::Failed(failure) }]);

    let mut joined = new_group(0, 0, &[]);
    say(&mut joined, 0, join(3, 0));
    let mut out = Vec::new();
    joined.abandon(&mut out);
    assert_eq!(out, [], "its rank has come");
    // Rank 0 may have come from another process, by mistake.
    for rank in [1, 0] {
        let mut abandoned = new_group(9, 0, &[]);
        say(&mut abandoned, rank, join(3, rank));
        let mut out = Vec::new();
        abandoned.abandon(&mut out);
        let reason = "its process 9@h gave up before it joined".to_owned();
        let push = Push::Failed(Failure::Aborted { rank: 0, reason });
        assert_eq!(out, [Output { to: peers(&[u64::from(rank)]), push }]);
    }
}

#[test]
fn a_group_is_settled_when_its_founder_knows() {
    let failed = || {
        let mut group = new_group(7, 0, &[]);
        say(&mut group, 1, join(3, 8));
        say(&mut group, 2, join(4, 9));
        assert!(!group.is_gathering() && !group.is_settled());
        group
    };
    let mut group = failed();
    say(&mut group, 0, join(3, 8));
    assert!(!group.is_settled(), "that is another process");
    say(&mut group, 0, join(3, 7));
    assert!(group.is_settled());
    let mut group = failed();
    group.abandon(&mut Vec::new());
    assert!(group.is_settled(), "it will not come");
    assert!(formed(2).is_settled());
}
