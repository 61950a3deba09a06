//! Alerts of a running control plane: a thread evaluates the rules, and one thread for each receiver delivers.
//!
//! Nothing here runs on the deciding thread, which is asked as any user asks it, for health, nodes and queues. What the rules
//! look at besides comes from the read models and the series store. Alerts and silences outlive a restart in a file of
//! their own; if it can't be written, alerts go on and that is shown.

mod delivery;
mod failures;
mod nodes;
mod readings;
pub(crate) mod routes;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::budgets::Budgets;
use gangline_base::{Timestamp, with_causes};
use gangline_control::delivery::MailServer;
use gangline_control::service;
use gangline_control::views::Views;
use gangline_telemetry::alerts::{Engine, Rules};
use gangline_telemetry::series;
use tracing::{info, warn};

use crate::state_file::{self, StateFile};
use delivery::Deliveries;
pub(crate) use delivery::authorities;
use readings::{Metrics, Sources};

/// The file of alerts and silences in the data folder.
const SAVED_FILE: &str = "alerts.json";
/// Bytes of that file: far above what 10,000 alerts and 1,000 silences take.
const SAVED_BYTES_MAX: u64 = 256 << 20;

/// How often the time between evaluations is looked at while the next one is waited for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What alerts need.
pub struct Options {
    /// Rules and receivers.
    pub rules: Rules,
    /// The data folder, and the folder of the journal: alerts and silences are kept in the first, and the disks of both are
    /// watched.
    pub folder: PathBuf,
    /// See [`Options::folder`].
    pub journal_folder: PathBuf,
    /// Asks the service.
    pub handle: service::Handle,
    /// Answers from the read models.
    pub views: Views,
    /// The configuration's budgets.
    pub budgets: Budgets,
    /// The series store.
    pub series: series::Handle,
    /// The server for mail; none if nothing can be mailed.
    pub mail: Option<MailServer>,
    /// Returns the wall-clock time.
    pub clock: fn() -> Timestamp,
}

/// What all threads share.
#[derive(Debug, Default)]
struct Shared {
    engine: Engine,
    /// The rules in force, the mail server and the clock; none where alerts don't run.
    setup: Option<Setup>,
    evaluated_at: Option<Timestamp>,
    /// Why the last evaluation had less to look at, or couldn't be kept.
    failure: Option<String>,
    deliveries: Option<Deliveries>,
}

/// What alerts were set up with.
#[derive(Clone, Debug)]
struct Setup {
    rules: Rules,
    mail: Option<MailServer>,
    clock: fn() -> Timestamp,
}

impl Shared {
    /// The time between two evaluations.
    fn every(&self) -> Duration {
        self.setup.as_ref().map_or(Duration::ZERO, |setup| setup.rules.every)
    }
}

/// Running alerts.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

/// A handle to alerts; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Handle {
    shared: Arc<Mutex<Shared>>,
    /// Locked before `shared`, never after it.
    state_file: Arc<Mutex<StateFile>>,
}

impl Service {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread can't be started. [`Handle::default`] stands for alerts then.
    pub fn start(options: Options) -> io::Result<Service> {
        let file = options.folder.join(SAVED_FILE);
        let setup = Setup { rules: options.rules.clone(), mail: options.mail.clone(), clock: options.clock };
        let engine = restored(&file, setup.rules.rules.clone(), (setup.clock)());
        let deliveries = Some(setup.deliveries()?);
        let shared = Shared { engine, setup: Some(setup), deliveries, ..Shared::default() };
        let state_file = StateFile::at(file);
        let handle = Handle { shared: Arc::new(Mutex::new(shared)), state_file: Arc::new(Mutex::new(state_file)) };
        let watch = Watch { sources: Sources::of(options)?, handle: handle.clone() };
        let (stop, stopped) = channel();
        let thread = Builder::new().name("alerts".to_owned()).spawn(move || watch.run(&stopped))?;
        Ok(Service { handle, stop, thread })
    }

    /// Returns a handle.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Ends the threads. Messages that wait are given up; alerts that fire are known after the next start.
    pub fn stop(self) {
        // Fails only if the thread has ended already.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            warn!("the thread of alerts had panicked");
        }
        let deliveries = self.handle.shared().deliveries.take();
        deliveries.into_iter().for_each(Deliveries::stop);
    }
}

impl Setup {
    fn deliveries(&self) -> io::Result<Deliveries> {
        Deliveries::start(self.rules.receivers.clone(), self.mail.as_ref(), self.clock)
    }
}

