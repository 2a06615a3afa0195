//! Where compiled kernels come from.
//!
//! A module is looked for in a folder that the program brought along, then in a cache, and is compiled
//! otherwise. Files are named after all that their content depends on but the release of NVRTC 13, which
//! would have to be loaded to be asked, so that none is ever out of date; those of the cache belong to
//! the user, and nobody else can write them.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::compile::{Compiler, Target};
use super::error::Error;
use crate::cuda::Module;

/// For which PTX may have been brought along, the latest first.
const PTX_ARCHITECTURES: [u32; 5] = [120, 100, 90, 89, 80];
const OWNER_ONLY: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Where compiled kernels come from.
#[derive(Clone, Debug, Default)]
pub struct Supply {
    /// A folder with what [`compile_into`] made. It is trusted as the program is.
    pub prebuilt: Option<PathBuf>,
    /// A folder to keep what was compiled, made if it is missing. Nothing is kept without, nor where
    /// there is no room.
    pub cache: Option<PathBuf>,
    /// The folder of NVRTC, if the loader does not find it.
    pub nvrtc: Option<PathBuf>,
}

/// For what a module is needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    /// 90 for 9.0.
    pub(super) architecture: u32,
    /// As the driver says it.
    pub(super) driver: i32,
}

impl Supply {
    /// Makes the folder for what was compiled, if there is to be one.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`]: it cannot be made, or others could write into it.
    pub fn prepare_cache(&self) -> Result<(), Error> {
        self.cache.as_ref().map_or(Ok(()), |folder| prepare(folder).map_err(failed(folder)))
    }

    /// The module, compiled for the device: PTX that ends with a zero, or machine code.
    pub(super) fn module(&self, module: Module, device: Device) -> Result<Vec<u8>, Error> {
        self.module_by(module, device, |target| {
            let architecture = device.architecture;
            let compiler = Compiler::find(self.nvrtc.as_deref())
                .ok_or(Error::NoCompiler { module: module.name(), architecture })?;
            compiler.compile(module, target)
        })
    }

    /// As [`Supply::module`], compiled by any compiler.
    fn module_by(
        &self,
        module: Module,
        device: Device,
        compile: impl FnOnce(Target) -> Result<Vec<u8>, Error>,
    ) -> Result<Vec<u8>, Error> {
        if let Some(image) = self.prebuilt(module, device)? {
            return Ok(image);
        }
        let target = Target::Machine(device.architecture);
        let name = format!("{}-driver_{}", file_name(module, target), device.driver);
        let kept = self.cache.as_ref().map(|folder| folder.join(name));
        self.prepare_cache()?;
        // A file is empty if the machine lost its power before the content was on the disk.
        let is_whole = |image: &Vec<u8>| !image.is_empty();
        if let Some(image) = kept.as_deref().and_then(|path| read(path).ok()?).filter(is_whole) {
            return Ok(image);
        }
        let image = compile(target)?;
        if let Some(path) = &kept {
            // Without room the next process compiles again.
            let _ = write(path, &image);
        }
        Ok(image)
    }

    /// Machine code that was brought along, else PTX for this architecture or an earlier one.
    fn prebuilt(&self, module: Module, device: Device) -> Result<Option<Vec<u8>>, Error> {
        let Some(folder) = &self.prebuilt else { return Ok(None) };
        let machine = Target::Machine(device.architecture);
        if let Some(image) = read(&folder.join(file_name(module, machine)))? {
            return Ok(Some(image));
        }
        let earlier = PTX_ARCHITECTURES.iter().filter(|&&a| a <= device.architecture);
        for &architecture in earlier {
            let path = folder.join(file_name(module, Target::Ptx(architecture)));
            if let Some(mut text) = read(&path)? {
                text.push(0);
                return Ok(Some(text));
            }
        }
        Ok(None)
    }
}

/// Compiles modules into a folder, for programs that bring them along as
/// [`Supply::prebuilt`](field@Supply::prebuilt).
/// Returns the files.
///
/// # Errors
///
/// The compiler refuses the kernels, or the folder cannot be written.
pub fn compile_into(
    folder: &Path,
    compiler: &Compiler,
    modules: &[Module],
    targets: &[Target],
) -> Result<Vec<PathBuf>, Error> {
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let mut files = Vec::new();
    for (&module, &target) in modules.iter().flat_map(|m| targets.iter().map(move |t| (m, t))) {
        let mut image = compiler.compile(module, target)?;
        if let Target::Ptx(_) = target {
            image.pop_if(|last| *last == 0);
        }
        let path = folder.join(file_name(module, target));
        write(&path, &image)?;
        files.push(path);
    }
    Ok(files)
}

/// A name that changes with the text and with what the compiler is told.
fn file_name(module: Module, target: Target) -> String {
    named(module, target, &target.options())
}

fn named(module: Module, target: Target, options: &[String]) -> String {
    let mut hasher = DefaultHasher::new();
    (module.source(), options).hash(&mut hasher);
    let extension = match target {
        Target::Machine(_) => "cubin",
        Target::Ptx(_) => "ptx",
    };
    format!("{}-{:016x}.{}.{extension}", module.name(), hasher.finish(), target.name())
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |cause| Error::Cache { path, cause }
}

