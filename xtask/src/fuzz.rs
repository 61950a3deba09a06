//! `fuzz`: coverage-guided fuzzing of every reader of bytes that somebody else may have written, with the pinned compiler.
//!
//! The fuzzer (`fuzz/`) is libFuzzer. It needs the readers compiled with LLVM's coverage counters, which is a pass of the stable
//! compiler. Cargo calls this program in the place of rustc for the workspace's own crates (`RUSTC_WORKSPACE_WRAPPER`), and
//! it adds that pass: so what others wrote is taken as the tests have it, and only our crates are compiled once more.
//! The targets run side by side, each in a process of its own; inputs that fail one and seeds lie below the target folder.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use cargo_metadata::TargetKind;

use crate::bundle;
use crate::command::{self, cargo};
use crate::environment;
use crate::programs;

/// The readers, by the names in `fuzz/benches/fuzz.rs`, each with where its seeds are: a file is one, but of a `.txt` each
/// line, and of a `.logs` each log.
const TARGETS: [(&str, &[&str]); 16] = [
    ("catalog", &["crates/storage/tests/fixtures/archive-version-1/catalogs"]),
    ("coded_tensor", &[]),
    ("data_compressed", &["fuzz/seeds/compressed"]),
    ("data_index", &["crates/data/tests/fixtures/writers", "crates/data/tests/fixtures/writers/mds"]),
    ("data_state", &[]),
    ("diagnosis", &["crates/diagnosis/tests/corpus"]),
    ("foreign_index", &[]),
    ("index", &["crates/storage/tests/fixtures/version-1/step-0000000007"]),
    ("job_file", &["examples/jobs"]),
    ("journal_entry", &["crates/store/tests/fixtures"]),
    ("journal_snapshot", &["crates/store/tests/fixtures"]),
    ("lease", &[]),
    ("manifest", &["crates/storage/tests/fixtures/version-1/step-0000000007"]),
    ("report", &["fuzz/seeds/report"]),
    ("shard_header", &["crates/storage/tests/fixtures/version-1/step-0000000007"]),
    ("staged_note", &[]),
];
/// What a snapshot's body has and an entry's hasn't: both are in the same fixtures.
const OF_SNAPSHOTS: &[u8] = b"\"next_job\"";
/// What makes LLVM count which edges of the code an input reaches, and which numbers it compares.
const INSTRUMENTATION: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    // Built once, and run for a minute.
    "-Copt-level=1",
];
/// Says that this program stands in for rustc.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";
/// The most bytes of an input.
const INPUT_BYTES_MAX: &str = "-max_len=16384";
/// An input that takes this many seconds by the clock fails. The gate's other parts may have the processor meanwhile.
const INPUT_SECONDS_MAX: &str = "-timeout=60";
/// The most memory of a fuzzer, in MiB: nothing makes room for more than a small multiple of its input.
const MEMORY_MAX: &str = "-rss_limit_mb=1024";
/// The most seeds of a target: all are run before the time begins that it was given.
const SEEDS_MAX: usize = 256;
/// A corpus of more inputs is begun anew, for the same reason.
const CORPUS_INPUTS_MAX: usize = 2_000;
/// The most bytes shown of what a fuzzer that failed said last.
const SHOWN_BYTES_MAX: usize = 8 << 10;

/// How many seconds each target runs, unless told otherwise.
const SECONDS: u32 = 60;

/// What is fuzzed, and how.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these; all without a name.
    targets: Vec<String>,
    /// How long each runs. All run side by side.
    #[arg(long, default_value_t = SECONDS)]
    seconds: u32,
    /// The profile that they are compiled in.
    #[arg(long, default_value = command::PROFILE)]
    profile: String,
}

/// The gate's run.
///
/// # Errors
/// When it doesn't build or can't be started.
pub(crate) fn in_ci() -> anyhow::Result<bool> {
    fuzz(&Options { targets: Vec::new(), seconds: SECONDS, profile: command::PROFILE.to_owned() })
}

/// Stands in for rustc if cargo called this program for that; returns only if not, or if it can't.
pub(crate) fn compile() -> anyhow::Result<()> {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Some((rustc, rest)) = arguments.split_first().filter(|_| std::env::var_os(WRAPPER).is_some()) else {
        return Ok(());
    };
    if Path::new(rustc).file_stem().is_none_or(|name| name != "rustc") {
        return Ok(());
    }
    let is_library = rest.windows(2).any(|pair| pair[0] == "--crate-type" && pair[1] == "lib");
    let mut command = Command::new(rustc);
    command.args(rest);
    if is_library || rest.windows(2).any(|pair| pair[0] == "--crate-name" && pair[1] == "fuzz") {
        command.args(INSTRUMENTATION);
    }
    Err(command.exec()).context("start rustc")
}

