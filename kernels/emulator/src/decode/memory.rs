//! Loads, stores, atomics and addresses.

use super::names::Symbol;
use super::{Decoder, Result};
use crate::arithmetic::{float, integer};
use crate::program::{Address, Atomic, Change, Effect, Scope, Slot, Vector, Window};
use crate::syntax::{Operand, Statement};
use crate::types::Type;

/// What is atomic, and what a vector is made of when it may be torn.
const PIECE_BYTES: usize = 8;

/// Who else sees an access when, and what it leaves in caches. Of this only releases, and how far they reach,
/// matter here.
const ORDERS: [&str; 26] = [
    "weak",
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "mmio",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "nc",
    "ca",
    "cg",
    "cs",
    "cv",
    "lu",
    "wb",
    "wt",
    "unified",
    "noftz",
    "L1::evict_first",
    "L1::evict_last",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::no_allocate",
];

fn is_order(part: &str) -> bool {
    ORDERS.contains(&part) || part.starts_with("L2::")
}

/// The scope of that name, in instructions and in fences. A cluster is a block: there are no larger ones.
pub(super) fn scope(name: &str) -> Option<Scope> {
    Some(match name {
        "cta" | "cluster" => Scope::Block,
        "gpu" | "gl" => Scope::Device,
        "sys" => Scope::System,
        _ => return None,
    })
}

/// Who sees everything before they see this; without a scope it is the device.
fn releases(parts: &[&str]) -> Option<Scope> {
    let is_release = parts.contains(&"release") || parts.contains(&"acq_rel");
    let named = parts.iter().find_map(|part| scope(part));
    is_release.then(|| named.unwrap_or(Scope::Device))
}

/// What the parts of a `ld` or `st` say.
struct Form {
    window: Option<Window>,
    elements: usize,
    releases: Option<Scope>,
    of: Type,
}

impl<'a> Decoder<'a> {
    fn form(&self, parts: &[&str]) -> Option<Form> {
        let (last, parts) = parts.split_last()?;
        let mut form =
            Form { window: None, elements: 1, releases: releases(parts), of: Type::parse(last)? };
        for part in parts {
            match *part {
                "v2" => form.elements = 2,
                "v4" => form.elements = 4,
                "v8" => form.elements = 8,
                _ if is_order(part) => {}
                _ => form.window = Some(self.window(part)?),
            }
        }
        Some(form)
    }

    fn window(&self, space: &str) -> Option<Window> {
        Some(match space {
            "global" | "const" => Window::Generic,
            "shared" | "shared::cta" => Window::Shared,
            "local" => Window::Local,
            "param" | "param::entry" | "param::func" if self.function.is_kernel => {
                Window::Parameter
            }
            "param" | "param::func" => Window::Frame,
            _ => return None,
        })
    }

    /// The address of an access. Parameters of a call are in the frame, also in a kernel.
    fn address(&mut self, operand: &Operand<'_>, window: Option<Window>) -> Result<Address> {
        let window = window.unwrap_or(Window::Generic);
        let Operand::Address(base, offset) = operand else { return Err(self.wrong(operand)) };
        if let Operand::Name(name, inner) = &**base
            && let Some(Symbol::Frame(at, _)) = self.names.symbol(name)
        {
            let offset = at as i64 + inner + offset;
            return Ok(Address { base: self.names.constant(0), offset, window: Window::Frame });
        }
        Ok(Address { base: self.source(base)?, offset: *offset, window })
    }

    pub(super) fn load(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let (Some(form), [to, from, ..]) =
            (self.form(&statement.opcode[1..]), &*statement.operands)
        else {
            return Ok(false);
        };
        let address = self.address(from, form.window)?;
        let elements = if let Operand::Vector(parts) = to {
            self.elements(parts)?
        } else {
            Box::from([Some(self.target(to)?)])
        };
        Ok(self.vector(&form, address, &elements, true))
    }

