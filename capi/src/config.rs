//! Reads `ccl_config_t` records of programs that may be older or newer than the library.

use std::ffi::{CStr, c_int};
use std::time::Duration;

use ccl::{Config, Error};

use crate::abi::{CONFIG_MAGIC, CONFIG_UNDEF_INT, ConfigRecord};

/// The first version that had `ccl_config_t`, with the fields up to `split_share`.
const FIRST_VERSION: u32 = 100;

/// Bytes up to the end of `version`: what every record has.
const HEAD_BYTES: usize = std::mem::offset_of!(ConfigRecord, blocking);

/// What the program asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    /// `blocking`; `None`: nothing was said.
    pub(crate) blocking: Option<bool>,
    timeout: Option<Duration>,
    name: Option<String>,
}

impl Choices {
    /// Reads a record; `None` if there is none.
    ///
    /// # Safety
    ///
    /// `record` is null, or leads to a `size_t` that says how many bytes can be read there; the name
    /// in it is null or a C string.
    pub(crate) unsafe fn read(record: *const ConfigRecord) -> Result<Option<Self>, Error> {
        if record.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        let record = unsafe { copy(record) }?;
        let name = record.comm_name;
        let name = match name.is_null() {
            true => None,
            // SAFETY: not null, so the caller's promise.
            false => Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()),
        };
        // Accepted without effect, but not with a value that means nothing.
        switch("split_share", record.split_share)?;
        Ok(Some(Self {
            blocking: switch("blocking", record.blocking)?,
            timeout: match record.timeout_ms {
                CONFIG_UNDEF_INT => None,
                value => Some(milliseconds("config.timeout_ms", value)?),
            },
            name,
        }))
    }

    /// The configuration of a new communicator: the environment's, with what was asked for.
    pub(crate) fn config(self) -> Result<Config, Error> {
        ccl::log::to_standard_error()?;
        let mut config = Config::from_environment()?;
        config.timeout = self.timeout.or(config.timeout);
        config.name = self.name.or(config.name);
        Ok(config)
    }
}

/// Copies as much of the record as both sides know.
///
/// # Safety
///
/// As for [`Choices::read`], and `record` is not null.
unsafe fn copy(record: *const ConfigRecord) -> Result<ConfigRecord, Error> {
    // SAFETY: the record begins with its size.
    let size = unsafe { record.cast::<usize>().read() };
    if size < HEAD_BYTES {
        return Err(invalid(format!("config.size is {size}: use CCL_CONFIG_INITIALIZER")));
    }
    let mut known = ConfigRecord::INITIALIZER;
    let target = (&raw mut known).cast::<u8>();
    let bytes = size.min(size_of::<ConfigRecord>());
    // SAFETY: the caller says that `size` bytes can be read, and `known` is at least `bytes` large.
    // A record that ends inside a field leaves a mixture of its bytes and the default, which is
    // looked at like any other value: all fields but the name are integers, and the name is either
    // complete or replaced below.
    unsafe { target.copy_from_nonoverlapping(record.cast(), bytes) };
    if bytes < std::mem::offset_of!(ConfigRecord, split_share) {
        known.comm_name = std::ptr::null();
    }
    if known.magic != CONFIG_MAGIC {
        return Err(invalid("config.magic is wrong: use CCL_CONFIG_INITIALIZER".into()));
    }
    if known.version < FIRST_VERSION {
        return Err(invalid(format!("config.version {} never existed", known.version)));
    }
    Ok(known)
}

fn switch(field: &str, value: c_int) -> Result<Option<bool>, Error> {
    match value {
        CONFIG_UNDEF_INT => Ok(None),
        0 => Ok(Some(false)),
        1 => Ok(Some(true)),
        other => Err(invalid(format!("config.{field} is {other}, neither 0 nor 1"))),
    }
}

/// A duration that the program has set.
pub(crate) fn milliseconds(name: &str, value: c_int) -> Result<Duration, Error> {
    match u64::try_from(value) {
        Ok(value) if value > 0 => Ok(Duration::from_millis(value)),
        _ => Err(invalid(format!("{name} is {value}, not positive"))),
    }
}

fn invalid(text: String) -> Error {
    Error::InvalidArgument(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(record: ConfigRecord) -> Result<Option<Choices>, Error> {
        // SAFETY: a whole record; its size is not larger, unless `Newer` follows it.
        unsafe { Choices::read(&raw const record) }
    }

    fn is_refused(record: ConfigRecord, text: &str) {
        let error = read(record).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }

    #[test]
    fn what_is_not_said_has_its_default() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { Choices::read(std::ptr::null()) }, Ok(None));
        assert_eq!(read(ConfigRecord::INITIALIZER), Ok(Some(Choices::default())));
    }

    #[test]
    fn what_is_said_counts() {
        let record = ConfigRecord {
            blocking: 0,
            timeout_ms: 1500,
            comm_name: c"ring".as_ptr(),
            split_share: 1,
            ..ConfigRecord::INITIALIZER
        };
        let choices = read(record).unwrap().unwrap();
        assert_eq!(choices.blocking, Some(false));
        assert_eq!(choices.timeout, Some(Duration::from_millis(1500)));
        assert_eq!(choices.name.as_deref(), Some("ring"));
    }

    #[test]
    fn a_shorter_record_is_an_older_one() {
        let record = ConfigRecord {
            size: std::mem::offset_of!(ConfigRecord, timeout_ms),
            blocking: 0,
            timeout_ms: 1500,
            comm_name: c"not looked at".as_ptr(),
            ..ConfigRecord::INITIALIZER
        };
        let expected = Choices { blocking: Some(false), ..Choices::default() };
        assert_eq!(read(record), Ok(Some(expected.clone())));
        let cut = std::mem::offset_of!(ConfigRecord, comm_name) + 3;
        let record = ConfigRecord { size: cut, timeout_ms: CONFIG_UNDEF_INT, ..record };
        assert_eq!(read(record), Ok(Some(expected)), "half a pointer is none");
    }

    #[test]
    fn a_longer_record_is_a_newer_one() {
        #[repr(C)]
        struct Newer {
            known: ConfigRecord,
            unknown: [u64; 4],
        }
        let known = ConfigRecord {
            size: size_of::<Newer>(),
            version: 990_000,
            blocking: 1,
            ..ConfigRecord::INITIALIZER
        };
        let newer = Newer { known, unknown: [u64::MAX; 4] };
        // SAFETY: `size` bytes can be read.
        let choices = unsafe { Choices::read((&raw const newer).cast()) };
        assert_eq!(choices.unwrap().unwrap().blocking, Some(true));
        assert_eq!(newer.unknown[0], u64::MAX);
    }

    #[test]
    fn nonsense_is_refused() {
        let sound = ConfigRecord::INITIALIZER;
        is_refused(ConfigRecord { size: 8, ..sound }, "config.size is 8");
        is_refused(ConfigRecord { magic: 1, ..sound }, "config.magic");
        is_refused(ConfigRecord { version: 99, ..sound }, "config.version 99");
        is_refused(ConfigRecord { blocking: 2, ..sound }, "config.blocking is 2");
        is_refused(ConfigRecord { split_share: -1, ..sound }, "config.split_share is -1");
        is_refused(ConfigRecord { timeout_ms: 0, ..sound }, "config.timeout_ms is 0");
        is_refused(ConfigRecord { timeout_ms: -5, ..sound }, "config.timeout_ms is -5");
    }
}
