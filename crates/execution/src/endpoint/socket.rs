//! The control plane's Unix socket in its data folder. The kernel says on both sides who is at the other end, so nobody has
//! to send a secret first: the control plane takes connections of its own user and of root, and clients speak only to
//! somebody who owns the folder. A TCP port proves nothing: whoever binds it first has it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

/// In the data folder: the socket.
pub const SOCKET_FILE: &str = "control.sock";

/// Between two tries while the control plane has too many connections to accept.
const BUSY_RETRY: Duration = Duration::from_millis(10);
/// Who may do anything anyway.
const ROOT: u32 = 0;

/// A data folder that is held open: what is checked is what is used, whatever becomes of its path.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    held: OwnedFd,
    owner: u32,
}

/// Who answers at the socket isn't the owner of the data folder.
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
    /// Holds this folder.
    ///
    /// # Errors
    /// If there is no such folder, or it can't be looked into.
    pub fn open(path: &Path) -> io::Result<DataFolder> {
        let held = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let owner = rustix::fs::fstat(&held)?.st_uid;
        Ok(DataFolder { path: path.to_owned(), held, owner })
    }

    /// A path of what is in the folder, short enough for a socket's address (108 bytes) however long the folder's path is.
    #[must_use]
    pub fn place(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.held.as_raw_fd()))
    }

    /// Whether this user may act for the folder's owner.
    fn is_owner(&self, user: u32) -> bool {
        user == self.owner || user == ROOT
    }

    /// A connection to the control plane, which has proved to be the folder's owner. Nothing is sent.
    ///
    /// # Errors
    /// [`is_down`] says which mean that no control plane listens there; an [`Impostor`] is of the kind `PermissionDenied`.
    pub fn connect(&self, time_max: Duration) -> io::Result<UnixStream> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stream = runtime.block_on(async { connect(&self.place(SOCKET_FILE), time_max).await })?;
        let peer = stream.peer_cred()?.uid();
        let me = rustix::process::geteuid().as_raw();
        // Somebody else's folder proves nothing, except to root.
        if !self.is_owner(peer) || !(self.is_owner(me) || self.owner == ROOT) {
            let impostor = Impostor { path: self.path.join(SOCKET_FILE), owner: self.owner, peer };
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, impostor));
        }
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    /// A file of the folder's owner or of root, opened for reading.
    ///
    /// # Errors
    /// If it can't be opened, or is somebody else's: who writes into a folder that is open to others would say then whom to
    /// trust.
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

/// Whether nobody listens at the socket, here: there is none, or only its file is left, or it is another machine's.
#[must_use]
pub fn is_down(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// While more connections wait than may, the kernel turns others away at once.
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
