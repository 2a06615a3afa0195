//! Places in trees with the shape of sysfs.

use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// The switch with most of the devices, and the host bridge above it.
const SWITCH: &str = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";

/// A folder that is removed when it is dropped.
struct Tree(TempDir);

impl Tree {
    fn empty() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for class in ["net", "infiniband"] {
            fs::create_dir_all(tree.path(&format!("class/{class}"))).unwrap();
        }
        tree
    }

    /// Two sockets: NICs below one switch, below two, on another root port, on another host bridge, and on
    /// the other socket; virtual functions and interfaces; RDMA devices.
    fn of_two_sockets() -> Self {
        let tree = Self::empty();
        let dual = format!("{SWITCH}/0000:3c:08.0/0000:3e:00");
        for (name, device, node) in [
            ("eth0", &*format!("{SWITCH}/0000:3c:04.0/0000:3d:00.0"), "0\n"),
            ("eth1", &format!("{dual}.0"), "0\n"),
            ("eth2", &format!("{dual}.1"), "0\n"),
            ("deep", &format!("{SWITCH}/0000:3c:0c.0/0000:3f:00.0/0000:40:00.0/0000:41:00.0"), "0"),
            ("port", "pci0000:3a/0000:3a:02.0/0000:50:00.0", "0\n"),
            ("near", "pci0000:5d/0000:5d:00.0/0000:5e:00.0", "0\n"),
            ("far", "pci0000:ae/0000:ae:00.0/0000:af:00.0", "1\n"),
            ("blank", "pci0000:d7/0000:d7:00.0/0000:d8:00.0", "-1\n"),
            ("vf", &format!("{SWITCH}/0000:3c:08.0/0000:3e:02.1"), "-1\n"),
        ] {
            tree.device(device, node);
            tree.member("net", name, device, Some("../.."));
        }
        symlink("../0000:3e:00.0", tree.path(&format!("devices/{dual}.0/../0000:3e:02.1/physfn")))
            .unwrap();
        let card = "pci0000:00/0000:00:03.0";
        tree.device(card, "-1\n");
        tree.member("net", "virtio", &format!("{card}/virtio2"), Some("../.."));
        for (name, lower) in [
            ("lo", &[][..]),
            ("veth0", &[]),
            ("eth0.100", &["eth0"]),
            ("bond0", &["eth2", "eth1"]),
            ("bond1", &["eth0", "far"]),
            ("br0", &["veth0", "eth0.100"]),
        ] {
            tree.member("net", name, "virtual", None);
            for lower in lower {
                let (target, upper) = (
                    tree.path(&format!("class/net/{lower}")),
                    format!("devices/virtual/net/{name}"),
                );
                symlink(target, tree.path(&format!("{upper}/lower_{lower}"))).unwrap();
            }
        }
        let mellanox = format!("{SWITCH}/0000:3c:04.0/0000:3d:00.0");
        tree.member("infiniband", "mlx5_0", &mellanox, Some("../.."));
        tree.member("infiniband", "rxe0", "virtual", None);
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs::at(self.0.path())
    }

    fn device(&self, device: &str, node: &str) {
        fs::create_dir_all(self.path(&format!("devices/{device}"))).unwrap();
        fs::write(self.path(&format!("devices/{device}/numa_node")), node).unwrap();
    }

    /// A device of a class, and its link `device` if it has one.
    fn member(&self, class: &str, name: &str, device: &str, link: Option<&str>) {
        let folder = format!("devices/{device}/{class}/{name}");
        fs::create_dir_all(self.path(&folder)).unwrap();
        symlink(format!("../../{folder}"), self.path(&format!("class/{class}/{name}"))).unwrap();
        if let Some(link) = link {
            symlink(link, self.path(&format!("{folder}/device"))).unwrap();
        }
    }

    fn distance(&self, one: &str, other: &str) -> Distance {
        let (sysfs, other) = (self.sysfs(), self.sysfs().interface(other));
        let distance = sysfs.interface(one).distance(&other);
        assert_eq!(other.distance(&sysfs.interface(one)), distance, "{one}");
        distance
    }
}

