//! What devices cannot do, on those of the imitation.

use super::super::imitated::{self, Make, Network};
use super::*;

/// What the imitation says.
const LONGEST: usize = 32 << 20;

#[test]
fn an_operation_that_is_longer_than_the_port_takes_is_refused() {
    let (_, devices) = imitated::devices(2, Make::Plain);
    let [left, right] = [0, 1].map(|index: usize| End::new(devices[index].domain().unwrap()));
    let region = left._domain.register(&Memory::allocate(2 * LONGEST).unwrap(), Access::ALL);
    let region = region.unwrap();
    let mut bench = Bench { left, right };
    bench.connect();
    bench.works();
    // A receive may be longer: no message is.
    let target = Some(region.segment(0, 2 * LONGEST));
    bench.left.pair.post_receive(ReceiveRequest { id: WorkId(4), target }).unwrap();
    bench.right.post(5, Operation::Send { source: bench.right.region.segment(0, 100) });
    bench.until(|bench| bench.left.done.len() == 2);
    assert_eq!(bench.left.statuses()[1], (4, Status::Success));
    bench.left.done.clear();
    let (source, target) = (region.segment(0, LONGEST + 1), bench.right.region.remote(0));
    bench.left.post(6, Operation::Write { source, target });
    bench.until(|bench| !bench.left.done.is_empty());
    assert_eq!(bench.left.statuses(), [(6, Status::LocalLength)]);
    let fault = bench.left.pair.fault().unwrap().to_string();
    let expected = "it has 33554433 bytes, and its port takes 33554432 at once: post several";
    assert_eq!(fault, format!("post an operation on imitated0: {expected}"));
}

/// Drivers that copy small messages would do so to addresses of which this process knows nothing.
#[test]
fn devices_whose_drivers_copy_messages_are_refused() {
    for (make, reason) in [
        (
            Make::Mlx5Alone,
            "unless libmlx5 is asked not to: load libmlx5: it is not in the imitation",
        ),
        (Make::Hns, "it is one of hns, whose driver copies small messages"),
    ] {
        let network = Network::new("copying", 1, make);
        let found = Inventory::of(network.list()).devices(&HcaFilter::default());
        let error = found.unwrap_err().to_string();
        assert!(
            error.starts_with("find an RDMA device: use the RDMA device copying0: "),
            "{error}"
        );
        assert!(error.contains(reason), "{error}");
    }
}

/// As one of two networks over one cable has it: what happens to the first address is nothing to a rail with the second.
#[test]
fn a_port_is_used_with_the_address_of_a_rail() {
    let network = Network::new("tagged", 2, Make::Plain);
    network.add(0, [10, 99, 3, 1].into());
    let [left, right] =
        Inventory::of(network.list()).devices(&HcaFilter::default()).unwrap().try_into().unwrap();
    assert!(right.others().is_empty());
    let [tagged] = left.others().try_into().unwrap();
    assert_eq!(tagged.address(), IpAddr::from([10, 99, 3, 1]));
    let [left, right] = [tagged, right].map(|device| End::new(device.domain().unwrap()));
    let mut bench = Bench { left, right };
    bench.connect();
    bench.works();
    network.move_to(0, [10, 99, 4, 1].into());
    bench.works();
    network.add(0, [10, 99, 5, 1].into());
    bench.left.pair.reset();
    bench.left.pair.initialise().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let refusal = bench.left.pair.connect(Connection::Stream(stream)).unwrap_err().to_string();
    assert!(refusal.contains("it does not have the address 10.99.3.1 any more"), "{refusal}");
}
