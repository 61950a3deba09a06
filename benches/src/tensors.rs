//! `bench tensors`: what a checkpoint of very many tensors takes, in time and memory, for each thing that is done with it.
//!
//! The tensors are small, so that what is measured is what each costs by itself, whatever its bytes: 144,385 of them, as many as a
//! Qwen3-235B-A22B with an AdamW has whose experts are tensors of their own (48,128 weights, and two moments of each), and two
//! million. Each thing is done by a process of its own, whose peak of memory is what the kernel says when it ends (`VmHWM` of
//! `/proc/self/status`), the tensors that it saves or has loaded among it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gangline_storage::archive::{Archive, Options as ArchiveOptions};
use gangline_storage::{DataType, Options, Role, Step, Store, TensorView};
use xtask::{command, environment};

/// How many tensors are measured.
const COUNTS: [usize; 2] = [144_385, 2_000_000];
/// Bytes of a tensor.
const TENSOR_BYTES: usize = 256;
/// Ranks that save together.
const RANKS: u32 = 8;
/// How long ranks wait for each other.
const COMMIT_TIME_MAX: Duration = Duration::from_secs(1_200);
/// The step that is saved.
const STEP: Step = Step(1);

/// Something that is done with a checkpoint, in a process of its own: it says how long its parts took.
type Deed = fn(usize, &Path) -> Result<Vec<(&'static str, Duration)>>;

/// What is done, in this order, in one folder.
const DEEDS: [(&str, Deed); 6] =
    [("save", save), ("gang", save_by_gang), ("list", list), ("latest", latest), ("load", load), ("push", push)];

/// Measures and prints. `--count N` measures so many tensors alone.
pub(super) fn run(options: &[String]) -> Result<bool> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let counts = match options[..] {
        [] => COUNTS.to_vec(),
        ["--count", count] => vec![count.parse().context("--count takes a number of tensors")?],
        ["--deed", deed, count, folder] => return deed_here(deed, count.parse()?, Path::new(folder)),
        _ => bail!("bench tensors takes --count N, not {}", options.join(" ")),
    };
    for count in counts {
        let folder = command::root()?.join("target/bench-tensors");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).context("make target/bench-tensors")?;
        println!("\n{count} tensors of {TENSOR_BYTES} bytes (measured)");
        for (deed, _) in DEEDS {
            in_a_process(deed, count, &folder)?;
        }
        by_python(count, &folder.join("python"))?;
        let manifest = folder.join("store/step-0000000001/manifest.json");
        println!("{:>9.0} MB  the manifest", megabytes(std::fs::metadata(manifest)?.len()));
        std::fs::remove_dir_all(&folder).context("remove target/bench-tensors")?;
    }
    Ok(true)
}

fn in_a_process(deed: &str, count: usize, folder: &Path) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["tensors", "--deed", deed, &count.to_string()]).arg(folder);
    ensure!(command.status()?.success(), "{deed} of {count} tensors failed");
    Ok(())
}

/// The same through the Python package, if it is installed in the environment of its tests.
fn by_python(count: usize, folder: &Path) -> Result<()> {
    let python = environment::target()?.join("python-venv/bin/python");
    if !python.exists() {
        println!("  not run    python: cargo xtask python installs the package");
        return Ok(());
    }
    let mut script = Command::new(python);
    script.args(["-c", include_str!("tensors.py"), &count.to_string()]).arg(folder);
    ensure!(script.status()?.success(), "Python failed with {count} tensors");
    Ok(())
}

/// Does one thing, and prints how long its parts took and the peak of this process's memory.
fn deed_here(name: &str, count: usize, folder: &Path) -> Result<bool> {
    let (_, deed) = DEEDS.iter().find(|(known, _)| *known == name).context("no such deed")?;
    for (what, time) in deed(count, folder)? {
        println!("{:>9.2} s   {what}", time.as_secs_f64());
    }
    println!("{:>9.0} MB  {name}: peak of memory", megabytes(peak_bytes()?));
    Ok(true)
}

fn peak_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("the kernel says no VmHWM")?;
    Ok(peak.trim().trim_end_matches(" kB").parse::<u64>()? * 1_024)
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Names as long as those of a mixture of experts, in the order in which a state dict has them.
struct Tensors {
    names: Vec<String>,
    shape: [usize; 2],
    data: Vec<u8>,
}

