//! A normal client beside many connections that want nothing or are slow: half of them have shown the users' token, half never say who
//! they are.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::process::{Resource, getrlimit, setrlimit};

use super::Bench;
use super::admissions::Request;
use super::client::Door;
use super::load::{RUNNING, Running};
use super::up::Plane;
use crate::report::{Bar, median, percentile};

/// Connections that want nothing, and those that send a byte a second.
const IDLE: usize = 1_000;
const SLOW: usize = 200;
/// How many times as long the normal client may wait beside them.
const RATIO_MOST: f64 = 2.0;
/// Between two bytes of a slow connection.
const BYTE_EVERY: Duration = Duration::from_secs(1);
/// Slow connections are served in so many groups, one after the other.
const GROUPS: usize = 50;
/// From one request of the normal client to the next.
const PAUSE: Duration = Duration::from_millis(2);

/// The connections, kept up by a thread: one that was ended is opened again.
struct Crowd {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

/// One of them.
struct Guest {
    stream: Option<TcpStream>,
    /// What it sends at once when it comes.
    greeting: String,
    is_slow: bool,
}

/// Measures the normal client without and with the crowd, in turn.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let (rounds, round) = (bench.options.rounds, Duration::from_millis(bench.options.round));
    bench.report.section(&format!(
        "A client that lists, submits and asks for health, beside {IDLE} idle and {SLOW} slow connections; {rounds} rounds of {round:?} in turn (measured)"
    ));
    raise_file_limit()?;
    let plane = Plane::start(&bench.gangline, RUNNING, 1)?;
    let running = Running::start(&plane)?;
    let mut number = 0;
    // The first requests find nothing prepared.
    ask(&plane, &mut number, round)?;
    let (mut alone, mut beside, mut turned_out) = (Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        alone.push(ask(&plane, &mut number, round)?);
        let crowd = Crowd::start(plane.door()?)?;
        beside.push(ask(&plane, &mut number, round)?);
        turned_out += crowd.stop()?;
    }
    running.stop()?;
    let percent = |rounds: &[Vec<Duration>], percent| {
        median(rounds.iter().map(|times| percentile(&mut times.clone(), percent).as_secs_f64()).collect())
    };
    for (what, rounds) in [("without them", &alone), ("beside them", &beside)] {
        let time = |of| Duration::from_secs_f64(percent(rounds, of));
        bench.report.time(&format!("an answer {what}, median"), time(50), None);
        bench.report.time(&format!("an answer {what}, p99, median of {} rounds", rounds.len()), time(99), None);
    }
    let ratio = percent(&beside, 99) / percent(&alone, 99);
    bench.report.figure("p99 beside them, in p99s without", ratio, "x", Bar::AtMost(RATIO_MOST));
    bench.report.note(&format!("{turned_out} connections were ended by the control plane and opened again"));
    Ok(())
}

/// Asks for a while as a user's programs do; how long each answer took.
fn ask(plane: &Plane, number: &mut u64, time: Duration) -> Result<Vec<Duration>> {
    let (mut client, request) = (plane.client()?, Request::new(plane, true));
    let (began, mut times) = (Instant::now(), Vec::new());
    while began.elapsed() < time {
        times.push(match *number % 4 {
            0 => client.get("/api/v1/jobs?limit=20")?,
            1 => client.get("/api/v1/health")?,
            2 => client.get("/api/v1/jobs/job-1")?,
            _ => request.send(&mut client, *number)?,
        });
        *number += 1;
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

impl Crowd {
    /// They are all connected when this returns.
    fn start(door: Door) -> Result<Crowd> {
        let mut guests: Vec<Guest> = (0..IDLE + SLOW).map(|number| Guest::new(&door, number)).collect();
        for guest in &mut guests {
            guest.stream = Some(guest.arrive(&door).context("connect many")?);
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || keep_up(&door, &mut guests, &over));
        Ok(Crowd { is_over, thread: Some(thread) })
    }

    /// They go; how many had to come again.
    fn stop(mut self) -> Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it is there")?;
        thread.join().map_err(|_| anyhow::anyhow!("the crowd panicked"))
    }
}

/// Has each slow one send a byte a second, and whoever was turned out come again.
fn keep_up(door: &Door, guests: &mut [Guest], is_over: &AtomicBool) -> u64 {
    let mut returned = 0;
    for turn in 0.. {
        for guest in guests.iter_mut().skip(turn % GROUPS).step_by(GROUPS) {
            if !guest.lives() {
                returned += 1;
                guest.stream = guest.arrive(door).ok();
            }
        }
        std::thread::sleep(BYTE_EVERY / u32::try_from(GROUPS).unwrap_or(u32::MAX));
        if is_over.load(Ordering::Relaxed) {
            break;
        }
    }
    returned
}

impl Guest {
    fn new(door: &Door, number: usize) -> Guest {
        let Door { address, token } = door;
        let (is_slow, is_known) = (number >= IDLE, number.is_multiple_of(2));
        let word = format!("host: {address}\r\nauthorization: Bearer {token}\r\n");
        let greeting = match (is_slow, is_known) {
            // Has asked for something, and stays.
            (false, true) => format!("GET /api/v1/queues HTTP/1.1\r\n{word}\r\n"),
            (false, false) => String::new(),
            // A body that takes for ever, and a head.
            (true, true) => format!("POST /api/v1/jobs HTTP/1.1\r\n{word}content-length: 100000\r\n\r\n"),
            (true, false) => "POST /api/v1/jobs HTTP/1.1\r\nx: ".to_owned(),
        };
        Guest { stream: None, greeting, is_slow }
    }

    fn arrive(&self, door: &Door) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&door.address)?;
        stream.write_all(self.greeting.as_bytes())?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }

    /// Says its byte; whether it is still connected.
    fn lives(&mut self) -> bool {
        let Some(stream) = &mut self.stream else { return false };
        let mut piece = [0; 4_096];
        let is_open = match stream.read(&mut piece) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        is_open && (!self.is_slow || stream.write_all(b"x").is_ok())
    }
}

/// Of this process and of those that it starts: connections have two ends, and a control plane lets in half as many as it may have files.
fn raise_file_limit() -> Result<()> {
    let needed = 4 * (IDLE + SLOW) as u64;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let is_enough = limit.maximum.is_none_or(|maximum| maximum >= needed);
        anyhow::ensure!(is_enough, "so many connections need {needed} open files: raise ulimit -Hn");
        limit.current = Some(needed);
        setrlimit(Resource::Nofile, limit).context("raise the limit of open files")?;
    }
    Ok(())
}
