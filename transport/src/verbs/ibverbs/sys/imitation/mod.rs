//! An imitation of libibverbs, and of libmlx5, for tests: devices that live in this process.
//!
//! A [`Network`] is a number of devices with one port each, whose library has the functions of the real one.
//! Whatever the device of this crate does with that library is executed: memory is copied, keys and bounds are
//! checked, receives are consumed, packets of a port without link are sent again until nobody answers. What a
//! device would refuse, such as a change of state with an attribute too many, is refused.
//!
//! Nothing runs in the background: whoever posts has one request executed, whoever polls a few, of any queue
//! pair. So requests are on their way for a while, and in an order that a test can rely on.
//!
//! Where hardware is treacherous the imitation is too:
//!
//! - a place of a ring is free only when a completion from behind it has been polled;
//! - destroying a queue pair throws away what it has completed and nobody has polled, as libmlx5 does;
//! - a dynamic target has a number only when it receives, which may be that of one that is gone, and no error
//!   state; requests that arrive while it is being destroyed are executed;
//! - a device of mlx5 puts small messages into the completion, from where libmlx5 copies them to where the
//!   receive says *in this process*, unless it is told not to. Registered at other addresses they are lost;
//! - what belongs to a device that was removed is not taken back (`EIO`), and its descriptors announce that for ever;
//! - memory is registered only at an address that has the place in a page that it has in this process.
//!
//! It is written after the manual pages and sources of rdma-core and the driver in Linux. It shows that the code
//! here does what those say, not that they say what hardware does.

mod bell;
mod calls;
mod dynamic;
mod engine;
mod pairs;
mod ports;
mod posting;
mod verbs;
mod world;

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::library::{DeviceList, Library};
use crate::TransportError;
use world::{Port, World};

/// Devices that reach each other.
#[derive(Clone, Debug)]
pub(in crate::verbs) struct Network(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    world: Mutex<World>,
    names: Vec<CString>,
    make: Make,
}

/// What the devices of a network are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Make {
    /// Of no maker in particular.
    Plain,
    /// Those of mlx5, with libmlx5.
    Mlx5,
    /// The same without it.
    Mlx5Alone,
    /// Those of hns.
    Hns,
}

impl Network {
    /// Devices `name0`, `name1` and so on, all with a link.
    pub(in crate::verbs) fn new(name: &str, devices: usize, make: Make) -> Self {
        static NETWORKS: AtomicU8 = AtomicU8::new(0);
        let third = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let port = |index: usize| {
            let last = u8::try_from(index + 1).expect("few devices");
            Port::new(Ipv4Addr::new(10, 77, third, last).to_ipv6_mapped().octets())
        };
        let ports = (0..devices).map(port).collect();
        let name = |index| CString::new(format!("{name}{index}")).expect("no zeros");
        let names = (0..devices).map(name).collect();
        let world = Mutex::new(World::new(ports));
        Self(Arc::new(Shared { world, names, make }))
    }

    /// What the library of the network lists.
    pub(in super::super) fn list(&self) -> DeviceList {
        verbs::announce(self);
        let mlx5 = if self.0.make == Make::Mlx5 {
            Ok(dynamic::FUNCTIONS)
        } else {
            Err(TransportError::system("load libmlx5", "it is not in the imitation"))
        };
        let library =
            Arc::new(Library { functions: verbs::FUNCTIONS, register_dmabuf: None, mlx5 });
        DeviceList::new(library).expect("a network has devices")
    }

    /// Gives a device another address, which everybody on this host is told.
    pub(in crate::verbs) fn move_to(&self, device: usize, address: Ipv4Addr) {
        self.world().set_address(device, address.to_ipv6_mapped().octets());
    }

    /// Gives a device an address more, as one of a VLAN.
    pub(in crate::verbs) fn add(&self, device: usize, address: Ipv4Addr) {
        self.world().ports[device].second = Some(address.to_ipv6_mapped().octets());
    }

    /// Its packets have this size from now on: as the enumeration of the header.
    pub(in crate::verbs) fn packets(&self, device: usize, mtu: u8) {
        self.world().ports[device].mtu = mtu.into();
    }

    /// Its cable is there or not, and everybody on this host is told.
    pub(in crate::verbs) fn link(&self, device: usize, is_up: bool) {
        self.world().set_link(device, is_up);
    }

    /// It is removed, as with its driver: nothing of it can be used any more, nor given back.
    pub(in crate::verbs) fn remove(&self, device: usize) {
        self.world().remove_device(device);
    }

    /// Everything that a device sends or should receive is lost, and nobody is told.
    pub(in crate::verbs) fn cut(&self, device: usize, is_cut: bool) {
        self.world().ports[device].is_cut = is_cut;
    }

    /// It makes no more dynamic targets, or does again.
    pub(in crate::verbs) fn allow_targets(&self, is_so: bool) {
        self.world().makes_targets = is_so;
    }

    /// Entries of ledgers that are posted from now on say that messages are longer than any is.
    pub(in crate::verbs) fn forge(&self) {
        self.world().forges = true;
    }

    /// Its devices have atomics, or have none.
    pub(in crate::verbs) fn allow_atomics(&self, is_so: bool) {
        self.world().has_atomics = is_so;
    }

    /// Nothing is executed until it is released.
    pub(in crate::verbs) fn hold(&self, is_held: bool) {
        self.world().is_held = is_held;
    }

    /// Only so many requests are executed from now on.
    pub(in crate::verbs) fn release(&self, count: usize) {
        let mut world = self.world();
        world.is_held = false;
        let executed = world.progress(count);
        world.is_held = true;
        assert_eq!(executed, count, "there are not so many requests that can be executed");
    }

    /// So many requests are executed while the next target is being destroyed.
    pub(in crate::verbs) fn hurry(&self, count: usize) {
        self.world().late = count;
    }

    /// Queue pairs that have been made and not destroyed: reliable ones, initiators, targets.
    pub(in crate::verbs) fn pairs(&self) -> [usize; 3] {
        self.world().count()
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is behind a pointer that this library gives out: first what the header describes, then what it is
/// here.
#[repr(C)]
struct Object<T> {
    visible: MaybeUninit<T>,
    network: Network,
    id: usize,
}

/// Gives out an object.
fn give<T>(visible: Option<T>, network: &Network, id: usize) -> *mut T {
    let visible = visible.map_or_else(MaybeUninit::uninit, MaybeUninit::new);
    let object = Object { visible, network: network.clone(), id };
    Box::into_raw(Box::new(object)).cast()
}

/// The network and the number of an object.
fn behind<T>(pointer: *const T) -> (Network, usize) {
    let pointer = pointer.cast::<Object<T>>();
    // SAFETY: whoever calls a function of a library passes what the library gave out, and it lives until it
    // is given back.
    let object = unsafe { &*pointer };
    (object.network.clone(), object.id)
}

/// Takes an object back.
fn take_back<T>(pointer: *mut T) {
    // SAFETY: the library gave it out, and whoever gives it back does not use it any more.
    drop(unsafe { Box::from_raw(pointer.cast::<Object<T>>()) });
}
