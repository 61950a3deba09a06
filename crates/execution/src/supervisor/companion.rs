//! A process of this program that ends with the supervisor, in its session: its standard input closes, and it is killed.

use std::io;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// See the module.
#[derive(Debug)]
pub(super) struct Companion {
    child: Child,
    /// The process ends when this is closed, also if the supervisor is killed.
    _until: Option<ChildStdin>,
}

impl Companion {
    /// Starts `program` with `arguments`, which must make it end with its standard input. Returns its output as well.
    pub(super) fn start(program: &Path, arguments: &[&str]) -> io::Result<(Companion, Option<ChildStdout>)> {
        let mut command = Command::new(program);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (until, output) = (child.stdin.take(), child.stdout.take());
        Ok((Companion { child, _until: until }, output))
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // It isn't waited for: in a driver that hangs it can't be killed.
        let _ = self.child.kill();
    }
}
