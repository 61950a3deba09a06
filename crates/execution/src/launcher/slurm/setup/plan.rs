//! From facts to files: what is refused, what is warned of, slurm.conf, gres.conf, cgroup.conf and the scripts. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

use super::facts::{Facts, Gpu, Root};
use super::{MARK, SetupError};
use crate::inventory::short_kind;

const INSTALL: &str = include_str!("install.template");
const EVERYWHERE: &str = include_str!("everywhere.template");
const CHECK: &str = include_str!("check.template");
/// Part of a machine's memory that Slurm gives to jobs, in percent: slurmd refuses a node that has less than
/// it is said to have, and the rest is the system's.
const MEMORY_PERCENT: u64 = 97;
/// The first version of Slurm that Gangline reads: year and month.
const SLURM_MIN: (u32, u32) = (22, 5);

/// What kind of cluster is wanted.
#[derive(Clone, Debug)]
pub struct SetupOptions {
    /// Its name.
    pub cluster: String,
    /// Where slurmctld runs, as a host name or as it is reached; the first node if it isn't said.
    pub controller: Option<String>,
    /// Which of the machines are nodes; all if it isn't said.
    pub nodes: Option<Vec<String>>,
    /// Whether nodes without GPUs are meant.
    pub without_gpus: bool,
    /// The command that reaches machines.
    pub reach: String,
}

/// The files of a cluster that isn't there yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Names and contents.
    pub files: Vec<(&'static str, String)>,
    /// What the administrator should know.
    pub warnings: Vec<String>,
    /// Where slurmctld runs.
    pub controller: String,
    /// Names of the nodes.
    pub nodes: Vec<String>,
}

/// Makes the files of a cluster of these machines.
///
/// # Errors
/// [`SetupError`] says which machine is in the way and what to do.
pub fn plan(machines: &[Facts], options: &SetupOptions) -> Result<Plan, SetupError> {
    let nodes = choose(machines, options.nodes.as_deref())?;
    let controller = match &options.controller {
        None => nodes[0],
        Some(name) => find(machines, name).ok_or_else(|| SetupError::Unknown(name.clone()))?,
    };
    let mut all = vec![controller];
    all.extend(nodes.iter().filter(|node| !std::ptr::eq(**node, controller)));
    refuse(&all)?;
    if nodes.iter().all(|node| node.gpus.is_empty()) && !options.without_gpus {
        return Err(SetupError::NoGpus);
    }
    if !is_word(&options.cluster) {
        return Err(SetupError::Cluster(options.cluster.clone()));
    }
    let is_confined = nodes.iter().all(|node| node.has_systemd && node.has_cgroups);
    let cluster = Cluster { controller, nodes: &nodes, all: &all, is_confined, options };
    let files = vec![
        ("slurm.conf", cluster.slurm_conf()),
        ("gres.conf", cluster.gres_conf()),
        ("cgroup.conf", cluster.cgroup_conf()),
        ("install", cluster.fill(INSTALL)),
        ("everywhere", cluster.fill(EVERYWHERE)),
        ("check", cluster.fill(CHECK)),
    ];
    let warnings = cluster.warnings();
    let nodes = nodes.iter().map(|node| node.host_name.clone()).collect();
    Ok(Plan { files, warnings, controller: controller.host_name.clone(), nodes })
}

fn find<'a>(machines: &'a [Facts], name: &str) -> Option<&'a Facts> {
    machines.iter().find(|facts| facts.reached_as == name || facts.host_name == name || facts.address() == name)
}

fn choose<'a>(machines: &'a [Facts], nodes: Option<&[String]>) -> Result<Vec<&'a Facts>, SetupError> {
    let chosen: Vec<&Facts> = match nodes {
        None => machines.iter().collect(),
        Some(names) => {
            let found = names.iter().map(|name| find(machines, name).ok_or_else(|| SetupError::Unknown(name.clone())));
            found.collect::<Result<_, _>>()?
        }
    };
    if chosen.is_empty() { Err(SetupError::NoNodes) } else { Ok(chosen) }
}

