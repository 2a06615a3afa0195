//! The requests to the kernel of which networks are made, over one socket per network namespace.
//!
//! A netlink socket belongs to the namespace in which it was opened, whoever uses it: that is why a
//! cable can be cut from anywhere within microseconds. Every request is answered before the next is
//! sent.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;

use netlink_packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use super::fault::Queue;
use super::shape::Rate;

/// Number of a device within its namespace. A bed chooses the numbers itself.
pub(super) type Index = u32;

/// The loopback device of every namespace.
pub(super) const LOOPBACK: Index = 1;

/// No answer to a request is longer: it repeats the request.
const ANSWER_BYTES: usize = 8192;

/// Every network of a bed is a /24.
const PREFIX_BITS: u8 = 24;

/// What leaves a slow card in so many milliseconds passes its shaper unshaped.
const BURST_MS: u64 = 10;
/// With less for every segment, cards cost more processor time than they carry.
const LEAST_BURST_BYTES: u64 = 16 << 10;
/// So much passes a faster card, which makes segments of the usual size.
const FULL_BURST_BYTES: u64 = 128 << 10;
/// And at least what leaves it in so many milliseconds: timers are not finer.
const TIMER_MS: u64 = 1;
/// How long a packet may wait in a shaper behind `FULL_BURST_BYTES`.
const WAIT_MS: u64 = 20;

/// Attributes of the shaper (`linux/pkt_sched.h`); the crate does not have them.
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
/// Size of `struct tc_tbf_qopt`: two `tc_ratespec` and three numbers.
const TBF_PARAMETERS_BYTES: usize = 36;
/// `TC_LINKLAYER_ETHERNET`, the second byte of a `tc_ratespec`.
const ETHERNET: u8 = 1;

/// A network card: a number and a name in a namespace that an open file stands for.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) index: Index,
    pub(super) name: String,
    pub(super) hardware: [u8; 6],
    pub(super) namespace: RawFd,
}

/// The connection to one namespace's network.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: Socket,
    last: u32,
}

