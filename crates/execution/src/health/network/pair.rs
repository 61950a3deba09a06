//! Measures a pair of ranks: latency and clock offset by small messages, then bandwidth in each direction
//! over several connections, for a fixed time.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::wire::{Opening, open, take};
use crate::clock::Clock;

/// Number of connections that carry data at once: a single one doesn't saturate a fast card (NCCL's sockets
/// use several as well).
const STREAMS: usize = 4;
/// Sending time in each direction.
const SENDING: Duration = Duration::from_millis(500);
/// Bytes in a write.
const BLOCK_BYTES: usize = 256 << 10;
/// Number of small messages and replies.
const PINGS: usize = 200;
/// Phase number of a measurement that no rank 0 ordered.
const LOOPBACK_PHASE: u32 = 0;

/// Figures of a pair of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairFigures {
    /// Median round-trip time in microseconds.
    pub latency_micros: f64,
    /// 99th percentile of the round-trip time in microseconds.
    pub latency_p99_micros: f64,
    /// Microseconds by which the other rank's clock is ahead, by the fastest message; its error is at most
    /// half that message's round-trip time.
    pub clock_offset_micros: f64,
    /// Bytes a second sent to the other rank.
    pub forward_bytes_per_second: f64,
    /// Bytes a second received from it.
    pub backward_bytes_per_second: f64,
}

/// Measures this machine's loopback interface.
///
/// # Errors
/// The operating system's, if 127.0.0.1 can't be reached.
pub fn measure_loopback() -> io::Result<PairFigures> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, LOOPBACK_PHASE));
        let figures = measure(address, LOOPBACK_PHASE);
        server.join().expect("a server doesn't panic")?;
        figures
    })
}

/// Measures the connection to another rank.
pub(super) fn measure(with: SocketAddr, phase: u32) -> io::Result<PairFigures> {
    let streams = (0..=STREAMS).map(|stream| open(with, &Opening { phase, stream }));
    let mut streams = streams.collect::<io::Result<Vec<TcpStream>>>()?;
    let mut control = streams.remove(0);
    let pings = ping(&mut control)?;
    let forward = {
        let started = Instant::now();
        pour_all(&streams)?;
        let mut received = [0; 8];
        control.read_exact(&mut received)?;
        u64::from_le_bytes(received) as f64 / started.elapsed().as_secs_f64()
    };
    let started = Instant::now();
    control.write_all(&[1])?;
    let received = drain_all(&streams)?;
    let backward = received as f64 / started.elapsed().as_secs_f64();
    Ok(PairFigures { forward_bytes_per_second: forward, backward_bytes_per_second: backward, ..pings })
}

/// Serves another rank's measurement of the connection to this one.
pub(super) fn serve(listener: &TcpListener, phase: u32) -> io::Result<()> {
    let mut streams = take(listener, phase, STREAMS + 1)?;
    let mut control = streams.remove(0);
    let clock = Clock::start();
    for _ in 0..PINGS {
        control.read_exact(&mut [0; 1])?;
        control.write_all(&clock.now().unix_nanos().to_le_bytes())?;
    }
    let received = drain_all(&streams)?;
    control.write_all(&received.to_le_bytes())?;
    control.read_exact(&mut [0; 1])?;
    pour_all(&streams)
}

/// Sends a byte and receives the other rank's time, repeatedly.
fn ping(control: &mut TcpStream) -> io::Result<PairFigures> {
    let clock = Clock::start();
    let mut times = Vec::with_capacity(PINGS);
    let mut quickest = (f64::MAX, 0.0);
    for _ in 0..PINGS {
        let (started, began) = (Instant::now(), clock.now().unix_nanos());
        control.write_all(&[0])?;
        let mut theirs = [0; 8];
        control.read_exact(&mut theirs)?;
        let micros = started.elapsed().as_secs_f64() * 1e6;
        times.push(micros);
        let ahead = u64::from_le_bytes(theirs).wrapping_sub(began).cast_signed() as f64 / 1e3;
        if micros < quickest.0 {
            quickest = (micros, ahead - micros / 2.0);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(PairFigures {
        latency_micros: times[PINGS / 2],
        latency_p99_micros: times[PINGS * 99 / 100],
        clock_offset_micros: quickest.1,
        forward_bytes_per_second: 0.0,
        backward_bytes_per_second: 0.0,
    })
}

/// Sends on all connections for a fixed time.
fn pour_all(streams: &[TcpStream]) -> io::Result<()> {
    let ends_at = Instant::now() + SENDING;
    thread::scope(|scope| {
        let threads: Vec<_> = streams.iter().map(|stream| scope.spawn(move || pour(stream, ends_at))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a sender doesn't panic"))
    })
}

fn pour(mut stream: &TcpStream, ends_at: Instant) -> io::Result<()> {
    let block = vec![0x5a; BLOCK_BYTES];
    while Instant::now() < ends_at {
        stream.write_all(&block)?;
    }
    stream.shutdown(Shutdown::Write)
}

/// Reads all connections to their ends and returns the number of bytes.
fn drain_all(streams: &[TcpStream]) -> io::Result<u64> {
    thread::scope(|scope| {
        let threads: Vec<_> = streams.iter().map(|stream| scope.spawn(move || drain(stream))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a receiver doesn't panic")).sum()
    })
}

fn drain(mut stream: &TcpStream) -> io::Result<u64> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut received = 0;
    loop {
        match stream.read(&mut block) {
            Ok(0) => return Ok(received),
            Ok(length) => received += length as u64,
            // A socket with a time limit is interrupted whenever the process is stopped (signal(7)).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_measured_both_ways_and_its_clock_is_this_one() {
        let figures = measure_loopback().expect("loopback is up");
        assert!(figures.forward_bytes_per_second > 1e7 && figures.backward_bytes_per_second > 1e7, "{figures:?}");
        assert!(figures.latency_micros > 0.0 && figures.latency_p99_micros >= figures.latency_micros, "{figures:?}");
        assert!(figures.clock_offset_micros.abs() < 1e6, "{figures:?}");
    }

    #[test]
    fn connections_of_another_measurement_are_dropped() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let stale = open(address, &Opening { phase: 7, stream: 0 }).expect("it connects");
        let figures = thread::scope(|scope| {
            let server = scope.spawn(|| serve(&listener, 8));
            let figures = measure(address, 8);
            server.join().expect("no panic").expect("it serves");
            figures
        });
        assert!(figures.is_ok(), "{figures:?}");
        drop(stale);
    }
}
