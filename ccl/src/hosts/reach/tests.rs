use super::*;

/// Interfaces as `name flags addresses`: `u` is switched on, `r` has a carrier.
fn interfaces(lines: &[&str]) -> Interfaces {
    let mut interfaces = Interfaces::default();
    for line in lines {
        let mut words = line.split(' ');
        let (name, flags) = (words.next().unwrap(), words.next().unwrap());
        let interface = Interface {
            name: name.to_owned(),
            is_on: flags.contains('u'),
            is_running: flags.contains('r'),
            is_loopback: name == "lo",
        };
        interfaces.addresses.extend(words.map(|address| InterfaceAddress {
            interface: name.to_owned(),
            address: address.parse().unwrap(),
            up: interface.is_on && interface.is_running,
            loopback: interface.is_loopback,
        }));
        interfaces.all.push(interface);
    }
    interfaces
}

fn settings(name: &str, value: &str) -> Settings {
    Settings::parse([(name, value)]).unwrap().settings
}

/// Where the interfaces lead, and what others lack.
fn seen(lines: &[&str], settings: &Settings) -> (Reach, String) {
    let interfaces = interfaces(lines);
    let chosen = super::super::select(&interfaces.addresses, settings).unwrap_or_default();
    (reach(&chosen, settings), listing(&wanting(&interfaces, settings), None))
}

#[test]
fn what_is_up_and_what_is_not_is_told_apart() {
    let lo = "lo ur 127.0.0.1";
    let none = "there is no other";
    let cases: &[(&[&str], &str, Reach, &str)] = &[
        (&[lo], "", Reach::Loopback, none),
        (&[lo, "eth0 ur 10.0.0.1"], "", Reach::Hosts, none),
        (&[lo, "eth0 u 10.0.0.1"], "", Reach::Loopback, "eth0 has no carrier"),
        (&[lo, "eth0 u"], "", Reach::Loopback, "eth0 has no carrier"),
        (&[lo, "eth0 ur fe80::1"], "", Reach::Loopback, "eth0 has no address"),
        (&[lo, "eth0 - 10.0.0.1"], "", Reach::Loopback, "eth0 is off"),
        (&[lo, "eth0 u 10.0.0.1"], "eth", Reach::Nowhere, "eth0 has no carrier"),
        (&[lo, "eth0 u 10.0.0.1"], "lo", Reach::Loopback, none),
        (&[lo, "eth0 u", "eth1 ur 10.0.1.1"], "", Reach::Hosts, "eth0 has no carrier"),
        (&[lo, "eth0 u", "br-1 ur 10.9.0.1"], "", Reach::Bridge, "eth0 has no carrier"),
        (&[lo, "br-1 ur 10.9.0.1"], "br-1", Reach::Hosts, none),
        (&[lo, "docker0 u 172.17.0.1"], "", Reach::Loopback, none),
        (&[lo, "docker0 u 172.17.0.1"], "docker", Reach::Nowhere, "docker0 has no carrier"),
    ];
    for (lines, filter, expected, lack) in cases {
        let (reach, lacks) = seen(lines, &settings("R2CCL_NIC", filter));
        assert_eq!((reach, lacks.as_str()), (*expected, *lack), "{lines:?} {filter:?}");
    }
    let host: &[&str] = &[lo, "eth0 u 10.0.0.1", "eth1 u 10.0.1.1"];
    let rails = |value: &str| seen(host, &settings("R2CCL_RAILS", value));
    assert_eq!(rails("10.0.0.1"), (Reach::Nowhere, "eth0 has no carrier".to_owned()));
    assert_eq!(rails("127.0.0.7"), (Reach::Loopback, none.to_owned()));
}

fn offer(host: u32, reach: Reach, lacks: &[Lack]) -> Offer {
    let wanting =
        |lack: &Lack| Wanting { interface: "eth0".to_owned(), lack: *lack, addresses: Vec::new() };
    Offer {
        network: format!("network {host}"),
        host: format!("host{host}"),
        reach,
        wanting: lacks.iter().map(wanting).collect(),
        setting: "R2CCL_NIC=lo".to_owned(),
        waited: None,
    }
}

/// Which ranks wait, and what is wrong when they have not.
fn decided(offers: &[Offer], memory: Option<&str>) -> (Vec<usize>, Result<(), Error>) {
    let parties: Vec<_> = offers.iter().map(|offer| Party { offer, memory }).collect();
    let ranks = 0..offers.len();
    let waiting = ranks.filter(|rank| waits(Rank(u32::try_from(*rank).unwrap()), &parties));
    let waiting: Vec<usize> = waiting.collect();
    assert_eq!(anybody_waits(&parties), !waiting.is_empty());
    (waiting, check(&parties))
}

#[test]
fn who_has_an_address_and_is_off_may_be_a_rail() {
    let lines = [
        "lo ur 127.0.0.1",
        "eth0 ur 10.0.0.1",
        "eth1 u 10.0.1.1",
        "eth2 - 10.0.2.1",
        "eth3 u",
        "eth4 -",
    ];
    let wanting = wanting(&interfaces(&lines), &Settings::default());
    let offer = Offer { wanting, ..offer(0, Reach::Hosts, &[]) };
    assert_eq!(offer.broken().collect::<Vec<_>>(), ["eth1", "eth2"]);
}

