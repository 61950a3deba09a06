//! Which ranks and which lines of a log are printed.

use std::str::FromStr;

use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;

use crate::failure::Failure;

/// The most logs that are read side by side.
const RANKS_MAX: usize = 256;
/// The largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 4 << 20;

/// Ranks as the command line names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ranks {
    /// All of the job.
    All,
    /// These, in order, each once.
    These(Vec<u32>),
}

impl Ranks {
    /// Returns the ranks of a job with `count` ranks; `count` is asked for only if all are wanted.
    ///
    /// # Errors
    /// Too many to be read side by side.
    pub(super) fn of(&self, count: impl FnOnce() -> Result<u32, Failure>) -> Result<Vec<u32>, Failure> {
        let ranks = match self {
            Ranks::All => (0..count()?).collect(),
            Ranks::These(ranks) => ranks.clone(),
        };
        if ranks.len() > RANKS_MAX {
            let message = format!("{} logs are too many to read side by side: {RANKS_MAX} at most", ranks.len());
            return Err(Failure::local(message, "name some, as in --rank 0-63"));
        }
        Ok(ranks)
    }
}

impl FromStr for Ranks {
    type Err = String;

    fn from_str(text: &str) -> Result<Ranks, String> {
        if text == "all" {
            return Ok(Ranks::All);
        }
        let wrong = || format!("\"{text}\" names no ranks: write 3, or 0,4-7, or all");
        let mut ranks = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) =
                (first.trim().parse().map_err(|_| wrong())?, last.trim().parse().map_err(|_| wrong())?);
            if first > last {
                return Err(wrong());
            }
            // One more than is allowed is enough to be refused.
            ranks.extend((first..=last).take(RANKS_MAX + 1));
        }
        ranks.sort_unstable();
        ranks.dedup();
        Ok(Ranks::These(ranks))
    }
}

/// A regular expression that is looked for in what a line says, without its time.
#[derive(Clone, Debug)]
pub(super) struct Pattern(Regex);

impl Pattern {
    pub(super) fn is_in(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        // Without Unicode's tables a character beyond ASCII is its bytes, which are found all the same.
        let built = Regex::builder()
            .syntax(syntax::Config::new().unicode(false).utf8(false))
            .configure(Config::new().utf8_empty(false).nfa_size_limit(Some(PATTERN_BYTES_MAX)))
            .build(text);
        built.map(Pattern).map_err(|error| {
            let cause = error.syntax_error().map_or_else(|| error.to_string(), ToString::to_string);
            format!("it is no regular expression: {cause}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_numbers_ranges_or_all() {
        let parsed = |text: &str| text.parse::<Ranks>();
        assert_eq!(parsed("0"), Ok(Ranks::These(vec![0])));
        assert_eq!(parsed("4-6,0,5"), Ok(Ranks::These(vec![0, 4, 5, 6])));
        assert_eq!(parsed("all"), Ok(Ranks::All));
        for wrong in ["", "two", "3-1", "-1", "1-"] {
            assert!(parsed(wrong).is_err_and(|said| said.contains("0,4-7")), "{wrong}");
        }
    }

    #[test]
    fn too_many_logs_are_not_read_side_by_side() {
        let many: Result<Ranks, String> = "0-4000000000".parse();
        let refused = many.map(|many| many.of(|| Ok(0)));
        assert!(refused.is_ok_and(|refused| refused.is_err_and(|failure| format!("{failure:?}").contains("256"))));
        assert!(Ranks::All.of(|| Ok(257)).is_err());
        assert!(Ranks::All.of(|| Ok(2)).is_ok_and(|ranks| ranks == [0, 1]));
    }

    #[test]
    fn a_pattern_is_found_anywhere_in_a_line_and_a_wrong_one_is_refused() {
        let found = |pattern: &str, text: &str| pattern.parse::<Pattern>().map(|pattern| pattern.is_in(text));
        assert_eq!(found(r"loss \d+\.\d", "step 3 loss 2.31"), Ok(true));
        assert_eq!(found("^loss", "step 3 loss 2.31"), Ok(false));
        assert_eq!(found("(?i)ERROR", "an error"), Ok(true));
        assert_eq!(found("größer", "ist größer als"), Ok(true));
        assert!(found("loss (", "").is_err_and(|said| said.contains("no regular expression")));
    }
}
