//! The rules: data in rules/*.toml, one file for each category, read once.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;
use serde::Deserialize;

use crate::literal::required_words;
use gangline_base::FaultCategory as Category;

/// The rule files that ship with this crate.
const FILES: [(&str, &str); 12] = [
    ("hardware.toml", include_str!("../rules/hardware.toml")),
    ("cuda_oom.toml", include_str!("../rules/cuda_oom.toml")),
    ("host_oom.toml", include_str!("../rules/host_oom.toml")),
    ("nccl_network.toml", include_str!("../rules/nccl_network.toml")),
    ("data_pipeline.toml", include_str!("../rules/data_pipeline.toml")),
    ("numerical.toml", include_str!("../rules/numerical.toml")),
    ("storage.toml", include_str!("../rules/storage.toml")),
    ("user_code.toml", include_str!("../rules/user_code.toml")),
    ("preemption.toml", include_str!("../rules/preemption.toml")),
    ("scheduler_infra.toml", include_str!("../rules/scheduler_infra.toml")),
    ("unknown.toml", include_str!("../rules/unknown.toml")),
    // Last, so that any other rule for the same line comes first.
    ("python.toml", include_str!("../rules/python.toml")),
];
const RUN: (&str, &str) = ("run.toml", include_str!("../rules/run.toml"));

/// The first line of a Python traceback.
pub(crate) const TRACEBACK: &str = "traceback (most recent call last)";

/// Maximum size of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 4 << 20;

/// The reason rules can't be used. The built-in rules are tested, so only an edited file causes one.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// A file isn't TOML of the form that docs/reference/diagnosis.md describes.
    #[error("read {file}: {message}")]
    File {
        /// Name of the file.
        file: String,
        /// The error and its position.
        message: String,
    },
    /// A pattern is invalid.
    #[error("use the pattern {pattern:?}: {message}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The error.
        message: String,
    },
    /// A rule is incomplete or a duplicate.
    #[error("use the rule {id}: {message}")]
    Rule {
        /// Id of the rule.
        id: String,
        /// The error.
        message: String,
    },
}

/// The weight of a matching line. The order decides: a proof beats an earlier cause, a cause beats an earlier
/// likely one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Strength {
    /// Accompanies failures of every kind; decides nothing alone.
    Trace,
    /// Raises a suspicion only: the verdict stays unknown, and names it as an alternative.
    Hint,
    /// Points to a cause, but is often a consequence.
    Sign,
    /// Usually the cause.
    Likely,
    /// Names the cause.
    Cause,
    /// A physical fact, reported by the affected component.
    Proof,
}

impl Strength {
    pub(crate) fn weaker(self) -> Strength {
        match self {
            Strength::Proof => Strength::Cause,
            Strength::Cause => Strength::Likely,
            Strength::Likely => Strength::Sign,
            Strength::Sign | Strength::Hint | Strength::Trace => Strength::Trace,
        }
    }

    /// Returns how often such a line alone is right on the corpus in tests/; see docs/reference/diagnosis.md.
    pub(crate) fn confidence(self) -> f64 {
        match self {
            Strength::Proof => 0.95,
            Strength::Cause => 0.88,
            Strength::Likely => 0.72,
            Strength::Sign => 0.58,
            Strength::Hint => 0.4,
            Strength::Trace => 0.3,
        }
    }
}

/// Whose code raised an exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Raised {
    /// The program's own code.
    Own,
    /// A library's, or unknown code.
    Library,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    category: Category,
    #[serde(default)]
    subcategory: BTreeMap<String, Subcategory>,
    rule: Vec<Rule>,
}

/// Summary of a cause, and advice.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subcategory {
    pub(crate) summary: String,
    pub(crate) advice: String,
}