/// What a host with these interfaces has and offers.
pub(crate) fn looked(host: u32, lines: &[&str], settings: &Settings) -> Look {
    let interfaces = interfaces(lines);
    let chosen = super::super::select(&interfaces.addresses, settings).unwrap();
    let wanting = wanting(&interfaces, settings);
    let offer = Offer { wanting, ..offer(host, reach(&chosen, settings), &[]) };
    Look { nics: super::super::named(chosen, settings), offer, refusal: None }
}

/// Its rails when these interfaces are broken, and which of them are.
fn with_broken(lines: &[&str], settings: &Settings, broken: &[&str]) -> Vec<(String, bool)> {
    let existing = interfaces(lines).addresses;
    let broken = broken.iter().map(|name| (*name, 7)).collect();
    let look = looked(0, lines, settings);
    let look = look.with_broken_among(&existing, settings, &broken).unwrap();
    for nic in &look.nics {
        let is_as_if = nic.is_broken && broken.contains_key(&*nic.interface);
        assert_eq!(nic.speed_bytes_per_second == 7, is_as_if, "{nic:?}");
    }
    look.nics.into_iter().map(|nic| (nic.name, nic.is_broken)).collect()
}

#[test]
fn rails_that_are_broken_are_added_to_those_that_are_whole() {
    let lines = ["lo ur 127.0.0.1", "eth0 - 10.0.0.1", "eth1 ur 10.0.1.1", "eth2 - 10.0.2.1"];
    let rail = |name: &str, is_broken| (name.to_owned(), is_broken);
    let added = with_broken(&lines, &Settings::default(), &["eth0"]);
    assert_eq!(added, [rail("eth0", true), rail("eth1", false)]);
    let named = settings("R2CCL_RAILS", "10.0.0.1,10.0.1.1,10.0.2.1");
    let expected = [rail("10.0.0.1", true), rail("10.0.1.1", false), rail("10.0.2.1", true)];
    assert_eq!(with_broken(&lines, &named, &["eth0"]), expected, "eth2 is whole nowhere");
}

#[test]
fn nothing_that_works_is_given_up_for_what_is_broken() {
    let lines = ["lo ur 127.0.0.1", "eth0 - 10.0.0.1", "br-1 ur 10.9.0.1"];
    let kept = with_broken(&lines, &Settings::default(), &["eth0"]);
    assert_eq!(kept, [("br-1".to_owned(), false)]);
}

#[test]
fn loopback_is_enough_within_a_host_only() {
    use Reach::{Bridge, Hosts, Loopback, Nowhere};
    let of = |host, reach, lacks: &[Lack]| offer(host, reach, lacks);
    let (carrier, power) = (&[Lack::Carrier][..], &[Lack::Power][..]);
    let fine = [
        [of(0, Loopback, carrier), of(0, Loopback, &[])],
        [of(0, Hosts, carrier), of(1, Hosts, power)],
        [of(0, Bridge, power), of(1, Hosts, &[])],
    ];
    for offers in &fine {
        assert_eq!(decided(offers, None), (vec![], Ok(())), "{offers:?}");
    }
    // Nobody needs a NIC whose ranks share memory all the same.
    let apart = [of(0, Loopback, carrier), of(1, Loopback, &[])];
    assert_eq!(decided(&apart, Some("one")), (vec![], Ok(())));
    assert_eq!(decided(&apart, None).0, [0]);
    assert_eq!(decided(&[of(0, Hosts, &[]), of(1, Bridge, carrier)], None), (vec![1], Ok(())));
    for reach in [Nowhere, Loopback] {
        let (waiting, outcome) = decided(&[of(0, Hosts, &[]), of(1, reach, power)], None);
        let complaint = outcome.unwrap_err().to_string();
        assert!(waiting.is_empty());
        let what = "rank 1 on host1 has no NIC that leads to rank 0 on host0: eth0 is off; ";
        assert!(complaint.contains(what), "{complaint}");
    }
}

#[test]
fn a_wrong_setting_is_named_and_a_wait_is_told() {
    let named = [offer(0, Reach::Loopback, &[]), offer(1, Reach::Loopback, &[])];
    let complaint = decided(&named, None).1.unwrap_err();
    assert!(matches!(complaint, Error::InvalidUsage(_)), "{complaint:?}");
    let text = complaint.to_string();
    assert!(text.contains("(1 other ranks neither): R2CCL_NIC=lo leaves it loopback"), "{text}");
    let mut late = offer(1, Reach::Loopback, &[Lack::Carrier, Lack::Power]);
    late.waited = Some(5.0);
    let text = decided(&[offer(0, Reach::Hosts, &[]), late], None).1.unwrap_err().to_string();
    let what = "eth0 has no carrier (waited 5.0 s for it), eth0 is off; mend that";
    assert!(text.contains(what), "{text}");
}

#[test]
fn the_store_is_looked_for_where_a_nic_may_lead() {
    let place = |address: &str| [SocketAddr::new(address.parse().unwrap(), 1)];
    let down = interfaces(&["lo ur 127.0.0.1", "eth0 u 10.0.0.1"]);
    assert!(has_way(&down, &place("127.0.0.1")) && has_way(&down, &place("10.0.0.1")));
    assert!(!has_way(&down, &place("10.0.0.2")));
    let up = interfaces(&["lo ur 127.0.0.1", "eth0 ur 10.0.0.1"]);
    assert!(has_way(&up, &place("10.0.0.2")));
}
