//! What was found, by what must hold and by what was done to the product.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;

/// Breaches of a kind that are printed; all are in the record.
const SHOWN_MAX: usize = 10;

/// What must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Check {
    /// What was acknowledged is there, and comes to an end.
    Lost,
    /// A job succeeds once, and one submission is one job.
    Twice,
    /// An id is used once.
    Reused,
    /// Who is told to have succeeded came to its end.
    Unseen,
    /// An attempt runs when the last one is gone, and a device has one owner.
    Beside,
    /// Nothing runs on of what has ended.
    Orphan,
    /// What is booked is what was held, and that covers what ran.
    Ledger,
    /// A job ends as its program does.
    Ended,
    /// What was told stays true.
    Told,
    /// Memory doesn't grow.
    Memory,
}

impl Check {
    const ALL: [Check; 10] = [
        Check::Lost,
        Check::Twice,
        Check::Reused,
        Check::Unseen,
        Check::Beside,
        Check::Orphan,
        Check::Ledger,
        Check::Ended,
        Check::Told,
        Check::Memory,
    ];

    fn words(self) -> &'static str {
        match self {
            Check::Lost => "acknowledged jobs lost",
            Check::Twice => "jobs run twice to success",
            Check::Reused => "ids reused",
            Check::Unseen => "successes that no witness saw",
            Check::Beside => "attempts beside an older one, devices with two owners",
            Check::Orphan => "processes of what had ended",
            Check::Ledger => "jobs whose books aren't what they held",
            Check::Ended => "jobs that didn't end as their program does",
            Check::Told => "answers that didn't stay true",
            Check::Memory => "growth of the control plane's memory over its bar",
        }
    }
}

/// What is done to the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Scenario {
    /// The control plane is killed, stopped for a while, or ended and started again.
    Plane,
    /// Supervisors are killed or stopped for a while, alone or with the control plane or their shims.
    Supervisors,
    /// Shims are killed or stopped for a while.
    Shims,
    /// Ranks are killed or stopped for a while.
    Ranks,
    /// The disk of the data folder fills up, and has room again.
    Disk,
    /// The control plane takes jobs again by itself once a disk has room; without this, it is started again.
    Heal,
    /// The journal's write-ahead log is cut short between two starts.
    Cut,
    /// A bit of the journal's write-ahead log is flipped between two starts.
    FlipLog,
    /// A bit of the journal's database is flipped between two starts.
    FlipDatabase,
    /// A bit of the journal's anchor is flipped between two starts.
    FlipAnchor,
    /// The database is put back to what it was some starts ago.
    Rollback,
    /// The database and its anchor are put back: whoever does that knows of the loss, but nothing may be used twice.
    PutBack,
}

impl Scenario {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Tally {
    times: u32,
    failures: Vec<String>,
    skipped: Option<String>,
    /// How it went, counted.
    outcomes: BTreeMap<String, u32>,
}

/// Everything found so far.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    breaches: BTreeMap<Check, Vec<String>>,
    courses: BTreeMap<Scenario, Tally>,
}

impl Verdicts {
    /// Something doesn't hold.
    pub(super) fn breach(&mut self, check: Check, after: Duration, text: String) {
        let text = format!("after {:.1} s: {text}", after.as_secs_f64());
        eprintln!("BREACH: {}: {text}", check.words());
        self.breaches.entry(check).or_default().push(text);
    }

    /// A scenario was run once.
    pub(super) fn ran(&mut self, scenario: Scenario, outcome: &str) {
        let course = self.courses.entry(scenario).or_default();
        course.times += 1;
        *course.outcomes.entry(outcome.to_owned()).or_default() += 1;
    }

    /// A scenario didn't go as it must.
    pub(super) fn failed(&mut self, scenario: Scenario, after: Duration, text: &str) {
        let text = format!("after {:.1} s: {text}", after.as_secs_f64());
        eprintln!("BREACH: {}: {text}", scenario.name());
        self.courses.entry(scenario).or_default().failures.push(text);
    }

    /// A scenario can't be run, or shall not be.
    pub(super) fn skips(&mut self, scenario: Scenario, why: &str) {
        self.courses.entry(scenario).or_default().skipped = Some(why.to_owned());
    }

    /// Whether all held so far.
    pub(super) fn hold(&self) -> bool {
        self.breaches.is_empty() && self.courses.values().all(|course| course.failures.is_empty())
    }

    /// Prints the table.
    pub(super) fn print(&self) {
        println!("\n{:<60} {:>8}", "what must hold", "breaches");
        for check in Check::ALL {
            let breaches = self.breaches.get(&check).map_or(&[][..], Vec::as_slice);
            let mark = if breaches.is_empty() { "holds" } else { "FAILS" };
            println!("  {mark}  {:<53} {:>7}", check.words(), breaches.len());
            print_some(breaches);
        }
        println!("\n{:<20} {:>6}  how it went", "what was done", "times");
        for (scenario, course) in &self.courses {
            let mark = match (&course.skipped, course.failures.is_empty()) {
                (Some(_), _) => "skipped",
                (None, true) => "holds",
                (None, false) => "FAILS",
            };
            let outcomes = course.outcomes.iter().map(|(outcome, times)| format!("{times} x {outcome}"));
            let outcomes = outcomes.chain(course.skipped.clone()).collect::<Vec<_>>().join(", ");
            println!("  {mark:<7} {:<10} {:>6}  {outcomes}", scenario.name(), course.times);
            print_some(&course.failures);
        }
    }
}

fn print_some(texts: &[String]) {
    for text in texts.iter().take(SHOWN_MAX) {
        println!("           {text}");
    }
    if texts.len() > SHOWN_MAX {
        println!("           and {} more", texts.len() - SHOWN_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_breach_or_one_failure_is_enough() {
        let mut verdicts = Verdicts::default();
        verdicts.ran(Scenario::Plane, "killed");
        verdicts.skips(Scenario::Disk, "not permitted");
        assert!(verdicts.hold());
        verdicts.failed(Scenario::Plane, Duration::ZERO, "it didn't start");
        assert!(!verdicts.hold());
        let mut verdicts = Verdicts::default();
        verdicts.breach(Check::Lost, Duration::ZERO, "job-1".to_owned());
        assert!(!verdicts.hold());
    }
}
