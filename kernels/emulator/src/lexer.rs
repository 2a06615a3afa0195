//! PTX text as words and signs, each with its line.

/// A piece of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// A name, opcode, directive or number; `L1::evict_last` inside an opcode belongs to it.
    Word(&'a str),
    /// What stood between quotation marks.
    Text(&'a str),
    /// Anything else that is not white space.
    Sign(char),
}

/// A token and where it stands, counting from line 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed<'a> {
    pub(crate) token: Token<'a>,
    pub(crate) line: u32,
}

/// Directives that end with their line instead of a semicolon, and say nothing that is needed.
const LINE_DIRECTIVES: [&str; 4] = [".loc", ".file", ".target", ".address_size"];

/// All tokens. An unknown character is a sign, which the parser refuses with its line.
pub(crate) fn tokens(source: &str) -> Vec<Placed<'_>> {
    let mut tokens = Vec::new();
    let mut in_comment = false;
    for (number, text) in source.lines().enumerate() {
        let mut rest = skip_directive(text);
        while let Some((token, after)) = next(rest, &mut in_comment) {
            rest = after;
            if let Some(token) = token {
                tokens.push(Placed { token, line: number as u32 + 1 });
            }
        }
    }
    tokens
}

fn skip_directive(text: &str) -> &str {
    let word = text.split_whitespace().next().unwrap_or_default();
    if LINE_DIRECTIVES.contains(&word) { "" } else { text }
}

/// The next token of a line, if what comes next is one, and the text after it; `None` at the end.
fn next<'a>(text: &'a str, in_comment: &mut bool) -> Option<(Option<Token<'a>>, &'a str)> {
    if *in_comment {
        let end = text.find("*/")?;
        *in_comment = false;
        return Some((None, &text[end + 2..]));
    }
    let text = text.trim_start();
    let first = text.chars().next()?;
    if text.starts_with("//") {
        return None;
    }
    if let Some(after) = text.strip_prefix("/*") {
        *in_comment = true;
        return Some((None, after));
    }
    if let Some(after) = text.strip_prefix('"') {
        let end = after.find('"').unwrap_or(after.len());
        return Some((Some(Token::Text(&after[..end])), after.get(end + 1..).unwrap_or_default()));
    }
    let end = word_bytes(text);
    if end == 0 {
        let end = first.len_utf8();
        return Some((Some(Token::Sign(first)), &text[end..]));
    }
    Some((Some(Token::Word(&text[..end])), &text[end..]))
}

/// Length of the word with which the text begins.
fn word_bytes(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut end = 0;
    while end < bytes.len() {
        match bytes[end] {
            b'_' | b'$' | b'%' | b'.' => end += 1,
            byte if byte.is_ascii_alphanumeric() => end += 1,
            b':' if bytes.get(end + 1) == Some(&b':') && end > 0 => end += 2,
            _ => break,
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_signs_and_lines() {
        let source = ".loc 1 2 3\n\t@!%p1 ld.global.L1::no_allocate.v4.u32 {%r1}, [%rd1+-16]; // x\n\
                      $L_1: /* a\n b */ ret;";
        let words: Vec<(u32, String)> = tokens(source)
            .iter()
            .map(|placed| match placed.token {
                Token::Word(word) | Token::Text(word) => (placed.line, word.to_owned()),
                Token::Sign(sign) => (placed.line, sign.to_string()),
            })
            .collect();
        let expected = "2@ 2! 2%p1 2ld.global.L1::no_allocate.v4.u32 2{ 2%r1 2} 2, 2[ 2%rd1 2+ 2- 216 2] \
                        2; 3$L_1 3: 4ret 4;";
        let got: Vec<String> = words.iter().map(|(line, word)| format!("{line}{word}")).collect();
        assert_eq!(got.join(" "), expected);
    }
}
