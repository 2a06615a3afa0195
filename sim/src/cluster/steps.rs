//! The steps of all programs, and who waits for whom.

use ccl_core::program::{Action, Program};

/// Steps are cut so that none has more segments than this.
const MOST_SEGMENTS: usize = 4096;

/// A step of any rank.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) bytes: usize,
    pub(super) segments: u32,
    pub(super) done: u32,
    pub(super) after: Vec<usize>,
    pub(super) waiting: Vec<usize>,
    /// The lane on which it sends, or the lanes from which it receives, with its turn there.
    pub(super) sends: Option<usize>,
    pub(super) receives: Vec<(usize, usize)>,
}

impl Step {
    /// Bytes of one of its segments.
    pub(super) fn segment_bytes(&self, segment: u32) -> f64 {
        let (bytes, segments) = (self.bytes, self.segments as usize);
        let bound = |segment: usize| bytes * segment / segments;
        (bound(segment as usize + 1) - bound(segment as usize)) as f64
    }
}

/// Where the steps of every program begin among those of all.
pub(super) fn bases(programs: &[Program]) -> Vec<usize> {
    let mut next = 0;
    let base = |program: &Program| {
        next += program.steps.len();
        next - program.steps.len()
    };
    programs.iter().map(base).collect()
}

/// The steps of all programs, which know who waits for them.
pub(super) fn steps(programs: &[Program], segment_bytes: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for program in programs {
        let base = steps.len();
        for step in &program.steps {
            let segments = step.bytes.div_ceil(segment_bytes.max(1)).clamp(1, MOST_SEGMENTS);
            let segments = u32::try_from(segments).unwrap_or(u32::MAX);
            let is_copy = matches!(step.action, Action::Copy { .. });
            let after = step.after.iter().map(|before| base + *before as usize);
            steps.push(Step {
                bytes: step.bytes,
                segments,
                done: if is_copy { segments } else { 0 },
                after: after.collect(),
                waiting: Vec::new(),
                sends: None,
                receives: Vec::new(),
            });
            let number = steps.len() - 1;
            for before in steps[number].after.clone() {
                steps[before].waiting.push(number);
            }
        }
    }
    steps
}
