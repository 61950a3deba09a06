//! Targets of the fuzzers (`fuzz/`) and of the mutation tests: each reader of bytes from users, supervisors
//! and old journals, with the properties of every accepted input. None of them panics.

use std::path::Path;

use gangline_base::{CodeCopy, JobId, Submitter, Timestamp};
use gangline_execution::protocol::{NodeState, Report};
use gangline_orchestration::{Entry, Event};
use gangline_specs::jobfile::{Context, Problem, Submission, parse};

use crate::bound::bound;
use crate::reported::{outcome_as_end, reported};
use crate::views::{Texts, to_api};
use gangline_store::codec::{Recorded, decode_entry, decode_snapshot, encode_entry, encode_snapshot};
use gangline_store::model::{AttemptRecord, JobRecord, ShareRecord};

/// The job that reports belong to.
const JOB_FILE: &str = "name: fuzzed\nresources: {accelerators: \"cpu:2\"}\nrun: \"true\"\n";
/// The node that reports come from.
const NODE: &str = "node-0";

/// Checks a job file: it is refused with a bounded number of reasons, or its job survives a round trip
/// through the journal.
pub fn job_file(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    match read(text) {
        Err(problems) => assert!((1..=Problem::COUNT_MAX).contains(&problems.len()), "{} problems", problems.len()),
        Ok(Submission::Job(job)) => reads_back(&Entry::Event(Event::JobSubmitted(job.into()))),
        Ok(Submission::Sweep(sweep)) => reads_back(&Entry::Event(Event::SweepSubmitted(sweep.into()))),
    }
}

fn read(text: &str) -> Result<Submission, Vec<Problem>> {
    let context = Context {
        file_name: "job.yaml",
        base: Path::new("/work"),
        submitter: Submitter("fuzzer".to_owned()),
        overrides: &[],
        is_folder: &|_| true,
        template: &|name| Ok(format!("envs: {{A: {name}}}")),
        copy_code: &|_, _| Ok(CodeCopy { tree: "0".repeat(64), commit: None, changed_files: 0 }),
    };
    parse(text, &context)
}

/// Checks the body of a journal record.
pub fn journal_entry(body: &[u8]) {
    match decode_entry(body) {
        Ok(Recorded::Engine(entry)) => reads_back(&entry),
        Ok(Recorded::Closed(closed)) => closed.encode().iter().for_each(|part| {
            assert!(matches!(decode_entry(part), Ok(Recorded::Closed(_))), "what is written can be read");
        }),
        Ok(Recorded::Noted(noted)) => {
            let again = decode_entry(&noted.encode());
            assert!(matches!(again, Ok(Recorded::Noted(read)) if read == noted), "it reads back as it was");
        }
        Err(_) => {}
    }
}

fn reads_back(entry: &Entry) {
    let again = decode_entry(&encode_entry(entry)).expect("what is written can be read");
    assert_eq!(again.engine().as_ref(), Some(entry), "an entry reads back as it was");
}

/// Checks the body of a snapshot.
pub fn journal_snapshot(body: &[u8]) {
    let Ok(snapshot) = decode_snapshot(body) else { return };
    let again = decode_snapshot(&encode_snapshot(&snapshot)).expect("what is written can be read");
    assert_eq!(again, snapshot, "a snapshot reads back as it was");
}

/// Checks a supervisor's report on the attempt of its token. A repeated report changes nothing, and the
/// stored part of a report can be written, read back and shown.
pub fn report(body: &[u8]) {
    let Ok(mut report) = serde_json::from_slice::<Report>(body) else { return };
    bound(&mut report);
    if let NodeState::Ended { outcome, .. } = &report.state {
        let _ = outcome_as_end(outcome);
    }
    let mut record = running_job();
    let report = Report { job: record.id.0, attempt: 1, node: NODE.to_owned(), ..report };
    let new = record.take_report(0, reported(report.clone())).expect("the attempt is the node's");
    record.summarise();
    let stored = serde_json::to_string(&record).expect("records have string keys only");
    let read: JobRecord = serde_json::from_str(&stored).expect("a record reads back");
    assert_eq!(serde_json::to_string(&read).ok(), Some(stored.clone()), "a record reads back as it was");
    let again = record.take_report(0, reported(report)).expect("the attempt is the node's");
    record.summarise();
    assert!(new.samples.is_empty() || again.samples.is_empty(), "no sample is taken twice");
    assert_eq!(serde_json::to_string(&record).ok(), Some(stored), "a repeated report changes nothing");
    let shown = to_api(Path::new("/data"), &record, &[], Texts::Whole);
    serde_json::to_string(&shown).expect("what is shown can be sent");
}

/// Returns a job with one attempt on one node.
fn running_job() -> JobRecord {
    let Ok(Submission::Job(spec)) = read(JOB_FILE) else { unreachable!("the job file is right") };
    let mut record = JobRecord::new(JobId(1), &spec, Timestamp::EPOCH);
    let share = ShareRecord {
        node: NODE.to_owned(),
        devices: vec![0, 1],
        report: None,
        last: None,
        samples_stored: 0,
        price: None,
    };
    record.attempts.push(AttemptRecord {
        number: 1,
        placed_at: Timestamp::EPOCH,
        allocation: None,
        ended_at: None,
        placed_because: "it fits".to_owned(),
        ended_because: None,
        fault: None,
        shares: vec![share],
        stragglers: Vec::new(),
    });
    record
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    /// Bodies of version 1: entries, then a snapshot.
    const JOURNAL: &str = include_str!("../../store/tests/fixtures/journal_v1.txt");
    /// A supervisor's report.
    const REPORT: &str = include_str!("../../../fuzz/seeds/report/running.json");
    /// Job files.
    const JOB_FILES: [&str; 2] =
        [include_str!("../../../examples/jobs/hello.yaml"), include_str!("../../../examples/jobs/torchrun-style.yaml")];

    /// Runs a reader on `rounds` mutations of an input: bytes changed, removed and repeated.
    fn mutate(reader: fn(&[u8]), sound: &[u8], rounds: u32) {
        reader(sound);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..rounds {
            let mut bytes = sound.to_vec();
            for _ in 0..=random.next_u32() % 3 {
                let at = usize::try_from(random.next_u64() % bytes.len() as u64).unwrap();
                match random.next_u32() % 4 {
                    0 => bytes[at] ^= 1 << (random.next_u32() % 8),
                    1 => bytes[at] = b"0-9.e\"{}[]:,\n &*"[(random.next_u32() % 16) as usize],
                    2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, bytes[at]),
                }
            }
            reader(&bytes);
        }
    }

    #[test]
    fn no_mutation_of_a_job_file_makes_a_panic() {
        for text in JOB_FILES {
            assert!(read(text).is_ok());
            mutate(job_file, text.as_bytes(), 500);
        }
    }

    #[test]
    fn no_mutation_of_a_journal_body_makes_a_panic() {
        let bodies: Vec<&str> = JOURNAL.lines().collect();
        let (snapshot, entries) = bodies.split_last().unwrap();
        assert!(decode_snapshot(snapshot.as_bytes()).is_ok());
        entries.iter().for_each(|body| mutate(journal_entry, body.as_bytes(), 30));
        mutate(journal_snapshot, snapshot.as_bytes(), 100);
    }

    #[test]
    fn no_mutation_of_a_report_makes_a_panic() {
        assert!(serde_json::from_str::<Report>(REPORT).is_ok());
        mutate(report, REPORT.as_bytes(), 2_000);
    }
}
