//! A supervisor as the control plane sees it: reports over HTTP, by the spec that the launcher wrote.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The version of reports that is spoken here.
const PROTOCOL_VERSION: u64 = 2;
/// The version of metrics.
const METRICS_VERSION: u64 = 1;
/// An answer comes in this time, and isn't longer.
const ANSWER_MOST: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// An odd number whose multiples are all over the place.
const SCATTER: u64 = 0x9e37_79b9_7f4a_7c15;
/// How long a step takes, about.
const STEP_NANOS: u64 = 100_000_000;
/// A process id that no process can have on Linux.
const NOBODY: u32 = (4 << 20) + 1;

/// One, whose ranks compute.
pub(crate) struct Supervisor {
    /// When it reports next.
    pub(crate) due: Instant,
    /// From one report to the next.
    pub(crate) heartbeat: Duration,
    token: String,
    began: Instant,
    report: Value,
    /// Samples that it has taken since the last report, in each report.
    samples_each: u64,
    connection: Option<BufReader<TcpStream>>,
}

impl Supervisor {
    /// The one of this spec; its first report is due.
    ///
    /// # Errors
    /// When the spec can't be read or is of another version.
    pub(crate) fn read(path: &Path) -> Result<Supervisor> {
        let text = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
        let spec: Value = serde_json::from_slice(&text).with_context(|| format!("read {}", path.display()))?;
        let version = &spec["version"];
        anyhow::ensure!(*version == PROTOCOL_VERSION, "{}: version {version} isn't known here", path.display());
        let token = spec["token"].as_str().context("a spec has a token")?.to_owned();
        let heartbeat = Duration::from_millis(spec["heartbeat_ms"].as_u64().context("a spec has a heartbeat")?);
        let began = Instant::now();
        Ok(Supervisor {
            due: began,
            heartbeat,
            token,
            began,
            report: first_report(&spec),
            samples_each: 0,
            connection: None,
        })
    }

    /// From now on so many samples are new in each report.
    pub(crate) fn take_samples(&mut self, each: u64) {
        self.samples_each = each;
    }

    /// Its rank has saved.
    pub(crate) fn save(&mut self, step: u64) {
        self.report["checkpoint"] = json!({"step": step, "bytes": 1 << 30, "at": unix_nanos()});
        self.report["checkpoints"] = json!(self.report["checkpoints"].as_u64().unwrap_or_default() + 1);
    }

    /// Its ranks have ended well.
    pub(crate) fn end(&mut self) {
        self.report["state"] = json!({"is": "ended", "at": unix_nanos(), "outcome": {"is": "succeeded"}});
    }

    /// Reports, and says how long the answer took.
    ///
    /// # Errors
    /// When it isn't answered, is refused, or is told to stop.
    pub(crate) fn report(&mut self, address: &str) -> Result<Duration> {
        let began = Instant::now();
        self.due = began + self.heartbeat;
        self.work();
        let orders = self.post(address, "report", &self.report.to_string())?;
        if let Some(within) = orders["report_within_ms"].as_u64() {
            self.heartbeat = Duration::from_millis(within);
            self.due = began + self.heartbeat;
        }
        self.forget_samples(orders["samples_stored"].as_u64().unwrap_or_default());
        anyhow::ensure!(orders["stop"].is_null(), "it is told to stop: {}", orders["stop"]);
        Ok(began.elapsed())
    }

