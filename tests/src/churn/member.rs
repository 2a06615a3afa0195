//! A member: it calls collectives, goes on without those who are lost, and lets others in.

use std::io::{self, BufRead as _};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use ccl::{Communicator, Config, Error, Ongoing, Rank, ReduceOp, UniqueId};
use ccl_launcher::Binding;

use super::words::{Admit, Meeting, Place, Said, Serial, say};
use crate::Outcome;
use crate::error::Failure;

/// Elements of the calls, which take turns: one, some lines of a cache, several tiles.
const COUNTS: [usize; 4] = [1, 1_000, 20_000, 250_000];

/// Every so many calls are made in the halves of a communicator, which are split for that.
const CALLS_PER_SPLIT: u32 = 50;

/// Why a member stops calling collectives.
enum Stop {
    /// So many are to be let in.
    Admit(u32),
    /// The library says no.
    Failed(Error),
    /// The library says something wrong.
    Wrong(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Lives as a member until the director kills it, which is how members end.
///
/// # Errors
/// The director is gone, or has said nothing that makes sense.
pub fn run(member: ccl_launcher::Member) -> Outcome<()> {
    member.take_place(Binding::None)?;
    let mut line = String::new();
    io::stdin()
        .read_line(&mut line)
        .map_err(|cause| Failure::system("reading the place", cause))?;
    let place: Place =
        serde_json::from_str(&line).map_err(|cause| Failure::Input(cause.to_string()))?;
    let (orders, admissions) = channel();
    thread::spawn(move || {
        let lines = io::stdin().lock().lines().map_while(Result::ok);
        lines.map_while(|line| serde_json::from_str(&line).ok()).try_for_each(|it| orders.send(it))
    });
    let mut member = Member { place, admissions, checked: 0 };
    match member.join()? {
        Ok(communicator) => member.live(communicator),
        Err(error) => member.say(&Said::Outside(error.to_string())),
    }
}

/// This process.
struct Member {
    place: Place,
    admissions: Receiver<Admit>,
    checked: u64,
}

impl Member {
    fn say(&self, said: &Said) -> Outcome<()> {
        say(&mut io::stdout().lock(), said).map_err(|cause| Failure::system("telling", cause))
    }

    /// The first communicator.
    fn join(&self) -> Outcome<Result<Communicator, Error>> {
        let Place { rank, size, meeting, .. } = &self.place;
        let library = |error| Failure::Library { rank: *rank, error };
        let config = Config::from_environment().map_err(library)?;
        let id = match meeting {
            Some(meeting) => meeting.id()?,
            None => {
                let id = UniqueId::create(&config.settings).map_err(library)?;
                self.invite(&id, 1, size - 1)?;
                id
            }
        };
        Ok(Communicator::create(&id, *rank, *size, &config))
    }

    fn invite(&self, id: &UniqueId, first: u32, newcomers: u32) -> Outcome<()> {
        self.say(&Said::Join { meeting: Meeting::at(id), first, newcomers })
    }

    fn live(&mut self, mut communicator: Communicator) -> Outcome<()> {
        loop {
            let stop = self.be_together(&communicator)?;
            communicator = match stop {
                Stop::Wrong(text) => return self.say(&Said::Wrong(text)),
                Stop::Failed(error) => self.without_who_is_lost(&communicator, &error)?,
                Stop::Admit(newcomers) => match self.admit(&communicator, newcomers)? {
                    Ok(grown) => grown,
                    Err(error) if communicator.async_error().is_none() => {
                        self.say(&Said::Failed(format!("they have not come: {error}")))?;
                        communicator
                    }
                    Err(error) => self.without_who_is_lost(&communicator, &error)?,
                },
            };
        }
    }

    /// Collectives, until there is a reason to stop.
    fn be_together(&mut self, communicator: &Communicator) -> Outcome<Stop> {
        let mut members = vec![0; communicator.size() as usize];
        if let Err(error) = communicator.all_gather(&[self.place.serial], &mut members) {
            return Ok(Stop::Failed(error));
        }
        self.say(&Said::Together { members: members.clone(), checked: self.checked })?;
        for call in 0.. {
            let newcomers = self.asked_to_admit(communicator, &members);
            if let Err(stop) = self.call(communicator, call, newcomers) {
                return Ok(stop);
            }
        }
        unreachable!("calls have no end")
    }

    /// How many this rank has been asked to let in.
    fn asked_to_admit(&self, communicator: &Communicator, members: &[Serial]) -> u32 {
        let mut asked = self.admissions.try_iter();
        // What was asked of others has been overtaken.
        let asked = asked.find(|asked| communicator.rank() == Rank(0) && asked.with == members);
        asked.map_or(0, |asked| asked.newcomers)
    }

    /// One collective, and before it another one that says whether somebody comes.
    fn call(&mut self, communicator: &Communicator, call: u32, newcomers: u32) -> Result<(), Stop> {
        let mut newcomers = [newcomers];
        communicator.all_reduce_in_place(&mut newcomers, ReduceOp::Sum)?;
        if newcomers != [0] {
            return Err(Stop::Admit(newcomers[0]));
        }
        let count = COUNTS[call as usize / 3 % COUNTS.len()];
        let is_right = match call % 3 {
            _ if call % CALLS_PER_SPLIT == CALLS_PER_SPLIT - 1 => {
                sum_of_part_is_right(communicator, call, count)?
            }
            0 => sum_is_right(communicator, call, count)?,
            1 => exchange_is_right(communicator, call, count)?,
            _ => broadcast_is_right(communicator, call, count)?,
        };
        self.checked += 1;
        if is_right {
            return Ok(());
        }
        let (me, size) = (communicator.rank(), communicator.size());
        Err(Stop::Wrong(format!("call {call} of {count} elements, as rank {me} of {size}")))
    }

    fn admit(
        &self,
        communicator: &Communicator,
        newcomers: u32,
    ) -> Outcome<Result<Communicator, Error>> {
        let before = communicator.size();
        if communicator.rank() == Rank(0) {
            match communicator.growth_id() {
                Ok(id) => self.invite(&id, before, newcomers)?,
                // All are told that there is none.
                Err(error) => self.say(&Said::Failed(error.to_string()))?,
            }
        }
        Ok(communicator.grow(before + newcomers, None))
    }

    /// Tries until all who are left agree: others may have known of fewer that are lost, or of more.
    fn without_who_is_lost(
        &self,
        communicator: &Communicator,
        error: &Error,
    ) -> Outcome<Communicator> {
        self.say(&Said::Failed(error.to_string()))?;
        loop {
            let lost = communicator.lost_ranks();
            match communicator.shrink(&lost, Ongoing::Finish, None) {
                Ok(left) => return Ok(left),
                Err(error) => self.say(&Said::Failed(format!("without {lost:?}: {error}")))?,
            }
        }
    }
}

/// What a rank has at a place in a call.
fn value(rank: u32, place: usize, call: u32) -> u32 {
    let place = u32::try_from(place).unwrap_or(u32::MAX);
    rank.wrapping_mul(1_000_003).wrapping_add(place.wrapping_mul(7)).wrapping_add(call)
}

fn sum_is_right(communicator: &Communicator, call: u32, count: usize) -> Result<bool, Error> {
    let (me, size) = (communicator.rank().0, communicator.size());
    let mut data: Vec<u32> = (0..count).map(|place| value(me, place, call)).collect();
    communicator.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
    let sum =
        |place| (0..size).fold(0, |sum: u32, rank| sum.wrapping_add(value(rank, place, call)));
    Ok(data.iter().enumerate().all(|(place, found)| *found == sum(place)))
}

/// In one of two parts, of ranks with even and with odd numbers.
fn sum_of_part_is_right(
    communicator: &Communicator,
    call: u32,
    count: usize,
) -> Result<bool, Error> {
    let color = communicator.rank().0 % 2;
    match communicator.split(Some(color), 0, None)? {
        Some(part) => sum_is_right(&part, call, count),
        None => Ok(false),
    }
}

fn exchange_is_right(communicator: &Communicator, call: u32, count: usize) -> Result<bool, Error> {
    let (me, size) = (communicator.rank().0, communicator.size());
    let send: Vec<u32> = (0..count * size as usize).map(|place| value(me, place, call)).collect();
    let mut receive = vec![0; send.len()];
    communicator.all_to_all(&send, &mut receive)?;
    let mut blocks = (0..size).zip(receive.chunks(count));
    let from = me as usize * count;
    Ok(blocks.all(|(rank, block)| {
        block.iter().zip(from..).all(|(found, place)| *found == value(rank, place, call))
    }))
}

fn broadcast_is_right(communicator: &Communicator, call: u32, count: usize) -> Result<bool, Error> {
    let root = call % communicator.size();
    let mut data = match communicator.rank() {
        Rank(me) if me == root => (0..count).map(|place| value(root, place, call)).collect(),
        _ => vec![0; count],
    };
    communicator.broadcast(&mut data, Rank(root))?;
    Ok(data.iter().enumerate().all(|(place, found)| *found == value(root, place, call)))
}