impl Tensors {
    fn new(count: usize) -> Tensors {
        let name = |number: usize| {
            let (layer, expert) = (number / 384 % 94, number / 3 % 128);
            let matrix = ["down_proj", "gate_proj", "up_proj"][number % 3];
            format!("optimizer.state.{}.model.layers.{layer}.mlp.experts.{expert}.{matrix}.weight", number / 36_096)
        };
        let data = (0..TENSOR_BYTES * 251).map(|at| u8::try_from(at % 251).expect("below 251")).collect();
        Tensors { names: (0..count).map(name).collect(), shape: [2, TENSOR_BYTES / 4], data }
    }

    fn views(&self) -> Vec<TensorView<'_>> {
        let data = |number: usize| &self.data[number % (TENSOR_BYTES * 250)..][..TENSOR_BYTES];
        (self.names.iter().enumerate())
            .map(|(number, name)| TensorView {
                name,
                data_type: DataType::Bf16,
                shape: &self.shape,
                data: data(number),
                part_of: None,
            })
            .collect()
    }
}

fn open(folder: &Path, role: Role) -> Result<Store> {
    let options = Options { role, commit_timeout: COMMIT_TIME_MAX, ..Options::default() };
    Ok(Store::open(folder.join("store"), options)?)
}

fn save(count: usize, folder: &Path) -> Result<Vec<(&'static str, Duration)>> {
    let tensors = Tensors::new(count);
    let views = tensors.views();
    let store = open(folder, Role::Writer { rank: 0, world_size: 1, tag: 0 })?;
    let began = Instant::now();
    let pending = store.save(STEP, &views, &BTreeMap::new())?;
    let blocked = began.elapsed();
    pending.wait()?;
    let durable = began.elapsed();
    let began = Instant::now();
    store.save(STEP, &views, &BTreeMap::new())?.wait()?;
    Ok(vec![
        ("save: it blocks, into fresh memory", blocked),
        ("save: it is durable", durable),
        ("save: the next, in the place of one", began.elapsed()),
    ])
}

/// All ranks in this process, which is their memory together.
fn save_by_gang(count: usize, folder: &Path) -> Result<Vec<(&'static str, Duration)>> {
    let tensors = Tensors::new(count);
    let views = tensors.views();
    let folder = folder.join("gang");
    let began = Instant::now();
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (folder, views) = (&folder, &views);
            scope.spawn(move || -> Result<()> {
                let store = open(folder, Role::Writer { rank, world_size: RANKS, tag: 0 })?;
                store.save(STEP, views, &BTreeMap::new())?.wait()?;
                Ok(())
            })
        };
        let threads: Vec<_> = (0..RANKS).map(rank).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a rank doesn't panic"))
    })?;
    let committed = began.elapsed();
    std::fs::remove_dir_all(folder)?;
    Ok(vec![("gang: 8 ranks have saved and seen the commit", committed)])
}

fn list(count: usize, folder: &Path) -> Result<Vec<(&'static str, Duration)>> {
    let store = open(folder, Role::Reader)?;
    let began = Instant::now();
    let listed = store.list()?;
    let found = listed[0].manifest.as_ref().map_or(0, |manifest| manifest.tensors.len());
    ensure!(found == count, "{found} tensors were listed");
    Ok(vec![("list", began.elapsed())])
}

fn latest(count: usize, folder: &Path) -> Result<Vec<(&'static str, Duration)>> {
    let store = open(folder, Role::Reader)?;
    let began = Instant::now();
    let found = store.latest()?.checkpoint.map_or(0, |checkpoint| checkpoint.tensors.len());
    ensure!(found == count, "{found} tensors were found good");
    Ok(vec![("latest (every byte checked)", began.elapsed())])
}

fn load(count: usize, folder: &Path) -> Result<Vec<(&'static str, Duration)>> {
    let store = open(folder, Role::Reader)?;
    let began = Instant::now();
    let found = store.load(STEP)?.tensors.len();
    ensure!(found == count, "{found} tensors were loaded");
    Ok(vec![("load", began.elapsed())])
}

fn push(_: usize, folder: &Path) -> Result<Vec<(&'static str, Duration)>> {
    let store = open(folder, Role::Reader)?;
    let place: PathBuf = folder.join("archive");
    std::fs::create_dir_all(&place)?;
    let archive = Archive::open(&place.display().to_string(), &ArchiveOptions::default())?;
    let began = Instant::now();
    archive.push(&store, STEP)?;
    let pushed = began.elapsed();
    let began = Instant::now();
    archive.push(&store, STEP)?;
    Ok(vec![("push to an archive", pushed), ("push: the same again", began.elapsed())])
}
