//! How ranks come to know each other's memory: a thread of its own, because opening memory and loading
//! kernels may wait for the device, which may wait for anybody else.
//!
//! Steps are asked for in the same order on all ranks. In each of them all ranks say something, and
//! everybody decides alike on what all have said. From which call on kernels do the work is settled while no
//! rank can make calls: it is the first that no rank has made.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ccl_core::datatype::DataType;
use ccl_core::error::Error;
use ccl_core::ids::Rank;
use ccl_kernels::cuda::Module;
use ccl_kernels::cuda::gpu::{BesideCaptures, Gpu, Invitation, Mapped, Own, Supply};
use ccl_transport::clock;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::agreement::Facts;
use super::buffers::{Buffers, News, news};
use super::{Routes, Way};
use crate::communicator::Correspondence;
use crate::driver::lock;

/// Between two attempts to end a thread that waits for others.
const STOP_PAUSE: Duration = Duration::from_millis(1);

/// What ranks do together beside their calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// They map each other's regions.
    Open,
    /// They load the kernels of a module.
    Kernels(Module),
    /// They compare the calls up to this one, and map buffers of the program.
    Show(u64),
    /// They register this window.
    Register(u64),
    /// They deregister it.
    Deregister(u64),
}

/// The thread, and what it is asked for.
#[derive(Debug)]
pub(super) struct Meeting {
    agenda: Arc<Agenda>,
    host: Option<Host>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
pub(super) struct Agenda {
    steps: Mutex<Steps>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Steps {
    waiting: VecDeque<Step>,
    asked: u64,
    done: u64,
    is_stopped: bool,
    has_ended: bool,
    /// What is gathered now.
    name: Option<(Arc<Correspondence>, String)>,
}

impl Meeting {
    pub(super) fn new(host: Host) -> Self {
        Self { agenda: Arc::default(), host: Some(host), thread: None }
    }

    /// Adds a step, and gives its number.
    pub(super) fn ask(&mut self, step: Step) -> u64 {
        if let Some(host) = self.host.take() {
            let agenda = Arc::clone(&self.agenda);
            let run = move || host.run(&agenda);
            let thread = std::thread::Builder::new().name("r2ccl-meeting".into()).spawn(run);
            if thread.is_err() {
                lock(&self.agenda.steps).has_ended = true;
            }
            self.thread = thread.ok();
        }
        let mut steps = lock(&self.agenda.steps);
        steps.waiting.push_back(step);
        steps.asked += 1;
        self.agenda.changed.notify_all();
        steps.asked
    }

    /// Waits for a step in a thread that has not the meeting locked; false if that takes longer than `patience`.
    pub(super) fn waiter(&self) -> impl FnOnce(u64, Duration) -> bool + use<> {
        let agenda = Arc::clone(&self.agenda);
        move |number, patience| {
            let is_open = |steps: &mut Steps| steps.done < number && !steps.has_ended;
            let steps = lock(&agenda.steps);
            let waited = agenda.changed.wait_timeout_while(steps, patience, is_open);
            !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
        }
    }

