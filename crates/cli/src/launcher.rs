//! The launchers of `up`: this machine, or Slurm.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gangline_base::{QueueName, with_causes};
use gangline_execution::launcher::slurm::SlurmOptions;
use gangline_execution::launcher::slurm::private::CONF_VARIABLE;
use gangline_execution::launcher::slurm::{Allocation, JobOptions};
use gangline_execution::launcher::{
    Inherited, LaunchError, Launcher, LocalLauncher, Places, SlurmLauncher, SurveyedNode,
};
use gangline_orchestration::Configuration;
use gangline_specs::config::Config;
use serde::Deserialize;

use crate::failure::Failure;
use crate::{amount, configuration, output};

/// How long a gang may wait in Slurm's queue, unless the configuration says otherwise.
const PENDING_SECONDS_MAX: u64 = 20;
/// Folder of Slurm's configuration, unless SLURM_CONF names a file.
const SLURM_FOLDER: &str = "/etc/slurm";

/// A launcher.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Supervisors are processes on this machine
    Local,
    /// Each gang becomes a Slurm job
    Slurm,
}

/// What gangs have of Slurm.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AllocationKind {
    /// Each gang becomes a Slurm job
    Job,
    /// Gangs are steps in jobs that hold whole nodes: nothing that restarts waits in Slurm's queue
    Pool,
    /// As in a pool, but nodes are asked for in Slurm's queue while a gang waits for them, and given back after it
    Queue,
}

/// How gangs are started.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LauncherArgs {
    /// What starts gangs [default: the configuration's, or local]
    #[arg(long, value_enum)]
    pub(crate) launcher: Option<Kind>,
    /// With --launcher slurm: the partition whose nodes are used [default: the configuration's, or Slurm's default one]
    #[arg(long, value_name = "NAME")]
    pub(crate) partition: Option<String>,
    /// With --launcher slurm: the account that jobs are charged to
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<String>,
    /// With --launcher slurm: the quality of service of jobs
    #[arg(long, value_name = "NAME")]
    pub(crate) qos: Option<String>,
    /// With --launcher slurm: give each gang a Slurm job of its own, or place gangs in jobs that hold whole nodes [default: the
    /// configuration's, or job]
    #[arg(long, value_enum)]
    pub(crate) allocation: Option<AllocationKind>,
    /// With --allocation pool: hold so many nodes [default: the configuration's, or all of the partition]
    #[arg(long, value_name = "COUNT", value_parser = amount::positive::<NonZeroU32>)]
    pub(crate) pool_nodes: Option<NonZeroU32>,
    /// With --launcher slurm: one more argument for sbatch, such as --reservation=training (may be repeated)
    #[arg(long = "sbatch", value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub(crate) sbatch: Vec<String>,
    /// Which Slurm, for those that have just set one up.
    #[arg(skip)]
    pub(crate) slurm_conf: Option<PathBuf>,
}

/// `[launcher]` in the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LauncherFile {
    kind: Option<Kind>,
    partition: Option<String>,
    account: Option<String>,
    qos: Option<String>,
    #[serde(default)]
    sbatch: Vec<String>,
    pending_seconds_max: Option<u64>,
    allocation: Option<AllocationKind>,
    pool_nodes: Option<NonZeroU32>,
    /// By the queues' names.
    #[serde(default)]
    queues: BTreeMap<String, QueueFile>,
}

/// `[launcher.queues.NAME]` in the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueFile {
    account: Option<String>,
    qos: Option<String>,
    #[serde(default)]
    sbatch: Vec<String>,
}

impl QueueFile {
    /// Returns the options of the queue's jobs; what isn't said is as for all jobs.
    fn options(&self, of_all: &JobOptions) -> JobOptions {
        JobOptions {
            partition: of_all.partition.clone(),
            account: self.account.clone().or_else(|| of_all.account.clone()),
            qos: self.qos.clone().or_else(|| of_all.qos.clone()),
            sbatch: of_all.sbatch.iter().chain(&self.sbatch).cloned().collect(),
        }
    }
}

/// A launcher, and whether it knows the nodes.
pub(crate) struct Chosen {
    pub(crate) launcher: Arc<dyn Launcher>,
    pub(crate) has_nodes: bool,
}

/// Hint for errors in a launcher's configuration.
const CONFIGURATION_HINT: &str = "docs/reference/configuration.md describes [launcher]";

