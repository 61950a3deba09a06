//! Delivery of alerts: a thread and a bounded queue for each receiver, so that one that can't be reached delays no other.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver as Inbox, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use gangline_api as api;
use gangline_base::{EmailAddress, Timestamp, with_causes};
use gangline_control::delivery::{MailServer, Mailer, Message};
use gangline_execution::endpoint::agent;
use gangline_telemetry::alerts::{Alert, Receiver, Way, message};
use serde_json::{Value, json};
use tracing::warn;

/// Messages of one receiver that may wait; further ones are given up.
const WAITING_MAX: usize = 64;
/// Tries of a message, with twice the pause before each.
const TRIES_MAX: u32 = 8;
/// The pause before the second try.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest time of a try.
const TRY_MAX: Duration = Duration::from_secs(10);
/// Time between two looks at whether a command has ended.
const COMMAND_LOOK: Duration = Duration::from_millis(20);
/// Time after which an Alertmanager is told again what fires: it forgets what nobody repeats.
const REMIND_EVERY: Duration = Duration::from_secs(60);
/// Time for which an Alertmanager believes an alert that isn't repeated.
const REMINDED_FOR: Duration = Duration::from_secs(5 * 60);
/// Where systems keep the certificates of public authorities, as PEM.
const AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Parts of a mail while it waits.
const SUBJECT: &str = "subject";
const TEXT: &str = "text";

/// All receivers.
#[derive(Debug)]
pub(super) struct Deliveries {
    lines: Vec<Line>,
    reminded_at: BTreeMap<String, Timestamp>,
}

#[derive(Debug)]
struct Line {
    receiver: Receiver,
    queue: SyncSender<Value>,
    stop: Sender<()>,
    standing: Arc<Mutex<DeliveryStatus>>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct DeliveryStatus {
    delivered: u64,
    given_up: u64,
    waiting: u64,
    delivered_at: Option<Timestamp>,
    failure: Option<String>,
}

impl Deliveries {
    /// Starts a thread for each receiver.
    pub(super) fn start(
        receivers: Vec<Receiver>,
        mail: Option<&MailServer>,
        clock: fn() -> Timestamp,
    ) -> io::Result<Deliveries> {
        let start = |receiver: Receiver| {
            let (queue, inbox) = sync_channel(WAITING_MAX);
            let (stop, stopped) = channel();
            let standing = Arc::new(Mutex::new(DeliveryStatus::default()));
            let mail = mail.filter(|_| matches!(receiver.way, Way::Email(_)));
            let mailer = mail.map(|server| Mailer::new(server, TRY_MAX)).transpose()?;
            let (standing_of, to) = (Arc::clone(&standing), receiver.clone());
            let worker = Worker { receiver: to, inbox, stopped, standing: standing_of, mailer, clock };
            let thread = Builder::new().name("alert-delivery".to_owned()).spawn(move || worker.run())?;
            Ok(Line { receiver, queue, stop, standing, thread })
        };
        let lines = receivers.into_iter().map(start).collect::<io::Result<Vec<Line>>>()?;
        Ok(Deliveries { lines, reminded_at: BTreeMap::new() })
    }

    /// Queues what is new for every receiver that wants to know; Alertmanagers get all that fires now and then.
    pub(super) fn deliver(&mut self, now: Timestamp, news: &[Alert], firing: &[Alert]) {
        for line in &self.lines {
            let Receiver { name, way, severity } = &line.receiver;
            let wanted = |alerts: &[Alert]| -> Vec<Alert> {
                alerts.iter().filter(|alert| alert.severity >= *severity).cloned().collect()
            };
            let mut alerts = wanted(news);
            if matches!(way, Way::Alertmanager(_)) {
                let reminded_at = self.reminded_at.get(name).copied();
                if !alerts.is_empty() || reminded_at.is_none_or(|at| now.since(at) >= REMIND_EVERY) {
                    let told: Vec<u64> = alerts.iter().map(|alert| alert.id).collect();
                    alerts.extend(wanted(firing).into_iter().filter(|alert| !told.contains(&alert.id)));
                    self.reminded_at.insert(name.clone(), now);
                }
            }
            if !alerts.is_empty() {
                line.queue(message_for(way, &alerts, now));
            }
        }
    }

    /// Returns how each receiver stands.
    pub(super) fn standings(&self) -> Vec<api::AlertReceiver> {
        let shown = |line: &Line| {
            let standing = line.standing();
            api::AlertReceiver {
                name: line.receiver.name.clone(),
                kind: kind(&line.receiver.way).to_owned(),
                severity: line.receiver.severity.name().to_owned(),
                delivered: standing.delivered,
                given_up: standing.given_up,
                waiting: standing.waiting,
                delivered_at: standing.delivered_at.map(api::Time),
                failure: standing.failure.clone(),
            }
        };
        self.lines.iter().map(shown).collect()
    }

    /// Ends the threads; one that is sending ends after that try.
    pub(super) fn stop(self) {
        for Line { queue, stop, thread, .. } in self.lines {
            drop((queue, stop));
            if thread.join().is_err() {
                warn!("a thread that delivers alerts had panicked");
            }
        }
    }
}

impl Line {
    fn standing(&self) -> std::sync::MutexGuard<'_, DeliveryStatus> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, message: Value) {
        let mut standing = self.standing();
        match self.queue.try_send(message) {
            Ok(()) => standing.waiting += 1,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => standing.given_up += 1,
        }
    }
}

