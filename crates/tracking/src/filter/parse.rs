//! Reads filters.

use super::lexer::{Name, Token, tokens};
use super::{Clause, Condition, Field, Kind, Operator, Vocabulary};
use crate::Refusal;

/// The most clauses of a filter: each costs a lookup for every run.
const CLAUSES_MAX: usize = 100;
/// The most texts in a list.
const LIST_MAX: usize = 10_000;

/// Reads a filter. An empty one has no clause.
///
/// # Errors
/// Says what can't be read, or what can't be compared with what.
pub fn parse(vocabulary: Vocabulary, filter: &str) -> Result<Vec<Clause>, Refusal> {
    if filter.is_empty() {
        return Ok(Vec::new());
    }
    let tokens = tokens(filter)?;
    if tokens.is_empty() {
        return Err(Refusal::invalid(format!("Invalid filter '{filter}'. Could not be parsed.")));
    }
    let mut parser = Parser { vocabulary, rest: &tokens };
    let mut clauses = Vec::new();
    while !parser.rest.is_empty() {
        if parser.takes_word("AND") {
            continue;
        }
        clauses.push(parser.clause()?);
        if clauses.len() > CLAUSES_MAX {
            return Err(Refusal::invalid(format!("the filter has more than {CLAUSES_MAX} clauses: split the search")));
        }
    }
    Ok(clauses)
}

struct Parser<'a> {
    vocabulary: Vocabulary,
    rest: &'a [Token],
}

