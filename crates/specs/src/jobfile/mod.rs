//! Job files: YAML text in, a checked [`JobSpec`] out. The keys are those of
//! `docs/reference/job-file.md`.
//!
//! Parsing has three steps: text to a tree with the place of every value (`yaml`); `--set` applied to the
//! tree (`overrides`); tree to specification (`job`, with `field` and `values` for single values). All
//! problems are collected, each with a code, its place and often a hint. Nothing is silently ignored: a
//! feature that Gangline doesn't support yet is checked and then refused.
//!
//! Pure: the caller passes a function that reports whether a folder exists. Everything has a limit,
//! and aliases aren't allowed, so that a small file can't grow into a large tree.

mod after;
mod change;
mod container;
mod datasets;
mod draw;
mod elastic;
mod field;
mod job;
mod keys;
mod notify;
mod overrides;
mod pins;
mod planned;
mod problem;
mod sweep;
mod template;
#[cfg(test)]
mod tests;
mod topology;
mod values;
mod workdir;
mod yaml;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{Bytes, CodeCopy, CodeSource, JobSpec, Submitter, SweepSpec};

pub use change::{CHANGES, parse_change};
pub use problem::{Code, Place, Problem};

use problem::Problems;

/// The largest job file, in bytes.
pub const FILE_MAX: Bytes = Bytes(256 << 10);
/// The most `--set` options for one job.
pub const OVERRIDES_MAX: usize = 64;

/// The longest duration; longer ones are mistakes.
const DURATION_MAX: Duration = Duration::from_hours(24 * 365);
/// The longest age of kept data; `never` has no limit.
const AGE_MAX: Duration = Duration::from_hours(24 * 365 * 100);

/// Parses a duration as in job files (`90s`, `10m`, `24h` or `7d`), for the command line and the
/// configuration file.
///
/// # Errors
/// A sentence about the defect that continues after the value's name.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    read_duration(text, DURATION_MAX)
}

/// Parses the age of kept data, as [`parse_duration`] but up to a hundred years.
pub fn parse_age(text: &str) -> Result<Duration, String> {
    read_duration(text, AGE_MAX)
}

fn read_duration(text: &str, max: Duration) -> Result<Duration, String> {
    values::duration(text, max).map_err(|refusal| match refusal.hint {
        Some(hint) => format!("{}: {hint}", refusal.message),
        None => refusal.message,
    })
}

/// The context in which a job file is parsed.
pub struct Context<'a> {
    /// The file's name in messages.
    pub file_name: &'a str,
    /// The absolute folder at which relative paths in the file start.
    pub base: &'a Path,
    /// The user for whom the job will run.
    pub submitter: Submitter,
    /// `key=value` pairs that override the file; dots lead into mappings: `envs.LR=1e-3`.
    pub overrides: &'a [String],
    /// Reports whether a folder exists.
    pub is_folder: &'a dyn Fn(&Path) -> bool,
    /// Returns the text of a template; or, as advice, why there is none.
    pub template: &'a dyn Fn(&str) -> Result<String, String>,
    /// Copies code, without the folder of checkpoints that may lie in it. Called once at most, for a file without a
    /// problem.
    pub copy_code: &'a CopyCode<'a>,
}

/// Copies code without a folder that may lie in it.
pub type CopyCode<'a> = dyn Fn(&CodeSource, Option<&Path>) -> Result<CodeCopy, NotCopied> + 'a;

/// Why code could not be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotCopied {
    /// The reason, as the end of a sentence about `workdir`.
    pub message: String,
    /// What to do.
    pub hint: String,
}

/// The parsed content of a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submission {
    /// One job.
    Job(Box<JobSpec>),
    /// One job for each point of a grid.
    Sweep(Box<SweepSpec>),
}

/// Parses a job file.
///
/// # Errors
/// All problems in the file's order, at most [`Problem::COUNT_MAX`]. Text that isn't YAML is a single
/// problem, because nothing after it can be trusted.
pub fn parse(text: &str, context: &Context<'_>) -> Result<Submission, Vec<Problem>> {
    let mut problems = Problems::new(context.file_name);
    let job = yaml::read(text, &mut problems).and_then(|mut root| {
        overrides::apply(&mut root, context.overrides, &mut problems);
        template::apply(&mut root, context, &mut problems);
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
