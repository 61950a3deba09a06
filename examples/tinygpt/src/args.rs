//! What a run is told: options, and the environment that torchrun or Gangline sets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use gangline_data::cache_folder;

use crate::error::Error;

/// What to train, on what, for how long.
///
/// An option that is given twice counts as given last, so that a sweep can append to a job's command.
#[derive(clap::Args, Clone, Debug)]
#[command(args_override_self = true)]
pub struct Args {
    /// Optimizer steps in all, those before a resume included
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub steps: u64,
    /// The seed of the weights and of the order of the data
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The highest learning rate, after the warm-up
    #[arg(long, default_value_t = 3e-3, allow_negative_numbers = true)]
    pub lr: f64,
    /// Sequences in a batch, for each rank that the run begins with
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4_096))]
    pub batch: u32,
    /// Sequences in a batch over all ranks, whose number may change [default: --batch times the ranks of the first start]
    #[arg(long, value_name = "SEQUENCES", value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub global_batch: Option<u32>,
    /// Write the samples of each step into this folder, a file for each rank
    #[arg(long, value_name = "DIR", hide = true)]
    pub sample_log: Option<PathBuf>,
    /// Bytes in a sequence
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=4_096))]
    pub context: u32,
    /// Width of the model
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=4_096))]
    pub width: u32,
    /// Transformer blocks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub layers: u32,
    /// Attention heads; they divide the width
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub heads: u32,
    /// Where to save and resume from [default: $GANGLINE_CHECKPOINT_DIR, or nowhere]
    #[arg(long, value_name = "DIR")]
    pub checkpoint_dir: Option<PathBuf>,
    /// Save after every so many steps (the last step is saved anyway)
    #[arg(long, default_value_t = 50, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub checkpoint_every: u64,
    /// Learn from the .rs files in this folder; may be repeated [default: this workspace and cargo's registry, or this trainer's sources]
    #[arg(long, value_name = "DIR")]
    pub corpus: Vec<PathBuf>,
    /// Learn from a dataset of single-byte tokens instead; a remote one is read through this node's cache
    #[arg(long, value_name = "ADDRESS", conflicts_with = "corpus")]
    pub data: Option<PathBuf>,
    /// The most text to learn from, in bytes
    #[arg(long, default_value_t = 8 << 20, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..))]
    pub corpus_bytes_max: u32,
    /// Let each step take at least this long, in milliseconds
    #[arg(long, default_value_t = 0, value_name = "MS", value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    pub step_time_min: u64,
    /// Print a line after every so many steps
    #[arg(long, default_value_t = 20, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub log_every: u64,
    /// Give up on a rank that can't be reached, or is silent, for this many seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub peer_timeout: u64,
}

impl Args {
    /// Checks what the single ranges can't.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if !self.width.is_multiple_of(self.heads) {
            let why = "the heads have to divide the width";
            return Err(Error::Setting { name: "--heads", value: self.heads.to_string(), why });
        }
        if !(self.lr > 0.0 && self.lr <= 1.0) {
            let why = "a learning rate is above 0 and at most 1";
            return Err(Error::Setting { name: "--lr", value: self.lr.to_string(), why });
        }
        Ok(())
    }

    pub(crate) fn peer_timeout(&self) -> Duration {
        Duration::from_secs(self.peer_timeout)
    }
}

