//! Traces as text: the normalised CSV of GPU-cluster traces, and the Standard Workload Format.
//!
//! The CSV has a header with at least `job_id,submit_s,duration_s,gpus`; `user`, `vc` and `model` are read if
//! present, other columns are ignored, and an empty field means unknown. SWF version 2.2 (Chapin, Feitelson
//! et al., "Benchmarks and standards for the evaluation of parallel job schedulers", JSSPP 1999) has 18
//! numbers per line and comments after `;`; processors count as accelerators, and -1 means unknown. Jobs that
//! never ran (no run time, no processors) or are only a part of a job (status 2 to 4) are not simulated.

use std::time::Duration;

use gangline_base::Timestamp;

use super::workload::{Labels, TraceJob, Workload};

/// The most jobs in a trace.
pub const JOBS_MAX: usize = 50_000_000;
/// The latest time in a trace, in seconds: a thousand years would overflow the virtual clock.
const SECONDS_MAX: u64 = 3_000_000_000;
/// The number of columns of an SWF line.
const SWF_COLUMNS: usize = 18;

/// The format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFormat {
    /// The normalised CSV.
    Csv,
    /// The Standard Workload Format.
    Swf,
}

/// What to do with an invalid row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRows {
    /// Refuse the trace.
    Refuse,
    /// Leave the row out and count it.
    Skip,
}

/// The error for an unreadable trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct TraceError {
    /// The trace's file name.
    pub file: String,
    /// The number of the line, counted from 1.
    pub line: u32,
    /// The problem with the line.
    pub problem: TraceProblem,
}

