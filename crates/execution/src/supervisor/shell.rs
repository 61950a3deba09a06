//! Carries out the actions of the [`NodeAttempt`]: processes, sockets, time, the control plane.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gangline_base::Timestamp;
use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::sleep_until;

use super::checkup::Checkup;
use super::clearing;
use super::contact::{Answer, Contact};
use super::courier::{Courier, Posted};
use super::dataset_cache::CacheWatch;
use super::environment::{self, RankPlace};
use super::frames;
use super::input::{Action, Input, Kept};
use super::node_attempt::{NodeAttempt, Stage};
use super::notice;
use super::port::reserve_port;
use super::shims::Shims;
use super::sockets::Sockets;
use super::stacks::{self, Stacks};
use super::staging::{self, StagingFolder};
use super::standstill::AWAKE_EVERY;
use super::{SuperviseOptions, Supervised, ending};
use crate::clock::Clock;
use crate::protocol::{Outcome, Rendezvous, Report, SupervisorSpec};
use crate::shim::{RankEnd, ShimEvent};
use crate::trouble::Problem;

/// Maximum number of queued inputs; ranks that send faster are slowed down by their full sockets.
const INPUTS_MAX: usize = 1_024;

/// How long to wait for the supervisor's own SIGTERM when a rank was ended by one.
const SAME_BLOW: Duration = Duration::from_millis(100);
/// The same in a step of Slurm, whose `slurmstepd` looks for all processes below it and signals one after the
/// other. Nothing is reported meanwhile, so it stays well below the silence after which a supervisor counts
/// as lost.
const SAME_BLOW_OF_SLURM: Duration = Duration::from_millis(500);
/// Interval between two checks for it.
const BLOW_LOOK: Duration = Duration::from_millis(5);
/// Delay of all other ranks' start after rank 0's. They meet at the store that rank 0 makes, and a rank that
/// looks for it too early waits half a second or more before it looks again (PyTorch's connect backs off:
/// torch/csrc/distributed/c10d/socket.cpp). Ranks that start at once end their imports in any order, so in
/// most gangs some rank comes too early. Measured with PyTorch 2.15, four ranks on two processors: without a
/// head start they stood idle for 0.1 to 1.9 s of a recovery; with this one for 0.3 s, half of which is the
/// head start itself, and for 1.4 s in two of twelve, where a rank overtook rank 0 nevertheless. Twice the
/// head start costs as much in total as it saves in those.
const HEAD_START: Duration = Duration::from_millis(150);
/// How long the last metrics are waited for after the end.
const LAST_METRICS_WAIT: Duration = Duration::from_secs(5);
/// File in the attempt's folder with the stacks of hung ranks.
const STACKS_FILE: &str = "stacks.txt";

/// A running supervisor.
struct Shell {
    spec: Arc<SupervisorSpec>,
    options: SuperviseOptions,
    clock: Clock,
    node_attempt: NodeAttempt,
    shims: Shims,
    sockets: Option<Sockets>,
    staging: Option<StagingFolder>,
    contact: Contact,
    courier: Courier,
    inputs: Sender<Input>,
    checkup: Checkup,
    caches: CacheWatch,
    /// Keeps the offered port from others until the ranks start.
    reserved_port: Option<TcpListener>,
    /// The remaining processes of the ranks are being killed.
    is_clearing: bool,
    is_end_diagnosed: bool,
    /// The supervisor has received a signal to end.
    is_terminated: Arc<AtomicBool>,
    /// A rank was ended by SIGTERM, and the supervisor has waited for its own.
    is_blow_awaited: bool,
}

