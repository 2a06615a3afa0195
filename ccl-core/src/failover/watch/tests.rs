use super::*;

const MS: u64 = 1_000_000;

/// Numbers that are easy to add.
fn limits() -> Limits {
    Limits { suspicion_ns: 25 * MS, ..Limits::default() }
}

fn silent(ms: u64) -> Sight {
    Sight::Silent(Silence { lasts_ns: ms * MS, usual_ns: 0 })
}

/// Looks every millisecond; `answers` tells at which milliseconds a path answers, `mute` which
/// paths are silent from the beginning on. Returns what was ordered, and when.
fn play(until: u64, mute: &[usize], answers: impl Fn(u64, usize) -> bool) -> String {
    play_with(limits(), until, mute, answers)
}

fn play_with(
    limits: Limits,
    until: u64,
    mute: &[usize],
    answers: impl Fn(u64, usize) -> bool,
) -> String {
    use std::fmt::Write;

    let (mut watch, mut orders) = (Watch::new(3, limits), Vec::new());
    let mut transcript = String::new();
    for ms in 0..until {
        let now = Timestamp(ms * MS);
        (0..3).filter(|path| answers(ms, *path)).for_each(|path| watch.answered(now, path));
        let sight = |path| match mute.contains(&path) {
            true => silent(ms),
            false => Sight::Calm,
        };
        watch.look(now, &[0, 1, 2].map(sight), &mut orders);
        for order in orders.drain(..) {
            writeln!(transcript, "{ms} {order:?}").unwrap();
            if let Order::GiveUp(..) = order {
                return transcript;
            }
        }
    }
    transcript
}

#[test]
fn a_path_that_is_silent_while_its_siblings_answer_is_dead() {
    let transcript = play(200, &[1], |ms, path| path != 1 && ms == 10);
    assert!(transcript.starts_with(
        "9 Probe(0, First)\n9 Probe(1, First)\n9 Probe(2, First)\n16 Probe(0, First)"
    ));
    assert!(transcript.ends_with("22 Probe(1, Again)\n26 GiveUp(1, Silent)\n"), "{transcript}");
}

/// When a path is given up of which one sibling answers at the first of these milliseconds, and another
/// one at the second.
fn given_up(answers: [u64; 2]) -> u64 {
    let [one, other] = answers;
    let answers = |ms, path| (path == 0 && ms == one) || (path == 2 && ms == other);
    let transcript = play(500, &[1], answers);
    let last = transcript.strip_suffix(" GiveUp(1, Silent)\n").unwrap();
    last.rsplit('\n').next().unwrap().parse().unwrap()
}

#[test]
fn a_suspect_gets_as_much_longer_as_its_siblings_need() {
    const NEVER: u64 = 1_000;
    for (answer, expected) in [(10, 26), (12, 37), (14, 55), (20, 71), (60, 111)] {
        assert_eq!(given_up([answer, NEVER]), expected, "one answers at {answer}");
    }
    for (answer, expected) in [(10, 26), (12, 26), (14, 28), (19, 40), (29, 70), (60, 111)] {
        assert_eq!(given_up([answer, answer]), expected, "both answer at {answer}");
    }
    assert_eq!(given_up([10, 60]), 26, "the quick one is enough");
}

#[test]
fn the_answer_to_the_last_question_counts() {
    let late = |ms, path| (path != 1 && ms == 10) || (path == 1 && ms == 24);
    let transcript = play(40, &[1], late);
    assert!(transcript.ends_with("22 Probe(1, Again)\n"), "{transcript}");
}

/// When a path that is silent from the beginning on is given up. Siblings answer at once whenever they
/// are asked; of the path itself only what others get confirmed is seen, until this millisecond.
fn given_up_after(confirmed_until: u64) -> (u64, Reason) {
    let (mut watch, mut orders) = (Watch::new(3, limits()), Vec::new());
    for ms in 0..10_000 {
        let now = Timestamp(ms * MS);
        watch.look(now, &[Sight::Calm, silent(ms), Sight::Calm], &mut orders);
        for order in orders.drain(..) {
            match order {
                Order::Probe(1, Question::Again) if ms < confirmed_until => {
                    watch.confirmed(now, 1);
                }
                Order::Probe(1, _) => {}
                Order::Probe(sibling, _) => watch.answered(now.after(MS / 2), sibling),
                Order::GiveUp(path, reason) => {
                    assert_eq!(path, 1);
                    return (ms, reason);
                }
            }
        }
    }
    panic!("it is never given up")
}

