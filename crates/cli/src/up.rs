//! `up`: runs the control plane in the foreground.

mod beside;
mod nodes;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use gangline_base::{Bytes, Submitter, with_causes};
use gangline_control::code::CodeStore;
use gangline_control::secret::Secrets;
use gangline_control::service::{OnJournalFailure, Options, Service, StartError, SurveyOptions, Timing};
use gangline_execution::endpoint::publish;
use gangline_execution::timeouts::Timeouts;
use gangline_server::{
    self as server, Agents, App, AtHand, Doors, LINK_TIME_MAX, Socket, Templates, Visits, alerts as alerting, budgets,
    schedules,
};
use gangline_specs::config::Config;
use gangline_store::db::{self, Sequence};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tracing::warn;

use crate::agent::OwnAgent;
use crate::client::{absolute, data_folder};
use crate::configuration;
use crate::failure::Failure;
use crate::launcher::{self, LauncherArgs};
use crate::listen::{ListenArgs, Listening};
use crate::reload::Reloading;
use crate::{Global, alerts, courier, output};
use beside::{Beside, Elsewhere};
use nodes::{nodes_and_rules, price};

/// Interval between two checks that the control plane's threads live.
const LIFE_CHECK: Duration = Duration::from_millis(500);

/// How to run the control plane.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct UpArgs {
    #[command(flatten)]
    pub(crate) listen: ListenArgs,
    /// The configuration file [default: gangline.toml in the data folder, if there is one]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A node, as NAME=KIND:COUNT (may be repeated) [default: the configuration's, or this machine]
    #[arg(long = "node", value_name = "NAME=KIND:COUNT")]
    pub(crate) nodes: Vec<String>,
    /// The price of an accelerator-hour in US dollars, for nodes whose configuration names none
    #[arg(long, value_name = "USD")]
    pub(crate) price: Option<String>,
    /// If the journal is corrupt after exactly this record, put the rest aside and start without it
    #[arg(long, value_name = "SEQUENCE")]
    pub(crate) accept_loss_after: Option<u64>,
    /// The data folder is a copy, and the folder that it was copied from is gone for good: go on with its unfinished jobs here
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Where the journal is, on a local disk, if other machines use the data folder as well [default: the configuration's, or the data folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) journal: Option<PathBuf>,
    /// The most the journal may grow to, such as 64GiB
    #[arg(long, value_name = "SIZE")]
    pub(crate) journal_max: Option<String>,
    /// Once the journal can't be written: heal goes on with what is on disk when it can be again, exit ends with status 1
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub(crate) on_journal_failure: OnFailure,
    /// Between two reports of a supervisor, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    pub(crate) heartbeat: u64,
    /// Silence of a supervisor after which the launcher is asked whether it lives, in milliseconds [default: three heartbeats]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(200..=600_000))]
    pub(crate) lease: Option<u64>,
    /// Without a control plane for this long, supervisors stop their jobs, in seconds [default: by the heartbeat, as show --timeouts has it]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=604_800))]
    pub(crate) orphan_after: Option<u64>,
    /// Where a cloud says on each node that the node is about to be taken back: aws, gcp, azure, a page or a file
    #[arg(long, value_name = "SOURCE")]
    pub(crate) spot_notice: Option<String>,
    /// Seconds between two readings of this machine by its agent, and of Slurm's nodes by the agents that jobs start there; 0
    /// starts no agent
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub(crate) agent_every: u64,
    #[command(flatten)]
    pub(crate) launcher: LauncherArgs,
}

/// What to do once the journal can't be written.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default)]
pub(crate) enum OnFailure {
    #[default]
    Heal,
    Exit,
}

impl From<OnFailure> for OnJournalFailure {
    fn from(what: OnFailure) -> Self {
        match what {
            OnFailure::Heal => OnJournalFailure::Heal,
            OnFailure::Exit => OnJournalFailure::Exit,
        }
    }
}

/// A control plane that runs in this process.
pub(crate) struct Running {
    pub(crate) url: String,
    visits: Visits,
    service: Service,
    beside: Beside,
    alerts: Option<alerting::Service>,
    budgets: budgets::Service,
    reloading: Reloading,
    _agent: Option<OwnAgent>,
    stop_http: oneshot::Sender<()>,
    http: std::thread::JoinHandle<std::io::Result<()>>,
}

