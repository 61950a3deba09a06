//! What the product must be held to: every answer it gave, each job's end, and what the jobs' own programs saw.
//!
//! The oracle knows nothing but what was sent, answered and shown, and what the witnesses wrote. A loss that the product has told
//! (`--accept-loss-after`) excuses just what the lost records were about.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use serde_json::{Value, json};

use super::jobs::Kind;
use super::ledger;
use super::record::Record;
use super::verdict::{Check, Verdicts};
use super::witness::{Run, Witness};
use crate::moment;

/// A fault that hits an attempt from so short before its first rank ended until so short after its last one did may keep an end
/// from being written down: a supervisor whose ranks have ended and that dies while another node's still run leaves none.
const HIT_BEFORE: Duration = Duration::from_secs(1);
const HIT_AFTER: Duration = Duration::from_secs(3);
/// Between a witness's clock and the control plane's, which are the same, and between a look at it and a line.
const CLOCK_TOLERANCE: Duration = Duration::from_millis(20);

/// A job that was sent.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) kind: Kind,
    witness: PathBuf,
    pub(super) id: Option<String>,
    /// When it was acknowledged.
    acknowledged: Option<SystemTime>,
    /// Whether somebody asked for its end.
    may_be_cancelled: bool,
    /// Since when it is known to be lost.
    lost: Option<Instant>,
    /// Something about it was told to be lost.
    is_touched: bool,
    /// Its end as told.
    pub(super) end: Option<End>,
}

impl Known {
    /// Whether it is known to be lost.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether its submission may be among the records that were lost.
    pub(super) fn may_be_lost(&self, lost: &Lost) -> bool {
        self.acknowledged.is_none_or(|at| at + CLOCK_TOLERANCE >= lost.since)
    }
}

/// How a job ended, as the product told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    state: String,
    booked: u64,
    /// When it was first seen.
    seen: Instant,
}

impl End {
    fn is_as(&self, other: &End) -> bool {
        (&self.state, self.booked) == (&other.state, other.booked)
    }
}

/// A fault that an attempt was hit with.
#[derive(Clone, Debug)]
struct Hit {
    job: String,
    attempt: u32,
    at: SystemTime,
    /// A process of it was stopped until then, and whoever stands still writes nothing down; none if it still is.
    until: Option<SystemTime>,
}

impl Hit {
    /// Whether it may have kept an end of an attempt whose ranks ended between these times from being written down.
    fn is_near(&self, (first, last): (SystemTime, SystemTime)) -> bool {
        let from = first.checked_sub(HIT_BEFORE).unwrap_or(first);
        self.until.is_none_or(|until| until >= from) && self.at <= last + HIT_AFTER
    }
}

/// How much was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    pub(super) unknown: u64,
    pub(super) refused: u64,
    pub(super) cancelled: u64,
    pub(super) ended: u64,
    pub(super) attempts: u64,
    pub(super) excused: u64,
    pub(super) told_lost: u64,
    pub(super) booked_nanos: u64,
    pub(super) witnessed_nanos: u64,
}

/// The oracle.
#[derive(Debug)]
pub(super) struct Oracle {
    pub(super) record: Record,
    pub(super) verdicts: Verdicts,
    pub(super) counts: Counts,
    /// By name, which no two have in common.
    pub(super) jobs: BTreeMap<String, Known>,
    /// Every id that was ever told, and whose it is.
    ids: BTreeMap<String, String>,
    hits: Vec<Hit>,
    /// What each ended job held, of whole histories.
    held: Vec<ledger::Held>,
    /// What needs no second report.
    breached: BTreeSet<(Check, String)>,
}

impl Oracle {
    pub(super) fn new(record: Record) -> Oracle {
        let (verdicts, counts) = (Verdicts::default(), Counts::default());
        let (jobs, ids) = (BTreeMap::new(), BTreeMap::new());
        Oracle { record, verdicts, counts, jobs, ids, hits: Vec::new(), held: Vec::new(), breached: BTreeSet::new() }
    }

    /// These jobs are about to be sent.
    pub(super) fn sends(&mut self, names: &[String], kind: Kind, witness: impl Fn(&str) -> PathBuf) -> Result<()> {
        self.record.note("send", &json!(names))?;
        for name in names {
            self.counts.sent += 1;
            let known = Known {
                kind,
                witness: witness(name),
                id: None,
                acknowledged: None,
                may_be_cancelled: false,
                lost: None,
                is_touched: false,
                end: None,
            };
            self.jobs.insert(name.clone(), known);
        }
        Ok(())
    }

