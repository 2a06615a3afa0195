//! How the ranks got over every cut: what was done to a cable, put together with what they saw.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::saboteur::{Measured, Strike};
use super::wish::Wish;
use crate::testbed::shape::{Cable, rail_name};
use crate::timeline::Entry;

/// One cut and what came after it. Times count from the moment at which the kernel was asked for the
/// cut; there is none for what did not happen before the next cut of the same cable.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Account {
    /// Counted from 1.
    pub fault: usize,
    /// Its kind as the command line has it.
    pub kind: String,
    /// Host of the cable.
    pub host: usize,
    /// Rail of the cable.
    pub rail: usize,
    /// What was measured meanwhile.
    #[serde(flatten)]
    pub measured: Measured,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// A path over the cable was out of use before.
    pub was_out: bool,
    /// The first rank gave the rail up.
    pub noticed_ms: Option<f64>,
    /// How that rank found out.
    pub evidence: Option<String>,
    /// The last of the ranks that gave it up at all did.
    pub known_ms: Option<f64>,
    /// The last of those that had tiles on the way had its first good byte confirmed over another
    /// rail; the first of all, if none had.
    pub elsewhere_ms: Option<f64>,
    /// Tiles sent again.
    pub tiles: usize,
    /// Their bytes.
    pub bytes: usize,
    /// The cable was whole again.
    pub healed_ms: Option<f64>,
    /// The last of the ranks that gave it up used it again.
    pub back_ms: Option<f64>,
}

/// One end of a path: a rank, and the path in its words.
type Path<'a> = (u32, &'a str);

/// An account of every cut, in order. Neighbouring ranks share a host, `ranks_per_host` each; `entries`
/// are in order of time.
pub(crate) fn accounts(
    strikes: &[Strike],
    wishes: &[Wish],
    entries: &[Entry],
    ranks_per_host: usize,
) -> Vec<Account> {
    let cuts = strikes.iter().enumerate().filter(|(_, strike)| strike.is_cut());
    let account = |(number, (place, cut)): (usize, (usize, &Strike))| {
        let later =
            strikes[place + 1..].iter().filter(|later| later.action.cable == cut.action.cable);
        let end_ns =
            later.clone().find(|later| later.is_cut()).map_or(u64::MAX, |next| next.began_ns);
        let healed = later.clone().find(|later| !later.is_cut() && later.began_ns < end_ns);
        let window = entries.iter().filter(|entry| {
            (cut.began_ns..end_ns).contains(&entry.at_ns)
                && concerns(entry, cut.action.cable, ranks_per_host)
        });
        let before = entries.iter().filter(|entry| {
            entry.at_ns < cut.began_ns && concerns(entry, cut.action.cable, ranks_per_host)
        });
        let kind = wishes.get(cut.wish).map_or("", |wish| &wish.kind);
        let mut account = Account::new(number + 1, kind, cut, &window.collect::<Vec<_>>());
        account.was_out = is_any_out(before);
        account.healed_ms = healed.map(|healed| after_ms(cut, healed.ended_ns));
        account
    };
    cuts.enumerate().map(account).collect()
}

/// Whether a path was given up and has not returned since.
fn is_any_out<'a>(entries: impl Iterator<Item = &'a Entry>) -> bool {
    let mut out: BTreeSet<Path<'_>> = BTreeSet::new();
    for entry in entries {
        let path = (entry.rank, &*entry.path);
        match &*entry.event {
            "given-up" => _ = out.insert(path),
            "returned" => _ = out.remove(&path),
            _ => {}
        }
    }
    !out.is_empty()
}