pub(crate) fn run(global: &Global, args: &UpArgs) -> Result<(), Failure> {
    crate::internal::log_to_stderr();
    let folder = data_folder(global)?;
    let running = start(&folder, args)?;
    output::tell(&format!("gangline is up at {} (data folder {})", running.url, folder.display()));
    running.tell_page()?;
    wait_for_signal(&running)?;
    running.stop();
    Ok(())
}

/// Blocks until this process is asked to end.
///
/// Fails if the control plane ended on its own: half of one, which answers but does nothing, is worse than
/// none.
pub(crate) fn wait_for_signal(running: &Running) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let mut hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
        loop {
            tokio::select! {
                interrupted = tokio::signal::ctrl_c() => return interrupted.map_err(Failure::from),
                _ = terminate.recv() => return Ok(()),
                // A terminal that goes away ends the control plane that was started in it.
                _ = hangup.recv() => {
                    if std::io::stderr().is_terminal() { return Ok(()) }
                    running.reloading.run().await;
                }
                () = tokio::time::sleep(LIFE_CHECK) => running.check_alive()?,
            }
        }
    })
}

/// Starts a control plane on a data folder.
pub(crate) fn start(folder: &Path, args: &UpArgs) -> Result<Running, Failure> {
    let folder = private(folder)?;
    let (path, config) = configured(&folder, args)?;
    let (alert_setup, elsewhere) = setups(&folder, &config, path.as_deref())?;
    let listening = Listening::choose(&folder, &config, path.as_deref(), &args.listen)?;
    let secrets = open_secrets(&folder)?;
    let chosen = launcher::choose(&folder, &config, path.as_deref(), &args.launcher, listening.address)?;
    let (nodes, sharing) = nodes_and_rules(&config, args, chosen.has_nodes)?;
    let (journal_folder, names) = (journal_folder(&folder, &config, args)?, nodes::names(&nodes));
    let options = Options {
        folder: folder.clone(),
        journal_folder: journal_folder.clone(),
        nodes,
        sharing,
        cache_quotas: config.cache_quotas.clone(),
        limits: config.limits,
        retention: config.retention,
        billing: config.billing.clone(),
        survey: chosen.has_nodes.then_some(SurveyOptions { price_per_hour: price(args)? }),
        launcher: chosen.launcher,
        clock: output::now,
        user: Submitter(user_name()),
        secrets: secrets.clone(),
        journal: journal_options(args)?,
        on_journal_failure: args.on_journal_failure.into(),
        notice_source: args.spot_notice.clone(),
        agent_every: chosen.has_nodes.then(|| agent_every(args)).flatten(),
        courier: Some(courier::start(config.smtp.as_ref(), path.as_deref())?),
        ended: elsewhere.ended(),
        timing: timing(args),
    };
    // The port comes before the journal: whoever holds the folder keeps its endpoint file.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let refused = |error| listen_failure(&journal_folder, options.journal, listening.address, &error);
    let listener = runtime.block_on(bind(&listening)).map_err(refused)?;
    let (port, user, code_max) = (listener.local_addr()?.port(), options.user.clone(), config.snapshot_max);
    let service = Service::start(options).map_err(|error| start_failure(&error))?;
    let (socket, listening) = bind_socket(&runtime, &folder, listening)?;
    let (url, budgets, visits) = (listening.url(port), alert_setup.budgets.clone(), Visits::default());
    publish_in(&folder, &url, &listening)?;
    let beside = Beside::start(&folder, &config.retention, elsewhere, &service)?;
    let (hosts, doors) = (listening.hosts(), Doors { tcp: listener, tls: listening.tls, socket });
    let alerts = alerts::start(alert_setup, [&folder, &journal_folder], &service, &beside.series());
    let reloading = Reloading::of((folder.clone(), args.config.clone(), config), &service, alerts.as_ref(), &budgets);
    let watch = budgets::Service::start(&budgets, service.handle(), service.views(), output::now)?;
    let app = App {
        handle: service.handle(),
        views: service.views(),
        secrets,
        visits: visits.clone(),
        user,
        agents: Agents::of(&folder),
        folder: folder.clone(),
        hosts,
        at_hand: AtHand::default(),
        code: CodeStore::new(&folder, code_max),
        series: beside.series(),
        exports: beside.exports(),
        tracking: beside.tracking(),
        alerts: reloading.alerts.clone(),
        templates: Templates::of(&folder),
        schedules: schedules::Handle::open(&folder),
        budgets,
        clock: output::now,
        read_configuration: reloading.read.clone(),
    };
    let (stop_http, http) = spawn_server(runtime, doors, app)?;
    let agent = OwnAgent::start(&folder, &names, args.agent_every)?;
    Ok(Running { url, visits, service, beside, alerts, budgets: watch, reloading, _agent: agent, stop_http, http })
}

