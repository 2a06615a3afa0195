//! An opened device and its ports.

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::abi;
use super::library::{DeviceList, Library, Mlx5Functions, text};
use crate::TransportError;

/// Rows of a table of addresses that are looked at one by one.
const MOST_ROWS: u32 = 256;
/// Addresses of a device that are asked for in one call.
const MOST_ENTRIES: usize = 256;
/// Makers of devices, as they tell, and the first device by this one that is of mlx5.
const MELLANOX: u32 = 0x02c9;
const FIRST_OF_MLX5: u32 = 0x1011;
const HISILICON: u32 = 0x19e5;

/// An opened device.
#[derive(Debug)]
pub(in super::super) struct Context {
    pointer: NonNull<abi::Context>,
    library: Arc<Library>,
    /// What libmlx5 does for it, if it is a device of mlx5.
    mlx5: Option<Mlx5Functions>,
    name: String,
}

// SAFETY: the library may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: the library may be used from several threads at once.
unsafe impl Sync for Context {}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct DeviceLimits {
    pub(in super::super) ports: u8,
    pub(in super::super) queue_entries: usize,
    pub(in super::super) completions: usize,
    /// Reads and atomics under way that it can answer, and that it can have asked for.
    pub(in super::super) reads_answered: u8,
    pub(in super::super) reads_asked: u8,
    pub(in super::super) has_atomics: bool,
}

/// What a port is like at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PortState {
    pub(in super::super) is_active: bool,
    pub(in super::super) is_ethernet: bool,
    /// As the enumeration of the header: 256 bytes shifted by one less.
    pub(in super::super) mtu: u8,
    /// Bytes of an operation, at most.
    pub(in super::super) longest: u32,
    pub(in super::super) lid: u16,
    pub(in super::super) gids: u32,
}

/// An address of a port.
pub(in super::super) type Gid = [u8; 16];

/// In which packets an address is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum GidKind {
    InfiniBand,
    RoceV1,
    RoceV2,
}

/// A row of the table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct GidEntry {
    pub(in super::super) index: u8,
    pub(in super::super) gid: Gid,
    pub(in super::super) kind: GidKind,
}

/// What happened to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Event {
    /// A queue pair, by its number, cannot go on.
    QueuePair(u32, String),
    /// A port has no link any more.
    PortDown(u8),
    /// It has one.
    PortUp(u8),
    /// The addresses of a port are others.
    Addresses(u8),
    /// The device is gone.
    Fatal,
    /// Something that changes nothing here.
    Other,
}

impl Context {
    /// Opens the device of the list that is called `name`.
    ///
    /// # Errors
    /// There is no such device, or it may not be used.
    pub(in super::super) fn open(
        list: &DeviceList,
        name: &str,
    ) -> Result<Arc<Self>, TransportError> {
        let library = list.library();
        let failed =
            |cause: String| TransportError::system(format!("open the RDMA device {name}"), cause);
        let device = list.devices().iter().find(|&&device| list.name(device) == name);
        let device = *device.ok_or_else(|| failed("there is no such device".into()))?;
        // SAFETY: the device is of the list.
        let pointer = unsafe { (library.functions.ibv_open_device)(device) };
        let pointer =
            NonNull::new(pointer).ok_or_else(|| failed(io::Error::last_os_error().to_string()))?;
        // SAFETY: the device is of the list.
        let is_mlx5 = |mlx5: &Mlx5Functions| unsafe { (mlx5.mlx5dv_is_supported)(device) };
        let mlx5 = library.mlx5.as_ref().ok().copied().filter(is_mlx5);
        let context = Self { pointer, library: Arc::clone(library), mlx5, name: name.into() };
        let prepared = without_blocking(context.descriptor());
        prepared.map_err(|cause| failed(cause.to_string()))?;
        Ok(Arc::new(context))
    }

