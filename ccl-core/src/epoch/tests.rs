//! The promises under all faults, each protection missed when it is taken away, and some transcripts.

use super::simulation::{Reached, Sabotage, run};
use super::{Agreement, Ballot, Input, Message, Output, Row};
use crate::ids::{Epoch, Rank, Timestamp};
use crate::topology::RailCapacity;

const SEEDS: u64 = 2_000;

#[test]
fn ranks_agree_whatever_happens() {
    let mut all = Reached::default();
    for seed in 0..SEEDS {
        let reached = run(seed, None).unwrap_or_else(|violation| panic!("{violation}"));
        all.calls += reached.calls;
        all.switches += reached.switches;
        all.deaths += reached.deaths;
        all.deaths_under_way += reached.deaths_under_way;
        all.departures += reached.departures;
        all.lost += reached.lost;
    }
    println!("{SEEDS} seeds: {all:?}");
    assert!(all.calls > 10 * SEEDS && all.switches > SEEDS && all.lost > SEEDS, "{all:?}");
    assert!(all.deaths_under_way > SEEDS / 20 && all.departures > SEEDS / 20, "{all:?}");
}

#[test]
fn every_protection_is_missed() {
    for sabotage in [
        Sabotage::NobodyStops,
        Sabotage::OneIsNotAsked,
        Sabotage::OldAnswersCount,
        Sabotage::OldCommitsAreForgotten,
        Sabotage::OldCoordinatorsAreObeyed,
        Sabotage::NothingIsRepeated,
        Sabotage::LeaversKeepTheirCount,
    ] {
        let noticed = (0..SEEDS).find_map(|seed| run(seed, Some(sabotage)).err());
        let violation = noticed.unwrap_or_else(|| panic!("{sabotage:?} was not noticed"));
        println!("{sabotage:?}: {violation}");
    }
}

fn row(version: u64) -> Row {
    Row { version, rails: vec![RailCapacity { bytes_per_second: 1e9, up: false }] }
}

fn handle(agreement: &mut Agreement, input: Input) -> Vec<Output> {
    let mut out = Vec::new();
    agreement.handle(Timestamp(0), input, &mut out);
    out
}

fn heard(agreement: &mut Agreement, from: u32, message: Message) -> Vec<Output> {
    handle(agreement, Input::Heard { from: Rank(from), message })
}

#[test]
fn a_rank_alone_agrees_with_itself() {
    let mut alone = Agreement::new(Rank(0), 1);
    assert_eq!(handle(&mut alone, Input::Rails(row(1))), [Output::Hold]);
    let out = handle(&mut alone, Input::Held { last: 7 });
    let [Output::Switch(commit), Output::Release] = &out[..] else { panic!("{out:?}") };
    assert_eq!((commit.epoch, commit.first), (Epoch(1), 8));
    assert_eq!(alone.deadline(), None);
}

#[test]
fn a_change_takes_four_messages_for_each_rank() {
    let mut low = Agreement::new(Rank(0), 2);
    let mut high = Agreement::new(Rank(1), 2);
    let out = handle(&mut high, Input::Rails(row(1)));
    let [Output::Send { message, .. }] = &out[..] else { panic!("{out:?}") };

    let ballot = Ballot { coordinator: 0, round: 1 };
    let prepare = Message::Prepare { ballot, known: Epoch(0) };
    let out = heard(&mut low, 1, message.clone());
    let send = Output::Send { to: vec![Rank(1)], message: prepare.clone() };
    assert_eq!(out, [send, Output::Hold]);
    assert_eq!(handle(&mut low, Input::Held { last: 3 }), []);
    assert_eq!(low.waiting_for(), [Rank(1)]);

    assert_eq!(heard(&mut high, 0, prepare), [Output::Hold]);
    let out = handle(&mut high, Input::Held { last: 5 });
    let [Output::Send { message, .. }] = &out[..] else { panic!("{out:?}") };
    let out = heard(&mut low, 1, message.clone());
    let [Output::Send { message, .. }, Output::Switch(commit), Output::Release] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((commit.epoch, commit.first), (Epoch(1), 6));

    let out = heard(&mut high, 0, message.clone());
    let done = Output::Send { to: vec![Rank(0)], message: Message::Done { ballot } };
    assert_eq!(out, [Output::Switch(commit.clone()), Output::Release, done]);
    assert_eq!(heard(&mut low, 1, Message::Done { ballot }), []);
    assert_eq!((low.deadline(), high.deadline()), (None, None));
}

#[test]
fn verdicts_that_come_together_are_one_change() {
    let mut low = Agreement::new(Rank(0), 3);
    handle(&mut low, Input::Rails(row(1)));
    handle(&mut low, Input::Held { last: 0 });
    let ballot = Ballot { coordinator: 0, round: 1 };
    let answer = |version| {
        let row = row(version);
        Message::Answer { ballot, last: 0, epoch: Epoch(0), newer: None, row }
    };
    assert_eq!(heard(&mut low, 1, answer(2)), []);
    let out = heard(&mut low, 2, answer(1));
    let [_, Output::Switch(commit), Output::Release] = &out[..] else { panic!("{out:?}") };
    let versions: Vec<u64> = (0..3).map(|rank| commit.table.version(Rank(rank))).collect();
    assert_eq!(versions, [1, 2, 1]);
}

#[test]
fn who_leaves_counts_as_having_answered_with_its_last_call() {
    let mut low = Agreement::new(Rank(0), 2);
    handle(&mut low, Input::Rails(row(1)));
    handle(&mut low, Input::Held { last: 2 });
    let out = handle(&mut low, Input::Gone { rank: Rank(1), calls: Some(4) });
    let [Output::Switch(commit), Output::Release] = &out[..] else { panic!("{out:?}") };
    assert_eq!(commit.first, 5);
}
