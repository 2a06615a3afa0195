//! Compiles kernels with NVRTC, which is looked for when it is needed.
//!
//! NVRTC needs neither a driver nor a device.

use std::ffi::{CString, c_char};
use std::path::Path;

use cudarc::nvrtc::{result, sys};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::error::Error;
use crate::cuda::Module;

/// What kernels are compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Instructions of one architecture: 90 for 9.0.
    Machine(u32),
    /// PTX, which the driver compiles for the given architecture and all later ones.
    Ptx(u32),
}

impl Target {
    /// The name for NVRTC, and for files.
    pub(super) fn name(self) -> String {
        match self {
            Self::Machine(architecture) => format!("sm_{architecture}"),
            Self::Ptx(architecture) => format!("compute_{architecture}"),
        }
    }

    /// What NVRTC is told.
    pub(super) fn options(self) -> [String; 2] {
        [format!("--gpu-architecture={}", self.name()), "-std=c++17".into()]
    }
}

/// NVRTC, loaded.
#[derive(Debug)]
pub struct Compiler(());

/// Compilation of one text.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was created, and is destroyed once. Nothing can be done about a failure.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

impl Compiler {
    /// Finds NVRTC 13: in the folder if one is given, else where the loader looks. None if it is
    /// not there.
    #[must_use]
    pub fn find(folder: Option<&Path>) -> Option<Self> {
        if let Some(folder) = folder {
            // The compiler looks for its built-ins by their name alone, which a library that is
            // loaded already answers to.
            preload(folder, "libnvrtc-builtins.so.13.0");
            preload(folder, "libnvrtc.so.13");
        }
        // SAFETY: what the library does when it is loaded is up to whoever installed it.
        let is_present = unsafe { sys::is_culib_present() };
        is_present.then_some(Self(()))
    }

    /// Compiles a module: PTX as text that ends with a zero, machine code as an ELF file.
    ///
    /// # Errors
    ///
    /// [`Error::Compiler`] with the log.
    pub fn compile(&self, module: Module, target: Target) -> Result<Vec<u8>, Error> {
        let failed = |log: String| Error::Compiler { module: module.name(), log };
        let source = CString::new(module.source()).expect("the text has no zero bytes");
        let program =
            result::create_program(&source, None).map_err(|error| failed(format!("{error:?}")))?;
        let program = Program(program);
        // SAFETY: the program was created and is not destroyed.
        let compiled = unsafe { result::compile_program(program.0, &target.options()) };
        compiled.map_err(|error| failed(format!("{error:?}\n{}", program.log())))?;
        program.image(target).map_err(|error| failed(format!("{error:?}")))
    }
}

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program was created and is not destroyed.
        let log = unsafe { result::get_program_log(self.0) };
        let characters = log.unwrap_or_default();
        let bytes = characters.iter().map(|&c| c as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8(bytes).unwrap_or_else(|_| "(a log that is no text)".into())
    }

    fn image(&self, target: Target) -> Result<Vec<u8>, result::NvrtcError> {
        if let Target::Ptx(_) = target {
            // SAFETY: the program was compiled and is not destroyed.
            let ptx: Vec<c_char> = unsafe { result::get_ptx(self.0) }?;
            return Ok(ptx.iter().map(|&character| character as u8).collect());
        }
        let mut bytes = 0;
        // SAFETY: as above; the size is written where it is told.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut bytes) }.result()?;
        let mut image = vec![0u8; bytes];
        // SAFETY: as above; the vector has as many bytes as are written.
        unsafe { sys::nvrtcGetCUBIN(self.0, image.as_mut_ptr().cast()) }.result()?;
        Ok(image)
    }
}

/// Loads a library of the folder, if it is there, for good.
fn preload(folder: &Path, name: &str) {
    // SAFETY: what the library does when it is loaded is up to whoever installed it.
    if let Ok(library) = unsafe { Library::open(Some(folder.join(name)), RTLD_NOW | RTLD_GLOBAL) } {
        std::mem::forget(library);
    }
}
