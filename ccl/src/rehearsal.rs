//! Which rehearsal a communicator takes part in.
//!
//! A NIC that breaks breaks for all communicators of a job at once. So the first communicator counts the
//! hosts and begins the time, and those made later, of the same ranks or some of them, go on with both:
//! host 1 is the same host in all of them.

use std::sync::{Arc, Mutex};

use ccl_core::error::Error;
use ccl_core::fault::Rehearsal;
use ccl_core::ids::Rank;
use ccl_transport::network::rehearsal::{Drill, Part};

use crate::driver::lock;

/// The drills of this process, each with what it was made for.
static DRILLS: Mutex<Vec<Begun>> = Mutex::new(Vec::new());

struct Begun {
    plan: Rehearsal,
    /// The identities of the hosts, as the plan counts them.
    hosts: Vec<String>,
    drill: Arc<Drill>,
}

/// One rank of a communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member<'a> {
    /// The identity of its host.
    pub(crate) host: &'a str,
    /// How many rails it has.
    pub(crate) rails: usize,
}

/// The part of rank `me`, where `members` are all ranks in order.
///
/// # Errors
/// A host or a rail of the plan does not exist.
pub(crate) fn part(plan: &Rehearsal, me: Rank, members: &[Member<'_>]) -> Result<Arc<Part>, Error> {
    let mut drills = lock(&DRILLS);
    let known = drills.iter().position(|begun| {
        begun.plan == *plan && members.iter().all(|member| begun.number(member).is_some())
    });
    let begun = match known {
        Some(known) => &drills[known],
        None => {
            drills.push(Begun::new(plan, members)?);
            &drills[drills.len() - 1]
        }
    };
    let hosts = members.iter().filter_map(|member| begun.number(member)).collect();
    Ok(Arc::new(Part::new(Arc::clone(&begun.drill), me, hosts)))
}

impl Begun {
    /// A rehearsal among these ranks, whose time has not begun.
    fn new(plan: &Rehearsal, members: &[Member<'_>]) -> Result<Self, Error> {
        let mut hosts: Vec<String> = Vec::new();
        let mut rails: Vec<usize> = Vec::new();
        for member in members {
            match hosts.iter().position(|host| host == member.host) {
                Some(host) => rails[host] = rails[host].max(member.rails),
                None => {
                    hosts.push(member.host.to_owned());
                    rails.push(member.rails);
                }
            }
        }
        plan.check(&rails)
            .map_err(|cause| Error::InvalidArgument(format!("R2CCL_FAULT=\"{plan}\": {cause}")))?;
        tracing::warn!(faults = %plan, "R2CCL_FAULT is set: rails will fail on purpose");
        if hosts.len() < 2 {
            tracing::warn!("there is one host, and nothing between hosts that could fail");
        }
        Ok(Self { plan: plan.clone(), hosts, drill: Arc::new(Drill::new(plan.clone())) })
    }

    /// The number of a rank's host.
    fn number(&self, member: &Member<'_>) -> Option<usize> {
        self.hosts.iter().position(|host| host == member.host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members<'a>(hosts: &[&'a str]) -> Vec<Member<'a>> {
        hosts.iter().map(|host| Member { host, rails: 2 }).collect()
    }

    fn drill(plan: &str, hosts: &[&str]) -> Result<Arc<Part>, Error> {
        part(&plan.parse().unwrap(), Rank(0), &members(hosts))
    }

    #[test]
    fn parts_of_a_job_are_in_the_same_drill_and_count_hosts_alike() {
        let plan = "silent:host=2,rail=1,at=0s";
        let whole = drill(plan, &["drill a", "drill a", "drill b", "drill c"]).unwrap();
        let some = drill(plan, &["drill c", "drill b"]).unwrap();
        assert!(Arc::ptr_eq(whole.drill(), some.drill()));
        whole.drill().begin();
        assert!(!some.reaches(1, Rank(1), 1) && some.reaches(0, Rank(1), 0));
        assert!(!whole.reaches(1, Rank(3), 1) && whole.reaches(1, Rank(2), 1));
        let other_job = drill(plan, &["drill a", "drill b", "drill d"]).unwrap();
        assert!(!Arc::ptr_eq(whole.drill(), other_job.drill()));
    }

    #[test]
    fn hosts_and_rails_that_do_not_exist_are_refused_with_the_name_of_the_setting() {
        for (plan, named) in [
            ("silent:host=2,rail=0,at=0s", "there is no host 2 rail 0"),
            ("silent:host=0,rail=2,at=0s", "there is no host 0 rail 2"),
        ] {
            let error = drill(plan, &["drill x", "drill y"]).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
            let text = error.to_string();
            assert!(text.contains(&format!("R2CCL_FAULT=\"{plan}\"")), "{text}");
            assert!(text.contains(named), "{text}");
        }
    }
}
