//! From words to syntax.

use crate::error::LoadError;
use crate::lexer::{Placed, Token, tokens};
use crate::syntax::{Function, Initial, Item, Operand, Space, Statement, Text, Variable};
use crate::types::Type;

type Result<T> = std::result::Result<T, LoadError>;

/// Elements of a variable at most, and registers of a family: sums of a few do not overflow.
const MOST: u32 = 1 << 28;

/// Directives in front of a declaration that only say who may see it.
const LINKAGE: [&str; 5] = [".visible", ".extern", ".weak", ".common", ".noreturn"];

/// Parses a whole text.
pub(crate) fn parse(source: &str) -> Result<Text<'_>> {
    let mut parser = Parser { tokens: tokens(source), at: 0 };
    let mut text = Text::default();
    while let Some(word) = parser.try_word() {
        match word {
            ".version" => text.version = parser.version()?,
            ".section" => parser.skip_section()?,
            ".pragma" => parser.skip_to(';'),
            ".entry" | ".func" => text.functions.push(parser.function(word == ".entry")?),
            _ if LINKAGE.contains(&word) => {}
            _ => match space(word) {
                Some(space) => {
                    text.variables.push(parser.variable(space)?);
                    parser.sign(';')?;
                }
                None => return Err(parser.unexpected(word)),
            },
        }
    }
    match parser.peek() {
        Some(token) => Err(parser.unexpected(&format!("{token:?}"))),
        None => Ok(text),
    }
}

fn space(directive: &str) -> Option<Space> {
    match directive {
        ".global" => Some(Space::Global),
        ".const" => Some(Space::Constant),
        ".shared" => Some(Space::Shared),
        ".local" => Some(Space::Local),
        ".param" => Some(Space::Parameter),
        _ => None,
    }
}

/// The bits of a number: decimal, hexadecimal, binary, octal, or a float as `0f` or `0d` and bits.
fn number(word: &str) -> Option<u64> {
    let word = word.trim_end_matches('U');
    let of = |prefixes: [&str; 2], radix| {
        let digits = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix))?;
        u64::from_str_radix(digits, radix).ok()
    };
    of(["0x", "0X"], 16)
        .or_else(|| of(["0f", "0F"], 16))
        .or_else(|| of(["0d", "0D"], 16))
        .or_else(|| of(["0b", "0B"], 2))
        .or_else(|| if word == "0" { Some(0) } else { of(["0", "0"], 8) })
        .or_else(|| word.parse().ok())
}

