//! Branches, calls, barriers, and what the threads of a warp do together.

use std::collections::BTreeMap;

use super::names::Symbol;
use super::{Decoder, Jump, Result, memory, split_type};
use crate::arithmetic::integer;
use crate::error::LoadError;
use crate::program::{
    Barrier, Call, Direction, Effect, Exchange, Motion, Operation, Parameter, Slot, Tally, WarpWide,
};
use crate::syntax::{Operand, Statement};

impl<'a> Decoder<'a> {
    /// False if it is no instruction of this kind.
    pub(super) fn control(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let operation: Operation = match statement.opcode.as_slice() {
            ["bra"] | ["bra", "uni"] => return Ok(self.branch(statement)),
            ["call"] | ["call", "uni"] => return self.call(statement),
            ["bar" | "barrier", "warp", "sync"] => {
                let [members] = self.sources(&statement.operands)?;
                self.warp_wide(Exchange::Nothing, None, &[], members)?
            }
            ["bar" | "barrier", ..] => return self.barrier(statement),
            ["vote", "sync", mode, "pred" | "b32"] => return self.vote(statement, mode),
            ["shfl", "sync", mode, "b32"] => return self.shuffle(statement, mode),
            ["redux", "sync", ..] => return self.reduce(statement),
            ["match", "any", "sync", width @ ("b32" | "b64")] => {
                let (to, [value, members]) = self.results(&statement.operands)?;
                let bits = if *width == "b32" { u64::from(u32::MAX) } else { u64::MAX };
                self.warp_wide(Exchange::Match(bits), Some(to), &[value], members)?
            }
            ["elect", "sync"] => {
                let (to, [members]) = self.results(&statement.operands)?;
                self.warp_wide(Exchange::Elect, Some(to), &[], members)?
            }
            ["activemask", "b32"] => {
                let Some(to) = statement.operands.first() else { return Ok(false) };
                Effect::ActiveMask(self.target(to)?).into()
            }
            ["ret"] | ["ret", "uni"] if self.function.is_kernel => Motion::Exit.into(),
            ["ret"] | ["ret", "uni"] => Motion::Return.into(),
            ["exit"] => Motion::Exit.into(),
            ["trap"] => Motion::Trap.into(),
            ["membar", scope @ ("cta" | "gl" | "sys")]
            | ["fence", "sc" | "acq_rel" | "release", scope]
            | ["fence", scope @ ("cta" | "cluster" | "gpu" | "sys")] => {
                match memory::scope(scope) {
                    Some(scope) => Effect::Fence(scope).into(),
                    None => return Ok(false),
                }
            }
            ["nanosleep", "u32"] => Motion::Pause.into(),
            ["prefetch", "global" | "local", "L1" | "L2"]
            | ["prefetch" | "prefetchu", "L1" | "L2"]
            | ["prefetch", "global", "L2::evict_last" | "L2::evict_normal"]
            | ["discard", "L2"]
            | ["discard", "global", "L2"]
            | ["griddepcontrol", "launch_dependents" | "wait"]
            | ["pmevent"]
            | ["pmevent", "mask"] => Effect::Nothing.into(),
            _ => return Ok(false),
        };
        self.emit(operation);
        Ok(true)
    }

    fn jump(&mut self, target: usize, label: &str) {
        self.jumps.push(Jump {
            instruction: self.code.len(),
            target,
            scope: self.names.scope(),
            label: label.to_owned(),
            line: self.line,
        });
    }

    fn branch(&mut self, statement: &Statement<'_>) -> bool {
        let [Operand::Name(label, 0)] = &*statement.operands else { return false };
        self.jump(0, label);
        self.emit(Motion::Branch(0));
        true
    }