/// Whether something happened at one of the ends of a path that leads over a cable. Both ends of a
/// path are on the same rail, and network cards are named after it.
fn concerns(entry: &Entry, cable: Cable, ranks_per_host: usize) -> bool {
    let peer = entry.path.rsplit_once(" to rank ").map(|(_, peer)| peer);
    let peer = peer.and_then(|peer| peer.split(' ').next()?.parse::<usize>().ok());
    let ends = [Some(entry.rank as usize), peer];
    let is_there = ends.into_iter().flatten().any(|rank| rank / ranks_per_host == cable.host);
    is_there && entry.path.contains(&format!("({})", rail_name(cable.rail)))
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds for people")]
fn after_ms(cut: &Strike, at_ns: u64) -> f64 {
    at_ns.saturating_sub(cut.began_ns) as f64 / 1e6
}

impl Account {
    /// `window`: what happened to the rail until it was cut again.
    fn new(fault: usize, kind: &str, cut: &Strike, window: &[&Entry]) -> Self {
        let of = |event: &'static str| window.iter().filter(move |entry| entry.event == event);
        let mut given_up = BTreeMap::new();
        for entry in of("given-up") {
            given_up.entry((entry.rank, &*entry.path)).or_insert(entry.at_ns);
        }
        // On every path that was given up, the first such event after that.
        let first_on_each = |event| {
            let of_path = move |path: &Path<'_>, since_ns: u64| {
                let same = of(event).filter(|entry| (entry.rank, &*entry.path) == *path);
                same.map(|entry| entry.at_ns).find(|at_ns| *at_ns >= since_ns)
            };
            given_up.iter().filter_map(move |(path, since)| Some((*path, of_path(path, *since)?)))
        };
        // Paths that had nothing on the way go on when there is something to send, whenever that is.
        let loaded: BTreeSet<Path<'_>> = of("given-up")
            .filter(|entry| entry.tiles > 0)
            .map(|entry| (entry.rank, &*entry.path))
            .collect();
        let resumed = || first_on_each("resumed");
        let waited_for =
            resumed().filter(|(path, _)| loaded.contains(path)).map(|(_, at_ns)| at_ns);
        let elsewhere = waited_for.max().or_else(|| resumed().map(|(_, at_ns)| at_ns).min());
        let back = first_on_each("returned").map(|(_, at_ns)| at_ns).max();
        let noticed = of("given-up").next();
        Self {
            fault,
            kind: kind.to_owned(),
            host: cut.action.cable.host,
            rail: cut.action.cable.rail,
            measured: cut.measured,
            at_ns: cut.began_ns,
            was_out: false,
            noticed_ms: noticed.map(|entry| after_ms(cut, entry.at_ns)),
            evidence: noticed.and_then(|entry| entry.evidence.clone()),
            known_ms: given_up.values().max().map(|at_ns| after_ms(cut, *at_ns)),
            elsewhere_ms: elsewhere.map(|at_ns| after_ms(cut, at_ns)),
            tiles: of("resent").map(|entry| entry.tiles).sum(),
            bytes: of("resent").map(|entry| entry.bytes).sum(),
            healed_ms: None,
            back_ms: back.map(|at_ns| after_ms(cut, at_ns)),
        }
    }

    /// As a line below the table.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Self { fault, kind, host, rail, measured, tiles, bytes, .. } = self;
        let mut parts = Vec::new();
        match (self.noticed_ms, self.known_ms) {
            (Some(noticed), Some(known)) => {
                let evidence = self.evidence.as_deref().unwrap_or("unknown");
                parts.push(format!("noticed after {noticed:.1} ms ({evidence})"));
                parts.push(format!("everybody knows after {known:.1} ms"));
                parts.push(when(
                    "first good byte elsewhere",
                    "nothing sent elsewhere",
                    self.elsewhere_ms,
                ));
                parts.push(format!("{tiles} tiles ({bytes} bytes) sent again"));
            }
            _ if self.was_out => parts.push("the rail was still out of use".to_owned()),
            _ => parts.push("the rail stayed in use".to_owned()),
        }
        parts.push(when("healed", "not healed", self.healed_ms));
        if self.noticed_ms.is_some() {
            parts.push(when("back", "not back", self.back_ms));
        }
        let Measured { row_bytes, form } = measured;
        let parts = parts.join(", ");
        format!(
            "# fault {fault}: {kind} host {host} rail {rail}: {parts} ({row_bytes} bytes, {form})"
        )
    }
}

