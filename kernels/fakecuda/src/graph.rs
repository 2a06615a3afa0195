//! Graphs: what was captured, and how it is run again.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::capture::{Capture, Mode};
use crate::codes::{Code, Result};
use crate::device::Device;
use crate::driver;
use crate::stream::{After, Stream};
use crate::work::Work;

/// A piece of work that begins when others have ended.
#[derive(Clone, Debug)]
struct Node {
    work: Work,
    after: Vec<usize>,
}

/// Work in a partial order. Every node is behind those it waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
}

/// A graph that was instantiated: nothing changes it any more, and it runs once at a time.
#[derive(Debug)]
pub(crate) struct Executable {
    graph: Arc<Graph>,
    /// Where it was launched last.
    last: Mutex<Option<After>>,
}

impl Executable {
    pub(crate) fn new(graph: Arc<Graph>) -> Self {
        Self { graph, last: Mutex::new(None) }
    }

    /// Puts it into a stream, behind where it was launched before.
    pub(crate) fn launch(&self, stream: &Arc<Stream>) -> Result<()> {
        let mut last = self.last.lock().map_err(|_| Code::Unknown)?;
        let before = last.clone().filter(|_| !stream.is_capturing());
        let launched = driver::push_after(stream, Work::Graph(Arc::clone(&self.graph)), before)?;
        if launched.1 > 0 {
            *last = Some(launched);
        }
        Ok(())
    }
}

/// A place in a capture: what comes next is behind these nodes.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) capture: Arc<Capture>,
    pub(crate) after: Vec<usize>,
}

impl Captured {
    pub(crate) fn begin(origin: usize, mode: Mode) -> Self {
        Self { capture: Capture::begin(origin, mode), after: Vec::new() }
    }

    /// Puts work behind everything that is here.
    pub(crate) fn push(&mut self, work: Work) -> Result<()> {
        self.capture.check()?;
        let mut graph = self.capture.graph.lock().map_err(|_| Code::Unknown)?;
        graph.nodes.push(Node { work, after: std::mem::take(&mut self.after) });
        self.after = vec![graph.nodes.len() - 1];
        Ok(())
    }

    /// Comes behind everything that is at another place, too.
    pub(crate) fn join(&mut self, other: &Self) {
        let all: BTreeSet<usize> = self.after.iter().chain(&other.after).copied().collect();
        self.after = all.into_iter().collect();
    }

    /// The whole graph, if everything in it comes before this place.
    pub(crate) fn end(&self) -> Result<Graph> {
        self.capture.check()?;
        let graph = self.capture.graph.lock().map_err(|_| Code::Unknown)?.clone();
        let mut last: BTreeSet<usize> = (0..graph.nodes.len()).collect();
        for node in &graph.nodes {
            last.retain(|index| !node.after.contains(index));
        }
        if last.iter().all(|index| self.after.contains(index)) {
            Ok(graph)
        } else {
            Err(Code::CaptureUnjoined)
        }
    }
}

impl Graph {
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Runs all nodes, side by side where they may be.
    pub(crate) fn run(&self, device: &'static Device) -> Result<()> {
        let (ended, endings) = mpsc::channel();
        let mut waiting: BTreeSet<usize> = (0..self.nodes.len()).collect();
        let mut done = BTreeSet::new();
        let mut outcome = Ok(());
        thread::scope(|scope| {
            let mut running = 0;
            while outcome.is_ok() && done.len() < self.nodes.len() {
                let is_ready = |index: &usize| {
                    self.nodes[*index].after.iter().all(|before| done.contains(before))
                };
                let ready: Vec<usize> = waiting.iter().copied().filter(is_ready).collect();
                waiting.retain(|index| !ready.contains(index));
                if let ([only], 0) = (&*ready, running) {
                    outcome = self.nodes[*only].work.run(device);
                    done.insert(*only);
                    continue;
                }
                for index in ready {
                    let (ended, work) = (ended.clone(), &self.nodes[index].work);
                    running += 1;
                    // Its receiver lives until all have ended.
                    scope.spawn(move || {
                        let _ = ended.send((index, work.run(device)));
                    });
                }
                let Ok((index, ending)) = endings.recv() else { break };
                running -= 1;
                done.insert(index);
                outcome = ending;
            }
            if let Err(code) = outcome {
                device.fail(code);
            }
        });
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_must_be_joined() {
        let nothing = || Work::Call { function: 0, argument: 0 };
        let mut origin = Captured::begin(1, Mode::Relaxed);
        origin.push(nothing()).expect("it goes on");
        let mut fork = origin.clone();
        fork.push(nothing()).expect("it goes on");
        origin.push(nothing()).expect("it goes on");
        assert_eq!(origin.end().map(|graph| graph.len()), Err(Code::CaptureUnjoined));
        origin.join(&fork);
        assert_eq!(origin.end().map(|graph| graph.len()), Ok(3));
        origin.push(nothing()).expect("it goes on");
        let graph = origin.end().expect("it is joined");
        let after: Vec<&[usize]> = graph.nodes.iter().map(|node| &*node.after).collect();
        assert_eq!(after, [&[][..], &[0], &[0], &[1, 2]]);
    }
}
