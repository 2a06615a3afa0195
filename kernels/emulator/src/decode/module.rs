//! A text as a whole: its variables in memory, its functions one after another.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::names::{Names, Symbol};
use super::{Decoder, Result, frame};
use crate::error::LoadError;
use crate::memory::{Memory, Rights, Words};
use crate::parser;
use crate::program::{Function, Instruction, Module, Parameter, Place, Variable};
use crate::syntax::{self, Initial, Space, Text};

/// What all functions of a text see.
#[derive(Debug, Default)]
pub(super) struct Globals {
    symbols: BTreeMap<String, Symbol>,
    shared_bytes: u64,
    functions: BTreeMap<String, (u32, Declared)>,
}

/// Where parameters and results of a function lie in its frame.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) parameters: Vec<Parameter>,
    pub(super) results: Vec<Parameter>,
}

impl Globals {
    pub(super) fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }

    /// Number of a function, and where its parameters and results lie.
    pub(super) fn function(&self, name: &str) -> Option<(u32, &Declared)> {
        self.functions.get(name).map(|(number, declared)| (*number, declared))
    }
}

/// Loads a text; its variables live in the memory until the module is dropped.
pub(crate) fn load(source: &str, memory: &Arc<Memory>) -> Result<Arc<Module>> {
    let text = parser::parse(source)?;
    let mut globals = Globals::default();
    let (storage, variables) = place_variables(&text, &mut globals)?;
    declare_functions(&text, &mut globals);
    let mut code = Vec::new();
    let mut functions = Vec::new();
    for function in named(&text) {
        functions.push(decode_function(function, &globals, &mut code)?);
    }
    if storage.bytes() > 0 {
        // SAFETY: the module owns the storage and takes it back when it ends; everybody touches it
        // through atomics.
        let registered =
            unsafe { memory.register(storage.start(), storage.bytes(), Rights::ReadWrite) };
        registered.map_err(|overlap| LoadError::new(0, overlap.to_string()))?;
    }
    Ok(Arc::new(Module {
        lines: source.lines().map(str::to_owned).collect(),
        version: text.version,
        code,
        functions,
        variables,
        storage,
        memory: Arc::clone(memory),
    }))
}

/// Every function once: its definition if there is one, in the order of the names.
fn named<'t, 'a>(text: &'t Text<'a>) -> impl Iterator<Item = &'t syntax::Function<'a>> {
    let mut all: BTreeMap<&str, &syntax::Function<'_>> = BTreeMap::new();
    for function in &text.functions {
        let known = all.get(function.name).is_some_and(|known| known.body.is_some());
        if !known {
            all.insert(function.name, function);
        }
    }
    all.into_values()
}

fn declare_functions(text: &Text<'_>, globals: &mut Globals) {
    for (number, function) in named(text).enumerate() {
        let (parameters, end) = layout(&function.parameters, 0);
        let (results, _) = layout(&function.results, end);
        let declared = (number as u32, Declared { parameters, results });
        globals.functions.insert(function.name.to_owned(), declared);
    }
}

/// Where variables lie one behind the other, from an offset on, and where they end.
fn layout(variables: &[syntax::Variable<'_>], start: usize) -> (Vec<Parameter>, usize) {
    let mut end = start;
    let place = |variable: &syntax::Variable<'_>| {
        let offset = end.next_multiple_of(variable.align.max(1));
        end = offset + variable.bytes();
        Parameter { offset, bytes: variable.bytes() }
    };
    let places = variables.iter().map(place).collect();
    (places, end)
}

/// Global memory and constants of the text, filled.
fn place_variables(text: &Text<'_>, globals: &mut Globals) -> Result<(Words, Vec<Variable>)> {
    let in_memory = |space| matches!(space, Space::Global | Space::Constant);
    let stored: Vec<_> =
        text.variables.iter().filter(|variable| in_memory(variable.space)).cloned().collect();
    let (places, bytes) = layout(&stored, 0);
    let storage = Words::new(bytes);
    let mut variables = Vec::new();
    for (variable, place) in stored.iter().zip(&places) {
        let address = storage.start() + place.offset as u64;
        globals.symbols.insert(variable.name.to_owned(), Symbol::Global(address));
        variables.push(Variable { name: variable.name.to_owned(), address, bytes: place.bytes });
    }
    for (variable, place) in stored.iter().zip(&places) {
        initialise(variable, place, &storage, globals)?;
    }
    for variable in &text.variables {
        if variable.space == Space::Shared {
            let symbol = shared(variable, &mut globals.shared_bytes);
            globals.symbols.insert(variable.name.to_owned(), symbol);
        }
    }
    Ok((storage, variables))
}

