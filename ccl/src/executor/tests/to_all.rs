//! The link on which a rank sends to all others of its host: what is lent on it, and what it is told.

use std::sync::{Arc, Mutex};

use super::*;

/// A link on which a rank sends to all others: remembers how, and has every byte taken at once.
#[derive(Debug)]
struct Remembering {
    slot: Vec<u8>,
    reserved: usize,
    lent: u64,
    remembered: Arc<Mutex<Remembered>>,
    is_far: bool,
}

#[derive(Debug, Default)]
struct Remembered {
    /// What was copied into slots.
    copied: Vec<u8>,
    /// How many ranks send at a time, each time that was said.
    writers: Vec<usize>,
}

/// Links of a rank, which has so many peers, of which there is that to all; and what that link will remember.
fn links_to_all(rank: Rank, ranks: u32, is_far: bool) -> (Links, Arc<Mutex<Remembered>>) {
    let mut links: Links = (0..2 * ranks).map(|_| None).collect();
    let remembered: Arc<Mutex<Remembered>> = Arc::default();
    // Neither slots nor pieces of them are as long as a step.
    let slot = vec![0; (1 << 16) + 13];
    let link =
        Remembering { slot, reserved: 0, lent: 0, remembered: Arc::clone(&remembered), is_far };
    links[Port::Multicast(rank).index(ranks as usize)] = Some(Box::new(link));
    (links, remembered)
}

impl Link for Remembering {
    fn tile_bytes(&self) -> usize {
        self.slot.len()
    }

    fn reserve(&mut self, bytes: usize) -> Result<Option<&mut [u8]>, TransportError> {
        self.reserved = bytes;
        Ok(Some(&mut self.slot[..bytes]))
    }

    fn commit(&mut self, _: &Stamp) -> Result<(), TransportError> {
        let mut remembered = self.remembered.lock().unwrap();
        remembered.copied.extend_from_slice(&self.slot[..self.reserved]);
        Ok(())
    }

    fn share(&mut self, writers: usize) {
        self.remembered.lock().unwrap().writers.push(writers);
    }

    fn is_far(&self) -> bool {
        self.is_far
    }

    fn lends(&self) -> bool {
        true
    }

    fn lend(&mut self, _: &Stamp, _: &Loan) -> Result<Option<u64>, TransportError> {
        self.lent += 1;
        Ok(Some(self.lent))
    }

    fn returned(&mut self) -> u64 {
        self.lent
    }

    fn peek(&self) -> Option<Tile<'_>> {
        None
    }

    fn release(&mut self) -> Result<(), TransportError> {
        unreachable!("nothing arrives")
    }
}

#[test]
fn what_goes_to_all_is_lent_unless_a_buffer_exceeds_all_caches() {
    const BYTES: usize = 1 << 20;
    let data: Vec<u8> = (0..BYTES).map(|index| (index % 251) as u8).collect();
    for is_far in [false, true] {
        assert!(broadcast_from(&data, BYTES, is_far).is_empty(), "lent");
        assert!(broadcast_from(&data, BYTES - 1, is_far) == data, "far readers: {is_far}");
    }
}

#[test]
fn short_messages_reach_near_and_far_readers() {
    for bytes in [4, 1020, 1024, 4096] {
        let data: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
        for is_far in [false, true] {
            assert!(broadcast_from(&data, bytes, is_far) == data, "{bytes}, far: {is_far}");
        }
    }
}