    pub(in super::super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    /// Of a device of mlx5.
    pub(super) fn mlx5(&self) -> Option<&Mlx5Functions> {
        self.mlx5.as_ref()
    }

    /// Whether it is a device of mlx5, whose queue pairs may be dynamic ones.
    pub(in super::super) fn is_mlx5(&self) -> bool {
        self.mlx5.is_some()
    }

    /// What is called without the library, on the path of the data.
    pub(super) fn operations(&self) -> &abi::ContextOps {
        // SAFETY: the library made the context, and its table of functions is not changed after that.
        unsafe { &(*self.pointer()).ops }
    }

    pub(super) fn pointer(&self) -> *mut abi::Context {
        self.pointer.as_ptr()
    }

    /// Readable when there are events.
    pub(in super::super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the library made the context, and nobody writes to its fields.
        let descriptor = unsafe { (*self.pointer()).async_fd };
        // SAFETY: it is open as long as the context, which this borrows.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }

    /// # Errors
    /// The device does not answer, or is one whose driver would write to addresses of this process.
    pub(in super::super) fn limits(&self) -> Result<DeviceLimits, TransportError> {
        let mut attributes = MaybeUninit::<abi::DeviceAttributes>::zeroed();
        // SAFETY: the library fills in a value of this type.
        let result = unsafe {
            (self.library.functions.ibv_query_device)(self.pointer(), attributes.as_mut_ptr())
        };
        self.succeeded("query", result)?;
        // SAFETY: it is filled in, and all of it are numbers, for which zeros are values too.
        let found = unsafe { attributes.assume_init() };
        if let Some(reason) = self.copies(found.vendor_id, found.vendor_part_id) {
            return Err(TransportError::system(
                format!("use the RDMA device {}", self.name),
                reason,
            ));
        }
        let count = |number: c_int| usize::try_from(number).unwrap_or(0);
        let few = |number: c_int| u8::try_from(number.max(0)).unwrap_or(u8::MAX);
        Ok(DeviceLimits {
            ports: found.phys_port_cnt,
            queue_entries: count(found.max_qp_wr),
            completions: count(found.max_cqe),
            reads_answered: few(found.max_qp_rd_atom),
            reads_asked: few(found.max_qp_init_rd_atom),
            has_atomics: found.atomic_cap != abi::IBV_ATOMIC_NONE,
        })
    }

    /// Why the driver of a device by this maker copies small messages to where a receive says, if it does: an
    /// address that devices know, and none of this process. A maker is known by its number since
    /// libibverbs does not tell the driver.
    fn copies(&self, maker: u32, device: u32) -> Option<String> {
        let lacking = || match &self.library.mlx5 {
            Ok(_) => "there are two of them, and the one that is found is not its driver".into(),
            Err(reason) => reason.to_string(),
        };
        match maker {
            MELLANOX if device >= FIRST_OF_MLX5 && self.mlx5.is_none() => Some(format!(
                "it is one of mlx5, which copies small messages to addresses of this process unless libmlx5 \
                 is asked not to: {}",
                lacking()
            )),
            HISILICON => Some(
                "it is one of hns, whose driver copies small messages to addresses of this process, and no \
                 device is told any; use another one, or TCP"
                    .into(),
            ),
            _ => None,
        }
    }

    /// # Errors
    /// The device does not answer, or has no such port.
    pub(in super::super) fn port(&self, port: u8) -> Result<PortState, TransportError> {
        let mut attributes = MaybeUninit::<abi::PortAttributes>::zeroed();
        // SAFETY: the library fills in the beginning of a value of this type.
        let result = unsafe {
            (self.library.functions.ibv_query_port)(self.pointer(), port, attributes.as_mut_ptr())
        };
        self.succeeded(&format!("query port {port} of"), result)?;
        // SAFETY: it is filled in, and all of it are numbers, for which zeros are values too.
        let found = unsafe { attributes.assume_init() };
        Ok(PortState {
            is_active: found.state == abi::IBV_PORT_ACTIVE,
            is_ethernet: c_uint::from(found.link_layer) == abi::IBV_LINK_LAYER_ETHERNET,
            mtu: u8::try_from(found.active_mtu).unwrap_or(0),
            longest: found.max_msg_sz,
            lid: found.lid,
            gids: u32::try_from(found.gid_tbl_len).unwrap_or(0),
        })
    }

    /// The addresses of a port whose table has `rows` rows, most of which are empty as a rule.
    pub(in super::super) fn gids(&self, port: u8, rows: u32) -> Vec<GidEntry> {
        self.gid_table(port).unwrap_or_else(|| {
            (0..rows.min(MOST_ROWS)).filter_map(|index| self.gid(port, index)).collect()
        })
    }

    /// The same in one call instead of one for each row; `None` if they are too many for that.
    fn gid_table(&self, port: u8) -> Option<Vec<GidEntry>> {
        let mut entries = [MaybeUninit::<abi::GidEntry>::zeroed(); MOST_ENTRIES];
        // SAFETY: the library fills in values of this type, whose number and size it is told.
        let found = unsafe {
            (self.library.functions._ibv_query_gid_table)(
                self.pointer(),
                entries.as_mut_ptr().cast(),
                entries.len(),
                0,
                size_of::<abi::GidEntry>(),
            )
        };
        let found = entries.get(..usize::try_from(found).ok()?)?;
        // SAFETY: they are filled in, and all of them are numbers, for which zeros are values too.
        let rows = found.iter().map(|entry| unsafe { entry.assume_init() });
        Some(
            rows.filter(|row| row.port_num == u32::from(port))
                .filter_map(|row| row_of(&row))
                .collect(),
        )
    }

    /// A row of the table of a port, unless it is empty.
    pub(in super::super) fn gid(&self, port: u8, index: u32) -> Option<GidEntry> {
        let mut entry = MaybeUninit::<abi::GidEntry>::zeroed();
        // SAFETY: the library fills in a value of this type, whose size it is told.
        let result = unsafe {
            (self.library.functions._ibv_query_gid_ex)(
                self.pointer(),
                u32::from(port),
                index,
                entry.as_mut_ptr(),
                0,
                size_of::<abi::GidEntry>(),
            )
        };
        if result != 0 {
            return None;
        }
        // SAFETY: it is filled in, and all of it are numbers, for which zeros are values too.
        row_of(&unsafe { entry.assume_init() })
    }

    /// The oldest event that nobody has taken, if there is one.
    pub(in super::super) fn next_event(&self) -> Option<Event> {
        let mut event = MaybeUninit::<abi::AsyncEvent>::zeroed();
        let functions = &self.library.functions;
        // SAFETY: the library fills in a value of this type; it does not block.
        let result = unsafe { (functions.ibv_get_async_event)(self.pointer(), event.as_mut_ptr()) };
        if result != 0 {
            return None;
        }
        // SAFETY: it is filled in.
        let mut event = unsafe { event.assume_init() };
        let meaning = self.meaning(&event);
        // SAFETY: the event is one that was just taken, and is given back once.
        unsafe { (functions.ibv_ack_async_event)(&raw mut event) };
        Some(meaning)
    }

    fn meaning(&self, event: &abi::AsyncEvent) -> Event {
        // SAFETY: events of ports have the number of the port there, and every bit pattern is one.
        let port = u8::try_from(unsafe { event.element.port_num }).unwrap_or(0);
        match event.event_type {
            abi::IBV_EVENT_PORT_ERR => Event::PortDown(port),
            abi::IBV_EVENT_PORT_ACTIVE => Event::PortUp(port),
            abi::IBV_EVENT_GID_CHANGE => Event::Addresses(port),
            abi::IBV_EVENT_DEVICE_FATAL => Event::Fatal,
            abi::IBV_EVENT_QP_FATAL
            | abi::IBV_EVENT_QP_REQ_ERR
            | abi::IBV_EVENT_QP_ACCESS_ERR
            | abi::IBV_EVENT_PATH_MIG_ERR => {
                // SAFETY: events of queue pairs have a pointer there.
                let pair = unsafe { event.element.qp };
                // SAFETY: a queue pair is not destroyed before its events are given back.
                let number = unsafe { (*pair).qp_num };
                // SAFETY: it returns a constant text for every number.
                let name = unsafe { (self.library.functions.ibv_event_type_str)(event.event_type) };
                Event::QueuePair(number, text(name))
            }
            _ => Event::Other,
        }
    }

    fn succeeded(&self, verb: &str, result: c_int) -> Result<(), TransportError> {
        if result == 0 {
            return Ok(());
        }
        let cause = error(result);
        Err(TransportError::system(format!("{verb} the RDMA device {}", self.name), cause))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made from the context keeps it alive, so nothing is left.
        let closed = unsafe { (self.library.functions.ibv_close_device)(self.pointer()) };
        warn_unless_closed(closed, "device");
    }
}

/// What a row says, if it is one that can be used.
fn row_of(entry: &abi::GidEntry) -> Option<GidEntry> {
    let kind = match entry.gid_type {
        abi::IBV_GID_TYPE_IB => GidKind::InfiniBand,
        abi::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
        abi::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
        _ => return None,
    };
    let index = u8::try_from(entry.gid_index).ok()?;
    Some(GidEntry { index, gid: entry.gid.raw, kind })
}

/// Some calls return the number of the error, others -1 and set `errno`.
pub(super) fn error(result: c_int) -> io::Error {
    if result > 0 { io::Error::from_raw_os_error(result) } else { io::Error::last_os_error() }
}

/// What cannot be given back is lost, and nobody can do anything about it.
pub(super) fn warn_unless_closed(result: c_int, what: &'static str) {
    if result != 0 {
        tracing::warn!(what, cause = %error(result), "libibverbs does not take an object back");
    }
}

pub(super) fn without_blocking(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let flags = fcntl_getfl(descriptor)?;
    Ok(fcntl_setfl(descriptor, flags | OFlags::NONBLOCK)?)
}