/// Refuses machines that can't be a cluster.
fn refuse(all: &[&Facts]) -> Result<(), SetupError> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for facts in all {
        if let Some(other) = names.insert(&facts.host_name, &facts.reached_as) {
            let (one, other) = (other.to_owned(), facts.reached_as.clone());
            return Err(SetupError::SameHostName { host_name: facts.host_name.clone(), one, other });
        }
        if !is_word(&facts.host_name) {
            return Err(SetupError::Name(facts.host_name.clone()));
        }
        if let Some(path) = &facts.foreign_conf {
            return Err(SetupError::ForeignConf { machine: facts.host_name.clone(), path: path.clone() });
        }
        if let Some(version) = facts.slurm.as_ref().filter(|version| is_too_old(version)) {
            return Err(SetupError::TooOld { machine: facts.host_name.clone(), version: version.clone() });
        }
        for (name, found) in &facts.addresses {
            let is_needed = all.iter().any(|other| other.address() == name);
            let is_own = facts.address() == name;
            if is_needed && !is_own && found.is_none_or(|address| address.is_loopback()) {
                let (name, machine) = (name.clone(), facts.host_name.clone());
                return Err(SetupError::Unresolved { name, machine, found: *found });
            }
        }
    }
    Ok(())
}

fn is_word(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain)
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|word| word.parse::<u32>().ok());
    matches!((numbers.next(), numbers.next()), (Some(year), Some(month)) if (year, month) < SLURM_MIN)
}

struct Cluster<'a> {
    controller: &'a Facts,
    nodes: &'a [&'a Facts],
    /// The controller, then the nodes that are other machines.
    all: &'a [&'a Facts],
    /// Whether Slurm can keep jobs to their devices, cores and memory.
    is_confined: bool,
    options: &'a SetupOptions,
}

