//! `gangline data warm` and `gangline data cache`: remote datasets on this node, fetched once for all programs.

use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use clap::Args;
use gangline_base::Bytes;
use gangline_data::{
    Cache, CacheOptions, Fetched, Holding, QUOTA_VARIABLE, QueueHolding, READS_VARIABLE, Requests, THREADS,
    cache_folder,
};
use serde_json::{Value, json};

use super::{failure, progress};
use crate::failure::Failure;
use crate::{output, s3};

/// What is added to a process's nice value so that all others go before it (nice(2)).
const LOWEST_PRIORITY: i32 = 19;

/// Where the cache is, and what it may take.
#[derive(Args)]
pub(crate) struct Where {
    /// The cache's folder [default: gangline/data in $XDG_CACHE_HOME, or ~/.cache]
    #[arg(long, value_name = "FOLDER", env = "GANGLINE_DATA_CACHE")]
    cache: Option<PathBuf>,
    /// The most bytes of copies; those used longest ago make room [default: no limit]
    #[arg(long, value_name = "BYTES", env = "GANGLINE_DATA_CACHE_LIMIT")]
    cache_limit: Option<u64>,
}

#[derive(Args)]
pub(crate) struct WarmArgs {
    /// The dataset: s3://bucket/folder, https://host/folder, or one object of it
    url: String,
    #[command(flatten)]
    place: Where,
    /// Ranges of 8 MiB that are asked for at a time
    #[arg(long, value_name = "N", default_value_t = THREADS, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,
    /// Compare all of it with its checksums
    #[arg(long)]
    verify: bool,
    /// Refuse a dataset for which the disk or the cache's limit has no room
    #[arg(long)]
    fits: bool,
    /// For programs: with the lowest priority, and no longer than standard input lasts
    #[arg(long)]
    background: bool,
}

#[derive(Args)]
pub(crate) struct CacheArgs {
    #[command(flatten)]
    place: Where,
}

impl Where {
    fn open(&self, connections: u32) -> Result<Cache, Failure> {
        let root = self.cache.clone().or_else(folder).ok_or_else(|| {
            Failure::local("failed to find a folder for the cache: HOME is not set", "say it with --cache")
        })?;
        let threads = NonZeroU32::new(connections).unwrap_or(NonZeroU32::MIN);
        let mut settings = s3::settings();
        for name in [QUOTA_VARIABLE, READS_VARIABLE] {
            settings.extend(std::env::var(name).ok().map(|value| (name.to_owned(), value)));
        }
        let options = CacheOptions { root, bytes_max: self.cache_limit, settings, threads };
        Cache::open(options).map_err(|error| failure(&error))
    }
}

/// Returns the cache's folder that the environment says.
pub(super) fn folder() -> Option<PathBuf> {
    cache_folder(&std::env::vars_os().collect())
}

/// Finds a dataset in the cache that the environment says; what isn't there is fetched as it is read.
pub(super) fn find(url: &Path) -> Result<Fetched, Failure> {
    of_environment()?.find(&url.to_string_lossy()).map_err(|error| failure(&error))
}

/// Brings all of a dataset into that cache.
pub(super) fn fetch(url: &Path) -> Result<Fetched, Failure> {
    let found = find_in(&of_environment()?, &url.to_string_lossy())?;
    fetch_all(&found)?;
    Ok(found)
}

fn find_in(cache: &Cache, url: &str) -> Result<Fetched, Failure> {
    cache.find(url).map_err(|error| failure(&error))
}

fn of_environment() -> Result<Cache, Failure> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let place = Where {
        cache: of("GANGLINE_DATA_CACHE").map(PathBuf::from),
        cache_limit: of("GANGLINE_DATA_CACHE_LIMIT").and_then(|limit| limit.to_str()?.parse().ok()),
    };
    place.open(THREADS)
}

fn fetch_all(found: &Fetched) -> Result<(), Failure> {
    let bar = progress(0);
    let fetched = found.fetch_all(&|there, bytes| {
        bar.set_length(bytes);
        bar.set_position(there);
    });
    bar.finish_and_clear();
    fetched.map_err(|error| failure(&error))
}

pub(crate) fn warm(args: &WarmArgs, is_json: bool) -> Result<(), Failure> {
    if args.background {
        // Without the right to do so it fetches all the same.
        let _ = rustix::process::nice(LOWEST_PRIORITY);
    }
    let cache = args.place.open(args.connections)?;
    let fetched = Arc::new(find_in(&cache, &args.url)?);
    if args.fits {
        refuse_too_large(&cache, &fetched, args)?;
    }
    if args.background {
        fetch_while_wanted(&fetched)?;
    } else {
        fetch_all(&fetched)?;
    }
    if args.verify {
        fetched.verify().map_err(|error| failure(&error))?;
    }
    if is_json {
        return output::json(&json!({
            "path": fetched.path(),
            "bytes": fetched.bytes(),
            "fetched_bytes": fetched.fetched(),
            "requests": counts(fetched.requests()),
            "kind": "measured",
        }));
    }
    let Requests { get, head, list, failed, .. } = fetched.requests();
    let failed = if failed > 0 { format!(", beside {failed} that failed") } else { String::new() };
    output::say(&format!(
        "{} in {}, {} of it fetched now by {} requests{failed} (measured)",
        Bytes(fetched.bytes()),
        fetched.path().display(),
        Bytes(fetched.fetched()),
        get + head + list
    ))
}