#[test]
fn distances_are_those_of_nccl() {
    let tree = Tree::of_two_sockets();
    let expected = [
        ("eth0", Distance::Loc),
        ("eth1", Distance::Pix),
        ("eth2", Distance::Pix),
        ("deep", Distance::Pxb),
        ("port", Distance::Phb),
        ("near", Distance::Node),
        ("far", Distance::Sys),
        ("blank", Distance::Sys),
        ("virtio", Distance::Sys),
        ("lo", Distance::Unknown),
    ];
    for (other, distance) in expected {
        assert_eq!(tree.distance("eth0", other), distance, "{other}");
    }
    assert!(expected.is_sorted_by_key(|(_, distance)| distance), "nearer is less");
    let names: Vec<_> = expected.iter().map(|(_, distance)| distance.name()).collect();
    let classes = ["LOC", "PIX", "PIX", "PXB", "PHB", "NODE", "SYS", "SYS", "SYS", "unknown"];
    assert_eq!(names, classes);
}

/// One connection fills what the kernel says nothing else of; the hash of a bond has to see connections.
#[test]
fn bonds_that_hash_and_nics_of_clouds_want_several_flows() {
    let tree = Tree::of_two_sockets();
    let write = |file: &str, text: &str| {
        let file = tree.path(&format!("class/net/{file}"));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    let flows = |name: &str| tree.sysfs().flows(name);
    for (vendor, expected) in [("0x15b3\n", 1), ("0x1d0f\n", 8), ("0x1ae0\n", 4), ("", 1)] {
        write("eth0/device/vendor", vendor);
        assert_eq!(
            (flows("eth0"), flows("eth0.100"), flows("br0")),
            (expected, expected, expected)
        );
    }
    assert_eq!((flows("eth1"), flows("lo"), flows("absent"), flows("..")), (1, 1, 1, 1));
    for (mode, policy, expected) in [
        ("802.3ad 4\n", "layer3+4 1\n", 4),
        ("balance-xor 2\n", "encap3+4 3\n", 4),
        ("802.3ad 4\n", "layer2 0\n", 1),
        ("802.3ad 4\n", "layer2+3 2\n", 1),
        ("active-backup 1\n", "layer3+4 1\n", 1),
        ("balance-rr 0\n", "layer3+4 1\n", 1),
    ] {
        for (file, text) in
            [("mode", mode), ("xmit_hash_policy", policy), ("slaves", "eth2 eth1\n")]
        {
            write(&format!("bond0/bonding/{file}"), text);
        }
        assert_eq!(flows("bond0"), expected, "{mode} {policy}");
    }
    write("bond0/bonding/mode", "802.3ad 4\n");
    write("bond0/bonding/xmit_hash_policy", "layer3+4 1\n");
    for (slaves, expected) in [("", 1), ("a b c d e f g h i j", 16)] {
        write("bond0/bonding/slaves", slaves);
        assert_eq!(flows("bond0"), expected, "{slaves}");
    }
}

#[test]
fn ports_and_virtual_functions_of_a_card_are_one_device() {
    let tree = Tree::of_two_sockets();
    assert_eq!(tree.distance("eth1", "eth2"), Distance::Loc);
    assert_eq!(tree.distance("vf", "eth2"), Distance::Loc);
    assert_eq!(tree.distance("vf", "eth0"), Distance::Pix);
    let vf = tree.sysfs().interface("vf");
    assert_eq!((vf.address(), vf.numa_node()), (Some("0000:3e:00.0".into()), Some(0)));
}

#[test]
fn without_numa_there_is_one_node() {
    let tree = Tree::of_two_sockets();
    assert_eq!(tree.distance("blank", "virtio"), Distance::Node);
    assert_eq!(tree.sysfs().interface("blank").numa_node(), None);
}

/// As of Intel's volume management: a host bridge inside a PCI function, with a long domain.
#[test]
fn a_host_bridge_may_be_below_another() {
    let tree = Tree::empty();
    let inner = "pci0000:64/0000:64:00.5/pci10000:00";
    for (name, device) in
        [("a", "10000:00:02.0/10000:01:00.0"), ("b", "10000:00:03.0/10000:02:00.0")]
    {
        tree.device(&format!("{inner}/{device}"), "0");
        tree.member("net", name, &format!("{inner}/{device}"), Some("../.."));
    }
    assert_eq!(tree.distance("a", "b"), Distance::Phb);
    assert_eq!(tree.sysfs().interface("a").address().as_deref(), Some("10000:01:00.0"));
}

#[test]
fn virtual_interfaces_are_where_those_below_them_are() {
    let tree = Tree::of_two_sockets();
    assert_eq!(tree.distance("eth0.100", "eth0"), Distance::Loc);
    assert_eq!(tree.distance("br0", "eth1"), Distance::Pix);
    assert_eq!(tree.distance("bond0", "eth0"), Distance::Pix);
    assert_eq!(tree.distance("bond1", "bond1"), Distance::Loc);
    assert_eq!(tree.distance("bond1", "eth0"), Distance::Sys, "it may leave through the far port");
    let (sysfs, place) = (tree.sysfs(), tree.sysfs().interface("bond0"));
    assert_eq!(place.address().as_deref(), Some("0000:3e:00.0,0000:3e:00.1"));
    assert_eq!((place.numa_node(), sysfs.interface("bond1").numa_node()), (Some(0), None));
}

#[test]
fn what_is_on_no_bus_is_nowhere_and_equally_far() {
    let tree = Tree::of_two_sockets();
    for nowhere in ["lo", "veth0", "nonesuch", "", ".", "..", "../net/eth0", "a\0b"] {
        let place = tree.sysfs().interface(nowhere);
        assert_eq!((place.address(), place.numa_node()), (None, None), "{nowhere}");
        for other in ["eth0", "far", "lo", "veth0"] {
            assert_eq!(tree.distance(nowhere, other), Distance::Unknown, "{nowhere} {other}");
        }
    }
    assert!(tree.sysfs().rdma_device("rxe0").is_unknown());
    assert!(Sysfs::at("/nonexistent").interface("eth0").is_unknown());
}

#[test]
fn rdma_devices_and_addresses_are_found_without_what_follows_the_colon() {
    let tree = Tree::of_two_sockets();
    let sysfs = tree.sysfs();
    let place = sysfs.rdma_device("mlx5_0");
    assert_eq!(place.distance(&sysfs.interface("eth0")), Distance::Loc);
    assert_eq!(place.distance(&sysfs.interface("far")), Distance::Sys);
    assert_eq!(sysfs.rdma_device("mlx5_0:1"), place);
    assert_eq!(sysfs.interface("eth0:2"), sysfs.interface("eth0"));
    assert!(sysfs.rdma_device("mlx5_1").is_unknown());
}

#[test]
fn broken_entries_are_nowhere() {
    let tree = Tree::of_two_sockets();
    let links = [
        ("gone", "nothing"),
        ("loop", "device"),
        ("out", "/proc/self"),
        ("root", "../../../.."),
        ("file", "../../../../class/net/eth0/device/numa_node"),
    ];
    for (name, target) in links {
        tree.member("net", name, "virtual", Some(target));
    }
    for name in ["gone", "loop", "out", "root"] {
        assert!(tree.sysfs().interface(name).is_unknown(), "{name}");
    }
    assert_eq!(tree.distance("file", "eth0"), Distance::Loc, "it is in the folder of the device");
    fs::write(tree.path("class/net/plain"), "").unwrap();
    assert!(tree.sysfs().interface("plain").is_unknown());
    // Interfaces on each other, and more of them than are looked at.
    tree.member("net", "one", "virtual", None);
    for below in (0..1000).map(|index| format!("x{index}")).chain(["one".into(), "..".into()]) {
        symlink("..", tree.path(&format!("class/net/one/lower_{below}"))).unwrap();
    }
    assert!(tree.sysfs().interface("one").is_unknown());
}

#[test]
fn numa_nodes_that_are_no_numbers_are_unknown() {
    let tree = Tree::of_two_sockets();
    let file = tree.path(&format!("devices/{SWITCH}/0000:3c:04.0/0000:3d:00.0/numa_node"));
    for text in ["-1", "", "x", "4294967296", "\u{fffd}"] {
        fs::write(&file, text).unwrap();
        assert_eq!(tree.sysfs().interface("eth0").numa_node(), None, "{text:?}");
    }
    fs::write(&file, [0xff, 0xfe]).unwrap();
    assert_eq!(tree.sysfs().interface("eth0").numa_node(), None);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(tree.sysfs().interface("eth0").numa_node(), None);
    fs::remove_dir(&file).unwrap();
    symlink("/dev/zero", &file).unwrap();
    let place = tree.sysfs().interface("eth0");
    assert_eq!((place.numa_node(), place.address().as_deref()), (None, Some("0000:3d:00.0")));
}

/// Whatever this machine has.
#[test]
fn the_loopback_interface_is_nowhere() {
    assert!(Sysfs::default().interface("lo").is_unknown());
}

const NAMES: [&str; 7] =
    ["device", "physfn", "numa_node", "eth0", "lower_eth0", "lower_eth1", ".."];

/// Names as of hops, and such as are nearly that.
fn component() -> impl Strategy<Value = String> {
    let hop = "(pci)?[0-9a-f]{3,6}:[0-9a-f]{2}(:[0-9a-f]{2}[.][0-9a-f])?";
    prop_oneof![3 => hop, 3 => prop::sample::select(&NAMES[..]).prop_map_into(), 1 => "[^/\0]{1,9}"]
}

#[derive(Clone, Debug)]
enum Entry {
    Folder,
    File(Vec<u8>),
    Link(Vec<String>),
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        Just(Entry::Folder),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Entry::File),
        prop::collection::vec(component(), 1..5).prop_map(Entry::Link),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_tree_is_too_strange(
        entries in prop::collection::vec((prop::collection::vec(component(), 1..6), entry()), 0..30),
        name in ".{0,20}",
    ) {
        let tree = Tree::empty();
        for name in ["eth0", "eth1"] {
            tree.member("net", name, "pci0000:00/0000:00:01.0", Some("../.."));
        }
        for (path, entry) in entries {
            // Nothing outside of the tree is written.
            let inside: Vec<_> = path.into_iter().filter(|part| part != "..").collect();
            let path = tree.path("devices/pci0000:00/0000:00:01.0/net/eth0").join(inside.join("/"));
            let is_there = path.parent().is_some_and(|above| fs::create_dir_all(above).is_ok());
            let _ = match entry {
                _ if !is_there => Ok(()),
                Entry::Folder => fs::create_dir(&path),
                Entry::File(bytes) => fs::write(&path, bytes),
                Entry::Link(target) => symlink(target.join("/"), &path),
            };
        }
        let sysfs = tree.sysfs();
        for place in [sysfs.interface("eth0"), sysfs.interface(&name), sysfs.rdma_device(&name)] {
            let known = Sysfs::at(tree.path("")).interface("eth1");
            prop_assert_eq!(place.distance(&known), known.distance(&place));
            prop_assert_eq!(place.is_unknown(), place.address().is_none());
        }
    }

    #[test]
    fn names_of_hops_are_checked(name in ".{0,20}") {
        prop_assert!(!(is_function(&name) && is_host_bridge(&name)));
    }
}
