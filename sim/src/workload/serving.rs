//! Requests on servers of a language model, before and after NICs fail.
//!
//! Two servers with a GPU group each hold a model in one of two ways. In a *pipeline* each has half of the layers,
//! two batches are on the way, and every token passes between the servers. *Disaggregated*, the first one reads
//! prompts and hands keys and values to the second, which generates.
//!
//! Batching is continuous: an iteration has one token of every sequence that generates, and of waiting prompts as
//! many as fit into its budget of tokens. It takes as long as its operations or, if that is longer, as reading the
//! weights and the keys and values from memory. What passes between servers takes its bytes over the NICs that are
//! left.

use std::collections::VecDeque;

use serde::Deserialize;

use super::serving_file::parse;
use crate::cluster::Cluster;
use crate::cluster::montecarlo::percentile;
use crate::cluster::wrong::Wrong;

/// Numbers of two bytes.
const NUMBER_BYTES: f64 = 2.0;

/// How a model is spread over two servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Half of the layers on each.
    Pipeline,
    /// Prompts on one, generation on the other.
    Disaggregated,
}

/// What is done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// There is none.
    NoFailure,
    /// Bytes go over the rails that are left.
    Repair,
    /// The server starts anew, and everything on it.
    Restart,
    /// What is on the server, and all that comes, goes to another one with as much to do.
    Reroute,
}

impl Reaction {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::NoFailure, Self::Repair, Self::Restart, Self::Reroute];

    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoFailure => "no failure",
            Self::Repair => "r2ccl",
            Self::Restart => "restart server",
            Self::Reroute => "reroute requests",
        }
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Tokens of an answer.
    pub output: u32,
    /// For how long requests come, in seconds.
    pub seconds: f64,
    /// When NICs fail, in seconds.
    pub failure_at: f64,
}

/// A model on two servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// What it is called.
    pub name: String,
    /// Parameters of the model.
    pub parameters: f64,
    /// Its layers.
    pub layers: u32,
    /// Size of its hidden state.
    pub hidden: u32,
    /// Heads of keys and values.
    pub key_heads: u32,
    /// Size of a head.
    pub head: u32,
    /// How it is spread.
    pub mode: Mode,
    /// Useful operations of a GPU, each second.
    pub flops: f64,
    /// Bytes that a GPU reads from its memory, each second.
    pub memory: f64,
    /// Sequences at once.
    pub sequences: u32,
    /// Tokens of an iteration.
    pub tokens: u32,
    /// How long a restart takes, in seconds.
    pub restart: f64,
    /// What is asked.
    pub load: Load,
}

/// How requests fared. In seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Served {
    /// From the request to its first token, sorted.
    pub first_token: Vec<f64>,
    /// Between two tokens of a request, on average, sorted.
    pub per_token: Vec<f64>,
    /// From the request to its last token, sorted.
    pub last_token: Vec<f64>,
}

impl Served {
    /// Seconds to the first token that `percent` of 100 requests do not exceed.
    #[must_use]
    pub fn first(&self, percent: usize) -> f64 {
        percentile(&self.first_token, percent)
    }

    /// Seconds to the last token that `percent` of 100 requests do not exceed.
    #[must_use]
    pub fn whole(&self, percent: usize) -> f64 {
        percentile(&self.last_token, percent)
    }

    /// Seconds for a token that `percent` of 100 requests do not exceed.
    #[must_use]
    pub fn token(&self, percent: usize) -> f64 {
        percentile(&self.per_token, percent)
    }
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    number: usize,
    /// Tokens of the prompt that were read, and that were generated.
    read: u32,
    generated: u32,
}

/// What is known about a request.
#[derive(Clone, Copy, Debug)]
struct Request {
    made: f64,
    first: Option<f64>,
    last: Option<f64>,
    /// Whether it counts: others only keep the server busy.
    is_counted: bool,
}

/// Sequences that are in one batch, and when it can go on.
#[derive(Clone, Debug, Default)]
struct Batch {
    ready: f64,
    running: Vec<Sequence>,
}

