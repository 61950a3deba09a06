//! Job files: YAML at the border, a checked [`JobSpec`] behind it. The keys are those of `docs/job-file.md`.
//!
//! Reading has three steps: text to a tree with the place of every value (`yaml`), the tree with `--set` applied
//! (`overrides`), the tree to a specification (`job`, with `field` and `values` for single values). Problems are collected,
//! each with a code, its place and, where there is one, a hint. Nothing is silently ignored: what Gangline does not honour yet
//! is checked and then refused.
//!
//! Pure but for the question whether a folder exists, which is an argument. Everything has a limit, and there are no
//! aliases, so that a small file cannot grow into a large tree.

mod datasets;
mod elastic;
mod field;
mod job;
mod keys;
mod overrides;
mod pins;
mod problem;
mod sweep;
#[cfg(test)]
mod tests;
mod topology;
mod values;
mod yaml;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{Bytes, JobSpec, Submitter, SweepSpec};

pub use problem::{Code, Place, Problem};

use problem::Problems;

/// The largest job file.
pub const FILE_MAX: Bytes = Bytes(256 << 10);
/// The most `--set` options for one job.
pub const OVERRIDES_MAX: usize = 64;

/// The longest time that is read: longer ones are mistakes.
const DURATION_MAX: Duration = Duration::from_hours(24 * 365);
/// The longest that something is kept, unless it is kept for ever.
const AGE_MAX: Duration = Duration::from_hours(24 * 365 * 100);

/// A time as job files write it, `90s`, `10m`, `24h` or `7d`, for the command line and the configuration file.
///
/// # Errors
/// A sentence that says what is wrong with it, to be put after its name.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    read_duration(text, DURATION_MAX)
}

/// As [`parse_duration`], up to a hundred years: how long something is kept.
pub(crate) fn parse_age(text: &str) -> Result<Duration, String> {
    read_duration(text, AGE_MAX)
}

fn read_duration(text: &str, max: Duration) -> Result<Duration, String> {
    values::duration(text, max).map_err(|refusal| match refusal.hint {
        Some(hint) => format!("{}: {hint}", refusal.message),
        None => refusal.message,
    })
}

/// What a job file is read with besides its text.
pub struct Context<'a> {
    /// How problems name the file.
    pub file_name: &'a str,
    /// Relative paths in the file start here. Absolute.
    pub base: &'a Path,
    /// On whose behalf the job will run.
    pub submitter: Submitter,
    /// `key=value` pairs that take precedence over the file; dots go into mappings: `envs.LR=1e-3`.
    pub overrides: &'a [String],
    /// Whether a folder exists.
    pub is_folder: &'a dyn Fn(&Path) -> bool,
}

/// What a job file asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submission {
    /// One job.
    Job(Box<JobSpec>),
    /// One for each point of a grid.
    Sweep(Box<SweepSpec>),
}

/// Reads a job file.
///
/// # Errors
/// Every problem found, in the file's order, at most [`Problem::COUNT_MAX`]. Text that is not YAML is one problem, because
/// nothing after it can be trusted.
pub fn parse(text: &str, context: &Context<'_>) -> Result<Submission, Vec<Problem>> {
    let mut problems = Problems::new(context.file_name);
    let job = yaml::read(text, &mut problems).and_then(|mut root| {
        overrides::apply(&mut root, context.overrides, &mut problems);
        job::read(&root, context, &mut problems)
    });
    let found = problems.into_sorted();
    match job {
        Some((job, None)) if found.is_empty() => Ok(Submission::Job(Box::new(job))),
        Some((job, Some((grid, rules)))) if found.is_empty() => {
            Ok(Submission::Sweep(Box::new(SweepSpec { job: Arc::new(job), grid, rules })))
        }
        _ => {
            assert!(!found.is_empty(), "a job is refused only for a reason (A-4)");
            Err(found)
        }
    }
}
