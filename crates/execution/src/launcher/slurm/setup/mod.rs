//! A Slurm for machines that have none: machines are asked what they are, and its configuration and the
//! scripts that install and check it are written into a folder. Nothing is changed on any machine before
//! somebody runs these. No file is overwritten that wasn't written here.

mod facts;
mod plan;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

pub use facts::{Facts, Gpu, Root, ask, machines, read};
pub use plan::{Plan, SetupOptions, plan};

/// The first line of each file that is written: others are never overwritten.
const MARK: &str = "# Written by gangline slurm init, which replaces it when it is run again.";
/// What the scripts look for in a first line.
const MARK_WORDS: &str = "gangline slurm init";
/// Munge's key.
const KEY_FILE: &str = "munge.key";
const KEY_BYTES: u64 = 128;

/// The reason why there are no files.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The list of machines can't be understood.
    #[error("{0}")]
    Nodes(String),
    /// There is no node.
    #[error("there is no node")]
    NoNodes,
    /// There are too many machines.
    #[error("there are more than {} machines", facts::MACHINES_MAX)]
    TooMany,
    /// A name can't be used.
    #[error("\"{0}\" is no name of a machine: letters, digits, - and _, and a dot only in addresses")]
    Name(String),
    /// The cluster's name can't be used.
    #[error("\"{0}\" is no name of a cluster: letters, digits, - and _")]
    Cluster(String),
    /// A machine is named twice.
    #[error("\"{0}\" is named twice")]
    Twice(String),
    /// Two machines have the same host name.
    #[error("{one} and {other} both call themselves {host_name}")]
    SameHostName {
        /// The name.
        host_name: String,
        /// How the first is reached.
        one: String,
        /// How the second is reached.
        other: String,
    },
    /// A machine doesn't know another's address.
    #[error("\"{name}\" {} on {machine}", found.map_or("doesn't resolve".to_owned(), |found| format!("is {found}")))]
    Unresolved {
        /// The name.
        name: String,
        /// Where it isn't known.
        machine: String,
        /// An address that only that machine itself has.
        found: Option<Ipv4Addr>,
    },
    /// A machine belongs to another Slurm.
    #[error("{machine} has a Slurm already: {path} isn't from gangline slurm init")]
    ForeignConf {
        /// The machine.
        machine: String,
        /// Its configuration.
        path: String,
    },
    /// A machine's Slurm is too old.
    #[error("{machine} has Slurm {version}; Gangline needs 22.05 or later")]
    TooOld {
        /// The machine.
        machine: String,
        /// Its version.
        version: String,
    },
    /// Machines don't answer.
    #[error("no answer from {}", silent(.0))]
    Silent(Vec<(String, String)>),
    /// A line isn't understood.
    #[error("line {line} isn't what \"gangline slurm facts\" prints: {text}")]
    Facts {
        /// Its number.
        line: usize,
        /// The line.
        text: String,
    },
    /// A machine's name, CPUs or memory are missing.
    #[error("{0} doesn't say its host name, its CPUs or its memory")]
    Incomplete(String),
    /// A machine is asked for that said nothing.
    #[error("there are no facts about \"{0}\"")]
    Unknown(String),
    /// No machine has a GPU.
    #[error("no NVIDIA GPU was found on any of the machines")]
    NoGpus,
    /// A file is in the way.
    #[error("{0} is there and isn't from gangline slurm init")]
    InTheWay(PathBuf),
    /// A file can't be read or written.
    #[error("{doing} {path}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

impl SetupError {
    /// Says what to do.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            SetupError::Nodes(_) | SetupError::NoNodes => "name machines as in --nodes gpu1,gpu2 or --nodes gpu[1-4]",
            SetupError::TooMany => "larger clusters have administrators and a Slurm of their own",
            SetupError::Name(_) | SetupError::Cluster(_) => "choose another name",
            SetupError::Twice(_) => "name each machine once",
            SetupError::SameHostName { .. } => "give each a name of its own: hostnamectl set-hostname NAME",
            SetupError::Unresolved { .. } => {
                "put every machine's address and name into /etc/hosts of all, or name them by their addresses"
            }
            SetupError::ForeignConf { .. } => {
                "use that Slurm: gangline up --launcher slurm; or move the file away if nobody needs it"
            }
            SetupError::TooOld { .. } => "upgrade it, or remove its packages so that install can install others",
            SetupError::Silent(_) => {
                "try it: ssh MACHINE true; or run \"gangline slurm facts\" on each machine and give the output to --facts"
            }
            SetupError::Facts { .. } | SetupError::Incomplete(_) => "make it again: gangline slurm facts",
            SetupError::Unknown(_) => "ask that machine too: gangline slurm facts",
            SetupError::NoGpus => {
                "is NVIDIA's driver loaded there (nvidia-smi)? for nodes without GPUs say --without-gpus"
            }
            SetupError::InTheWay(_) => "choose another folder with --out, or move the file away",
            SetupError::Io { .. } => "is the folder yours, and is there room?",
        }
    }
}

fn silent(machines: &[(String, String)]) -> String {
    machines.iter().map(|(machine, reason)| format!("{machine} ({reason})")).collect::<Vec<_>>().join(", ")
}

/// Writes a plan's files and, unless it is there, a new key for munge. Either all files may be written or
/// none is.
///
/// # Errors
/// [`SetupError::InTheWay`] or [`SetupError::Io`].
pub fn write(plan: &Plan, folder: &Path) -> Result<(), SetupError> {
    let failed = |doing: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| SetupError::Io { doing, path, source }
    };
    for (name, _) in &plan.files {
        let path = folder.join(name);
        let is_there = path.symlink_metadata().is_ok();
        if is_there && !is_ours(&path).map_err(failed("read", &path))? {
            return Err(SetupError::InTheWay(path));
        }
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed("create", folder))?;
    let path = folder.join(KEY_FILE);
    if !path.exists() {
        new_key(&path).map_err(failed("write", &path))?;
    }
    for (name, text) in &plan.files {
        let (path, aside) = (folder.join(name), folder.join(format!("{name}.new")));
        fs::write(&aside, text).and_then(|()| fs::rename(&aside, &path)).map_err(failed("write", &path))?;
    }
    Ok(())
}

fn is_ours(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    File::open(path)?.take(1_024).read_to_end(&mut start)?;
    let start = String::from_utf8_lossy(&start);
    Ok(start.lines().next().is_some_and(|line| line.contains(MARK_WORDS)))
}

fn new_key(path: &Path) -> io::Result<()> {
    let mut key = Vec::new();
    File::open("/dev/urandom")?.take(KEY_BYTES).read_to_end(&mut key)?;
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?.write_all(&key)
}
