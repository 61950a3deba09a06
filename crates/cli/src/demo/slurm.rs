//! A private Slurm of four nodes on this machine for the demo, while the demo runs.

use std::path::Path;
use std::time::{Duration, Instant};

use gangline_api as api;
use gangline_base::with_causes;
use gangline_execution::launcher::slurm::private::{PrivateOptions, PrivateSlurm};

use crate::client::Client;
use crate::failure::Failure;
use crate::output;

/// Number of its nodes, with one CPU slot each.
pub(super) const NODES: u32 = 4;
/// Maximum time until its nodes are seen.
const NODES_WAIT_MAX: Duration = Duration::from_secs(30);
/// Interval between two checks.
const PAUSE: Duration = Duration::from_millis(50);

/// Starts the private Slurm in a folder that doesn't exist yet.
///
/// # Errors
/// G0510 with what is missing.
pub(super) fn start(folder: &Path) -> Result<PrivateSlurm, Failure> {
    output::tell(&format!("setting up a private Slurm of {NODES} nodes in {}", folder.display()));
    let options = PrivateOptions {
        folder: folder.to_owned(),
        nodes: NODES,
        cpus: 1,
        gpus: None,
        hosts: None,
        has_accounts: false,
    };
    PrivateSlurm::start(options).map_err(|error| {
        let hint = "as root: apt-get install slurm-wlm munge; or run the demo without --launcher slurm";
        Failure::coded("G0510", with_causes(&error), hint)
    })
}

/// Waits until the control plane has seen all its nodes.
///
/// # Errors
/// If that takes too long.
pub(super) fn wait_for_nodes(client: &Client) -> Result<(), Failure> {
    let deadline = Instant::now() + NODES_WAIT_MAX;
    let expected = usize::try_from(NODES).unwrap_or(usize::MAX);
    while Instant::now() < deadline {
        let list: api::NodeList = client.get("/nodes")?;
        if list.nodes.iter().filter(|node| node.status == "ready").count() >= expected {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(Failure::local("the nodes of the private Slurm weren't seen in time", "try again on a machine with less to do"))
}