/// Builds the fuzzer and runs its targets side by side; true if none found anything.
///
/// # Errors
/// When it doesn't build or can't be started.
pub(crate) fn fuzz(options: &Options) -> anyhow::Result<bool> {
    let chosen = chosen(&options.targets)?;
    let program = build(&options.profile)?;
    let folder = environment::target()?.join("fuzz");
    let mut running = Vec::new();
    for (target, sources) in chosen {
        let corpus = folder.join(target);
        sow(target, sources, &corpus)?;
        running.push((target, start((&program, target), &corpus, options.seconds)?));
    }
    let mut is_good = true;
    for (target, child) in running {
        is_good &= finish(target, child, &folder)?;
    }
    Ok(is_good)
}

fn chosen(names: &[String]) -> anyhow::Result<Vec<(&'static str, &'static [&'static str])>> {
    let known = || TARGETS.map(|(target, _)| target).join(", ");
    let find = |name: &String| {
        let found = TARGETS.into_iter().find(|(target, _)| target == name);
        found.with_context(|| format!("no target {name}; there are {}", known()))
    };
    if names.is_empty() { Ok(TARGETS.to_vec()) } else { names.iter().map(find).collect() }
}

/// The fuzzer's path once it is built.
fn build(profile: &str) -> anyhow::Result<PathBuf> {
    let us = std::env::current_exe().context("find this program")?;
    let mut command = cargo(["build", "--workspace", "--bench", "fuzz"]);
    command.args(["--locked", "--profile", profile]);
    programs::built(command.env(WRAPPER, us), |target| target.kind.contains(&TargetKind::Bench))
}

/// Puts the seeds into a target's corpus, beside what earlier runs have found.
fn sow(target: &str, sources: &[&str], corpus: &Path) -> anyhow::Result<()> {
    if fs::read_dir(corpus).is_ok_and(|inputs| inputs.count() > CORPUS_INPUTS_MAX) {
        fs::remove_dir_all(corpus).with_context(|| format!("clear {}", corpus.display()))?;
    }
    fs::create_dir_all(corpus).with_context(|| format!("make {}", corpus.display()))?;
    let mut seeds = seeds(sources)?;
    let is_snapshot = |seed: &[u8]| seed.windows(OF_SNAPSHOTS.len()).any(|part| part == OF_SNAPSHOTS);
    seeds.retain(|seed| target != "journal_snapshot" || is_snapshot(seed));
    let every = seeds.len().div_ceil(SEEDS_MAX).max(1);
    for (number, seed) in seeds.iter().step_by(every).enumerate() {
        fs::write(corpus.join(format!("seed-{number}")), seed).with_context(|| format!("seed {target}"))?;
    }
    Ok(())
}

/// The seeds in these folders, in the order of their names.
fn seeds(sources: &[&str]) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for source in sources {
        let entries = fs::read_dir(source).with_context(|| format!("read {source}"))?;
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.into_iter().filter(|path| path.is_file()) {
            let bytes = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            match path.extension().and_then(OsStr::to_str) {
                Some("txt") => seeds.extend(bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec)),
                Some("logs") => {
                    let bundle = std::str::from_utf8(&bytes).with_context(|| format!("read {}", path.display()))?;
                    seeds.extend(bundle::logs(bundle).into_iter().map(|(_, _, text)| text.into()));
                }
                _ => seeds.push(bytes),
            }
        }
    }
    seeds.retain(|seed| !seed.is_empty());
    Ok(seeds)
}

fn start((program, target): (&Path, &str), corpus: &Path, seconds: u32) -> anyhow::Result<Child> {
    let mut command = Command::new(program);
    command.arg(corpus).arg(format!("-max_total_time={seconds}")).args([
        INPUT_BYTES_MAX,
        INPUT_SECONDS_MAX,
        MEMORY_MAX,
    ]);
    // Its own folder is where it would put inputs that fail.
    command.arg(format!("-artifact_prefix={}.failed-", corpus.display())).arg("-print_final_stats=1");
    command.env("GANGLINE_FUZZ_TARGET", target).stdout(Stdio::null());
    let log = fs::File::create(corpus.with_extension("log")).context("make a log")?;
    command.stderr(log).spawn().with_context(|| format!("start the fuzzer of {target}"))
}

