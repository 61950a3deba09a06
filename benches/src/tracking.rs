//! `bench tracking`: what MLflow's clients get from the control plane, beside a real `mlflow server`, in one run.
//!
//! MLflow's server is measured twice: as it starts by default, with four workers and its database on the disk; and with its
//! database in memory (`/dev/shm`) and a client that acknowledges at once (`TCP_QUICKACK`), since its server leaves Nagle's
//! algorithm on, which costs each request 40 ms (<https://github.com/Kludex/uvicorn/issues/3149>). Its part is shorter
//! (`--peer-points`), as it takes minutes. It has a Python environment of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use serde_json::Value;
use xtask::environment::{self, Environment};

use crate::binary::binary;
use crate::report::{Bar, Report};

/// The version whose API the control plane speaks.
const MLFLOW: &str = "mlflow==3.17.2";
/// How long a server may take to answer for the first time.
const START_MAX: Duration = Duration::from_secs(120);

/// Options of `bench tracking`.
#[derive(Parser)]
#[command(name = "bench tracking", about = "What MLflow's clients get, beside a real mlflow server")]
struct Options {
    /// Points that are logged, in 100 runs.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(100_000..=100_000_000))]
    points: u64,
    /// Points that are logged to the peer.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(100_000..=100_000_000))]
    peer_points: u64,
    /// Runs that are filtered and sorted.
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    runs: u64,
}

/// A server that is measured.
struct Server {
    child: Child,
    uri: String,
    token: Option<String>,
    database: PathBuf,
    /// Whether its clients acknowledge each packet at once.
    acknowledges: bool,
}

/// Measures and prints.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let options = Options::try_parse_from(std::iter::once("bench tracking".to_owned()).chain(options.iter().cloned()))?;
    let python = Environment::open(&environment::target()?, "tracking-venv")?;
    python.install("packages", &[MLFLOW])?;
    let folder = tempfile::tempdir_in(environment::target()?).context("make a folder")?;
    let mut report = Report::default();
    let ours = start_ours(folder.path())?;
    report.section("gangline up");
    measure(&python, &ours, (options.points, options.runs), &mut report, true)?;
    drop(ours);
    let memory = tempfile::tempdir_in("/dev/shm").context("make a folder in memory")?;
    let configurations = [
        ("as it starts by default", folder.path(), false),
        ("database in memory, a client that acknowledges at once", memory.path(), true),
    ];
    for (name, folder, acknowledges) in configurations {
        report.section(&format!("peer: {MLFLOW}, 4 workers, {name}"));
        let mut peer = start_peer(&python, folder)?;
        peer.acknowledges = acknowledges;
        measure(&python, &peer, (options.peer_points, 0), &mut report, false)?;
    }
    Ok(report.finish())
}

fn start_ours(folder: &Path) -> Result<Server> {
    let (data, port) = (folder.join("data"), free_port()?);
    let mut command = Command::new(binary()?);
    command.arg("--data").arg(&data).args(["up", "--listen", &format!("127.0.0.1:{port}")]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start gangline up")?;
    let database = data.join("tracking/tracking.db");
    let mut server =
        Server { child, uri: format!("http://127.0.0.1:{port}"), token: None, database, acknowledges: false };
    server.wait()?;
    let token = std::fs::read_to_string(data.join("token")).context("read the token")?;
    server.token = Some(token.trim().to_owned());
    Ok(server)
}

fn start_peer(python: &Environment, folder: &Path) -> Result<Server> {
    let (database, port) = (folder.join("mlflow.db"), free_port()?);
    let mut command = Command::new(python.programs().join("mlflow"));
    command.args(["server", "--host", "127.0.0.1", "--port", &port.to_string()]);
    command.arg("--backend-store-uri").arg(format!("sqlite:///{}", database.display()));
    command.arg("--artifacts-destination").arg(folder.join("artifacts")).current_dir(folder);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start mlflow server")?;
    let mut server =
        Server { child, uri: format!("http://127.0.0.1:{port}"), token: None, database, acknowledges: false };
    server.wait()?;
    Ok(server)
}

fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    Ok(listener.local_addr().context("find a free port")?.port())
}

