//! What `--fault` and `--chaos` ask for, in the little language of [`ccl::fault`].

use std::str::FromStr;

use ccl::fault::Fields;
pub use ccl::fault::{FaultPlan, Timed};

use super::chaos::{ChaosFault, ChaosPlan};

impl FromStr for ChaosPlan {
    type Err = String;

    /// `SEED`, or `SEED:every=500ms,heal=500ms,most=1,hosts=1,faults=carrier+silent,second=5ms`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut fields = Fields::parse(text)?;
        let seed = fields.kind.parse().map_err(|_| format!("{:?} is no seed", fields.kind))?;
        let mut plan = Self::of(seed);
        if let Some(every_ns) = fields.take_ns("every")? {
            plan.every_ns = every_ns;
        }
        if let Some(heal_ns) = fields.take_ns("heal")? {
            plan.heal_ns = heal_ns;
        }
        plan.second_ns = fields.take_ns("second")?;
        if let Some(most) = fields.take("most")? {
            plan.most = most;
        }
        if let Some(hosts) = fields.take("hosts")? {
            plan.most_hosts = hosts;
        }
        if let Some(names) = fields.take::<String>("faults")? {
            plan.faults = names.split('+').map(str::parse).collect::<Result<_, _>>()?;
        }
        fields.finish()?;
        plan.checked()
    }
}

impl FromStr for ChaosFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|fault| fault.name() == text);
        known.ok_or_else(|| format!("{text:?} is none of admin, carrier, silent, oneway"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    #[test]
    fn chaos_is_a_seed_with_limits() {
        assert_eq!("7".parse(), Ok(ChaosPlan::of(7)));
        let text = "7:every=20ms,heal=1s,second=1ms,most=3,hosts=2,faults=silent+oneway";
        let plan: ChaosPlan = text.parse().unwrap();
        assert_eq!((plan.every_ns, plan.heal_ns), (20_000_000, SECOND_NS));
        assert_eq!((plan.second_ns, plan.most, plan.most_hosts), (Some(1_000_000), 3, 2));
        assert_eq!(plan.faults, [ChaosFault::Silent, ChaosFault::Oneway]);
        for text in ["", "x", "7:most=0", "7:hosts=0", "7:every=0s", "7:faults=", "7:fault=silent"]
        {
            assert!(text.parse::<ChaosPlan>().is_err(), "{text}");
        }
    }
}
