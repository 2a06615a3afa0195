//! The text of the kernels, in modules that are compiled when they are first needed.

use ccl_core::datatype::DataType;

use super::parameters::{
    CopyParameters, LowLatencyParameters, PullParameters, PushParameters, ReduceParameters,
    RelayParameters,
};

const PORT: &str = include_str!("text/port.cuh");

/// What follows the port, in this order.
const TEXT: [&str; 10] = [
    include_str!("text/parameters.cuh"),
    include_str!("text/numbers.cuh"),
    include_str!("text/reduce.cuh"),
    include_str!("text/copy.cuh"),
    include_str!("text/waiting.cuh"),
    include_str!("text/low_latency.cuh"),
    include_str!("text/push.cuh"),
    include_str!("text/pull.cuh"),
    include_str!("text/relay.cuh"),
    include_str!("text/entries.cuh"),
];

/// What is compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Module {
    /// What moves bytes and knows nothing of elements: the copy, and messages.
    Copies,
    /// All kernels for one element type.
    Elements(DataType),
}

/// What a kernel does with elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Combines sources into destinations, of this device or mapped here. [`ReduceParameters`].
    Reduce,
    /// AllReduce of small messages through mailboxes. [`LowLatencyParameters`].
    LowLatency,
    /// Collectives on buffers that ranks have mapped. [`PushParameters`].
    Push,
    /// Receives, combines, keeps and sends tiles in staging slots. [`RelayParameters`].
    Relay,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Reduce, Self::LowLatency, Self::Push, Self::Relay];

    fn name(self) -> &'static str {
        match self {
            Self::Reduce => "reduce",
            Self::LowLatency => "low_latency",
            Self::Push => "push",
            Self::Relay => "relay",
        }
    }
}

/// How contributions become a result, as kernels are compiled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The sum of contributions that are multiplied by scalars first; also the mean of floats.
    Scaled,
    /// The sum, divided in the end; integers only.
    Mean,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Scaled, Self::Mean];

    /// Whether there is such a kernel for the type.
    #[must_use]
    pub fn is_of(self, datatype: DataType) -> bool {
        self != Self::Mean || !datatype.is_float()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Scaled => "scaled",
            Self::Mean => "mean",
        }
    }
}

/// One kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// One source to many destinations. [`CopyParameters`].
    Copy,
    /// Messages of any length between all ranks, of memory that they have mapped. [`PullParameters`].
    Pull,
    /// A kernel for elements.
    Elements {
        /// What it does with them.
        family: Family,
        /// How they are combined.
        operation: Operation,
        /// What they are.
        datatype: DataType,
    },
}

impl Entry {
    /// The symbol: `r2ccl_copy`, `r2ccl_pull`, or the family, the operation and the type, as in
    /// `r2ccl_reduce_sum_bfloat16`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Copy => "r2ccl_copy".into(),
            Self::Pull => "r2ccl_pull".into(),
            Self::Elements { family, operation, datatype } => {
                format!("r2ccl_{}_{}_{}", family.name(), operation.name(), datatype.name())
            }
        }
    }

    /// The module that it is in.
    #[must_use]
    pub fn module(self) -> Module {
        match self {
            Self::Copy | Self::Pull => Module::Copies,
            Self::Elements { datatype, .. } => Module::Elements(datatype),
        }
    }

    /// Size of its parameter.
    #[must_use]
    pub fn parameter_bytes(self) -> usize {
        match self {
            Self::Copy => size_of::<CopyParameters>(),
            Self::Pull => size_of::<PullParameters>(),
            Self::Elements { family: Family::Reduce, .. } => size_of::<ReduceParameters>(),
            Self::Elements { family: Family::LowLatency, .. } => size_of::<LowLatencyParameters>(),
            Self::Elements { family: Family::Push, .. } => size_of::<PushParameters>(),
            Self::Elements { family: Family::Relay, .. } => size_of::<RelayParameters>(),
        }
    }
}

impl Module {
    /// All of them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let elements = DataType::ALL.into_iter().map(Self::Elements);
        std::iter::once(Self::Copies).chain(elements).collect()
    }

    /// A name for files: `copies`, or that of the type.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Elements(datatype) => datatype.name(),
        }
    }

    /// All kernels in it.
    #[must_use]
    pub fn entries(self) -> Vec<Entry> {
        let Self::Elements(datatype) = self else {
            return vec![Entry::Copy, Entry::Pull];
        };
        let operations = || Operation::ALL.into_iter().filter(move |o| o.is_of(datatype));
        let entry = |family| {
            operations().map(move |operation| Entry::Elements { family, operation, datatype })
        };
        Family::ALL.into_iter().flat_map(entry).collect()
    }

    /// What NVRTC or nvcc compile: C++ of 2017 that includes nothing, for devices from 8.0 on. The
    /// compiler's defaults are right: subnormals are not flushed.
    #[must_use]
    pub fn source(self) -> String {
        self.source_with(PORT)
    }

    /// The same text behind another port, which defines what `text/port.cuh` does.
    #[must_use]
    pub fn source_with(self, port: &str) -> String {
        let mut source = self.definitions();
        source.push_str(port);
        source.extend(TEXT);
        source
    }

    fn definitions(self) -> String {
        let Self::Elements(datatype) = self else { return String::new() };
        let (name, is_integer) = (datatype.name(), u8::from(!datatype.is_float()));
        let word = word(datatype);
        format!(
            "#define R2CCL_TYPE {word}\n#define R2CCL_NAME {name}\n#define R2CCL_IS_INTEGER {is_integer}\n"
        )
    }
}

/// The type in the text.
fn word(datatype: DataType) -> &'static str {
    match datatype {
        DataType::Int8 => "r2ccl::i8",
        DataType::Uint8 => "r2ccl::u8",
        DataType::Int32 => "r2ccl::i32",
        DataType::Uint32 => "r2ccl::u32",
        DataType::Int64 => "r2ccl::i64",
        DataType::Uint64 => "r2ccl::u64",
        DataType::Float16 => "r2ccl::Half",
        DataType::Float32 => "float",
        DataType::Float64 => "double",
        DataType::Bfloat16 => "r2ccl::Brain",
        DataType::Float8E4m3 => "r2ccl::E4m3",
        DataType::Float8E5m2 => "r2ccl::E5m2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_a_name_of_its_own() {
        let entries: Vec<Entry> = Module::all().into_iter().flat_map(Module::entries).collect();
        let names: std::collections::BTreeSet<String> =
            entries.iter().map(|entry| entry.name()).collect();
        assert_eq!(names.len(), entries.len());
        assert_eq!(entries.len(), 2 + 4 * (12 * 5 + 6));
        for module in Module::all() {
            assert!(module.entries().iter().all(|entry| entry.module() == module));
        }
    }

    #[test]
    fn the_text_includes_nothing() {
        for module in Module::all() {
            assert!(!module.source().contains("#include"));
            assert!(module.source().contains(PORT));
        }
    }
}
