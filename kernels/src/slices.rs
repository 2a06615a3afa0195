//! Rust's own slices as regions.

use ccl_core::datatype::DataType;

use crate::region::Region;

mod sealed {
    /// Only types whose every bit pattern is a value may implement [`super::Element`].
    pub trait Plain {}
}

/// Rust types that are element types of collectives.
pub trait Element: sealed::Plain + Copy + Send + Sync + 'static {
    /// The element type.
    const DATATYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $datatype:ident),* $(,)?) => {$(
        impl sealed::Plain for $rust {}
        impl Element for $rust {
            const DATATYPE: DataType = DataType::$datatype;
        }
    )*};
}

elements! {
    i8 => Int8,
    u8 => Uint8,
    i32 => Int32,
    u32 => Uint32,
    i64 => Int64,
    u64 => Uint64,
    f32 => Float32,
    f64 => Float64,
}

impl<'a> Region<'a> {
    /// A slice, to be read.
    #[must_use]
    pub fn of<T: Element>(slice: &'a [T]) -> Self {
        // SAFETY: the slice is borrowed for as long as the region lives, so nobody writes it.
        unsafe { Self::read_only(slice.as_ptr().cast(), size_of_val(slice)) }
    }

    /// A slice, to be read and written. Every bit pattern is a value of `T`.
    ///
    /// It is borrowed exclusively for as long as any copy of the region lives. Copies may be the input and the output of
    /// one operation in place, but not belong to two operations that run at the same time: see [`Region`].
    #[must_use]
    pub fn of_mut<T: Element>(slice: &'a mut [T]) -> Self {
        // SAFETY: the slice is borrowed exclusively for as long as the region and its copies live, and whoever has
        // these gives them to one operation at a time, as the documentation asks.
        unsafe { Self::new(slice.as_mut_ptr().cast(), size_of_val(slice)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, Target, copy};

    #[test]
    fn a_copy_through_regions() {
        let from = [1.5f32, -2.0];
        let mut into = [0f32; 2];
        copy(Region::of(&from).source(0, 8), Region::of_mut(&mut into).target(0, 8));
        assert_eq!(into, from);
        let _: (Source<'_>, Target<'_>) =
            (Region::of(&from).source(4, 4), Region::of_mut(&mut into).target(0, 4));
    }
}
