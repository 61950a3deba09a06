//! A control plane on a free port of loopback, and a client that looks at everything an answer has.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gangline_api as api;
use gangline_base::{AcceleratorKind, Bytes, Epoch, Money, NodeName, PoolName, Submitter, Timestamp};
use gangline_control::code::CodeStore;
use gangline_control::secret::Secrets;
use gangline_control::service::{Options, Service, Timing};
use gangline_execution::launcher::{LaunchError, Launcher, Presence};
use gangline_execution::protocol::{
    Marks, NodeState, Orders, Outcome, PROTOCOL_VERSION, RankReport, Report, Sample, SupervisorSpec, UsageReport, Work,
};
use gangline_orchestration::{Limits, NodeCapacity};
use gangline_server::budgets::Budgets;
use gangline_server::{Agents, App, AtHand, Configured, Doors, ReadConfiguration, Socket, Tracking, Visits, serve};
use gangline_specs::config::{Budget, Config, NodeConfig};
use gangline_store::db;
use gangline_store::tracking::{self, ArtifactStore};
use gangline_telemetry::series;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Far beyond what any machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Hands what is to be launched to the test; everything lives.
struct Telling(Mutex<Sender<SupervisorSpec>>);

impl Launcher for Telling {
    fn launch(&self, gang: &[SupervisorSpec]) -> Vec<Result<(), LaunchError>> {
        let told = self.0.lock().expect("nobody panicked");
        // The test may be over.
        gang.iter().for_each(|spec| drop(told.send(spec.clone())));
        gang.iter().map(|_| Ok(())).collect()
    }

    fn presence(&self, _folder: &Path) -> Result<Presence, LaunchError> {
        Ok(Presence::Running)
    }

    fn kill(&self, _folder: &Path) -> Result<(), LaunchError> {
        Ok(())
    }
}

pub(crate) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    Timestamp::from_unix_nanos(u64::try_from(since.as_nanos()).expect("it is before 2554"))
}

/// What runs: the service, the series store, and the server with what stops it.
type Parts =
    (Service, Option<series::Service>, tracking::Service, oneshot::Sender<()>, JoinHandle<std::io::Result<()>>);

