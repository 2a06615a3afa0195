//! A rank whose call fails while a peer reads its memory: the peer must not take what it reads for the result.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use ccl::{
    Allocation, Collective, Communicator, Config, DataType, Error, Group, Operation, Rank,
    ReduceOp, Reduction, Region, Request,
};
use ccl_core::settings::CrossMemoryAttach;
use ccl_transport::clock;

use super::{DEADLINE, config, ranks};

/// Of so many bytes each of two ranks combines everything, with one look at whether the call has ended elsewhere.
const BYTES: usize = 256 << 10;
const COUNT: usize = BYTES / size_of::<u32>();

/// A sum of numbers in the two halves of `memory`.
fn sum(memory: Region<'_>) -> Operation<'_> {
    let request = Request {
        collective: Collective::AllReduce,
        count: COUNT,
        datatype: DataType::Uint32,
        reduction: Reduction::Builtin(ReduceOp::Sum),
        root: Rank(0),
    };
    let [input, output] = [0, BYTES].map(|offset| Some(memory.part(offset, BYTES)));
    Operation::Collective { request, input, output }
}

fn watched(
    communicator: &Communicator,
    operation: Operation<'_>,
    watch: &(dyn Fn() -> Option<String> + Sync),
) -> Result<(), Error> {
    let mut group = Group::default();
    group.add(communicator, operation);
    group.run_watched(watch)
}

/// Rank 1 is held up just before it reads the input of rank 0, until the call of rank 0 has failed and its input is something
/// else. Returns what has become of the calls of both.
fn read_too_late(config: &Config, is_shared: bool) -> Vec<Result<(), Error>> {
    let (enter, entered) = mpsc::channel();
    let (overwrite, overwritten) = mpsc::channel();
    let once = Arc::new(Mutex::new(Some((entered, overwritten))));
    ranks(2, config, move |communicator| {
        let mut ordinary = vec![1_u32; 2 * COUNT];
        let allocation = Allocation::new(2 * BYTES).unwrap();
        let memory = match is_shared {
            // SAFETY: the allocation is as large, and only this thread and the collective use it.
            true => unsafe { Region::new(allocation.address(), 2 * BYTES) },
            false => Region::of_mut(&mut ordinary),
        };
        communicator.run(sum(memory)).unwrap();
        if communicator.rank() == Rank(1) {
            let (entered, overwritten) = once.lock().unwrap().take().unwrap();
            entered.recv_timeout(DEADLINE).unwrap();
            let overwritten = Mutex::new(Some(overwritten));
            let watch = || {
                let first = overwritten.lock().unwrap().take();
                first.and_then(|overwritten| overwritten.recv_timeout(DEADLINE).err())?;
                Some("rank 0 has not failed".to_owned())
            };
            return watched(&communicator, sum(memory), &watch);
        }
        communicator.set_timeout(Duration::from_millis(500)).unwrap();
        // When it looks around for the first time it has told where its input is.
        let watch = || {
            enter.send(()).ok();
            None
        };
        let result = watched(&communicator, sum(memory), &watch);
        let other = vec![7_u32; COUNT];
        ccl_kernels::copy(Region::of(&other).source(0, BYTES), memory.target(0, BYTES));
        overwrite.send(()).unwrap();
        result
    })
}

fn check(results: &[Result<(), Error>]) {
    let [first, second] = results else { panic!("two ranks") };
    assert!(matches!(first, Err(Error::Deadline { .. })), "{first:?}");
    let second = second.as_ref().expect_err("it has read what rank 0 wrote after its call");
    assert!(matches!(second, Error::Deadline { .. } | Error::PeerLost { .. }), "{second}");
}

#[test]
fn what_the_system_copies_from_a_rank_that_has_failed_is_no_result() {
    let mut config = config();
    config.settings.cross_memory_attach = CrossMemoryAttach::Always;
    check(&read_too_late(&config, false));
}

#[test]
fn what_is_read_through_windows_of_a_rank_that_has_failed_is_no_result() {
    check(&read_too_late(&config(), true));
}

/// Rank 1 is held up just before it writes the output of rank 0, until the call of that is ended.
#[test]
fn who_has_an_error_has_its_memory_for_itself() {
    let [(enter, entered), (hold, held), (end, ended), (finish, finished)] =
        [(); 4].map(|()| mpsc::channel());
    let of_first = Arc::new(Mutex::new(Some((enter, held, end, finished))));
    let of_second = Arc::new(Mutex::new(Some((entered, hold, ended, finish))));
    ranks(2, &config(), move |communicator| {
        let allocation = Allocation::new(2 * BYTES).unwrap();
        // SAFETY: the allocation is as large, and only this thread and the collective use it.
        let memory = unsafe { Region::new(allocation.address(), 2 * BYTES) };
        communicator.run(sum(memory)).unwrap();
        if communicator.rank() == Rank(1) {
            let (entered, hold, ended, finish) = of_second.lock().unwrap().take().unwrap();
            entered.recv_timeout(DEADLINE).unwrap();
            let once = Mutex::new(Some((hold, ended)));
            let watch = || {
                let (hold, ended) = once.lock().unwrap().take()?;
                hold.send(()).unwrap();
                ended.recv_timeout(DEADLINE).unwrap();
                // Longer than the other rank takes to return if it does not wait.
                clock::sleep(Duration::from_millis(50));
                None
            };
            watched(&communicator, sum(memory), &watch).unwrap_err();
            return finish.send(()).unwrap();
        }
        let (enter, held, end, finished) = of_first.lock().unwrap().take().unwrap();
        let (held, end) = (Mutex::new(held), Mutex::new(end));
        let watch = || {
            // When it looks around for the first time it has told where its output is.
            enter.send(()).ok();
            held.lock().unwrap().try_recv().ok()?;
            end.lock().unwrap().send(()).unwrap();
            Some("enough".to_owned())
        };
        let error = watched(&communicator, sum(memory), &watch).unwrap_err();
        assert!(matches!(error, Error::Aborted { rank: Rank(0), .. }), "{error}");
        let (own, mut found) = (vec![7_u32; COUNT], vec![0_u32; COUNT]);
        ccl_kernels::copy(Region::of(&own).source(0, BYTES), memory.target(BYTES, BYTES));
        finished.recv_timeout(DEADLINE).unwrap();
        ccl_kernels::copy(memory.source(BYTES, BYTES), Region::of_mut(&mut found).target(0, BYTES));
        assert!(found == own, "a peer has written what belongs to the caller again");
    });
}
