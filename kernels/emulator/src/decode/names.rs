//! What the names in a function stand for, and the slots of its frame.

use std::collections::BTreeMap;

use crate::program::{Slot, Special};
use crate::types::Type;

/// A variable that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    /// At a fixed address.
    Global(u64),
    /// At an offset in the shared memory of the block.
    Shared(u64),
    /// Where shared memory of the launch's size begins.
    DynamicShared,
    /// At an offset in the frame of the thread, of so many bytes.
    Frame(u64, usize),
    /// At an offset in the arguments of the kernel.
    Parameter(u64),
}

#[derive(Debug, Default)]
struct Scope<'a> {
    parent: usize,
    registers: BTreeMap<&'a str, Slot>,
    /// Registers that differ in the number at the end of their name: the first, and how many.
    families: BTreeMap<&'a str, (Slot, u32)>,
    symbols: BTreeMap<&'a str, Symbol>,
}

/// All names of a function. Braces open scopes; the names of an inner one hide those outside.
#[derive(Debug)]
pub(super) struct Names<'a> {
    scopes: Vec<Scope<'a>>,
    current: usize,
    slots: u32,
    specials: Vec<(Slot, Special)>,
}

impl<'a> Names<'a> {
    pub(super) fn new() -> Self {
        Self { scopes: vec![Scope::default()], current: 0, slots: 0, specials: Vec::new() }
    }

    pub(super) fn open(&mut self) {
        self.scopes.push(Scope { parent: self.current, ..Scope::default() });
        self.current = self.scopes.len() - 1;
    }

    pub(super) fn close(&mut self) {
        self.current = self.scopes[self.current].parent;
    }

    pub(super) fn scope(&self) -> usize {
        self.current
    }

    /// A scope and all around it, from the inside out.
    pub(super) fn outward(&self, from: usize) -> impl Iterator<Item = usize> {
        let parent = |scope: &usize| (*scope != 0).then(|| self.scopes[*scope].parent);
        std::iter::successors(Some(from), parent)
    }

    pub(super) fn registers(&mut self, _of: Type, name: &'a str, count: Option<u32>) {
        let first = self.slots;
        self.slots += count.unwrap_or(1);
        let scope = &mut self.scopes[self.current];
        match count {
            Some(count) => {
                scope.families.insert(name, (first, count));
            }
            None => {
                scope.registers.insert(name, first);
            }
        }
    }

    pub(super) fn register(&self, name: &str) -> Option<Slot> {
        let family = name.trim_end_matches(|character: char| character.is_ascii_digit());
        self.outward(self.current).find_map(|scope| {
            let scope = &self.scopes[scope];
            if let Some(slot) = scope.registers.get(name) {
                return Some(*slot);
            }
            let (first, count) = scope.families.get(family)?;
            let number: u32 = name[family.len()..].parse().ok()?;
            (number < *count).then_some(first + number)
        })
    }

    pub(super) fn declare(&mut self, name: &'a str, symbol: Symbol) {
        self.scopes[self.current].symbols.insert(name, symbol);
    }

    pub(super) fn symbol(&self, name: &str) -> Option<Symbol> {
        let mut scopes = self.outward(self.current);
        scopes.find_map(|scope| self.scopes[scope].symbols.get(name).copied())
    }

    /// A slot of nobody.
    pub(super) fn scratch(&mut self) -> Slot {
        self.slots += 1;
        self.slots - 1
    }

    pub(super) fn constant(&mut self, value: u64) -> Slot {
        self.special(Special::Constant(value))
    }

    /// The slot of what every thread finds there from the beginning on.
    pub(super) fn special(&mut self, special: Special) -> Slot {
        if let Some((slot, _)) = self.specials.iter().find(|(_, known)| *known == special) {
            return *slot;
        }
        let slot = self.scratch();
        self.specials.push((slot, special));
        slot
    }

    /// How many slots there are, and which of them hold what from the beginning on.
    pub(super) fn finish(&mut self) -> (u32, Vec<(Slot, Special)>) {
        (self.slots, std::mem::take(&mut self.specials))
    }
}

/// The special register of that name, but for clocks, which are instructions here.
pub(super) fn special(name: &str) -> Option<Special> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let axis = |name: &str| "xyz".find(name).map(|axis| axis as u8).filter(|_| name.len() == 1);
    if let Some((register, dimension)) = name.split_once('.') {
        let axis = axis(dimension)?;
        return Some(match register {
            "%tid" => Special::Thread(axis),
            "%ntid" => Special::BlockSize(axis),
            "%ctaid" => Special::Block(axis),
            "%nctaid" => Special::GridSize(axis),
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::Warps,
        "%smid" => Special::Multiprocessor,
        "%lanemask_eq" => Special::LaneMask(Equal, false),
        "%lanemask_lt" => Special::LaneMask(Less, false),
        "%lanemask_le" => Special::LaneMask(Less, true),
        "%lanemask_gt" => Special::LaneMask(Greater, false),
        "%lanemask_ge" => Special::LaneMask(Greater, true),
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::SharedBytes,
        "WARP_SZ" => Special::Constant(32),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_names_hide_outer_ones() {
        let mut names = Names::new();
        names.registers(Type::PREDICATE, "%r", Some(3));
        names.registers(Type::PREDICATE, "low", None);
        assert_eq!(names.register("%r2"), Some(2));
        assert_eq!(names.register("%r3"), None);
        names.open();
        names.registers(Type::PREDICATE, "low", None);
        assert_eq!((names.register("low"), names.register("%r0")), (Some(4), Some(0)));
        let inner = names.scope();
        names.close();
        assert_eq!(names.register("low"), Some(3));
        names.open();
        assert_eq!(names.outward(names.scope()).collect::<Vec<_>>(), [2, 0]);
        assert_eq!(inner, 1);
        assert_eq!(names.constant(7), names.constant(7));
        assert_ne!(names.constant(7), names.constant(8));
    }
}
