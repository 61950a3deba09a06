//! The control plane's Unix socket in its data folder. The kernel tells both sides who is at the other end,
//! so nobody has to send a secret first: the control plane accepts connections of its own user and of root,
//! and clients speak only to a process of the folder's owner. A TCP port proves nothing, since anybody can
//! bind it first.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

/// File name of the socket in the data folder.
pub const SOCKET_FILE: &str = "control.sock";

/// Delay between two attempts while the control plane has too many connections to accept.
const BUSY_RETRY: Duration = Duration::from_millis(10);
/// Root, who may do anything anyway.
const ROOT: u32 = 0;

/// A data folder that is held open, so that the folder that is used is the one that was checked, even if its
/// path changes meanwhile.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    held: OwnedFd,
    owner: u32,
}

/// The process that answers at the socket doesn't belong to the owner of the data folder.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} is the socket of a folder of user {owner}, and user {peer} answers there: it isn't the control plane of this folder"
)]
pub struct Impostor {
    path: PathBuf,
    owner: u32,
    peer: u32,
}

impl DataFolder {
    /// Opens a folder.
    ///
    /// # Errors
    /// If there is no such folder, or it can't be accessed.
    pub fn open(path: &Path) -> io::Result<DataFolder> {
        let held = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let owner = rustix::fs::fstat(&held)?.st_uid;
        Ok(DataFolder { path: path.to_owned(), held, owner })
    }

    /// Returns the path of an entry of the folder, short enough for a socket's address (108 bytes) however
    /// long the folder's path is.
    #[must_use]
    pub fn place(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.held.as_raw_fd()))
    }

    /// Reports whether this user may act for the folder's owner.
    fn is_owner(&self, user: u32) -> bool {
        user == self.owner || user == ROOT
    }

    /// Connects to the control plane, after it has proved to be the folder's owner. Sends nothing.
    ///
    /// # Errors
    /// [`is_down`] tells which errors mean that no control plane listens; an [`Impostor`] is of kind
    /// `PermissionDenied`.
    pub fn connect(&self, time_max: Duration) -> io::Result<UnixStream> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stream = runtime.block_on(async { connect(&self.place(SOCKET_FILE), time_max).await })?;
        let peer = stream.peer_cred()?.uid();
        let me = rustix::process::geteuid().as_raw();
        // Another user's folder proves nothing, except to root.
        if !self.is_owner(peer) || !(self.is_owner(me) || self.owner == ROOT) {
            let impostor = Impostor { path: self.path.join(SOCKET_FILE), owner: self.owner, peer };
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, impostor));
        }
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// Opens a file of the folder's owner or of root for reading.
    ///
    /// # Errors
    /// If it can't be opened, or belongs to another user: in a folder that others may write to, any of them
    /// could otherwise decide whom to trust.
    pub fn open_owned(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.held, name, flags, Mode::empty())?;
        let owner = rustix::fs::fstat(&file)?.st_uid;
        if self.is_owner(owner) {
            return Ok(File::from(file));
        }
        let message = format!("it belongs to user {owner}, and the folder to user {}", self.owner);
        Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
    }
}

/// Reports whether nobody listens at the socket on this machine: it doesn't exist, or only its file is left,
/// or it belongs to another machine.
#[must_use]
pub fn is_down(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Connects; retries while the kernel refuses connections because too many are waiting.
async fn connect(path: &Path, time_max: Duration) -> io::Result<tokio::net::UnixStream> {
    let began = Instant::now();
    loop {
        match tokio::net::UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if began.elapsed() >= time_max {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            outcome => return outcome,
        }
        tokio::time::sleep(BUSY_RETRY).await;
    }
}