/// Makes the folder if it is missing, and refuses one whose files others could have written.
fn prepare(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(OWNER_ONLY).create(folder)?;
    let (found, own) = (fs::metadata(folder)?, fs::metadata("/proc/self")?);
    if found.uid() != own.uid() || found.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "others could have put kernels into this folder",
        ));
    }
    Ok(())
}

/// The file, if there is one.
fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(image) => Ok(Some(image)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(failed(path)(cause)),
    }
}

/// Writes a file that others see whole or not at all.
fn write(path: &Path, image: &[u8]) -> Result<(), Error> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let own = (std::process::id(), WRITTEN.fetch_add(1, Ordering::Relaxed));
    let unfinished = path.with_extension(format!("{}-{}", own.0, own.1));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(OWNER_ONLY & 0o666);
    let fill = |mut file: File| file.write_all(image);
    let written = options.open(&unfinished).and_then(fill);
    written.and_then(|()| fs::rename(&unfinished, path)).map_err(|cause| {
        let _ = fs::remove_file(&unfinished);
        failed(path)(cause)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const DEVICE: Device = Device { architecture: 90, driver: 13_000 };

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_was_brought_along_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let supply = Supply { prebuilt: Some(folder.path().into()), ..Supply::default() };
        let put = |target: Target, text: &str| {
            write(&folder.path().join(file_name(Module::Copies, target)), text.as_bytes()).unwrap();
        };
        let take = || supply.module(Module::Copies, DEVICE).unwrap();
        put(Target::Ptx(120), "later");
        put(Target::Ptx(80), "earlier");
        assert_eq!(take(), b"earlier\0");
        put(Target::Ptx(90), "the same");
        assert_eq!(take(), b"the same\0");
        put(Target::Machine(80), "another machine");
        assert_eq!(take(), b"the same\0");
        put(Target::Machine(90), "this machine");
        assert_eq!(take(), b"this machine");
    }

    #[test]
    fn kept_kernels_are_private_and_depend_on_the_driver() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("kernels");
        prepare(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        let target = Target::Machine(90);
        let path = folder.join(format!("{}-driver_13000", file_name(Module::Copies, target)));
        write(&path, b"kept").unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let nowhere = Some(parent.path().join("nothing"));
        let supply = Supply { cache: Some(folder), nvrtc: nowhere, prebuilt: None };
        assert_eq!(supply.module(Module::Copies, DEVICE).unwrap(), b"kept");
    }

    #[test]
    fn a_second_supply_finds_what_the_first_one_left() {
        let parent = tempfile::tempdir().unwrap();
        let supply = || Supply { cache: Some(parent.path().join("kernels")), ..Supply::default() };
        let take = |device, text: &str| {
            let compiled = supply().module_by(Module::Copies, device, |_| Ok(text.into()));
            String::from_utf8(compiled.unwrap()).unwrap()
        };
        assert_eq!(take(DEVICE, "first"), "first");
        assert_eq!(take(DEVICE, "second"), "first");
        assert_eq!(take(Device { architecture: 100, ..DEVICE }, "third"), "third");
        assert_eq!(take(Device { driver: 13_010, ..DEVICE }, "fourth"), "fourth");
        let other = supply().module_by(Module::all()[1], DEVICE, |_| Ok(b"fifth".into()));
        assert_eq!(other.unwrap(), b"fifth");
    }

    #[test]
    fn a_file_that_is_empty_or_cannot_be_replaced_costs_a_compilation() {
        let parent = tempfile::tempdir().unwrap();
        let supply = Supply { cache: Some(parent.path().join("kernels")), ..Supply::default() };
        let take = |text: &str| {
            let compiled = supply.module_by(Module::Copies, DEVICE, |_| Ok(text.into()));
            String::from_utf8(compiled.unwrap()).unwrap()
        };
        assert_eq!(take(""), "");
        assert_eq!(take("whole"), "whole");
        assert_eq!(take("again"), "whole");
        let file = fs::read_dir(parent.path().join("kernels")).unwrap().next().unwrap().unwrap();
        fs::remove_file(file.path()).unwrap();
        fs::create_dir_all(file.path().join("in the way")).unwrap();
        assert_eq!(take("unkept"), "unkept");
        assert_eq!(take("unkept again"), "unkept again");
    }

    #[test]
    fn a_folder_of_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let supply = Supply { cache: Some(folder.path().into()), ..Supply::default() };
        let error = supply.module(Module::Copies, DEVICE).unwrap_err();
        assert!(error.to_string().contains("others could have put kernels"), "{error}");
    }

    #[test]
    fn the_text_and_the_options_decide_the_name() {
        let target = Target::Ptx(90);
        let names = Module::all().into_iter().map(|m| file_name(m, target));
        let mut names: std::collections::BTreeSet<String> = names.collect();
        assert_eq!(names.len(), Module::all().len());
        let [architecture, language] = target.options();
        let options = [architecture, language, "--use_fast_math".into()];
        assert!(names.insert(named(Module::Copies, target, &options)));
    }
}
