//! `bench monitoring [--seconds N] [--alerts N]`: what a node's agent costs at one reading a second, beside Prometheus' node
//! exporter, and how soon after a job's failure a webhook has its alert.
//!
//! The agent reads this machine, and eight GPUs from a server that answers as DCGM's exporter does: a recorded answer of one
//! Tesla T4, eight times. The node exporter reads this machine alone, and is scraped once a second.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::binary::binary;
use crate::recovery::spawned::Folder;

const DCGM: &str = include_str!("../../crates/telemetry/src/collectors/fixtures/dcgm-t4.txt");
const GPUS: u32 = 8;
const EXPORTER: &str = "prometheus-node-exporter";
const CPU_RATIO_MOST: f64 = 0.01;
const MEMORY_MIB_MOST: f64 = 50.0;
/// Seconds between two evaluations of the rules.
const EVERY: f64 = 1.0;
/// What an alert may take beyond that, in seconds.
const BEYOND_EVERY: f64 = 1.0;
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures and prints; whether the bars are met.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let (mut seconds, mut alerts) = (60, 20);
    for pair in options.chunks(2) {
        match pair {
            [name, count] if name == "--seconds" => seconds = count.parse()?,
            [name, count] if name == "--alerts" => alerts = count.parse()?,
            _ => anyhow::bail!("bench monitoring takes --seconds N and --alerts N"),
        }
    }
    let plane = Plane::start()?;
    let is_cheap = agent(&plane, Duration::from_secs(seconds))?;
    let is_quick = latency(&plane, alerts)?;
    println!("bars: {}", if is_cheap && is_quick { "met" } else { "NOT met" });
    Ok(is_cheap && is_quick)
}

/// A control plane of one node, which tells a webhook here of jobs that failed.
struct Plane {
    folder: Folder,
    up: Child,
    told: Receiver<(f64, Value)>,
}

impl Plane {
    fn start() -> Result<Plane> {
        let folder = Folder::new()?;
        let (url, told) = webhook()?;
        std::fs::create_dir(folder.path("data"))?;
        let rules = format!("every = '{EVERY:.0}s'\n[[receiver]]\nname = 'here'\nwebhook = '{url}'\n");
        std::fs::write(folder.path("data/alerts.toml"), rules)?;
        let mut command = gangline(&folder)?;
        command.args(["up", "--listen", "127.0.0.1:0", "--agent-every", "0", "--node", "n1=cpu:1"]);
        let up = folder.spawn(&mut command, "up.log")?;
        let plane = Plane { folder, up, told };
        let begun = Instant::now();
        while plane.ask(&["queues"]).is_err() {
            anyhow::ensure!(begun.elapsed() < PATIENCE, "gangline up doesn't start: {}", plane.folder.text("up.log"));
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(plane)
    }

    /// Returns what a command says.
    fn ask(&self, arguments: &[&str]) -> Result<String> {
        let output = gangline(&self.folder)?.args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.success(), "gangline {arguments:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.up.kill();
        let _ = self.up.wait();
    }
}

fn gangline(folder: &Folder) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.arg("--data").arg(folder.path("data")).env_remove("GANGLINE_URL").env_remove("GANGLINE_TOKEN");
    Ok(command)
}

/// Prints what the agent costs; whether that is within the bars.
fn agent(plane: &Plane, time: Duration) -> Result<bool> {
    let mut answer = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n".to_owned();
    for gpu in 0..GPUS {
        answer.push_str(&DCGM.replace("gpu=\"0\"", &format!("gpu=\"{gpu}\"")));
    }
    let exporter = serve(move |_| answer.clone())?;
    let mut command = gangline(&plane.folder)?;
    command.args(["agent", "--node", "n1", "--every", "1", "--dcgm", &format!("{exporter}/metrics")]);
    let ours = Process(plane.folder.spawn(&mut command, "agent.log")?);
    let cost = ours.over(time, || ())?;
    println!(
        "agent          {:>6.2} % of a core (bar {:.0}), {:>5.1} MiB (bar {MEMORY_MIB_MOST:.0}), with its checks; host and {GPUS} GPUs, once a second for {} s",
        cost.cpu * 100.0,
        CPU_RATIO_MOST * 100.0,
        cost.mib,
        time.as_secs()
    );
    let node = plane.ask(&["nodes", "n1", "--json"])?;
    let gpus = node.matches("gpu.sm_clock_hertz").count();
    anyhow::ensure!(gpus >= GPUS as usize, "the control plane has readings of {gpus} GPUs");
    match peer(plane, time)? {
        Some(peer) => println!(
            "node exporter  {:>6.2} % of a core, {:>5.1} MiB; the host alone, scraped once a second",
            peer.cpu * 100.0,
            peer.mib
        ),
        None => println!("skipped: the node exporter isn't here (apt install {EXPORTER})"),
    }
    Ok(cost.cpu <= CPU_RATIO_MOST && cost.mib <= MEMORY_MIB_MOST)
}

