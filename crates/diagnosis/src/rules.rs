//! The rules: data in rules/*.toml, one file a category, read once.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex_automata::meta::{Config, Regex};
use regex_automata::util::syntax;
use serde::Deserialize;

use crate::literal::required_words;
use gangline_base::FaultCategory as Category;

/// The files of rules that ship with this crate.
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
    // Last, so that of rules for one line any other comes first.
    ("python.toml", include_str!("../rules/python.toml")),
];
const COURSE: (&str, &str) = ("course.toml", include_str!("../rules/course.toml"));

/// What opens a Python traceback.
pub(crate) const TRACEBACK: &str = "traceback (most recent call last)";

/// A compiled pattern takes at most so much, or is refused.
const PATTERN_BYTES_MAX: usize = 4 << 20;

/// Why rules can't be used. Those that ship are tested, so only an edited file meets this.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// A file isn't TOML of the form that docs/diagnosis.md gives.
    #[error("read {file}: {message}")]
    File {
        /// Which.
        file: String,
        /// What is wrong and where.
        message: String,
    },
    /// A pattern can't be used.
    #[error("use the pattern {pattern:?}: {message}")]
    Pattern {
        /// Which.
        pattern: String,
        /// What is wrong.
        message: String,
    },
    /// A rule is incomplete or there twice.
    #[error("use the rule {id}: {message}")]
    Rule {
        /// Which.
        id: String,
        /// What is wrong.
        message: String,
    },
}

/// How much a matching line says. The order decides: a proof beats an earlier cause, a cause beats an earlier likely one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Strength {
    /// Goes with failures of every kind; alone it decides nothing.
    Trace,
    /// Makes one suspect it, no more: the verdict is unknown, and names it as an alternative.
    Hint,
    /// Points somewhere, but is often a consequence.
    Sign,
    /// Usually the cause.
    Likely,
    /// Names the cause.
    Cause,
    /// A physical fact, said by what it happened to.
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

    /// How often such a line alone is right, on the corpus in tests/; see docs/diagnosis.md.
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

/// In whose code an exception was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Raised {
    /// The program's own.
    Own,
    /// That of a library, or nobody knows.
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

/// What a cause means, and what to do.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subcategory {
    pub(crate) summary: String,
    pub(crate) advice: String,
}

/// A rule: lines that say one thing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    pub(crate) id: String,
    #[serde(skip)]
    pub(crate) category: Option<Category>,
    pub(crate) subcategory: String,
    pub(crate) strength: Strength,
    /// Any of these in a line, whatever the case; groups named rank and node say whom it blames.
    pub(crate) patterns: Vec<String>,
    /// Not when this is in the line too.
    pub(crate) unless: Option<String>,
    /// Only when this is in one of the lines around it.
    pub(crate) near: Option<String>,
    /// Only for the last line of a traceback, which says the exception.
    #[serde(default)]
    pub(crate) traceback: bool,
    /// Only for a traceback that went through such a place.
    pub(crate) frames: Option<String>,
    /// Not for a traceback that went through such a place.
    pub(crate) unless_frames: Option<String>,
    /// Only for an exception raised there.
    pub(crate) raised: Option<Raised>,
    /// Often follows from a fault elsewhere: equals come first.
    #[serde(default)]
    pub(crate) effect: bool,
    /// Says only that another process went away: how that one ended says more.
    #[serde(default)]
    pub(crate) peer: bool,
    /// Says how the process ended that ended first.
    #[serde(default)]
    pub(crate) first: bool,
    /// A logger's level doesn't matter: such lines are notes by nature.
    #[serde(default)]
    pub(crate) any_level: bool,
    /// True even if the run went on for a while.
    #[serde(default)]
    pub(crate) sticky: bool,
    /// Where the form of the message is from.
    pub(crate) source: String,
}

/// What lines say of a run's course, rather than of a fault.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Course {
    /// A step was done.
    pub(crate) progress: String,
    /// And these make it none.
    pub(crate) not_progress: String,
    /// The run began anew.
    pub(crate) restart: String,
    /// The run ended well.
    pub(crate) success: String,
    /// The line's fault was dealt with.
    pub(crate) handled: String,
    /// The line says nothing, whatever its words.
    pub(crate) noise: String,
    /// The line is a logger's warning.
    pub(crate) warning: String,
    /// And these aren't, though they say so.
    pub(crate) not_warning: String,
    /// The line is a logger's note.
    pub(crate) note: String,
    /// The line is an exception, as it ends a traceback.
    pub(crate) exception: String,
    /// The traceback's place is in a library.
    pub(crate) library: String,
}

/// A pattern: the rule's place among the rules, the pattern's among its patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) rule: usize,
    pub(crate) pattern: usize,
}

/// The rules, ready to be asked. Making them takes longer than asking them: make them once.
#[derive(Debug)]
pub struct Rules {
    pub(crate) rules: Vec<Rule>,
    pub(crate) subcategories: BTreeMap<(Category, String), Subcategory>,
    pub(crate) course: Course,
    pub(crate) cleaner: crate::line::Cleaner,
    pub(crate) words: AhoCorasick,
    /// For each word, the patterns that need it; none for the word that opens a traceback.
    pub(crate) patterns_of_word: Vec<Vec<Place>>,
}

impl Rules {
    /// The rules that ship.
    ///
    /// # Errors
    /// When one of their files was edited and isn't right.
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
        // Half as fast to search with as a DFA, and made in a quarter of the time: mostly there is one log to search.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let words = AhoCorasick::builder().ascii_case_insensitive(true).kind(kind).build(&words);
        let words = words.map_err(|error| pattern_error("the words of all rules", &error))?;
        let cleaner = crate::line::Cleaner::new()?;
        Ok(Rules { rules, subcategories, course: read(COURSE.0, COURSE.1)?, cleaner, words, patterns_of_word })
    }

    /// How many rules there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Never, with the rules that ship.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

fn read<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, RuleError> {
    toml::from_str(text).map_err(|error| RuleError::File { file: name.to_owned(), message: error.to_string() })
}

/// The words of all patterns that are looked for in lines.
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

/// A pattern as all are: bytes, any case, no Unicode classes.
pub(crate) fn compile(pattern: &str) -> Result<Regex, RuleError> {
    // No prefilter: it takes most of the time that making a pattern takes, and a pattern meets few lines.
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
        let course = &rules.course;
        let lines = [&course.progress, &course.not_progress, &course.restart, &course.success, &course.handled];
        let levels = [&course.noise, &course.warning, &course.not_warning, &course.note];
        let python = [&course.exception, &course.library];
        lines.into_iter().chain(levels).chain(python).for_each(|pattern| drop(compile(pattern).unwrap()));
    }

    #[test]
    fn a_pattern_without_a_word_is_refused() {
        let text = "id = 'x'\nsubcategory = 'y'\nstrength = 'proof'\npatterns = ['\\d+']\nsource = 'a test'";
        let rule: Rule = toml::from_str(text).unwrap();
        assert!(words(&[rule]).unwrap_err().to_string().contains("needs a word"));
    }
}