    pub(super) fn store(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let (Some(form), [to, from, ..]) =
            (self.form(&statement.opcode[1..]), &*statement.operands)
        else {
            return Ok(false);
        };
        let address = self.address(to, form.window)?;
        let elements: Box<[Option<Slot>]> = if let Operand::Vector(parts) = from {
            parts.iter().map(|part| self.source(part).map(Some)).collect::<Result<_>>()?
        } else {
            Box::from([Some(self.source(from)?)])
        };
        Ok(self.vector(&form, address, &elements, false))
    }

    /// One instruction for every piece, so that something can happen between them.
    fn vector(
        &mut self,
        form: &Form,
        address: Address,
        elements: &[Option<Slot>],
        is_load: bool,
    ) -> bool {
        if elements.len() != form.elements {
            return false;
        }
        let element_bytes = form.of.bytes();
        let piece_elements = (PIECE_BYTES / element_bytes).min(elements.len()).max(1);
        let pieces = elements.len() / piece_elements;
        // A register that is loaded into and addresses what is loaded is read once.
        let overwritten = is_load && elements.contains(&Some(address.base));
        let at_once = pieces == 1 || overwritten;
        for piece in 0..if at_once { 1 } else { pieces } {
            let vector = Box::new(Vector {
                address,
                elements: elements.into(),
                element_bytes: element_bytes as u8,
                signed: form.of.is_signed(),
                releases: form.releases,
                piece_elements: piece_elements as u8,
                piece: (!at_once).then_some(piece as u8),
            });
            self.emit(if is_load { Effect::Load(vector) } else { Effect::Store(vector) });
            let joined = !at_once && piece + 1 < pieces;
            if let Some(last) = self.code.last_mut() {
                last.joined = joined;
            }
        }
        true
    }

    /// `atom.global.sys.add.u32 d, [a], b`, and `red` without a result.
    pub(super) fn atomic(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let has_result = statement.opcode[0] == "atom";
        let Some((last, parts)) = statement.opcode[1..].split_last() else { return Ok(false) };
        let Some(of) = Type::parse(last).filter(|of| of.count == 1) else { return Ok(false) };
        let (mut window, mut name) = (None, None);
        for part in parts {
            match self.window(part) {
                Some(found) => window = Some(found),
                None if is_order(part) => {}
                None if name.is_none() => name = Some(*part),
                None => return Ok(false),
            }
        }
        let Some(change) = name.and_then(|name| change(name, of)) else { return Ok(false) };
        let operands = &*statement.operands;
        let first = usize::from(has_result);
        let (Some(place), Some(value)) = (operands.get(first), operands.get(first + 1)) else {
            return Ok(false);
        };
        let address = self.address(place, window)?;
        let value = self.source(value)?;
        let second = match operands.get(first + 2) {
            Some(second) => self.source(second)?,
            None => value,
        };
        let to = if has_result { Some(self.target(&operands[0])?) } else { None };
        let bytes = of.bytes();
        let (releases, operands) = (releases(parts), [value, second]);
        let atomic = Atomic { address, change, bytes, releases, to, operands };
        self.emit(Effect::Atomic(Box::new(atomic)));
        Ok(bytes >= 2)
    }

    /// `cvta.to.global.u64 d, a` and back.
    pub(super) fn translate(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let (to_generic, space) = match &statement.opcode[1..] {
            ["to", space, "u64" | "u32"] => (false, *space),
            [space, "u64" | "u32"] => (true, *space),
            _ => return Ok(false),
        };
        let (Some(window), [to, from]) = (self.window(space), &*statement.operands) else {
            return Ok(false);
        };
        let (from, to) = (self.source(from)?, self.target(to)?);
        self.emit(Effect::Translate { to, from, window, to_generic });
        Ok(true)
    }
}

fn change(name: &str, of: Type) -> Option<Change> {
    let wide = of.bits >= 32;
    Some(match name {
        "exch" => Change::Exchange,
        "cas" => Change::CompareAndSwap,
        "inc" if of.bits == 32 => Change::Increment,
        "dec" if of.bits == 32 => Change::Decrement,
        "add" | "min" | "max" | "and" | "or" | "xor" if wide => {
            let apply = integer::binary(&[name], of);
            let sum = || (name == "add").then(|| float::binary(&["add"], of)).flatten();
            Change::Apply(apply.or_else(sum)?)
        }
        _ => return None,
    })
}
