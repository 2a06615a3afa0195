//! The functions of the driver, with the types of `cuda.h`: handles are numbers as large as
//! pointers.

mod devices;
mod events;
mod graphs;
mod launches;
mod memory;
mod modules;
mod pointers;
mod streams;
mod unsupported;

/// Exports functions of C. What one returns becomes a number; a panic becomes an error.
macro_rules! entry_points {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $type),*) -> u32 {
                $crate::driver::enter();
                $crate::outside::answer(|| -> $crate::codes::Result<()> {
                    $crate::failure::permit(stringify!($name))?;
                    $body
                })
            }
        )*
    };
}
use entry_points;
