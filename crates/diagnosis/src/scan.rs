//! Finds the lines that match rules, in all texts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use regex_automata::meta::Regex;
use regex_automata::util::captures::Captures;

use crate::elastic;
use crate::line::{Line, captures, named};
use crate::progress::RunProgress;
use crate::rules::{Place, Raised, Rule, Rules, Strength, compile};
use crate::source::Source;
use crate::text::Text;
use crate::traceback::{self, Traceback};

/// Maximum number of lines with a known word that are examined, at the beginning of a text and at its end;
/// those between are repetition.
const LINES_HEAD_MAX: usize = 1_000;
const LINES_TAIL_MAX: usize = 4_000;
/// Maximum number of known words of a line that are examined.
const WORDS_MAX: usize = 256;
/// Maximum number of findings of a rule in a text that are kept: the first and the last ones.
const FINDINGS_EACH_MAX: usize = 16;
/// Maximum number of tracebacks of a text that are read.
const TRACEBACKS_MAX: usize = 400;
/// Length of a line's beginning in which its logger's level is searched for.
const LEVEL_WITHIN: usize = 60;
/// Numbers of lines before and after in which `near` is searched for.
const NEAR_BEFORE: usize = 40;
const NEAR_AFTER: usize = 20;
/// Maximum number of bytes of such a line that are examined.
const NEAR_LINE_BYTES_MAX: usize = 4096;

/// A line that matches a rule.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) rule: usize,
    pub(crate) source: usize,
    pub(crate) offset: usize,
    pub(crate) text: String,
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<String>,
    pub(crate) strength: Strength,
    /// Whether the run continued after it.
    pub(crate) is_survived: bool,
    /// Whether it belongs to an attempt before the last one.
    pub(crate) is_earlier: bool,
}

/// The patterns compiled so far. Most rules never meet a candidate line, so most are never compiled.
pub(crate) struct Matcher<'r> {
    rules: &'r Rules,
    compiled: BTreeMap<&'r str, Option<Regex>>,
}

impl<'r> Matcher<'r> {
    pub(crate) fn new(rules: &'r Rules) -> Self {
        Matcher { rules, compiled: BTreeMap::new() }
    }

    pub(crate) fn rules(&self) -> &'r Rules {
        self.rules
    }

    /// Returns a compiled pattern. A pattern that can't be compiled matches nothing; a test compiles them
    /// all.
    pub(crate) fn regex(&mut self, pattern: &'r str) -> Option<&Regex> {
        self.compiled.entry(pattern).or_insert_with(|| compile(pattern).ok()).as_ref()
    }

    pub(crate) fn matches(&mut self, pattern: &'r str, text: &str) -> bool {
        self.regex(pattern).is_some_and(|regex| regex.is_match(text.as_bytes()))
    }

    /// Returns the named groups of a rule's pattern.
    fn captures(&mut self, rule: &'r Rule, pattern: usize, text: &str) -> Option<Captures> {
        let found = captures(self.regex(rule.patterns.get(pattern)?)?, text.as_bytes())?;
        let is_excluded = rule.unless.as_deref().is_some_and(|unless| self.matches(unless, text));
        (!is_excluded).then_some(found)
    }
}

/// Returns all findings in a text, in the order of its lines.
pub(crate) fn scan(matcher: &mut Matcher<'_>, index: usize, source: &Source<'_>) -> Vec<Finding> {
    let rules = matcher.rules;
    let text = Text::whole(&source.text);
    let (findings, counts, exceptions) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    let mut scan = Scan { index, source, text, findings, counts, exceptions, matcher };
    for (bounds, mut words) in lines_with_words(rules, &text) {
        let line = rules.cleaner.clean(text.slice(bounds));
        words.sort_unstable();
        words.dedup();
        scan.note_exception(bounds.0, &line);
        for word in words {
            let candidates = &rules.patterns_of_word[word];
            // The word that opens a traceback has no rules of its own.
            if candidates.is_empty() && scan.exceptions.len() < TRACEBACKS_MAX {
                traceback::read(&text, bounds.0, &rules.cleaner).into_iter().for_each(|it| scan.note_traceback(&it));
            }
            for place in candidates {
                scan.note(*place, bounds.0, &line);
            }
        }
    }
    let mut findings = scan.findings;
    findings.sort_by_key(|finding| (finding.offset, finding.rule));
    findings.dedup_by_key(|finding| (finding.offset, finding.rule));
    if findings.iter().any(|finding| finding.strength > Strength::Trace) {
        RunProgress::read(matcher, &text).judge(matcher, &mut findings);
    }
    findings
}

/// Returns the lines that contain a known word, and which words.
fn lines_with_words(rules: &Rules, text: &Text<'_>) -> Vec<((usize, usize), Vec<usize>)> {
    let mut head: Vec<((usize, usize), Vec<usize>)> = Vec::new();
    let mut tail: VecDeque<((usize, usize), Vec<usize>)> = VecDeque::new();
    for found in rules.words.find_overlapping_iter(text.slice((0, text.len()))) {
        let word = found.pattern().as_usize();
        let last = if tail.is_empty() { head.last_mut() } else { tail.back_mut() };
        if let Some((_, words)) = last.filter(|(bounds, _)| found.start() < bounds.1) {
            if words.len() < WORDS_MAX {
                words.push(word);
            }
            continue;
        }
        let line = (text.bounds(found.start()), vec![word]);
        if head.len() < LINES_HEAD_MAX {
            head.push(line);
            continue;
        }
        tail.push_back(line);
        if tail.len() > LINES_TAIL_MAX {
            tail.pop_front();
        }
    }
    head.extend(tail);
    head
}