fn kind(way: &Way) -> &'static str {
    match way {
        Way::Webhook(_) => "webhook",
        Way::Slack(_) => "slack",
        Way::Alertmanager(_) => "alertmanager",
        Way::Email(_) => "email",
        Way::Command(_) => "command",
    }
}

fn message_for(way: &Way, alerts: &[Alert], now: Timestamp) -> Value {
    let time = |at: Timestamp| api::Time(at).to_string();
    match way {
        Way::Webhook(_) | Way::Command(_) => message::webhook(alerts, time),
        Way::Slack(_) => message::slack(alerts),
        Way::Email(_) => {
            let (subject, text) = message::mail(alerts, time);
            json!({ SUBJECT: subject, TEXT: text })
        }
        Way::Alertmanager(_) => message::alertmanager(alerts, now, REMINDED_FOR, time),
    }
}

/// One receiver's thread.
struct Worker {
    receiver: Receiver,
    inbox: Inbox<Value>,
    stopped: Inbox<()>,
    standing: Arc<Mutex<DeliveryStatus>>,
    /// Sends mail, if the receiver is mailed to.
    mailer: Option<Mailer>,
    clock: fn() -> Timestamp,
}

impl Worker {
    fn run(self) {
        while let Ok(message) = self.inbox.recv() {
            let outcome = self.deliver(&message);
            let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
            standing.waiting = standing.waiting.saturating_sub(1);
            match outcome {
                Some(true) => {
                    standing.delivered += 1;
                    standing.delivered_at = Some((self.clock)());
                    standing.failure = None;
                }
                Some(false) => standing.given_up += 1,
                None => return,
            }
        }
    }

    /// Tries until the message has arrived or was tried often enough; `None` if the control plane stops.
    fn deliver(&self, message: &Value) -> Option<bool> {
        let mut pause = PAUSE;
        for attempt in 1..=TRIES_MAX {
            let Err(failure) = self.send(message) else { return Some(true) };
            if attempt == 1 {
                warn!(receiver = self.receiver.name, failure, "an alert can't be delivered yet");
            }
            self.standing.lock().unwrap_or_else(PoisonError::into_inner).failure = Some(failure);
            if attempt < TRIES_MAX {
                match self.stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => pause *= 2,
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
                }
            }
        }
        Some(false)
    }

    fn send(&self, message: &Value) -> Result<(), String> {
        match &self.receiver.way {
            Way::Webhook(url) | Way::Slack(url) => post(url, message),
            Way::Alertmanager(url) => post(&format!("{}/api/v2/alerts", url.trim_end_matches('/')), message),
            Way::Email(address) => self.mail(address, message),
            Way::Command(command) => run(command, message),
        }
    }
}

impl Worker {
    fn mail(&self, address: &EmailAddress, message: &Value) -> Result<(), String> {
        let mailer = self.mailer.as_ref().ok_or("the configuration names no mail server ([smtp])")?;
        let text = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
        mailer.send(address, &Message { subject: text(SUBJECT), text: text(TEXT), body: Value::Null })
    }
}

/// Posts JSON. The error doesn't hold the URL, which may be a secret.
fn post(url: &str, message: &Value) -> Result<(), String> {
    let authorities = if url.starts_with("https:") { Some(authorities()?) } else { None };
    let agent = agent(TRY_MAX, authorities.as_deref()).map_err(|error| with_causes(&error))?;
    let answer = agent.post(url).send_json(message).map_err(|error| with_causes(&error))?;
    let status = answer.status();
    if status.is_success() { Ok(()) } else { Err(format!("it answered with status {}", status.as_u16())) }
}

/// Returns the certificates of public authorities, as PEM.
pub(crate) fn authorities() -> Result<Vec<u8>, String> {
    let found = AUTHORITIES.iter().find_map(|file| std::fs::read(file).ok());
    found.ok_or_else(|| format!("there are no certificates of authorities in {}", AUTHORITIES.join(", ")))
}

/// Runs a command with the message as its input, and ends it if it takes too long.
fn run(command: &[String], message: &Value) -> Result<(), String> {
    let [program, arguments @ ..] = command else { return Err("it has no program".to_owned()) };
    let started = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut child = started.map_err(|error| format!("{program} can't be started: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        // A command may do without its input; a large message and a command that doesn't read would wait for ever.
        let bytes = message.to_string().into_bytes();
        let write = Builder::new().name("alert-input".to_owned()).spawn(move || drop(input.write_all(&bytes)));
        write.map_err(|error| format!("no thread: {error}"))?;
    }
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{program} ended with {status}")),
            Err(error) => return Err(format!("{program}: {error}")),
            Ok(None) if started.elapsed() >= TRY_MAX => break,
            Ok(None) => std::thread::sleep(COMMAND_LOOK),
        }
    }
    // It may have ended in between.
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("{program} didn't end within {} s", TRY_MAX.as_secs()))
}
