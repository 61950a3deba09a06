//! What machines say of themselves: the probe's script, its output, and how they are asked. Machines aren't
//! trusted: what they say goes into scripts that root runs, so only plain words are taken.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use gangline_base::Bytes;

use super::SetupError;
use crate::launcher::slurm::hostlist;
use crate::program::{self, Limits};

/// The script that a machine's own shell runs.
pub(super) const PROBE: &str = include_str!("probe.template");
/// Maximum number of machines.
pub(super) const MACHINES_MAX: usize = 1_000;
/// Maximum number of GPUs of a machine.
const GPUS_MAX: usize = 64;
/// Machines that are asked at once.
const ASKED_AT_ONCE: usize = 16;
/// Limits of a machine's answer.
const LIMITS: Limits = Limits { time: Duration::from_secs(60), output: 256 << 10, errors: 16 << 10 };
/// Longest name that a machine may have.
const NAME_LENGTH_MAX: usize = 253;

/// A machine's GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its device file.
    pub device: String,
    /// The product's name.
    pub product: String,
}

/// How commands get root's rights on a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Root {
    /// They have them.
    Yes,
    /// `sudo` without a password.
    Sudo,
    /// Not at all.
    #[default]
    No,
}

/// What a machine says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// How it is reached: a name or an address, maybe with a user before an `@`.
    pub reached_as: String,
    /// Its short host name, which is its name in the cluster.
    pub host_name: String,
    /// Its distribution, and those it is like.
    pub system: String,
    /// CPUs that processes may use.
    pub cpus: u32,
    /// Sockets, and cores of all of them.
    pub cores: Option<(u32, u32)>,
    /// Its memory, or what its container may use of it.
    pub memory: Bytes,
    /// Whether systemd starts what runs there.
    pub has_systemd: bool,
    /// Whether control groups are there.
    pub has_cgroups: bool,
    /// How root's rights are got.
    pub root: Root,
    /// The version of Slurm that is there.
    pub slurm: Option<String>,
    /// A slurm.conf that isn't Gangline's.
    pub foreign_conf: Option<String>,
    /// Its GPUs, by their device files' numbers.
    pub gpus: Vec<Gpu>,
    /// What other machines' addresses are there; none if a name isn't known.
    pub addresses: Vec<(String, Option<Ipv4Addr>)>,
}

impl Facts {
    /// Returns the address at which other machines reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        host_of(&self.reached_as)
    }
}

/// Returns what follows a user's name.
fn host_of(machine: &str) -> &str {
    machine.split_once('@').map_or(machine, |(_, host)| host)
}

/// Expands a list of machines as Slurm writes them: `gpu[1-4],head`.
///
/// # Errors
/// If it can't be understood, or has a machine twice.
pub fn machines(list: &str) -> Result<Vec<String>, SetupError> {
    let names = hostlist::expand(list).map_err(SetupError::Nodes)?;
    if names.len() > MACHINES_MAX {
        return Err(SetupError::TooMany);
    }
    if let Some(wrong) = names.iter().find(|name| !is_plain(name)) {
        return Err(SetupError::Name(wrong.clone()));
    }
    let mut seen = std::collections::BTreeSet::new();
    match names.iter().find(|name| !seen.insert(host_of(name))) {
        Some(twice) => Err(SetupError::Twice(twice.clone())),
        None => Ok(names),
    }
}

/// Reports whether this may stand in a script, and can't be an option of a program.
fn is_plain(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@._-".contains(c);
    let starts_well = word.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    word.len() <= NAME_LENGTH_MAX && starts_well && word.chars().all(is_plain)
}

/// Asks machines what they are, by a command that takes a machine and a command line as `ssh` does; this
/// machine by itself. Returns what they said, in their order.
///
/// # Errors
/// [`SetupError::Silent`] with every machine that doesn't answer.
pub fn ask(machines: &[String], reach: &str) -> Result<String, SetupError> {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_own = |machine: &str| machine == own || own.split('.').next() == Some(machine);
    let (mut said, mut silent) = (String::new(), Vec::new());
    for some in machines.chunks(ASKED_AT_ONCE) {
        let answers: Vec<_> = std::thread::scope(|scope| {
            let ask = |machine: &String| {
                let machine = machine.clone();
                let reach = (!is_own(&machine)).then_some(reach);
                scope.spawn(move || ask_one(&machine, machines, reach))
            };
            let asked: Vec<_> = some.iter().map(ask).collect();
            asked.into_iter().map(|thread| thread.join().expect("no question panics")).collect()
        });
        for (machine, answer) in some.iter().zip(answers) {
            match answer {
                Ok(text) => said.push_str(&text),
                Err(reason) => silent.push((machine.clone(), reason)),
            }
        }
    }
    if silent.is_empty() { Ok(said) } else { Err(SetupError::Silent(silent)) }
}

