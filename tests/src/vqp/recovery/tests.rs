use super::*;

const DEVICES: &str =
    "vqp_recovery -d 127.2.11.1,127.2.11.2 --peer-device 127.2.12.1,127.2.12.2 --cuts 4 -q 3";

fn costs(signal: Signal) -> Vec<Vec<Cost>> {
    let known = Arguments::parse_from(DEVICES.split_whitespace());
    measure(&Arguments { signal, ..known }).unwrap()
}

#[test]
fn batches_that_are_cut_are_complete_and_no_more_is_sent_again_than_was_on_the_way() {
    for signal in [Signal::Last, Signal::All] {
        for (costs, evidence) in costs(signal).iter().zip(EVIDENCES) {
            for cost in costs {
                let is_bounded = cost.resent_bytes <= cost.interrupted_bytes;
                assert!(is_bounded && cost.recovery_s > 0.0, "{signal:?} {evidence:?} {cost:?}");
            }
        }
    }
}

/// Nothing is known of a batch but its end, so that all of it is sent again.
#[test]
fn without_evidence_whole_batches_are_sent_again() {
    for cost in &costs(Signal::Last)[0] {
        assert_eq!(cost.resent_bytes % (64 * (64 << 10)), 0, "{cost:?}");
    }
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let known = Arguments::parse_from([NAME]);
    crate::vqp::threads::tests::names_devices_that_do_not_exist(|name, is_near| {
        let mut arguments = known.clone();
        let devices = if is_near { &mut arguments.near } else { &mut arguments.far };
        *devices = name.into();
        measure(&arguments).map(|_| ())
    });
}
