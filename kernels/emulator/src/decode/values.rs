//! Instructions that compute a value from values.

use super::{Decoder, Result, names, split_type};
use crate::arithmetic::convert::{self, Decoded};
use crate::arithmetic::{float, integer, logical, mov, select};
use crate::error::LoadError;
use crate::program::{Compute, Effect, Slot};
use crate::syntax::{Operand, Statement};
use crate::types::{Kind, Type};

use super::names::Symbol;
use crate::program::Special;

impl<'a> Decoder<'a> {
    /// A slot with the address of a variable, the place of a parameter, or a special register.
    pub(super) fn symbol(&mut self, name: &str, offset: i64) -> Result<Slot> {
        if let Some(special) = names::special(name) {
            return Ok(self.names.special(special));
        }
        if matches!(name, "%clock" | "%clock64" | "%clock_hi" | "%globaltimer") {
            let to = self.names.scratch();
            self.emit(Effect::Clock(to));
            return Ok(to);
        }
        let symbol = self.names.symbol(name).or_else(|| self.globals.symbol(name));
        match symbol {
            Some(Symbol::Global(at) | Symbol::Shared(at) | Symbol::Parameter(at)) => {
                Ok(self.names.constant(at.wrapping_add_signed(offset)))
            }
            Some(Symbol::DynamicShared) if offset == 0 => {
                Ok(self.names.special(Special::DynamicShared))
            }
            Some(Symbol::Frame(at, _)) => {
                let to = self.names.scratch();
                let offset = at.wrapping_add_signed(offset);
                self.emit(Effect::FrameAddress { to, offset });
                Ok(to)
            }
            Some(Symbol::DynamicShared) | None => {
                Err(LoadError::new(self.line, format!("no name {name} is declared")))
            }
        }
    }

    pub(super) fn mov(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let (Some((["mov"], of)), [to, from]) = (split_type(statement), &*statement.operands)
        else {
            return Ok(false);
        };
        match (to, from) {
            (Operand::Vector(parts), _) => {
                let Some(bits) = part_bits(of, parts.len()) else { return Ok(false) };
                let from = self.source(from)?;
                let to = self.elements(parts)?;
                self.emit(Effect::Unpack { to, from, bits });
            }
            (_, Operand::Vector(parts)) => {
                let Some(bits) = part_bits(of, parts.len()) else { return Ok(false) };
                let slots: Result<Vec<Slot>> = parts.iter().map(|it| self.source(it)).collect();
                let to = self.target(to)?;
                self.emit(Compute::Pack { to, parts: slots?.into(), bits });
            }
            _ => self.unary(mov(), &statement.operands)?,
        }
        Ok(true)
    }

    /// The registers of a vector that is written; `_` is left out.
    pub(super) fn elements(&mut self, parts: &[Operand<'_>]) -> Result<Box<[Option<Slot>]>> {
        parts
            .iter()
            .map(|part| {
                let is_nobody = *part == Operand::Name("_", 0);
                if is_nobody { Ok(None) } else { self.target(part).map(Some) }
            })
            .collect()
    }

    /// `setp.lt.and.s32 p|q, a, b, c`: p is the comparison and c, q its opposite and c.
    pub(super) fn compare(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let Some((["setp", comparison, rest @ ..], of)) = split_type(statement) else {
            return Ok(false);
        };
        let apply = if matches!(of.kind, Kind::Float) {
            float::compare(comparison, of)
        } else {
            integer::compare(comparison, of)
        };
        let (Some(apply), [to, a, b, third @ ..]) = (apply, &*statement.operands) else {
            return Ok(false);
        };
        let from = [self.source(a)?, self.source(b)?];
        let combine = match (rest, third) {
            ([], []) => None,
            ([name], [third]) => match logical(name) {
                Some(apply) => Some((apply, self.source(third)?)),
                None => return Ok(false),
            },
            _ => return Ok(false),
        };
        let (to, opposite) = if let Operand::Pair(to, opposite) = to {
            (self.register(to)?, Some(self.register(opposite)?))
        } else {
            (self.target(to)?, None)
        };
        if opposite.is_none() && combine.is_none() {
            self.emit(Compute::Binary(apply, to, from));
            return Ok(true);
        }
        let holds = self.names.scratch();
        self.emit(Compute::Binary(apply, holds, from));
        let mut results = vec![(to, self.combined(holds, combine))];
        if let Some(opposite) = opposite {
            let fails = self.names.scratch();
            self.emit(Compute::Unary(crate::arithmetic::negate(), fails, holds));
            results.push((opposite, self.combined(fails, combine)));
        }
        // The guard is read by all of them, so what writes it comes last.
        results.sort_by_key(|result| self.guard.is_some_and(|guard| guard.predicate == result.0));
        for (to, from) in results {
            self.emit(Compute::Unary(mov(), to, from));
        }
        Ok(true)
    }

    /// A slot with a comparison and what it is combined with, if it is with anything.
    fn combined(
        &mut self,
        holds: Slot,
        combine: Option<(crate::arithmetic::Binary, Slot)>,
    ) -> Slot {
        let Some((apply, third)) = combine else { return holds };
        let to = self.names.scratch();
        self.emit(Compute::Binary(apply, to, [holds, third]));
        to
    }

    pub(super) fn convert(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let sources = statement.operands.len().saturating_sub(1);
        match convert::decode(&statement.opcode[1..], sources) {
            Some(Decoded::Simple(apply)) => self.unary(apply, &statement.operands)?,
            Some(Decoded::Rounding(conversion)) => {
                let (to, from) = match sources {
                    2 => self.results(&statement.operands)?,
                    _ => {
                        let (to, [from]) = self.results(&statement.operands)?;
                        (to, [from; 2])
                    }
                };
                let to = self.target(to)?;
                self.emit(Compute::Convert(Box::new(conversion), to, from));
            }
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Everything else that computes. False if it is not known.
    pub(super) fn value(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let Some((parts, of)) = split_type(statement) else { return Ok(false) };
        let operands = &*statement.operands;
        match operands.len() {
            2 => match unary(parts, of) {
                Some(apply) => self.unary(apply, operands)?,
                None => return Ok(false),
            },
            3 => match binary(parts, of) {
                Some(apply) => self.binary(apply, operands)?,
                None => return Ok(false),
            },
            4 if parts == ["selp"] => self.ternary(select(), operands)?,
            4 => match integer::ternary(parts, of).or_else(|| float::ternary(parts, of)) {
                Some(apply) => self.ternary(apply, operands)?,
                None => return Ok(false),
            },
            5 => match integer::quaternary(parts, of) {
                Some(apply) => self.quaternary(apply, operands)?,
                None => return Ok(false),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn unary(parts: &[&str], of: Type) -> Option<crate::arithmetic::Unary> {
    if of == Type::PREDICATE {
        return (parts == ["not"]).then(crate::arithmetic::negate);
    }
    integer::unary(parts, of).or_else(|| float::unary(parts, of))
}

fn binary(parts: &[&str], of: Type) -> Option<crate::arithmetic::Binary> {
    match parts {
        [name] if of == Type::PREDICATE => logical(name),
        _ => integer::binary(parts, of).or_else(|| float::binary(parts, of)),
    }
}

/// The bits of each of two or four parts.
fn part_bits(of: Type, parts: usize) -> Option<u32> {
    let bits = of.bits * of.count;
    (matches!(parts, 2 | 4) && bits >= 16).then_some(bits / parts as u32)
}