/// Returns the configuration, and where it is if there is a file.
fn configured(folder: &Path, args: &UpArgs) -> Result<(Option<PathBuf>, Config), Failure> {
    let path = configuration::path(folder, args.config.as_ref());
    let config = path.as_deref().map_or_else(|| Ok(Config::default()), configuration::read)?;
    Ok((path, config))
}

/// Returns how alerts are set up, and the places elsewhere.
fn setups(folder: &Path, config: &Config, path: Option<&Path>) -> Result<(alerts::Setup, Elsewhere), Failure> {
    Ok((alerts::setup(folder, config, path)?, beside::elsewhere(config, path)?))
}

/// Returns the time between two readings of an agent; none if there is to be none.
fn agent_every(args: &UpArgs) -> Option<Duration> {
    (args.agent_every > 0).then(|| Duration::from_secs(args.agent_every))
}

/// Opens the secrets of a data folder.
pub(crate) fn open_secrets(folder: &Path) -> Result<Secrets, Failure> {
    let unusable = |error: std::io::Error| format!("the secrets in {} can't be used: {error}", folder.display());
    Secrets::open(folder).map_err(|error| Failure::coded("G0502", unusable(error), ""))
}

/// Makes the folder's socket, whose holder may replace an earlier one; without it everything goes by TLS.
fn bind_socket(
    runtime: &tokio::runtime::Runtime,
    folder: &Path,
    listening: Listening,
) -> Result<(Option<Socket>, Listening), Failure> {
    match runtime.block_on(async { Socket::bind(folder) }) {
        Ok(socket) => Ok((Some(socket), listening)),
        Err(error) => {
            warn!(folder = %folder.display(), %error, "the data folder can hold no socket: everything goes by TLS");
            Ok((None, listening.with_tls(folder)?))
        }
    }
}

/// Answers requests on a thread of its own until the sender sends or goes.
fn spawn_server(
    runtime: tokio::runtime::Runtime,
    doors: Doors,
    app: App,
) -> std::io::Result<(oneshot::Sender<()>, std::thread::JoinHandle<std::io::Result<()>>)> {
    let (stop_http, stopped) = oneshot::channel::<()>();
    let serve = move || {
        let stop = async {
            // An error means that the sender is gone, which is a stop as well.
            let _ = stopped.await;
        };
        runtime.block_on(server::serve(doors, app, stop))
    };
    let http = std::thread::Builder::new().name("http".to_owned()).spawn(serve)?;
    Ok((stop_http, http))
}

/// Returns the ladder of time-outs above the heartbeat, with those that are set explicitly.
fn timing(args: &UpArgs) -> Timing {
    let derived = Timing::derived(Timeouts::derived(Duration::from_millis(args.heartbeat)));
    let lease = args.lease.map_or(derived.lease, |millis| Duration::from_millis(millis.max(args.heartbeat * 2)));
    Timing { lease, orphan_after: args.orphan_after.map_or(derived.orphan_after, Duration::from_secs), ..derived }
}

impl Running {
    /// Prints a link to the page. It may end up in a log, so it is valid once and not for long.
    pub(crate) fn tell_page(&self) -> Result<(), Failure> {
        let minutes = LINK_TIME_MAX.as_secs() / 60;
        let link = format!("{}{}", self.url, self.visits.link()?);
        output::tell(&format!("page: {link} (good once, for {minutes} minutes; gangline token link makes another)"));
        Ok(())
    }

