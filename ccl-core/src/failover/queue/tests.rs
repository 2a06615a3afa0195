//! Transcripts of one end, and two ends over rails whose journeys take any time and end anywhere.

mod world;

use std::collections::VecDeque;
use std::fmt::Write;

use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    answer_ns: 300,
    repair_ns: 10_000,
    patience_ns: 1_000,
    retry_ns: 10,
    settle_ns: 50,
    drain_ns: 40,
};

fn request(kind: Kind) -> Input<'static> {
    Input::Submit(Descriptor { kind, bytes: 8, signalled: true })
}

fn joined(rail: u8, leads: bool) -> Input<'static> {
    Input::Joined { rail: Rail(rail), leads, log_entries: 8 }
}

/// A scenario is a list of inputs; the expectation is the whole transcript.
fn play(evidence: Evidence, rails: usize, inputs: &[(u64, Input<'_>)]) -> String {
    let mut queue = Queue::new(evidence, LIMITS, &vec![Standing::default(); rails], 8);
    let mut out = Vec::new();
    let mut transcript = String::from("\n");
    for &(now, input) in inputs {
        queue.handle(Timestamp(now), input, &mut out);
        writeln!(transcript, "{now} {input:?}").unwrap();
        for output in out.drain(..) {
            writeln!(transcript, "    {output:?}").unwrap();
        }
    }
    transcript
}

#[test]
fn the_leader_resends_everything_without_evidence() {
    let transcript = play(
        Evidence::Resend,
        2,
        &[
            (0, joined(0, true)),
            (0, joined(1, true)),
            (1, request(Kind::Write)),
            (1, request(Kind::Write)),
            (2, Input::Executed(Sequence(0))),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
            (5, Input::Heard(Rail(1), Message::Accept { epoch: Epoch(1), delivered: 0 })),
            (6, Input::Executed(Sequence(1))),
        ],
    );
    assert_eq!(
        transcript,
        "
0 Joined { rail: Rail(0), leads: true, log_entries: 8 }
0 Joined { rail: Rail(1), leads: true, log_entries: 8 }
1 Submit(Descriptor { kind: Write, bytes: 8, signalled: true })
    Post { rail: Rail(0), sequence: Sequence(0), entry: None }
1 Submit(Descriptor { kind: Write, bytes: 8, signalled: true })
    Post { rail: Rail(0), sequence: Sequence(1), entry: None }
2 Executed(Sequence(0))
    Complete { sequence: Sequence(0), result: None }
3 Failed(Rail(0))
    Fence(Rail(0))
4 Drained(Rail(0))
    Say(Rail(1), Resume { epoch: Epoch(1), delivered: 0 })
5 Heard(Rail(1), Accept { epoch: Epoch(1), delivered: 0 })
    Post { rail: Rail(1), sequence: Sequence(1), entry: None }
6 Executed(Sequence(1))
    Complete { sequence: Sequence(1), result: None }
"
    );
}

#[test]
fn the_follower_fences_before_it_accepts_and_counts_spare_what_arrived() {
    let transcript = play(
        Evidence::Handshake,
        2,
        &[
            (0, joined(0, false)),
            (0, joined(1, false)),
            (1, Input::SubmitReceive),
            (1, Input::SubmitReceive),
            (1, request(Kind::Write)),
            (1, request(Kind::Send)),
            (1, request(Kind::Write)),
            (2, Input::Delivered),
            (3, Input::Heard(Rail(1), Message::Resume { epoch: Epoch(1), delivered: 1 })),
            (4, Input::Drained(Rail(0))),
        ],
    );
    let tail = transcript.split("3 Heard").nth(1).unwrap();
    assert_eq!(
        tail,
        "(Rail(1), Resume { epoch: Epoch(1), delivered: 1 })
    Fence(Rail(0))
4 Drained(Rail(0))
    PostReceive { rail: Rail(1), receive: Sequence(1) }
    Say(Rail(1), Accept { epoch: Epoch(1), delivered: 1 })
    Complete { sequence: Sequence(0), result: None }
    Complete { sequence: Sequence(1), result: None }
    Post { rail: Rail(1), sequence: Sequence(2), entry: None }
"
    );
}

#[test]
fn the_log_tells_in_the_middle_of_a_batch_and_a_second_failure_changes_nothing() {
    let words = [LogEntry::new(Epoch(0), Sequence(0)).0, LogEntry::new(Epoch(0), Sequence(1)).0, 0];
    let transcript = play(
        Evidence::Log,
        3,
        &[
            (0, joined(0, true)),
            (0, joined(1, true)),
            (0, joined(2, true)),
            (1, request(Kind::Write)),
            (1, request(Kind::Send)),
            (1, request(Kind::FetchAdd { addend: 5 })),
            (1, request(Kind::Write)),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
            (5, Input::Failed(Rail(1))),
            (5, Input::Heard(Rail(1), Message::Accept { epoch: Epoch(1), delivered: 0 })),
            (6, Input::Drained(Rail(1))),
            (7, Input::Heard(Rail(2), Message::Accept { epoch: Epoch(2), delivered: 0 })),
            (8, Input::Log(Rail(2), &words)),
            (9, Input::Answered(Answer::Word(40))),
        ],
    );
    let tail = transcript.split("\n1 ").nth(4).unwrap();
    let token = 0xb5c_u64 << 52;
    assert_eq!(
        tail,
        format!(
            "Submit(Descriptor {{ kind: Write, bytes: 8, signalled: true }})
3 Failed(Rail(0))
    Fence(Rail(0))
4 Drained(Rail(0))
    Say(Rail(1), Resume {{ epoch: Epoch(1), delivered: 0 }})
5 Failed(Rail(1))
    Fence(Rail(1))
5 Heard(Rail(1), Accept {{ epoch: Epoch(1), delivered: 0 }})
6 Drained(Rail(1))
    Say(Rail(2), Resume {{ epoch: Epoch(2), delivered: 0 }})
7 Heard(Rail(2), Accept {{ epoch: Epoch(2), delivered: 0 }})
    ReadLog(Rail(2))
8 Log(Rail(2), {words:?})
    Complete {{ sequence: Sequence(0), result: None }}
    Complete {{ sequence: Sequence(1), result: None }}
    Step {{ rail: Rail(2), sequence: Sequence(2), step: Look }}
9 Answered(Word(40))
    Step {{ rail: Rail(2), sequence: Sequence(2), step: Try {{ expected: 40, token: {token}, value: 45 }} }}
"
        )
    );
}

#[test]
fn an_outstanding_atomic_without_a_log_is_an_error_of_its_own() {
    let transcript = play(
        Evidence::Handshake,
        2,
        &[
            (0, joined(0, true)),
            (0, joined(1, true)),
            (1, request(Kind::FetchAdd { addend: 5 })),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
        ],
    );
    assert!(transcript.ends_with("    Dead(AtomicOutstanding(Sequence(0)))\n"), "{transcript}");
}

#[test]
fn without_a_rail_it_waits_as_long_as_it_was_told_to() {
    let start = [
        (0, joined(0, true)),
        (1, request(Kind::Write)),
        (3, Input::Failed(Rail(0))),
        (4, Input::Drained(Rail(0))),
    ];
    let mut inputs = start.to_vec();
    inputs.extend([(500, Input::Tick), (600, joined(1, true))]);
    let transcript = play(Evidence::Log, 2, &inputs);
    let end = "    Revive(Rail(0))\n600 Joined { rail: Rail(1), leads: true, log_entries: 8 }\n    \
               Say(Rail(1), Resume { epoch: Epoch(1), delivered: 0 })\n";
    assert!(transcript.ends_with(end), "{transcript}");
    let mut inputs = start.to_vec();
    inputs.push((1003, Input::Tick));
    let transcript = play(Evidence::Log, 2, &inputs);
    assert!(transcript.ends_with("1003 Tick\n    Dead(NoRail)\n"), "{transcript}");
}

/// As of lists of requests of which only the last is signalled.
#[test]
fn what_is_executed_says_the_same_of_everything_before_it() {
    let silent = |kind| Input::Submit(Descriptor { kind, bytes: 8, signalled: false });
    let inputs = [
        (0, joined(0, true)),
        (1, silent(Kind::Write)),
        (2, silent(Kind::Read)),
        (3, request(Kind::Write)),
        (4, request(Kind::Write)),
        (5, Input::Executed(Sequence(2))),
    ];
    let transcript = play(Evidence::Resend, 1, &inputs);
    let end = "5 Executed(Sequence(2))
    Complete { sequence: Sequence(0), result: None }
    Complete { sequence: Sequence(1), result: None }
    Complete { sequence: Sequence(2), result: None }\n";
    assert!(transcript.ends_with(end), "{transcript}");
}

#[test]
fn the_return_withholds_requests_until_both_ends_are_drained() {
    let silent = Input::Submit(Descriptor { kind: Kind::Write, bytes: 8, signalled: false });
    let transcript = play(
        Evidence::Log,
        2,
        &[
            (0, joined(0, true)),
            (0, joined(1, true)),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
            (5, Input::Heard(Rail(1), Message::Accept { epoch: Epoch(1), delivered: 0 })),
            (6, Input::Log(Rail(1), &[0])),
            (14, Input::Tick),
            (20, joined(0, true)),
            (60, silent),
            (70, Input::Tick),
            (71, request(Kind::Write)),
            (72, request(Kind::Write)),
            (73, Input::Executed(Sequence(0))),
            (74, Input::Executed(Sequence(1))),
            (75, Input::Heard(Rail(1), Message::Drained(1))),
            (76, Input::Drained(Rail(1))),
            (77, Input::Heard(Rail(0), Message::Accept { epoch: Epoch(2), delivered: 0 })),
            (78, Input::Log(Rail(0), &[0])),
        ],
    );
    let tail = transcript.split("\n70 ").nth(1).unwrap();
    let entry = |epoch, sequence| LogEntry::new(Epoch(epoch), Sequence(sequence));
    assert_eq!(
        tail,
        format!(
            "Tick
    Say(Rail(1), Return(1))
71 Submit(Descriptor {{ kind: Write, bytes: 8, signalled: true }})
    Post {{ rail: Rail(1), sequence: Sequence(1), entry: Some({:?}) }}
72 Submit(Descriptor {{ kind: Write, bytes: 8, signalled: true }})
73 Executed(Sequence(0))
    Complete {{ sequence: Sequence(0), result: None }}
74 Executed(Sequence(1))
    Complete {{ sequence: Sequence(1), result: None }}
75 Heard(Rail(1), Drained(1))
    Fence(Rail(1))
76 Drained(Rail(1))
    Say(Rail(0), Resume {{ epoch: Epoch(2), delivered: 0 }})
77 Heard(Rail(0), Accept {{ epoch: Epoch(2), delivered: 0 }})
    ReadLog(Rail(0))
78 Log(Rail(0), [0])
    Post {{ rail: Rail(0), sequence: Sequence(2), entry: Some({:?}) }}
",
            entry(1, 1),
            entry(2, 2)
        )
    );
}

/// The default rail fails and comes back, twice. Nothing is wrong with the backup, whose end this end hears of
/// in both ways.
#[test]
fn a_backup_that_is_left_does_not_wait_longer_for_it() {
    let resume = |rail, epoch| {
        Input::Heard(Rail(rail), Message::Resume { epoch: Epoch(epoch), delivered: 0 })
    };
    let transcript = play(
        Evidence::Handshake,
        2,
        &[
            (0, joined(0, false)),
            (0, joined(1, false)),
            (3, Input::Failed(Rail(0))),
            (4, Input::Drained(Rail(0))),
            (5, resume(1, 1)),
            (14, Input::Tick),
            (20, joined(0, false)),
            (70, Input::Heard(Rail(1), Message::Return(1))),
            (71, resume(0, 2)),
            (72, Input::Drained(Rail(1))),
            (82, Input::Tick),
            (90, joined(1, false)),
            (100, Input::Failed(Rail(0))),
            (101, Input::Drained(Rail(0))),
            (102, resume(1, 3)),
            (121, Input::Tick),
            (130, joined(0, false)),
            (180, Input::Heard(Rail(1), Message::Return(2))),
            (181, Input::Failed(Rail(1))),
            (182, Input::Drained(Rail(1))),
            (183, resume(0, 4)),
            (192, Input::Tick),
        ],
    );
    for end in ["\n82 Tick\n    Revive(Rail(1))\n", "\n192 Tick\n    Revive(Rail(1))\n"] {
        assert!(transcript.contains(end), "{transcript}");
    }
}