    /// Ends the thread, whatever it waits for, but for the device. Waits for that in a thread that has not the meeting locked: it may
    /// need what somebody has who wants to ask.
    pub(super) fn stop(&mut self) -> impl FnOnce() + use<> {
        self.agenda.change(|steps| steps.is_stopped = true);
        let (agenda, thread) = (Arc::clone(&self.agenda), self.thread.take());
        move || {
            let Some(thread) = thread else { return };
            while !thread.is_finished() {
                if let Some((host, name)) = &lock(&agenda.steps).name {
                    host.forget(name);
                }
                clock::sleep(STOP_PAUSE);
            }
            if thread.join().is_err() {
                tracing::error!("the thread that meets other ranks panicked");
            }
        }
    }
}

impl Agenda {
    fn next(&self) -> Option<Step> {
        let mut steps = lock(&self.steps);
        loop {
            if steps.is_stopped {
                return None;
            }
            if let Some(step) = steps.waiting.pop_front() {
                return Some(step);
            }
            steps = self.changed.wait(steps).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether nobody is to be waited for any more.
    pub(super) fn is_stopped(&self) -> bool {
        lock(&self.steps).is_stopped
    }

    fn change(&self, act: impl FnOnce(&mut Steps)) {
        act(&mut lock(&self.steps));
        self.changed.notify_all();
    }
}

/// What the thread has.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) gpu: Arc<Gpu>,
    pub(super) correspondence: Arc<Correspondence>,
    pub(super) routes: Arc<Mutex<Routes>>,
    pub(super) way: Arc<Mutex<Option<Way>>>,
    pub(super) buffers: Arc<Mutex<Buffers>>,
    pub(super) supply: Supply,
    pub(super) me: usize,
    pub(super) facts: Facts,
    pub(super) own: Option<Own>,
    /// Calls between hosts that are not larger go through the host.
    pub(super) small_bytes: usize,
    /// Names of what is gathered: the same on all ranks, and of nothing else.
    pub(super) name: String,
    pub(super) gathered: u64,
    pub(super) maps_buffers: bool,
    /// The ranks with which this one maps memory, itself among them, in the order of the exchange.
    pub(super) company: Vec<Rank>,
    /// Buffers of the programs of others, by rank and number.
    pub(super) mapped: BTreeMap<(usize, u64), Mapped>,
}

impl Host {
    fn run(mut self, agenda: &Agenda) {
        let _beside = BesideCaptures::begin();
        while let Some(step) = agenda.next() {
            let done = self.act(step, agenda);
            if let Err(reason) = done {
                // Whoever does not come any more makes no calls, or has told why.
                tracing::debug!(%reason, ?step, "ranks do not meet");
                let mut routes = lock(&self.routes);
                routes.refuse(&reason.to_string());
                routes.end();
                break;
            }
            agenda.change(|steps| steps.done += 1);
        }
        agenda.change(|steps| steps.has_ended = true);
    }

    fn act(&mut self, step: Step, agenda: &Agenda) -> Result<(), Error> {
        match step {
            Step::Open => self.open(agenda),
            Step::Kernels(module) => self.load(module, agenda),
            Step::Show(number) => self.show(number, agenda),
            Step::Register(number) => self.register(number, agenda),
            Step::Deregister(number) => self.deregister(number, agenda),
        }
    }

    fn has_way(&self) -> bool {
        lock(&self.way).is_some()
    }

    fn load(&mut self, module: Module, agenda: &Agenda) -> Result<(), Error> {
        if !self.has_way() {
            return Ok(());
        }
        // A driver that loads may wait until the device is idle, and keep others from launching meanwhile. So ranks that share a
        // device begin when all have come: where they ask for it, all their calls have been launched by then.
        self.gather::<()>(&(), agenda)?;
        let loaded = self.modules(module);
        let loaded = loaded.iter().try_for_each(|one| self.gpu.prepare_from(&self.supply, *one));
        let said = loaded.map_err(|error| format!("{error} ({})", error.remedy()));
        let said = said.map(|()| module.name().to_owned());
        let Some(all) = self.gather_all(said, agenda)? else { return Ok(()) };
        let own = module.name();
        if let Some((rank, name)) = all.iter().enumerate().find(|(_, name)| *name != own) {
            self.refuse(&format!("rank {rank}: it loads kernels for {name}, this one for {own}"));
            return Ok(());
        }
        // Nobody makes a call between what it says here and what it hears. Whoever wants to waits for threads like this one only:
        // the others need no driver to come here, and nobody has the lock while he waits for one.
        let routes = Arc::clone(&self.routes);
        let mut routes = lock(&routes);
        let settled: Result<Vec<u64>, Error> = self.gather_soon(&routes.calls, agenda);
        if let Err(error @ Error::Deadline { .. }) = &settled {
            // Others may have heard what this rank has not. Who has left makes no calls.
            self.correspondence.fail(error);
        }
        let calls = settled?;
        let latest = calls.into_iter().max().unwrap_or(u64::MAX);
        routes.behind.insert(module.name(), latest);
        tracing::info!(
            rank = self.me,
            kernels = module.name(),
            latest,
            "collectives without the host"
        );
        Ok(())
    }

