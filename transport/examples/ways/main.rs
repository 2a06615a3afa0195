//! Ways to move bytes, measured beside each other on this machine: tables for docs/ways.md.
//!
//! ```text
//! cargo run --release -p ccl-transport --example ways [-- WHAT...] [in=NAMESPACE:ADDRESS]
//! ```
//!
//! WHAT is any of `host`, `pages`, `stores` and `tcp`; without it, all four. The program runs itself a second time as
//! the peer; both carry out the same list of measurements and meet before each. Two processors: one for each.
//! With `in=`, the peer runs in a network namespace, which has this address.
//!
//! In every round the candidates take turns. A cell is the median of the rounds, with the least and the most. Before
//! the rounds each candidate moves its bytes once, and the receiver compares all of them; a wrong one ends the program.
#![allow(clippy::print_stdout, reason = "its result is what it prints")]
#![allow(clippy::unwrap_used, reason = "an example that cannot go on ends")]

mod area;
mod host;
mod latency;
mod moves;
mod pages;
mod peers;
mod rounds;
mod sockets;
mod stores;
mod tcp;
mod uring;

use peers::Pair;

const WHATS: [&str; 4] = ["host", "pages", "stores", "tcp"];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let unknown = words.iter().find(|word| !word.contains('=') && !WHATS.contains(&word.as_str()));
    assert!(unknown.is_none(), "{unknown:?} is none of {WHATS:?}");
    let pair = Pair::meet_up(&words);
    let wanted = |what: &str| {
        let mut whats = words.iter().filter(|word| !word.contains('=')).peekable();
        whats.peek().is_none() || whats.any(|word| word == what)
    };
    if wanted("host") {
        host::measure(&pair);
    }
    if wanted("pages") {
        pair.alone(pages::measure);
    }
    if wanted("stores") {
        pair.alone(stores::measure);
    }
    if wanted("tcp") {
        tcp::measure(&pair);
        latency::measure(&pair);
    }
    pair.part();
}