    fn check_alive(&self) -> Result<(), Failure> {
        if self.service.is_running() && !self.http.is_finished() {
            return Ok(());
        }
        if let Some(failure) = self.service.failure() {
            let hint = "free the disk or repair it, then start it again: jobs go on meanwhile, and it takes them up";
            return Err(Failure::coded("G0207", failure, hint));
        }
        let hint = "start it again: jobs go on meanwhile, and it takes them up; please report its log";
        Err(Failure::coded("G0507", "a thread of the control plane has ended unexpectedly", hint))
    }

    /// Stops answering, commits work in progress, and ends. Jobs go on under their supervisors.
    pub(crate) fn stop(self) {
        // Fails only if the server has ended already.
        let _ = self.stop_http.send(());
        if !matches!(self.http.join(), Ok(Ok(()))) {
            output::tell("the server had ended with an error");
        }
        self.budgets.stop();
        self.alerts.into_iter().for_each(alerting::Service::stop);
        self.service.stop();
        self.beside.stop();
    }
}

fn start_failure(error: &StartError) -> Failure {
    let message = with_causes(error);
    match error {
        StartError::Journal(journal) => Failure::coded(journal.code(), message, journal.hint()),
        StartError::Nodes(_) => {
            Failure::coded("G0505", message, "docs/reference/configuration.md describes nodes and prices")
        }
        _ => {
            Failure::coded("G0504", message, "was the data folder written by a newer gangline? Keep it and report this")
        }
    }
}

/// Returns the folder of the journal, from the options, the configuration, or the data folder itself.
fn journal_folder(folder: &Path, config: &Config, args: &UpArgs) -> Result<PathBuf, Failure> {
    match args.journal.as_deref().or(config.journal.as_deref()) {
        Some(wanted) => absolute(wanted),
        None => Ok(db::journal_folder(folder)),
    }
}

/// Makes the data folder, which only this user may enter. Returns its absolute path.
fn private(folder: &Path) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let folder = absolute(folder)?;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| {
        let message = format!("the data folder {} can't be made: {error}", folder.display());
        Failure::coded("G0202", message, "choose another with --data")
    })?;
    Ok(folder)
}

/// Binds the requested port. If none is requested and the default one is taken, perhaps by a hostile user,
/// any free one is used: the command line and supervisors use the socket.
async fn bind(listening: &Listening) -> std::io::Result<TcpListener> {
    match TcpListener::bind(listening.address).await {
        Err(error) if listening.is_default && error.kind() == std::io::ErrorKind::AddrInUse => {
            warn!(address = %listening.address, "the usual port is taken: another one takes its place");
            TcpListener::bind((listening.address.ip(), 0)).await
        }
        outcome => outcome,
    }
}

/// Returns the error for a port that is taken; says so if a control plane on the same folder has it.
fn listen_failure(folder: &Path, journal: db::Options, address: SocketAddr, error: &std::io::Error) -> Failure {
    if let Err(in_use @ db::Error::InUse { .. }) = db::Journal::open(folder, journal) {
        return start_failure(&StartError::Journal(in_use));
    }
    let hint = "is another control plane running? Choose another port with --listen";
    Failure::coded("G0503", format!("{address} can't be listened on: {error}"), hint)
}

fn journal_options(args: &UpArgs) -> Result<db::Options, Failure> {
    let mut options = db::Options {
        accept_loss_after: args.accept_loss_after.map(Sequence),
        takes_over: args.take_over,
        ..db::Options::default()
    };
    if let Some(text) = &args.journal_max {
        options.bytes_max = text.parse::<Bytes>().map_err(|error| Failure::coded("G0505", error.to_string(), ""))?;
    }
    Ok(options)
}

/// Returns the name of the user who runs the control plane, from the password file; otherwise the user's
/// number.
fn user_name() -> String {
    let id = rustix::process::getuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| format!("uid {id}"))
}

/// Writes to the data folder how this control plane is reached.
fn publish_in(folder: &Path, url: &str, listening: &Listening) -> Result<(), Failure> {
    let published = publish(folder, url, listening.tls.as_ref().map(|tls| tls.certificates()));
    published.map_err(|error| {
        let message = format!("{} can't be written to: {error}", folder.display());
        Failure::coded("G0202", message, "free the disk or give access to the folder")
    })
}