/// Runs an attempt's share from setup to the delivery of its end.
pub(super) async fn run(spec: Arc<SupervisorSpec>, options: SuperviseOptions) -> io::Result<Supervised> {
    let clock = Clock::start();
    let (inputs, waiting) = channel(INPUTS_MAX);
    let offer = if spec.node_rank == 0 { Some(reserve_port(&spec.address)) } else { None };
    let (offer, problem) = match offer.transpose() {
        Ok(offer) => (offer, None),
        Err(error) => (None, Some(Problem::of(format!("find a free port on {}", spec.address), &error))),
    };
    let (reserved_port, rendezvous) = offer.unzip();
    let (contact, answers) = Contact::start(&spec, clock.now())?;
    let (courier, posted) = Courier::start(&spec, clock.now())?;
    let mut shell = Shell {
        node_attempt: NodeAttempt::new(Arc::clone(&spec), rendezvous, clock.now()),
        shims: Shims::new(Arc::clone(&spec), inputs.clone()),
        sockets: None,
        staging: None,
        contact,
        courier,
        checkup: Checkup::new(&spec, &options),
        caches: CacheWatch::start(&spec, &options.environment, inputs.clone()),
        inputs: inputs.clone(),
        reserved_port,
        is_clearing: false,
        is_end_diagnosed: false,
        is_blow_awaited: false,
        is_terminated: Arc::default(),
        spec,
        options,
        clock,
    };
    tokio::spawn(pass_on_signals(inputs, Arc::clone(&shell.is_terminated)));
    let problem = problem.map_or_else(|| shell.prepare(), Err);
    match problem {
        Err(problem) => shell.node_attempt.not_started(clock.now(), problem),
        Ok(()) => shell.begin().await,
    }
    Ok(shell.follow(waiting, (answers, posted)).await)
}

/// Makes the job's checkpoint folder, so that a trainer can write into it right away.
fn make_checkpoint_folder(spec: &SupervisorSpec) -> Result<(), Problem> {
    let Some(folder) = &spec.checkpoint_dir else { return Ok(()) };
    let doing = || format!("make the checkpoint folder {}", folder.display());
    let made = std::fs::create_dir_all(folder).map_err(|error| (error.kind(), Problem::of(doing(), &error)));
    match made {
        // The job asked for a folder in a place that nobody may write to.
        Err((io::ErrorKind::ReadOnlyFilesystem, problem)) => Err(Problem::asked(problem.message)),
        made => made.map_err(|(_, problem)| problem),
    }
}

/// Delivers an end that an earlier supervisor recorded.
pub(super) async fn deliver(spec: &Arc<SupervisorSpec>, end: Report) -> io::Result<Supervised> {
    let clock = Clock::start();
    let (mut contact, mut answers) = Contact::start(spec, clock.now())?;
    let wait = spec.end_wait_ms.unwrap_or(spec.orphan_after_ms);
    let patience = tokio::time::Instant::now() + std::time::Duration::from_millis(wait);
    loop {
        if contact.is_due(clock.now(), false) {
            contact.send(Report { sent_at: clock.now().unix_nanos(), ..end.clone() });
        }
        tokio::select! {
            answer = answers.recv() => match answer {
                Some(Ok(orders)) if orders.end_acknowledged => return Ok(Supervised::Delivered),
                Some(answer) => contact.answered(clock.now(), &answer),
                None => return Ok(Supervised::Undelivered),
            },
            () = wait_until(&clock, contact.deadline()) => {}
            () = sleep_until(patience) => return Ok(Supervised::Undelivered),
        }
    }
}

impl Shell {
    /// Prepares everything that must exist before a process is started.
    fn prepare(&mut self) -> Result<(), Problem> {
        let of = |doing: &'static str| move |error: io::Error| Problem::of(doing, &error);
        std::fs::create_dir_all(self.shims.log_folder()).map_err(of("make the folder of the logs"))?;
        if let Some(source) = &self.spec.notice_source {
            notice::watch(source, self.inputs.clone()).map_err(of("look for a notice that this machine goes"))?;
        }
        self.checkup.after_start(self.inputs.clone()).map_err(of("look at this node"))?;
        if let Some(message) = environment::check_visible(&self.spec, &self.options.environment) {
            return Err(Problem::asked(message));
        }
        make_checkpoint_folder(&self.spec)
    }

    async fn begin(&mut self) {
        let actions = self.node_attempt.begin(self.clock.now());
        self.perform(actions).await;
    }

