//! libibverbs, looked for when it is first needed, behind types that cannot be misused.
//!
//! All `unsafe` of the device is here. What it rests on:
//!
//! - [`abi`] describes the interface of the header, which a test compares with the header itself. The
//!   library is asked for symbols by version, so it never gives another interface than that.
//! - Every object is owned by a type that gives it back when it is dropped, and keeps alive what it was
//!   made from. The library itself stays loaded as long as the process lives.
//! - A NIC touches registered memory only. A [`Registration`] owns a clone of the memory, so its pages
//!   stay mapped until they are no longer registered. Registered addresses begin within the first page, so a
//!   wrong offset names nothing else of this process, and what the NIC is told about memory needs no check here.
//! - The library may be used from several threads at once.

mod abi;
mod context;
mod dynamic;
mod endpoint;
#[cfg(test)]
pub(in crate::verbs) mod imitation;
mod ledger;
mod library;
mod objects;
mod pair;
mod protection;
mod reliable;
mod work;

pub(super) use context::{Context, DeviceLimits, Event, Gid, GidEntry, GidKind, PortState};
pub(super) use dynamic::Place;
pub(super) use endpoint::{Endpoint, LIST, Path, TargetAddress};
pub(super) use library::{DeviceList, Library};
pub(super) use protection::{ProtectionDomain, Registration};
pub(super) use work::{Outcome, Post, Reported, Source, Target, What};
