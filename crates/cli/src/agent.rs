//! `agent`: reads this node and its accelerators, checks it, and sends both to the control plane, whether or not a job runs;
//! and the agent that `up` starts for this machine.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use gangline_base::NodeName;
use gangline_control::secret::Secrets;
use gangline_execution::agent::{self, AgentNode, AgentOptions, Place};
use gangline_execution::files::read_bounded;
use gangline_execution::inventory::{Inventory, this_machine};
use gangline_execution::protocol::SupervisorSpec;
use gangline_execution::shim::THIS_PROGRAM;
use gangline_telemetry::kernel_log::Rules;

use crate::client::{absolute, data_folder, given_token, refuse_in_the_clear};
use crate::failure::Failure;
use crate::{Global, output};

/// The most nodes that one machine stands for.
const NODES_MAX: usize = 16;
/// Pause before an agent that ended by itself is started again.
const RESTART_AFTER: Duration = Duration::from_secs(10);

/// How the agent runs.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgentArgs {
    /// The node's name (may be repeated, if this machine stands for several) [default: the host's name]
    #[arg(long = "node", value_name = "NAME")]
    nodes: Vec<String>,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    every: u64,
    /// Seconds between two rounds of checks
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    check_every: u64,
    /// Read GPUs from DCGM's exporter at this URL, such as http://127.0.0.1:9400/metrics, instead of from the driver
    #[arg(long, value_name = "URL")]
    dcgm: Option<String>,
    /// A file with a site's own rules for events of GPUs in the kernel's log (docs/guides/monitoring.md)
    #[arg(long, value_name = "FILE")]
    kernel_rules: Option<PathBuf>,
    /// Don't fetch datasets for jobs that wait
    #[arg(long)]
    no_fetch: bool,
    /// End when standard input does.
    #[arg(long, hide = true)]
    until_input_ends: bool,
    /// Stand in for the agent of the node of this supervisor's spec, and end when standard input does.
    #[arg(long, hide = true, value_name = "SPEC", conflicts_with_all = ["nodes", "until_input_ends"])]
    for_supervisor: Option<PathBuf>,
}

pub(crate) fn run(global: &Global, args: &AgentArgs) -> Result<(), Failure> {
    crate::internal::log_to_stderr();
    let Assignment { place, nodes, every } = match &args.for_supervisor {
        Some(spec) => of_spec(spec)?,
        None => {
            let (place, nodes) = place_and_nodes(global, names(args)?)?;
            Assignment { place, nodes, every: Duration::from_secs(args.every) }
        }
    };
    let stands_in = args.for_supervisor.is_some();
    let options = AgentOptions {
        nodes,
        place,
        every,
        stands_in,
        check_every: Duration::from_secs(args.check_every),
        program: THIS_PROGRAM.into(),
        exporter: args.dcgm.clone(),
        kernel_log: std::env::var_os("GANGLINE_KERNEL_LOG").map(Into::into),
        kernel_rules: kernel_rules(args)?,
        cache: gangline_data::cache_folder(&std::env::vars_os().collect()).filter(|_| !args.no_fetch),
        clock: output::now,
    };
    Ok(agent::run(options, &stop(args.until_input_ends || stands_in)?)?)
}

/// For which nodes, how often and to whom the agent sends.
struct Assignment {
    place: Place,
    nodes: Vec<AgentNode>,
    every: Duration,
}

/// Returns what the spec of a supervisor says of its node's agent.
fn of_spec(path: &Path) -> Result<Assignment, Failure> {
    let unusable = |error: String| Failure::local(format!("the spec {} can't be used: {error}", path.display()), "");
    let text = read_bounded(path).map_err(|error| unusable(error.to_string()))?;
    let spec: SupervisorSpec = serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
    let name = NodeName::new(&spec.node).map_err(|error| unusable(error.to_string()))?;
    let (Some(agent), Some(folder)) = (spec.agent, spec.endpoint_file.parent()) else {
        return Err(unusable("it asks for no agent".to_owned()));
    };
    Ok(Assignment {
        place: Place::Folder(folder.to_owned()),
        nodes: vec![AgentNode { name, token: agent.token }],
        every: Duration::from_millis(agent.every_ms.max(1_000)),
    })
}

/// Returns the site's rules, which must parse: an agent that runs for months without them would help nobody.
fn kernel_rules(args: &AgentArgs) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = &args.kernel_rules else { return Ok(None) };
    let path = absolute(path)?;
    let refused = |error: String| Failure::local(format!("{} can't be used: {error}", path.display()), "");
    let text = read_bounded(&path).map_err(|error| refused(error.to_string()))?;
    Rules::standard().with(&String::from_utf8_lossy(&text)).map_err(|error| refused(error.to_string()))?;
    Ok(Some(path))
}

fn names(args: &AgentArgs) -> Result<Vec<NodeName>, Failure> {
    let own = || own_node_name(&this_machine());
    let names = if args.nodes.is_empty() { vec![own()] } else { args.nodes.clone() };
    if names.len() > NODES_MAX {
        return Err(Failure::coded("G0505", format!("one agent is for {NODES_MAX} nodes at most"), ""));
    }
    let name = |name: &String| NodeName::new(name).map_err(|error| Failure::coded("G0505", error.to_string(), ""));
    names.iter().map(name).collect()
}

