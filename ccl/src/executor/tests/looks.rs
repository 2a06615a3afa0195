//! When a sweep looks at links that have to be pushed.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use ccl_core::collective::Signature;
use ccl_transport::ring::RingLink;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Look,
    Send,
    Spare,
}

/// What was done with a link.
type Noted = Arc<Mutex<Vec<Done>>>;

/// A link that has to be pushed, like one of the network, and notes what is done with it.
#[derive(Debug)]
struct Pushed {
    ring: RingLink,
    done: Noted,
    is_flushed: bool,
}

/// Links of rank 0 to all others; their other ends, and what is done with them.
fn pushed(ranks: usize, is_flushed: bool) -> (Links, Vec<RingLink>, Vec<Noted>) {
    let mut links: Links = (0..2 * ranks).map(|_| None).collect();
    let link = |peer: usize| {
        let (ring, end) = memory::pair(SHAPES[1]);
        let done = Noted::default();
        links[peer] = Some(Box::new(Pushed { ring, done: Arc::clone(&done), is_flushed }));
        (end, done)
    };
    let (ends, done) = (1..ranks).map(link).unzip();
    (links, ends, done)
}

impl Link for Pushed {
    as_ring!(tile_bytes, reserve, peek, release);

    fn commit(&mut self, stamp: &Stamp) -> Result<(), TransportError> {
        self.done.lock().unwrap().push(Done::Send);
        self.ring.commit(stamp)
    }

    fn progress(&mut self) -> Result<bool, TransportError> {
        self.done.lock().unwrap().push(Done::Look);
        self.ring.progress()
    }

    fn flushed(&self) -> bool {
        self.is_flushed
    }

    fn is_out_of_reach(&self) -> bool {
        true
    }

    fn spare(&mut self) {
        self.done.lock().unwrap().push(Done::Spare);
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(0);
    }
}

/// What rank 0 of so many does in an AllReduce of so many numbers over such links, so many sweeps long, in which nothing
/// comes: what is done with the link to each of its peers.
fn swept(ranks: u32, count: usize, algorithm: &str, sweeps: u32) -> Vec<Vec<Done>> {
    let topology = Topology::single_host(ranks, 2);
    let model = CostModel::default_for(&topology);
    let mut case = Case::new(Collective::AllReduce, ranks, count, 0);
    let choice = choose(&case.request, &topology, &model, Some(algorithm)).unwrap();
    let layout = Layout::new(&case.request, ranks, choice.partition);
    let program = lower(&*choice.schedule, &layout, Rank(0), 4, &topology);
    let stamp = Stamp { sequence: 1, signature: case.request.signature(choice.digest) };
    let (links, _peers, done) = pushed(ranks as usize, true);
    let mut executor = Executor::new(Rank(0), links);
    let buffers = [Region::of(&case.inputs[0]), Region::of_mut(&mut case.outputs[0])];
    let kernel = Kernel { datatype: DataType::Int32, combine: Combine::Sum };
    let arithmetic = Some(Arithmetic { kernel, factor: None });
    let task = Task { program: &program, buffers: &buffers, stamp, arithmetic, is_straight: false };
    let mut run = begin(&mut executor, &task, &[]);
    for sweep in 0..sweeps {
        assert_eq!(run.sweep().unwrap(), sweep == 0, "it sends, and then waits");
    }
    done.iter().map(|done| done.lock().unwrap().clone()).collect()
}

/// How often that is done with the link to each of seven peers, of which three are partners, in so many sweeps that all are looked
/// at twice.
fn counted(what: Done) -> Vec<usize> {
    let count = |done: &Vec<Done>| done.iter().filter(|done| **done == what).count();
    swept(8, 8, "recursive_doubling", 64).iter().map(count).collect()
}

#[test]
fn what_can_be_sent_leaves_before_anybody_looks_at_the_network() {
    assert_eq!(swept(2, 8, "one_shot", 2), [[Done::Send, Done::Look, Done::Look]]);
}

