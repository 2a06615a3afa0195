//! How contributions are combined.

use std::hash::{DefaultHasher, Hash, Hasher};

use ccl::{DataType, Reduction};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use pyo3::prelude::*;

use crate::element::Element;
use crate::errors::invalid_argument;

/// How contributions are combined.
///
/// `SUM`, `PROD`, `MIN`, `MAX` and `AVG` are the built-in ones. Integers wrap; a NaN among the inputs of
/// `MIN` or `MAX` gives NaN; `AVG` divides integers after the sum, rounding towards zero.
#[pyclass(frozen, eq, module = "r2ccl", from_py_object)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ReduceOp(Kind);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Builtin(ccl::ReduceOp),
    Scaled(Scalar),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Scalar {
    Integer(i128),
    Float(f64),
}

#[pymethods]
impl ReduceOp {
    #[classattr]
    pub(crate) const SUM: Self = Self(Kind::Builtin(ccl::ReduceOp::Sum));
    #[classattr]
    const PROD: Self = Self(Kind::Builtin(ccl::ReduceOp::Prod));
    #[classattr]
    const MIN: Self = Self(Kind::Builtin(ccl::ReduceOp::Min));
    #[classattr]
    const MAX: Self = Self(Kind::Builtin(ccl::ReduceOp::Max));
    #[classattr]
    const AVG: Self = Self(Kind::Builtin(ccl::ReduceOp::Avg));

    /// The sum, where this rank's contribution is multiplied by `scalar` first.
    ///
    /// Ranks may have different scalars. Elements that are integers take an integer that fits them.
    #[staticmethod]
    fn premul_sum(scalar: &Bound<'_, PyAny>) -> PyResult<Self> {
        let scalar = match scalar.extract::<i128>() {
            Ok(integer) => Scalar::Integer(integer),
            Err(_) => Scalar::Float(scalar.extract()?),
        };
        Ok(Self(Kind::Scaled(scalar)))
    }

    fn __repr__(&self) -> String {
        match self.0 {
            Kind::Builtin(op) => format!("ReduceOp.{}", op.name().to_uppercase()),
            Kind::Scaled(Scalar::Integer(value)) => format!("ReduceOp.premul_sum({value})"),
            Kind::Scaled(Scalar::Float(value)) => format!("ReduceOp.premul_sum({value:?})"),
        }
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.__repr__().hash(&mut hasher);
        hasher.finish()
    }
}

impl ReduceOp {
    /// The reduction of elements of this type.
    pub(crate) fn of(self, py: Python<'_>, element: Element) -> PyResult<Reduction> {
        let reduction = match self.0 {
            Kind::Builtin(op) => Reduction::Builtin(op),
            Kind::Scaled(scalar) => {
                let datatype = element.datatype;
                let bits = scalar.bits(datatype).ok_or_else(|| {
                    let name = element.name();
                    invalid_argument(py, format!("{} is not for {name}", self.__repr__()))
                })?;
                Reduction::PreMulSum { datatype, scalar: bits }
            }
        };
        if element.has(reduction) {
            return Ok(reduction);
        }
        let name = element.name();
        let text = format!("{} of {name}: MAX is its \"or\", MIN its \"and\"", self.__repr__());
        Err(invalid_argument(py, text))
    }
}

impl Scalar {
    /// The bits of the scalar as an element, if it can be one.
    fn bits(self, datatype: DataType) -> Option<u64> {
        match datatype {
            DataType::Int8 => self.integer().map(|value: i8| u64::from(value.cast_unsigned())),
            DataType::Uint8 => self.integer().map(|value: u8| u64::from(value)),
            DataType::Int32 => self.integer().map(|value: i32| u64::from(value.cast_unsigned())),
            DataType::Uint32 => self.integer().map(|value: u32| u64::from(value)),
            DataType::Int64 => self.integer().map(i64::cast_unsigned),
            DataType::Uint64 => self.integer(),
            DataType::Float16 => Some(f16::from_f64(self.float()).to_bits().into()),
            #[allow(clippy::cast_possible_truncation, reason = "rounding is what is asked for")]
            DataType::Float32 => Some((self.float() as f32).to_bits().into()),
            DataType::Float64 => Some(self.float().to_bits()),
            DataType::Bfloat16 => Some(bf16::from_f64(self.float()).to_bits().into()),
            DataType::Float8E4m3 => Some(F8E4M3::from_f64(self.float()).to_bits().into()),
            DataType::Float8E5m2 => Some(F8E5M2::from_f64(self.float()).to_bits().into()),
        }
    }

    fn integer<T: TryFrom<i128>>(self) -> Option<T> {
        match self {
            Self::Integer(value) => T::try_from(value).ok(),
            Self::Float(_) => None,
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "a large integer is rounded, as Python does")]
    fn float(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}
