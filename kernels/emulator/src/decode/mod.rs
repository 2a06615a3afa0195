//! From syntax to a program: names become slots, opcodes become functions.
//!
//! A modifier that is not known is refused, never ignored: an instruction that is run means what
//! the text says.

mod control;
mod frame;
mod memory;
mod module;
mod names;
mod values;

use std::collections::BTreeMap;

pub(crate) use module::load;

use crate::arithmetic::{Binary, Quaternary, Ternary, Unary};
use crate::error::LoadError;
use crate::program::{Compute, Function, Guard, Instruction, Motion, Operation, Place, Slot};
use crate::syntax::{Item, Operand, Statement};
use crate::types::Type;
use module::Globals;
use names::Names;

type Result<T> = std::result::Result<T, LoadError>;

/// A branch whose target is not known yet: the instruction, which of its targets, the label.
#[derive(Debug)]
struct Jump {
    instruction: usize,
    target: usize,
    scope: usize,
    label: String,
    line: u32,
}

/// Decodes the body of one function.
#[derive(Debug)]
struct Decoder<'a> {
    globals: &'a Globals,
    names: Names<'a>,
    function: Function,
    code: &'a mut Vec<Instruction>,
    labels: BTreeMap<(usize, &'a str), Place>,
    jumps: Vec<Jump>,
    guard: Option<Guard>,
    line: u32,
}