    /// `brx.idx index, labels;`
    pub(super) fn table(
        &mut self,
        statement: &Statement<'_>,
        tables: &BTreeMap<&str, &'a [&'a str]>,
    ) -> Result<bool> {
        let ([index, Operand::Name(name, 0)], ["brx", "idx"] | ["brx", "idx", "uni"]) =
            (&*statement.operands, &*statement.opcode)
        else {
            return Ok(false);
        };
        let Some(labels) = tables.get(name) else { return Err(self.wrong(name)) };
        let index = self.source(index)?;
        for (target, label) in labels.iter().enumerate() {
            self.jump(target, label);
        }
        let targets = vec![0; labels.len()].into();
        self.emit(Motion::Table { index, targets });
        Ok(true)
    }

    /// `call (results), function, (arguments);`, of which all but the function may be missing.
    fn call(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let (results, rest): (&[Operand<'_>], _) = match &*statement.operands {
            [Operand::List(results), rest @ ..] => (results, rest),
            rest => (&[], rest),
        };
        let (name, arguments): (_, &[Operand<'_>]) = match rest {
            [Operand::Name(name, 0)] => (name, &[]),
            [Operand::Name(name, 0), Operand::List(arguments)] => (name, arguments),
            _ => return Ok(false),
        };
        let Some((function, declared)) = self.globals.function(name) else {
            return Err(LoadError::new(self.line, format!("no function {name} is declared")));
        };
        let arguments = self.copies(arguments, &declared.parameters)?;
        let results = self.copies(results, &declared.results)?;
        self.function.has_calls = true;
        self.emit(Motion::Call(Box::new(Call { function, arguments, results })));
        Ok(true)
    }

    /// Offset in the caller's frame, in the callee's, and size, of every argument or result.
    fn copies(&self, given: &[Operand<'_>], declared: &[Parameter]) -> Result<Vec<[u32; 3]>> {
        if given.len() != declared.len() {
            return Err(LoadError::new(self.line, "another number of arguments is declared"));
        }
        let copy = |(operand, parameter): (&Operand<'_>, &Parameter)| {
            let Operand::Name(name, 0) = operand else { return Err(self.wrong(operand)) };
            match self.names.symbol(name) {
                Some(Symbol::Frame(at, bytes)) if bytes == parameter.bytes => {
                    Ok([at as u32, parameter.offset as u32, bytes as u32])
                }
                _ => Err(self.wrong(operand)),
            }
        };
        given.iter().zip(declared).map(copy).collect()
    }

    /// `bar.sync 0;`, `barrier.sync.aligned 1, 64;`, `bar.red.popc.u32 d, 0, p;`
    fn barrier(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let is_aligned = statement.opcode[0] == "bar" || statement.opcode.contains(&"aligned");
        let parts: Vec<&str> = statement.opcode[1..]
            .iter()
            .copied()
            .filter(|part| !matches!(*part, "cta" | "aligned"))
            .collect();
        let (waits, tally) = match parts.as_slice() {
            ["sync"] => (true, Tally::Nothing),
            ["arrive"] => (false, Tally::Nothing),
            ["red", "popc", "u32"] => (true, Tally::Count),
            ["red", "and", "pred"] => (true, Tally::All),
            ["red", "or", "pred"] => (true, Tally::Any),
            _ => return Ok(false),
        };
        let mut operands = &*statement.operands;
        let (mut to, mut predicate) = (self.names.scratch(), self.names.constant(0));
        if tally != Tally::Nothing {
            let [first, middle @ .., last] = operands else { return Ok(false) };
            (to, predicate, operands) = (self.target(first)?, self.source(last)?, middle);
        }
        let (number, threads) = match operands {
            [number] => (self.source(number)?, None),
            [number, threads] => (self.source(number)?, Some(self.source(threads)?)),
            _ => return Ok(false),
        };
        let barrier = Barrier { number, threads, is_aligned, waits, tally, to, predicate };
        self.emit(Motion::Barrier(Box::new(barrier)));
        Ok(true)
    }

    fn warp_wide(
        &mut self,
        exchange: Exchange,
        to: Option<&Operand<'_>>,
        given: &[Slot],
        members: Slot,
    ) -> Result<Operation> {
        let (to, valid) = match to {
            Some(Operand::Pair(to, valid)) => {
                (self.target(&Operand::Name(to, 0))?, self.register(valid)?)
            }
            Some(to) => (self.target(to)?, self.names.scratch()),
            None => (self.names.scratch(), self.names.scratch()),
        };
        let mut operands = [members; 3];
        operands[..given.len()].copy_from_slice(given);
        let warp_wide = WarpWide { exchange, to, valid, operands, members };
        Ok(Motion::Warp(Box::new(warp_wide)).into())
    }

    fn vote(&mut self, statement: &Statement<'_>, mode: &str) -> Result<bool> {
        let exchange = match mode {
            "all" => Exchange::All,
            "any" => Exchange::Any,
            "uni" => Exchange::Uniform,
            "ballot" => Exchange::Ballot,
            _ => return Ok(false),
        };
        let (to, [predicate, members]) = self.results(&statement.operands)?;
        let operation = self.warp_wide(exchange, Some(to), &[predicate], members)?;
        self.emit(operation);
        Ok(true)
    }

    fn shuffle(&mut self, statement: &Statement<'_>, mode: &str) -> Result<bool> {
        let direction = match mode {
            "up" => Direction::Up,
            "down" => Direction::Down,
            "bfly" => Direction::Xor,
            "idx" => Direction::Index,
            _ => return Ok(false),
        };
        let (to, [value, lane, limits, members]) = self.results(&statement.operands)?;
        let exchange = Exchange::Shuffle(direction);
        let operation = self.warp_wide(exchange, Some(to), &[value, lane, limits], members)?;
        self.emit(operation);
        Ok(true)
    }

    /// `redux.sync.add.u32 d, a, members;`
    fn reduce(&mut self, statement: &Statement<'_>) -> Result<bool> {
        let Some((["redux", "sync", name], of)) = split_type(statement) else { return Ok(false) };
        let Some(apply) = integer::binary(&[name], of).filter(|_| of.bits == 32) else {
            return Ok(false);
        };
        let (to, [value, members]) = self.results(&statement.operands)?;
        let operation = self.warp_wide(Exchange::Reduce(apply), Some(to), &[value], members)?;
        self.emit(operation);
        Ok(true)
    }
}