/// When a path is given up that is silent from the beginning on, where confirmations take so many
/// milliseconds, although nobody answers, while so much is confirmed on a sibling.
fn given_up_beside(sibling: Sight, usual: u64) -> (u64, Reason) {
    let (mut watch, mut orders) = (Watch::new(2, limits()), Vec::new());
    for ms in 0..2_000 {
        let silence = Silence { lasts_ns: ms * MS, usual_ns: usual * MS };
        let sights = [sibling, Sight::Silent(silence)];
        watch.look(Timestamp(ms * MS), &sights, &mut orders);
        for order in orders.drain(..) {
            if let Order::GiveUp(path, reason) = order {
                assert_eq!(path, 1);
                return (ms, reason);
            }
        }
    }
    panic!("it is never given up")
}

#[test]
fn what_is_confirmed_on_a_sibling_is_an_answer_of_it() {
    assert_eq!(given_up_beside(Sight::Calm, 0), (1_010, Reason::AllSilent));
    assert_eq!(given_up_beside(Sight::Moving, 0), (26, Reason::Silent));
}

#[test]
fn an_answer_takes_as_long_as_a_confirmation() {
    for (usual, expected) in [(10, 36), (16, 42), (40, 70), (100, 160)] {
        assert_eq!(given_up_beside(Sight::Moving, usual), (expected, Reason::Silent));
    }
}

#[test]
fn what_others_get_confirmed_answers_what_was_asked_before() {
    assert_eq!(given_up_after(0), (26, Reason::Silent));
    // The question at which it was seen stands.
    assert_eq!(given_up_after(17), (30, Reason::Silent));
    assert_eq!(given_up_after(1_000), (1_037, Reason::Silent));
    assert_eq!(given_up_after(9_000), (3_005, Reason::Stuck));
}

#[test]
fn a_suspect_is_probed_often_at_first() {
    let transcript = play(150, &[1], |_, _| false);
    let probes: Vec<_> = transcript.lines().filter(|line| line.contains("Probe(1")).collect();
    assert_eq!(probes[..2], ["9 Probe(1, First)", "16 Probe(1, Again)"]);
    let later = probes[2..].iter().filter_map(|line| line.strip_suffix(" Probe(1, Again)"));
    assert_eq!(later.collect::<Vec<_>>(), ["29", "54", "79", "104", "129"]);
}

#[test]
fn a_busy_host_is_not_a_dead_path() {
    assert!(!play(900, &[0, 1, 2], |_, _| false).contains("GiveUp"), "nobody answers yet");
    let transcript = play(2_000, &[0, 1, 2], |ms, _| ms % 400 == 0);
    assert!(!transcript.contains("GiveUp"), "all answer late: {transcript}");
}

#[test]
fn silence_of_everybody_ends_at_the_last_limit() {
    let transcript = play(2_000, &[0, 1, 2], |_, _| false);
    assert!(transcript.ends_with("1010 GiveUp(0, AllSilent)\n"), "{transcript}");
}

#[test]
fn who_has_longer_to_answer_is_not_stuck_before() {
    let last = Limits { last_ns: 10_000 * MS, ..limits() };
    for (answer, end) in [(20_000, "10010"), (100, "10105")] {
        let transcript = play_with(last, 20_000, &[0, 1, 2], |ms, _| ms == answer);
        let expected = format!("\n{end} GiveUp(0, AllSilent)\n");
        assert!(transcript.ends_with(&expected), "all answer at {answer}: {transcript}");
    }
    let grace = Limits { grace_ns: 20_000 * MS, last_ns: 30_000 * MS, ..limits() };
    let transcript = play_with(grace, 20_000, &[1], |ms, path| path != 1 && ms == 10);
    assert!(transcript.ends_with("5011 GiveUp(1, Silent)\n"), "{transcript}");
}

#[test]
fn a_connection_that_makes_no_progress_over_a_sound_path_is_stuck() {
    for pause in [25, 1] {
        let transcript = play(5_000, &[2], |ms, _| ms % pause == pause / 5);
        assert!(transcript.ends_with("GiveUp(2, Stuck)\n"), "{pause}: {transcript}");
    }
}

#[test]
fn who_confirms_again_is_no_suspect() {
    let mut watch = Watch::new(2, limits());
    let mut orders = Vec::new();
    watch.look(Timestamp(0), &[silent(30), Sight::Calm], &mut orders);
    assert!(watch.suspects(0));
    watch.answered(Timestamp(1), 1);
    watch.look(Timestamp(MS), &[Sight::Calm, Sight::Calm], &mut orders);
    watch.look(Timestamp(90 * MS), &[silent(30), Sight::Calm], &mut orders);
    assert!(watch.suspects(0) && !orders.iter().any(|order| matches!(order, Order::GiveUp(..))));
}
