//! What is required of figures, and what became of it.

use std::cell::{Cell, RefCell};

use crate::{KIB, MIB, Outcome};

/// Calls of one graph. The driver queues a thousand kernels or so before a launch waits for earlier ones, and
/// ranks must not wait for each other there.
const CALLS: usize = 200;

/// What is required of a figure.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    /// Percent.
    AtLeast(f64),
    /// Microseconds.
    AtMost(f64),
}

/// What became of what is required.
#[derive(Default)]
pub(crate) struct Bars {
    /// Nothing is measured, so nothing is required.
    pub(crate) small: bool,
    reached: Cell<usize>,
    below: RefCell<Vec<String>>,
}

impl Bars {
    pub(crate) fn new(small: bool) -> Self {
        Self { small, ..Self::default() }
    }

    /// Bytes of an operand.
    pub(crate) fn large(&self) -> usize {
        if self.small { 16 * KIB } else { 256 * MIB }
    }

    /// Calls of one graph.
    pub(crate) fn calls(&self) -> usize {
        if self.small { CALLS / 10 } else { CALLS }
    }

    /// What is printed beside a figure.
    pub(crate) fn verdict(&self, label: &str, figure: f64, bar: Option<Bar>) -> String {
        let (is_reached, required) = match bar {
            Some(Bar::AtLeast(least)) if !self.small => (figure >= least, format!("{least} %")),
            Some(Bar::AtMost(most)) if !self.small => (figure <= most, format!("{most} us")),
            _ => return "-".into(),
        };
        if is_reached {
            self.reached.set(self.reached.get() + 1);
            return format!("ok ({required})");
        }
        self.below.borrow_mut().push(format!("{label}: {figure:.2}, not {required}"));
        format!("BELOW ({required})")
    }

    /// Says it all again in short, and fails if that is asked for.
    pub(crate) fn summary(&self, strict: bool) -> Outcome<()> {
        let below = self.below.borrow();
        below.iter().for_each(|line| println!("BELOW {line}"));
        let (reached, missed) = (self.reached.get(), below.len());
        println!("required figures: {reached} ok, {missed} BELOW");
        if strict && missed > 0 { Err("some figures are below".into()) } else { Ok(()) }
    }
}
