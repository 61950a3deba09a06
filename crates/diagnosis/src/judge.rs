//! Derives a verdict from findings: the strongest line decides, the first among equals; consequences of it
//! don't count.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use gangline_base::FaultCategory as Category;

use crate::elastic;
use crate::evidence::Evidence;
use crate::rules::{RuleError, Rules, Strength, Subcategory};
use crate::scan::{Finding, Matcher, scan};
use crate::source::{Source, sources};
use crate::verdict::{Alternative, Certainty, Quote, Verdict};

/// Maximum number of lines that a verdict quotes.
const QUOTES_MAX: usize = 5;
/// Maximum number of alternatives in a verdict.
const ALTERNATIVES_MAX: usize = 3;
/// Maximum length of a quoted line in bytes.
const QUOTE_BYTES_MAX: usize = 400;
/// Factor on the confidence if an equally strong line names another cause.
const DOUBT: f64 = 0.9;
/// Factor on the remaining doubt if a second rule names the same cause.
const SUPPORT: f64 = 0.7;
/// Maximum confidence of a consequence that follows an unexplained exception.
const SHADOWED_MAX: f64 = 0.45;
/// Below this confidence, the verdict is `unknown`.
const CONFIDENCE_MIN: f64 = 0.5;

impl Rules {
    /// Diagnoses why the run failed. The result doesn't depend on the order of the evidence's parts.
    #[must_use]
    pub fn classify(&self, evidence: &Evidence<'_>) -> Verdict {
        let sources = sources(evidence);
        let mut matcher = Matcher::new(self);
        let found = sources.iter().enumerate().flat_map(|(index, source)| scan(&mut matcher, index, source));
        let found: Vec<Finding> = found.collect();
        Judge { rules: self, sources: &sources, found }.verdict()
    }
}

/// Makes the rules and calls [`Rules::classify`], for callers with a single question.
///
/// # Errors
/// If a built-in rule file was edited and is invalid.
pub fn classify(evidence: &Evidence<'_>) -> Result<Verdict, RuleError> {
    Ok(Rules::new()?.classify(evidence))
}

struct Judge<'a> {
    rules: &'a Rules,
    sources: &'a [Source<'a>],
    found: Vec<Finding>,
}