    /// Everything that calls of which the kernels are in that module need.
    fn modules(&self, module: Module) -> Vec<Module> {
        let way = lock(&self.way).clone();
        let mut all = vec![module];
        // Rings move bytes with the kernels for copies, hosts with those for bytes.
        all.extend(way.as_ref().and_then(Way::wire).map(|_| Module::Copies));
        all.extend(match way {
            Some(Way::Columns(_)) => Some(Module::Elements(DataType::Uint8)),
            Some(Way::Near(_) | Way::Far(_)) | None => None,
        });
        all
    }

    fn show(&mut self, number: u64, agenda: &Agenda) -> Result<(), Error> {
        if !self.has_way() {
            return Ok(());
        }
        let (first, news) = self.news(number);
        let all: Vec<News> = self.gather(&news, agenda)?;
        let calls: Vec<&[String]> = all.iter().map(|news| news.calls.as_slice()).collect();
        if let Some(error) = disagreement(&calls, first) {
            self.correspondence.fail(&error);
            return Err(error);
        }
        let mut answers: Vec<Vec<(u64, u64)>> = Vec::new();
        for (rank, news) in all.iter().enumerate() {
            if !self.is_company(rank) {
                answers.push(Vec::new());
                continue;
            }
            if rank != self.me {
                news.gone.iter().for_each(|number| drop(self.mapped.remove(&(rank, *number))));
            }
            answers.push(news.shown.iter().map(|one| (one.0, self.map(rank, one))).collect());
        }
        if all.iter().all(|news| news.shown.is_empty()) {
            return Ok(());
        }
        let all: Vec<Vec<Vec<(u64, u64)>>> = self.gather(&answers, agenda)?;
        let mut buffers = lock(&self.buffers);
        for (index, (number, _)) in news.shown.iter().enumerate() {
            let place = |rank: &Rank| {
                let answer = all.get(rank.index())?.get(self.me)?.get(index)?;
                (rank.index() == self.me || answer.0 == *number && answer.1 != 0)
                    .then_some(answer.1)
            };
            let seen: Option<Vec<u64>> = self.company.iter().map(place).collect();
            buffers.answered(*number, self.own_place(), seen);
        }
        Ok(())
    }

    /// What this rank tells the others, and the number of the first call in it.
    fn news(&self, number: u64) -> (u64, News) {
        let (first, calls) = lock(&self.routes).called(number);
        let shown =
            if self.maps_buffers { news(&self.buffers, &self.gpu) } else { News::default() };
        (first, News { calls, ..shown })
    }

    /// Where a buffer of another rank is from now on; 0 if it cannot be mapped.
    fn map(&mut self, rank: usize, (number, letter): &(u64, super::agreement::Letter)) -> u64 {
        if rank == self.me {
            return 0;
        }
        let invitation = Invitation::try_from(letter);
        let mapped = invitation.and_then(|i| self.gpu.map(&i).map_err(|error| error.to_string()));
        match mapped {
            Ok(mapped) => {
                let address = mapped.address();
                self.mapped.insert((rank, *number), mapped);
                address
            }
            Err(reason) => {
                tracing::debug!(rank, reason, "a buffer is not mapped");
                0
            }
        }
    }

    /// What was to go this way does not; everybody knows.
    pub(super) fn refuse(&self, reason: &str) {
        tracing::info!(rank = self.me, reason, "collectives on devices go through the host");
        lock(&self.routes).refuse(reason);
    }

    fn is_company(&self, rank: usize) -> bool {
        self.company.iter().any(|other| other.index() == rank)
    }

    /// Where this rank is among those with which it maps memory.
    pub(super) fn own_place(&self) -> usize {
        self.company.iter().position(|rank| rank.index() == self.me).unwrap_or(0)
    }