    /// They were acknowledged with these ids.
    pub(super) fn acknowledged(&mut self, names: &[String], ids: &[String]) -> Result<()> {
        self.record.note("acknowledged", &json!({"names": names, "ids": ids}))?;
        if names.len() != ids.len() {
            self.breach(
                Check::Lost,
                format!("{} jobs were sent and {} acknowledged: {names:?}", names.len(), ids.len()),
            );
        }
        for (name, id) in names.iter().zip(ids) {
            self.counts.acknowledged += 1;
            self.names(name, id);
            if let Some(known) = self.jobs.get_mut(name) {
                known.acknowledged = Some(SystemTime::now());
            }
        }
        Ok(())
    }

    /// It isn't known what became of them.
    pub(super) fn unanswered(&mut self, names: &[String], why: &str) -> Result<()> {
        self.counts.unknown += 1;
        self.record.note("unknown", &json!({"names": names, "why": why}))
    }

    /// They were refused.
    pub(super) fn refused(&mut self, names: &[String], why: &str) -> Result<()> {
        self.counts.refused += 1;
        self.record.note("refused", &json!({"names": names, "why": why}))?;
        for name in names {
            self.jobs.remove(name);
        }
        Ok(())
    }

    /// Somebody asks for this job's end.
    pub(super) fn cancels(&mut self, name: &str) -> Result<()> {
        self.record.note("cancel", &json!(name))?;
        if let Some(known) = self.jobs.get_mut(name) {
            known.may_be_cancelled = true;
        }
        Ok(())
    }

    /// An attempt is hit.
    pub(super) fn hits(&mut self, job: &str, attempt: u32) {
        let at = SystemTime::now();
        self.hits.push(Hit { job: job.to_owned(), attempt, at, until: Some(at) });
    }

    /// A process of an attempt is stopped.
    pub(super) fn stops(&mut self, job: &str, attempt: u32) {
        self.hits.push(Hit { job: job.to_owned(), attempt, at: SystemTime::now(), until: None });
    }

    /// Stopped processes of an attempt go on, or have been killed meanwhile.
    pub(super) fn goes_on(&mut self, job: &str, attempt: u32) {
        let now = SystemTime::now();
        for hit in self.hits.iter_mut().filter(|hit| hit.job == job && hit.attempt == attempt) {
            hit.until.get_or_insert(now);
        }
    }

    /// Jobs that must come to an end and haven't, with their ids.
    pub(super) fn outstanding(&self) -> Vec<(String, String)> {
        let open = self.jobs.iter().filter(|(_, known)| known.end.is_none() && known.lost.is_none());
        open.filter_map(|(name, known)| Some((name.clone(), known.id.clone()?))).collect()
    }

    /// The product shows this job.
    pub(super) fn sees(&mut self, job: &Value) -> Result<()> {
        let (Some(name), Some(id), Some(state)) = (job["name"].as_str(), job["id"].as_str(), job["state"].as_str())
        else {
            self.breach(Check::Told, format!("a job without a name, an id or a state is shown: {job}"));
            return Ok(());
        };
        if !self.jobs.contains_key(name) {
            self.breach(Check::Told, format!("{id} is shown as {name}, which nobody has sent"));
            return Ok(());
        }
        self.names(name, id);
        let is_over = ["succeeded", "failed", "cancelled", "stopped"].contains(&state);
        let booked = job["usage"]["gpu_nanoseconds"].as_u64().unwrap_or(u64::MAX);
        let now = is_over.then(|| End { state: state.to_owned(), booked, seen: Instant::now() });
        let Some(known) = self.jobs.get_mut(name) else { return Ok(()) };
        match (&known.end, &now) {
            (Some(told), now) if !now.as_ref().is_some_and(|now| told.is_as(now)) => {
                let (was, with) = (&told.state, told.booked);
                let text =
                    format!("{id} had {was} with {with} ns booked and is shown as {state} with {booked} ns booked");
                self.breach_once(Check::Told, id.to_owned(), text);
            }
            (None, Some(end)) => {
                known.end = Some(end.clone());
                self.counts.ended += 1;
                self.record.note("ended", &json!({"id": id, "state": state}))?;
                self.judge(name, id, job);
            }
            _ => {}
        }
        Ok(())
    }

    /// The product doesn't have this job that it had acknowledged or shown. Whether that was told.
    pub(super) fn misses(&mut self, name: &str, lost: Option<&Lost>) -> Result<()> {
        let Some(known) = self.jobs.get_mut(name) else { return Ok(()) };
        let is_told = lost.is_some_and(|lost| known.may_be_lost(lost));
        known.lost = Some(Instant::now());
        let id = known.id.clone().unwrap_or_default();
        self.record.note("missed", &json!({"name": name, "id": id, "is_told": is_told}))?;
        if is_told {
            self.counts.told_lost += 1;
        } else {
            self.breach(Check::Lost, format!("{id} ({name}) was acknowledged and isn't there any more"));
        }
        Ok(())
    }

