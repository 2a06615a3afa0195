//! What streams and graphs do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ccl_emulator::{Fault, Launch, Machine, Options, Progress, Reason, Schedule};

use crate::codes::Code;
use crate::device::Device;
use crate::event::Event;
use crate::graph::Graph;
use crate::{bell, outside, settings};

/// Instructions between two looks at whether anything moves.
const STEP: u64 = 20_000;

/// As many while nothing does: who waits leaves the processors to those it waits for.
const LOOK: u64 = 1_000;

/// Pauses of work that is late.
const LINGERING: usize = 50;

/// Threads of the largest grid that can wait for itself.
pub(crate) const RESIDENT_THREADS: u32 = 16 * 2048;

/// Where copied bytes come from.
#[derive(Clone, Debug)]
pub(crate) enum From {
    Address(u64),
    /// What was at the address when the copy was asked for.
    Bytes(Arc<[u8]>),
}

/// How a stream compares the word it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// It has come to the value, counting around.
    Reached,
    Equal,
    And,
    Nor,
}

impl Comparison {
    /// By the number of `CUstreamWaitValue_flags`.
    pub(crate) fn of(number: u32) -> Option<Self> {
        [Self::Reached, Self::Equal, Self::And, Self::Nor].get(number as usize).copied()
    }

    fn holds(self, found: u32, value: u32) -> bool {
        match self {
            Self::Reached => found.wrapping_sub(value).cast_signed() >= 0,
            Self::Equal => found == value,
            Self::And => found & value != 0,
            Self::Nor => !(found | value) != 0,
        }
    }
}

/// A piece of work.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Launch(Launch),
    Copy {
        to: u64,
        from: From,
        bytes: usize,
    },
    /// An element of some bytes, again and again.
    Fill {
        to: u64,
        element: u32,
        element_bytes: usize,
        count: usize,
    },
    Reach(Arc<Event>, u64),
    Await(Arc<Event>, u64),
    /// Waits for a word of memory, compared as the driver's flags say.
    AwaitWord {
        address: u64,
        value: u32,
        comparison: Comparison,
    },
    /// Everything that the stream has done before is seen by who sees the word.
    WriteWord {
        address: u64,
        value: u32,
    },
    Call {
        function: usize,
        argument: usize,
    },
    Graph(Arc<Graph>),
    /// Nothing, for a while.
    Linger,
}

impl Work {
    /// Whether it does nothing but wait for others.
    pub(crate) fn only_waits(&self) -> bool {
        matches!(self, Self::Await(..) | Self::AwaitWord { .. })
    }

    /// Does it, to its end, and be it a panic: others wait for this. Gives what is wrong with the device from then on.
    pub(crate) fn run(&self, device: &'static Device) -> Result<(), Code> {
        let done = catch_unwind(AssertUnwindSafe(|| self.act(device)));
        done.unwrap_or(Err(Code::Unknown))
    }

    fn act(&self, device: &'static Device) -> Result<(), Code> {
        match self {
            Self::Launch(launch) => return run_kernel(device, launch),
            Self::Copy { to, from: From::Address(from), bytes } => {
                outside::copy(*to, *from, *bytes);
            }
            Self::Copy { to, from: From::Bytes(bytes), .. } => outside::write(*to, bytes),
            Self::Fill { to, element, element_bytes, count } => {
                outside::write(*to, &element.to_le_bytes()[..*element_bytes].repeat(*count));
            }
            Self::Reach(event, number) => event.reach(*number),
            Self::Await(event, number) => {
                bell::wait_until(|| event.is_reached(*number) || device.error().is_some());
            }
            Self::AwaitWord { address, value, comparison } => bell::wait_until(|| {
                let found = outside::word(*address);
                comparison.holds(found, *value) || device.error().is_some()
            }),
            Self::WriteWord { address, value } => {
                outside::set_word(*address, *value);
                bell::ring();
            }
            Self::Call { function, argument } => outside::call(*function, *argument),
            Self::Graph(graph) => return graph.run(device),
            Self::Linger => (0..LINGERING).for_each(|_| bell::pause()),
        }
        Ok(())
    }
}

fn run_kernel(device: &'static Device, launch: &Launch) -> Result<(), Code> {
    let schedule = settings::number(settings::SEED).map_or(Schedule::InOrder, Schedule::Random);
    let options = Options {
        schedule,
        torn: settings::number(settings::TORN) == Some(1),
        split: false,
        weak: false,
        resident_threads: RESIDENT_THREADS,
        // Hosts and other kernels may still change what it waits for.
        patience: None,
    };
    let mut machine = Machine::new(&device.memory, options);
    if let Err(error) = machine.launch(0, launch.clone()) {
        outside::say(&error.to_string());
        return Err(Code::LaunchFailed);
    }
    let mut instructions = STEP;
    loop {
        match machine.step(instructions) {
            Ok(Progress::Idle) => return Ok(()),
            Ok(Progress::Moving) => instructions = STEP,
            Ok(Progress::Waiting) => {
                instructions = LOOK;
                bell::pause();
            }
            Err(fault) => {
                outside::say(&fault.to_string());
                return Err(code(&fault));
            }
        }
        if device.error().is_some() {
            // What others wait for will not come any more.
            return Ok(());
        }
    }
}

fn code(fault: &Fault) -> Code {
    match fault.reason {
        Reason::OutOfBounds { .. } => Code::IllegalAddress,
        Reason::Misaligned { .. } => Code::Misaligned,
        Reason::Trap
        | Reason::Deadlock(_)
        | Reason::UndefinedFunction(_)
        | Reason::StackOverflow
        | Reason::NotAMember
        | Reason::Apart { .. }
        | Reason::OutOfRange(_) => Code::LaunchFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_compared_as_the_flags_say() {
        let all: Vec<Comparison> = (0..4).filter_map(Comparison::of).collect();
        let holds = |found, value| -> Vec<bool> {
            all.iter().map(|comparison| comparison.holds(found, value)).collect()
        };
        // Reached, equal, and, nor.
        assert_eq!(holds(7, 7), [true, true, true, true]);
        assert_eq!(holds(8, 7), [true, false, false, true]);
        assert_eq!(holds(6, 7), [false, false, true, true]);
        assert_eq!(holds(u32::MAX, 1), [false, false, true, false]);
        // Words count around.
        assert_eq!(holds(1, u32::MAX), [true, false, true, false]);
        assert_eq!(Comparison::of(4), None);
    }

    #[test]
    fn a_panic_is_an_end_too() {
        // No element is as large.
        let panics = Work::Fill { to: 0, element: 0, element_bytes: 5, count: 1 };
        assert_eq!(panics.run(&Device::all()[0]), Err(Code::Unknown));
    }
}
