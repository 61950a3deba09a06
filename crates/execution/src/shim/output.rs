//! Copies a rank's pipes to its log. Two threads read, one writes, with a bounded queue between them: a disk
//! that hangs delays the rank by [`DISK_PATIENCE_MAX`] once and then costs only log lines.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::path::Path;
use std::process::{ChildStderr, ChildStdout};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use gangline_base::Timestamp;

use super::{ShimEvent, say};
use crate::clock::Clock;
use crate::rank_log::{RankLog, Stream};

/// Size of one read from a pipe.
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Maximum number of chunks that wait for the disk: 4 MiB.
const QUEUE_CHUNKS_MAX: usize = 64;
/// How long a rank's output may wait for the disk before it is dropped.
const DISK_PATIENCE_MAX: Duration = Duration::from_secs(2);
/// Interval between two signs of life to the supervisor.
const ALIVE_EVERY: Duration = Duration::from_millis(200);
/// How long to wait for the pipes' end after the rank's: a process that could not be killed may hold them
/// open.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// The running threads.
pub(super) struct Output {
    queue: Arc<Queue>,
    writer: JoinHandle<Drained>,
}

/// Results once everything is written.
pub(super) struct Drained {
    pub(super) last_lines: Vec<String>,
    pub(super) dropped: u64,
}

impl Output {
    /// Starts to copy both pipes into the log at `path`.
    pub(super) fn start(
        path: &Path,
        bytes_max: u64,
        clock: Clock,
        pipes: (Option<ChildStdout>, Option<ChildStderr>),
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let readers = usize::from(pipes.0.is_some()) + usize::from(pipes.1.is_some());
        queue.state().readers = readers;
        if let Some(stdout) = pipes.0 {
            read_on_thread("stdout", stdout, Stream::Out, &queue)?;
        }
        if let Some(stderr) = pipes.1 {
            read_on_thread("stderr", stderr, Stream::Err, &queue)?;
        }
        let (log, source) = (RankLog::new(path, bytes_max), Arc::clone(&queue));
        let writer =
            std::thread::Builder::new().name("log".to_owned()).spawn(move || write_all(log, &source, clock))?;
        Ok(Output { queue, writer })
    }

    /// Waits until both pipes have ended (at most [`DRAIN_MAX`]) and everything is written.
    pub(super) fn finish(self) -> Drained {
        self.queue.close_after(DRAIN_MAX);
        self.writer.join().unwrap_or(Drained { last_lines: Vec::new(), dropped: 0 })
    }
}

fn read_on_thread(
    name: &str,
    mut pipe: impl Read + Send + 'static,
    stream: Stream,
    queue: &Arc<Queue>,
) -> io::Result<()> {
    let queue = Arc::clone(queue);
    let read = move || {
        let mut buffer = vec![0; CHUNK_BYTES_MAX];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => queue.push(stream, &buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        queue.reader_ended();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(read).map(drop)
}

/// Runs the writer thread: copies the queue to the log, with regular signs of life.
fn write_all(mut log: RankLog, queue: &Queue, clock: Clock) -> Drained {
    let mut said_alive: Option<Timestamp> = None;
    while let Some((stream, chunk)) = queue.pop() {
        let now = clock.now();
        log.feed(stream, &chunk, now);
        if said_alive.is_none_or(|before| now.since(before) >= ALIVE_EVERY) {
            say(&ShimEvent::Alive { at: now.unix_nanos() });
            said_alive = Some(now);
        }
    }
    log.finish(clock.now());
    log.count_dropped(queue.state().dropped_lines);
    Drained { last_lines: log.last_lines(), dropped: log.dropped() }
}

/// Chunks on their way to the disk.
#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    chunks: VecDeque<(Stream, Vec<u8>)>,
    readers: usize,
    is_closed: bool,
    /// The last chunk was dropped: don't wait again until there is room.
    is_impatient: bool,
    dropped_lines: u64,
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().expect("no thread panics while it holds the queue")
    }

    /// Adds a chunk; drops it and counts its lines if the disk is too slow.
    fn push(&self, stream: Stream, chunk: &[u8]) {
        let state = self.state();
        let patience = if state.is_impatient { Duration::ZERO } else { DISK_PATIENCE_MAX };
        let is_full = |state: &mut QueueState| state.chunks.len() >= QUEUE_CHUNKS_MAX && !state.is_closed;
        let (mut state, waited) = self
            .changed
            .wait_timeout_while(state, patience, is_full)
            .expect("no thread panics while it holds the queue");
        state.is_impatient = waited.timed_out() && state.chunks.len() >= QUEUE_CHUNKS_MAX;
        if state.is_impatient || state.is_closed {
            let lines = chunk.iter().filter(|byte| **byte == b'\n').count().max(1);
            state.dropped_lines += u64::try_from(lines).expect("a count fits in 64 bits");
        } else {
            state.chunks.push_back((stream, chunk.to_vec()));
        }
        self.changed.notify_all();
    }

    /// Returns the next chunk; none when the queue is empty and both readers have ended or it is closed.
    fn pop(&self) -> Option<(Stream, Vec<u8>)> {
        let is_quiet = |state: &mut QueueState| state.chunks.is_empty() && state.readers > 0 && !state.is_closed;
        let mut state =
            self.changed.wait_while(self.state(), is_quiet).expect("no thread panics while it holds the queue");
        let chunk = state.chunks.pop_front();
        self.changed.notify_all();
        chunk
    }

    fn reader_ended(&self) {
        self.state().readers -= 1;
        self.changed.notify_all();
    }

    /// Waits at most `limit` until the readers have ended, then accepts no more chunks.
    fn close_after(&self, limit: Duration) {
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.state(), limit, |state| state.readers > 0)
            .expect("no thread panics while it holds the queue");
        state.is_closed = true;
        self.changed.notify_all();
    }
}
