//! Which words a line must contain for a pattern to match it. Thousands of lines are passed over by one search for all such
//! words; only lines that contain one meet a pattern.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Hir, HirKind};

/// Shorter words than this are in too many lines to be of use.
const WORD_BYTES_MIN: usize = 3;
/// Words that stand in the lines of a run that goes well.
const COMMON: [&str; 8] = ["loss", "lm_loss", "grad", "ppl", "step", "error", "model", "train"];
/// Alternatives of a pattern at most; one with more is to be split.
const WORDS_MAX: usize = 32;

/// Words of which every matching line contains at least one, whatever their case; none if the pattern needs no such word.
pub(crate) fn required_words(pattern: &str) -> Option<Vec<String>> {
    // Without case folding, which would take letters apart into classes; the search for words ignores case itself.
    let hir = ParserBuilder::new().utf8(false).unicode(false).build().parse(pattern).ok()?;
    let words = words_of(&hir)?;
    words.iter().all(|word| word.len() >= WORD_BYTES_MIN).then_some(words)
}

fn words_of(hir: &Hir) -> Option<Vec<String>> {
    match hir.kind() {
        HirKind::Literal(literal) => Some(vec![String::from_utf8_lossy(&literal.0).to_ascii_lowercase()]),
        HirKind::Capture(capture) => words_of(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => words_of(&repetition.sub),
        HirKind::Concat(parts) => parts.iter().filter_map(words_of).max_by_key(|words| worth(words)),
        HirKind::Alternation(ways) => {
            let words: Option<Vec<Vec<String>>> = ways.iter().map(words_of).collect();
            words.map(|words| words.concat()).filter(|words| words.len() <= WORDS_MAX)
        }
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) | HirKind::Repetition(_) => None,
    }
}

/// Words are worth as much as the shortest of them; of equals, the fewer. A word of every training log is worth the least.
fn worth(words: &[String]) -> (usize, usize) {
    let length = |word: &String| if COMMON.contains(&word.trim()) { WORD_BYTES_MIN } else { word.len() };
    let shortest = words.iter().map(length).min().unwrap_or(0);
    (shortest.min(12), WORDS_MAX.saturating_sub(words.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, expected: &[&str]) {
        assert_eq!(required_words(pattern).unwrap_or_default(), expected, "{pattern}");
    }

    #[test]
    fn the_longest_word_that_a_match_needs_is_found() {
        check("CUDA error: out of memory", &["cuda error: out of memory"]);
        check(r"^Xid \(PCI:[^)]*\): 79\b", &["xid (pci:"]);
        check("(?:ENOSPC|No space left)", &["enospc", "no space left"]);
        check("loss (?:is|=) nan", &[" nan"]);
    }

    #[test]
    fn a_pattern_without_such_a_word_has_none() {
        check(r"\d+", &[]);
        check("(?:ab|[0-9]+)", &[]);
        check("a", &[]);
    }
}
