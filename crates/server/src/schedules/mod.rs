//! Schedules: job files that are submitted again and again, as cron does it. A task of the server submits each for its
//! user at its times, as that user's client would; nothing here runs on the deciding thread.
//!
//! Schedules outlive a restart in a file of their own. What is due is written down before it is submitted, so that a
//! time is submitted once at most, whenever the control plane ends. Times that pass while it is down are left out, and
//! so are those at which the schedule's last job is still live.

mod routes;
mod state;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gangline_api as api;
use gangline_base::{JobId, Principal};
use tokio::sync::Notify;
use tracing::{info, warn};

use crate::error::ApiError;
use crate::state_file::{self, StateFile};
use crate::{App, jobs, read};

pub(crate) use routes::*;
use state::{Due, Outcome, State};

/// The file in the data folder.
const SAVED_FILE: &str = "schedules.json";
/// Bytes of that file: far above what the most schedules with the largest job files take.
const SAVED_BYTES_MAX: u64 = 256 << 20;
/// The longest pause between two looks at what is due: a clock that is set forward is noticed by then.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A handle to the schedules; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Handle {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Locked before `state`, never after it.
    file: Mutex<StateFile>,
    changed: Notify,
}

impl Handle {
    /// Reads the schedules of a data folder. What can't be read is put aside.
    #[must_use]
    pub fn open(folder: &Path) -> Handle {
        let path = folder.join(SAVED_FILE);
        let read = state_file::read(&path, SAVED_BYTES_MAX).map_err(|error| error.to_string());
        let state = read.and_then(|text| text.map_or_else(|| Ok(State::default()), |text| State::restore(&text)));
        let state = state.unwrap_or_else(|error| {
            let aside = state_file::put_aside(&path);
            warn!(file = %aside.display(), error, "the saved schedules can't be read and are put aside");
            State::default()
        });
        let shared = Shared { state: Mutex::new(state), file: Mutex::new(StateFile::at(path)), ..Shared::default() };
        Handle { shared: Arc::new(shared) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the schedules down if they changed, on a thread that may block.
    async fn save(&self) -> Result<(), ApiError> {
        let shared = Arc::clone(&self.shared);
        let save = move || {
            let mut file = shared.file.lock().unwrap_or_else(PoisonError::into_inner);
            let text = shared.state.lock().unwrap_or_else(PoisonError::into_inner).save();
            file.write(text)
        };
        let saved = tokio::task::spawn_blocking(save).await;
        let saved = saved.map_err(|_| ApiError::internal("saving schedules panicked"))?;
        saved.map_err(|error| ApiError::internal(&format!("{SAVED_FILE} can't be written: {error}")))
    }
}

/// Submits what is due, until it is dropped.
pub(crate) async fn run(app: Arc<App>) {
    let schedules = &app.schedules;
    loop {
        let now = (app.clock)();
        let due = schedules.state().take_due(now);
        // What isn't written down could be submitted a second time after a restart.
        let noted = if due.is_empty() { Ok(()) } else { schedules.save().await };
        for due in due {
            let (outcome, jobs) = match &noted {
                Ok(()) => submit(&app, &due).await,
                Err(error) => (Outcome::Failed(error.line()), Vec::new()),
            };
            tell(due.schedule, &outcome);
            schedules.state().finish(due.schedule, outcome, jobs);
            // A failure is logged, and the next save has the outcome too.
            let _ = schedules.save().await;
        }
        let next = schedules.state().next();
        let pause = next.map_or(LOOK_EVERY, |next| next.since((app.clock)()).min(LOOK_EVERY));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = schedules.shared.changed.notified() => {}
        }
    }
}

fn tell(schedule: u64, outcome: &Outcome) {
    let schedule = state::id(schedule);
    match outcome {
        Outcome::Submitted(id) => info!(schedule, "submitted {id}"),
        Outcome::LeftOut(why) => info!(schedule, "left out: {why}"),
        Outcome::Failed(why) => warn!(schedule, "can't be submitted: {why}"),
        Outcome::Begun => {}
    }
}

/// Submits what is due, unless a job of the time before is live. Returns the jobs, too.
async fn submit(app: &Arc<App>, due: &Due) -> (Outcome, Vec<JobId>) {
    let without_jobs = |outcome| (outcome, Vec::new());
    match live_of(app, &due.before).await {
        Ok(None) => {}
        Ok(Some(live)) => return without_jobs(Outcome::LeftOut(format!("{live} of the time before is still live"))),
        Err(error) => return without_jobs(Outcome::Failed(error.line())),
    }
    let handle = app.handle.by(Principal::User(due.submitter.clone()));
    let answer = match jobs::read_aside(app, &due.submitter, due.request.clone()).await {
        Ok(submission) => jobs::take_in(&handle, submission).await,
        Err(error) => Err(error),
    };
    let (id, jobs) = match answer {
        Ok(api::Answer::Submitted(submitted)) => (submitted.job.clone(), vec![submitted.job]),
        Ok(api::Answer::SweepSubmitted(submitted)) => (submitted.sweep, submitted.jobs),
        Ok(api::Answer::DryRun(_)) => return without_jobs(Outcome::Failed("it was a dry run".to_owned())),
        Err(error) => return without_jobs(Outcome::Failed(error.line())),
    };
    (Outcome::Submitted(id), jobs.iter().filter_map(|job| jobs::parse_job(job).ok()).collect())
}

/// Returns the first of these jobs that has not ended.
async fn live_of(app: &Arc<App>, jobs: &[JobId]) -> Result<Option<JobId>, ApiError> {
    let jobs = jobs.to_vec();
    read(app, move |views| {
        for job in jobs {
            if views.job(job)?.is_some_and(|found| !found.state.is_final()) {
                return Ok(Some(job));
            }
        }
        Ok(None)
    })
    .await
}
