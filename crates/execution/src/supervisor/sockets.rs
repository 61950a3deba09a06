//! The ranks' sockets: one for each rank in a folder that only this user may enter, so a rank can't speak for
//! another. Keeps A-10: connections, lines and queues are bounded.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{Semaphore, watch};

use super::claims::Claims;
use super::input::Input;
use crate::clock::monotonic;
use crate::protocol::SupervisorSpec;
use crate::rank_protocol::{LineCutter, RankMessage, RankOrder};
use crate::shared_place::{make_folder, make_folder_at};

/// The system's limit for a socket's path, without the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Maximum number of open connections of a rank; further ones are closed at once.
const CONNECTIONS_PER_RANK_MAX: usize = 8;
/// Size of one read from a socket.
const READ_BYTES: usize = 16 << 10;

/// The sockets of a node's ranks.
pub(super) struct Sockets {
    folder: PathBuf,
    orders: watch::Sender<Option<RankOrder>>,
    claims: Claims,
}

impl Sockets {
    /// Makes the folder: in the attempt's, or in the temporary one if the path would be too long for a
    /// socket.
    pub(super) fn prepare(spec: &SupervisorSpec, temporary_folder: &Path) -> io::Result<Self> {
        let preferred = spec.folder.join("sockets");
        let last_rank = spec.node_rank * spec.ranks_per_node + spec.ranks_per_node;
        let fits = |folder: &Path| socket_path(folder, last_rank).as_os_str().len() <= SOCKET_PATH_BYTES_MAX;
        let orders = watch::Sender::new(None);
        if fits(&preferred) {
            make_folder_at(&preferred)?;
            return Ok(Sockets { folder: preferred, orders, claims: Claims::of(spec) });
        }
        let made = Sockets { folder: make_folder(temporary_folder, "gangline-")?, orders, claims: Claims::of(spec) };
        if !fits(&made.folder) {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "the temporary folder's path is too long"));
        }
        Ok(made)
    }

    /// Starts to listen for the rank with index `local` and global number `rank`. Returns the socket's path.
    pub(super) fn listen(&self, local: u32, rank: u32, inputs: Sender<Input>) -> io::Result<PathBuf> {
        let path = socket_path(&self.folder, rank);
        let listener = UnixListener::bind(&path)?;
        tokio::spawn(accept_all(
            listener,
            Listener { local, inputs, claims: self.claims.clone() },
            self.orders.subscribe(),
        ));
        Ok(path)
    }

    /// Sends an order to all ranks, including those that connect later.
    pub(super) fn tell(&self, order: RankOrder) {
        self.orders.send_replace(Some(order));
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn socket_path(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}.sock"))
}

/// Receiver of a rank's messages.
#[derive(Clone)]
struct Listener {
    local: u32,
    inputs: Sender<Input>,
    claims: Claims,
}

impl Listener {
    /// Forwards a rank's message, after verifying a checkpoint that it claims.
    async fn hear(&self, mut input: Input) -> Result<(), SendError<Input>> {
        if let Input::Message(local, message) = &mut input
            && let Some(saved) = message.checkpoint
            && !self.claims.counts(saved).await
        {
            message.checkpoint = None;
            self.inputs.send(Input::Refused(*local, 1)).await?;
        }
        self.inputs.send(input).await
    }
}

async fn accept_all(listener: UnixListener, to: Listener, orders: watch::Receiver<Option<RankOrder>>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_PER_RANK_MAX));
    while let Ok((stream, _)) = listener.accept().await {
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            let _ = to.inputs.send(Input::Refused(to.local, 1)).await;
            continue;
        };
        let (to, orders) = (to.clone(), orders.clone());
        tokio::spawn(async move {
            if to.inputs.send(Input::Connected(to.local)).await.is_ok() {
                converse(stream, &to, orders).await;
                let _ = to.inputs.send(Input::Disconnected(to.local)).await;
            }
            drop(place);
        });
    }
}

/// Serves one connection to its end.
async fn converse(mut stream: UnixStream, to: &Listener, mut orders: watch::Receiver<Option<RankOrder>>) {
    let (mut reader, mut writer) = stream.split();
    let mut cutter = LineCutter::default();
    let mut buffer = vec![0; READ_BYTES];
    // An order from before this connection counts as well.
    orders.mark_changed();
    loop {
        tokio::select! {
            read = reader.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    for input in take_lines(&mut cutter, &buffer[..length], to.local) {
                        if to.hear(input).await.is_err() {
                            return;
                        }
                    }
                }
            },
            changed = orders.changed() => {
                let line = orders.borrow_and_update().as_ref().map(RankOrder::line);
                match (changed, line) {
                    (Err(_), _) => return,
                    (Ok(()), Some(line)) if writer.write_all(line.as_bytes()).await.is_err() => return,
                    (Ok(()), _) => {}
                }
            }
        }
    }
}

/// Returns the messages in the bytes read; counts refused lines, and logs the first ones of a read.
fn take_lines(cutter: &mut LineCutter, bytes: &[u8], local: u32) -> Vec<Input> {
    let mut inputs = Vec::new();
    let mut refused = 0;
    cutter.feed(bytes, |line| match RankMessage::parse(line) {
        Ok(mut message) => {
            message.delay = message.said_at.map_or(Duration::ZERO, |said_at| monotonic().saturating_sub(said_at));
            inputs.push(Input::Message(local, message));
        }
        Err(error) => {
            if refused == 0 {
                tracing::debug!(local, %error, "a rank's line is dropped");
            }
            refused += 1;
        }
    });
    refused += cutter.take_oversize();
    if refused > 0 {
        inputs.push(Input::Refused(local, refused));
    }
    inputs
}