    /// Runs the loop: decide, act, report, wait for the next input.
    async fn follow(
        mut self,
        mut waiting: Receiver<Input>,
        (mut answers, mut posted): (Receiver<Answer>, Receiver<Posted>),
    ) -> Supervised {
        loop {
            let now = self.clock.now();
            self.clear();
            self.record_end(now);
            if self.node_attempt.is_over(now) {
                break;
            }
            if self.contact.is_due(now, self.node_attempt.has_news()) {
                self.contact.send(self.node_attempt.report(now));
                self.node_attempt.sent();
            }
            self.send_metrics(now);
            let due = self.node_attempt.deadline().min(now + AWAKE_EVERY);
            let metrics_at = self.courier.deadline().filter(|_| !self.node_attempt.readings.is_empty());
            let wake_at = self.contact.deadline().into_iter().chain(metrics_at).fold(due, Timestamp::min);
            let input = tokio::select! {
                biased;
                Some(answer) = answers.recv() => {
                    self.contact.answered(self.clock.now(), &answer);
                    answer.map_or(Input::Tick, Input::Orders)
                }
                Some(posted) = posted.recv() => {
                    self.take_posted(&posted);
                    continue;
                }
                Some(input) = waiting.recv() => input,
                () = wait_until(&self.clock, Some(wake_at)) => Input::Tick,
            };
            self.take(input).await;
        }
        self.send_last_metrics(posted).await;
        match &self.node_attempt.stage {
            _ if self.node_attempt.is_acknowledged() => Supervised::Delivered,
            Stage::Ended(_, Outcome::Unable { .. }) => Supervised::Unable,
            _ => Supervised::Undelivered,
        }
    }

    fn send_metrics(&mut self, now: Timestamp) {
        if self.courier.is_due(now)
            && let Some(report) = self.node_attempt.readings.report(&self.spec)
        {
            self.courier.send(now, report);
        }
    }

    fn take_posted(&mut self, posted: &Posted) {
        let is_refused = self.courier.answered(self.clock.now(), posted);
        match posted {
            Ok(answer) => self.node_attempt.readings.answered(answer),
            Err(_) if is_refused => self.node_attempt.readings.refused(),
            Err(_) => {}
        }
    }

    /// Sends what is left, until the first failure: the control plane may have been away until it took the end.
    async fn send_last_metrics(&mut self, mut posted: Receiver<Posted>) {
        let patience = tokio::time::Instant::now() + LAST_METRICS_WAIT;
        while self.node_attempt.is_acknowledged() {
            if !self.courier.is_under_way() {
                let Some(report) = self.node_attempt.readings.report(&self.spec) else { return };
                self.courier.send(self.clock.now(), report);
            }
            tokio::select! {
                Some(answer) = posted.recv() => {
                    self.take_posted(&answer);
                    if answer.is_err() {
                        return;
                    }
                }
                () = sleep_until(patience) => return,
            }
        }
    }

    async fn take(&mut self, input: Input) {
        if is_termination(&input) && self.node_attempt.stop.is_none() && !self.is_blow_awaited {
            self.is_blow_awaited = true;
            // Whoever ends everything sends SIGTERM to the supervisor at once, too.
            let is_in_slurm = self.options.environment.contains_key(OsStr::new("SLURM_JOB_ID"));
            if self.is_hit_within(if is_in_slurm { SAME_BLOW_OF_SLURM } else { SAME_BLOW }).await {
                let actions = self.node_attempt.apply(self.clock.now(), Input::Terminated);
                self.perform(actions).await;
            }
        }
        let is_ordered = self.node_attempt.stop.as_ref().is_some_and(|stop| stop.is_ordered);
        if is_failure(&input) && !is_ordered {
            let pids = self.node_attempt.ranks.iter().filter_map(|rank| rank.pid).collect();
            self.checkup.after_failure(pids, self.clock.now().since(self.node_attempt.started_at));
        }
        let gone = match &input {
            Input::ShimGone(kept, _) => Some(*kept),
            _ => None,
        };
        if let Some(kept) = gone {
            self.shims.forget(kept);
        }
        let actions = self.node_attempt.apply(self.clock.now(), input);
        self.perform(actions).await;
    }

    /// Reports whether the supervisor has received a signal to end, or receives one within `soon`.
    async fn is_hit_within(&self, soon: Duration) -> bool {
        let until = Instant::now() + soon;
        while !self.is_terminated.load(Ordering::Relaxed) && Instant::now() < until {
            tokio::time::sleep(BLOW_LOOK).await;
        }
        self.is_terminated.load(Ordering::Relaxed)
    }

