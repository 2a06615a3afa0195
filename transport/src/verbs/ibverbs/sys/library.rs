//! The functions of libibverbs.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi;
use super::abi::mlx5::{ExtendedInitAttributes, ExtendedPair, Mlx5Attributes, Mlx5Pair};
use super::context::error;
use crate::TransportError;

/// The name of the library since 2005; its symbols have versions.
const NAME: &CStr = c"libibverbs.so.1";

/// That of the driver of mlx5, which is in the same package as the driver itself.
const MLX5_NAME: &CStr = c"libmlx5.so.1";
/// What they are called in messages.
const VERBS: &str = "libibverbs";
const MLX5: &str = "libmlx5";

/// The library, loaded.
#[derive(Debug)]
pub(in super::super) struct Library {
    pub(super) functions: Functions,
    /// Since rdma-core 34.
    pub(super) register_dmabuf: Option<RegisterDmabuf>,
    /// libmlx5, or why it cannot be used.
    pub(super) mlx5: Result<Mlx5Functions, TransportError>,
}

/// `ibv_reg_dmabuf_mr`: offset, length, address by which devices know it, descriptor, access.
pub(super) type RegisterDmabuf = unsafe extern "C" fn(
    *mut abi::ProtectionDomain,
    u64,
    usize,
    u64,
    c_int,
    c_int,
) -> *mut abi::MemoryRegion;

/// What registers dma-bufs, and its version.
pub(super) const REGISTER_DMABUF: (&str, &str) = ("ibv_reg_dmabuf_mr", "IBVERBS_1.12");

impl Library {
    /// Loads it.
    ///
    /// # Errors
    /// It is not installed, or too old.
    pub(in super::super) fn load() -> Result<Arc<Self>, TransportError> {
        Self::open(NAME)
    }

    /// Why libmlx5 cannot be used, if so.
    pub(in super::super) fn lacks_mlx5(&self) -> Option<&TransportError> {
        self.mlx5.as_ref().err()
    }

    fn open(name: &CStr) -> Result<Arc<Self>, TransportError> {
        let loaded = loaded(name, VERBS)?;
        // The handle is never closed: drivers that the library loads register themselves in it.
        let functions = Functions::find(loaded)?;
        let register_dmabuf = symbol(loaded, REGISTER_DMABUF.0, REGISTER_DMABUF.1).ok();
        let register_dmabuf = register_dmabuf.map(|address| {
            // SAFETY: this version of the symbol is a function of this type.
            unsafe { std::mem::transmute::<NonNull<c_void>, RegisterDmabuf>(address) }
        });
        let mlx5 = loaded_mlx5(MLX5_NAME);
        Ok(Arc::new(Self { functions, register_dmabuf, mlx5 }))
    }

    /// Lets this process fork. On kernels before 5.12 the first write behind a fork would give it another page than the
    /// one that a device knows, and what is received would never be seen. Later ones copy for the child, and
    /// nothing is done. It works only before memory is registered, by anybody in this process.
    fn allow_forks(&self) {
        // SAFETY: it may be called at any time.
        let result = unsafe { (self.functions.ibv_fork_init)() };
        if result != 0 {
            tracing::warn!(
                cause = %error(result),
                "libibverbs is not prepared for forks: on kernels before 5.12 a fork spoils registered memory"
            );
        }
    }
}

/// The devices of this host, as long as the library keeps them for us.
#[derive(Debug)]
pub(in super::super) struct DeviceList {
    library: Arc<Library>,
    list: NonNull<*mut abi::Device>,
    count: usize,
}

// SAFETY: the library may be used from any thread, and the list does not change.
unsafe impl Send for DeviceList {}
// SAFETY: the list is only read.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// # Errors
    /// There is none, or no kernel support.
    pub(in super::super) fn new(library: Arc<Library>) -> Result<Self, TransportError> {
        library.allow_forks();
        let mut count: c_int = 0;
        // SAFETY: the library writes one number where it is told.
        let list = unsafe { (library.functions.ibv_get_device_list)(&raw mut count) };
        let none = |cause: String| TransportError::system("list the RDMA devices", cause);
        let list =
            NonNull::new(list).ok_or_else(|| none(io::Error::last_os_error().to_string()))?;
        let found = Self { library, list, count: usize::try_from(count).unwrap_or(0) };
        if found.count == 0 { Err(none("there is none".into())) } else { Ok(found) }
    }

    pub(super) fn library(&self) -> &Arc<Library> {
        &self.library
    }

    pub(in super::super) fn names(&self) -> Vec<String> {
        self.devices().iter().map(|&device| self.name(device)).collect()
    }

    pub(super) fn devices(&self) -> &[*mut abi::Device] {
        // SAFETY: the library made a list of so many pointers, which lives as long as this value.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }

    pub(super) fn name(&self, device: *mut abi::Device) -> String {
        // SAFETY: the device is of the list.
        text(unsafe { (self.library.functions.ibv_get_device_name)(device) })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list is that of the library, and nobody uses it any more.
        unsafe { (self.library.functions.ibv_free_device_list)(self.list.as_ptr()) }
    }
}

