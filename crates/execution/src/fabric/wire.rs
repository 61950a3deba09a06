//! What rank 0 and the others say to each other: a length of four bytes, little-endian, and JSON (A-10: of a limited length).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{PairFigures, ring::RingFigures};
use crate::checks::Finding;

/// The longest message: a node's findings are some ten kilobytes.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;
/// The version of these messages.
pub(super) const VERSION: u32 = 1;
/// Between two looks whether somebody has connected.
const ACCEPT_INTERVAL: Duration = Duration::from_millis(5);
/// A connection within a cluster takes milliseconds.
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Silence on a connection that is being measured.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A rank introduces itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) run: String,
    pub(super) rank: u32,
    pub(super) node: String,
    /// Where it takes connections of other ranks, on the address that this message comes from.
    pub(super) port: u16,
    pub(super) findings: Vec<Finding>,
}

/// What a rank is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Connect to that rank and measure.
    Measure { phase: u32, with: SocketAddr },
    /// Let a rank connect and measure.
    Serve { phase: u32 },
    /// Take a place in a ring.
    Ring { phase: u32, place: u32, count: u32, next: SocketAddr, bytes: u64, rounds: u32 },
    /// Nothing more.
    Over,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Done {
    Measured(PairFigures),
    Served,
    Ring(RingFigures),
    Failed(String),
}

/// Opens a connection between two ranks that is measured.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Opening {
    /// A number that rank 0 gives each measurement: connections of another are dropped.
    pub(super) phase: u32,
    /// Which of several connections.
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

/// Accepts a connection before then.
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

/// Small messages go at once, and silence ends.
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

/// Takes the connections of a measurement, in the order of their numbers; those of others are dropped.
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