fn measure(
    python: &Environment,
    server: &Server,
    (points, runs): (u64, u64),
    report: &mut Report,
    is_ours: bool,
) -> Result<()> {
    let bar = |bar: Bar| if is_ours { bar } else { Bar::None };
    let before = server.resident_mib();
    let filled = server.ask(python, "fill", points)?;
    report.figure(
        "log-batch(1000), 4 clients",
        number(&filled, "metrics_per_second")?,
        "/s",
        bar(Bar::AtLeast(50_000.0)),
    );
    report.figure("a point in the database", server.bytes()? / as_float(points), "B", bar(Bar::AtMost(30.0)));
    let asked = server.ask(python, "ask", runs)?;
    report.figure(
        "log_metric of the Python client, median",
        number(&asked, "log_metric_ms")?,
        "ms",
        bar(Bar::AtMost(3.0)),
    );
    let what = format!("search 100 runs at {points} points");
    report.figure(&what, number(&asked, "search_ms")?, "ms", bar(Bar::AtMost(20.0)));
    report.figure("bulk-interval, 100 runs x 320", number(&asked, "bulk_ms")?, "ms", bar(Bar::AtMost(100.0)));
    if runs > 0 {
        let what = format!("{runs} runs filtered and sorted by a metric, 100 shown");
        report.figure(&what, number(&asked, "many_ms")?, "ms", bar(Bar::AtMost(50.0)));
    }
    let after = server.resident_mib();
    match is_ours {
        true => report.figure("memory beside the control plane's own", after - before, "MiB", Bar::AtMost(150.0)),
        false => report.figure("memory of all its processes", after, "MiB", Bar::None),
    }
    Ok(())
}

fn number(answer: &Value, name: &str) -> Result<f64> {
    answer[name].as_f64().with_context(|| format!("tracking.py didn't measure {name}"))
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
fn as_float(count: u64) -> f64 {
    count as f64
}

impl Server {
    fn wait(&mut self) -> Result<()> {
        let address = self.uri.trim_start_matches("http://").to_owned();
        let begun = Instant::now();
        while begun.elapsed() < START_MAX {
            ensure!(self.child.try_wait()?.is_none(), "the server at {} ended at once", self.uri);
            if std::net::TcpStream::connect(&address).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!("the server at {} doesn't answer", self.uri)
    }

    fn ask(&self, python: &Environment, part: &str, count: u64) -> Result<Value> {
        let mut command = Command::new(python.programs().join("python"));
        command.args(["-W", "ignore", "benches/src/tracking.py", &self.uri, part, &count.to_string()]);
        command.env("GIT_PYTHON_REFRESH", "quiet").env("MLFLOW_TRACKING_URI", &self.uri);
        command
            .env_remove("MLFLOW_TRACKING_TOKEN")
            .envs(self.token.iter().map(|token| ("MLFLOW_TRACKING_TOKEN", token)));
        if self.acknowledges {
            command.env("ACKNOWLEDGES_AT_ONCE", "1");
        }
        let output = command.stderr(Stdio::inherit()).output().context("start tracking.py")?;
        ensure!(output.status.success(), "tracking.py failed");
        serde_json::from_slice(&output.stdout).context("read what tracking.py measured")
    }

    /// The size of the database once its log is in it.
    fn bytes(&self) -> Result<f64> {
        let database = rusqlite::Connection::open(&self.database)?;
        database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(as_float(std::fs::metadata(&self.database)?.len()))
    }

    /// Memory of the server and of the processes that it started.
    fn resident_mib(&self) -> f64 {
        let group = self.child.id();
        let of = |pid: u32| -> Option<f64> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let is_its_own = pid == group || fields.get(2)?.parse() == Ok(group);
            let pages: f64 = fields.get(21)?.parse().ok()?;
            is_its_own.then_some(pages * 4_096.0 / 1_048_576.0)
        };
        crate::processes::all().into_iter().filter_map(of).sum()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        // A peer's workers are in its group; what has ended can't be killed.
        let _ = group.map(|group| rustix::process::kill_process_group(group, rustix::process::Signal::KILL));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