impl Handle {
    /// Puts other rules in force, and reports whether they differ from those before. Alerts and silences stay; an alert of a rule
    /// that is gone is over with the next evaluation. Receivers that stay the same lose no message.
    ///
    /// # Errors
    /// If alerts don't run, or no thread can be started for new receivers: the rules then stay as they were.
    pub fn replace(&self, rules: Rules) -> io::Result<bool> {
        let mut shared = self.shared();
        let Some(before) = shared.setup.clone() else { return Err(io::Error::other("alerts don't run")) };
        if before.rules == rules {
            return Ok(false);
        }
        let setup = Setup { rules, ..before.clone() };
        let now = (setup.clock)();
        let engine =
            Engine::restore(setup.rules.rules.clone(), &shared.engine.save(), now).map_err(io::Error::other)?;
        let replaced = if setup.rules.receivers == before.rules.receivers {
            None
        } else {
            let started = setup.deliveries()?;
            shared.deliveries.replace(started)
        };
        (shared.engine, shared.setup) = (engine, Some(setup));
        drop(shared);
        if let Some(replaced) = replaced {
            // A message may be on its way to a receiver that doesn't answer. Without a thread for this, nobody waits for it.
            drop(Builder::new().name("alerts-end".to_owned()).spawn(move || replaced.stop()));
        }
        Ok(true)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes alerts and silences down if they changed. Others may look at them meanwhile.
    fn save(&self) -> io::Result<()> {
        let mut state_file = self.state_file.lock().unwrap_or_else(PoisonError::into_inner);
        let text = self.shared().engine.save();
        state_file.write(text)
    }
}

/// Reads what an earlier control plane left; what can't be read is put aside.
fn restored(file: &Path, rules: Vec<gangline_telemetry::alerts::Rule>, now: Timestamp) -> Engine {
    let text = match state_file::read(file, SAVED_BYTES_MAX) {
        Ok(Some(text)) => text,
        Ok(None) => return Engine::new(rules),
        Err(error) => {
            warn!(file = %file.display(), %error, "alerts and silences of before can't be read");
            return Engine::new(rules);
        }
    };
    Engine::restore(rules.clone(), &text, now).unwrap_or_else(|error| {
        let aside = state_file::put_aside(file);
        warn!(file = %aside.display(), error = with_causes(&error), "alerts and silences of before are put aside");
        Engine::new(rules)
    })
}

/// The thread that evaluates.
struct Watch {
    sources: Sources,
    handle: Handle,
}

impl Watch {
    fn run(self, stopped: &Receiver<()>) {
        let (mut last_due, mut earliest) = (None, Instant::now());
        loop {
            // The time between evaluations may change while one is waited for.
            let due = last_due.map_or(earliest, |last: Instant| earliest.max(last + self.handle.shared().every()));
            let left = due.saturating_duration_since(Instant::now());
            match stopped.recv_timeout(left.min(LOOK_AGAIN)) {
                Err(RecvTimeoutError::Timeout) if left > LOOK_AGAIN => continue,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
            self.evaluate();
            // After an evaluation that took too long, or a suspended machine, the missed ones aren't made up for.
            (last_due, earliest) = (Some(due), Instant::now());
        }
    }

    fn evaluate(&self) {
        let metrics = Metrics::of(self.handle.shared().engine.rules());
        let (readings, gaps) = self.sources.read(&metrics);
        let now = (self.sources.clock)();
        let mut shared = self.handle.shared();
        shared.engine.evaluate(now, &readings);
        let repeat = shared.setup.as_ref().map_or(Duration::MAX, |setup| setup.rules.repeat);
        let news = shared.engine.news(now, repeat);
        for alert in &news {
            info!(alert = alert.id, rule = alert.rule, state = alert.state.name(), "{}", alert.summary);
        }
        let firing = shared.engine.firing();
        if let Some(deliveries) = &mut shared.deliveries {
            deliveries.deliver(now, &news, &firing);
        }
        drop(shared);
        let unsaved = self.handle.save().err().map(|error| format!("alerts and silences can't be kept: {error}"));
        let failure = gaps.or(unsaved);
        let mut shared = self.handle.shared();
        if let Some(failure) = failure.as_ref().filter(|_| shared.failure.is_none()) {
            warn!(failure, "alerts aren't complete");
        }
        (shared.failure, shared.evaluated_at) = (failure, Some(now));
    }
}
