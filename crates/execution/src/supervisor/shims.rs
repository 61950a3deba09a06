//! The shims of a node, as child processes of the supervisor.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::Sender;

use super::clearing::left_behind;
use super::container;
use super::environment::Environment;
use super::input::{Input, Kept};
use crate::process::kill_all;
use crate::protocol::SupervisorSpec;
use crate::shim::{RankEnd, SHIM_LINE_BYTES_MAX, ShimCommand, ShimEvent, THIS_PROGRAM, exit_record};

/// The running shims.
pub(super) struct Shims {
    spec: Arc<SupervisorSpec>,
    inputs: Sender<Input>,
    lifelines: BTreeMap<Kept, Lifeline>,
}

struct Lifeline {
    pid: u32,
    /// Closing it kills the rank, so it stays open as long as the shim may live.
    stdin: ChildStdin,
}

impl Shims {
    /// Starts without shims. Their events are sent to `inputs`.
    pub(super) fn new(spec: Arc<SupervisorSpec>, inputs: Sender<Input>) -> Self {
        Shims { spec, inputs, lifelines: BTreeMap::new() }
    }

    /// Starts a shim that runs the shell command with this environment in the job's folder, or in a container with
    /// what the job adds to the `inherited` one.
    pub(super) fn start(
        &mut self,
        kept: Kept,
        shell_command: &str,
        (inherited, environment): (&Environment, &Environment),
    ) -> io::Result<()> {
        let (log, record) = match kept {
            Kept::Setup => ("setup.log".to_owned(), "setup.exit".to_owned()),
            Kept::Rank(local) => {
                let rank = self.spec.node_rank * self.spec.ranks_per_node + local;
                (format!("rank-{rank}.log"), exit_record(rank))
            }
        };
        let (log, record) = (self.log_folder().join(log), self.spec.folder.join(record));
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("gangline").arg("keep-rank").arg("--log").arg(log).arg("--record").arg(record);
        command.arg("--log-bytes-max").arg(self.spec.log_bytes_max.to_string());
        command.env_clear().envs(environment).current_dir(&self.spec.workdir);
        let line = container::command_line(&self.spec, kept, shell_command, (inherited, environment));
        if let Some(runtime) = line.runtime {
            command.arg("--container").arg(runtime.to_string());
        }
        command.envs(line.variables).arg("--").args(line.arguments);
        // A shim's own messages go to the supervisor's log.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn()?;
        if let (Some(pid), Some(stdin), Some(stdout)) = (child.id(), child.stdin.take(), child.stdout.take()) {
            self.lifelines.insert(kept, Lifeline { pid, stdin });
            tokio::spawn(listen(kept, child, stdout, self.inputs.clone()));
        }
        Ok(())
    }

    /// Returns the folder of the logs.
    pub(super) fn log_folder(&self) -> PathBuf {
        self.spec.folder.join("logs")
    }

    /// Sends a command to a shim; does nothing if it is gone.
    pub(super) async fn tell(&mut self, kept: Kept, command: ShimCommand) {
        if let Some(lifeline) = self.lifelines.get_mut(&kept) {
            let _ = lifeline.stdin.write_all(command.line().as_bytes()).await;
        }
    }

    /// Forgets a shim that is gone.
    pub(super) fn forget(&mut self, kept: Kept) {
        self.lifelines.remove(&kept);
    }

    /// Kills the processes that dead shims left behind; the supervisor has adopted them. Their exit is
    /// waited for at the end.
    pub(super) fn kill_orphans(&self) {
        let living: Vec<u32> = self.lifelines.values().map(|lifeline| lifeline.pid).collect();
        kill_all(&left_behind(&living));
    }
}

/// Forwards a shim's events, and then how it ended.
async fn listen(kept: Kept, mut child: Child, stdout: ChildStdout, inputs: Sender<Input>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    let line_max = u64::try_from(SHIM_LINE_BYTES_MAX).expect("a small constant");
    loop {
        line.clear();
        match (&mut reader).take(line_max).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if let Ok(event) = serde_json::from_slice::<ShimEvent>(&line) {
            let _ = inputs.send(Input::Shim(kept, event)).await;
        }
    }
    let end = match child.wait().await {
        Ok(status) => RankEnd::from(status),
        Err(_) => RankEnd::Exit(1),
    };
    let _ = inputs.send(Input::ShimGone(kept, end)).await;
}