    async fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::RunSetup => self.run_setup(),
                Action::StartRanks(rendezvous) => self.start_ranks(&rendezvous).await,
                Action::Command(kept, command) => self.shims.tell(kept, command).await,
                Action::Tell(order) => {
                    if let Some(sockets) = &self.sockets {
                        sockets.tell(order);
                    }
                }
                Action::KillOrphans => self.shims.kill_orphans(),
                Action::FinishStaged => self.finish_staged(),
                Action::LookAtStacks(ranks) => self.look_at_stacks(ranks),
                Action::MeasureWork(ranks) => self.measure_work(ranks),
            }
        }
    }

    fn run_setup(&mut self) {
        let environment = environment::of_node(&self.spec, &self.options.environment);
        let command = self.spec.setup.clone().unwrap_or_default();
        if let Err(error) = self.shims.start(Kept::Setup, &command, (&self.options.environment, &environment)) {
            let problem = Problem::of(format!("start the setup in {}", self.spec.workdir.display()), &error);
            self.node_attempt.not_started(self.clock.now(), problem);
        }
    }

    /// Starts all ranks, rank 0 first. A rank that can't be started counts as ended, and those after it
    /// aren't tried.
    async fn start_ranks(&mut self, rendezvous: &Rendezvous) {
        // From here until rank 0 listens the port is free for others; torchrun's static rendezvous is no
        // better.
        self.reserved_port = None;
        self.staging = StagingFolder::make();
        self.node_attempt.has_staging = self.staging.is_some();
        let sockets = Sockets::prepare(&self.spec, &self.options.temporary_folder);
        let mut problem = sockets.as_ref().err().map(|error| Problem::of("make the ranks' sockets", error));
        self.sockets = sockets.ok();
        let is_first_node = self.spec.node_rank == 0;
        for local in 0..self.spec.ranks_per_node {
            if problem.is_none() {
                if local == u32::from(is_first_node) {
                    tokio::time::sleep(HEAD_START).await;
                }
                let started = self.start_rank(local, rendezvous);
                let doing = format!("start in {}", self.spec.workdir.display());
                problem = started.err().map(|error| Problem::of(doing, &error));
            }
            if let Some(Problem { message, is_platforms }) = problem.clone() {
                let event = ShimEvent::NotStarted { at: self.clock.now().unix_nanos(), message, is_platforms };
                Box::pin(self.take(Input::Shim(Kept::Rank(local), event))).await;
            }
        }
    }

    fn start_rank(&mut self, local: u32, rendezvous: &Rendezvous) -> io::Result<()> {
        let rank = self.spec.node_rank * self.spec.ranks_per_node + local;
        let socket: PathBuf = match &self.sockets {
            Some(sockets) => sockets.listen(local, rank, self.inputs.clone())?,
            None => return Err(io::Error::other("the ranks' sockets are gone")),
        };
        let inherited = &self.options.environment;
        let staging = self.staging.as_ref().map(StagingFolder::path);
        let place = RankPlace { local, socket: &socket, staging };
        let mut environment = environment::of_rank(&self.spec, inherited, rendezvous, place);
        frames::offer(&mut environment, &self.spec.folder, rank);
        self.shims.start(Kept::Rank(local), &self.spec.run, (inherited, &environment))
    }

    /// Finishes the ranks' saves on a separate thread, so that contact to the control plane goes on.
    fn finish_staged(&self) {
        let folder = self.staging.as_ref().map(|staging| staging.path().to_owned());
        let inputs = self.inputs.clone();
        on_thread("finishing", move || {
            let saved = folder.as_deref().and_then(staging::finish);
            // The receiver is gone if it took longer than allowed.
            let _ = inputs.blocking_send(Input::StagedFinished(saved));
        });
    }

    /// Collects stacks on a separate thread, since tools and processes may respond late. Also writes them to
    /// a file next to the logs.
    fn look_at_stacks(&self, ranks: Vec<(u32, u32)>) {
        let (inputs, folder) = (self.inputs.clone(), self.spec.folder.clone());
        on_thread("stacks", move || {
            let look = |(rank, pid): &(u32, u32)| stacks::of_rank(*rank, *pid, &frames::file_of(&folder, *rank));
            let stacks: Vec<Stacks> = ranks.iter().map(look).collect();
            let path = folder.join(STACKS_FILE);
            let text: String = stacks.iter().map(|stacks| stacks.text.as_str()).collect();
            if let Err(error) = std::fs::write(&path, text) {
                tracing::warn!(%error, path = %path.display(), "the stacks can't be kept");
            }
            // The receiver is gone if the ranks have ended.
            let _ = inputs.blocking_send(Input::Stacks(stacks));
        });
    }

    /// Measures processor time on a separate thread, since examining all processes of the machine may take a
    /// while.
    fn measure_work(&self, ranks: Vec<(u32, u32)>) {
        let inputs = self.inputs.clone();
        on_thread("work", move || {
            for (local, pid) in &ranks {
                // The receiver is gone if the ranks have ended.
                let _ = inputs.blocking_send(Input::Worked(*local, stacks::processor_time(*pid)));
            }
        });
    }

    /// Kills remaining processes after the ranks' end on a separate thread, since some take long to exit.
    fn clear(&mut self) {
        if !self.is_clearing && matches!(self.node_attempt.stage, Stage::Clearing(..)) {
            self.is_clearing = true;
            let inputs = self.inputs.clone();
            on_thread("clearing", move || clearing::clear(&inputs));
        }
    }

    /// Writes the last report to the disk before anything else, so that it outlives this process.
    fn record_end(&mut self, now: Timestamp) {
        if self.node_attempt.is_end_recorded || !matches!(self.node_attempt.stage, Stage::Ended(..)) {
            return;
        }
        let is_first_try = !std::mem::replace(&mut self.is_end_diagnosed, true);
        if is_first_try {
            self.sockets = None;
            self.staging = None;
            let seen = self.checkup.seen();
            self.node_attempt.diagnose(&self.shims.log_folder(), &seen);
            self.node_attempt.checked(seen.findings);
            self.caches.last_look().into_iter().for_each(|cache| drop(self.node_attempt.cached(cache)));
        }
        let report = self.node_attempt.report(now);
        match ending::record(&self.spec.folder, &report) {
            Ok(()) => self.node_attempt.is_end_recorded = true,
            // The missing resource may be there at the next tick.
            Err(error) if is_first_try => tracing::error!(%error, "the end can't be recorded yet, it is only reported"),
            Err(_) => {}
        }
    }
}