fn initialise(
    variable: &syntax::Variable<'_>,
    place: &Parameter,
    storage: &Words,
    globals: &Globals,
) -> Result<()> {
    let bytes = variable.element.bytes();
    for (index, initial) in variable.initial.iter().enumerate() {
        let value = match initial {
            Initial::Number(value) => *value,
            Initial::Address(name, offset) => match globals.symbol(name) {
                Some(Symbol::Global(address)) => address.wrapping_add_signed(*offset),
                _ => return Err(LoadError::new(variable.line, format!("no address of {name}"))),
            },
        };
        if (index + 1) * bytes > place.bytes {
            return Err(LoadError::new(variable.line, "more elements than the variable has"));
        }
        storage.write(place.offset + index * bytes, &value.to_le_bytes()[..bytes]);
    }
    Ok(())
}

/// The place of a variable in the shared memory of a block.
fn shared(variable: &syntax::Variable<'_>, end: &mut u64) -> Symbol {
    if variable.count.is_none() {
        return Symbol::DynamicShared;
    }
    let offset = end.next_multiple_of(variable.align.max(1) as u64);
    *end = offset + variable.bytes() as u64;
    Symbol::Shared(offset)
}

fn decode_function<'a>(
    function: &'a syntax::Function<'a>,
    globals: &'a Globals,
    code: &mut Vec<Instruction>,
) -> Result<Function> {
    let (parameters, end) = layout(&function.parameters, 0);
    let (results, end) = layout(&function.results, end);
    let mut decoder = Decoder {
        globals,
        names: Names::new(),
        function: Function {
            name: function.name.to_owned(),
            is_kernel: function.is_kernel,
            is_defined: function.body.is_some(),
            start: code.len() as Place,
            // Kernels have their arguments elsewhere.
            frame_bytes: if function.is_kernel { 0 } else { end },
            parameters,
            results,
            shared_bytes: globals.shared_bytes as usize,
            maximum_threads: function.maximum_threads,
            ..Function::default()
        },
        code,
        labels: BTreeMap::new(),
        jumps: Vec::new(),
        guard: None,
        line: function.line,
    };
    decoder.declare_parameters(function);
    decoder.body(function.body.as_deref().unwrap_or_default())?;
    let (slots, specials) = decoder.names.finish();
    let mut function = Function { slots, specials, ..decoder.function };
    frame::compact(&mut code[function.start as usize..], &mut function);
    Ok(function)
}

impl<'a> Decoder<'a> {
    fn declare_parameters(&mut self, function: &'a syntax::Function<'a>) {
        let places = self.function.parameters.iter().chain(&self.function.results);
        let variables = function.parameters.iter().chain(&function.results);
        for (variable, place) in variables.zip(places) {
            let offset = place.offset as u64;
            let symbol = if function.is_kernel {
                Symbol::Parameter(offset)
            } else {
                Symbol::Frame(offset, place.bytes)
            };
            self.names.declare(variable.name, symbol);
        }
    }

    /// A variable that is declared in a body.
    pub(super) fn variable(&mut self, variable: &'a syntax::Variable<'a>) -> Result<()> {
        let symbol = match variable.space {
            Space::Local | Space::Parameter => {
                let frame = self.function.frame_bytes;
                let offset = frame.next_multiple_of(variable.align.max(1));
                self.function.frame_bytes = offset + variable.bytes();
                Symbol::Frame(offset as u64, variable.bytes())
            }
            Space::Shared if self.function.is_kernel => {
                let mut end = self.function.shared_bytes as u64;
                let symbol = shared(variable, &mut end);
                self.function.shared_bytes = end as usize;
                symbol
            }
            Space::Shared | Space::Global | Space::Constant => {
                let what = format!("{} cannot be declared here", variable.name);
                return Err(LoadError::new(variable.line, what));
            }
        };
        self.names.declare(variable.name, symbol);
        Ok(())
    }
}