#[test]
fn only_the_links_that_are_waited_for_are_looked_at_and_all_now_and_then() {
    let looks = counted(Done::Look);
    assert_eq!(looks, [64, 2, 2, 2, 2, 2, 2], "the first partner, and the others");
}

/// Their peers may be out of reach for as long as they like.
#[test]
fn only_links_that_the_program_does_not_use_are_spared() {
    let spared = counted(Done::Spare);
    assert_eq!(spared, [0, 0, 2, 0, 2, 2, 2], "ranks 1, 2 and 4 are its partners");
}

/// Which of two links is spared by a call that has sent all to rank 1 and gets nothing from rank 2.
fn spared_by_a_message(is_flushed: bool) -> Vec<bool> {
    let (links, _peers, done) = pushed(3, is_flushed);
    let (sent, mut received) = ([7u8; 4], [0u8; 4]);
    let empty = Region::empty();
    let buffers = [empty, empty, empty, Region::of(&sent), Region::of_mut(&mut received)];
    let message = |peer, buffer| [(Rank(peer), Buffer(buffer), 4)];
    let program = point_to_point(Rank(0), &message(1, 3), &message(2, 4));
    let stamp = Stamp { sequence: 0, signature: Signature::POINT_TO_POINT };
    let task =
        Task { program: &program, buffers: &buffers, stamp, arithmetic: None, is_straight: false };
    let mut executor = Executor::new(Rank(0), links);
    let mut run = begin(&mut executor, &task, &[]);
    for _ in 0..64 {
        run.sweep().unwrap();
    }
    done.iter().map(|done| done.lock().unwrap().contains(&Done::Spare)).collect()
}

#[test]
fn a_link_is_spared_once_the_call_is_through_with_it() {
    assert_eq!(spared_by_a_message(true), [true, false]);
    assert_eq!(spared_by_a_message(false), [false, false], "something has not left");
}

/// A link that has something for a peer, and cannot send it.
#[derive(Debug)]
struct Stuck {
    ring: RingLink,
    is_out_of_reach: bool,
}

impl Link for Stuck {
    as_ring!(tile_bytes, reserve, commit, peek, release);

    fn is_out_of_reach(&self) -> bool {
        self.is_out_of_reach
    }

    fn flushed(&self) -> bool {
        false
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(0);
    }
}

/// Whether a call ends that exchanges nothing with the peer of such a link.
fn ends_beside_a_stuck_link(is_out_of_reach: bool) -> bool {
    let (ring, _peer) = memory::pair(SHAPES[1]);
    let mut links: Links = (0..4).map(|_| None).collect();
    links[1] = Some(Box::new(Stuck { ring, is_out_of_reach }));
    let program = point_to_point(Rank(0), &[], &[]);
    let signature = Case::new(Collective::Broadcast, 2, 1, 0).request.signature(0);
    let stamp = Stamp { sequence: 1, signature };
    let task =
        Task { program: &program, buffers: &[], stamp, arithmetic: None, is_straight: false };
    let mut executor = Executor::new(Rank(0), links);
    let mut run = begin(&mut executor, &task, &[]);
    run.sweep().unwrap();
    run.finished()
}

#[test]
fn what_calls_before_have_left_is_waited_for_unless_its_peer_is_out_of_reach() {
    assert!(!ends_beside_a_stuck_link(false));
    assert!(ends_beside_a_stuck_link(true));
}

#[test]
fn a_link_without_room_on_which_something_is_to_come_is_looked_at_once_in_a_sweep() {
    let done = &swept(2, 1000, "one_shot", 3)[0];
    let (sent, looks) = done.split_at(done.len() - 3);
    assert!(sent.len() > 1 && sent.iter().all(|done| *done == Done::Send), "{done:?}");
    assert_eq!(looks, [Done::Look; 3]);
}
