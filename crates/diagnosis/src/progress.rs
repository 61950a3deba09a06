//! The progress of a run in a text: which faults it survived, which belong to an earlier attempt, whether it
//! succeeded.

use std::collections::BTreeMap;

use crate::line::Line;
use crate::rules::Strength;
use crate::scan::{Finding, Matcher};
use crate::text::Text;

/// Number of lines at a text's end in which steps are searched for.
const LINES_BACK_MAX: usize = 3_000;
/// Number of lines after a finding in which steps are searched for, when the text's end has none.
const LINES_ON_MAX: usize = 300;
/// Number of steps after a fault that show it was survived: other ranks may print one or two before they
/// notice.
const STEPS_MIN: usize = 3;
/// Maximum number of findings of one text for which the lines after them are searched.
const FOLLOWED_MAX: usize = 64;

/// The progress of a run in one text.
#[derive(Debug, Default)]
pub(crate) struct RunProgress<'a> {
    text: Option<Text<'a>>,
    /// Offset of the third-last step, over all ranks and for each.
    steps_end: BTreeMap<Option<u32>, usize>,
    /// Offset of the last step.
    last_step: Option<usize>,
    /// Offset of the last attempt's beginning.
    restart: Option<usize>,
    /// Offset of the line that says that the run succeeded.
    success: Option<usize>,
}

impl<'a> RunProgress<'a> {
    pub(crate) fn read(matcher: &mut Matcher<'_>, text: &Text<'a>) -> RunProgress<'a> {
        let mut progress = RunProgress { text: Some(*text), ..RunProgress::default() };
        let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for (offset, raw) in text.lines_backwards().take(LINES_BACK_MAX) {
            let line = matcher.clean(raw);
            if matcher.is_restart(&line) {
                progress.restart = progress.restart.or(Some(offset));
            } else if matcher.is_success(&line) {
                progress.success = progress.success.or(Some(offset));
            } else if matcher.is_step(&line) {
                progress.note_step(&mut counts, offset, line.rank);
            }
        }
        progress
    }

    /// Notes a step, from the last to the first: for all ranks together, and for its own.
    fn note_step(&mut self, counts: &mut BTreeMap<Option<u32>, usize>, offset: usize, rank: Option<u32>) {
        self.last_step = self.last_step.or(Some(offset));
        for whose in [None, rank].into_iter().take(1 + usize::from(rank.is_some())) {
            let count = counts.entry(whose).or_default();
            *count += 1;
            if *count == STEPS_MIN {
                self.steps_end.insert(whose, offset);
            }
        }
    }

    /// Marks findings that were survived or belong to an earlier attempt.
    pub(crate) fn judge(&self, matcher: &mut Matcher<'_>, findings: &mut [Finding]) {
        let mut followed = 0;
        for finding in findings.iter_mut() {
            let is_handled = matcher.is_handled(&finding.text);
            if is_handled {
                finding.strength = finding.strength.weaker();
            }
            finding.is_earlier = self.restart.is_some_and(|restart| finding.offset < restart);
            if matcher.is_sticky(finding.rule) {
                continue;
            }
            let whose = if self.steps_end.contains_key(&finding.rank) { finding.rank } else { None };
            let went_on = self.steps_end.get(&whose).is_some_and(|steps| *steps > finding.offset);
            let went_well = self.success.is_some_and(|success| success > finding.offset);
            let was_handled = is_handled && self.last_step.is_some_and(|step| step > finding.offset);
            finding.is_survived = went_on || went_well || was_handled;
            if !finding.is_survived && finding.strength > Strength::Trace && followed < FOLLOWED_MAX {
                followed += 1;
                finding.is_survived = self.goes_on_after(matcher, finding);
            }
        }
    }

    /// Reports whether steps follow soon, for texts that end with a long dump.
    fn goes_on_after(&self, matcher: &mut Matcher<'_>, finding: &Finding) -> bool {
        let Some(text) = self.text else { return false };
        let lines = text.lines_from(finding.offset).take(LINES_ON_MAX);
        let steps = lines.filter(|(_, raw)| {
            let line = matcher.clean(raw);
            (finding.rank.is_none() || line.rank.is_none() || line.rank == finding.rank) && matcher.is_step(&line)
        });
        steps.take(STEPS_MIN).count() == STEPS_MIN
    }
}

impl Matcher<'_> {
    fn is_step(&mut self, line: &Line) -> bool {
        let patterns = &self.rules().run;
        self.matches(&patterns.progress, &line.text) && !self.matches(&patterns.not_progress, &line.text)
    }

    fn is_restart(&mut self, line: &Line) -> bool {
        self.matches(&self.rules().run.restart, &line.text)
    }

    fn is_success(&mut self, line: &Line) -> bool {
        self.matches(&self.rules().run.success, &line.text)
    }

    fn is_handled(&mut self, text: &str) -> bool {
        self.matches(&self.rules().run.handled, text)
    }

    fn is_sticky(&self, rule: usize) -> bool {
        self.rules().rules[rule].sticky
    }

    fn clean(&self, raw: &[u8]) -> Line {
        self.rules().cleaner.clean(raw)
    }
}