impl<'a> Decoder<'a> {
    fn body(&mut self, items: &'a [Item<'a>]) -> Result<()> {
        let mut tables = BTreeMap::new();
        for item in items {
            if let Item::Targets(name, targets) = item {
                tables.insert(*name, targets.as_slice());
            }
        }
        for item in items {
            match item {
                Item::Open => self.names.open(),
                Item::Close => self.names.close(),
                Item::Label(name) => {
                    let place = self.code.len() as Place;
                    self.labels.insert((self.names.scope(), name), place);
                }
                Item::Registers(of, name, count) => self.names.registers(*of, name, *count),
                Item::Variable(variable) => self.variable(variable)?,
                Item::Targets(..) => {}
                Item::Statement(statement) => {
                    self.line = statement.line;
                    self.statement(statement, &tables)?;
                }
            }
        }
        self.guard = None;
        let end = if self.function.is_kernel { Motion::Exit } else { Motion::Return };
        self.emit(end);
        self.resolve()
    }

    /// Writes the targets into all branches.
    fn resolve(&mut self) -> Result<()> {
        for jump in std::mem::take(&mut self.jumps) {
            let place = self
                .names
                .outward(jump.scope)
                .find_map(|scope| self.labels.get(&(scope, jump.label.as_str())))
                .ok_or_else(|| LoadError::new(jump.line, format!("no label {}", jump.label)))?;
            let operation = &mut self.code[jump.instruction].operation;
            if let Operation::Motion(Motion::Branch(target)) = operation {
                *target = *place;
            } else if let Operation::Motion(Motion::Table { targets, .. }) = operation {
                targets[jump.target] = *place;
            }
        }
        Ok(())
    }

    fn emit(&mut self, operation: impl Into<Operation>) {
        self.code.push(Instruction {
            guard: self.guard,
            operation: operation.into(),
            line: self.line,
            joined: false,
        });
    }

    fn unknown(&self, statement: &Statement<'_>) -> LoadError {
        LoadError::new(self.line, format!("unknown instruction {}", statement.opcode.join(".")))
    }

    fn wrong(&self, what: impl std::fmt::Debug) -> LoadError {
        LoadError::new(self.line, format!("not understood as an operand: {what:?}"))
    }

    fn statement(
        &mut self,
        statement: &'a Statement<'a>,
        tables: &BTreeMap<&str, &'a [&'a str]>,
    ) -> Result<()> {
        self.guard = match statement.guard {
            Some((name, negated)) => Some(Guard { predicate: self.register(name)?, negated }),
            None => None,
        };
        let done = match statement.opcode[0] {
            "ld" | "ldu" => self.load(statement)?,
            "st" => self.store(statement)?,
            "atom" | "red" => self.atomic(statement)?,
            "cvta" => self.translate(statement)?,
            "mov" => self.mov(statement)?,
            "setp" => self.compare(statement)?,
            "cvt" => self.convert(statement)?,
            "brx" => self.table(statement, tables)?,
            _ => self.control(statement)? || self.value(statement)?,
        };
        if done { Ok(()) } else { Err(self.unknown(statement)) }
    }

    /// The slot of a register.
    fn register(&self, name: &str) -> Result<Slot> {
        self.names
            .register(name)
            .ok_or_else(|| LoadError::new(self.line, format!("no register {name} is declared")))
    }

    /// The slot that an instruction writes; `_` is nobody's.
    fn target(&mut self, operand: &Operand<'_>) -> Result<Slot> {
        let Operand::Name(name, 0) = operand else { return Err(self.wrong(operand)) };
        if *name == "_" { Ok(self.names.scratch()) } else { self.register(name) }
    }

    /// A slot that holds what an operand says.
    fn source(&mut self, operand: &Operand<'_>) -> Result<Slot> {
        match operand {
            Operand::Number(value) => Ok(self.names.constant(*value)),
            Operand::Not(name) => {
                let from = self.register(name)?;
                let to = self.names.scratch();
                let guard = self.guard.take();
                self.emit(Compute::Unary(crate::arithmetic::negate(), to, from));
                self.guard = guard;
                Ok(to)
            }
            Operand::Name(name, offset) => match self.names.register(name) {
                Some(slot) if *offset == 0 => Ok(slot),
                Some(_) => Err(self.wrong(operand)),
                None => self.symbol(name, *offset),
            },
            Operand::Address(..) | Operand::Vector(_) | Operand::List(_) | Operand::Pair(..) => {
                Err(self.wrong(operand))
            }
        }
    }

    fn sources<const N: usize>(&mut self, operands: &[Operand<'_>]) -> Result<[Slot; N]> {
        let mut slots = [0; N];
        if operands.len() != N {
            return Err(LoadError::new(self.line, format!("{N} operands are expected")));
        }
        for (slot, operand) in slots.iter_mut().zip(operands) {
            *slot = self.source(operand)?;
        }
        Ok(slots)
    }

    /// The operand for the result, and the slots of those behind it.
    fn results<'o, 't, const N: usize>(
        &mut self,
        operands: &'o [Operand<'t>],
    ) -> Result<(&'o Operand<'t>, [Slot; N])> {
        let Some((to, from)) = operands.split_first() else {
            return Err(LoadError::new(self.line, format!("{} operands are expected", N + 1)));
        };
        Ok((to, self.sources(from)?))
    }

    fn unary(&mut self, apply: Unary, operands: &[Operand<'_>]) -> Result<()> {
        let (to, [from]) = self.results(operands)?;
        let to = self.target(to)?;
        self.emit(Compute::Unary(apply, to, from));
        Ok(())
    }

    fn binary(&mut self, apply: Binary, operands: &[Operand<'_>]) -> Result<()> {
        let (to, from) = self.results(operands)?;
        let to = self.target(to)?;
        self.emit(Compute::Binary(apply, to, from));
        Ok(())
    }

    fn ternary(&mut self, apply: Ternary, operands: &[Operand<'_>]) -> Result<()> {
        let (to, from) = self.results(operands)?;
        let to = self.target(to)?;
        self.emit(Compute::Ternary(apply, to, from));
        Ok(())
    }

    fn quaternary(&mut self, apply: Quaternary, operands: &[Operand<'_>]) -> Result<()> {
        let (to, from) = self.results(operands)?;
        let to = self.target(to)?;
        self.emit(Compute::Quaternary(apply, to, from));
        Ok(())
    }
}

/// The type at the end of an opcode, and what stands between it and the name.
fn split_type<'s>(statement: &'s Statement<'_>) -> Option<(&'s [&'s str], Type)> {
    let (last, parts) = statement.opcode.split_last()?;
    Some((parts, Type::parse(last)?))
}
