//! Cuts and heals cables while rank 0 measures: a thread beside it that asks the testbed.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::script::Script;
use super::wish::Wish;
use crate::Outcome;
use crate::error::Failure;
use crate::testbed::failure::Failure as BedFailure;
use crate::testbed::fault::{Action, Turn};
use crate::testbed::journal::Event;
use crate::testbed::{clock, control};

/// What is measured while cables break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// The size of the row.
    pub row_bytes: usize,
    /// `out-of-place` or `in-place`.
    pub form: &'static str,
}

/// A cut or a healing that took place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strike {
    /// Which of the wishes it belongs to.
    pub wish: usize,
    /// What was done.
    pub action: Action,
    /// Meanwhile.
    pub measured: Measured,
    /// Just before the kernel was asked, in nanoseconds of `CLOCK_MONOTONIC`.
    pub began_ns: u64,
    /// When the kernel had done it.
    pub ended_ns: u64,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Saboteur {
    wishes: Vec<Wish>,
    orders: Sender<Order>,
    /// Iterations of this measurement that the thread wants to know of.
    turns: Vec<usize>,
    shared: Arc<Mutex<Shared>>,
}

/// What happens to a measurement.
#[derive(Debug)]
enum Order {
    Begin(Script, Measured),
    Reached { turn: usize, now_ns: u64 },
    End { now_ns: u64 },
}

/// What the thread lets others know.
#[derive(Debug, Default)]
struct Shared {
    /// Everything that was cut in this measurement is healed.
    is_whole: bool,
    strikes: Vec<Strike>,
    /// Wishes that were not made because a measurement was too short, once for each time.
    missed: Vec<usize>,
    failure: Option<BedFailure>,
}

impl Saboteur {
    /// Waits for measurements; orders go to the testbed called `name`.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(name: &str, wishes: &[Wish]) -> Outcome<Self> {
        let (orders, inbox) = channel();
        let shared = Arc::new(Mutex::new(Shared { is_whole: true, ..Shared::default() }));
        let mut work = Work { name: name.to_owned(), shared: Arc::clone(&shared), scene: None };
        thread::Builder::new()
            .name("saboteur".to_owned())
            .spawn(move || work.until_dismissed(&inbox))
            .map_err(|cause| Failure::system("starting a thread", cause))?;
        Ok(Self { wishes: wishes.to_vec(), orders, turns: Vec::new(), shared })
    }

    /// The first of `turns` timed iterations is about to begin.
    pub fn begin(&mut self, measured: Measured, turns: usize) {
        let script = Script::start(&self.wishes, turns, clock::now_ns());
        self.turns = script.turns();
        lock(&self.shared).is_whole = false;
        self.order(Order::Begin(script, measured));
    }

    /// Iteration `turn` is about to begin.
    pub fn reached(&self, turn: usize) {
        if self.turns.contains(&turn) {
            self.order(Order::Reached { turn, now_ns: clock::now_ns() });
        }
    }

    /// The measurement is over: everything shall be healed, each in its time.
    pub fn end(&self) {
        self.order(Order::End { now_ns: clock::now_ns() });
    }

    /// Whether everything is healed.
    ///
    /// # Errors
    /// The testbed refuses, or is gone.
    pub fn is_whole(&self) -> Outcome<bool> {
        let mut shared = lock(&self.shared);
        match shared.failure.take() {
            Some(failure) => Err(failure.into()),
            None => Ok(shared.is_whole),
        }
    }

    /// What was done so far.
    #[must_use]
    pub fn strikes(&self) -> Vec<Strike> {
        lock(&self.shared).strikes.clone()
    }

    /// For every wish that some measurement was too short for: its words, and how many.
    #[must_use]
    pub fn missed(&self) -> Vec<(String, usize)> {
        let shared = lock(&self.shared);
        let times = |index| shared.missed.iter().filter(|missed| **missed == index).count();
        let all =
            self.wishes.iter().enumerate().map(|(index, wish)| (wish.text.clone(), times(index)));
        all.filter(|(_, times)| *times > 0).collect()
    }

    fn order(&self, order: Order) {
        // A thread that has ended has left a failure, which the next look at it finds.
        let _ = self.orders.send(order);
    }
}

/// What the thread does.
#[derive(Debug)]
struct Work {
    name: String,
    shared: Arc<Mutex<Shared>>,
    scene: Option<Scene>,
}

/// A measurement as the thread knows it.
#[derive(Debug)]
struct Scene {
    script: Script,
    measured: Measured,
    has_ended: bool,
}

impl Work {
    fn until_dismissed(&mut self, inbox: &Receiver<Order>) {
        loop {
            if let Err(failure) = self.strike_due() {
                lock(&self.shared).failure = Some(failure);
                return;
            }
            match self.next_order(inbox) {
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn next_order(&self, inbox: &Receiver<Order>) -> Result<Order, RecvTimeoutError> {
        match self.scene.as_ref().and_then(|scene| scene.script.next_ns()) {
            Some(next_ns) => {
                let pause_ns = next_ns.saturating_sub(clock::now_ns());
                inbox.recv_timeout(Duration::from_nanos(pause_ns))
            }
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn obey(&mut self, order: Order) {
        match (order, &mut self.scene) {
            (Order::Begin(script, measured), scene) => {
                *scene = Some(Scene { script, measured, has_ended: false });
            }
            (Order::Reached { turn, now_ns }, Some(scene)) => scene.script.reached(turn, now_ns),
            (Order::End { now_ns }, Some(scene)) => {
                lock(&self.shared).missed.extend(scene.script.end(now_ns));
                scene.has_ended = true;
            }
            (Order::Reached { .. } | Order::End { .. }, None) => {}
        }
    }

    fn strike_due(&mut self) -> Result<(), BedFailure> {
        let Some(scene) = &mut self.scene else { return Ok(()) };
        while let Some(due) = scene.script.take_due(clock::now_ns()) {
            let (wish, action, measured) = (due.wish, due.action, scene.measured);
            let (began_ns, ended_ns) = strike(&self.name, action)?;
            scene.script.done(due, clock::now_ns());
            let strike = Strike { wish, action, measured, began_ns, ended_ns };
            lock(&self.shared).strikes.push(strike);
        }
        if scene.has_ended && scene.script.is_over() {
            lock(&self.shared).is_whole = true;
        }
        Ok(())
    }
}

/// Asks the testbed for an action and tells when it took place.
fn strike(name: &str, action: Action) -> Result<(u64, u64), BedFailure> {
    match control::tell(name, &action.request())? {
        Event::Fault { began_ns, ended_ns, .. } => Ok((began_ns, ended_ns)),
        Event::Refused { reason } => Err(BedFailure::Input(reason)),
        Event::Started { .. } | Event::Ended { .. } => {
            Err(BedFailure::Input(format!("testbed {name:?} gives a wrong answer")))
        }
    }
}

impl Strike {
    /// Whether it is a cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.action.turn == Turn::Cut
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