/// Returns the launcher that options and configuration request. The configuration was read from the file at
/// `path`; supervisors reach the control plane at `address`.
///
/// # Errors
/// G0505 for invalid options or configuration, G0513 for nodes that the launcher can't start anything on, G0509
/// if Slurm refuses. If Slurm doesn't answer, a message is
/// printed; that is no error, since it may answer later.
pub(crate) fn choose(
    folder: &Path,
    config: &Config,
    path: Option<&Path>,
    args: &LauncherArgs,
    address: SocketAddr,
) -> Result<Chosen, Failure> {
    let refused = |message: String| Failure::coded("G0505", message, CONFIGURATION_HINT);
    let file = config.launcher.clone().map(LauncherFile::deserialize).transpose();
    let file = file.map_err(|error| refused(format!("[launcher]: {}", error.message())))?.unwrap_or_default();
    let inherited = Inherited::with(config.inherit.clone()).map_err(|error| refused(format!("inherit: {error}")))?;
    if args.launcher.or(file.kind).unwrap_or(Kind::Local) == Kind::Local {
        return local(config, args, &inherited);
    }
    let nodes = args.pool_nodes.or(file.pool_nodes).map(NonZeroU32::get);
    let is_allocation_said = args.allocation.or(file.allocation).is_some();
    let allocation = match args.allocation.or(file.allocation) {
        Some(AllocationKind::Pool) => Allocation::Pool { nodes },
        _ if nodes.is_some() => {
            return Err(refused("a number of nodes to hold (pool_nodes) is for the allocation \"pool\"".to_owned()));
        }
        Some(AllocationKind::Queue) => Allocation::Queue,
        None | Some(AllocationKind::Job) => Allocation::Job,
    };
    let conf = args.slurm_conf.clone().map(PathBuf::into_os_string).or_else(|| std::env::var_os(CONF_VARIABLE));
    let job = JobOptions {
        partition: args.partition.clone().or(file.partition),
        account: args.account.clone().or(file.account),
        qos: args.qos.clone().or(file.qos),
        sbatch: file.sbatch.into_iter().chain(args.sbatch.iter().cloned()).collect(),
    };
    if !file.queues.is_empty() && allocation != Allocation::Job {
        let message = "queues have accounts of their own only with the allocation \"job\": other jobs of Slurm hold nodes for gangs of all queues";
        return Err(refused(message.to_owned()));
    }
    let queues = queues(&config.sharing, &file.queues, &job).map_err(refused)?;
    let places = places(config, path, conf.as_deref().map(Path::new))?;
    let conf = conf.map(|conf| (OsString::from(CONF_VARIABLE), conf));
    let options = SlurmOptions {
        program: std::env::current_exe()?,
        folder: folder.to_owned(),
        environment: inherited.of_slurm(std::env::vars_os().chain(conf)),
        job,
        queues,
        allocation,
        pending_max: Duration::from_secs(file.pending_seconds_max.unwrap_or(PENDING_SECONDS_MAX)),
        places,
    };
    let launcher = SlurmLauncher::new(options);
    match launcher.survey().and_then(|nodes| launcher.try_options().map(|()| nodes)) {
        Ok(nodes) => {
            let nodes = nodes.unwrap_or_default();
            output::tell(&format!("Slurm has {} node(s) for jobs", nodes.len()));
            let hints = [beyond_reach(&nodes, address), beside_others(&nodes).filter(|_| !is_allocation_said)];
            hints.iter().flatten().for_each(|hint| output::tell(hint));
        }
        Err(refusal @ LaunchError::Refused { .. }) => {
            let hint =
                "sinfo shows the partitions, sacctmgr show associations the accounts; docs/guides/slurm.md tells more";
            return Err(Failure::coded("G0509", with_causes(&refusal), hint));
        }
        Err(silence) => output::tell(&format!(
            "{}; what is known of nodes and jobs stays as it was, and Slurm is asked again and again",
            with_causes(&silence)
        )),
    }
    Ok(Chosen { launcher: Arc::new(launcher), has_nodes: true })
}

