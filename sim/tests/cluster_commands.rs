//! The commands of `r2ccl-sim`, as users run them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &str) -> Output {
    let words = arguments.split_whitespace();
    let output = Command::new(env!("CARGO_BIN_EXE_r2ccl-sim")).args(words).output();
    output.expect("the binary is there")
}

fn printed(arguments: &str) -> String {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &str) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments} should fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file with this text, in a directory that goes away with the value.
fn file(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cluster.toml");
    std::fs::write(&path, text).unwrap();
    let name = path.to_str().unwrap().to_owned();
    (directory, name)
}

fn preset(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn strategies_are_compared() {
    let text = printed("collective --hosts 4 --lost 1:0 --bytes 256M --json");
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    let seconds = |name: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["strategy"] == name).unwrap();
        row["seconds"].as_f64().unwrap()
    };
    assert!(seconds("r2ccl_hot_repair") > seconds("balance"));
    assert!(seconds("balance") > seconds("planner"));
    let bound = rows[0]["bound_seconds"].as_f64().unwrap();
    assert!(seconds("planner") > bound);
    let table = printed("collective --hosts 4 --lost 1:0 --bytes 256M");
    assert_eq!(table.lines().count(), 6, "{table}");
    assert!(table.lines().nth(1).unwrap().starts_with("r2ccl_hot_repair"), "{table}");
}

#[test]
fn a_failure_in_the_middle_costs_its_detection() {
    let seconds = |more: &str| {
        let text = printed(&format!("collective --hosts 4 --bytes 1G --algo ring --json {more}"));
        let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
        rows[0]["seconds"].as_f64().unwrap()
    };
    let (whole, hit) = (seconds(""), seconds("--fails 2:3 --at 1ms"));
    assert!(hit > whole + 3e-3 && hit < whole / 0.875 + 5e-3, "{hit} instead of {whole}");
}

#[test]
fn a_failure_in_the_middle_is_repaired_as_each_strategy_does() {
    let rows = |more: &str| -> Vec<(String, f64)> {
        let text = printed(&format!("collective --hosts 4 --bytes 1G --json {more}"));
        let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
        let row = |row: &serde_json::Value| {
            let name = row["strategy"].as_str().unwrap().to_owned();
            (name, row["seconds"].as_f64().unwrap())
        };
        rows.as_array().unwrap().iter().map(row).collect()
    };
    let names = |rows: &[(String, f64)]| {
        rows.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>().join(" ")
    };
    let hit = rows("--fails 2:3 --at 1ms");
    assert_eq!(names(&hit), "r2ccl_hot_repair balance planner");
    assert!(hit[0].1 > 1.4 * hit[1].1, "one rail carries what two did: {hit:?}");
    assert_eq!(names(&rows("")), "balance planner", "without a failure there is one ring");
    let degraded = rows("--lost 0:0 --fails 2:3 --at 1ms");
    assert_eq!(degraded.len(), 5, "{degraded:?}");
}

#[test]
fn strategies_that_cannot_work_are_left_out() {
    let halves = "--hosts 4 --bytes 1M --lost 0:0,0:1,0:2,0:3,1:4,1:5,1:6,1:7";
    let table = printed(&format!("collective {halves}"));
    assert!(table.contains("left out: balance: the planner takes another"), "{table}");
    assert!(table.contains("\nplanner"), "{table}");
    let said = refused(&format!("collective {halves} --algo balance"));
    assert!(said.contains("balance was asked for"), "{said}");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let of = |jobs: &str| {
        printed(&format!("montecarlo --train train-rlhf --failures 2 --patterns 6 --seed 3 {jobs}"))
    };
    assert_eq!(of("--jobs 1"), of("--jobs 2"));
}