impl Netlink {
    /// Connects to the network namespace of the calling thread.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, last: 0 })
    }

    /// Makes a switch.
    pub(super) fn add_bridge(&mut self, index: Index, name: &str) -> io::Result<()> {
        // Nobody asks for multicast groups here, and looking for those who do costs packets.
        let data = InfoData::Bridge(vec![InfoBridge::MulticastSnooping(false)]);
        let info = vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(data)];
        let mut message = device(index);
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(info));
        self.create(RouteNetlinkMessage::NewLink(message))
    }

    /// Makes a cable: a pair of devices, `here` in this namespace and `there` in another.
    pub(super) fn add_cable(&mut self, here: (Index, &str), there: &Place) -> io::Result<()> {
        let mut peer = device(there.index);
        peer.attributes.push(LinkAttribute::IfName(there.name.clone()));
        peer.attributes.push(LinkAttribute::Address(there.hardware.to_vec()));
        peer.attributes.push(LinkAttribute::NetNsFd(there.namespace));
        let data = InfoData::Veth(InfoVeth::Peer(peer));
        let info = vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(data)];
        let mut message = device(here.0);
        message.attributes.push(LinkAttribute::IfName(here.1.to_owned()));
        message.attributes.push(LinkAttribute::LinkInfo(info));
        self.create(RouteNetlinkMessage::NewLink(message))
    }

    /// Gives a device an address; the rest of its network is reached through it.
    pub(super) fn add_address(&mut self, index: Index, address: Ipv4Addr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = PREFIX_BITS;
        message.header.index = index;
        message.attributes.push(AddressAttribute::Local(IpAddr::V4(address)));
        message.attributes.push(AddressAttribute::Address(IpAddr::V4(address)));
        self.create(RouteNetlinkMessage::NewAddress(message))
    }

    /// Switches a device on or off.
    pub(super) fn power(&mut self, index: Index, on: bool) -> io::Result<()> {
        let mut message = device(index);
        message.header.flags = if on { LinkFlags::Up } else { LinkFlags::empty() };
        message.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::SetLink(message))
    }

    /// Makes a device a port of a switch, or of none.
    pub(super) fn attach(&mut self, index: Index, bridge: Option<Index>) -> io::Result<()> {
        let mut message = device(index);
        message.attributes.push(LinkAttribute::Controller(bridge.unwrap_or(0)));
        self.change(RouteNetlinkMessage::SetLink(message))
    }

    /// Lets a device make segments that pass its shaper whole: larger ones would be cut up there.
    pub(super) fn segment(&mut self, index: Index, rate: Rate) -> io::Result<()> {
        let Rate::Limited { bytes_per_second } = rate else { return Ok(()) };
        let mut message = device(index);
        let bytes = saturated(burst_bytes(bytes_per_second).min(FULL_BURST_BYTES) / 2);
        message.attributes.push(LinkAttribute::GsoMaxSize(bytes));
        self.change(RouteNetlinkMessage::SetLink(message))
    }

    /// Says what happens to packets that leave a device.
    pub(super) fn queue(&mut self, index: Index, queue: Queue) -> io::Result<()> {
        let (kind, options) = match queue {
            Queue::Blackhole => ("blackhole", Vec::new()),
            Queue::Shaped(Rate::Unlimited) => ("noqueue", Vec::new()),
            Queue::Shaped(Rate::Limited { bytes_per_second }) => ("tbf", shaper(bytes_per_second)),
        };
        let mut message = TcMessage::default();
        message.header.index = i32::try_from(index).expect("a bed is small");
        message.header.parent = TcHandle::ROOT;
        message.attributes.push(TcAttribute::Kind(kind.to_owned()));
        if !options.is_empty() {
            message.attributes.push(TcAttribute::Options(options));
        }
        self.request(RouteNetlinkMessage::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    fn create(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.request(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    fn change(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        self.request(message, 0)
    }

    /// Sends a request and waits until the kernel has done it.
    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut packet = NetlinkMessage::from(message);
        self.last += 1;
        packet.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        packet.header.sequence_number = self.last;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(ANSWER_BYTES);
        loop {
            bytes.clear();
            self.socket.recv(&mut bytes, 0)?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&bytes)
                .map_err(io::Error::other)?;
            if answer.header.sequence_number != self.last {
                continue;
            }
            let NetlinkPayload::Error(error) = answer.payload else { return Ok(()) };
            return if error.code.is_some() { Err(error.to_io()) } else { Ok(()) };
        }
    }
}

fn device(index: Index) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

/// Bytes that pass a shaper at once after a rest.
fn burst_bytes(bytes_per_second: u64) -> u64 {
    let in_ms = |ms: u64| bytes_per_second.saturating_mul(ms) / 1000;
    in_ms(BURST_MS).clamp(LEAST_BURST_BYTES, FULL_BURST_BYTES).max(in_ms(TIMER_MS))
}

fn saturated(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// The options of a token bucket filter.
fn shaper(bytes_per_second: u64) -> Vec<TcOption> {
    let burst_bytes = burst_bytes(bytes_per_second);
    let limit_bytes = burst_bytes
        .max(FULL_BURST_BYTES)
        .saturating_add(bytes_per_second.saturating_mul(WAIT_MS) / 1000);
    let mut parameters = [0; TBF_PARAMETERS_BYTES];
    parameters[1] = ETHERNET;
    parameters[8..12].copy_from_slice(&saturated(bytes_per_second).to_ne_bytes());
    parameters[24..28].copy_from_slice(&saturated(limit_bytes).to_ne_bytes());
    [
        (TBF_PARAMETERS, parameters.to_vec()),
        (TBF_RATE64, bytes_per_second.to_ne_bytes().to_vec()),
        (TBF_BURST, saturated(burst_bytes).to_ne_bytes().to_vec()),
    ]
    .map(|(kind, value)| TcOption::Other(DefaultNla::new(kind, value)))
    .into()
}
