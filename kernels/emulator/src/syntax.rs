//! What a PTX text consists of: variables, functions, instructions by name. Nothing is resolved.

use crate::types::Type;

/// A whole text.
#[derive(Debug, Default)]
pub(crate) struct Text<'a> {
    pub(crate) version: (u32, u32),
    pub(crate) variables: Vec<Variable<'a>>,
    pub(crate) functions: Vec<Function<'a>>,
}

/// Where a variable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Constant,
    Shared,
    Local,
    Parameter,
}

/// A declared variable: `count` elements of a type; `None` elements for memory of a size that the
/// launch decides.
#[derive(Clone, Debug)]
pub(crate) struct Variable<'a> {
    pub(crate) name: &'a str,
    pub(crate) line: u32,
    pub(crate) space: Space,
    pub(crate) element: Type,
    pub(crate) count: Option<usize>,
    pub(crate) align: usize,
    pub(crate) initial: Vec<Initial<'a>>,
}

impl Variable<'_> {
    pub(crate) fn bytes(&self) -> usize {
        self.element.bytes() * self.count.unwrap_or(0)
    }
}

/// An element of an initialiser: a number, or the address of a variable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Initial<'a> {
    Number(u64),
    Address(&'a str, i64),
}

/// A kernel or a device function. Without a body it is only declared.
#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) line: u32,
    pub(crate) is_kernel: bool,
    pub(crate) results: Vec<Variable<'a>>,
    pub(crate) parameters: Vec<Variable<'a>>,
    pub(crate) maximum_threads: Option<u32>,
    pub(crate) body: Option<Vec<Item<'a>>>,
}

/// What stands in a body.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    Open,
    Close,
    Label(&'a str),
    /// `.reg .b32 %r<9>` declares `%r0` to `%r8`, without a number just the name.
    Registers(Type, &'a str, Option<u32>),
    Variable(Variable<'a>),
    /// The labels of an indirect branch.
    Targets(&'a str, Vec<&'a str>),
    Statement(Statement<'a>),
}

/// An instruction as it is written.
#[derive(Clone, Debug)]
pub(crate) struct Statement<'a> {
    pub(crate) line: u32,
    /// The predicate, and whether it must be false.
    pub(crate) guard: Option<(&'a str, bool)>,
    /// The opcode between its dots.
    pub(crate) opcode: Vec<&'a str>,
    pub(crate) operands: Vec<Operand<'a>>,
}

/// An operand as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand<'a> {
    /// A register, a special register, a variable with an offset, a label or a function.
    Name(&'a str, i64),
    /// `!%p1`
    Not(&'a str),
    Number(u64),
    /// `[base+offset]`; the base may be a number.
    Address(Box<Self>, i64),
    /// `{a, b}`
    Vector(Vec<Self>),
    /// `(a, b)`
    List(Vec<Self>),
    /// `a|b`
    Pair(&'a str, &'a str),
}