impl Server {
    /// Reads the text of a file, and the name of the cluster in it; `name` is for messages.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn parse(name: &str, text: &str) -> Result<(String, Self), Wrong> {
        parse(name, text)
    }

    /// Requests at so many per second, with `lost` NICs of a server failing on the way.
    #[must_use]
    pub fn serve(&self, cluster: &Cluster, rate: f64, lost: u32, reaction: Reaction) -> Served {
        let Load { seconds, failure_at, .. } = self.load;
        match reaction {
            Reaction::NoFailure => {
                Run::new(self, cluster, self.coming(rate, 0.0, seconds)).served()
            }
            Reaction::Repair => {
                let mut run = Run::new(self, cluster, self.coming(rate, 0.0, seconds));
                let left = f64::from(cluster.nics.per_host.saturating_sub(lost).max(1));
                run.rates[1] = left * cluster.nics.bytes_per_second;
                run.stall = cluster.delays.detection + cluster.delays.migration;
                run.served()
            }
            Reaction::Restart => {
                let mut run = Run::new(self, cluster, self.coming(rate, 0.0, seconds));
                run.until(failure_at);
                run.reset(failure_at + self.restart);
                run.served()
            }
            Reaction::Reroute => self.rerouted(cluster, rate),
        }
    }

    /// Until the failure on one server; what is unfinished then, and what still comes, on another one that has as
    /// much to do of its own.
    fn rerouted(&self, cluster: &Cluster, rate: f64) -> Served {
        let Load { seconds, failure_at, .. } = self.load;
        let mut here = Run::new(self, cluster, self.coming(rate, 0.0, failure_at));
        here.until(failure_at);
        let (moved, done): (Vec<Request>, Vec<Request>) =
            here.requests.into_iter().partition(|request| request.last.is_none());
        let mut all: Vec<(f64, Request)> =
            moved.into_iter().map(|request| (failure_at, request)).collect();
        all.extend(self.coming(rate, failure_at, seconds));
        let others = self.coming(rate, 0.0, seconds).into_iter();
        all.extend(others.map(|(at, request)| (at, Request { is_counted: false, ..request })));
        all.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut there = Run::new(self, cluster, all);
        there.until(f64::INFINITY);
        there.requests.extend(done);
        there.summed_up()
    }

    /// Requests at fixed distances, from one moment to another.
    fn coming(&self, rate: f64, from: f64, to: f64) -> Vec<(f64, Request)> {
        let first = (from * rate).ceil();
        let moments = (0u32..).map(|number| (first + f64::from(number)) / rate);
        let moments = moments.take_while(|at| *at < to);
        moments
            .map(|at| (at, Request { made: at, first: None, last: None, is_counted: true }))
            .collect()
    }

    /// Bytes of keys and values of a token.
    fn cache_bytes(&self) -> f64 {
        let [layers, heads, head] = [self.layers, self.key_heads, self.head].map(f64::from);
        2.0 * layers * heads * head * NUMBER_BYTES
    }
}

/// A run of the servers.
struct Run<'a> {
    server: &'a Server,
    /// GPUs of a server.
    gpus: f64,
    /// Bytes per second between the servers, before and after the failure.
    rates: [f64; 2],
    /// For how long nothing moves between them from then on.
    stall: f64,
    alpha: f64,
    requests: Vec<Request>,
    /// Those that have not come yet, in order of time.
    coming: VecDeque<(f64, usize)>,
    waiting: VecDeque<Sequence>,
    batches: Vec<Batch>,
    /// When a stage can begin with the next batch; disaggregated, when the first server can.
    free: [f64; 2],
    /// Disaggregated: what was read, in the order in which it is at the other server.
    handed: VecDeque<(f64, Sequence)>,
    link_free: f64,
}

impl<'a> Run<'a> {
    /// Requests with the moments at which they come, in order.
    fn new(server: &'a Server, cluster: &Cluster, coming: Vec<(f64, Request)>) -> Self {
        let whole = f64::from(cluster.nics.per_host) * cluster.nics.bytes_per_second;
        let batches = if server.mode == Mode::Pipeline { 2 } else { 1 };
        Self {
            server,
            gpus: f64::from(cluster.gpus),
            rates: [whole; 2],
            stall: 0.0,
            alpha: cluster.nics.alpha,
            coming: coming.iter().enumerate().map(|(number, (at, _))| (*at, number)).collect(),
            requests: coming.into_iter().map(|(_, request)| request).collect(),
            waiting: VecDeque::new(),
            batches: vec![Batch::default(); batches],
            free: [0.0; 2],
            handed: VecDeque::new(),
            link_free: 0.0,
        }
    }

