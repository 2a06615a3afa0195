//! One forward, one backward: the pipeline schedule of Megatron-LM.

/// What passes through a pipeline. Times in seconds, for one microbatch and one stage.
#[derive(Clone, Debug, PartialEq)]
pub struct Pipeline {
    /// Microbatches of an iteration.
    pub microbatches: u32,
    /// Of the forward pass.
    pub forward: f64,
    /// Of the backward pass.
    pub backward: f64,
    /// Between every stage and the next, in each direction; one fewer than there are stages.
    pub hops: Vec<f64>,
}

/// One pass of a microbatch through a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    Forward(usize),
    Backward(usize),
}

impl Pipeline {
    /// When the last backward pass ends, where the first forward pass begins at zero. A stage computes while what
    /// it has sent is on its way.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        let stages = self.hops.len() + 1;
        let count = self.microbatches as usize;
        let orders: Vec<Vec<Pass>> = (0..stages).map(|stage| order(stages, stage, count)).collect();
        // By stage and microbatch: when a pass had ended there.
        let mut forward = vec![vec![None; count]; stages];
        let mut backward = vec![vec![None; count]; stages];
        let mut next = vec![0; stages];
        let mut free = vec![0.0_f64; stages];
        let mut progresses = true;
        while std::mem::take(&mut progresses) {
            for stage in 0..stages {
                while let Some(pass) = orders[stage].get(next[stage]) {
                    let input: Option<f64> = match *pass {
                        Pass::Forward(_) if stage == 0 => Some(0.0),
                        Pass::Forward(number) => {
                            forward[stage - 1][number].map(|end: f64| end + self.hops[stage - 1])
                        }
                        Pass::Backward(number) if stage + 1 == stages => forward[stage][number],
                        Pass::Backward(number) => {
                            backward[stage + 1][number].map(|end: f64| end + self.hops[stage])
                        }
                    };
                    let Some(input) = input else { break };
                    let begin = free[stage].max(input);
                    let (ends, number, duration) = match *pass {
                        Pass::Forward(number) => (&mut forward[stage], number, self.forward),
                        Pass::Backward(number) => (&mut backward[stage], number, self.backward),
                    };
                    free[stage] = begin + duration;
                    ends[number] = Some(free[stage]);
                    next[stage] += 1;
                    progresses = true;
                }
            }
        }
        free.into_iter().fold(0.0, f64::max)
    }
}

/// What a stage does: forward passes until those behind it are busy, then one of each in turn, then the rest.
fn order(stages: usize, stage: usize, microbatches: usize) -> Vec<Pass> {
    let ahead = (stages - 1 - stage).min(microbatches);
    let warm = (0..ahead).map(Pass::Forward);
    let steady = (0..microbatches - ahead)
        .flat_map(|number| [Pass::Forward(number + ahead), Pass::Backward(number)]);
    let cool = (microbatches - ahead..microbatches).map(Pass::Backward);
    warm.chain(steady).chain(cool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bubbles_are_those_of_the_formula() {
        for (stages, microbatches) in [(1, 4), (2, 4), (4, 4), (8, 96), (8, 3)] {
            let hops = vec![0.0; stages - 1];
            let pipeline = Pipeline { microbatches, forward: 1.0, backward: 2.0, hops };
            let expected = 3.0 * (f64::from(microbatches) + stages as f64 - 1.0);
            assert!((pipeline.seconds() - expected).abs() < 1e-9, "{stages} {microbatches}");
        }
    }

    #[test]
    fn hops_delay_the_ends_and_what_waits_for_them() {
        let of = |hop: f64, microbatches| {
            let hops = vec![hop; 3];
            Pipeline { microbatches, forward: 1.0, backward: 2.0, hops }.seconds()
        };
        let (none, slow) = (of(0.0, 1), of(0.5, 1));
        assert!((slow - none - 6.0 * 0.5).abs() < 1e-9, "there and back: {slow} {none}");
        assert!(of(0.5, 16) - of(0.0, 16) >= 3.0);
        assert!(of(0.01, 16) > of(0.0, 16));
    }
}