/// A rule: patterns of lines with the same meaning.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) id: String,
    #[serde(skip)]
    pub(crate) category: Option<Category>,
    pub(crate) subcategory: String,
    pub(crate) strength: Strength,
    /// Alternative patterns, case-insensitive; groups named rank and node tell which one is at fault.
    pub(crate) patterns: Vec<String>,
    /// The line must not match this.
    pub(crate) unless: Option<String>,
    /// A line nearby must match this.
    pub(crate) near: Option<String>,
    /// Only the last line of a traceback, which names the exception, can match.
    #[serde(default)]
    pub(crate) traceback: bool,
    /// The traceback must have a frame that matches this.
    pub(crate) frames: Option<String>,
    /// The traceback must not have a frame that matches this.
    pub(crate) unless_frames: Option<String>,
    /// The exception must be raised in such code.
    pub(crate) raised: Option<Raised>,
    /// Often a consequence of a fault elsewhere: equally strong lines of other rules come first.
    #[serde(default)]
    pub(crate) effect: bool,
    /// Tells only that another process went away: how that one ended is more informative.
    #[serde(default)]
    pub(crate) peer: bool,
    /// Tells how the first process to end ended.
    #[serde(default)]
    pub(crate) first: bool,
    /// The logger's level is ignored: such lines are notes by nature.
    #[serde(default)]
    pub(crate) any_level: bool,
    /// Valid even if the run continued for a while.
    #[serde(default)]
    pub(crate) sticky: bool,
    /// The source that documents the message's form.
    pub(crate) source: String,
}

/// Patterns of lines about a run's progress rather than a fault.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunPatterns {
    /// A finished step.
    pub(crate) progress: String,
    /// Exceptions to `progress`.
    pub(crate) not_progress: String,
    /// A restart of the run.
    pub(crate) restart: String,
    /// Success of the run.
    pub(crate) success: String,
    /// A fault that was handled.
    pub(crate) handled: String,
    /// Irrelevant lines, whatever their words.
    pub(crate) noise: String,
    /// A logger's warning.
    pub(crate) warning: String,
    /// Exceptions to `warning`.
    pub(crate) not_warning: String,
    /// A logger's note.
    pub(crate) note: String,
    /// The exception line that ends a traceback.
    pub(crate) exception: String,
    /// A frame in a library.
    pub(crate) library: String,
}

/// A pattern: the rule's index, and the pattern's index within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) rule: usize,
    pub(crate) pattern: usize,
}

/// The compiled rules. Building them takes longer than using them, so build them once.
#[derive(Debug)]
pub struct Rules {
    pub(crate) rules: Vec<Rule>,
    pub(crate) subcategories: BTreeMap<(Category, String), Subcategory>,
    pub(crate) run: RunPatterns,
    pub(crate) cleaner: crate::line::Cleaner,
    pub(crate) words: AhoCorasick,
    /// For each word, the patterns that need it; empty for the word that opens a traceback.
    pub(crate) patterns_of_word: Vec<Vec<Place>>,
}

impl Rules {
    /// Builds the built-in rules.
    ///
    /// # Errors
    /// If one of their files was edited and is invalid.
    pub fn new() -> Result<Rules, RuleError> {
        let (mut rules, mut subcategories) = (Vec::new(), BTreeMap::new());
        for (name, text) in FILES {
            let file: RuleFile = read(name, text)?;
            rules.extend(file.rule.into_iter().map(|rule| Rule { category: Some(file.category), ..rule }));
            let named = file.subcategory.into_iter();
            subcategories.extend(named.map(|(name, subcategory)| ((file.category, name), subcategory)));
        }
        let mut places: BTreeMap<String, Vec<Place>> = BTreeMap::from([(TRACEBACK.to_owned(), Vec::new())]);
        for (place, word) in words(&rules)? {
            places.entry(word).or_default().push(place);
        }
        let (words, patterns_of_word): (Vec<String>, Vec<Vec<Place>>) = places.into_iter().unzip();
        // Half as fast in a search as a DFA, but built in a quarter of the time; usually there is only one
        // log to search.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let words = AhoCorasick::builder().ascii_case_insensitive(true).kind(kind).build(&words);
        let words = words.map_err(|error| pattern_error("the words of all rules", &error))?;
        let cleaner = crate::line::Cleaner::new()?;
        Ok(Rules { rules, subcategories, run: read(RUN.0, RUN.1)?, cleaner, words, patterns_of_word })
    }