fn ask_one(machine: &str, machines: &[String], reach: Option<&str>) -> Result<String, String> {
    let mut words = vec!["sh", "-s", "--", machine];
    words.extend(machines.iter().map(|machine| host_of(machine)));
    let mut command = match reach {
        None => {
            let mut command = Command::new("sh");
            command.args(&words[1..]);
            command
        }
        Some(reach) => {
            let mut reach = reach.split_ascii_whitespace();
            let mut command = Command::new(reach.next().ok_or("the command that reaches machines is empty")?);
            command.args(reach).arg(machine).arg(words.join(" "));
            command
        }
    };
    let ran = program::run(&mut command, PROBE.as_bytes().to_vec(), LIMITS).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&ran.output).into_owned();
    if ran.has_succeeded() && text.trim_end().ends_with("\nend") {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&ran.errors);
    let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no answer").trim().to_owned();
    Err(if ran.status.is_none() { format!("no answer within {} s: {last}", LIMITS.time.as_secs()) } else { last })
}

/// Reads what machines said, one after the other.
///
/// # Errors
/// [`SetupError::Facts`] with the line that isn't understood.
pub fn read(text: &str) -> Result<Vec<Facts>, SetupError> {
    let mut all: Vec<Facts> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let (key, value) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let wrong = || SetupError::Facts { line: number, text: line.chars().take(120).collect() };
        if key == "node" {
            if !is_plain(value) {
                return Err(wrong());
            }
            all.push(Facts { reached_as: value.to_owned(), ..Facts::default() });
        } else if !matches!(key, "" | "#" | "end") {
            all.last_mut().and_then(|facts| take(facts, key, value)).ok_or_else(wrong)?;
        }
        if all.len() > MACHINES_MAX {
            return Err(SetupError::TooMany);
        }
    }
    for facts in &mut all {
        if !is_plain(&facts.host_name) || facts.cpus == 0 || facts.memory == Bytes(0) {
            return Err(SetupError::Incomplete(facts.reached_as.clone()));
        }
        facts.gpus.sort_by_key(|gpu| (gpu.device.len(), gpu.device.clone()));
    }
    Ok(all)
}

/// Takes one line; none if it isn't understood.
fn take(facts: &mut Facts, key: &str, value: &str) -> Option<()> {
    let mut words = value.split_ascii_whitespace();
    match key {
        "hostname" => facts.host_name = value.to_owned(),
        "system" => facts.system = value.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').take(80).collect(),
        "cpus" => facts.cpus = value.parse().ok()?,
        "cores" => facts.cores = Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?)),
        "memory_kib" => facts.memory = Bytes(value.parse::<u64>().ok()?.checked_mul(1_024)?),
        "memory_limit" => facts.memory = facts.memory.min(Bytes(value.parse().ok()?)),
        "init" => facts.has_systemd = value == "systemd",
        "cgroups" => facts.has_cgroups = value == "yes",
        "root" => facts.root = root(value)?,
        "slurm" | "slurm-wlm" => facts.slurm = words.next().map(str::to_owned),
        "conf" => {
            let (whose, path) = (words.next()?, words.next()?);
            facts.foreign_conf = (whose == "foreign").then(|| path.to_owned()).or(facts.foreign_conf.take());
        }
        "gpu" => {
            let (device, product) = value.split_once(' ')?;
            let is_path = device.starts_with('/') && is_plain(&device.replace('/', "_"));
            if !is_path || facts.gpus.len() == GPUS_MAX {
                return None;
            }
            facts.gpus.push(Gpu { device: device.to_owned(), product: product.trim().to_owned() });
        }
        "address" => {
            let name = words.next().filter(|name| is_plain(name))?;
            let found = words.next().map(str::parse).transpose().ok()?;
            facts.addresses.push((name.to_owned(), found));
        }
        _ => return None,
    }
    Some(())
}

fn root(value: &str) -> Option<Root> {
    match value {
        "yes" => Some(Root::Yes),
        "sudo" => Some(Root::Sudo),
        "no" => Some(Root::No),
        _ => None,
    }
}