#[test]
fn training_serving_and_what_if_answer() {
    let text = printed("train train-13b");
    assert!(text.contains("hot repair") && text.contains("68 minutes"), "{text}");
    let text = printed("serve serve-70b --rates 1 --json");
    let rows: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 4);
    let text = preset("h100.toml") + "\n[[failure]]\nhost = 1\nrail = 2\nat_milliseconds = 1.0\n";
    let (_directory, name) = file(&text);
    let text = printed("what-if a100 --bytes 1M");
    let row = text.lines().find(|line| line.starts_with("7 of 8")).unwrap();
    let kept: f64 = row.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(kept > 90.0, "hops are no longer than in a ring without a failure: {row}");
    let text = printed(&format!("what-if {name} --bytes 64M --train train-2.7b"));
    for part in ["1 of them lost", "7 of 8", "during which they happen", "train-2.7b on 2 hosts"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_line_and_remedy() {
    let table = [
        ("hosts = 64", "host = 64", ":4: unknown field `host`; write one of"),
        ("gigabytes_per_second = 23.5", "gigabytes_per_second = -1.0", "a capacity of -1; write"),
        ("gigabytes_per_second = 240.0", "gigabytes_per_second = 0.0", "a capacity of 0; write"),
    ];
    for (good, bad, expected) in table {
        let text = preset("a100.toml").replacen(good, bad, 1);
        let (_directory, name) = file(&text);
        let said = refused(&format!("collective --cluster {name}"));
        assert!(said.contains(expected) && said.contains("cluster.toml:"), "{bad}: {said}");
    }
    let text = preset("a100.toml") + "\n[[failure]]\nhost = 9\nrail = 0\n";
    let (_directory, name) = file(&text);
    for command in ["montecarlo --patterns 1", "scale", "serve", "train --random 1"] {
        let said = refused(&format!("{command} --cluster {name}"));
        assert!(said.contains("a100 has 1 [[failure]]"), "{command}: {said}");
    }
    let (_directory, many) = file(&preset("a100.toml").replacen("hosts = 64", "hosts = 2000", 1));
    let said = refused(&format!("collective --cluster {many}"));
    assert!(said.contains("2000 hosts: let there be 1024 at most"), "{said}");
    let said = refused(&format!("collective --hosts 8 --cluster {name}"));
    assert!(said.contains("there is no NIC 9:0"), "{said}");
    let text = preset("train-7b.toml").replacen("tensor = 4", "tensor = 3", 1);
    let (_directory, name) = file(&text);
    let said = refused(&format!("train {name}"));
    assert!(said.contains("tensor = 3 does not divide the 8 GPUs"), "{said}");
    assert!(said.contains("write 1, 2, 4, 8"), "{said}");
    let text = preset("serve-70b.toml").replacen("\nseconds = 100", "\nseconds = 100000000", 1);
    let (_directory, name) = file(&text);
    let said = refused(&format!("serve {name}"));
    assert!(said.contains("1000000 at most"), "{said}");
    let text = preset("a100.toml").replace("\nper_host = 8", "\nper_host = 1");
    let (_directory, name) = file(&(text + "\n[[failure]]\nhost = 0\nrail = 0\n"));
    let said = refused(&format!("what-if {name}"));
    assert!(said.contains("more failures than rails"), "{said}");
    for (arguments, expected) in [
        ("train nothing.toml", "name a file, or one of a100"),
        ("collective --lost 64:0", "there is no NIC 64:0"),
        ("collective --hosts 4 --algo sorcery", "no algorithm"),
        ("montecarlo --failures 449..449 --patterns 1", "448"),
        ("serve --lost 8", "more failures than rails"),
        ("train --hosts 3", "do not fit"),
        ("train --hosts 536870912", "is not in 1..=65536"),
        ("train --lost 0:0,0:0", "NIC 0:0 fails twice"),
        ("train --lost 64:0", "there is no NIC 64:0"),
        ("collective --fails 0:0 --lost 0:0", "NIC 0:0 fails twice"),
        ("collective --lost 0:0,0:1,0:2,0:3,0:4,0:5,0:6,0:7", "host 0 has no NIC left"),
        ("serve --lost 0", "0 is not in 1.."),
        ("montecarlo --failures 0..18446744073709551615", "up to"),
        ("montecarlo --failures 1..100 --patterns 1000000", "10000000 at most"),
        ("scale --hosts 64 --svg curves.svg", "name another --hosts"),
        ("scale --hosts 1", "1 is not in 2..=65536"),
    ] {
        let said = refused(arguments);
        assert!(said.contains(expected), "{arguments}: {said}");
    }
}