/// Returns where the control plane is, and the nodes with their tokens. Who can read the key in the data folder makes the
/// tokens; on other machines there is one, from `gangline token agent`.
fn place_and_nodes(global: &Global, names: Vec<NodeName>) -> Result<(Place, Vec<AgentNode>), Failure> {
    if let Some(url) = &global.url {
        refuse_in_the_clear(url)?;
        let token = given_token(global)?.ok_or_else(|| {
            let hint =
                "gangline token agent NODE prints one where the control plane runs; give it with --token-file FILE";
            Failure::local("an agent with --url needs its node's token", hint)
        })?;
        let unreadable =
            |file: &Path, error: io::Error| Failure::local(format!("{} can't be read: {error}", file.display()), "");
        let certificate = global.certificate.as_deref();
        let certificates = certificate.map(|file| read_bounded(file).map_err(|error| unreadable(file, error)));
        let place = Place::Url { url: url.clone(), certificates: certificates.transpose()? };
        let node = |name| AgentNode { name, token: token.clone() };
        return Ok((place, names.into_iter().map(node).collect()));
    }
    let folder = absolute(&data_folder(global)?)?;
    let secrets = Secrets::open(&folder).map_err(|error| {
        let hint = "run the agent as the owner of the data folder, or give it --url and --token-file";
        Failure::coded("G0502", format!("the secrets in {} can't be used: {error}", folder.display()), hint)
    })?;
    let node = |name: NodeName| AgentNode { token: secrets.agent_token(&name), name };
    Ok((Place::Folder(folder), names.into_iter().map(node).collect()))
}

/// Returns what says that the agent is to end: a signal, or the end of standard input.
fn stop(until_input_ends: bool) -> io::Result<Receiver<()>> {
    let (say, stop) = channel();
    if until_input_ends {
        let say = say.clone();
        std::thread::Builder::new().name("input".to_owned()).spawn(move || {
            let mut byte = [0];
            while io::stdin().lock().read(&mut byte).is_ok_and(|read| read > 0) {}
            let _ = say.send(());
        })?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
            let Ok(mut terminate) = terminate else { return };
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        });
        let _ = say.send(());
    })?;
    Ok(stop)
}

/// The agent of this machine, in a process of its own: a driver that hangs can't hold up the control plane.
#[derive(Debug)]
pub(crate) struct OwnAgent {
    input: Arc<Mutex<Option<ChildStdin>>>,
    until: Option<Sender<()>>,
}

impl OwnAgent {
    /// Starts it for these nodes, which are all this machine. It ends with this value, and with this process. One that
    /// ends by itself is started again.
    pub(crate) fn start(folder: &Path, nodes: &[String], every_seconds: u64) -> io::Result<Option<OwnAgent>> {
        if every_seconds == 0 || nodes.is_empty() {
            return Ok(None);
        }
        let mut command = Command::new(THIS_PROGRAM);
        command.arg("agent").arg("--until-input-ends").arg("--every").arg(every_seconds.to_string());
        command.arg("--data").arg(folder).stdin(Stdio::piped()).stdout(Stdio::null());
        // Options of this control plane's own command line aren't the agent's.
        for name in ["GANGLINE_URL", "GANGLINE_TOKEN", "GANGLINE_TOKEN_FILE"] {
            command.env_remove(name);
        }
        for node in nodes.iter().take(NODES_MAX) {
            command.arg("--node").arg(node);
        }
        let input = Arc::new(Mutex::new(None));
        let (until, ended) = channel::<()>();
        let held = Arc::clone(&input);
        let keep = move || {
            loop {
                let ran = spawn(&mut command, &held).and_then(|mut child| child.wait());
                if ended.try_recv() == Err(TryRecvError::Disconnected) {
                    return;
                }
                match ran {
                    Ok(status) => tracing::warn!(%status, "the agent of this machine has ended"),
                    Err(error) => tracing::warn!(%error, "the agent of this machine can't be started"),
                }
                if ended.recv_timeout(RESTART_AFTER) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("agent".to_owned()).spawn(keep)?;
        Ok(Some(OwnAgent { input, until: Some(until) }))
    }
}

impl Drop for OwnAgent {
    fn drop(&mut self) {
        // The agent ends with its input, and isn't started again.
        self.until.take();
        self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn spawn(command: &mut Command, input: &Mutex<Option<ChildStdin>>) -> io::Result<Child> {
    let mut child = command.spawn()?;
    *input.lock().unwrap_or_else(PoisonError::into_inner) = child.stdin.take();
    Ok(child)
}

/// Returns the host's name, reduced to a valid node name.
pub(crate) fn own_node_name(machine: &Inventory) -> String {
    let name = machine.host_name.split('.').next().unwrap_or_default();
    NodeName::new(name).map_or_else(|_| "local".to_owned(), |name| name.to_string())
}