impl Parser<'_> {
    fn clause(&mut self) -> Result<Clause, Refusal> {
        let Some(Token::Name(name)) = self.rest.first() else { return Err(self.unread()) };
        if is_word(name, "OR") || is_word(name, "NOT") {
            return Err(self.unread());
        }
        let field = self.vocabulary.field(name);
        // What isn't a comparison at all is told before what its name isn't.
        if !self.is_comparison() {
            return Err(self.unread());
        }
        self.rest = &self.rest[1..];
        let field = field?;
        let condition = self.condition(&field)?;
        Ok(Clause { field, condition })
    }

    /// Reports whether an operator follows the first token.
    fn is_comparison(&self) -> bool {
        match self.rest.get(1) {
            Some(Token::Operator(_)) => true,
            Some(Token::Name(name)) => ["LIKE", "ILIKE", "IN", "NOT", "IS"].into_iter().any(|word| is_word(name, word)),
            _ => false,
        }
    }

    fn condition(&mut self, field: &Field) -> Result<Condition, Refusal> {
        if self.takes_word("IS") {
            let is_not = self.takes_word("NOT");
            if !self.takes_word("NULL") {
                return Err(self.unread());
            }
            return self.null(field, is_not);
        }
        let is_not = self.takes_word("NOT");
        if self.takes_word("IN") {
            let list = self.list(field)?;
            return Ok(if is_not { Condition::NotIn(list) } else { Condition::In(list) });
        }
        let sign = match self.rest.first() {
            _ if is_not => return Err(self.unread()),
            Some(Token::Operator(sign)) => (*sign).to_owned(),
            Some(Token::Name(name)) => name.key.to_uppercase(),
            _ => return Err(self.unread()),
        };
        self.rest = &self.rest[1..];
        self.comparison(field, &sign)
    }

    fn null(&self, field: &Field, is_not: bool) -> Result<Condition, Refusal> {
        if !matches!(field.kind, Kind::Tag | Kind::Param) {
            let Field { kind, key } = field;
            let message = "IS NULL / IS NOT NULL is only supported for tags and params";
            return Err(Refusal::invalid(format!("{message}, not for {} '{key}'", kind.name())));
        }
        Ok(if is_not { Condition::IsNotNull } else { Condition::IsNull })
    }

    fn comparison(&mut self, field: &Field, sign: &str) -> Result<Condition, Refusal> {
        let is_number = self.vocabulary.is_number(field);
        let value = self.rest.first().cloned();
        let Some(value) = value else {
            return Err(Refusal::invalid(format!("Invalid clause(s) in filter string: '{}' has no value", field.key)));
        };
        self.rest = &self.rest[1..];
        let kind = field.kind.name();
        let operator = || {
            Operator::of(sign, is_number)
                .ok_or_else(|| Refusal::invalid(format!("Invalid comparator '{sign}' for {kind} '{}'", field.key)))
        };
        match value {
            Token::Number(number) if is_number => {
                let value = number.parse().map_err(|_| Refusal::invalid(format!("'{number}' is no number")))?;
                Ok(Condition::Number(operator()?, value))
            }
            Token::Text(text) if !is_number => Ok(Condition::Text(operator()?, text)),
            Token::Name(Name { key, is_quoted: true, .. }) if !is_number => Ok(Condition::Text(operator()?, key)),
            found => {
                let expected = if is_number { "numeric value" } else { "quoted string value (e.g. 'my-value')" };
                let message = format!("Expected {expected} for {kind} '{}'. Found {}", field.key, shown(&found));
                Err(Refusal::invalid(message))
            }
        }
    }

    /// Reads a list of texts in parentheses.
    fn list(&mut self, field: &Field) -> Result<Vec<String>, Refusal> {
        if !self.vocabulary.takes_list(field) {
            return Err(Refusal::invalid(format!(
                "'{}' doesn't support comparison with a list of quoted string values",
                field.key
            )));
        }
        if !self.takes(&Token::Sign('(')) {
            return Err(self.unread());
        }
        let mut list = Vec::new();
        while !self.takes(&Token::Sign(')')) {
            let text = match self.rest.first() {
                Some(Token::Text(text)) => text.clone(),
                Some(Token::Name(Name { key, is_quoted: true, .. })) => key.clone(),
                _ => {
                    let message =
                        "While parsing a list in the query, expected string value, punctuation, or whitespace";
                    return Err(Refusal::invalid(format!(
                        "{message}, but got {}",
                        self.rest.first().map_or_else(String::new, shown)
                    )));
                }
            };
            self.rest = &self.rest[1..];
            list.push(text);
            if !self.takes(&Token::Sign(',')) && self.rest.first() != Some(&Token::Sign(')')) {
                return Err(self.unread());
            }
        }
        match list.len() {
            0 => Err(Refusal::invalid(
                "While parsing a list in the query, expected a non-empty list of string values, but got empty list",
            )),
            length if length > LIST_MAX => {
                Err(Refusal::invalid(format!("a list in the filter has more than {LIST_MAX} texts: split the search")))
            }
            _ => Ok(list),
        }
    }

    fn takes(&mut self, token: &Token) -> bool {
        let is_next = self.rest.first() == Some(token);
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    fn takes_word(&mut self, word: &str) -> bool {
        let is_next = matches!(self.rest.first(), Some(Token::Name(name)) if is_word(name, word));
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    /// Says that the rest can't be read.
    fn unread(&self) -> Refusal {
        let rest: Vec<String> = self.rest.iter().take(4).map(shown).collect();
        match rest.as_slice() {
            [] => Refusal::invalid("Invalid clause(s) in filter string: its end is missing"),
            rest => Refusal::invalid(format!("Invalid clause(s) in filter string: '{}'", rest.join(" "))),
        }
    }
}

fn is_word(name: &Name, word: &str) -> bool {
    name.entity.is_none() && !name.is_quoted && name.key.eq_ignore_ascii_case(word)
}

fn shown(token: &Token) -> String {
    match token {
        Token::Name(Name { entity: Some(entity), key, .. }) => format!("{entity}.{key}"),
        Token::Name(Name { key, .. }) => key.clone(),
        Token::Text(text) => format!("'{text}'"),
        Token::Number(number) => number.clone(),
        Token::Operator(operator) => (*operator).to_owned(),
        Token::Sign(sign) => sign.to_string(),
    }
}

#[cfg(test)]
#[path = "parse_tests.rs"]
mod tests;
