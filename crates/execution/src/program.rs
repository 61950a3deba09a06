//! Runs another program with limits on its time and its output. Keeps A-10.
//!
//! A program that exceeds its time is killed with all that it started. Nobody waits for a process that can't
//! be killed: a tool that hangs in a driver holds a thread, not its caller.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process_group};

use crate::process::as_pid;

/// How long to wait for the remaining output of a program that ended or was killed.
const LAST_WORDS_WAIT: Duration = Duration::from_secs(1);

/// Limits of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Maximum run time.
    pub(crate) time: Duration,
    /// Maximum number of bytes read from its standard output.
    pub(crate) output: u64,
    /// Maximum number of bytes read from its standard error; 0 discards it.
    pub(crate) errors: u64,
}

/// Result of a program.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit status; none if it was killed for taking too long.
    pub(crate) status: Option<ExitStatus>,
    /// Standard output, up to the limits.
    pub(crate) output: Vec<u8>,
    /// Standard error, up to the limits.
    pub(crate) errors: Vec<u8>,
}

impl Ran {
    /// Reports whether it succeeded within its time.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a program to its end, or until its time is up.
///
/// # Errors
/// If it can't be started.
pub(crate) fn run(command: &mut Command, input: Vec<u8>, limits: Limits) -> io::Result<Ran> {
    let errors = if limits.errors == 0 { Stdio::null() } else { Stdio::piped() };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
    let mut child = command.process_group(0).spawn()?;
    let group = as_pid(child.id());
    let deadline = Instant::now() + limits.time;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that doesn't read its input tells why by its exit.
        thread::spawn(move || stdin.write_all(&input));
    }
    let output = read(child.stdout.take(), limits.output);
    let errors = read(child.stderr.take(), limits.errors);
    let (sender, ended) = channel();
    // The caller may have given up.
    thread::spawn(move || sender.send(child.wait()));
    let left = |until: Instant| until.saturating_duration_since(Instant::now());
    let said = output.recv_timeout(left(deadline)).ok();
    let status = ended.recv_timeout(left(deadline)).ok().transpose()?;
    if let (None, Some(group)) = (status, group) {
        // The program may have ended just now.
        let _ = kill_process_group(group, Signal::KILL);
    }
    // A program that ended or was killed prints no more, unless a process that it left behind holds its
    // output.
    let last = Instant::now() + LAST_WORDS_WAIT;
    let output = said.or_else(|| output.recv_timeout(left(last)).ok()).unwrap_or_default();
    let errors = errors.recv_timeout(left(last)).unwrap_or_default();
    Ok(Ran { status, output, errors })
}

/// Reads a stream up to the limit; further output finds its pipe closed.
fn read(stream: Option<impl Read + Send + 'static>, bytes_max: u64) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output from before an error is better than none, and the receiver may have given up.
        let _ = stream.map(|stream| stream.take(bytes_max).read_to_end(&mut bytes));
        sender.send(bytes)
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { time: Duration::from_secs(20), output: 1_000, errors: 1_000 };

    fn sh(script: &str, input: &str, limits: Limits) -> Ran {
        run(Command::new("sh").args(["-c", script]), input.as_bytes().to_vec(), limits).expect("sh starts")
    }

    #[test]
    fn what_it_reads_prints_and_ends_with_is_passed_on() {
        let ran = sh("cat; echo broken >&2; exit 3", "said", LIMITS);
        assert_eq!((ran.output.as_slice(), ran.errors.as_slice()), (b"said".as_slice(), b"broken\n".as_slice()));
        assert_eq!(ran.status.and_then(|status| status.code()), Some(3));
        assert!(!ran.has_succeeded() && sh("true", "", LIMITS).has_succeeded());
        run(&mut Command::new("/no/such/program"), Vec::new(), LIMITS).expect_err("it isn't there");
    }

    /// Proves A-10: neither a program that never ends nor one that never stops printing blocks its caller.
    #[test]
    fn one_that_takes_too_long_is_killed_with_what_it_started() {
        let short = Limits { time: Duration::from_secs(2), ..LIMITS };
        let started = Instant::now();
        let ran = sh("echo before; sleep 600 & sleep 600", "", short);
        assert_eq!((ran.status, ran.output.as_slice()), (None, b"before\n".as_slice()));
        assert!(started.elapsed() < Duration::from_secs(120), "nobody waits for it");
        let talks = sh("yes", "", LIMITS);
        assert_eq!(talks.output.len(), 1_000);
        assert!(talks.status.is_some_and(|status| !status.success()), "it ends as soon as nobody listens");
        let unheard = Limits { errors: 0, ..LIMITS };
        assert!(sh("head -c 100000 /dev/zero >&2", "", unheard).has_succeeded(), "what isn't asked for may be said");
    }

    #[test]
    fn one_that_does_not_read_its_input_is_not_waited_for() {
        let ran = sh("echo done", &"x".repeat(1 << 20), LIMITS);
        assert!(ran.has_succeeded() && ran.output == b"done\n");
    }
}
