//! `--fault`: a benchmark on real networks that break while it is measured.
//!
//! The process that the user started becomes a [testbed], and the ranks run on its hosts. Rank 0 asks
//! it to cut and heal cables at the right iterations of every measurement, and tells afterwards how
//! the ranks got over it. docs/testbed.md is for users.
//!
//! | module | question it answers |
//! |---|---|
//! | [`wish`] | what is asked for? |
//! | [`script`] | what is due in one measurement, and when? |
//! | [`saboteur`] | how is it done while rank 0 measures? |
//! | [`watch`] | are all rails in use again, and what happened to them? |
//! | [`account`] | how long did it take to get over every cut? |
//!
//! [testbed]: crate::testbed

pub mod account;
pub mod saboteur;
pub mod script;
pub mod watch;
pub mod wish;

use std::time::Duration;

use ccl::Config;

use crate::arguments::Arguments;
use crate::error::Failure;
use crate::testbed::arguments::Arguments as Bed;
use crate::testbed::shape::Rate;
use crate::testbed::{self, INSIDE, clock};
use crate::{Outcome, environment};

/// What a cable carries if `--rate` is not given.
const RATE: Rate = Rate::Limited { bytes_per_second: 125_000_000 };

/// With it begins the argument that tells the ranks on a testbed where it takes orders.
pub const ORDERS: &str = "--orders=";

/// How long a rail that has failed again is kept out of use.
const HOLD: &str = "R2CCL_RAIL_HOLD";

/// Runs the ranks of this command line on a testbed and returns the worst exit status.
///
/// # Errors
/// A launcher has started this process, or there can be no testbed.
pub fn host(arguments: &Arguments) -> Outcome<u8> {
    if environment::has_launcher() {
        return Err(Failure::Input(
            "--fault makes its own hosts on this machine and starts the ranks itself: run it \
             without r2ccl run, torchrun, mpirun or Slurm"
                .to_owned(),
        ));
    }
    Ok(testbed::host(&bed(arguments)?)?)
}

/// Rails that break on purpose are not kept out of use, unless the environment says so.
pub fn prepare(config: &mut Config, arguments: &Arguments) {
    let is_chosen = |variable: &String| variable.split('=').next() == Some(HOLD);
    if !arguments.faults.is_empty() && !environment::relevant().iter().any(is_chosen) {
        config.settings.rail_hold = Duration::ZERO;
    }
}

/// The testbed for this command line. Its ranks get the same arguments and the name of its socket.
fn bed(arguments: &Arguments) -> Outcome<Bed> {
    let program =
        std::env::current_exe().map_err(|cause| Failure::system("finding this program", cause))?;
    let name = format!("perf-{}", clock::now_ns());
    let words = std::env::args_os().skip(1).filter(|word| word != INSIDE);
    let orders = format!("{ORDERS}{name}");
    let shape = wish::shape(arguments);
    Ok(Bed {
        hosts: shape.hosts,
        rails: shape.rails,
        rate: shape.rate,
        ranks_per_host: wish::processes_per_host(arguments),
        faults: Vec::new(),
        chaos: None,
        from: None,
        limit: None,
        json: None,
        control: Some(name),
        tell: None,
        inside: arguments.inside,
        command: std::iter::once(program.into()).chain(words).chain([orders.into()]).collect(),
    })
}
