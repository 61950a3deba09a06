//! `cost sacct --reconcile`: what Slurm allocated to jobs beside what the ledger booked for them.

use std::collections::BTreeMap;

use gangline_accounting::sacct::{PastJob, Prices};
use gangline_api as api;
use gangline_base::{JobId, Timestamp};
use serde_json::{Value, json};

use super::device_time;
use super::sacct::seconds;
use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Slurm counts whole seconds, and frees an attempt's nodes up to this long after its end is booked.
const SECONDS_PER_ATTEMPT: f64 = 2.0;

/// What Slurm allocated to a job, over all its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Allocated {
    /// Rows, one for each attempt.
    rows: u32,
    /// Device time.
    gpu_seconds: f64,
    /// The most devices of a row.
    devices: u64,
}

/// A job in both books.
#[derive(Clone, Debug, PartialEq)]
struct Compared {
    job: String,
    allocated: Allocated,
    booked: f64,
}

/// Jobs in both books, and the number of those that are live or of which the ledger has nothing.
#[derive(Debug, Default)]
struct Comparison {
    jobs: Vec<Compared>,
    live: u32,
    unknown: u32,
}

/// Compares the rows of Gangline's jobs with the ledger.
pub(super) fn run(client: &Client, rows: &[PastJob], is_json: bool) -> Result<(), Failure> {
    let allocated = by_job(rows);
    if allocated.is_empty() {
        let hint = "Gangline's jobs are named NAME (job-12) in Slurm, unless they ran in a pool";
        return Err(Failure::local("no row is of a job of Gangline".to_owned(), hint));
    }
    let mut comparison = Comparison::default();
    for (job, allocated) in allocated {
        match client.job(&job) {
            Ok(found) => comparison.add(&found, allocated),
            Err(Failure::Api { status: 404, .. }) => comparison.unknown += 1,
            Err(failure) => return Err(failure),
        }
    }
    if is_json { output::json(&comparison.as_json()) } else { output::print(&comparison.text()) }
}

/// Returns what the rows of each job of Gangline held.
fn by_job(rows: &[PastJob]) -> BTreeMap<String, Allocated> {
    let always = (Timestamp::EPOCH, Timestamp::from_unix_nanos(u64::MAX));
    let mut jobs: BTreeMap<String, Allocated> = BTreeMap::new();
    for row in rows {
        let Some(job) = job_in(&row.name) else { continue };
        let job = jobs.entry(job.to_string()).or_default();
        job.rows += 1;
        job.gpu_seconds += seconds(row.amount(always, &Prices::new()).nanos);
        job.devices = job.devices.max(row.devices.values().sum());
    }
    jobs
}

/// Returns the job that a Slurm job's name ends with: `gpt (job-12)`.
fn job_in(name: &str) -> Option<JobId> {
    let (_, id) = name.strip_suffix(')')?.rsplit_once('(')?;
    id.parse().ok().filter(|job: &JobId| job.to_string() == id)
}

impl Comparison {
    fn add(&mut self, job: &api::Job, allocated: Allocated) {
        if !job.state.is_final() {
            self.live += 1;
            return;
        }
        self.jobs.push(Compared { job: job.id.to_string(), allocated, booked: job.usage.gpu_seconds });
    }

    fn text(&self) -> String {
        let headings = ["JOB", ">ATTEMPTS", ">BY SLURM", ">BOOKED", ">DIFFERENCE", "VERDICT"];
        let row = |job: &Compared| {
            vec![
                job.job.clone(),
                job.allocated.rows.to_string(),
                device_time(job.allocated.gpu_seconds),
                device_time(job.booked),
                format!("{:+.1} s", job.difference()),
                job.verdict().to_owned(),
            ]
        };
        let mut text = output::table(&headings, self.jobs.iter().map(row).collect());
        let differing = self.jobs.iter().filter(|job| !job.is_same()).count();
        text += &format!(
            "\n{differing} of {} job(s) differ by more than {SECONDS_PER_ATTEMPT} s of an attempt's devices\n",
            self.jobs.len()
        );
        let left_out = [(self.live, "not over yet"), (self.unknown, "unknown to this control plane")];
        let left_out = left_out.into_iter().filter(|(count, _)| *count > 0);
        let left_out: Vec<String> = left_out.map(|(count, why)| format!("{count} {why}")).collect();
        if !left_out.is_empty() {
            text += &format!("jobs left out: {}\n", left_out.join(", "));
        }
        text
    }

    fn as_json(&self) -> Value {
        let job = |job: &Compared| {
            json!({
                "job": job.job,
                "attempts": job.allocated.rows,
                "allocated_gpu_seconds": job.allocated.gpu_seconds,
                "booked_gpu_seconds": job.booked,
                "difference_gpu_seconds": job.difference(),
                "is_same": job.is_same(),
            })
        };
        let jobs: Vec<Value> = self.jobs.iter().map(job).collect();
        json!({"jobs": jobs, "left_out": {"live": self.live, "unknown": self.unknown}})
    }
}

impl Compared {
    /// The device time that was booked beyond what Slurm allocated.
    fn difference(&self) -> f64 {
        self.booked - self.allocated.gpu_seconds
    }

    fn is_same(&self) -> bool {
        let devices = u32::try_from(self.allocated.devices).unwrap_or(u32::MAX);
        self.difference().abs() <= SECONDS_PER_ATTEMPT * f64::from(self.allocated.rows) * f64::from(devices)
    }

    fn verdict(&self) -> &'static str {
        match self.difference() {
            _ if self.is_same() => "the same",
            more if more > 0.0 => "booked more",
            _ => "booked less",
        }
    }
}

#[cfg(test)]
mod tests {
    use gangline_accounting::sacct::devices;

    use super::*;

    fn row(name: &str, elapsed: u64, tres: &str) -> PastJob {
        let [user, account, partition, state] = ["ada", "nlp", "h100", "completed"].map(str::to_owned);
        let (start, devices) = (Timestamp::EPOCH, devices(tres).expect("a sound list"));
        PastJob { user, account, partition, name: name.to_owned(), state, start, elapsed, devices }
    }

    #[test]
    fn rows_are_summed_by_the_job_in_their_names() {
        let rows = [
            row("gpt (7b) (job-12)", 100, "gres/gpu:h100=8"),
            row("gpt (7b) (job-12)", 50, "gres/gpu:h100=4"),
            row("gpt", 10, "gres/gpu:h100=8"),
            row("gpt (12)", 10, "gres/gpu:h100=8"),
        ];
        let expected = Allocated { rows: 2, gpu_seconds: 1_000.0, devices: 8 };
        assert_eq!(by_job(&rows), [("job-12".to_owned(), expected)].into());
    }

    #[test]
    fn two_seconds_of_each_attempts_devices_are_no_difference() {
        let allocated = Allocated { rows: 2, gpu_seconds: 1_000.0, devices: 8 };
        let check = |booked: f64, verdict: &str| {
            assert_eq!(Compared { job: "job-1".to_owned(), allocated, booked }.verdict(), verdict, "{booked}");
        };
        check(1_000.0, "the same");
        check(1_032.0, "the same");
        check(968.0, "the same");
        check(1_040.0, "booked more");
        check(900.0, "booked less");
    }
}
