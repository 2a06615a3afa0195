//! Who is killed when, and who comes.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::arguments::Arguments;
use super::company::Company;
use crate::Outcome;

/// All are together for at most so long before something happens.
const LONGEST_PEACE: Duration = Duration::from_millis(200);
/// Somebody is killed at most so long after others were let in: before, while or right after they join.
const LONGEST_COMING: Duration = Duration::from_millis(80);
/// Two are killed within this, if not at once.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Kills and starts members until the time is over.
///
/// # Errors
/// Somebody has not gone on, or a result was wrong.
pub fn run(arguments: &Arguments) -> Outcome<()> {
    let mut company = Company::new(arguments.hosts, arguments.patience.into());
    let outcome = direct(&mut company, arguments);
    company.account.print(arguments);
    outcome
}

fn direct(company: &mut Company, arguments: &Arguments) -> Outcome<()> {
    let mut dice = StdRng::seed_from_u64(arguments.seed);
    company.found(arguments.members)?;
    company.await_newcomers(arguments.members - 1)?;
    company.unite()?;
    let began = Instant::now();
    let rounds = arguments.rounds.unwrap_or(u64::MAX);
    for _ in (0..rounds).take_while(|_| began.elapsed() < arguments.time.into()) {
        company.listen(dice.random_range(Duration::ZERO..LONGEST_PEACE))?;
        happen(company, arguments, &mut dice)?;
    }
    Ok(())
}

/// Some come, or some are killed, or both; and all are together again.
fn happen(company: &mut Company, arguments: &Arguments, dice: &mut StdRng) -> Outcome<()> {
    let room = arguments.members.saturating_sub(company.size());
    let come = room > 0 && (company.size() == 1 || dice.random_bool(0.4));
    let newcomers = if come { dice.random_range(1..=room) } else { 0 };
    let die = company.size() > 1 && (!come || dice.random_bool(0.5));
    let before = company.size();
    let together = company.disperse();
    if come {
        company.ask_to_admit(newcomers, together);
    }
    if come && die {
        company.listen(dice.random_range(Duration::ZERO..LONGEST_COMING))?;
    } else if come {
        company.await_newcomers(newcomers)?;
    }
    let began = Instant::now();
    if die {
        kill(company, dice)?;
    }
    company.unite()?;
    company.account.united(die, began.elapsed());
    if arguments.verbose {
        company.account.tell(before, newcomers, company.size());
    }
    Ok(())
}

/// Kills one or more, but not all.
fn kill(company: &mut Company, dice: &mut StdRng) -> Outcome<()> {
    let serials = company.serials();
    let most = serials.len() - 1;
    let number = if dice.random_bool(0.5) { 1 } else { dice.random_range(1..=most) };
    for serial in serials.into_iter().sample(dice, number) {
        company.kill(serial);
        if dice.random_bool(0.5) {
            company.listen(dice.random_range(Duration::ZERO..LONGEST_PAUSE))?;
        }
    }
    Ok(())
}
