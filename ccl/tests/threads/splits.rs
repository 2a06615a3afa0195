//! Communicators that are split.

use super::*;

#[test]
fn a_split_makes_independent_groups() {
    let colors = ranks(5, &config(), |communicator| {
        let me = communicator.rank().0;
        let color = (me != 4).then_some(me % 2);
        let part = communicator.split(color, -(me as i32), None).unwrap();
        let Some(part) = part else { return (me, None) };
        let mut members = vec![0u32; part.size() as usize];
        part.all_gather(&[me], &mut members).unwrap();
        communicator.finalize().unwrap();
        (me, Some((part.rank().0, members)))
    });
    assert_eq!(colors[0].1, Some((1, vec![2, 0])));
    assert_eq!(colors[1].1, Some((1, vec![3, 1])));
    assert_eq!(colors[2].1, Some((0, vec![2, 0])));
    assert_eq!(colors[4].1, None);
}

#[test]
fn a_split_that_a_rank_does_not_make_in_time_ends_the_communicator_everywhere() {
    let results = ranks(2, &config(), |communicator| {
        let mut hasty = config();
        hasty.settings.bootstrap_timeout = Duration::from_millis(50);
        // Rank 1 calls it when it is too late.
        if communicator.rank() == Rank(1) {
            end_of(&communicator);
        }
        let error = communicator.split(Some(0), 0, Some(&hasty)).unwrap_err();
        assert_eq!(communicator.split(Some(0), 0, None).err(), communicator.async_error());
        error
    });
    for error in results {
        assert!(matches!(error, Error::Deadline { .. }), "{error:?}");
        assert!(error.to_string().contains("rank 1 did not contribute"), "{error}");
    }
}

#[test]
fn a_rank_that_cannot_begin_its_part_of_a_split_tells_the_others_why() {
    let errors = ranks(2, &config(), |communicator| {
        let mut impossible = config();
        if communicator.rank() == Rank(0) {
            let settings = Settings::parse([("R2CCL_NIC", "nowhere0")]).unwrap().settings;
            impossible.settings.interfaces = settings.interfaces;
        }
        communicator.split(Some(0), 0, Some(&impossible)).unwrap_err()
    });
    assert!(matches!(errors[0], Error::InvalidUsage(_)), "{:?}", errors[0]);
    assert!(matches!(errors[1], Error::Aborted { rank: Rank(0), .. }), "{:?}", errors[1]);
    assert!(errors[1].to_string().contains("nowhere0"), "{}", errors[1]);
}

#[test]
fn a_member_of_a_split_that_asks_for_what_there_is_not_tells_the_others() {
    let errors = ranks(2, &config(), |communicator| {
        let mut impossible = config();
        // Else the other would wait for its member for so long.
        impossible.settings.bootstrap_timeout = DEADLINE;
        if communicator.rank() == Rank(1) {
            let settings = Settings::parse([("R2CCL_ALGO", "tow_shot")]).unwrap().settings;
            impossible.settings.algorithms = settings.algorithms;
        }
        communicator.split(Some(0), 0, Some(&impossible)).unwrap_err()
    });
    assert!(matches!(errors[0], Error::Aborted { rank: Rank(1), .. }), "{:?}", errors[0]);
    assert!(errors[0].to_string().contains("tow_shot"), "{}", errors[0]);
    assert!(matches!(errors[1], Error::InvalidArgument(_)), "{:?}", errors[1]);
}