fn when(happened: &str, did_not: &str, after_ms: Option<f64>) -> String {
    after_ms.map_or_else(|| did_not.to_owned(), |ms| format!("{happened} after {ms:.1} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::fault::{Action, Fault, Turn};

    const MS: u64 = 1_000_000;
    const MEASURED: Measured = Measured { row_bytes: 1024, form: "in-place" };

    fn strike(turn: Turn, at_ms: u64) -> Strike {
        let cable = Cable { host: 1, rail: 0 };
        let action = Action { turn, fault: Fault::Carrier, cable };
        Strike {
            wish: 0,
            action,
            measured: MEASURED,
            began_ns: at_ms * MS,
            ended_ns: at_ms * MS + MS / 2,
        }
    }

    /// Between ranks of hosts with two ranks each.
    fn entry(rank: u32, path: &str, event: &str, at_ms: u64) -> Entry {
        let evidence = (event == "given-up").then(|| format!("seen by {rank}"));
        let tiles = if ["given-up", "resent"].contains(&event) && rank == 2 { 3 } else { 0 };
        let (event, path) = (event.to_owned(), path.to_owned());
        Entry {
            rank,
            at_ns: at_ms * MS,
            event,
            path,
            evidence,
            tiles,
            bytes: tiles * 10,
            ..Entry::default()
        }
    }

    #[test]
    fn a_cut_is_followed_until_the_next_one() {
        let (near, far) = ("rail 0 (rail0) to rank 0 rail 0", "rail 0 (rail0) to rank 2 rail 0");
        let other = "rail 1 (rail1) to rank 2 rail 1";
        let entries = [
            entry(0, other, "given-up", 11),
            entry(2, near, "given-up", 12),
            entry(0, far, "given-up", 15),
            entry(0, "rail 0 (rail0) to rank 4 rail 0", "given-up", 16),
            entry(2, near, "resent", 17),
            entry(2, near, "resumed", 18),
            entry(0, far, "resumed", 19),
            entry(2, near, "resumed", 20),
            entry(0, far, "returned", 40),
            entry(2, near, "returned", 41),
            entry(2, near, "returned", 71),
        ];
        let strikes = [
            strike(Turn::Cut, 10),
            strike(Turn::Heal, 30),
            strike(Turn::Cut, 60),
            strike(Turn::Heal, 65),
        ];
        let wishes = ["down:host=1,rail=0,at=50%".parse().unwrap()];
        let accounts = accounts(&strikes, &wishes, &entries, 2);
        assert_eq!(
            accounts.iter().map(Account::sentence).collect::<Vec<_>>(),
            [
                "# fault 1: down host 1 rail 0: noticed after 2.0 ms (seen by 2), everybody knows after \
                 5.0 ms, first good byte elsewhere after 8.0 ms, 3 tiles (30 bytes) sent again, healed \
                 after 20.5 ms, back after 31.0 ms (1024 bytes, in-place)",
                "# fault 2: down host 1 rail 0: the rail stayed in use, healed after 5.5 ms (1024 \
                 bytes, in-place)",
            ]
        );
    }

    #[test]
    fn a_rail_that_was_out_of_use_did_not_stay_in_use() {
        let path = "rail 0 (rail0) to rank 0 rail 0";
        let wishes = ["down:host=1,rail=0,at=50%".parse().unwrap()];
        let strikes = [strike(Turn::Cut, 10), strike(Turn::Heal, 30), strike(Turn::Cut, 60)];
        for (end, words) in [("suspected", "was still out of use"), ("returned", "stayed in use")] {
            let entries = [entry(2, path, "given-up", 12), entry(2, path, end, 40)];
            let accounts = accounts(&strikes, &wishes, &entries, 2);
            let sentence = accounts[1].sentence();
            assert!(sentence.contains(&format!("the rail {words}")), "{sentence}");
        }
    }

    #[test]
    fn what_never_happened_is_said() {
        let entries = [entry(3, "rail 0 (rail0) to rank 1 rail 0", "given-up", 10)];
        let wishes = ["down:host=1,rail=0,at=50%".parse().unwrap()];
        let accounts = accounts(&[strike(Turn::Cut, 10)], &wishes, &entries, 2);
        let sentence = accounts[0].sentence();
        for words in ["nothing sent elsewhere", "not healed", "not back"] {
            assert!(sentence.contains(words), "{sentence}");
        }
    }
}
