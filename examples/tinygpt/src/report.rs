//! Telling the supervisor over its Unix socket what this rank does, and hearing its orders: JSON, a line each.
//!
//! A supervisor that is gone or slow never hurts the training (A-13): after the first failed write nothing more is sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gangline_base::Phase;
use serde::Deserialize;
use serde_json::json;

/// The longest line either side may send.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// How long a full socket may hold up the training, once.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);

/// The supervisor's ear, if there is one.
pub(crate) struct Reporter {
    stream: Option<UnixStream>,
    phase: Option<Phase>,
    is_stopping: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

/// What a supervisor may order.
#[derive(Deserialize)]
struct Order {
    order: String,
}

impl Reporter {
    /// Connects to the supervisor at `socket`; without one, or if that fails, reports go nowhere.
    pub(crate) fn connect(socket: Option<&Path>, rank: u32) -> Reporter {
        let stream = socket.and_then(|path| UnixStream::connect(path).ok());
        let is_stopping = Arc::new(AtomicBool::new(false));
        let listener = stream.as_ref().and_then(|stream| listen(stream, Arc::clone(&is_stopping)));
        if let Some(stream) = &stream {
            // Without the timeout a write could block for longer; it would still work.
            let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
        }
        let mut reporter = Reporter { stream, phase: None, is_stopping, listener };
        reporter.send(&json!({"rank": rank, "pid": std::process::id()}));
        reporter
    }

    /// Whether a supervisor listens.
    #[cfg(test)]
    fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Whether the supervisor has ordered to save and stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// How many steps there are in all.
    pub(crate) fn total_steps(&mut self, steps: u64) {
        self.send(&json!({"total_steps": steps}));
    }

    /// What this rank does from now on.
    pub(crate) fn phase(&mut self, phase: Phase) {
        if self.phase != Some(phase) {
            self.phase = Some(phase);
            self.send(&json!({"phase": phase}));
        }
    }

    /// A step is finished; `tokens` of it were this rank's.
    pub(crate) fn step(&mut self, step: u64, loss: f32, tokens: u64) {
        self.send(&json!({"step": step, "loss": loss, "tokens": tokens}));
    }

    /// A checkpoint is durable.
    pub(crate) fn checkpoint(&mut self, step: u64, bytes: u64) {
        self.send(&json!({"checkpoint": {"step": step, "bytes": bytes}}));
    }

    fn send(&mut self, message: &serde_json::Value) {
        let Some(stream) = &mut self.stream else { return };
        // In one write: a line is there whole or not at all.
        let line = format!("{message}\n");
        if stream.write_all(line.as_bytes()).is_err() {
            // Part of a line may have gone out: nothing sensible can follow it.
            self.hang_up();
        }
    }

    fn hang_up(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(listener) = self.listener.take() {
            // It ends with the connection.
            let _ = listener.join();
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.hang_up();
    }
}

fn listen(stream: &UnixStream, is_stopping: Arc<AtomicBool>) -> Option<JoinHandle<()>> {
    let stream = stream.try_clone().ok()?;
    std::thread::Builder::new().name("orders".to_owned()).spawn(move || hear_orders(stream, &is_stopping)).ok()
}

fn hear_orders(stream: UnixStream, is_stopping: &AtomicBool) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        // The end, an error, or a line beyond the limit: no more orders then.
        if read.is_err() || line.last() != Some(&b'\n') {
            return;
        }
        // Orders of a newer supervisor that this trainer doesn't know are not for it.
        if serde_json::from_slice::<Order>(&line).is_ok_and(|order| order.order == "save_and_stop") {
            is_stopping.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn connected() -> (tempfile::TempDir, Reporter, UnixStream) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let reporter = Reporter::connect(Some(&path), 3);
        let (supervisor, _) = listener.accept().expect("the reporter calls");
        (folder, reporter, supervisor)
    }

    #[test]
    fn phases_steps_and_checkpoints_are_told_a_line_each_and_only_changes_of_phase() {
        let (_folder, mut reporter, supervisor) = connected();
        reporter.total_steps(300);
        reporter.phase(Phase::StragglerWait);
        reporter.phase(Phase::StragglerWait);
        reporter.step(1, 0.5, 512);
        reporter.step(2, f32::NAN, 512);
        reporter.checkpoint(2, 4096);
        drop(reporter);
        let lines: Vec<String> = BufReader::new(supervisor).lines().map(|line| line.expect("text")).collect();
        let pid = std::process::id();
        let expected = [
            format!(r#"{{"pid":{pid},"rank":3}}"#),
            r#"{"total_steps":300}"#.to_owned(),
            r#"{"phase":"straggler_wait"}"#.to_owned(),
            r#"{"loss":0.5,"step":1,"tokens":512}"#.to_owned(),
            r#"{"loss":null,"step":2,"tokens":512}"#.to_owned(),
            r#"{"checkpoint":{"bytes":4096,"step":2}}"#.to_owned(),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn an_order_to_stop_is_heard_among_others_and_nonsense() {
        let (_folder, mut reporter, mut supervisor) = connected();
        writeln!(supervisor, "nonsense\n{{\"order\":\"dance\"}}").expect("a write");
        writeln!(supervisor, r#"{{"order":"save_and_stop","grace_ms":1000}}"#).expect("a write");
        supervisor.shutdown(Shutdown::Both).expect("the supervisor hangs up");
        let listener = reporter.listener.take().expect("it listens");
        listener.join().expect("listening ends with the connection");
        assert!(reporter.is_stopping());
    }

    /// Proves A-13.
    #[test]
    fn a_supervisor_that_is_gone_missing_or_deaf_hurts_nobody() {
        let mut nobody = Reporter::connect(Some(Path::new("/nonexistent/socket")), 0);
        nobody.step(1, 1.0, 1);
        assert!(!nobody.is_connected() && !nobody.is_stopping());
        let (_folder, mut reporter, supervisor) = connected();
        drop(supervisor);
        (0..10).for_each(|step| reporter.step(step, 1.0, 1));
        assert!(!reporter.is_connected());
        let (_folder, mut reporter, _deaf) = connected();
        // No socket buffer holds this much.
        (0..1_000_000)
            .take_while(|step| {
                reporter.step(*step, 1.0, 1);
                reporter.is_connected()
            })
            .for_each(drop);
        assert!(!reporter.is_connected());
    }
}