/// A constant text of the library.
pub(super) fn text(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: it ends with a zero, as all texts of the library.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

fn loader_error() -> String {
    // SAFETY: it returns null or a text, which is copied before anything else is loaded by this thread.
    let reason = unsafe { libc::dlerror() };
    text(reason)
}

/// A library that is open, and what it is called.
#[derive(Clone, Copy)]
struct Loaded {
    handle: NonNull<c_void>,
    called: &'static str,
}

fn loaded(name: &CStr, called: &'static str) -> Result<Loaded, TransportError> {
    // SAFETY: the name ends with a zero; what the library does when it is loaded is up to whoever
    // installed it, as with every library.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let handle = NonNull::new(handle).ok_or_else(|| {
        let text = format!("{} (rdma-core has it)", loader_error());
        TransportError::system(format!("load {called}"), text)
    })?;
    Ok(Loaded { handle, called })
}

fn loaded_mlx5(name: &CStr) -> Result<Mlx5Functions, TransportError> {
    Mlx5Functions::find(loaded(name, MLX5)?)
}

fn symbol(
    Loaded { handle, called }: Loaded,
    name: &str,
    version: &str,
) -> Result<NonNull<c_void>, TransportError> {
    let ended = |text: &str| format!("{text}\0").into_bytes();
    let (name_bytes, version_bytes) = (ended(name), ended(version));
    // SAFETY: the handle is open and both texts end with a zero.
    let address = unsafe {
        libc::dlvsym(handle.as_ptr(), name_bytes.as_ptr().cast(), version_bytes.as_ptr().cast())
    };
    NonNull::new(address).ok_or_else(|| {
        let text = format!("it is too old: it has no {name} of {version}");
        TransportError::system(format!("load {called}"), text)
    })
}

