//! A virtual queue pair over two devices, one of which dies.

use super::super::super::virtual_qp::{
    Evidence, VirtualDevice, VirtualDomain, VirtualQp, VirtualSettings,
};
use super::*;

/// One end of a virtual queue pair over the two NICs of a host.
struct VirtualEnd {
    pair: VirtualQp,
    region: MemoryRegion,
    _domain: VirtualDomain,
    done: Vec<Completion>,
}

impl VirtualEnd {
    fn of(host: usize, evidence: Evidence) -> Self {
        let rails = [0, 1].map(|nic| device(&format!("rxe_h{host}n{nic}")).unwrap());
        let rails = rails.map(|rail| Arc::new(rail) as Arc<dyn Device>).to_vec();
        let settings = VirtualSettings::new(evidence, rails.len());
        let domain = VirtualDevice::new(rails, settings).virtual_domain().unwrap();
        let region = domain.register(&Memory::allocate(BYTES).unwrap(), Access::ALL).unwrap();
        let pair = domain.virtual_queue_pair(Depth { sends: 16, receives: 16 }).unwrap();
        Self { pair, region, _domain: domain, done: Vec::new() }
    }
}

fn connect_virtual(ends: &mut [VirtualEnd; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for rail in 0..2 {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        for (end, stream) in ends.iter_mut().zip([near, far]) {
            if rail == 0 {
                end.pair.initialise().unwrap();
                end.pair.connect(Connection::Stream(stream)).unwrap();
            } else {
                end.pair.attach(rail, Connection::Stream(stream)).unwrap();
            }
        }
    }
}

/// A NIC is cut with operations outstanding: each is executed once, in order, over the other NIC.
#[test]
fn a_virtual_queue_pair_survives_its_nic() {
    const MESSAGES: usize = 120;
    in_the_guest(|| {
        // The first contact between two addresses may take a second, longer than a queue pair is patient.
        Bench::between("rxe_h0n1", "rxe_h1n1").works();
        for (evidence, trouble) in [
            (Evidence::Handshake, [["cut", "h0n0"], ["heal", "h0n0"]]),
            (Evidence::Log, [["down", "h1n0"], ["up", "h1n0"]]),
        ] {
            println!("{evidence:?}, {trouble:?}");
            let mut ends = [0, 1].map(|host| VirtualEnd::of(host, evidence));
            connect_virtual(&mut ends);
            let [left, right] = &mut ends;
            let mut broken = None;
            let (mut posted, mut receives) = (0, 0);
            let deadline = clock::now() + 2 * LIMIT;
            while left.done.len() < MESSAGES || right.done.len() < MESSAGES {
                if receives < MESSAGES && receives < right.done.len() + 16 {
                    let request = ReceiveRequest { id: WorkId(receives as u64), target: None };
                    right.pair.post_receive(request).unwrap();
                    receives += 1;
                }
                if posted < MESSAGES && posted < left.done.len() + 12 {
                    left.pair.post_send(message(left, right, posted)).unwrap();
                    posted += 1;
                }
                if broken.is_none() && left.done.len() > MESSAGES / 3 {
                    broken = Some(Trouble::make(&trouble[0], &trouble[1]));
                }
                if !(left.pair.poll(&mut left.done) | right.pair.poll(&mut right.done)) {
                    std::thread::yield_now();
                }
                let told =
                    (left.pair.fault(), right.pair.fault(), left.done.len(), right.done.len());
                assert!(clock::now() < deadline, "{told:?}");
            }
            let is_success = |done: &Completion| done.status == Status::Success;
            assert!(left.done.iter().chain(&right.done).all(is_success), "{:?}", left.pair.fault());
            let ids = |end: &VirtualEnd| end.done.iter().map(|done| done.id.0).collect::<Vec<_>>();
            assert_eq!(ids(left), (0..MESSAGES as u64).collect::<Vec<_>>());
            let immediates: Vec<_> = right.done.iter().filter_map(|done| done.immediate).collect();
            assert_eq!(immediates, (0..MESSAGES as u32).collect::<Vec<_>>());
            assert_eq!([left.pair.active(), right.pair.active()], [1, 1]);
            drop(broken);
            until_usable(["rxe_h0n0", "rxe_h1n0"]);
        }
    });
}

/// Message number `index`: a write of its own size that tells its number.
fn message(left: &VirtualEnd, right: &VirtualEnd, index: usize) -> WorkRequest {
    let bytes = (index * 97) % 5000;
    let (source, target) = (left.region.segment(0, bytes), right.region.remote(0));
    let operation = Operation::WriteWithImmediate { source, target, immediate: index as u32 };
    WorkRequest { id: WorkId(index as u64), operation, signalled: true }
}