impl Cluster<'_> {
    fn slurm_conf(&self) -> String {
        let controller = match addressed(self.controller) {
            Some(address) => format!("{}({address})", self.controller.host_name),
            None => self.controller.host_name.clone(),
        };
        let (track, task) = if self.is_confined {
            ("proctrack/cgroup", "task/cgroup,task/affinity")
        } else {
            ("proctrack/linuxproc", "task/none")
        };
        let has_gpus = self.nodes.iter().any(|node| !node.gpus.is_empty());
        let gres = if has_gpus { "GresTypes=gpu\n" } else { "" };
        let per_cpu = self.nodes.iter().map(|node| memory_mib(node) / u64::from(node.cpus)).min().unwrap_or(1).max(1);
        let mut text = format!(
            "{MARK}\n\
             ClusterName={cluster}\nSlurmctldHost={controller}\nSlurmUser=slurm\nAuthType=auth/munge\n\
             StateSaveLocation=/var/lib/slurm/slurmctld\nSlurmdSpoolDir=/var/lib/slurm/slurmd\n\
             SlurmctldPidFile=/run/slurmctld.pid\nSlurmdPidFile=/run/slurmd.pid\n\
             SlurmctldLogFile=/var/log/slurm/slurmctld.log\nSlurmdLogFile=/var/log/slurm/slurmd.log\n\
             ProctrackType={track}\nTaskPlugin={task}\nJobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\nMpiDefault=none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nDefMemPerCPU={per_cpu}\n{gres}\
             # A machine that was away comes back by itself; a limit on locked memory would keep NCCL from InfiniBand.\n\
             ReturnToService=2\nSlurmdTimeout=300\nPropagateResourceLimitsExcept=MEMLOCK\n\
             SchedulerType=sched/backfill\nSchedulerParameters=sched_interval=5,bf_interval=10\n",
            cluster = self.options.cluster,
        );
        for node in self.nodes {
            text.push_str(&node_line(node));
        }
        let names: Vec<&str> = self.nodes.iter().map(|node| node.host_name.as_str()).collect();
        text + &format!("PartitionName=main Nodes={} Default=YES MaxTime=INFINITE State=UP\n", names.join(","))
    }

    fn gres_conf(&self) -> String {
        // Distributions' Slurm is built without NVIDIA's library, so that it can't find them itself.
        let mut text = format!("{MARK}\nAutoDetect=off\n");
        for node in self.nodes {
            for (kind, devices) in by_kind(&node.gpus) {
                let line = format!("NodeName={} Name=gpu Type={kind} File={}\n", node.host_name, ranges(&devices));
                text.push_str(&line);
            }
        }
        text
    }

    fn cgroup_conf(&self) -> String {
        if self.is_confined {
            format!("{MARK}\nConstrainDevices=yes\nConstrainCores=yes\nConstrainRAMSpace=yes\n")
        } else {
            format!("{MARK}\n# Not used: a machine is without systemd or control groups.\n")
        }
    }

    fn fill(&self, template: &str) -> String {
        let join = |words: Vec<String>| words.join(" ");
        let gpus = self.nodes.iter().flat_map(|node| {
            let kinds = by_kind(&node.gpus).into_iter();
            kinds.map(|(kind, devices)| format!("{}={kind}:{}", node.host_name, devices.len()))
        });
        let machines = self.all.iter().map(|facts| format!("{} {}", facts.host_name, facts.reached_as));
        let values = [
            ("CONTROLLER", self.controller.host_name.clone()),
            ("NODES", join(self.nodes.iter().map(|node| node.host_name.clone()).collect())),
            ("COUNT", self.nodes.len().to_string()),
            ("ADDRESSES", join(self.addresses())),
            ("MACHINES", machines.collect::<Vec<_>>().join("\n")),
            ("PAIRS", join(self.all.iter().map(|f| format!("{}={}", f.host_name, f.reached_as)).collect())),
            ("GPUS", join(gpus.collect())),
            ("REACH", self.options.reach.replace('\'', "'\\''")),
        ];
        let fill = |text: String, (name, value): &(&str, String)| text.replace(&format!("@{name}@"), value);
        format!("{MARK}\n{}", values.iter().fold(template.to_owned(), fill))
    }

    /// Addresses that firewalls let in.
    fn addresses(&self) -> Vec<String> {
        let seen = self.all.iter().flat_map(|facts| &facts.addresses);
        let known = |name: &str| self.all.iter().any(|facts| facts.address() == name);
        let found = seen.filter(|(name, _)| known(name)).filter_map(|(_, found)| *found);
        let distinct: std::collections::BTreeSet<Ipv4Addr> = found.filter(|address| !address.is_loopback()).collect();
        distinct.iter().map(ToString::to_string).collect()
    }

    fn warnings(&self) -> Vec<String> {
        let mut all = Vec::new();
        let named = |is_so: &dyn Fn(&Facts) -> bool| {
            let names = self.all.iter().filter(|facts| is_so(facts)).map(|facts| facts.host_name.as_str());
            names.collect::<Vec<_>>().join(", ")
        };
        let without = self.nodes.iter().filter(|node| node.gpus.is_empty()).map(|node| node.host_name.as_str());
        let without = without.collect::<Vec<_>>().join(", ");
        if !without.is_empty() && !self.options.without_gpus {
            all.push(format!("no NVIDIA GPU was found on {without}: its slots will be CPUs"));
        }
        if !self.is_confined {
            let names = named(&|facts| !(facts.has_systemd && facts.has_cgroups));
            all.push(format!(
                "without systemd or control groups: {names}. Slurm tells a job which GPUs it has, but can't keep it from \
                 the others, and nothing starts Slurm again after a restart of the machine: run install again there"
            ));
        }
        let powerless = named(&|facts| facts.root == Root::No);
        if !powerless.is_empty() {
            all.push(format!("no root's rights (root, or sudo without a password) on {powerless}: install needs them"));
        }
        let mut versions: Vec<&str> = self.all.iter().filter_map(|facts| facts.slurm.as_deref()).collect();
        versions.sort_unstable();
        versions.dedup();
        let systems = self.all.iter().map(|facts| facts.system.split(' ').next().unwrap_or_default());
        let systems: std::collections::BTreeSet<&str> = systems.collect();
        if versions.len() > 1 {
            all.push(format!("machines have different versions of Slurm: {}", versions.join(", ")));
        } else if systems.len() > 1 {
            let names: Vec<&str> = systems.into_iter().collect();
            all.push(format!(
                "machines have different systems ({}): their versions of Slurm may differ",
                names.join(", ")
            ));
        }
        all
    }
}