fn peer(plane: &Plane, time: Duration) -> Result<Option<Cost>> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut command = Command::new(EXPORTER);
    command.arg(format!("--web.listen-address={address}"));
    let Ok(child) = plane.folder.spawn(&mut command, "exporter.log") else { return Ok(None) };
    let exporter = Process(child);
    std::thread::sleep(Duration::from_secs(1));
    let scrape = || {
        // What it answers isn't of interest, and nobody judges one that doesn't.
        let _ = TcpStream::connect(address).and_then(|mut stream| {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
            stream.read_to_end(&mut Vec::new())
        });
    };
    exporter.over(time, scrape).map(Some)
}

/// CPU time as a part of one core's, and the most memory.
struct Cost {
    cpu: f64,
    mib: f64,
}

/// A process that ends with this value.
struct Process(Child);

impl Process {
    /// Returns what it takes for so long, with children that ended, while `each` is called once a second. Its start doesn't count.
    fn over(&self, time: Duration, each: impl Fn()) -> Result<Cost> {
        std::thread::sleep(Duration::from_secs(2));
        let (before, begun) = (self.cpu_seconds()?, Instant::now());
        while begun.elapsed() < time {
            each();
            std::thread::sleep(Duration::from_secs(1));
        }
        let cpu = (self.cpu_seconds()? - before) / begun.elapsed().as_secs_f64();
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(Cost { cpu, mib: kib / 1_024.0 })
    }

    fn cpu_seconds(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // Of utime, stime, cutime and cstime, which are 11 fields behind the name; proc(5).
        let (_, fields) = stat.rsplit_once(')').context("a name")?;
        let ticks = fields.split_ascii_whitespace().skip(11).take(4).map(str::parse::<f64>);
        let ticks: f64 = ticks.collect::<Result<Vec<f64>, _>>()?.into_iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "it is 100")]
        Ok(ticks / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Prints how long after a job's end the webhook had its alert; whether the slowest was within the bar.
fn latency(plane: &Plane, count: usize) -> Result<bool> {
    let mut times = Vec::new();
    for number in 0..count {
        let file = plane.folder.path("job.yaml");
        std::fs::write(&file, format!("name: fails-{number}\nrecovery: {{max_faults: 0}}\nrun: exit 3\n"))?;
        let id = plane.ask(&["submit", &file.to_string_lossy()])?.trim().to_owned();
        let at = loop {
            let (at, body) = plane.told.recv_timeout(PATIENCE).context("nobody was told of a failed job")?;
            let alerts = body["alerts"].as_array().cloned().unwrap_or_default();
            if alerts.iter().any(|alert| alert["rule"] == "job_failed" && alert["subject"] == *id) {
                break at;
            }
        };
        let job: Value = serde_json::from_str(&plane.ask(&["show", &id, "--json"])?)?;
        let ended = job["ended_at"].as_str().and_then(unix_seconds).context("the job has ended")?;
        times.push(at - ended);
    }
    times.sort_by(f64::total_cmp);
    let (middle, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "alert          {middle:>6.2} s from a job's failure to a webhook, median of {count}; worst {worst:.2} s (bar {:.0}: the {EVERY:.0} s between evaluations and {BEYOND_EVERY:.0})",
        EVERY + BEYOND_EVERY
    );
    Ok(worst <= EVERY + BEYOND_EVERY)
}

/// Returns the seconds since 1970 of a time as the API has it, in UTC, by `date`.
fn unix_seconds(time: &str) -> Option<f64> {
    let said = Command::new("date").args(["-u", "+%s.%N", "-d", time]).output().ok()?;
    String::from_utf8(said.stdout).ok()?.trim().parse().ok()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Starts a webhook; returns its URL, and each body with the time at which it came.
fn webhook() -> Result<(String, Receiver<(f64, Value)>)> {
    let (sender, told) = channel();
    let url = serve(move |body| {
        // Nobody listens any more once the measurement is over.
        let _ = sender.send((now(), serde_json::from_slice(body).unwrap_or_default()));
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
    })?;
    Ok((url, told))
}

/// Starts a server that answers each request by its body, one after the other.
fn serve(answer: impl Fn(&[u8]) -> String + Send + 'static) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let body = body_of(&mut stream).unwrap_or_default();
            // The client may be gone.
            let _ = stream.write_all(answer(&body).as_bytes());
        }
    });
    Ok(url)
}

fn body_of(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let (mut reader, mut length, mut line) = (BufReader::new(stream), 0, String::new());
    while reader.read_line(&mut line)? > 2 {
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}
