//! HTTP over the control plane's socket: a transport for the client. Each connection is made by
//! [`DataFolder::connect`], so nothing is sent before the other end has proved who it is.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport};

use super::socket::DataFolder;

/// Connects to the socket in a data folder, whatever host the URL names.
#[derive(Debug)]
pub(super) struct SocketConnector {
    pub(super) folder: PathBuf,
    pub(super) time_max: Duration,
}

/// A connection over the socket.
#[derive(Debug)]
pub(super) struct SocketTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Connector for SocketConnector {
    type Out = SocketTransport;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<SocketTransport>, Error> {
        let stream = DataFolder::open(&self.folder)?.connect(self.time_max)?;
        let buffers = LazyBuffers::new(details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Some(SocketTransport { stream, buffers }))
    }
}

impl Transport for SocketTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = timeout.for_write();
        self.stream.set_write_timeout(left(&timeout)?)?;
        self.stream.write_all(&self.buffers.output()[..amount]).map_err(|error| told(error, &timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = timeout.for_read();
        self.stream.set_read_timeout(left(&timeout)?)?;
        let amount = loop {
            match self.stream.read(self.buffers.input_append_buf()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome.map_err(|error| told(error, &timeout))?,
            }
        };
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// Between two requests the server sends nothing, so readable data mean the connection's end or a
    /// protocol error.
    fn is_open(&mut self) -> bool {
        let is_silent = |mut stream: &UnixStream| {
            stream.set_nonblocking(true)?;
            let outcome = stream.read(&mut [0]);
            stream.set_nonblocking(false)?;
            Ok::<_, io::Error>(outcome.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock))
        };
        is_silent(&self.stream).unwrap_or(false)
    }
}

/// Returns the time left; none means no limit.
fn left(timeout: &NextTimeout) -> Result<Option<Duration>, Error> {
    if timeout.after.is_not_happening() {
        return Ok(None);
    }
    if timeout.after.is_zero() { Err(Error::Timeout(timeout.reason)) } else { Ok(Some(*timeout.after)) }
}

fn told(error: io::Error, timeout: &NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => Error::Io(error),
    }
}
