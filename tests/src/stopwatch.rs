//! The only place of the benchmark that reads clocks.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures time; it does so here only")]

use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// Measures wall time and the processor time of the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    wall: Instant,
    processor_s: f64,
}

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { processor_s: processor_s(), wall: Instant::now() }
    }

    /// Wall time since the start, in seconds.
    #[must_use]
    pub fn wall_s(&self) -> f64 {
        self.wall.elapsed().as_secs_f64()
    }

    /// Leaves out what has happened since `pause` started.
    pub fn leave_out(&mut self, pause: &Self) {
        self.wall += pause.wall.elapsed();
        self.processor_s += pause.processor_s();
    }

    /// Processor time of this thread since the start, in seconds.
    #[must_use]
    pub fn processor_s(&self) -> f64 {
        processor_s() - self.processor_s
    }
}

/// The local time as nccl-tests prints it.
#[must_use]
pub fn timestamp() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string()
}

fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    #[allow(clippy::cast_precision_loss, reason = "seconds of processor time are far below 2^53")]
    let (seconds, nanoseconds) = (time.tv_sec as f64, time.tv_nsec as f64);
    seconds + nanoseconds * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_left_out_of_both_times() {
        let whole = Stopwatch::start();
        let mut watch = whole;
        let pause = Stopwatch::start();
        while pause.wall_s() < 0.001 || pause.processor_s() < 0.001 {}
        watch.leave_out(&pause);
        let [own_s, own_processor_s] = [watch.wall_s(), watch.processor_s()];
        // What is read later is longer.
        assert!(whole.wall_s() - own_s >= 0.001 && own_s >= 0.0);
        assert!(whole.processor_s() - own_processor_s >= 0.001 && own_processor_s >= 0.0);
    }
}