    /// To the end.
    fn served(mut self) -> Served {
        self.until(f64::INFINITY);
        self.summed_up()
    }

    fn summed_up(&self) -> Served {
        let counted = || self.requests.iter().filter(|request| request.is_counted);
        let mut first_token: Vec<f64> =
            counted().filter_map(|request| Some(request.first? - request.made)).collect();
        let others = f64::from(self.server.load.output.max(2) - 1);
        let per_token = |request: &Request| Some((request.last? - request.first?) / others);
        let mut per_token: Vec<f64> = counted().filter_map(per_token).collect();
        let mut last_token: Vec<f64> =
            counted().filter_map(|request| Some(request.last? - request.made)).collect();
        for list in [&mut first_token, &mut per_token, &mut last_token] {
            list.sort_unstable_by(f64::total_cmp);
        }
        Served { first_token, per_token, last_token }
    }

    /// Whatever ends before this moment; what would end later is lost.
    fn until(&mut self, end: f64) {
        match self.server.mode {
            Mode::Pipeline => while self.iterate(end) {},
            Mode::Disaggregated => {
                while self.read_prompts(end) {}
                while self.iterate(end) {}
            }
        }
    }

    /// The server begins anew at this moment, with all requests that have come and are not answered.
    fn reset(&mut self, at: f64) {
        let came = self.coming.front().map_or(self.requests.len(), |(_, number)| *number);
        let open = (0..came).filter(|number| self.requests[*number].last.is_none());
        self.waiting = open.map(|number| Sequence { number, read: 0, generated: 0 }).collect();
        let count = self.batches.len();
        self.batches = vec![Batch { ready: at, running: Vec::new() }; count];
        (self.free, self.link_free) = ([at; 2], at);
        self.handed.clear();
    }

    /// Requests that have come wait.
    fn admit(&mut self, now: f64) {
        while let Some((_, number)) = self.coming.pop_front_if(|(at, _)| *at <= now) {
            self.waiting.push_back(Sequence { number, read: 0, generated: 0 });
        }
    }

    /// Seconds of an iteration with so many tokens on one of `stages` servers that share the layers.
    fn stage_seconds(&self, tokens: f64, context: f64, stages: f64) -> f64 {
        let operations = 2.0 * self.server.parameters * tokens / (self.gpus * self.server.flops);
        let bytes = self.server.parameters * NUMBER_BYTES + context * self.server.cache_bytes();
        operations.max(bytes / (self.gpus * self.server.memory)) / stages
    }

    /// When so many bytes that can leave at `at` are at the other server. From the failure on nothing leaves for as
    /// long as the repair takes; what is left then goes on at the rate of the rails that are left.
    fn pass(&self, at: f64, bytes: f64) -> f64 {
        let failure_at = self.server.load.failure_at;
        let [whole, left] = self.rates;
        let gone = (failure_at - at).max(0.0) * whole;
        if at < failure_at && bytes <= gone {
            return at + bytes / whole + self.alpha;
        }
        at.max(failure_at + self.stall) + (bytes - gone) / left + self.alpha
    }

    /// One iteration of the batch that can go on first; whether there was one that ends in time.
    fn iterate(&mut self, end: f64) -> bool {
        let first = self.batches.iter().enumerate().min_by(|a, b| a.1.ready.total_cmp(&b.1.ready));
        let Some((number, now)) = first.map(|(number, batch)| (number, batch.ready)) else {
            return false;
        };
        if now >= end {
            return false;
        }
        let tokens = self.fill(number, now);
        if tokens == 0 {
            let next = match self.server.mode {
                Mode::Pipeline => self.coming.front().map(|(at, _)| *at),
                Mode::Disaggregated => self.handed.front().map(|(at, _)| *at),
            };
            self.batches[number].ready = next.unwrap_or(f64::INFINITY).max(now);
            return true;
        }
        let running = self.batches[number].running.iter();
        let context = running.map(|sequence| f64::from(sequence.read + sequence.generated)).sum();
        let ended = self.advance(now, f64::from(tokens), context);
        self.batches[number].ready = if ended < end { ended } else { f64::INFINITY };
        if ended < end {
            self.emit(number, ended);
        }
        true
    }

