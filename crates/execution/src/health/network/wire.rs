//! Messages between rank 0 and the others: a length of four bytes, little-endian, and JSON of limited length
//!

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{PairFigures, ring::RingFigures};
use crate::health::Finding;

/// Maximum size of a message; a node's findings take about ten kilobytes.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// The version of these messages.
pub(super) const VERSION: u32 = 1;
/// Interval between two checks for a new connection.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time to connect; within a cluster it takes milliseconds.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Maximum silence on a connection during a measurement.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A rank's introduction to rank 0.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) run: String,
    pub(super) rank: u32,
    pub(super) node: String,
    /// Port at which it accepts connections of other ranks, on the address that this message comes from.
    pub(super) port: u16,
    pub(super) findings: Vec<Finding>,
}

/// An order to a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Connect to that rank and measure.
    Measure { phase: u32, with: SocketAddr },
    /// Let a rank connect and measure.
    Serve { phase: u32 },
    /// Take a place in a ring.
    Ring { phase: u32, place: u32, count: u32, next: SocketAddr, bytes: u64, rounds: u32 },
    /// The end.
    Over,
}

/// The result of an order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Done {
    Measured(PairFigures),
    Served,
    Ring(RingFigures),
    Failed(String),
}

/// The first message on a connection between two ranks that is measured.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opening {
    /// Number that rank 0 gives each measurement; connections of another measurement are dropped.
    pub(super) phase: u32,
    /// Index among several connections.
    pub(super) stream: usize,
}

pub(super) fn send(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let length = u32::try_from(text.len()).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message is longer than 1 MiB"))?;
    stream.write_all(&[&length.to_le_bytes(), &text[..]].concat())
}

pub(super) fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "what came is no message: it would be longer than 1 MiB",
        ));
    }
    let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
    stream.read_exact(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Accepts a connection before `ends_at`.
pub(super) fn accept_until(listener: &TcpListener, ends_at: Instant) -> io::Result<(TcpStream, SocketAddr)> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, address)) => {
                stream.set_nonblocking(false)?;
                configure(&stream)?;
                return Ok((stream, address));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < ends_at => {
                thread::sleep(ACCEPT_INTERVAL);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no connection came"));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Configures a connection: small messages are sent at once, and reads time out.
pub(super) fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))
}

/// Connects to a rank for a measurement.
pub(super) fn open(to: SocketAddr, opening: &Opening) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, CONNECT_MAX)?;
    configure(&stream)?;
    send(&mut stream, opening)?;
    Ok(stream)
}

/// Accepts the connections of a measurement, in the order of their indices; drops others.
pub(super) fn take(listener: &TcpListener, phase: u32, count: usize) -> io::Result<Vec<TcpStream>> {
    let ends_at = Instant::now() + CONNECT_MAX;
    let mut streams: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
    while streams.iter().any(Option::is_none) {
        let (mut stream, _) = accept_until(listener, ends_at)?;
        let opening = receive::<Opening>(&mut stream);
        if let Some(place) =
            opening.ok().filter(|opening| opening.phase == phase).and_then(|opening| streams.get_mut(opening.stream))
        {
            *place = Some(stream);
        }
    }
    Ok(streams.into_iter().flatten().collect())
}
