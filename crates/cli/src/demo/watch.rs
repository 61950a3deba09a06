//! Watches the demo's jobs (bars on a terminal, lines elsewhere), and kills a rank midway.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use gangline_api as api;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::failure::Failure;
use crate::{follow, jobs, output};

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Interval between two lines about a job, where there are no bars.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time of the whole demo.
const TIME_MAX: Duration = Duration::from_mins(15);
/// Percentage of its steps after which a rank of the gang is killed.
const KILL_AT_PERCENT: u64 = 45;

/// Shows why a job waits, as soon as one does.
pub(super) fn explain_the_waiting(client: &Client, ids: &[String]) -> Result<(), Failure> {
    for id in ids {
        let explanation: api::Explanation = client.get(&format!("/jobs/{id}/explain"))?;
        if explanation.blocker.is_some() {
            output::tell(&format!("$ gangline explain {id}"));
            output::tell(jobs::explanation_text(&explanation).trim_end());
        }
    }
    Ok(())
}

/// Follows the jobs until all have ended; kills a rank of the largest gang midway.
pub(super) fn to_the_end(client: &Client, ids: &[String]) -> Result<Vec<api::Job>, Failure> {
    let mut screen = Screen::new(ids);
    let mut has_killed = false;
    let started = Instant::now();
    loop {
        let jobs = ids.iter().map(|id| client.job(id)).collect::<Result<Vec<api::Job>, Failure>>()?;
        screen.show(&jobs);
        if !has_killed && let Some((job, rank, pid)) = victim(&jobs) {
            has_killed = true;
            kill_process(pid, Signal::KILL).map_err(std::io::Error::from)?;
            screen.say(&format!("killed rank {rank} of {job} (process {}) with SIGKILL", pid.as_raw_nonzero()));
        }
        if jobs.iter().all(|job| job.state.is_final()) {
            screen.close();
            return Ok(jobs);
        }
        if started.elapsed() > TIME_MAX {
            screen.close();
            return Err(Failure::local(format!("the jobs did not end within {} minutes", TIME_MAX.as_secs() / 60), ""));
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Returns the last rank of the largest gang, once it has saved and has done enough steps.
fn victim(jobs: &[api::Job]) -> Option<(&str, u32, Pid)> {
    let job = jobs.iter().max_by_key(|job| job.gang.nodes * job.gang.accelerators_per_node)?;
    let (step, total) = (job.progress.step?, job.progress.total_steps?);
    let is_due = job.state == api::JobState::Running && step * 100 >= total * KILL_AT_PERCENT;
    let has_saved = job.checkpoints.last_step.is_some();
    let rank = job.attempts.last()?.shares.last()?.ranks.last()?;
    let pid = Pid::from_raw(i32::try_from(rank.pid?).ok()?)?;
    (is_due && has_saved).then_some((job.id.as_str(), rank.rank, pid))
}

/// The progress display.
struct Screen {
    bars: Option<(MultiProgress, Vec<ProgressBar>)>,
    said: BTreeMap<String, (Instant, String)>,
}

impl Screen {
    fn new(ids: &[String]) -> Screen {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
            let bars = ids.iter().map(|_| follow::styled(all.add(ProgressBar::new(0)))).collect();
            (all, bars)
        });
        Screen { bars, said: BTreeMap::new() }
    }

    fn show(&mut self, jobs: &[api::Job]) {
        if let Some((_, bars)) = &self.bars {
            for (bar, job) in bars.iter().zip(jobs) {
                follow::show(bar, job);
            }
            return;
        }
        for job in jobs {
            self.line(job);
        }
    }

    /// Prints a line when the state changes, and from time to time while the job runs.
    fn line(&mut self, job: &api::Job) {
        let state = format!("{}/{}", job.state.name(), job.attempts.len());
        let is_news = self.said.get(&job.id).is_none_or(|(at, before)| {
            *before != state || job.state == api::JobState::Running && at.elapsed() >= LINE_INTERVAL
        });
        if is_news {
            let (step, total) = (job.progress.step.unwrap_or(0), job.progress.total_steps.unwrap_or(0));
            output::tell(&format!("{} {} ({}) step {step}/{total} {}", job.id, job.name, job.queue, follow::line(job)));
            self.said.insert(job.id.clone(), (Instant::now(), state));
        }
    }

    fn say(&self, line: &str) {
        match &self.bars {
            Some((all, _)) if all.println(line).is_ok() => {}
            _ => output::tell(line),
        }
    }

    fn close(&self) {
        if let Some((_, bars)) = &self.bars {
            bars.iter().for_each(ProgressBar::abandon);
        }
    }
}