    /// The product has told a loss: what these records were about may have been forgotten.
    pub(super) fn told(&mut self, lost: &Lost) -> Result<()> {
        self.record.note("told loss", &json!({"records": lost.records, "jobs": lost.jobs}))?;
        for id in &lost.jobs {
            let Some(known) = self.ids.get(id).and_then(|name| self.jobs.get_mut(name)) else { continue };
            known.is_touched = true;
            known.end = None;
            self.held.retain(|held| held.job != *id);
        }
        Ok(())
    }

    /// Looks at all witnesses once more, and at all devices, when nothing runs any more.
    pub(super) fn close(&mut self) {
        let jobs: Vec<(String, PathBuf, Option<End>, bool)> = self
            .jobs
            .iter()
            .map(|(name, known)| {
                (name.clone(), known.witness.clone(), known.end.clone(), known.is_touched || known.lost.is_some())
            })
            .collect();
        for (name, witness, end, is_excused) in jobs {
            let witness = Witness::read(&witness);
            if end.is_none() && !is_excused && self.jobs[&name].id.is_some() {
                self.breach(Check::Lost, format!("{name} was acknowledged and never came to an end"));
            }
            if !witness.runs.is_empty() && self.jobs[&name].id.is_none() && !is_excused {
                self.breach(Check::Lost, format!("{name} ran ({:?}) and no job is shown for it", witness.ids));
            }
            if !is_excused && let Some(attempt) = witness.beside.first() {
                self.breach(Check::Beside, format!("{name}: attempt {attempt} was there beside a later one"));
            }
        }
        let mut reused = Vec::new();
        let mut ran_as: BTreeMap<String, String> = BTreeMap::new();
        for (name, known) in &self.jobs {
            for id in Witness::read(&known.witness).ids {
                reused.extend(
                    ran_as.insert(id.clone(), name.clone()).map(|other| format!("{other} and {name} both ran as {id}")),
                );
            }
        }
        for text in reused {
            self.breach(Check::Reused, text);
        }
        for text in ledger::shared_devices(&self.held) {
            self.breach(Check::Beside, text);
        }
    }

    /// Something isn't as it must be.
    pub(super) fn breach(&mut self, check: Check, text: String) {
        let after = self.record.age();
        // The record is for the post-mortem; that it can't be written will show elsewhere.
        let _ = self.record.note("breach", &json!(text));
        self.verdicts.breach(check, after, text);
    }

    /// The same, the first time for what `key` names.
    pub(super) fn breach_once(&mut self, check: Check, key: String, text: String) {
        if self.breached.insert((check, key)) {
            self.breach(check, text);
        }
    }

    /// Since when the job with this id is known to have ended, or to be lost.
    pub(super) fn ended_for(&self, id: &str) -> Option<Duration> {
        let known = self.jobs.get(self.ids.get(id)?)?;
        if let Some(lost) = known.lost {
            return Some(lost.elapsed());
        }
        known.end.as_ref().map(|end| end.seen.elapsed())
    }

    /// The job of this name has this id.
    fn names(&mut self, name: &str, id: &str) {
        match self.ids.get(id) {
            Some(other) if other != name => {
                let text = format!("{id} was given to {other} and then to {name}");
                self.breach_once(Check::Reused, format!("{id} {name}"), text);
            }
            _ => {
                self.ids.insert(id.to_owned(), name.to_owned());
            }
        }
        let Some(known) = self.jobs.get_mut(name) else { return };
        let before = known.id.replace(id.to_owned());
        if let Some(before) = before.filter(|before| before != id) {
            let text = format!("{name} was sent once and is both {before} and {id}");
            self.breach_once(Check::Twice, name.to_owned(), text);
        }
    }

    /// Judges a job at its end, by the product's own figures and by its witness.
    fn judge(&mut self, name: &str, id: &str, job: &Value) {
        let Some(known) = self.jobs.get(name) else { return };
        let (kind, is_touched) = (known.kind, known.is_touched);
        let (may_be_cancelled, witness) = (known.may_be_cancelled, Witness::read(&known.witness));
        let held = ledger::Held::read(id, job);
        self.counts.attempts += u64::try_from(held.attempts.len()).unwrap_or(0);
        for text in ledger::misbooked(&held, job) {
            self.breach(Check::Ledger, format!("{id}: {text}"));
        }
        if is_touched {
            return;
        }
        let state = job["state"].as_str().unwrap_or_default();
        let because = job["because"].as_str().unwrap_or_default();
        if state != kind.end() && !(state == "cancelled" && may_be_cancelled) {
            let text = format!("{id} ({name}) is {state} and should be {}: {because}", kind.end());
            self.breach(Check::Ended, text);
        }
        if witness.ids.iter().any(|other| other != id) {
            self.breach(Check::Reused, format!("{name} is {id} and ran as {:?}", witness.ids));
        }
        if let Some(attempt) = witness.beside.first() {
            self.breach(Check::Beside, format!("{id}: attempt {attempt} was there beside a later one"));
        }
        self.judge_success(&Case { id, kind, state, witness: &witness, held: &held });
        self.judge_capacity(id, &witness, &held);
        self.held.push(held);
    }

