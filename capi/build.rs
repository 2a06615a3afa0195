//! Gives the shared library its name at run time and keeps it loaded.
//!
//! The soname carries the major version of the C interface, so that a program finds a library it can
//! work with. `nodelete` makes `dlclose` keep the code: threads of the library and destructors of
//! thread-local values may still run.
#![allow(clippy::disallowed_methods, reason = "cargo describes the target in the environment")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libr2ccl.so.{major}");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