    /// Returns the number of rules.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Reports whether there are no rules; never true for the built-in ones.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

fn read<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, RuleError> {
    toml::from_str(text).map_err(|error| RuleError::File { file: name.to_owned(), message: error.to_string() })
}

/// Returns the words to search for of all patterns for lines.
fn words(rules: &[Rule]) -> Result<Vec<(Place, String)>, RuleError> {
    let mut words = Vec::new();
    let message = "write it so that a match needs a word of three letters or more";
    for (index, rule) in rules.iter().enumerate().filter(|(_, rule)| !rule.traceback) {
        for (number, pattern) in rule.patterns.iter().enumerate() {
            let place = Place { rule: index, pattern: number };
            let needed = required_words(pattern).ok_or_else(|| pattern_error(pattern, &message))?;
            words.extend(needed.into_iter().map(|word| (place, word)));
        }
    }
    Ok(words)
}

/// Compiles a pattern the same way for all: bytes, case-insensitive, no Unicode classes.
pub(crate) fn compile(pattern: &str) -> Result<Regex, RuleError> {
    // No prefilter: building it takes most of the compile time, and a pattern is matched against few lines.
    let config = Config::new().utf8_empty(false).auto_prefilter(false).nfa_size_limit(Some(PATTERN_BYTES_MAX));
    let syntax = syntax::Config::new().unicode(false).utf8(false).case_insensitive(true);
    let regex = Regex::builder().configure(config).syntax(syntax).build(pattern);
    regex.map_err(|error| pattern_error(pattern, &error))
}

fn pattern_error(pattern: &str, message: &dyn std::fmt::Display) -> RuleError {
    RuleError::Pattern { pattern: pattern.to_owned(), message: message.to_string() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_compiles_is_named_once_and_says_its_source_and_advice() {
        let rules = Rules::new().unwrap();
        let mut ids = BTreeSet::new();
        for rule in &rules.rules {
            let id = &rule.id;
            assert!(ids.insert(id.clone()), "{id} is there twice");
            let patterns = rule.patterns.iter().chain(&rule.unless).chain(&rule.near);
            let patterns = patterns.chain(&rule.frames).chain(&rule.unless_frames);
            patterns.for_each(|pattern| drop(compile(pattern).unwrap()));
            assert!(!rule.patterns.is_empty(), "{id} has no pattern");
            assert!(rule.source.len() > 10, "{id} has no source");
            let key = (rule.category.unwrap(), rule.subcategory.clone());
            assert!(rules.subcategories.contains_key(&key), "{id}: no subcategory {}", rule.subcategory);
        }
        for ((category, name), subcategory) in &rules.subcategories {
            assert!(!subcategory.summary.is_empty() && !subcategory.advice.is_empty(), "{category} {name}");
            let is_used = rules.rules.iter().any(|rule| rule.category == Some(*category) && rule.subcategory == *name);
            assert!(
                is_used || name == "no_failure" || name == "no_evidence" || name == "unclear",
                "{category} {name} has no rule"
            );
        }
        let run = &rules.run;
        let lines = [&run.progress, &run.not_progress, &run.restart, &run.success, &run.handled];
        let levels = [&run.noise, &run.warning, &run.not_warning, &run.note];
        let python = [&run.exception, &run.library];
        lines.into_iter().chain(levels).chain(python).for_each(|pattern| drop(compile(pattern).unwrap()));
    }

    #[test]
    fn a_pattern_without_a_word_is_refused() {
        let text = "id = 'x'\nsubcategory = 'y'\nstrength = 'proof'\npatterns = ['\\d+']\nsource = 'a test'";
        let rule: Rule = toml::from_str(text).unwrap();
        assert!(words(&[rule]).unwrap_err().to_string().contains("needs a word"));
    }
}