    /// When an iteration that can begin now ends.
    fn advance(&mut self, now: f64, tokens: f64, context: f64) -> f64 {
        let stages = if self.server.mode == Mode::Pipeline { 2.0 } else { 1.0 };
        let duration = self.stage_seconds(tokens, context, stages);
        if self.server.mode == Mode::Disaggregated {
            return now + duration;
        }
        let first = now.max(self.free[0]) + duration;
        let hop = tokens * f64::from(self.server.hidden) * NUMBER_BYTES;
        let second = self.pass(first, hop).max(self.free[1]) + duration;
        self.free = [first, second];
        // The tokens themselves, which are few bytes.
        self.pass(second, 0.0)
    }

    /// Takes waiting requests into a batch, and says how many tokens its iteration has: one of every sequence that
    /// generates, and of prompts what fits. What is read of prompts counts as read.
    fn fill(&mut self, number: usize, now: f64) -> u32 {
        let most = (self.server.sequences as usize / self.batches.len()).max(1);
        if self.server.mode == Mode::Disaggregated {
            let running = &mut self.batches[number].running;
            while running.len() < most
                && let Some((_, sequence)) = self.handed.pop_front_if(|(at, _)| *at <= now)
            {
                running.push(sequence);
            }
            return u32::try_from(running.len()).unwrap_or(u32::MAX);
        }
        self.admit(now);
        let (prompt, budget) = (self.server.load.prompt, self.server.tokens);
        let running = &mut self.batches[number].running;
        let generating = running.iter().filter(|sequence| sequence.read == prompt).count();
        let mut tokens = u32::try_from(generating).unwrap_or(u32::MAX).min(budget);
        for sequence in running.iter_mut().filter(|sequence| sequence.read < prompt) {
            let more = (prompt - sequence.read).min(budget - tokens);
            (sequence.read, tokens) = (sequence.read + more, tokens + more);
        }
        while tokens < budget && running.len() < most {
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            sequence.read = prompt.min(budget - tokens);
            tokens += sequence.read;
            running.push(sequence);
        }
        tokens
    }

    /// Every sequence of a batch whose prompt is read has a token more.
    fn emit(&mut self, number: usize, at: f64) {
        let Load { prompt, output, .. } = self.server.load;
        let requests = &mut self.requests;
        self.batches[number].running.retain_mut(|sequence| {
            if sequence.read < prompt {
                return true;
            }
            sequence.generated += 1;
            let request = &mut requests[sequence.number];
            request.first = request.first.or(Some(at));
            if sequence.generated >= output {
                request.last = Some(at);
            }
            sequence.generated < output
        });
    }

    /// Disaggregated: the first server reads as many prompts as fit into an iteration, and hands them over; whether
    /// it had any in time. Requests that come later are not admitted: to [`Self::reset`] they have not come.
    fn read_prompts(&mut self, end: f64) -> bool {
        if self.waiting.is_empty() {
            let Some((at, _)) = self.coming.front() else { return false };
            self.free[0] = self.free[0].max(*at);
        }
        let now = self.free[0];
        if now >= end {
            return false;
        }
        self.admit(now);
        let prompt = self.server.load.prompt;
        let count = (self.server.tokens / prompt).max(1) as usize;
        let count = count.min(self.waiting.len());
        let tokens = f64::from(prompt) * count as f64;
        let read = now + self.stage_seconds(tokens, tokens, 1.0);
        self.free[0] = read;
        let bytes = f64::from(prompt) * self.server.cache_bytes();
        for mut sequence in self.waiting.drain(..count).collect::<Vec<_>>() {
            let there = self.pass(read.max(self.link_free), bytes);
            self.link_free = there - self.alpha;
            if there < end {
                let request = &mut self.requests[sequence.number];
                request.first = request.first.or(Some(there));
                if self.server.load.output == 1 {
                    request.last = Some(there);
                    continue;
                }
                (sequence.read, sequence.generated) = (prompt, 1);
                self.handed.push_back((there, sequence));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
