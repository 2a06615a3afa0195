//! What ranks do with measured rates: slow rails carry little at a time.
#![allow(clippy::unwrap_used, reason = "what a helper of a test unwraps fails the test")]

use std::fmt::Debug;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use ccl::{Communicator, Config, ReduceOp, Settings, UniqueId};
use ccl_core::tuning::{TunedHost, Tuning};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const DEADLINE: Duration = Duration::from_secs(60);
const RANKS: u32 = 3;
const COUNT: usize = 1 << 18;
/// Payload of the smallest tiles, and more than what is sent with it.
const SMALL_TILE_BYTES: u64 = (8 << 10) + 128;

/// A rank on a host of its own with two rails.
fn config(rank: u32, tuning: &Path) -> Config {
    let host = format!("tuned host {rank}");
    let variables = [
        ("R2CCL_HOST_ID", host.as_str()),
        ("R2CCL_RAILS", "127.0.78.1,127.0.78.2"),
        ("R2CCL_TUNING", tuning.to_str().unwrap()),
    ];
    let settings = Settings::parse(variables).unwrap().settings;
    Config { timeout: Some(DEADLINE), settings, ..Config::default() }
}

/// Writes that the rails of the last host are slow.
fn write(file: &Path) {
    let host = |rails: [f64; 2]| TunedHost { ranks: 1, rails: rails.to_vec() };
    let hosts = vec![host([1e9; 2]), host([1e9; 2]), host([2e6, 4e6])];
    let tuning = Tuning::new(hosts, 1e-4, 1e-5);
    std::fs::write(file, serde_json::to_string(&tuning).unwrap()).unwrap();
}

/// The mean size of the tiles that a rank has sent to other hosts.
fn tile_bytes(communicator: &Communicator) -> u64 {
    let own = communicator.health().into_iter().filter(|rail| rail.rank == communicator.rank());
    let (tiles, bytes) = own.fold((0, 0), |(tiles, bytes), rail| {
        (tiles + rail.counters.tiles, bytes + rail.counters.bytes)
    });
    assert!(tiles > 0, "nothing was sent");
    bytes / tiles
}

#[test]
fn slow_rails_have_small_tiles_and_others_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    write(&file);
    let id = UniqueId::create(&config(0, &file).settings).unwrap();
    let (sender, receiver) = mpsc::channel();
    for rank in 0..RANKS {
        let (sender, config) = (sender.clone(), config(rank, &file));
        thread::spawn(move || {
            let communicator = Communicator::create(&id, rank, RANKS, &config).unwrap();
            let mut sum: Vec<i64> = (0..).take(COUNT).collect();
            communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
            let is_right = (0..).zip(&sum).all(|(place, value)| *value == 3 * place);
            sender.send((rank, is_right, tile_bytes(&communicator))).unwrap();
            // Nobody leaves before all have counted.
            communicator.barrier().unwrap();
        });
    }
    for _ in 0..RANKS {
        let (rank, is_right, bytes) = receiver.recv_timeout(DEADLINE).unwrap();
        assert!(is_right, "rank {rank}: wrong results");
        let is_slow = rank == RANKS - 1;
        assert_eq!(bytes <= SMALL_TILE_BYTES, is_slow, "rank {rank}: {bytes} bytes in a tile");
    }
}

/// The messages of a thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

#[test]
fn the_log_says_that_it_was_created_when_nothing_can_fail_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    write(&file);
    for is_good in [true, false] {
        let id = UniqueId::create(&config(0, &file).settings).unwrap();
        let (sender, receiver) = mpsc::channel();
        for rank in 0..RANKS {
            let (sender, config, log) = (sender.clone(), config(rank, &file), Log::default());
            thread::spawn(move || {
                let create = || Communicator::create(&id, rank, RANKS, &config);
                let created = tracing::subscriber::with_default(log.clone(), create);
                let is_told =
                    log.0.lock().unwrap().iter().any(|line| line == "communicator created");
                sender.send((created.is_ok(), is_told)).unwrap();
                // Nobody leaves before all have come.
                created.map_or(Ok(()), |communicator| communicator.barrier()).unwrap();
            });
        }
        for _ in 0..RANKS {
            assert_eq!(receiver.recv_timeout(DEADLINE).unwrap(), (is_good, is_good));
        }
        std::fs::write(&file, "damaged").unwrap();
    }
}