/// The problem with a line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceProblem {
    /// There is no header.
    #[error("the trace is empty; its first line must name the columns (job_id,submit_s,duration_s,gpus,...)")]
    Empty,
    /// The header lacks a column.
    #[error("the header has no column {0}; the columns are job_id,submit_s,duration_s,gpus,user,vc,status")]
    NoColumn(&'static str),
    /// The line is too short.
    #[error("it has {found} fields and needs {needed}")]
    TooFewFields {
        /// The number of fields in the line.
        found: usize,
        /// The number of fields needed.
        needed: usize,
    },
    /// A required field is empty.
    #[error("{0} is empty")]
    Missing(&'static str),
    /// A time before the trace's start, or a negative duration.
    #[error("{column} is {text:?}: a time can't be negative")]
    Negative {
        /// The column.
        column: &'static str,
        /// The text of the field.
        text: String,
    },
    /// A field is not a number.
    #[error("{column} is {text:?}, which is not a number that fits there")]
    NotANumber {
        /// The column.
        column: &'static str,
        /// The text of the field.
        text: String,
    },
    /// A job requests no accelerators.
    #[error("gpus is 0: a job needs at least one accelerator")]
    NoGpus,
    /// The trace has more jobs than a simulation takes.
    #[error("the trace has more than {JOBS_MAX} jobs")]
    TooManyJobs,
}

/// Reads a trace. `file` is only its name, for messages. Rows out of order are sorted stably by submission.
///
/// # Errors
/// A [`TraceError`] for a header without the required columns, and for the first malformed row unless
/// malformed rows are skipped.
pub fn read_trace(file: &str, text: &str, format: TraceFormat, bad_rows: BadRows) -> Result<Workload, TraceError> {
    let at = |line: usize, problem| TraceError {
        file: file.to_owned(),
        line: u32::try_from(line).unwrap_or(u32::MAX),
        problem,
    };
    let mut labels = Labels::new();
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let columns = match format {
        TraceFormat::Csv => {
            let (line, header) = lines.next().ok_or_else(|| at(1, TraceProblem::Empty))?;
            Columns::find(header).map_err(|problem| at(line, problem))?
        }
        TraceFormat::Swf => Columns::default(),
    };
    let mut workload = Workload::default();
    for (number, line) in lines {
        let line_number = u32::try_from(number).unwrap_or(u32::MAX);
        let row = match format {
            _ if line.trim().is_empty() => Ok(None),
            TraceFormat::Csv => columns.read(line, line_number, &mut labels).map(Some),
            TraceFormat::Swf => read_swf(line, line_number, &mut labels),
        };
        match (row, bad_rows) {
            (Ok(Some(_)), _) if workload.jobs.len() >= JOBS_MAX => {
                return Err(at(number, TraceProblem::TooManyJobs));
            }
            (Ok(Some(job)), _) => workload.jobs.push(job),
            (Ok(None), _) => {}
            (Err(_), BadRows::Skip) => workload.skipped += 1,
            (Err(problem), BadRows::Refuse) => return Err(at(number, problem)),
        }
    }
    workload.jobs.sort_by_key(|job| job.submitted);
    workload.labels = labels.into_texts();
    Ok(workload)
}

/// The positions of the columns of a CSV trace.
#[derive(Default)]
struct Columns {
    submit: usize,
    duration: usize,
    gpus: usize,
    user: Option<usize>,
    queue: Option<usize>,
    model: Option<usize>,
}

/// The most fields of a line that are read.
const FIELDS_MAX: usize = 64;

impl Columns {
    fn find(header: &str) -> Result<Columns, TraceProblem> {
        let place = |name: &str| header.split(',').take(FIELDS_MAX).position(|column| column.trim() == name);
        let needed = |name: &'static str| place(name).ok_or(TraceProblem::NoColumn(name));
        needed("job_id")?;
        Ok(Columns {
            submit: needed("submit_s")?,
            duration: needed("duration_s")?,
            gpus: needed("gpus")?,
            user: place("user"),
            queue: place("vc"),
            model: place("model"),
        })
    }

    fn read(&self, line: &str, number: u32, labels: &mut Labels) -> Result<TraceJob, TraceProblem> {
        let mut fields = [""; FIELDS_MAX];
        let mut found = 0;
        for (slot, field) in fields.iter_mut().zip(line.split(',')) {
            *slot = field.trim();
            found += 1;
        }
        let needed = self.submit.max(self.duration).max(self.gpus) + 1;
        if found < needed {
            return Err(TraceProblem::TooFewFields { found, needed });
        }
        let gpus = fields[self.gpus];
        let gpus = match gpus.parse::<u32>() {
            Ok(0) => return Err(TraceProblem::NoGpus),
            Ok(gpus) => gpus,
            Err(_) if gpus.is_empty() => return Err(TraceProblem::Missing("gpus")),
            Err(_) => return Err(TraceProblem::NotANumber { column: "gpus", text: gpus.to_owned() }),
        };
        let mut label = |place: Option<usize>| labels.of(place.map_or("", |place| fields[place]));
        Ok(TraceJob {
            line: number,
            submitted: Timestamp::EPOCH + seconds("submit_s", fields[self.submit])?,
            duration: seconds("duration_s", fields[self.duration])?,
            gpus,
            user: label(self.user),
            queue: label(self.queue),
            model: label(self.model),
            limit: None,
        })
    }
}

fn read_swf(line: &str, number: u32, labels: &mut Labels) -> Result<Option<TraceJob>, TraceProblem> {
    if line.trim_start().starts_with(';') {
        return Ok(None);
    }
    let mut fields = [""; SWF_COLUMNS];
    let mut found = 0;
    for (slot, field) in fields.iter_mut().zip(line.split_whitespace()) {
        *slot = field;
        found += 1;
    }
    if found < SWF_COLUMNS {
        return Err(TraceProblem::TooFewFields { found, needed: SWF_COLUMNS });
    }
    let [_, submit, _, run_time, allocated, _, _, requested, limit, _, status, user, _, _, queue, ..] = fields;
    let is_known = |field: &str| field != "-1";
    let is_part = matches!(status, "2" | "3" | "4");
    let processors = if is_known(allocated) { allocated } else { requested };
    if is_part || !is_known(run_time) || !is_known(processors) || processors == "0" {
        return Ok(None);
    }
    let gpus = processors
        .parse::<u32>()
        .map_err(|_| TraceProblem::NotANumber { column: "processors", text: processors.to_owned() })?;
    let mut label = |field: &str| labels.of(if is_known(field) { field } else { "" });
    Ok(Some(TraceJob {
        line: number,
        submitted: Timestamp::EPOCH + seconds("submit time", submit)?,
        duration: seconds("run time", run_time)?,
        gpus,
        user: label(user),
        queue: label(queue),
        model: label(""),
        limit: if is_known(limit) && limit != "0" { Some(seconds("requested time", limit)?) } else { None },
    }))
}

/// Parses decimal seconds, exact to the nanosecond. (A float would lose the last digits of a year.)
fn seconds(column: &'static str, text: &str) -> Result<Duration, TraceProblem> {
    if text.is_empty() {
        return Err(TraceProblem::Missing(column));
    }
    if text.starts_with('-') && text.parse::<f64>().is_ok() {
        return Err(TraceProblem::Negative { column, text: text.to_owned() });
    }
    let bad = || TraceProblem::NotANumber { column, text: text.to_owned() };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let are_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) {
        // The text may have an exponent.
        let value = text.parse::<f64>().map_err(|_| bad())?;
        return Duration::try_from_secs_f64(value).ok().filter(|it| it.as_secs() <= SECONDS_MAX).ok_or_else(bad);
    }
    let whole: u64 = whole.parse().map_err(|_| bad())?;
    let nanos = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = nanos.fold(0_u32, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    if whole > SECONDS_MAX { Err(bad()) } else { Ok(Duration::new(whole, nanos)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "job_id,submit_s,duration_s,gpus,user,vc,status,model\n";

    fn csv(rows: &str, bad_rows: BadRows) -> Result<Workload, TraceError> {
        read_trace("t.csv", &format!("{HEADER}{rows}"), TraceFormat::Csv, bad_rows)
    }

    #[test]
    fn rows_are_read_exactly_and_sorted_stably() {
        let workload = csv("b,7,2868293.89,8,ann,vc1,,bert\na,0.5,1e2,1,,,,\nc,7,0,2,ann,vc1,ok,\n", BadRows::Refuse);
        let workload = workload.expect("the rows are well formed");
        let lines: Vec<u32> = workload.jobs.iter().map(|job| job.line).collect();
        assert_eq!(lines, [3, 2, 4]);
        assert_eq!(workload.jobs[0].submitted, Timestamp::EPOCH + Duration::from_millis(500));
        assert_eq!(workload.jobs[0].duration, Duration::from_secs(100));
        assert_eq!(workload.jobs[1].duration, Duration::new(2_868_293, 890_000_000));
        assert_eq!(workload.label(workload.jobs[1].user), "ann");
        assert_eq!(workload.label(workload.jobs[1].model), "bert");
        assert_eq!(workload.jobs[1].queue, workload.jobs[2].queue);
    }

    #[test]
    fn a_malformed_row_is_refused_with_its_place_and_why() {
        let check = |row: &str, expected: &str| {
            let error = csv(&format!("a,0,1,1,,,,\n{row}\n"), BadRows::Refuse).expect_err("the row is malformed");
            assert_eq!(error.to_string(), format!("t.csv:3: {expected}"));
        };
        check("b,-1,1,1,,,,", "submit_s is \"-1\": a time can't be negative");
        check("b,1,-0.5,1,,,,", "duration_s is \"-0.5\": a time can't be negative");
        check("b,1,,1,,,,", "duration_s is empty");
        check("b,1,x,1,,,,", "duration_s is \"x\", which is not a number that fits there");
        check("b,1,1e300,1,,,,", "duration_s is \"1e300\", which is not a number that fits there");
        check("b,1,99999999999,1,,,,", "duration_s is \"99999999999\", which is not a number that fits there");
        check("b,1,1,0,,,,", "gpus is 0: a job needs at least one accelerator");
        check("b,1,1,1.5,,,,", "gpus is \"1.5\", which is not a number that fits there");
        check("b,1,1", "it has 3 fields and needs 4");
    }

    #[test]
    fn malformed_rows_are_counted_when_the_caller_says_to_skip_them() {
        let workload = csv("a,0,1,1,,,,\nb,-1,1,1,,,,\nc,1,1,0,,,,\n\n", BadRows::Skip).expect("bad rows are skipped");
        assert_eq!((workload.jobs.len(), workload.skipped), (1, 2));
    }

    #[test]
    fn a_trace_without_its_columns_is_refused_even_when_bad_rows_are_skipped() {
        let read = |text: &str| read_trace("t.csv", text, TraceFormat::Csv, BadRows::Skip).map_err(|e| e.problem);
        assert_eq!(read("job_id,submit_s,gpus\n"), Err(TraceProblem::NoColumn("duration_s")));
        assert_eq!(read(""), Err(TraceProblem::Empty));
    }

    #[test]
    fn swf_jobs_that_never_ran_or_are_parts_are_no_jobs() {
        let text = "; Version: 2.2\n\
            1 0 5 100 4 -1 -1 4 3600 -1 1 7 1 -1 2 -1 -1 -1\n\
            2 9 -1 -1 -1 -1 -1 8 3600 -1 5 7 1 -1 2 -1 -1 -1\n\
            3 10 0 50 -1 -1 -1 2 -1 -1 1 8 1 -1 -1 -1 -1 -1\n\
            4 11 0 50 2 -1 -1 2 -1 -1 3 8 1 -1 -1 -1 -1 -1\n";
        let workload = read_trace("t.swf", text, TraceFormat::Swf, BadRows::Refuse).expect("it is SWF");
        let rows: Vec<_> = workload.jobs.iter().map(|job| (job.line, job.gpus, job.limit)).collect();
        assert_eq!(rows, [(2, 4, Some(Duration::from_secs(3_600))), (4, 2, None)]);
        assert_eq!(workload.label(workload.jobs[0].user), "7");
        let short = read_trace("t.swf", "1 0 5\n", TraceFormat::Swf, BadRows::Refuse).map_err(|error| error.problem);
        assert_eq!(short, Err(TraceProblem::TooFewFields { found: 3, needed: 18 }));
    }
}
