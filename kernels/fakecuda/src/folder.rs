//! Where a program finds the driver by its name.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::{env, fs, process, thread};

/// Names of the driver. Bindings try them in this order.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// Puts the driver that was built beside this test into `folder`, under its names: a process with the folder in its
/// `LD_LIBRARY_PATH` finds it. Several processes and threads can do it at once.
///
/// # Errors
/// There is no driver beside this program, or the folder cannot be written.
pub fn install(folder: &Path) -> io::Result<()> {
    let library = env::current_exe()?.with_file_name("libccl_fakecuda.so");
    if !library.exists() {
        return Err(io::Error::new(io::ErrorKind::NotFound, library.display().to_string()));
    }
    fs::create_dir_all(folder)?;
    for name in NAMES {
        // A name is never missing, and never that of half a link.
        let own = folder.join(format!("{name}-{}-{:?}", process::id(), thread::current().id()));
        symlink(&library, &own)?;
        fs::rename(&own, folder.join(name))?;
    }
    Ok(())
}