/// Fetches all of a dataset. A fetch that nobody wants any more, since standard input has ended, ends with this process.
fn fetch_while_wanted(fetched: &Arc<Fetched>) -> Result<(), Failure> {
    let (tell, told) = channel();
    let (shared, done) = (Arc::clone(fetched), tell.clone());
    std::thread::spawn(move || drop(done.send(fetch_all(&shared))));
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        drop(tell.send(Err(Failure::local("nobody wants the dataset any more", ""))));
    });
    told.recv().expect("both threads say something")
}

fn counts(Requests { get, head, list, failed, .. }: Requests) -> Value {
    json!({ "get": get, "head": head, "list": list, "failed": failed })
}

/// Refuses a dataset that is larger than the cache may become, or of which more is missing than the disk has.
fn refuse_too_large(cache: &Cache, found: &Fetched, args: &WarmArgs) -> Result<(), Failure> {
    let bytes = found.bytes();
    let holdings = cache.holdings().map_err(|error| failure(&error))?;
    let own = holdings.iter().filter(|one| one.url.starts_with(args.url.trim_end_matches('/')));
    let there: u64 = own.map(|one| one.there).sum();
    let refused = |whose: String| {
        let message = format!("{} has {}, and {whose}", args.url, Bytes(bytes));
        Failure::local(message, "make room, or leave --fits out: copies used longest ago then make room for it")
    };
    if let Some(limit) = cache.bytes_max().filter(|limit| bytes > *limit) {
        let whose =
            if args.place.cache_limit == Some(limit) { "the cache may take" } else { "its queue may have there" };
        return Err(refused(format!("{whose} {}", Bytes(limit))));
    }
    let free = cache.free_bytes().map_err(|error| failure(&error))?;
    // Other programs want room as well.
    if bytes.saturating_sub(there) > free - free / 8 {
        return Err(refused(format!("the disk of the cache has {} free", Bytes(free))));
    }
    Ok(())
}

/// Lists what the cache in this folder holds.
#[cfg(feature = "demo")]
pub(crate) fn list_folder(folder: &Path) -> Result<(), Failure> {
    list(&CacheArgs { place: Where { cache: Some(folder.to_owned()), cache_limit: None } }, false)
}

pub(crate) fn list(args: &CacheArgs, is_json: bool) -> Result<(), Failure> {
    let cache = args.place.open(THREADS)?;
    let holdings = cache.holdings().map_err(|error| failure(&error))?;
    let queues = cache.queues().map_err(|error| failure(&error))?;
    if is_json {
        let user = |pid: &u32| json!({ "pid": pid, "job": job_of(*pid) });
        let row = |one: &Holding| {
            let users: Vec<_> = one.programs.iter().map(user).collect();
            json!({ "url": one.url, "bytes": one.bytes, "there_bytes": one.there, "is_used": one.is_used, "users": users,
                "requests": one.requests, "found_bytes": one.found, "fetched_bytes": one.fetched })
        };
        let queue =
            |one: &QueueHolding| json!({ "queue": one.queue, "there_bytes": one.here, "bytes_max": one.bytes_max });
        let (rows, queues) = (holdings.iter().map(row), queues.iter().map(queue));
        return output::json(&json!({ "objects": rows.collect::<Vec<_>>(), "queues": queues.collect::<Vec<_>>() }));
    }
    if holdings.is_empty() {
        return output::say("nothing is in the cache: `gangline data warm s3://bucket/folder` fetches a dataset");
    }
    let row = |one: &Holding| {
        vec![
            one.url.clone(),
            Bytes(one.bytes).to_string(),
            Bytes(one.there).to_string(),
            one.requests.to_string(),
            hit_rate(one),
            users_of(one),
        ]
    };
    output::print(&output::table(
        &["object", ">bytes", ">here", ">requests", ">found here", ""],
        holdings.iter().map(row).collect(),
    ))?;
    if queues.is_empty() {
        return Ok(());
    }
    let row =
        |one: &QueueHolding| vec![one.queue.clone(), Bytes(one.here).to_string(), Bytes(one.bytes_max).to_string()];
    output::print("\n")?;
    output::print(&output::table(&["queue", ">here", ">quota"], queues.iter().map(row).collect()))
}

/// Says who uses a copy: jobs, and other programs by their number.
fn users_of(one: &Holding) -> String {
    let named: BTreeSet<String> =
        one.programs.iter().map(|pid| job_of(*pid).unwrap_or_else(|| format!("process {pid}"))).collect();
    let named: Vec<String> = named.into_iter().collect();
    match (one.is_used, named.is_empty()) {
        (false, _) => String::new(),
        (true, true) => "in use".to_owned(),
        (true, false) => format!("in use by {}", named.join(", ")),
    }
}

/// Returns the job whose program a process is, as far as its environment may be read.
fn job_of(pid: u32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let variable = environment.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(b"GANGLINE_JOB_ID="))?;
    String::from_utf8(variable.to_vec()).ok()
}

/// Returns the share of the bytes that programs wanted which was here already (measured).
fn hit_rate(one: &Holding) -> String {
    let wanted = one.found.saturating_add(one.fetched);
    let percent = |found: u64| u128::from(found) * 100 / u128::from(wanted.max(1));
    if wanted == 0 { "-".to_owned() } else { format!("{} %", percent(one.found)) }
}