struct Scan<'s, 'm, 'r, 'a> {
    index: usize,
    source: &'s Source<'a>,
    text: Text<'s>,
    findings: Vec<Finding>,
    counts: BTreeMap<usize, usize>,
    /// Offsets of the exceptions whose tracebacks were read.
    exceptions: BTreeSet<usize>,
    matcher: &'m mut Matcher<'r>,
}

impl<'r> Scan<'_, '_, 'r, '_> {
    /// Notes an exception whose traceback lost its first line.
    fn note_exception(&mut self, offset: usize, line: &Line) {
        let is_known = self.exceptions.len() >= TRACEBACKS_MAX || self.exceptions.contains(&offset);
        if !is_known && self.matcher.matches(&self.matcher.rules.run.exception, &line.text) {
            let cleaner = &self.matcher.rules.cleaner;
            let traceback = traceback::read_above(&self.text, offset, line.clone(), cleaner);
            traceback.into_iter().for_each(|it| self.note_traceback(&it));
        }
    }

    fn note_traceback(&mut self, traceback: &Traceback) {
        self.exceptions.insert(traceback.offset);
        let is_library = self.matcher.matches(&self.matcher.rules.run.library, &traceback.innermost);
        let raised = if is_library || traceback.innermost.is_empty() { Raised::Library } else { Raised::Own };
        let rules = self.matcher.rules;
        for (index, rule) in rules.rules.iter().enumerate().filter(|(_, rule)| rule.traceback) {
            let is_there = self.went(rule.frames.as_deref(), traceback) != Some(false)
                && self.went(rule.unless_frames.as_deref(), traceback) != Some(true);
            if is_there && rule.raised.is_none_or(|only| only == raised) {
                let places = (0..rule.patterns.len()).map(|pattern| Place { rule: index, pattern });
                places.for_each(|place| self.note(place, traceback.offset, &traceback.exception));
            }
        }
    }

    /// Reports whether the traceback has a matching frame; none if no pattern is given.
    fn went(&mut self, place: Option<&'r str>, traceback: &Traceback) -> Option<bool> {
        place.map(|place| self.matcher.matches(place, &traceback.frames))
    }

    /// Adds a finding if the pattern matches and the rule has none for the line yet.
    fn note(&mut self, place: Place, offset: usize, line: &Line) {
        let index = place.rule;
        let rule = &self.matcher.rules.rules[index];
        if self.findings.iter().rev().take_while(|it| it.offset == offset).any(|it| it.rule == index) {
            return;
        }
        let Some(found) = self.matcher.captures(rule, place.pattern, &line.text) else { return };
        let run = &self.matcher.rules.run;
        // An exception isn't a key with a value, though `KeyError: 10` looks like one.
        if !rule.sticky && !rule.traceback && self.matcher.matches(&run.noise, &line.text) {
            return;
        }
        if rule.near.as_deref().is_some_and(|near| !self.is_near(near, offset)) {
            return;
        }
        let named = |name| named(&found, name, line.text.as_bytes());
        let mut finding = Finding {
            rule: index,
            source: self.index,
            offset,
            text: line.text.clone(),
            rank: named("rank").and_then(|rank| rank.parse().ok()).or(line.rank).or(self.source.rank),
            node: named("node").or_else(|| line.node.clone()).or_else(|| self.source.node.clone()),
            strength: if rule.any_level { rule.strength } else { self.strength(rule.strength, line) },
            is_survived: false,
            is_earlier: false,
        };
        if rule.id == elastic::RULE {
            let block = elastic::read(&self.text, offset, &self.matcher.rules.cleaner);
            (finding.rank, finding.node) = (block.rank.or(finding.rank), block.host.or(finding.node));
        }
        let count = self.counts.entry(index).or_default();
        *count += 1;
        if *count > 2 * FINDINGS_EACH_MAX {
            let mut of_rule = (0..self.findings.len()).filter(|at| self.findings[*at].rule == index);
            of_rule.nth(FINDINGS_EACH_MAX).into_iter().for_each(|at| drop(self.findings.remove(at)));
        }
        self.findings.push(finding);
    }

    /// Returns the strength of a line, lowered if its logger called it a warning or a note.
    fn strength(&mut self, strength: Strength, line: &Line) -> Strength {
        let beginning: String = line.label.chars().chain(line.text.chars().take(LEVEL_WITHIN)).collect();
        let run = &self.matcher.rules.run;
        if self.matcher.matches(&run.not_warning, &beginning) {
            strength
        } else if self.matcher.matches(&run.warning, &beginning) {
            strength.weaker()
        } else if self.matcher.matches(&run.note, &beginning) {
            strength.weaker().weaker()
        } else {
            strength
        }
    }

    fn is_near(&mut self, near: &'r str, offset: usize) -> bool {
        let after = self.text.lines_from(offset).take(NEAR_AFTER);
        let mut lines = self.text.lines_before(offset).take(NEAR_BEFORE).chain(after);
        let Some(regex) = self.matcher.regex(near) else { return false };
        lines.any(|(_, line)| regex.is_match(&line[..line.len().min(NEAR_LINE_BYTES_MAX)]))
    }
}