/// See the module.
pub(crate) struct Plane {
    pub(crate) folder: TempDir,
    pub(crate) secrets: Secrets,
    pub(crate) app: App,
    pub(crate) address: SocketAddr,
    launches: Mutex<Receiver<SupervisorSpec>>,
    /// Of what was launched last.
    epoch: Mutex<Epoch>,
    running: Option<Parts>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The status and the error's code; every error is JSON with a message and a hint, and tells nothing of the inside.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let error = &self.json()["error"];
        let word = |key: &str| error[key].as_str().unwrap_or_else(|| panic!("no {key}: {self:?}")).to_owned();
        let (code, message, hint) = (word("code"), word("message"), word("hint"));
        assert!(!message.is_empty() && !hint.is_empty(), "{self:?}");
        assert!(!message.starts_with(char::is_uppercase) && !message.ends_with('.'), "{message}");
        for inside in ["panicked", ".rs", "RUST_BACKTRACE"] {
            assert!(!self.text.contains(inside), "{self:?}");
        }
        (self.status, code)
    }

    /// The code of an error, if it is one.
    pub(crate) fn refusal_code(&self) -> Option<String> {
        let answer: Value = serde_json::from_str(&self.text).ok()?;
        answer["error"]["code"].as_str().map(str::to_owned)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// A budget for everything and one for a user.
fn configured_budgets() -> Vec<Budget> {
    let text = "[[budget]]\nname = 'all'\nusd = '1000'\nper = 'month'\n\
        [[budget]]\nname = 'adas'\nuser = 'ada'\nusd = '0.000001'\nper = 'day'";
    Config::parse(text).expect("a sound file").budgets
}

fn options(
    folder: &Path,
    secrets: Secrets,
    (journal, limits): (db::Options, Limits),
    launches: Sender<SupervisorSpec>,
) -> Options {
    let capacity = NodeCapacity {
        pool: PoolName::default(),
        accelerator: AcceleratorKind("cpu".to_owned()),
        accelerators: 2,
        cpus: 8,
        memory: Bytes(1 << 30),
    };
    let node = NodeConfig {
        name: NodeName::new("n1").expect("a valid name"),
        capacity,
        location: Default::default(),
        layout: Default::default(),
        links_file: None,
        address: "127.0.0.1".to_owned(),
        price_per_hour: Some(Money::from_nano_dollars(3_600_000_000)),
    };
    Options {
        folder: folder.to_owned(),
        journal_folder: folder.to_owned(),
        nodes: vec![node],
        survey: None,
        sharing: gangline_orchestration::Configuration::default(),
        cache_quotas: std::collections::BTreeMap::new(),
        limits,
        retention: gangline_specs::config::Retention::DEFAULT,
        billing: gangline_specs::config::Billing::default(),
        launcher: Arc::new(Telling(Mutex::new(launches))),
        clock: now,
        user: Submitter("ada".to_owned()),
        secrets,
        journal,
        on_journal_failure: Default::default(),
        notice_source: None,
        agent_every: None,
        courier: None,
        ended: None,
        timing: Timing::default(),
    }
}

impl Plane {
    pub(crate) fn start() -> Plane {
        Plane::limited(Limits::default())
    }

    pub(crate) fn with_journal(journal: db::Options) -> Plane {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        Plane::open(folder, journal, Limits::default())
    }

    /// One with limits of its own.
    pub(crate) fn limited(limits: Limits) -> Plane {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        Plane::open(folder, db::Options::default(), limits)
    }

    /// Stops it and starts another one on its folder.
    pub(crate) fn restart(mut self) -> Plane {
        self.stop();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().expect("a temporary folder is writable"));
        Plane::open(folder, db::Options::default(), Limits::default())
    }

    /// From now on no record can be written.
    pub(crate) fn break_journal(&self) {
        let database = rusqlite::Connection::open(self.folder.path().join("journal.sqlite")).expect("it is there");
        let fails = "CREATE TRIGGER fails BEFORE INSERT ON records BEGIN SELECT RAISE(FAIL, 'the disk is broken'); END";
        database.execute_batch(fails).expect("it is a test's");
    }

    /// One whose server has another clock.
    pub(crate) fn with_clock(clock: fn() -> Timestamp) -> Plane {
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        Plane::open_with_clock(folder, db::Options::default(), Limits::default(), clock)
    }

    fn open(folder: TempDir, journal: db::Options, limits: Limits) -> Plane {
        Plane::open_with_clock(folder, journal, limits, now)
    }

    fn open_with_clock(folder: TempDir, journal: db::Options, limits: Limits, clock: fn() -> Timestamp) -> Plane {
        let secrets = Secrets::open(folder.path()).expect("the folder is writable");
        let (sender, launches) = channel();
        let options = options(folder.path(), secrets.clone(), (journal, limits), sender);
        let service = Service::start(options).expect("the folder opens");
        let series_options = series::Options { limits: Default::default(), keep: Default::default(), clock: now };
        let series = series::Service::start(folder.path().join("series"), series_options);
        let tracking_folder = folder.path().join("tracking");
        let tracking = gangline_store::tracking::Service::start(&tracking_folder, tracking::Options { clock });
        let tracking = tracking.expect("the folder is writable");
        let artifacts = ArtifactStore::of(tracking_folder.join("artifacts"), tracking.handle(), Default::default());
        artifacts.prepare().expect("the folder is writable");
        let app = App {
            handle: service.handle(),
            views: service.views(),
            secrets: secrets.clone(),
            visits: Visits::default(),
            user: Submitter("ada".to_owned()),
            folder: folder.path().to_owned(),
            hosts: Vec::new(),
            at_hand: AtHand::default(),
            code: CodeStore::new(folder.path(), gangline_base::Bytes(1 << 20)),
            exports: Vec::new(),
            series: series
                .as_ref()
                .map_or_else(|error| series::Handle::closed(error.to_string()), series::Service::handle),
            tracking: Tracking::new(tracking.handle(), artifacts, service.views(), clock),
            agents: Agents::of(folder.path()),
            alerts: Default::default(),
            templates: gangline_server::Templates::of(folder.path()),
            schedules: gangline_server::schedules::Handle::open(folder.path()),
            budgets: Budgets::new(configured_budgets()),
            clock,
            read_configuration: ReadConfiguration(Arc::new(|| {
                let sharing = gangline_orchestration::Configuration::default();
                let alerts = gangline_telemetry::alerts::Rules::built_in();
                Ok(Configured {
                    sharing,
                    alerts,
                    budgets: configured_budgets(),
                    needs_restart: vec!["listen".to_owned()],
                })
            })),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async {
            // An error means that the sender is gone.
            let _ = stopped.await;
        };
        let served = app.clone();
        let socket = runtime.block_on(async { Socket::bind(folder.path()) }).expect("the folder can hold a socket");
        let doors = Doors { tcp: listener, tls: None, socket: Some(socket) };
        let http = std::thread::spawn(move || runtime.block_on(serve(doors, served, stopped)));
        let (launches, epoch) = (Mutex::new(launches), Mutex::default());
        Plane {
            folder,
            secrets,
            app,
            address,
            launches,
            epoch,
            running: Some((service, series.ok(), tracking, stop, http)),
        }
    }

    /// Anything, byte by byte, on a connection of its own; the answer to the end of the connection.
    pub(crate) fn raw(&self, request: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a sound time");
        // A server that refuses may close before everything is sent.
        let _ = stream.write_all(request);
        let mut bytes = Vec::new();
        // Resets count as the end for the same reason.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|code| code.parse().ok());
        let headers = lines.filter_map(|line| line.split_once(": ")).map(|(k, v)| (k.to_owned(), v.to_owned()));
        Answer { status: status.expect("a status line"), headers: headers.collect(), text: body.to_owned() }
    }

    /// A request with these headers and this body.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.raw(&[head.as_bytes(), b"\r\n", body].concat())
    }

    /// A session of the page, as its cookie is sent.
    pub(crate) fn cookie(&self) -> String {
        let link = self.app.visits.link().expect("there is randomness");
        let answer = self.send("GET", &link, &[], b"");
        let cookie = answer.header("set-cookie").expect("a cookie");
        cookie.split(';').next().expect("a name and a value").to_owned()
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.secrets.user_token())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", &format!("/api/v1{path}"), &[("authorization", &self.bearer())], b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("authorization", self.bearer()), ("content-type", "application/json".to_owned())];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        self.send("POST", &format!("/api/v1{path}"), &headers, body.to_string().as_bytes())
    }

    pub(crate) fn submit_text(&self, job_file: &str, is_dry: bool) -> Answer {
        let folder = self.folder.path();
        self.post("/jobs", &json!({"job_file": job_file, "directory": folder, "dry_run": is_dry}))
    }

    /// Submits a job of so many slots and returns its id.
    pub(crate) fn submit(&self, name: &str, slots: u32) -> String {
        let file = format!("name: {name}\nresources: {{accelerators: \"cpu:{slots}\"}}\nrun: train\n");
        let answer = self.submit_text(&file, false);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["submitted"]["job"].as_str().expect("an id").to_owned()
    }

    pub(crate) fn job(&self, id: &str) -> api::Job {
        serde_json::from_value(self.get(&format!("/jobs/{id}")).json()).expect("a job")
    }

    /// The next gang's supervisor.
    pub(crate) fn launched(&self) -> SupervisorSpec {
        let launches = self.launches.lock().expect("nobody panicked");
        let spec = launches.recv_timeout(PATIENCE).expect("something is launched");
        *self.epoch.lock().expect("nobody panicked") = Epoch(spec.epoch);
        spec
    }

    /// A report on job 1's first attempt in the epoch of what was launched last, as its header says.
    pub(crate) fn report_with(&self, token: &str, report: &Value) -> Answer {
        let bearer = format!("Bearer {token}");
        let attempt = format!("1/1/{}", self.epoch.lock().expect("nobody panicked"));
        let headers =
            [("authorization", bearer.as_str()), ("content-type", "application/json"), ("gangline-attempt", &attempt)];
        self.send("POST", "/api/v1/supervisors/report", &headers, report.to_string().as_bytes())
    }

    pub(crate) fn report(&self, spec: &SupervisorSpec, report: &Report) -> Orders {
        let bearer = format!("Bearer {}", spec.token);
        let attempt = format!("{}/{}/{}", spec.job, spec.attempt, Epoch(spec.epoch));
        let headers =
            [("authorization", bearer.as_str()), ("content-type", "application/json"), ("gangline-attempt", &attempt)];
        let body = serde_json::to_vec(report).expect("a report is JSON");
        let answer = self.send("POST", "/api/v1/supervisors/report", &headers, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_value(answer.json()).expect("orders")
    }

    /// Reports samples until all are durable.
    pub(crate) fn store(&self, spec: &SupervisorSpec, samples: &[Sample]) {
        let mut report = running(spec);
        let begun = std::time::Instant::now();
        loop {
            let from = usize::try_from(report.samples_from).expect("few");
            report.samples = samples[from..].iter().copied().take(1_000).collect();
            report.samples_from = self.report(spec, &report).samples_stored;
            if report.samples_from == samples.len() as u64 {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "samples are stored in time");
        }
    }

    pub(crate) fn stop(&mut self) {
        let Some((service, series, tracking, stop, http)) = self.running.take() else { return };
        // It may have ended by itself.
        let _ = stop.send(());
        http.join().expect("nobody panicked").expect("it served");
        service.stop();
        series.into_iter().for_each(series::Service::stop);
        tracking.stop();
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

/// A report of a supervisor whose ranks run.
pub(crate) fn running(spec: &SupervisorSpec) -> Report {
    let at = now().unix_nanos();
    let rank = RankReport {
        rank: 0,
        pid: Some(1),
        phase: None,
        step: Some(7),
        total_steps: Some(10),
        tokens: 70,
        last_sign_of_life: at,
        dropped: 0,
        work: Work::default(),
    };
    Report {
        version: PROTOCOL_VERSION,
        job: spec.job,
        attempt: spec.attempt,
        epoch: spec.epoch,
        node: spec.node.clone(),
        supervisor_pid: 2,
        sent_at: at,
        started_at: at,
        state: NodeState::Running { since: at },
        ranks: vec![rank],
        usage: UsageReport::default(),
        marks: Marks::default(),
        checkpoint: None,
        checkpoints: 0,
        checkpoint_bytes: 0,
        rendezvous: None,
        notice: None,
        findings: Vec::new(),
        silence: None,
        cache: None,
        dataset_reads: std::collections::BTreeMap::new(),
        archives: std::collections::BTreeMap::new(),
        samples: Vec::new(),
        samples_from: 0,
    }
}

/// A report of one whose ranks have ended well.
pub(crate) fn succeeded(spec: &SupervisorSpec) -> Report {
    let report = running(spec);
    Report { state: NodeState::Ended { at: report.sent_at, outcome: Outcome::Succeeded }, ..report }
}

/// A point of a curve that falls from 5.
pub(crate) fn sample(step: u64) -> Sample {
    let loss = 5.0 - f64::from(u32::try_from(step).expect("few")) / 1_000.0;
    Sample { at: now().unix_nanos(), step, loss: Some(loss), tokens: step * 10, metric: None, is_diverged: false }
}