/// Waits for a fuzzer and says in a line what it did; true if it found nothing.
fn finish(target: &str, mut child: Child, folder: &Path) -> anyhow::Result<bool> {
    let status = child.wait().with_context(|| format!("wait for the fuzzer of {target}"))?;
    let mut log = Vec::new();
    let path = folder.join(target).with_extension("log");
    fs::File::open(&path).and_then(|mut file| file.read_to_end(&mut log)).context("read its log")?;
    let log = String::from_utf8_lossy(&log);
    println!("{target:<18} {:>10} inputs, {} edges", figure(&log, "stat::number_of_executed_units:"), edges(&log));
    if !status.success() {
        let from = log.char_indices().map(|(at, _)| at).find(|at| log.len() - at <= SHOWN_BYTES_MAX).unwrap_or(0);
        eprintln!(
            "error: {target} failed ({status}); the input is {}.failed-*\n{}",
            folder.join(target).display(),
            &log[from..]
        );
    }
    Ok(status.success())
}

/// The word after a name.
fn figure<'a>(log: &'a str, name: &str) -> &'a str {
    log.rsplit_once(name).and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("?")
}

/// How many edges were reached in all.
fn edges(log: &str) -> &str {
    figure(log, " cov: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_fuzzers_own_and_their_seeds_are_there() {
        let root = command::root().unwrap();
        let source = fs::read_to_string(root.join("fuzz/benches/fuzz.rs")).unwrap();
        for (target, sources) in TARGETS {
            assert!(source.contains(&format!("(\"{target}\", ")), "{target}");
            assert!(sources.iter().all(|folder| root.join(folder).is_dir()), "{sources:?}");
        }
        assert_eq!(source.matches("\n    (\"").count(), TARGETS.len());
    }

    #[test]
    fn seeds_are_limited_and_a_corpus_that_has_grown_large_is_begun_anew() {
        let corpus = std::env::temp_dir().join(format!("gangline-fuzz-{}", std::process::id()));
        let root = command::root().unwrap();
        let source = root.join("crates/diagnosis/tests/corpus");
        let sow = || sow("diagnosis", &[source.to_str().unwrap()], &corpus).unwrap();
        let count = || fs::read_dir(&corpus).unwrap().count();
        sow();
        assert!((SEEDS_MAX / 2..=SEEDS_MAX).contains(&count()), "{}", count());
        fs::write(corpus.join("found"), "it").unwrap();
        sow();
        assert!(corpus.join("found").exists(), "what was found stays");
        (0..CORPUS_INPUTS_MAX).for_each(|number| fs::write(corpus.join(format!("{number}")), "").unwrap());
        sow();
        assert!(count() <= SEEDS_MAX);
        fs::remove_dir_all(&corpus).unwrap();
    }

    #[test]
    fn each_target_that_has_sources_has_seeds() {
        let corpus = std::env::temp_dir().join(format!("gangline-seeds-{}", std::process::id()));
        let root = command::root().unwrap();
        for (target, sources) in TARGETS.into_iter().filter(|(_, sources)| !sources.is_empty()) {
            let sources: Vec<String> = sources.iter().map(|source| root.join(source).display().to_string()).collect();
            sow(target, &sources.iter().map(String::as_str).collect::<Vec<_>>(), &corpus).unwrap();
            assert!(fs::read_dir(&corpus).unwrap().count() > 1, "{target}");
            fs::remove_dir_all(&corpus).unwrap();
        }
    }

    #[test]
    fn an_unknown_target_is_refused_with_those_that_there_are() {
        assert_eq!(chosen(&[]).unwrap().len(), TARGETS.len());
        assert_eq!(chosen(&["lease".to_owned()]).unwrap().len(), 1);
        let error = chosen(&["leese".to_owned()]).unwrap_err().to_string();
        assert!(error.starts_with("no target leese; there are catalog, "), "{error}");
    }

    #[test]
    fn figures_are_read_from_the_end_of_a_log() {
        let log = "#2 INITED cov: 3 ft: 4\n#9 DONE cov: 12 ft: 20\nstat::number_of_executed_units: 77\n";
        assert_eq!((edges(log), figure(log, "stat::number_of_executed_units:")), ("12", "77"));
        assert_eq!(edges(""), "?");
    }
}
