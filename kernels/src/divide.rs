//! Division of integers by a common number: the last step of an integer mean.

use std::marker::PhantomData;

use crate::machine::Task;
use crate::region::Target;

/// `target = target / divisor`, truncating toward zero.
pub(crate) struct Divide<'a, T> {
    divisor: u64,
    target: Target<'a>,
    element: PhantomData<T>,
}

impl<'a, T> Divide<'a, T> {
    /// The task for this target.
    pub(crate) fn new(divisor: u64, target: Target<'a>) -> Self {
        Self { divisor, target, element: PhantomData }
    }
}

/// Runs `quotient` over every element of the target.
macro_rules! divide_each {
    ($integer:ty, $target:expr, $quotient:expr) => {{
        let mut target = $target;
        let count = target.bytes() / size_of::<$integer>();
        // SAFETY: this is the only view of the target, and nobody else touches it during the call.
        let values = unsafe { target.values::<[u8; size_of::<$integer>()]>(0, count) };
        for value in values {
            *value = ($quotient)(<$integer>::from_ne_bytes(*value)).to_ne_bytes();
        }
    }};
}

/// Vectors have no integer division. For up to 32 bits the one of `f64` serves: the quotient of two
/// integers is at least `1 / divisor` away from every integer that it is not, and the rounding error
/// is smaller than that, so truncation finds the integer.
macro_rules! divide_as_float {
    ($integer:ty) => {
        impl Task for Divide<'_, $integer> {
            #[inline(always)]
            fn run(self) {
                // Larger divisors, which `f64` might not hold, give zero as this one does.
                let divisor = self.divisor.min(1 << 33) as f64;
                let quotient = |value: $integer| (f64::from(value) / divisor) as $integer;
                divide_each!($integer, self.target, quotient);
            }
        }
    };
}

divide_as_float!(i8);
divide_as_float!(u8);
divide_as_float!(i32);
divide_as_float!(u32);

impl Task for Divide<'_, u64> {
    #[inline(always)]
    fn run(self) {
        let divisor = self.divisor;
        divide_each!(u64, self.target, |value: u64| value / divisor);
    }
}

impl Task for Divide<'_, i64> {
    #[inline(always)]
    fn run(self) {
        // Magnitudes are divided, so that divisors beyond `i64` need no case of their own.
        let divisor = self.divisor;
        let quotient = |value: i64| {
            let magnitude = (value.unsigned_abs() / divisor) as i64;
            if value < 0 { magnitude.wrapping_neg() } else { magnitude }
        };
        divide_each!(i64, self.target, quotient);
    }
}