#[derive(Debug)]
struct Parser<'a> {
    tokens: Vec<Placed<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|placed| placed.token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(0, |placed| placed.line)
    }

    fn unexpected(&self, what: &str) -> LoadError {
        let line = self.tokens.get(self.at.saturating_sub(1)).map_or(0, |placed| placed.line);
        LoadError::new(line, format!("not understood: {what}"))
    }

    fn try_word(&mut self) -> Option<&'a str> {
        let Some(Token::Word(word)) = self.peek() else { return None };
        self.at += 1;
        Some(word)
    }

    fn word(&mut self) -> Result<&'a str> {
        let line = self.line();
        self.try_word().ok_or_else(|| LoadError::new(line, "a word is missing"))
    }

    fn try_sign(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn sign(&mut self, sign: char) -> Result<()> {
        let line = self.line();
        if self.try_sign(sign) {
            return Ok(());
        }
        Err(LoadError::new(line, format!("`{sign}` is missing")))
    }

    fn skip_to(&mut self, sign: char) {
        while self.peek().is_some() && !self.try_sign(sign) {
            self.at += 1;
        }
    }

    fn version(&mut self) -> Result<(u32, u32)> {
        let word = self.word()?;
        let parts = word
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        parts.ok_or_else(|| self.unexpected(word))
    }

    /// Debug information: a name and bytes in braces.
    fn skip_section(&mut self) -> Result<()> {
        self.word()?;
        self.sign('{')?;
        self.skip_to('}');
        Ok(())
    }

    fn integer(&mut self) -> Result<u64> {
        let word = self.word()?;
        number(word).ok_or_else(|| self.unexpected(word))
    }

    fn signed(&mut self) -> Result<i64> {
        let negative = self.try_sign('-');
        let value = self.integer()? as i64;
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    /// `.align 4 .u32 name[3] = {1, 2}` after its space.
    fn variable(&mut self, space: Space) -> Result<Variable<'a>> {
        let line = self.line();
        let (mut align, mut element) = (None, None);
        let name = loop {
            let word = self.word()?;
            match word {
                ".align" => align = Some(self.alignment()?),
                ".ptr" | ".attribute" | ".managed" => {}
                _ if element.is_some() && self::space(word).is_some() => {}
                _ => match word.strip_prefix('.') {
                    Some(name) => {
                        element = Some(Type::parse(name).ok_or_else(|| self.unexpected(word))?);
                    }
                    None => break word,
                },
            }
        };
        let element = element.ok_or_else(|| self.unexpected(name))?;
        let count = self.extent()?;
        let initial = if self.try_sign('=') { self.initial()? } else { Vec::new() };
        let align = align.unwrap_or_else(|| element.bytes());
        Ok(Variable { name, line, space, element, count, align, initial })
    }

    fn alignment(&mut self) -> Result<usize> {
        let word = self.word()?;
        let bytes = number(word).and_then(|bytes| usize::try_from(bytes).ok());
        let is_possible = |bytes: &usize| bytes.is_power_of_two() && *bytes <= MOST as usize;
        bytes.filter(is_possible).ok_or_else(|| self.unexpected(word))
    }

    /// What follows the name of a variable: nothing, `[5]` or `[]`.
    fn extent(&mut self) -> Result<Option<usize>> {
        if !self.try_sign('[') {
            return Ok(Some(1));
        }
        if self.try_sign(']') {
            return Ok(None);
        }
        let count = self.count()?;
        self.sign(']')?;
        Ok(Some(count as usize))
    }

    /// How many elements or registers there are.
    fn count(&mut self) -> Result<u32> {
        let word = self.word()?;
        let count = number(word).and_then(|count| u32::try_from(count).ok());
        count.filter(|count| *count <= MOST).ok_or_else(|| self.unexpected(word))
    }

    fn initial(&mut self) -> Result<Vec<Initial<'a>>> {
        if !self.try_sign('{') {
            return Ok(vec![self.one_initial()?]);
        }
        let mut all = Vec::new();
        while !self.try_sign('}') {
            all.push(self.one_initial()?);
            self.try_sign(',');
        }
        Ok(all)
    }

    fn one_initial(&mut self) -> Result<Initial<'a>> {
        if self.try_sign('-') {
            return Ok(Initial::Number(self.integer()?.wrapping_neg()));
        }
        let word = self.word()?;
        if let Some(value) = number(word) {
            return Ok(Initial::Number(value));
        }
        let is_generic = word == "generic" && self.try_sign('(');
        let name = if is_generic { self.word()? } else { word };
        if is_generic {
            self.sign(')')?;
        }
        let offset = if self.try_sign('+') { self.signed()? } else { 0 };
        Ok(Initial::Address(name, offset))
    }

    fn function(&mut self, is_kernel: bool) -> Result<Function<'a>> {
        let line = self.line();
        let results = self.parameters()?;
        let name = self.word()?;
        let parameters = self.parameters()?;
        let mut maximum_threads = None;
        let body = loop {
            if self.try_sign(';') {
                break None;
            }
            if self.try_sign('{') {
                break Some(self.body()?);
            }
            match self.word()? {
                ".maxntid" | ".reqntid" => {
                    maximum_threads = Some(self.extents()?);
                }
                ".pragma" => self.skip_to(';'),
                ".noreturn" => {}
                directive if directive.starts_with('.') => {
                    self.extents()?;
                }
                other => return Err(self.unexpected(other)),
            }
        };
        Ok(Function { name, line, is_kernel, results, parameters, maximum_threads, body })
    }

    /// The product of `512, 1, 1`; 1 if there is no number.
    fn extents(&mut self) -> Result<u32> {
        let mut product = 1u32;
        while let Some(Token::Word(word)) = self.peek() {
            let Some(value) = number(word) else { break };
            self.at += 1;
            let value = u32::try_from(value).ok();
            let larger = value.and_then(|value| product.checked_mul(value));
            product = larger.ok_or_else(|| self.unexpected(word))?;
            if !self.try_sign(',') {
                break;
            }
        }
        Ok(product)
    }

    /// `(.param .u64 a, .param .b32 b)`, or nothing.
    fn parameters(&mut self) -> Result<Vec<Variable<'a>>> {
        let mut parameters = Vec::new();
        if !self.try_sign('(') {
            return Ok(parameters);
        }
        while !self.try_sign(')') {
            let directive = self.word()?;
            if directive != ".param" {
                return Err(self.unexpected(directive));
            }
            parameters.push(self.variable(Space::Parameter)?);
            self.try_sign(',');
        }
        Ok(parameters)
    }

    /// Everything up to the brace that closes the function.
    fn body(&mut self) -> Result<Vec<Item<'a>>> {
        let (mut items, mut depth) = (Vec::new(), 0);
        loop {
            if self.try_sign('{') {
                depth += 1;
                items.push(Item::Open);
            } else if self.try_sign('}') {
                if depth == 0 {
                    return Ok(items);
                }
                depth -= 1;
                items.push(Item::Close);
            } else if !self.try_sign(';') {
                self.item(&mut items)?;
            }
        }
    }

    fn item(&mut self, items: &mut Vec<Item<'a>>) -> Result<()> {
        let line = self.line();
        if self.try_sign('@') {
            let negated = self.try_sign('!');
            let predicate = self.word()?;
            let opcode = self.word()?;
            items.push(Item::Statement(self.statement(
                line,
                Some((predicate, negated)),
                opcode,
            )?));
            return Ok(());
        }
        let word = self.word()?;
        match word {
            ".reg" => return self.registers(items),
            ".pragma" => self.skip_to(';'),
            ".branchtargets" | ".callprototype" | ".calltargets" => {
                return Err(self.unexpected(word));
            }
            _ if let Some(space) = space(word) => {
                items.push(Item::Variable(self.variable(space)?));
                self.sign(';')?;
            }
            _ if word.starts_with('.') => return Err(self.unexpected(word)),
            _ if self.try_sign(':') => items.push(self.label(word)?),
            _ => items.push(Item::Statement(self.statement(line, None, word)?)),
        }
        Ok(())
    }

    fn label(&mut self, name: &'a str) -> Result<Item<'a>> {
        if self.peek() != Some(Token::Word(".branchtargets")) {
            return Ok(Item::Label(name));
        }
        self.at += 1;
        let mut targets = vec![self.word()?];
        while self.try_sign(',') {
            targets.push(self.word()?);
        }
        self.sign(';')?;
        Ok(Item::Targets(name, targets))
    }

    fn registers(&mut self, items: &mut Vec<Item<'a>>) -> Result<()> {
        let word = self.word()?;
        let element = word.strip_prefix('.').and_then(Type::parse);
        let element = element.ok_or_else(|| self.unexpected(word))?;
        loop {
            let name = self.word()?;
            let mut count = None;
            if self.try_sign('<') {
                count = Some(self.count()?);
                self.sign('>')?;
            }
            items.push(Item::Registers(element, name, count));
            if !self.try_sign(',') {
                return self.sign(';');
            }
        }
    }

    fn statement(
        &mut self,
        line: u32,
        guard: Option<(&'a str, bool)>,
        opcode: &'a str,
    ) -> Result<Statement<'a>> {
        let mut operands = Vec::new();
        while !self.try_sign(';') {
            operands.push(self.operand()?);
            self.try_sign(',');
        }
        Ok(Statement { line, guard, opcode: opcode.split('.').collect(), operands })
    }

    fn operand(&mut self) -> Result<Operand<'a>> {
        if self.try_sign('{') {
            return Ok(Operand::Vector(self.operands('}')?));
        }
        if self.try_sign('(') {
            return Ok(Operand::List(self.operands(')')?));
        }
        if self.try_sign('[') {
            let Operand::Name(name, offset) = self.operand()? else {
                return Err(self.unexpected("an address"));
            };
            self.sign(']')?;
            let base = match number(name) {
                Some(value) => Operand::Number(value),
                None => Operand::Name(name, 0),
            };
            return Ok(Operand::Address(Box::new(base), offset));
        }
        if self.try_sign('!') {
            return Ok(Operand::Not(self.word()?));
        }
        if self.try_sign('-') {
            return Ok(Operand::Number(self.integer()?.wrapping_neg()));
        }
        self.named_operand()
    }

    fn named_operand(&mut self) -> Result<Operand<'a>> {
        let word = self.word()?;
        if self.try_sign('|') {
            return Ok(Operand::Pair(word, self.word()?));
        }
        let offset = if self.try_sign('+') {
            self.signed()?
        } else if self.try_sign('-') {
            self.signed()?.wrapping_neg()
        } else {
            0
        };
        Ok(match number(word) {
            // The base of an address may be a number.
            Some(value) if self.peek() != Some(Token::Sign(']')) => {
                Operand::Number(value.wrapping_add_signed(offset))
            }
            _ => Operand::Name(word, offset),
        })
    }

    fn operands(&mut self, end: char) -> Result<Vec<Operand<'a>>> {
        let mut operands = Vec::new();
        while !self.try_sign(end) {
            operands.push(self.operand()?);
            self.try_sign(',');
        }
        Ok(operands)
    }
}

#[cfg(test)]
mod tests;
