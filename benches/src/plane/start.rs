//! A start with a long past: entries that were really written, by submitting and cancelling, with the snapshots that come of it.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Result;

use super::admissions::{Request, cancel, submit};
use super::load::{RUNNING, Running};
use super::up::Plane;
use super::{Bench, sizes};
use crate::report::{Bar, percentile};

/// How long a start may take.
const START_MOST: Duration = Duration::from_secs(2);
/// Jobs that wait all the time.
const WAITING: u64 = 1_000;
/// Jobs that are submitted and cancelled before the entries are counted again.
const STRETCH: u64 = 20_000;
/// Starts of each kind.
const STARTS: usize = 5;

/// Writes the past, then kills and starts.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let wanted = bench.options.entries;
    bench.report.section(&format!("A start after SIGKILL with {wanted} journal entries behind it (measured)"));
    let mut plane = Plane::start(&bench.gangline, RUNNING, 1)?;
    let running = Running::start(&plane)?;
    let (request, number) = (Request::new(&plane, true), AtomicU64::new(0));
    submit(&plane, &request, &number, WAITING, Duration::MAX)?;
    let mut submitted = u64::from(RUNNING) + WAITING;
    let mut entries = plane.entries()?;
    while entries < wanted {
        submit(&plane, &request, &number, STRETCH, Duration::MAX)?;
        cancel(&plane, submitted + 1..submitted + STRETCH + 1)?;
        submitted += STRETCH;
        entries = plane.entries()?;
    }
    running.stop()?;
    let sizes = sizes::of_journal(&plane)?;
    bench.report.note(&format!(
        "{entries} entries of {submitted} jobs, {} wait; the journal's files have {:.0} MB",
        WAITING,
        sizes.files as f64 / 1e6
    ));
    for (what, is_cold) in [("warm", false), ("cold (its pages forgotten)", true)] {
        let mut times = Vec::new();
        for _ in 0..STARTS {
            plane.kill()?;
            if is_cold {
                plane.forget_pages()?;
            }
            times.push(plane.restart()?);
        }
        let what = format!("until /health says ok, {what}");
        bench.report.time(&format!("{what}, median of {STARTS}"), percentile(&mut times, 50), Some(START_MOST));
        bench.report.time(&format!("{what}, worst"), percentile(&mut times, 100), None);
    }
    let entries = plane.entries()? as f64;
    bench.report.figure("entries at the end", entries, "", Bar::AtLeast(wanted as f64));
    Ok(())
}