/// Broadcasts lent memory with these bytes from rank 0 among three, where all caches hold `all` bytes; tells what was copied
/// into slots.
fn broadcast_from(data: &[u8], all: usize, is_far: bool) -> Vec<u8> {
    let bytes = data.len();
    let request = Case::new(Collective::Broadcast, 3, bytes / 4, 0).request;
    let topology = Topology::single_host(3, 2);
    let choice = choose(&request, &topology, &CostModel::default_for(&topology), Some("direct"));
    let choice = choice.unwrap();
    let layout = Layout::new(&request, 3, choice.partition);
    let program = lower(&*choice.schedule, &layout, Rank(0), 4, &topology);
    assert!(program.sends.iter().all(|lane| lane.port == Port::Multicast(Rank(0))));
    let allocation = Allocation::new(bytes).unwrap();
    allocation.publish();
    let loan = Allocation::loan(allocation.start().addr().get(), bytes).unwrap();
    let loans = [Some(loan); 2];
    let (links, remembered) = links_to_all(Rank(0), 3, is_far);
    let mut executor = Executor::new(Rank(0), links).caching(Caches { share: 0, all });
    let mut result = vec![0; bytes];
    let buffers = [Region::of(data), Region::of_mut(&mut result)];
    let stamp = Stamp { sequence: 1, signature: request.signature(0) };
    let is_straight = is_straight(&program);
    let task = Task { program: &program, buffers: &buffers, stamp, arithmetic: None, is_straight };
    if is_straight {
        assert!(executor.at_once(&task).unwrap());
    } else {
        let mut run = begin(&mut executor, &task, &loans);
        for _ in 0..SWEEPS {
            if run.finished() {
                break;
            }
            run.sweep().unwrap();
        }
        assert!(run.finished());
    }
    assert!(result == data);
    std::mem::take(&mut remembered.lock().unwrap().copied)
}

#[test]
fn what_is_scaled_reaches_near_and_far_readers() {
    const RANKS: u32 = 3;
    const FACTOR: i32 = -3;
    let topology = Topology::single_host(RANKS, 2);
    let model = CostModel::default_for(&topology);
    // In pieces that are full and that are not.
    for (count, is_far) in [100, 255, 256, 8000].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let data: Vec<i32> = (0..count).collect();
        let request = Case::new(Collective::AllReduce, RANKS, data.len(), 0).request;
        let choice = choose(&request, &topology, &model, Some("one_shot")).unwrap();
        let layout = Layout::new(&request, RANKS, choice.partition);
        let program = lower(&*choice.schedule, &layout, Rank(0), 4, &topology);
        let (links, remembered) = links_to_all(Rank(0), RANKS, is_far);
        let mut executor = Executor::new(Rank(0), links);
        let mut result = vec![0; data.len()];
        let buffers = [Region::of(&data), Region::of_mut(&mut result)];
        let kernel = Kernel { datatype: DataType::Int32, combine: Combine::Sum };
        let factor = Some(u64::from(FACTOR.cast_unsigned()));
        let task = Task {
            program: &program,
            buffers: &buffers,
            stamp: Stamp { sequence: 1, signature: request.signature(0) },
            arithmetic: Some(Arithmetic { kernel, factor }),
            is_straight: false,
        };
        assert!(begin(&mut executor, &task, &[None; 2]).send(0).unwrap());
        let copied = std::mem::take(&mut remembered.lock().unwrap().copied);
        let numbers = copied.chunks(4).map(|bytes| i32::from_le_bytes(bytes.try_into().unwrap()));
        let expected = data.iter().map(|number| number * FACTOR);
        assert!(numbers.eq(expected), "{count} numbers, far: {is_far}");
    }
}

#[test]
fn a_link_to_all_is_told_how_many_send_on_such_links() {
    const RANKS: u32 = 4;
    let (links, remembered) = links_to_all(Rank(0), RANKS, false);
    let mut executor = Executor::new(Rank(0), links);
    let topology = Topology::single_host(RANKS, 2);
    let model = CostModel::default_for(&topology);
    let cases = [
        (Collective::AllGather, "direct"),
        (Collective::AllReduce, "two_shot"),
        (Collective::Broadcast, "direct"),
        (Collective::AllToAll, "direct"),
    ];
    for (collective, algorithm) in cases {
        let request = Case::new(collective, RANKS, 1000, 0).request;
        let choice = choose(&request, &topology, &model, Some(algorithm)).unwrap();
        let layout = Layout::new(&request, RANKS, choice.partition);
        executor.prepare(&lower(&*choice.schedule, &layout, Rank(0), 4, &topology));
    }
    assert_eq!(remembered.lock().unwrap().writers, [4, 4, 1], "an AllToAll has no such link");
}
