//! The implementations, and which of them this processor runs.

use std::sync::OnceLock;

use ccl_core::datatype::DataType;

use crate::copies::copy;
use crate::machine;
use crate::modes::DefaultModes;
use crate::oracle;
use crate::portable::Portable;
use crate::region::{Source, Target};
use crate::{Combine, Kernel};

#[cfg(target_arch = "x86_64")]
use crate::{avx2::Avx2, avx512::Avx512};

/// One set of kernels for all types. A value of this type exists only where the processor can run it.
#[derive(Clone, Copy, Debug)]
pub struct Implementation(&'static Table);

#[derive(Debug)]
struct Table {
    name: &'static str,
    is_available: fn() -> bool,
    /// Must be called only where `is_available`.
    reduce: unsafe fn(Kernel, &[Source<'_>], Target<'_>),
    /// Must be called only where `is_available`.
    divide: unsafe fn(DataType, u64, Target<'_>),
}

/// From the slowest to the fastest.
static TABLES: &[Table] = &[
    Table { name: "oracle", is_available: || true, reduce: oracle::reduce, divide: oracle::divide },
    Table {
        name: "portable",
        is_available: || true,
        reduce: machine::reduce::<Portable>,
        divide: machine::divide::<Portable>,
    },
    #[cfg(target_arch = "x86_64")]
    Table {
        name: "avx2",
        is_available: Avx2::is_available,
        reduce: machine::reduce::<Avx2>,
        divide: machine::divide::<Avx2>,
    },
    #[cfg(target_arch = "x86_64")]
    Table {
        name: "avx512",
        is_available: Avx512::is_available,
        reduce: machine::reduce::<Avx512>,
        divide: machine::divide::<Avx512>,
    },
];

/// Bytes of repeated scalar that `scale` multiplies with at a time.
const SCALARS_BYTES: usize = 4096;

impl Implementation {
    /// What the functions of this crate use.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Implementation> = OnceLock::new();
        *BEST.get_or_init(|| {
            let table = TABLES.iter().rfind(|table| (table.is_available)());
            Self(table.unwrap_or(&TABLES[0]))
        })
    }

    /// All that this processor can run, the oracle first, the best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        TABLES.iter().filter(|table| (table.is_available)()).map(Self).collect()
    }

    /// Names of those that were built but that this processor cannot run.
    #[must_use]
    pub fn unavailable() -> Vec<&'static str> {
        TABLES.iter().filter(|table| !(table.is_available)()).map(|table| table.name).collect()
    }

    /// The name: `oracle`, `portable`, `avx2` or `avx512`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// As [`crate::reduce`].
    ///
    /// # Panics
    ///
    /// As [`crate::reduce`].
    pub fn reduce(self, kernel: Kernel, operands: &[Source<'_>], target: Target<'_>) {
        let bytes = target.bytes();
        assert!(!operands.is_empty(), "a reduction needs an operand");
        assert!(operands.iter().all(|operand| operand.bytes() == bytes), "lengths differ");
        assert_whole_elements(kernel.datatype, bytes);
        match operands {
            // A slice of nothing must not start at a null pointer, as an empty buffer may.
            _ if bytes == 0 => return,
            [only] => return copy(*only, target),
            _ => {}
        }
        let _modes = DefaultModes::set();
        // SAFETY: `available` and `best` hand out tables that this processor can run.
        unsafe { (self.0.reduce)(kernel, operands, target) }
    }

    /// As [`crate::scale`].
    ///
    /// # Panics
    ///
    /// As [`crate::scale`].
    pub fn scale(
        self,
        datatype: DataType,
        scalar: u64,
        source: Source<'_>,
        mut target: Target<'_>,
    ) {
        let bytes = target.bytes();
        assert_eq!(source.bytes(), bytes, "lengths differ");
        assert_whole_elements(datatype, bytes);
        let mut scalars = [0; SCALARS_BYTES];
        let filled = SCALARS_BYTES.min(bytes);
        // Twice as many each time: a copy of a few bytes for every element takes longer than the products.
        let mut done = datatype.bytes().min(filled);
        scalars[..done].copy_from_slice(&scalar.to_le_bytes()[..done]);
        while done < filled {
            let more = done.min(filled - done);
            scalars.copy_within(..more, done);
            done += more;
        }
        let product = Kernel { datatype, combine: Combine::Prod };
        for offset in (0..bytes).step_by(SCALARS_BYTES) {
            let count = SCALARS_BYTES.min(bytes - offset);
            let operands = [source.part(offset, count), Source::from(&scalars[..count])];
            self.reduce(product, &operands, target.part(offset, count));
        }
    }

    /// As [`crate::divide`].
    ///
    /// # Panics
    ///
    /// As [`crate::divide`].
    pub fn divide(self, datatype: DataType, divisor: u64, target: Target<'_>) {
        assert!(divisor > 0, "division by zero");
        assert_whole_elements(datatype, target.bytes());
        if target.bytes() == 0 {
            return;
        }
        let _modes = DefaultModes::set();
        // SAFETY: `available` and `best` hand out tables that this processor can run.
        unsafe { (self.0.divide)(datatype, divisor, target) }
    }
}

fn assert_whole_elements(datatype: DataType, bytes: usize) {
    let whole = bytes.is_multiple_of(datatype.bytes());
    assert!(whole, "{bytes} bytes are not whole elements of type {}", datatype.name());
}