impl Judge<'_> {
    fn verdict(&self) -> Verdict {
        let live = self.live();
        let Some(best) = live.first() else { return self.nothing() };
        let category = self.category(best);
        let is_rival = |other: &Finding| {
            let is_elsewhere = (other.source, other.offset) != (best.source, best.offset);
            let is_effect = self.rules.rules[other.rule].effect;
            is_elsewhere && !is_effect && other.strength == best.strength && self.category(other) != category
        };
        let friends: BTreeSet<usize> =
            live.iter().filter(|other| self.category(other) == category).map(|other| other.rule).collect();
        let mut confidence = best.strength.confidence();
        confidence = if live.iter().any(is_rival) { confidence * DOUBT } else { confidence };
        // A suspicion stays one, however many lines support it.
        confidence = if friends.len() > 1 && best.strength > Strength::Hint {
            1.0 - (1.0 - confidence) * SUPPORT
        } else {
            confidence
        };
        confidence = if self.is_shadowed(best, &live) { confidence.min(SHADOWED_MAX) } else { confidence };
        let rule = &self.rules.rules[best.rule];
        let (category, subcategory) = match category {
            Category::Unknown => (Category::Unknown, rule.subcategory.as_str()),
            _ if confidence < CONFIDENCE_MIN => (Category::Unknown, "unclear"),
            known => (known, rule.subcategory.as_str()),
        };
        let confidence = if category == Category::Unknown { confidence.min(0.4) } else { confidence };
        let confidence = (confidence * 100.0).round() / 100.0;
        let words = self.words(category, subcategory);
        Verdict {
            category,
            subcategory: subcategory.to_owned(),
            confidence,
            certainty: Certainty::of(confidence),
            summary: words.map_or_else(String::new, |words| words.summary.clone()),
            evidence: self.quotes(&live),
            rank: best.rank.or_else(|| self.first_rank(best)),
            node: best.node.clone().or_else(|| self.node_of(best.rank)),
            advice: words.map_or_else(String::new, |words| words.advice.clone()),
            rule: Some(rule.id.clone()),
            is_consequence: rule.effect,
            source: Some(rule.source.clone()),
            alternatives: self.alternatives(category, &live),
        }
    }

    /// Returns the findings that count: not survived, and of the last attempt if it has any; the decisive one
    /// first.
    fn live(&self) -> Vec<Finding> {
        let counts = |finding: &&Finding| !finding.is_survived;
        let all: Vec<Finding> = self.found.iter().filter(counts).cloned().collect();
        let says_something = |finding: &Finding| !finding.is_earlier && finding.strength > Strength::Trace;
        let has_last = all.iter().any(says_something);
        let mut live: Vec<Finding> = all.into_iter().filter(|finding| !(has_last && finding.is_earlier)).collect();
        let ends: Vec<Finding> = live.iter().filter(|it| self.rules.rules[it.rule].first).cloned().collect();
        live.retain(|it| !(self.rules.rules[it.rule].peer && ends.iter().any(|end| self.is_before(end, it))));
        let silent = self.died_silently_first(&live);
        live.retain(|it| {
            !(self.rules.rules[it.rule].peer && silent.is_some_and(|end| self.sources[it.source].ended_at > Some(end)))
        });
        live.sort_by_key(|finding| {
            let is_effect = self.rules.rules[finding.rule].effect;
            (Reverse(finding.strength), is_effect, finding.source, finding.offset, finding.rule)
        });
        live
    }

    /// Returns when the first rank ended, if that is known and it printed no cause: other ranks' lost
    /// connections are consequences of it.
    fn died_silently_first(&self, live: &[Finding]) -> Option<u64> {
        let first = self.sources.iter().filter_map(|source| Some((source.ended_at?, source.rank?))).min()?;
        let ends = |source: &Source<'_>| Some(first) == source.ended_at.zip(source.rank) && !source.is_file;
        let says = |it: &&Finding| {
            let source = &self.sources[it.source];
            Some(first) == source.ended_at.zip(source.rank) && it.strength > Strength::Trace
        };
        (self.sources.iter().any(ends) && !live.iter().any(|it| says(&it))).then_some(first.0)
    }

    /// Reports whether a consequence was found, and before it an exception that no rule knows, which may be
    /// its cause.
    fn is_shadowed(&self, best: &Finding, live: &[Finding]) -> bool {
        let is_consequence = self.rules.rules[best.rule].effect && best.strength == Strength::Sign;
        let place = |it: &Finding| (it.source, it.offset);
        let is_known = |it: &Finding| live.iter().any(|by| place(by) == place(it) && by.strength > Strength::Hint);
        let is_before = |it: &Finding| it.source != best.source || it.offset < best.offset;
        is_consequence && live.iter().any(|it| it.strength == Strength::Hint && is_before(it) && !is_known(it))
    }

    /// Reports whether the end came before the finding: the launcher names it as the first, or its rank ended
    /// earlier.
    fn is_before(&self, end: &Finding, finding: &Finding) -> bool {
        let ended_at = |finding: &Finding| self.sources[finding.source].ended_at;
        let is_earlier = ended_at(end).zip(ended_at(finding)).is_some_and(|(end, other)| end < other);
        end.source == finding.source || is_earlier
    }

    fn category(&self, finding: &Finding) -> Category {
        self.rules.rules[finding.rule].category.unwrap_or(Category::Unknown)
    }

    fn words(&self, category: Category, subcategory: &str) -> Option<&Subcategory> {
        self.rules.subcategories.get(&(category, subcategory.to_owned()))
    }

    /// Returns the verdict if no rule matches a line, or the run survived all that matched.
    fn nothing(&self) -> Verdict {
        let is_survived = !self.found.is_empty();
        let has_text = self.sources.iter().any(|source| !source.text.trim_ascii().is_empty());
        let subcategory = if has_text { "no_failure" } else { "no_evidence" };
        let words = self.words(Category::Unknown, subcategory);
        Verdict {
            category: Category::Unknown,
            subcategory: subcategory.to_owned(),
            confidence: if is_survived { 0.2 } else { 0.1 },
            certainty: Certainty::Low,
            summary: words.map_or_else(String::new, |words| words.summary.clone()),
            evidence: Vec::new(),
            rank: None,
            node: None,
            advice: words.map_or_else(String::new, |words| words.advice.clone()),
            rule: None,
            is_consequence: false,
            source: None,
            alternatives: Vec::new(),
        }
    }

    /// Returns the decisive line, then the other findings, one line for each rule, by weight.
    fn quotes(&self, live: &[Finding]) -> Vec<Quote> {
        let mut rules = BTreeSet::new();
        let mut places = BTreeSet::new();
        let distinct = live.iter().filter(|it| rules.insert(it.rule) && places.insert((it.source, it.offset)));
        distinct.take(QUOTES_MAX).map(|finding| self.quote(finding)).collect()
    }

    fn quote(&self, finding: &Finding) -> Quote {
        let source = &self.sources[finding.source];
        Quote {
            log: source.name.clone(),
            line: source.line_number(finding.offset),
            rank: finding.rank,
            node: finding.node.clone(),
            text: shortened(finding.text.trim()),
        }
    }

    /// Returns other causes that lines support; if the verdict is unknown, suspected ones come first.
    fn alternatives(&self, verdict: Category, live: &[Finding]) -> Vec<Alternative> {
        let mut seen = BTreeSet::from([verdict, Category::Unknown]);
        let others = live.iter().filter(|other| other.strength > Strength::Trace && seen.insert(self.category(other)));
        let others = others.take(ALTERNATIVES_MAX).map(|other| Alternative {
            category: self.category(other),
            subcategory: self.rules.rules[other.rule].subcategory.clone(),
            confidence: other.strength.confidence(),
        });
        others.collect()
    }

    /// Returns the rank that the launcher names as the first to fail, for a line that names none.
    fn first_rank(&self, best: &Finding) -> Option<u32> {
        let is_rank = |finding: &&Finding| finding.source == best.source && finding.rank.is_some();
        let first = self.found.iter().filter(is_rank).find(|it| self.rules.rules[it.rule].id == elastic::RULE);
        first.and_then(|finding| finding.rank)
    }

    /// Returns the node of that rank, if any log tells.
    fn node_of(&self, rank: Option<u32>) -> Option<String> {
        let rank = rank?;
        let found = self.found.iter().filter(|finding| finding.rank == Some(rank));
        found.filter_map(|finding| finding.node.clone()).next()
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTE_BYTES_MAX) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}
