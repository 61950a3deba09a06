//! Derives the words that a line must contain for a pattern to match it. A single search for all such words
//! skips thousands of lines; only lines with one of them are matched against patterns.

use regex_syntax::ast::parse::Parser;
use regex_syntax::ast::{Ast, RepetitionKind};

/// Minimum length of a useful word; shorter ones are in too many lines.
const WORD_BYTES_MIN: usize = 3;
/// Maximum length of a searched word. The beginning of a longer word finds the same lines and few others, and
/// the search is built much faster.
const WORD_BYTES_MAX: usize = 10;
/// Words in the lines of a healthy run.
const COMMON: [&str; 8] = ["loss", "lm_loss", "grad", "ppl", "step", "error", "model", "train"];
/// Maximum number of alternatives of a pattern; one with more must be split.
const WORDS_MAX: usize = 32;

/// Returns words of which every matching line contains at least one, in any case; none if the pattern needs
/// no such word.
pub(crate) fn required_words(pattern: &str) -> Option<Vec<String>> {
    // Parsing the pattern's syntax is enough, and takes half as long as translating it. Half of the patterns
    // are mere words.
    let is_word = !pattern.contains(regex_syntax::is_meta_character);
    let words = if is_word { vec![pattern.to_owned()] } else { words_of(&Parser::new().parse(pattern).ok()?)? };
    let words = words.into_iter().map(|word| word.chars().take(WORD_BYTES_MAX).collect::<String>());
    let words: Vec<String> = words.map(|word| word.to_ascii_lowercase()).collect();
    words.iter().all(|word| word.len() >= WORD_BYTES_MIN).then_some(words)
}

fn words_of(ast: &Ast) -> Option<Vec<String>> {
    match ast {
        Ast::Literal(literal) => Some(vec![literal.c.to_string()]),
        Ast::Group(group) => words_of(&group.ast),
        Ast::Repetition(repetition) if repetition.op.kind == RepetitionKind::OneOrMore => words_of(&repetition.ast),
        Ast::Concat(concat) => {
            let same = |a: &Ast, b: &Ast| matches!((a, b), (Ast::Literal(_), Ast::Literal(_)));
            concat.asts.chunk_by(same).filter_map(words_of_run).max_by_key(|words| worth(words))
        }
        Ast::Alternation(ways) => {
            let words: Option<Vec<Vec<String>>> = ways.asts.iter().map(words_of).collect();
            words.map(|words| words.concat()).filter(|words| words.len() <= WORDS_MAX)
        }
        _ => None,
    }
}

/// Returns the words of adjacent letters, or of one part of any other kind.
fn words_of_run(run: &[Ast]) -> Option<Vec<String>> {
    let letter = |ast: &Ast| if let Ast::Literal(literal) = ast { Some(literal.c) } else { None };
    let letters: Option<String> = run.iter().map(letter).collect();
    letters.map_or_else(|| words_of(run.first()?), |letters| Some(vec![letters]))
}

/// Ranks words: by the length of the shortest, then by their number, fewer first. A word of every training
/// log is worth the least.
fn worth(words: &[String]) -> (usize, usize) {
    let length = |word: &String| if COMMON.contains(&word.trim()) { WORD_BYTES_MIN } else { word.len() };
    let shortest = words.iter().map(length).min().unwrap_or(0);
    (shortest.min(WORD_BYTES_MAX), WORDS_MAX.saturating_sub(words.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, expected: &[&str]) {
        assert_eq!(required_words(pattern).unwrap_or_default(), expected, "{pattern}");
    }

    #[test]
    fn the_longest_word_that_a_match_needs_is_found() {
        check("CUDA error: out of memory", &["cuda error"]);
        check(r"^Xid \(PCI:[^)]*\): 79\b", &["xid (pci:"]);
        check("(?:ENOSPC|No space left)", &["enospc", "no space l"]);
        check("loss (?:is|=) nan", &[" nan"]);
    }

    #[test]
    fn a_pattern_without_such_a_word_has_none() {
        check(r"\d+", &[]);
        check("(?:ab|[0-9]+)", &[]);
        check("a", &[]);
    }
}
