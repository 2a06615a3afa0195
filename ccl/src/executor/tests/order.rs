//! In which order a sweep sends and looks at links that have to be pushed.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};

use ccl_transport::ring::RingLink;

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Look,
    Send,
}

/// A link that has to be pushed, like one of the network, and notes what is done with it.
#[derive(Debug)]
struct Pushed {
    ring: RingLink,
    done: Arc<Mutex<Vec<Done>>>,
}

impl Link for Pushed {
    fn tile_bytes(&self) -> usize {
        self.ring.tile_bytes()
    }

    fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError> {
        self.ring.reserve(bytes)
    }

    fn commit(&mut self, stamp: &Stamp) -> Result<(), TransportError> {
        self.done.lock().unwrap().push(Done::Send);
        self.ring.commit(stamp)
    }

    fn peek(&self) -> Option<Tile<'_>> {
        self.ring.peek()
    }

    fn release(&mut self) -> Result<(), TransportError> {
        self.ring.release()
    }

    fn progress(&mut self) -> Result<bool, TransportError> {
        self.done.lock().unwrap().push(Done::Look);
        self.ring.progress()
    }

    fn descriptors(&self, into: &mut Vec<RawFd>) {
        into.push(0);
    }
}

#[test]
fn what_can_be_sent_leaves_before_anybody_looks_at_the_network() {
    let topology = Topology::single_host(2, 2);
    let mut case = Case::new(Collective::AllReduce, 2, 2, 0);
    let choice =
        choose(&case.request, &topology, &CostModel::default_for(&topology), Some("one_shot"));
    let choice = choice.unwrap();
    let layout = Layout::new(&case.request, 2, choice.partition);
    let program = lower(&*choice.schedule, &layout, Rank(0), 4, &topology);
    let (ring, _peer) = memory::pair(SHAPES[1]);
    let done: Arc<Mutex<Vec<Done>>> = Arc::default();
    let mut links: Links = (0..4).map(|_| None).collect();
    let port = program.sends[0].port;
    links[port.index(2)] = Some(Box::new(Pushed { ring, done: Arc::clone(&done) }));
    let mut executor = Executor::new(Rank(0), links);
    let buffers = [Region::of(&case.inputs[0]), Region::of_mut(&mut case.outputs[0])];
    let stamp = Stamp { sequence: 1, signature: case.request.signature(choice.digest) };
    let kernel = Kernel { datatype: DataType::Int32, combine: Combine::Sum };
    let arithmetic = Some(Arithmetic { kernel, factor: None });
    let task = Task { program: &program, buffers: &buffers, stamp, arithmetic, is_straight: false };
    let mut run = begin(&mut executor, &task, &[]);
    assert!(run.sweep().unwrap());
    assert_eq!(*done.lock().unwrap(), [Done::Send, Done::Look]);
}
