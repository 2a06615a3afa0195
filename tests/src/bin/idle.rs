//! What a communicator costs that has nothing to do: processor time and memory of each rank.
//!
//! `idle RANKS HOSTS RAILS SECONDS KILOBYTES` starts so many processes, which pretend to be on so many hosts with
//! so many rails each; 0 rails: those of the machine. Every rank makes a communicator and calls an AllToAll with so
//! many kilobytes for each peer, so that all links have been used; then it waits. Processor time is that of all
//! threads of the process meanwhile, memory what it has more than before it had a communicator.
#![allow(clippy::disallowed_methods, reason = "waiting and watching the time is what it is for")]
#![allow(clippy::print_stdout, reason = "its result is what it prints")]

use std::env;
use std::error::Error;
use std::fs;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ccl::{Communicator, Config};
use ccl_tests::testbed::port::ReservedPort;

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Set for the processes that are ranks: how long they wait.
const MEMBER: &str = "IDLE_MEMBER_SECONDS";
/// Likewise: how many kilobytes they send to each other.
const BLOCK: &str = "IDLE_MEMBER_KILOBYTES";
const USAGE: &str = "usage: idle RANKS HOSTS RAILS SECONDS KILOBYTES";

fn main() -> Outcome<()> {
    if let Ok(seconds) = env::var(MEMBER) {
        return member(Duration::from_secs_f64(seconds.parse()?));
    }
    let numbers: Vec<usize> =
        env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [ranks, hosts, rails, seconds, kilobytes] = numbers[..] else { return Err(USAGE.into()) };
    let port = ReservedPort::new()?;
    let start = |rank| start(rank, [ranks, hosts, rails, seconds, kilobytes], port.number());
    let members: Vec<Member> = (0..ranks).map(start).collect::<Result<_, _>>()?;
    println!("rank  % of a processor  MB private  MB shared  threads");
    for (rank, mut child) in members.into_iter().enumerate() {
        let mut line = String::new();
        child.0.stdout.take().ok_or("no output")?.read_to_string(&mut line)?;
        if !child.0.wait()?.success() {
            return Err(format!("rank {rank} failed").into());
        }
        println!("{rank:4}  {}", line.trim_end());
    }
    Ok(())
}

/// A process that is a rank. Dropping it kills it, so that none outlives an error.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(rank: usize, numbers: [usize; 5], port: u16) -> Outcome<Member> {
    let [ranks, hosts, rails, seconds, kilobytes] = numbers;
    let host = rank * hosts / ranks;
    let addresses: Vec<String> =
        (1..=rails).map(|rail| format!("127.1.{}.{rail}", host + 1)).collect();
    let mut command = Command::new(env::current_exe()?);
    command
        .env(MEMBER, seconds.to_string())
        .env(BLOCK, kilobytes.to_string())
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("LOCAL_RANK", rank.to_string())
        .env("R2CCL_BOOTSTRAP", format!("127.0.0.1:{port}"))
        .env("R2CCL_JOB_KEY", format!("idle {}", std::process::id()))
        .stdout(Stdio::piped());
    if hosts > 1 {
        command.env("R2CCL_HOST_ID", format!("host{host}"));
    }
    if rails > 0 {
        command.env("R2CCL_RAILS", addresses.join(","));
    }
    Ok(Member(command.spawn()?))
}

/// What a rank does: it prints its line at the end.
fn member(patience: Duration) -> Outcome<()> {
    let before = [memory("RssAnon:")?, memory("RssShmem:")?];
    let world = Communicator::from_environment(&Config::from_environment()?)?;
    exchange(&world, env::var(BLOCK)?.parse()?)?;
    world.barrier()?;
    let after = [memory("RssAnon:")?, memory("RssShmem:")?];
    let (began, used) = (Instant::now(), processor_s()?);
    thread::sleep(patience);
    let share = 100.0 * (processor_s()? - used) / began.elapsed().as_secs_f64();
    let threads = fs::read_dir("/proc/self/task")?.count();
    let [private, shared] = [0, 1].map(|kind| (after[kind] - before[kind]) / 1e6);
    world.barrier()?;
    world.finalize()?;
    println!("{share:16.3}  {private:10.2}  {shared:9.2}  {threads:7}");
    Ok(())
}

/// Every rank sends something to every other; the memory for it is gone afterwards.
fn exchange(world: &Communicator, kilobytes: usize) -> Outcome<()> {
    let elements = kilobytes * 1024 / size_of::<f32>() * world.size() as usize;
    let (sent, mut received) = (vec![1.0_f32; elements], vec![0.0; elements]);
    world.all_to_all(&sent, &mut received)?;
    if sent == received { Ok(()) } else { Err("wrong results".into()) }
}

/// Bytes of this process in memory.
fn memory(kind: &str) -> Outcome<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(kind));
    let kilobytes: f64 =
        line.and_then(|line| line.split_whitespace().next()).unwrap_or("0").parse()?;
    Ok(kilobytes * 1024.0)
}

/// Processor time of all threads of this process, to the nanosecond.
fn processor_s() -> Outcome<f64> {
    let mut sum = 0.0;
    for task in fs::read_dir("/proc/self/task")? {
        let text = fs::read_to_string(task?.path().join("schedstat"))?;
        sum += text.split_whitespace().next().unwrap_or("0").parse::<f64>()? * 1e-9;
    }
    Ok(sum)
}