/// What the launcher says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Environment {
    /// RANK and WORLD_SIZE.
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    /// MASTER_ADDR and MASTER_PORT: where the gang meets. Needed for more than one rank.
    pub(crate) master: Option<(String, u16)>,
    /// GANGLINE_JOB_ID: the run that its checkpoints belong to.
    pub(crate) job: Option<String>,
    /// GANGLINE_ATTEMPT.
    pub(crate) attempt: u64,
    /// GANGLINE_SOCKET: who wants to know.
    pub(crate) socket: Option<PathBuf>,
    /// GANGLINE_CHECKPOINT_DIR.
    pub(crate) checkpoint_dir: Option<PathBuf>,
    /// GANGLINE_STAGING_DIR: where copies of saves outlive this process.
    pub(crate) staging: Option<PathBuf>,
    /// GANGLINE_RESTORE_BELOW: only checkpoints before this step are gone on from.
    pub(crate) restore_below: Option<u64>,
    /// GANGLINE_SKIP_DATA_THROUGH: the batches of the steps after the restored one up to this are left out.
    pub(crate) skip_data_through: Option<u64>,
    /// CARGO_HOME, or .cargo in HOME.
    pub(crate) cargo_home: Option<PathBuf>,
    /// Where this node's cache of remote datasets is, if anywhere.
    pub(crate) cache: Option<PathBuf>,
    /// All variables: the cache has its settings among them.
    pub(crate) variables: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the process's environment.
    pub(crate) fn read() -> Result<Self, Error> {
        let read = Environment::from(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
        let text = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
        let variables = std::env::vars_os().filter_map(text).collect();
        Ok(Environment { cache: cache_folder(&std::env::vars_os().collect()), variables, ..read })
    }

    fn from(get: &dyn Fn(&'static str) -> Option<String>) -> Result<Self, Error> {
        let world_size = number(get, "WORLD_SIZE", 1)?;
        let rank = number(get, "RANK", 0)?;
        let refused = |name, value: String, why| -> Result<Self, Error> { Err(Error::Setting { name, value, why }) };
        if world_size == 0 {
            return refused("WORLD_SIZE", world_size.to_string(), "a gang has at least one rank");
        }
        if rank >= world_size {
            return refused("RANK", rank.to_string(), "it has to be below WORLD_SIZE");
        }
        let master = match (get("MASTER_ADDR"), get("MASTER_PORT")) {
            (Some(address), Some(_)) => Some((address, number(get, "MASTER_PORT", 0)?)),
            _ if world_size > 1 => {
                return refused("MASTER_ADDR", String::new(), "a gang needs it and MASTER_PORT to meet");
            }
            _ => None,
        };
        Ok(Environment {
            rank,
            world_size,
            master,
            job: get("GANGLINE_JOB_ID"),
            attempt: number(get, "GANGLINE_ATTEMPT", 0)?,
            socket: get("GANGLINE_SOCKET").map(PathBuf::from),
            checkpoint_dir: get("GANGLINE_CHECKPOINT_DIR").map(PathBuf::from),
            staging: get("GANGLINE_STAGING_DIR").map(PathBuf::from),
            restore_below: maybe(get, "GANGLINE_RESTORE_BELOW")?,
            skip_data_through: maybe(get, "GANGLINE_SKIP_DATA_THROUGH")?,
            cargo_home: get("CARGO_HOME")
                .map(PathBuf::from)
                .or_else(|| get("HOME").map(|home| PathBuf::from(home).join(".cargo"))),
            cache: None,
            variables: BTreeMap::new(),
        })
    }
}

fn number<T: std::str::FromStr>(
    get: &dyn Fn(&'static str) -> Option<String>,
    name: &'static str,
    default: T,
) -> Result<T, Error> {
    Ok(maybe(get, name)?.unwrap_or(default))
}

fn maybe<T: std::str::FromStr>(
    get: &dyn Fn(&'static str) -> Option<String>,
    name: &'static str,
) -> Result<Option<T>, Error> {
    let refused = |value: String| Error::Setting { name, value, why: "it is not a number in range" };
    get(name).map(|value| value.parse().map_err(|_| refused(value))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Environment, String> {
        let get = |name: &'static str| pairs.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned());
        Environment::from(&get).map_err(|error| error.to_string())
    }

    #[test]
    fn torchruns_environment_is_understood_and_none_is_needed() {
        let alone = read(&[]).expect("no environment at all");
        assert_eq!((alone.rank, alone.world_size, alone.master), (0, 1, None));
        let gang = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node-a"), ("MASTER_PORT", "29500")];
        let gang = read(&gang).expect("torchrun's environment");
        assert_eq!((gang.rank, gang.master), (1, Some(("node-a".to_owned(), 29_500))));
    }

    #[test]
    fn an_environment_that_makes_no_sense_is_refused_by_name() {
        let check = |pairs: &[(&str, &str)], name: &str| {
            let error = read(pairs).expect_err(name);
            assert!(error.contains(name), "{error:?} does not name {name}");
        };
        check(&[("RANK", "two")], "RANK");
        check(&[("RANK", "1")], "RANK");
        check(&[("WORLD_SIZE", "0")], "WORLD_SIZE");
        check(&[("WORLD_SIZE", "2")], "MASTER_ADDR");
        check(&[("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")], "MASTER_PORT");
        check(&[("GANGLINE_ATTEMPT", "-1")], "GANGLINE_ATTEMPT");
    }
}