macro_rules! functions {
    ($(#[$about:meta])* $set:ident:
        $($name:ident of $version:literal ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $set {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $set {
            fn find(library: Loaded) -> Result<Self, TransportError> {
                Ok(Self {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        let address = symbol(library, stringify!($name), $version)?;
                        // SAFETY: this version of the symbol is a function of this type.
                        unsafe { std::mem::transmute::<NonNull<c_void>, Function>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// The functions of libibverbs that are used, by their names.
    Functions:
    ibv_fork_init of "IBVERBS_1.1" () -> c_int;
    ibv_get_device_list of "IBVERBS_1.1" (*mut c_int) -> *mut *mut abi::Device;
    ibv_free_device_list of "IBVERBS_1.1" (*mut *mut abi::Device);
    ibv_get_device_name of "IBVERBS_1.1" (*mut abi::Device) -> *const c_char;
    ibv_open_device of "IBVERBS_1.1" (*mut abi::Device) -> *mut abi::Context;
    ibv_close_device of "IBVERBS_1.1" (*mut abi::Context) -> c_int;
    ibv_query_device of "IBVERBS_1.1" (*mut abi::Context, *mut abi::DeviceAttributes) -> c_int;
    ibv_query_port of "IBVERBS_1.1" (*mut abi::Context, u8, *mut abi::PortAttributes) -> c_int;
    _ibv_query_gid_ex of "IBVERBS_1.11"
        (*mut abi::Context, u32, u32, *mut abi::GidEntry, u32, usize) -> c_int;
    _ibv_query_gid_table of "IBVERBS_1.11"
        (*mut abi::Context, *mut abi::GidEntry, usize, u32, usize) -> isize;
    ibv_alloc_pd of "IBVERBS_1.1" (*mut abi::Context) -> *mut abi::ProtectionDomain;
    ibv_dealloc_pd of "IBVERBS_1.1" (*mut abi::ProtectionDomain) -> c_int;
    ibv_reg_mr_iova of "IBVERBS_1.7"
        (*mut abi::ProtectionDomain, *mut c_void, usize, u64, c_int) -> *mut abi::MemoryRegion;
    ibv_dereg_mr of "IBVERBS_1.1" (*mut abi::MemoryRegion) -> c_int;
    ibv_create_comp_channel of "IBVERBS_1.0" (*mut abi::Context) -> *mut abi::CompletionChannel;
    ibv_destroy_comp_channel of "IBVERBS_1.0" (*mut abi::CompletionChannel) -> c_int;
    ibv_create_cq of "IBVERBS_1.1"
        (*mut abi::Context, c_int, *mut c_void, *mut abi::CompletionChannel, c_int)
        -> *mut abi::CompletionQueue;
    ibv_destroy_cq of "IBVERBS_1.1" (*mut abi::CompletionQueue) -> c_int;
    ibv_get_cq_event of "IBVERBS_1.1"
        (*mut abi::CompletionChannel, *mut *mut abi::CompletionQueue, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events of "IBVERBS_1.1" (*mut abi::CompletionQueue, c_uint);
    ibv_create_qp of "IBVERBS_1.1"
        (*mut abi::ProtectionDomain, *mut abi::InitAttributes) -> *mut abi::QueuePair;
    ibv_modify_qp of "IBVERBS_1.1" (*mut abi::QueuePair, *mut abi::Attributes, c_int) -> c_int;
    ibv_destroy_qp of "IBVERBS_1.1" (*mut abi::QueuePair) -> c_int;
    ibv_create_srq of "IBVERBS_1.1"
        (*mut abi::ProtectionDomain, *mut abi::SharedQueueAttributes) -> *mut abi::SharedQueue;
    ibv_destroy_srq of "IBVERBS_1.1" (*mut abi::SharedQueue) -> c_int;
    ibv_create_ah of "IBVERBS_1.1"
        (*mut abi::ProtectionDomain, *mut abi::AddressAttributes) -> *mut abi::AddressHandle;
    ibv_destroy_ah of "IBVERBS_1.1" (*mut abi::AddressHandle) -> c_int;
    ibv_qp_to_qp_ex of "IBVERBS_1.6" (*mut abi::QueuePair) -> *mut ExtendedPair;
    ibv_get_async_event of "IBVERBS_1.1" (*mut abi::Context, *mut abi::AsyncEvent) -> c_int;
    ibv_ack_async_event of "IBVERBS_1.1" (*mut abi::AsyncEvent);
    ibv_event_type_str of "IBVERBS_1.1" (c_uint) -> *const c_char;
    ibv_wc_status_str of "IBVERBS_1.1" (c_uint) -> *const c_char;
}

functions! {
    /// The functions of libmlx5 that are used, by their names.
    Mlx5Functions:
    mlx5dv_is_supported of "MLX5_1.8" (*mut abi::Device) -> bool;
    mlx5dv_create_qp of "MLX5_1.3"
        (*mut abi::Context, *mut ExtendedInitAttributes, *mut Mlx5Attributes) -> *mut abi::QueuePair;
    mlx5dv_qp_ex_from_ibv_qp_ex of "MLX5_1.10" (*mut ExtendedPair) -> *mut Mlx5Pair;
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn libmlx5_has_what_is_used_of_it() {
        match loaded(MLX5_NAME, MLX5) {
            Ok(library) => drop(Mlx5Functions::find(library).unwrap()),
            Err(reason) => {
                let line = format!("skip: functions of libmlx5: {reason}\n");
                io::stderr().write_all(line.as_bytes()).unwrap();
            }
        }
    }

    #[test]
    fn a_library_that_is_missing_or_too_old_is_an_error_that_says_so() {
        let error = Library::open(c"libr2ccl-has-no-such-library.so").unwrap_err().to_string();
        assert!(error.starts_with("load libibverbs: libr2ccl-has-no-such-library.so"), "{error}");
        let error = Library::open(c"libc.so.6").unwrap_err().to_string();
        let expected = "it is too old: it has no ibv_fork_init of IBVERBS_1.1";
        assert_eq!(error, format!("load libibverbs: {expected}"));
        let error = loaded_mlx5(c"libc.so.6").unwrap_err().to_string();
        let expected = "it is too old: it has no mlx5dv_is_supported of MLX5_1.8";
        assert_eq!(error, format!("load libmlx5: {expected}"));
    }
}