    /// What all ranks have. If one has not got it nothing goes this way, for its reason.
    pub(super) fn gather_all<T: Serialize + DeserializeOwned>(
        &mut self,
        said: Result<T, String>,
        agenda: &Agenda,
    ) -> Result<Option<Vec<T>>, Error> {
        let all: Vec<Result<T, String>> = self.gather(&said, agenda)?;
        let named = |(rank, said): (usize, Result<T, String>)| {
            said.map_err(|reason| format!("rank {rank}: {reason}"))
        };
        match all.into_iter().enumerate().map(named).collect() {
            Ok(all) => Ok(Some(all)),
            Err(reason) => {
                let reason: String = reason;
                self.refuse(&reason);
                Ok(None)
            }
        }
    }

    /// What all ranks say, whenever they come.
    pub(super) fn gather<T: Serialize + DeserializeOwned>(
        &mut self,
        say: &T,
        agenda: &Agenda,
    ) -> Result<Vec<T>, Error> {
        self.gather_until(say, agenda, false)
    }

    /// What all ranks say that have just said something else.
    fn gather_soon<T: Serialize + DeserializeOwned>(
        &mut self,
        say: &T,
        agenda: &Agenda,
    ) -> Result<Vec<T>, Error> {
        self.gather_until(say, agenda, true)
    }

    fn gather_until<T: Serialize + DeserializeOwned>(
        &mut self,
        say: &T,
        agenda: &Agenda,
        soon: bool,
    ) -> Result<Vec<T>, Error> {
        let broken = |cause: postcard::Error| Error::Internal(format!("a note of a rank: {cause}"));
        let bytes = postcard::to_stdvec(say).map_err(broken)?;
        self.gathered += 1;
        let name = format!("{} {}", self.name, self.gathered);
        let current = (Arc::clone(&self.correspondence), name.clone());
        agenda.change(|steps| steps.name = Some(current));
        if agenda.is_stopped() {
            return Err(Error::InvalidUsage("the communicator was destroyed".into()));
        }
        let all = self.correspondence.gather(&name, &bytes, soon)?;
        all.iter().map(|bytes| postcard::from_bytes(bytes).map_err(broken)).collect()
    }
}

/// The first call in which a rank differs from rank 0, if there is one.
fn disagreement(calls: &[&[String]], first: u64) -> Option<Error> {
    let longest = calls.iter().map(|calls| calls.len()).max().unwrap_or(0);
    let call = |rank: usize, at: usize| calls[rank].get(at).map_or("nothing", String::as_str);
    let (at, other) = (0..longest)
        .flat_map(|at| (1..calls.len()).map(move |other| (at, other)))
        .find(|(at, other)| call(0, *at) != call(*other, *at))?;
    Some(Error::Disagreement {
        sequence: u32::try_from(first + at as u64).unwrap_or(u32::MAX),
        rank: Rank(0),
        call: call(0, at).to_owned(),
        other: Rank(other as u32),
        other_call: call(other, at).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn others_may_ask_while_the_end_of_the_thread_is_waited_for() {
        let (go, gone) = mpsc::channel::<()>();
        let thread = Some(thread::spawn(move || gone.recv().unwrap()));
        let meeting = Mutex::new(Meeting { agenda: Arc::default(), host: None, thread });
        let end = lock(&meeting).stop();
        assert_eq!(lock(&meeting).ask(Step::Open), 1);
        go.send(()).unwrap();
        end();
    }

    #[test]
    fn the_first_difference_is_told() {
        let calls = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let [same, other, short] = [calls("a b c"), calls("a x c"), calls("a b")];
        assert_eq!(disagreement(&[&same, &same, &same], 5), None);
        let told = |all: &[&[String]]| disagreement(all, 5).unwrap().to_string();
        let error = told(&[&same, &same, &other]);
        assert!(error.contains("call 6: rank 0 called b, rank 2 called x"), "{error}");
        let error = told(&[&same, &short]);
        assert!(error.contains("call 7: rank 0 called c, rank 1 called nothing"), "{error}");
    }
}