/// Returns the options of each queue that has some of its own, or whose parent has. Without queues in the configuration any name
/// may be a queue's.
fn queues(
    sharing: &Configuration,
    of_queues: &BTreeMap<String, QueueFile>,
    of_all: &JobOptions,
) -> Result<BTreeMap<String, JobOptions>, String> {
    let parent = |name: &str| sharing.queues.iter().find(|queue| queue.name.as_str() == name)?.parent.as_ref();
    let is_queue = |name: &String| sharing.queues.iter().any(|queue| queue.name.as_str() == name);
    if let Some(name) = of_queues.keys().find(|name| !sharing.queues.is_empty() && !is_queue(name)) {
        return Err(format!("[launcher.queues.{name}]: there is no [[queue]] of this name"));
    }
    let of_queue = |name: &str| {
        let mut next = Some(name);
        while let Some(name) = next {
            if let Some(found) = of_queues.get(name) {
                return Some(found.options(of_all));
            }
            next = parent(name).map(QueueName::as_str);
        }
        None
    };
    let names = sharing.queues.iter().map(|queue| queue.name.as_str()).chain(of_queues.keys().map(String::as_str));
    Ok(names.filter_map(|name| Some((name.to_owned(), of_queue(name)?))).collect())
}

/// Returns the launcher of this machine. Refuses options that are for Slurm, and nodes on other machines.
fn local(config: &Config, args: &LauncherArgs, inherited: &Inherited) -> Result<Chosen, Failure> {
    let is_slurm_asked = args.partition.is_some() || args.account.is_some() || args.qos.is_some();
    let is_pool_asked = args.allocation.is_some() || args.pool_nodes.is_some();
    if is_slurm_asked || is_pool_asked || !args.sbatch.is_empty() {
        let options = "--partition, --account, --qos, --allocation, --pool-nodes and --sbatch are for --launcher slurm";
        return Err(Failure::coded("G0505", options, CONFIGURATION_HINT));
    }
    refuse_other_machines(config)?;
    let launcher = LocalLauncher::new(std::env::current_exe()?, inherited.of(std::env::vars_os())).with_limits();
    Ok(Chosen { launcher: Arc::new(launcher), has_nodes: false })
}

/// Refuses nodes on other machines: the local launcher starts all ranks on this one.
fn refuse_other_machines(config: &Config) -> Result<(), Failure> {
    let Some(node) = config.nodes.iter().find(|node| !is_here(&node.address)) else { return Ok(()) };
    let (name, address) = (&node.name, &node.address);
    let message =
        format!("node {name} is on another machine ({address}), and without Slurm every rank starts on this one");
    let hint = "take the nodes from Slurm (gangline up --launcher slurm; docs/guides/slurm.md), or remove this node";
    Err(Failure::coded("G0513", message, hint))
}

/// Returns a warning if supervisors on some of the nodes can't report, since the control plane listens on
/// loopback only.
fn beyond_reach(nodes: &[SurveyedNode], address: SocketAddr) -> Option<String> {
    let elsewhere = || nodes.iter().find(|node| !is_here(&node.address));
    let node = address.ip().is_loopback().then(elsewhere).flatten()?;
    Some(format!(
        "{} is on another machine, and its supervisors can't reach {address}: add --listen 0.0.0.0:7878",
        node.name
    ))
}

/// Returns a hint if other users run jobs on some of the nodes: a gang that is submitted only once its nodes are free may starve there.
fn beside_others(nodes: &[SurveyedNode]) -> Option<String> {
    let shared = nodes.iter().filter(|node| node.taken.accelerators > 0).count();
    (shared > 0).then(|| {
        format!(
            "others run jobs on {shared} of these nodes: with --allocation queue a gang keeps its place in Slurm's queue; \
             docs/guides/slurm.md tells when that is better"
        )
    })
}

/// Reports whether a name or address is this machine's, or can't be resolved.
fn is_here(address: &str) -> bool {
    let found = (address, 0).to_socket_addrs();
    // Only the machine's own addresses can be bound.
    found.map_or(true, |mut found| found.any(|own| UdpSocket::bind(own).is_ok()))
}

/// Returns the network domains of nodes: from the configuration's topology_file, otherwise from topology.conf
/// next to slurm.conf, if there is one.
fn places(config: &Config, path: Option<&Path>, conf: Option<&Path>) -> Result<Places, Failure> {
    if let (Some(file), Some(path)) = (&config.topology_file, path) {
        return configuration::places(&configuration::beside(path, file));
    }
    let folder = conf.and_then(Path::parent).unwrap_or(Path::new(SLURM_FOLDER));
    let file = folder.join("topology.conf");
    if file.exists() { configuration::places(&file) } else { Ok(BTreeMap::new()) }
}

