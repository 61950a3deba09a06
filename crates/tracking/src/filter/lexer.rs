//! Cuts a filter into words, names, texts, numbers and signs.

use crate::Refusal;

/// A piece of a filter.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A name, possibly of several parts: `metrics.loss`, `` params.`a b` ``, `AND`. The parts have lost their quotes; a
    /// name that began with a quote was nothing else.
    Name(Name),
    /// A text in single quotes.
    Text(String),
    /// A number.
    Number(String),
    /// An operator.
    Operator(&'static str),
    /// A parenthesis or a comma.
    Sign(char),
}

/// A name, as it stands in the filter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Name {
    /// What stands before the first point, without quotes; none if there is no point.
    pub(super) entity: Option<String>,
    /// What stands after it, without quotes.
    pub(super) key: String,
    /// Whether the whole name is one text in double quotes, which can be a value too.
    pub(super) is_quoted: bool,
}

/// The operators, longer ones first.
const OPERATORS: [&str; 8] = ["!=", ">=", "<=", "==", "<>", "=", ">", "<"];
/// The longest filter, in bytes.
pub(super) const FILTER_BYTES_MAX: usize = 64 << 10;

/// Cuts a filter into tokens.
///
/// # Errors
/// If a quote isn't closed, a letter has no place in filters, or the filter is too long.
pub(super) fn tokens(filter: &str) -> Result<Vec<Token>, Refusal> {
    if filter.len() > FILTER_BYTES_MAX {
        return Err(Refusal::invalid(format!("the filter is longer than {FILTER_BYTES_MAX} bytes: shorten it")));
    }
    let mut rest = filter.trim_start();
    let mut tokens = Vec::new();
    while let Some(first) = rest.chars().next() {
        let (token, length) = next(rest, first).ok_or_else(|| {
            let shown: String = rest.chars().take(80).collect();
            Refusal::invalid(format!("Invalid clause(s) in filter string: '{shown}'"))
        })?;
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Returns the first token, and how many bytes it takes.
fn next(rest: &str, first: char) -> Option<(Token, usize)> {
    if matches!(first, '(' | ')' | ',') {
        return Some((Token::Sign(first), 1));
    }
    if let Some(operator) = OPERATORS.into_iter().find(|operator| rest.starts_with(operator)) {
        return Some((Token::Operator(operator), operator.len()));
    }
    if first == '\'' {
        let length = quoted(rest, '\'')?;
        return Some((Token::Text(rest[1..length - 1].to_owned()), length));
    }
    if first.is_ascii_digit() || first == '-' || (first == '.' && starts_with_digit(&rest[1..])) {
        let length = number(rest)?;
        return Some((Token::Number(rest[..length].to_owned()), length));
    }
    name(rest)
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_digit())
}

/// Returns the length of a number: a sign, digits with a point, and an exponent. Its end isn't the beginning of a name.
fn number(text: &str) -> Option<usize> {
    let digits = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let mut length = usize::from(text.starts_with('-'));
    let whole = digits(length);
    length += whole;
    let mut fraction = 0;
    if text[length..].starts_with('.') {
        fraction = digits(length + 1);
        length += 1 + fraction;
    }
    if whole + fraction == 0 {
        return None;
    }
    if text[length..].starts_with(['e', 'E']) {
        let sign = usize::from(text[length + 1..].starts_with(['+', '-']));
        let exponent = digits(length + 1 + sign);
        length += if exponent > 0 { 1 + sign + exponent } else { 0 };
    }
    (!text[length..].starts_with(is_in_name)).then_some(length)
}

/// Returns the length of a text with its quotes. A doubled quote belongs to the text.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut from = 1;
    loop {
        from += text[from..].find(quote)? + 1;
        if !text[from..].starts_with(quote) {
            return Some(from);
        }
        from += 1;
    }
}

fn is_in_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// Returns the name at the beginning of the text, and its length.
fn name(text: &str) -> Option<(Token, usize)> {
    let mut length = 0;
    let mut parts: Vec<(&str, bool)> = Vec::new();
    loop {
        let rest = &text[length..];
        let first = rest.chars().next()?;
        let (part, taken) = match first {
            '`' | '"' => {
                let taken = quoted(rest, first)?;
                ((&rest[1..taken - 1], true), taken)
            }
            _ if is_in_name(first) => {
                let taken = rest.find(|letter| !is_in_name(letter)).unwrap_or(rest.len());
                ((&rest[..taken], false), taken)
            }
            _ => return None,
        };
        parts.push(part);
        length += taken;
        if !text[length..].starts_with('.') {
            break;
        }
        length += 1;
    }
    let is_quoted = parts.len() == 1 && text.starts_with('"');
    let name = match parts.as_slice() {
        [(key, _)] => Name { entity: None, key: (*key).to_owned(), is_quoted },
        [(entity, _), (key, true)] => Name { entity: Some((*entity).to_owned()), key: (*key).to_owned(), is_quoted },
        [(entity, _), ..] => {
            // A key of several parts keeps its points, and the quotes of its parts.
            let after = text[..length].find('.')? + 1;
            Name { entity: Some((*entity).to_owned()), key: text[after..length].to_owned(), is_quoted }
        }
        [] => return None,
    };
    Some((Token::Name(name), length))
}