    /// Success told is success seen, once.
    fn judge_success(&mut self, case: &Case<'_>) {
        let Case { id, kind, state, witness, held } = *case;
        let ends = |run: &Run| (run.first_end.unwrap_or(run.last), run.last);
        let whole: Vec<(u32, (SystemTime, SystemTime))> =
            witness.whole(kind.ranks()).map(|(attempt, run)| (attempt, ends(run))).collect();
        let last = held.attempts.last().map(|attempt| attempt.number);
        if state == "succeeded" && whole.last().map(|(attempt, _)| *attempt) != last {
            let text = format!("{id} succeeded by attempt {last:?}; its witness has ends of {whole:?}");
            self.breach(Check::Unseen, text);
        }
        let again = if state == "succeeded" { &whole[..whole.len().saturating_sub(1)] } else { &whole[..] };
        for (attempt, ends) in again {
            if last == Some(*attempt) && state == "cancelled" {
                continue;
            }
            if self.hits.iter().any(|hit| hit.job == id && hit.attempt == *attempt && hit.is_near(*ends)) {
                self.counts.excused += 1;
            } else {
                let text = format!(
                    "{id}: all ranks of attempt {attempt} came to their end, and attempt {last:?} ran as well ({state})"
                );
                self.breach(Check::Twice, text);
            }
        }
    }

    /// What the witness saw was within what was held.
    fn judge_capacity(&mut self, id: &str, witness: &Witness, held: &ledger::Held) {
        let told: BTreeSet<u32> = held.attempts.iter().map(|attempt| attempt.number).collect();
        let oldest = told.first().copied().unwrap_or(0);
        for (number, run) in witness.runs.iter().filter(|(number, _)| **number >= oldest) {
            let Some(attempt) = held.attempts.iter().find(|attempt| attempt.number == *number) else {
                self.breach(Check::Ledger, format!("{id}: attempt {number} ran and isn't told"));
                continue;
            };
            let (early, late) = (run.first + CLOCK_TOLERANCE < attempt.from, run.last > attempt.to + CLOCK_TOLERANCE);
            if early || late {
                let after = moment::between(attempt.to, run.last).as_secs_f64();
                let text = format!(
                    "{id}: attempt {number} ran {after:.3} s after its devices were given back (or before it had them)"
                );
                self.breach(Check::Ledger, text);
            }
            let ranks = u64::try_from(run.began.len()).unwrap_or(0);
            let span = u64::try_from(moment::between(run.first, run.last).as_nanos()).unwrap_or(u64::MAX);
            self.counts.witnessed_nanos += span.saturating_mul(ranks);
        }
        self.counts.booked_nanos += held.booked;
    }
}

/// An ended job: what the product told of it, and what its witness saw.
#[derive(Clone, Copy)]
struct Case<'a> {
    id: &'a str,
    kind: Kind,
    state: &'a str,
    witness: &'a Witness,
    held: &'a ledger::Held,
}

/// What the product said that it lost, read from a copy of the journal from before the damage.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    /// How many records.
    pub(super) records: usize,
    /// When the first of them was written.
    pub(super) since: SystemTime,
    /// The ids that they name.
    pub(super) jobs: BTreeSet<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_stands_still_is_near_to_what_ends_meanwhile() {
        let at = |millis: u64| SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000 + millis);
        let hit = |from, until| Hit { job: String::new(), attempt: 1, at: at(from), until };
        let end = (at(10_000), at(10_000));
        assert!(hit(9_100, Some(at(9_100))).is_near(end) && hit(12_900, Some(at(12_900))).is_near(end));
        assert!(!hit(8_900, Some(at(8_900))).is_near(end) && !hit(13_100, Some(at(13_100))).is_near(end));
        assert!(hit(5_000, None).is_near(end) && hit(5_000, Some(at(9_100))).is_near(end));
        assert!(!hit(5_000, Some(at(8_900))).is_near(end) && !hit(13_100, None).is_near(end));
        // The supervisor of the node whose ranks ended first dies before the other's have.
        assert!(hit(9_500, Some(at(9_500))).is_near((at(9_000), at(12_000))));
        assert!(!hit(7_900, Some(at(7_900))).is_near((at(9_000), at(12_000))));
    }
}