/// Does work that may block on a separate thread, as soon as the system can provide one.
fn on_thread(name: &'static str, work: impl Fn() + Send + Sync + 'static) {
    let work = Arc::new(work);
    tokio::spawn(async move {
        loop {
            let work = Arc::clone(&work);
            match std::thread::Builder::new().name(name.to_owned()).spawn(move || work()) {
                Ok(_) => return,
                Err(error) => tracing::warn!(name, %error, "there is no thread, it is tried again"),
            }
            tokio::time::sleep(AWAKE_EVERY).await;
        }
    });
}

/// Reports whether a rank was ended by SIGTERM, or its shim before it could report that.
fn is_termination(input: &Input) -> bool {
    end_of_rank(input) == Some(RankEnd::Signal(Signal::TERM.as_raw()))
}

/// Reports whether a rank, or its shim, has failed.
fn is_failure(input: &Input) -> bool {
    end_of_rank(input).is_some_and(|end| end != RankEnd::Exit(0))
}

fn end_of_rank(input: &Input) -> Option<RankEnd> {
    match input {
        Input::Shim(Kept::Rank(_), ShimEvent::Ended { end, .. }) | Input::ShimGone(Kept::Rank(_), end) => Some(*end),
        _ => None,
    }
}

async fn wait_until(clock: &Clock, at: Option<Timestamp>) {
    match at {
        Some(at) => sleep_until(clock.instant(at).into()).await,
        None => pending().await,
    }
}

/// Forwards SIGTERM and SIGINT: they stop the ranks in order.
async fn pass_on_signals(inputs: Sender<Input>, is_terminated: Arc<AtomicBool>) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        is_terminated.store(true, Ordering::Relaxed);
        if inputs.send(Input::Terminated).await.is_err() {
            return;
        }
    }
}