/// Returns a node's address if its own name isn't the one by which it is reached.
fn addressed(node: &Facts) -> Option<&str> {
    Some(node.address()).filter(|address| *address != node.host_name)
}

fn memory_mib(node: &Facts) -> u64 {
    (node.memory.0 >> 20) * MEMORY_PERCENT / 100
}

fn node_line(node: &Facts) -> String {
    let mut line = format!("NodeName={}", node.host_name);
    // Writing to a String can't fail.
    let _ = addressed(node).map(|address| write!(line, " NodeAddr={address}"));
    let _ = write!(line, " CPUs={}", node.cpus);
    if let Some((sockets, cores)) = node.cores.filter(|(sockets, cores)| is_regular(node.cpus, *sockets, *cores)) {
        let (per_socket, threads) = (cores / sockets, node.cpus / cores);
        let _ = write!(line, " Sockets={sockets} CoresPerSocket={per_socket} ThreadsPerCore={threads}");
    }
    let _ = write!(line, " RealMemory={}", memory_mib(node));
    let kinds = by_kind(&node.gpus).into_iter().map(|(kind, devices)| format!("gpu:{kind}:{}", devices.len()));
    let gres = kinds.collect::<Vec<_>>().join(",");
    if !gres.is_empty() {
        let _ = write!(line, " Gres={gres}");
    }
    line + " State=UNKNOWN\n"
}

/// Reports whether all cores are alike and processes may use all of them.
fn is_regular(cpus: u32, sockets: u32, cores: u32) -> bool {
    sockets > 0 && cores > 0 && cores.is_multiple_of(sockets) && cpus.is_multiple_of(cores)
}

/// Returns device files by kind, as Slurm's types are written.
fn by_kind(gpus: &[Gpu]) -> BTreeMap<String, Vec<&str>> {
    let mut kinds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for gpu in gpus {
        let kind: String = short_kind(&gpu.product).chars().filter(char::is_ascii_alphanumeric).collect();
        kinds.entry(kind.to_lowercase()).or_default().push(&gpu.device);
    }
    kinds
}

/// Writes device files as gres.conf does: `/dev/nvidia[0-3,5]`.
fn ranges(devices: &[&str]) -> String {
    let split = |device: &&str| {
        let stem = device.trim_end_matches(|c: char| c.is_ascii_digit());
        Some((stem.to_owned(), device[stem.len()..].parse::<u32>().ok()?))
    };
    let parts: Option<Vec<(String, u32)>> = devices.iter().map(split).collect();
    let Some(parts) = parts.filter(|parts| parts.iter().all(|(stem, _)| *stem == parts[0].0)) else {
        return devices.join(",");
    };
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (_, number) in &parts {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let run = |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    match (parts.first(), runs.as_slice()) {
        (Some((stem, _)), [(first, last)]) if first == last => format!("{stem}{first}"),
        (Some((stem, _)), runs) => format!("{stem}[{}]", runs.iter().map(run).collect::<Vec<_>>().join(",")),
        (None, _) => String::new(),
    }
}
