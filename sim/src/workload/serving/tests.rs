use super::*;

fn preset(name: &str) -> (Server, Cluster) {
    let text = match name {
        "serve-70b" => include_str!("../../../presets/serve-70b.toml"),
        _ => include_str!("../../../presets/serve-405b.toml"),
    };
    let (_, server) = Server::parse(name, text).unwrap();
    let cluster = Cluster::parse("h100", include_str!("../../../presets/h100.toml")).unwrap();
    (server, cluster)
}

#[test]
fn an_idle_server_answers_as_fast_as_its_hardware() {
    let (server, cluster) = preset("serve-70b");
    let served = server.serve(&cluster, 0.1, 0, Reaction::NoFailure);
    assert_eq!(served.first_token.len(), 10);
    let reading = 2.0 * 70.6e9 * 2000.0 / (8.0 * 989e12 * 0.45);
    let handing = 2000.0 * 2.0 * 80.0 * 8.0 * 128.0 * 2.0 / (8.0 * 48.5e9) + 14e-6;
    assert!((served.first(50) - reading - handing).abs() < 1e-9, "{}", served.first(50));
    let weights = 70.6e9 * 2.0 / (8.0 * 3350e9 * 0.7);
    assert!(served.token(50) >= weights && served.token(50) < 1.2 * weights);
}

#[test]
fn a_failure_costs_what_is_done_about_it() {
    for name in ["serve-70b", "serve-405b"] {
        let (server, cluster) = preset(name);
        let of = |reaction| server.serve(&cluster, 1.0, 1, reaction);
        let [none, repair, restart, reroute] = Reaction::ALL.map(of);
        assert_eq!(none.first_token.len(), 100);
        assert!(Reaction::ALL.iter().all(|r| of(*r).per_token.len() == 100), "all are answered");
        let worse = |served: &Served| served.first(99) / none.first(99);
        assert!(worse(&repair) < 1.03, "{name}: {}", worse(&repair));
        assert!(restart.first(99) > 30.0, "{name}: {}", restart.first(99));
        assert!(worse(&reroute) > worse(&repair), "{name}: {}", worse(&reroute));
    }
}

#[test]
fn a_repair_stops_what_passes_once() {
    let (mut server, cluster) = preset("serve-70b");
    let stall = cluster.delays.detection + cluster.delays.migration;
    let mut longest = 0.0_f64;
    // All rails are left, so that there is nothing but the repair; four prompts are read at a time.
    for step in 0..100 {
        server.load = Load { seconds: 2.0, failure_at: f64::from(step) * 4e-3, ..server.load };
        let of = |reaction| server.serve(&cluster, 20.0, 0, reaction).first_token;
        let pairs = of(Reaction::Repair).into_iter().zip(of(Reaction::NoFailure));
        longest = pairs.map(|(repaired, none)| repaired - none).fold(longest, f64::max);
    }
    assert!(longest > 0.0 && longest < 1.001 * stall, "{longest}");
}

#[test]
fn both_batches_of_a_pipeline_wait_for_the_same_repair() {
    let (server, cluster) = preset("serve-405b");
    let ends = |stall: f64| {
        let mut run = Run::new(&server, &cluster, Vec::new());
        run.stall = stall;
        // Until the failure a tenth of a second goes by, and a stage takes longer.
        [49.9, 49.9].map(|now| run.advance(now, 8192.0, 0.0))
    };
    let stall = 10.0;
    let (without, with) = (ends(0.0), ends(stall));
    assert!(without[0] - 49.9 > 0.2);
    for (without, with) in without.into_iter().zip(with) {
        assert!(with > without && with - without < 1.001 * stall, "{with} {without}");
    }
}

#[test]
fn what_leaves_during_a_repair_waits_for_it() {
    let (server, cluster) = preset("serve-70b");
    let mut run = Run::new(&server, &cluster, Vec::new());
    (run.rates, run.stall, run.alpha) = ([100.0, 50.0], 2.0, 0.5);
    for (at, bytes, arrives) in [
        (48.0, 100.0, 49.5), // is there before
        (49.0, 200.0, 54.5), // half of it has left
        (50.0, 100.0, 54.5),
        (51.0, 100.0, 54.5),
        (51.0, 0.0, 52.5),
        (52.0, 100.0, 54.5),
        (53.0, 100.0, 55.5), // comes after
    ] {
        assert!((run.pass(at, bytes) - arrives).abs() < 1e-9, "{at} {bytes}");
    }
}

#[test]
fn requests_that_come_after_a_restart_wait_for_nothing() {
    let (mut server, cluster) = preset("serve-70b");
    server.restart = 1e-3;
    for rate in [0.13, 0.31, 3.0, 12.0] {
        let served = server.serve(&cluster, rate, 1, Reaction::Restart);
        assert!(served.first_token[0] > 0.0, "{rate}: {}", served.first_token[0]);
    }
}

#[test]
fn an_answer_of_one_token_ends_with_it() {
    for name in ["serve-70b", "serve-405b"] {
        let (mut server, cluster) = preset(name);
        server.load = Load { output: 1, ..server.load };
        let served = server.serve(&cluster, 1.0, 0, Reaction::NoFailure);
        assert_eq!(served.last_token.len(), 100, "{name}");
        assert_eq!(served.last_token, served.first_token, "{name}");
    }
}

#[test]
fn more_than_a_server_can_do_waits_for_ever_longer() {
    let (server, cluster) = preset("serve-405b");
    let rates = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
    let of = |reaction| {
        let is_good = |rate: &f64| server.serve(&cluster, *rate, 1, reaction).first(50) <= 5.0;
        rates.into_iter().take_while(is_good).last().unwrap_or(0.0)
    };
    let [none, repair, restart, reroute] = Reaction::ALL.map(of);
    assert!(none > 0.0 && none < 32.0);
    assert_eq!(repair, none);
    assert!(restart < none && reroute < none, "{restart} {reroute} of {none}");
}

#[test]
fn nonsense_is_said() {
    let text = include_str!("../../../presets/serve-70b.toml");
    for (good, bad, expected) in [
        ("utilisation = 0.45", "utilisation = 1.45", "write at most 1"),
        ("layers = 80", "layers = 0", "write a whole number"),
        ("= \"disaggregated\"", "= \"apart\"", "unknown variant `apart`"),
    ] {
        let wrong = Server::parse("f", &text.replace(good, bad)).unwrap_err().to_string();
        assert!(wrong.contains(expected), "{wrong}");
    }
}
