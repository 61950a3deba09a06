//! The socket in the data folder, for the command line and for supervisors on this machine. The kernel tells
//! who connects.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gangline_execution::endpoint::{DataFolder, SOCKET_FILE};
use tokio::net::{UnixListener, UnixStream};

/// The name under which the socket is created before it is renamed into place.
const ASIDE: &str = "control.sock.aside";
/// Root, which may do anything anyway.
const ROOT: u32 = 0;

/// An open socket. Connections of users other than this process's and root are turned away.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    owner: u32,
}

impl Socket {
    /// Opens the socket of a data folder that this process holds, and replaces the previous one. The socket
    /// has mode 0600 before it becomes visible under its name.
    ///
    /// # Errors
    /// If the folder can't hold a socket.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(folder: &Path) -> io::Result<Socket> {
        let folder = DataFolder::open(folder)?;
        let aside = folder.place(ASIDE);
        match std::fs::remove_file(&aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&aside)?;
        std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&aside, folder.place(SOCKET_FILE))?;
        Ok(Socket { listener, owner: rustix::process::geteuid().as_raw() })
    }

    /// Accepts the next connection; none if its user may not connect.
    pub(super) async fn accept(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = self.listener.accept().await?;
        let user = stream.peer_cred()?.uid();
        if user == self.owner || user == ROOT {
            return Ok(Some(stream));
        }
        tracing::warn!(user, "another user was turned away at the socket");
        Ok(None)
    }
}