    /// Its rank has computed since the last report.
    fn work(&mut self) {
        let (now, ran) = (unix_nanos(), self.began.elapsed());
        let step = ran.as_millis() / 100;
        self.report["sent_at"] = json!(now);
        self.report["usage"] = json!({"compute": u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX)});
        let step = u64::try_from(step).unwrap_or(u64::MAX);
        let nanos = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
        for (number, rank) in (1..).zip(self.report["ranks"].as_array_mut().into_iter().flatten()) {
            // No two ranks say the same, as no two real ones do.
            let own = nanos.wrapping_mul(number).wrapping_mul(SCATTER) % 1_000_000;
            rank["last_sign_of_life"] = json!(now - own);
            rank["step"] = json!(step);
            rank["tokens"] = json!(step * 65_536);
            rank["work"] = json!({"steps": step, "compute_nanos": nanos + own, "data_nanos": own});
        }
        self.sample(now);
    }

    fn sample(&mut self, now: u64) {
        let from = self.report["samples_from"].as_u64().unwrap_or_default();
        let Some(samples) = self.report["samples"].as_array_mut() else { return };
        let next = from + samples.len() as u64;
        samples.extend((next..next + self.samples_each).map(|number| {
            // Steps take about as long as each other and never exactly; a loss falls, is scattered, and is a framework's 32-bit float.
            let scatter = (number + now).wrapping_mul(SCATTER) >> 32;
            let at = now - (next + self.samples_each - number) * STEP_NANOS + scatter % (STEP_NANOS / 50);
            let noise = (scatter % 100_000) as f32 / 1e6;
            let loss = f64::from((10.0 / (1.0 + number as f32).sqrt() + 1.5) * (1.0 + noise));
            json!({"at": at, "step": number, "loss": loss, "tokens": number * 65_536})
        }));
    }

    /// Samples below this number are durable.
    fn forget_samples(&mut self, stored: u64) {
        let from = self.report["samples_from"].as_u64().unwrap_or_default();
        let Some(samples) = self.report["samples"].as_array_mut() else { return };
        let count = usize::try_from(stored.saturating_sub(from)).unwrap_or(usize::MAX).min(samples.len());
        samples.drain(..count);
        self.report["samples_from"] = json!(from + count as u64);
    }

    /// Sends batches of metrics and waits until they are durable.
    ///
    /// # Errors
    /// When they aren't answered, or are refused.
    pub(crate) fn post_metrics(&mut self, address: &str, batches: Vec<Value>) -> Result<()> {
        let Value::Object(report) = &self.report else { anyhow::bail!("a report is an object") };
        let mut metrics = json!({"version": METRICS_VERSION, "batches": batches});
        for name in ["job", "attempt", "epoch", "node"] {
            metrics[name] = report[name].clone();
        }
        self.post(address, "metrics", &metrics.to_string()).map(drop)
    }

    fn post(&mut self, address: &str, path: &str, body: &str) -> Result<Value> {
        let answered = self.exchange(address, path, body);
        if answered.is_err() {
            self.connection = None;
        }
        answered
    }

    fn exchange(&mut self, address: &str, path: &str, body: &str) -> Result<Value> {
        let (token, job, attempt) = (&self.token, &self.report["job"], &self.report["attempt"]);
        let epoch = self.report["epoch"].as_u64().unwrap_or_default();
        let head = format!(
            "POST /api/v1/supervisors/{path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\
             gangline-attempt: {job}/{attempt}/{epoch:016x}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if self.connection.is_none() {
            let stream = TcpStream::connect(address).context("reach the control plane")?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_MOST))?;
            self.connection = Some(BufReader::new(stream));
        }
        let connection = self.connection.as_mut().context("it is connected")?;
        connection.get_mut().write_all((head + body).as_bytes()).context("send a report")?;
        read_answer(connection)
    }
}

/// Reads an answer that has a length; the connection stays.
fn read_answer(connection: &mut BufReader<TcpStream>) -> Result<Value> {
    let mut line = || {
        let mut text = String::new();
        (&mut *connection).take(ANSWER_BYTES_MAX as u64).read_line(&mut text).context("read an answer")?;
        anyhow::ensure!(text.ends_with('\n'), "the answer breaks off");
        Ok(text.trim_end().to_ascii_lowercase())
    };
    let status = line()?;
    let mut length = 0;
    loop {
        let header = line()?;
        if header.is_empty() {
            break;
        }
        if let Some(text) = header.strip_prefix("content-length:") {
            length = text.trim().parse().context("read an answer's length")?;
        }
    }
    anyhow::ensure!(length <= ANSWER_BYTES_MAX, "an answer of {length} bytes is too long");
    let mut body = vec![0; length];
    connection.read_exact(&mut body).context("read an answer")?;
    anyhow::ensure!(status.contains(" 200 "), "{status}: {}", String::from_utf8_lossy(&body));
    serde_json::from_slice(&body).context("read orders")
}

/// A report of a node whose ranks run.
fn first_report(spec: &Value) -> Value {
    let now = unix_nanos();
    let ranks = spec["ranks_per_node"].as_u64().unwrap_or(1);
    let rank = |local: u64| {
        let rank = spec["node_rank"].as_u64().unwrap_or_default() * ranks + local;
        json!({
            "rank": rank, "pid": NOBODY, "phase": "compute", "step": 0, "total_steps": 1_000_000, "tokens": 0,
            "last_sign_of_life": now, "dropped": 0,
        })
    };
    let ranks: Vec<Value> = (0..ranks).map(rank).collect();
    json!({
        "version": spec["version"], "job": spec["job"], "attempt": spec["attempt"], "epoch": spec["epoch"], "node": spec["node"], "supervisor_pid": NOBODY,
        "sent_at": now, "started_at": now, "state": {"is": "running", "since": now}, "ranks": ranks, "usage": {},
        "marks": {"ranks_started": now, "restore_began": null, "restore_ended": null, "first_step": now}, "checkpoint": null,
        "checkpoints": 0, "checkpoint_bytes": 0, "rendezvous": null, "samples": [], "samples_from": 0,
    })
}

fn unix_nanos() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