#[cfg(test)]
mod tests {
    use gangline_base::Bytes;
    use gangline_execution::launcher::{Openness, Taken};

    use super::*;

    fn node(name: &str, address: &str) -> SurveyedNode {
        SurveyedNode {
            name: name.to_owned(),
            address: address.to_owned(),
            kind: "cpu".to_owned(),
            accelerators: 1,
            cpus: 1,
            memory: Bytes(0),
            domains: Vec::new(),
            openness: Openness::Open,
            taken: Taken::default(),
        }
    }

    #[test]
    fn others_on_the_nodes_are_pointed_out() {
        let taken = Taken { accelerators: 1, ..Taken::default() };
        let shared = SurveyedNode { taken, ..node("a", "127.0.0.1") };
        assert_eq!(beside_others(&[node("a", "127.0.0.1")]), None);
        let said = beside_others(&[shared, node("b", "127.0.0.1")]).expect("a hint");
        assert!(said.contains("on 1 of these nodes") && said.contains("--allocation queue"), "{said}");
    }

    #[test]
    fn a_queue_has_the_options_of_its_own_or_of_the_nearest_above_it() {
        let config = "[[queue]]\nname = \"lab\"\n[[queue]]\nname = \"nlp\"\nparent = \"lab\"\n[[queue]]\nname = \"vision\"\nparent = \"lab\"\n[[queue]]\nname = \"ops\"\n";
        let sharing = Config::parse(config).expect("it is sound").sharing;
        let job =
            JobOptions { account: Some("all".to_owned()), sbatch: vec!["--x".to_owned()], ..JobOptions::default() };
        let of_lab = QueueFile { account: Some("lab".to_owned()), ..QueueFile::default() };
        let (qos, sbatch) = (Some("high".to_owned()), vec!["--y".to_owned()]);
        let of_vision = QueueFile { qos, sbatch, ..QueueFile::default() };
        let tables = BTreeMap::from([("lab".to_owned(), of_lab), ("vision".to_owned(), of_vision)]);
        let found = queues(&sharing, &tables, &job).expect("they are queues");
        assert_eq!(found.keys().collect::<Vec<_>>(), ["lab", "nlp", "vision"]);
        assert_eq!(found["nlp"], JobOptions { account: Some("lab".to_owned()), ..job.clone() });
        let vision = JobOptions {
            qos: Some("high".to_owned()),
            sbatch: vec!["--x".to_owned(), "--y".to_owned()],
            ..job.clone()
        };
        assert_eq!(found["vision"], vision);
        let misspelt = BTreeMap::from([("lap".to_owned(), QueueFile::default())]);
        let refused = queues(&sharing, &misspelt, &job).expect_err("no such queue");
        assert_eq!(refused, "[launcher.queues.lap]: there is no [[queue]] of this name");
        assert_eq!(queues(&Configuration::default(), &misspelt, &job).map(|found| found.len()), Ok(1));
    }

    #[test]
    fn nodes_that_cannot_reach_a_loopback_are_pointed_out() {
        // 198.51.100.0/24 is for documentation (RFC 5737): nobody has it.
        let nodes = [node("here", "127.0.0.1"), node("unknown", "no-such-host.invalid"), node("there", "198.51.100.7")];
        let [local, open] = ["127.0.0.1:7878", "0.0.0.0:7878"].map(|text| text.parse().expect("an address"));
        let said = beyond_reach(&nodes, local).expect("a warning");
        assert!(said.contains("there is on another machine") && said.contains("127.0.0.1:7878"), "{said}");
        assert_eq!(beyond_reach(&nodes[..2], local), None);
        assert_eq!(beyond_reach(&nodes, open), None);
    }

    #[test]
    fn a_node_on_another_machine_is_refused_without_slurm() {
        let config = |address: &str| {
            let node = format!("[[node]]\nname = \"gpu-2\"\naccelerators = \"cpu:1\"\naddress = \"{address}\"\n");
            Config::parse(&node).expect("a sound configuration")
        };
        assert!(refuse_other_machines(&config("127.0.0.1")).is_ok());
        assert!(refuse_other_machines(&config("no-such-host.invalid")).is_ok(), "it may be resolved later");
        let refused = refuse_other_machines(&config("198.51.100.7")).expect_err("nobody has this address");
        let Failure::Local { message, .. } = refused else { panic!("{refused:?}") };
        assert!(message.starts_with("node gpu-2 is on another machine (198.51.100.7)"), "{message}");
    }
}
