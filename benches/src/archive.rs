//! `bench archive`: what the archive makes of checkpoints of really trained models, in bytes, and what it costs a core.
//!
//! The states are those that tinygpt (a byte-level transformer, AdamW) writes while it trains on this workspace's sources, taken
//! as they appear; and what other ways of training would have saved of the same tensors: mixed precision keeps a bf16 copy
//! of each weight, and training of a few tensors keeps the others frozen in bf16. Ratios are bytes put into the archive,
//! catalog included, of bytes of the checkpoint; rates are raw bytes for each second of processor time, hashing, comparing
//! and writing included. What is pushed is pulled again, which compares every byte by its hash. The last section pushes the first
//! way's states once more into an encrypted archive.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail, ensure};
use gangline_base::Timestamp;
use gangline_storage::archive::{Archive, Options as ArchiveOptions, Pushed, Rule, WrappingKey};
use gangline_storage::{DataType, Options, Step, Store, Tensor};
use xtask::command;

use super::checkpoint::cpu_time;
use super::report::{Bar, Report};

/// The model: 3.3 million parameters, 40 MB with Adam's moments.
const MODEL: [&str; 10] = ["--width", "256", "--layers", "4", "--heads", "4", "--context", "64", "--batch", "4"];
/// Steps of the whole run, so that the learning rate is still far from its end at the last that is taken.
const STEPS: u64 = 300;
/// Steps between two checkpoints, and the last one.
const INTERVAL: u64 = 10;
const LAST: u64 = 200;
/// Steps whose checkpoints are archived one by one.
const TAKEN: [u64; 4] = [100, 110, 120, 150];
/// What a run keeps, as docs/guides/checkpoints.md has it: the last two, and the first of each hundred steps.
const KEEP_LAST: u32 = 2;
const KEEP_EVERY_STEPS: NonZeroU64 = NonZeroU64::new(100).expect("it isn't 0");
/// Between two looks for a new checkpoint.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The longest that training to the last one may take.
const TRAINING_TIME_MAX: Duration = Duration::from_secs(1_200);

/// A way of training, by what it would save.
struct Way {
    says: &'static str,
    saves: fn(&[Tensor], &[Tensor]) -> Vec<Tensor>,
    /// What the issue asks of a checkpoint of this kind that isn't the first.
    bar: Bar,
}

const WAYS: [Way; 3] = [
    Way {
        says: "fp32 weights, Adam m and v (pre-training, lr 3e-3)",
        saves: |state, _| state.to_vec(),
        bar: Bar::None,
    },
    Way { says: "the same and a bf16 copy of each weight (mixed precision)", saves: with_copies, bar: Bar::None },
    Way {
        says: "bf16 matrices frozen at step 100, vectors trained with Adam (as BitFit or LoRA do)",
        saves: frozen,
        bar: Bar::AtMost(0.15),
    },
];

/// Measures and prints; whether the bars held.
pub(super) fn run(options: &[String]) -> Result<bool> {
    if !options.is_empty() {
        bail!("bench archive takes no options, not {}", options.join(" "));
    }
    let folder = command::root()?.join("target/bench-archive");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).context("make target/bench-archive")?;
    let trained = train(&folder)?;
    let states: Vec<(u64, Vec<Tensor>)> =
        TAKEN.iter().map(|step| Ok((*step, trained.load(Step(*step))?.tensors))).collect::<Result<_>>()?;
    let mut report = Report::default();
    for (number, way) in WAYS.iter().enumerate() {
        report.section(&format!("tinygpt, 3.3M parameters: {} (measured)", way.says));
        archive(&mut report, way, &states, (&folder.join(number.to_string()), None))?;
    }
    report.section(&format!(
        "a run's checkpoints at steps {INTERVAL} to {LAST}, mixed precision: the last {KEEP_LAST} and the first of each {KEEP_EVERY_STEPS} steps kept (measured)"
    ));
    retention(&mut report, &trained, &folder.join("retention"))?;
    report.section("the first of these, encrypted (measured)");
    archive(&mut report, &WAYS[0], &states, (&folder.join("encrypted"), Some(key(&folder)?)))?;
    std::fs::remove_dir_all(&folder).context("remove target/bench-archive")?;
    Ok(report.finish())
}

/// Trains, and keeps the checkpoints that are wanted as they appear: tinygpt itself keeps the last two.
fn train(folder: &Path) -> Result<Store> {
    let (from, to) = (folder.join("training"), folder.join("taken"));
    std::fs::create_dir_all(&to)?;
    command::run(&mut command::cargo(["build", "--quiet", "--release", "--bin", "tinygpt"]))?;
    let program = std::env::current_exe()?.with_file_name("tinygpt");
    let mut command = Command::new(program);
    command.args(MODEL).args([
        "--steps",
        &STEPS.to_string(),
        "--checkpoint-every",
        &INTERVAL.to_string(),
        "--corpus-bytes-max",
        "2000000",
    ]);
    let mut child = command.arg("--checkpoint-dir").arg(&from).spawn().context("start tinygpt")?;
    let taken = take(&mut child, &from, &to);
    child.kill().context("end tinygpt")?;
    child.wait().context("wait for tinygpt")?;
    taken?;
    Ok(Store::open(&to, Options::reader())?)
}

/// Links the files of checkpoints before the trainer removes them.
fn take(child: &mut Child, from: &Path, to: &Path) -> Result<()> {
    let name = |step: u64| format!("step-{step:010}");
    let began = std::time::Instant::now();
    for step in every_step() {
        let found = from.join(name(step));
        while !found.is_dir() {
            ensure!(child.try_wait()?.is_none(), "tinygpt ended before step {step}");
            ensure!(began.elapsed() < TRAINING_TIME_MAX, "tinygpt took too long to step {step}");
            std::thread::sleep(LOOK_INTERVAL);
        }
        let target = to.join(name(step));
        std::fs::create_dir(&target)?;
        let files: Vec<PathBuf> = std::fs::read_dir(&found)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
        for file in files {
            std::fs::hard_link(&file, target.join(file.file_name().context("a name")?))?;
        }
    }
    Ok(())
}

/// Saves, pushes and pulls the states as one way of training would have them.
fn archive(
    report: &mut Report,
    way: &Way,
    states: &[(u64, Vec<Tensor>)],
    (folder, key): (&Path, Option<WrappingKey>),
) -> Result<()> {
    let store = Store::open(folder.join("store"), Options { keep: None, ..Options::default() })?;
    let back = Store::open(folder.join("back"), Options { keep: None, ..Options::default() })?;
    let place = folder.join("archive");
    let archive =
        Archive::open(place.to_str().context("a path of text")?, &ArchiveOptions { key, ..ArchiveOptions::default() })?;
    let (_, first) = states.first().context("a state")?;
    let (mut raw, mut put) = (0.0, 0.0);
    for (step, state) in states {
        let tensors = (way.saves)(state, first);
        let views: Vec<_> = tensors.iter().map(Tensor::as_view).collect();
        store.save(Step(*step), &views, &BTreeMap::new())?.wait()?;
        let began = cpu_time()?;
        let pushed = archive.push(&store, Step(*step))?;
        let middle = cpu_time()?;
        archive.pull(Some(Step(*step)), &back)?;
        let seconds = [middle - began, cpu_time()? - middle].map(|time| time.as_secs_f64());
        ensure!(back.load(Step(*step))? == store.load(Step(*step))?, "step {step} came back changed");
        let bytes = in_gigabytes(pushed.bytes.0);
        raw += bytes;
        put += in_gigabytes(pushed.put.0);
        let bar = if raw > bytes { way.bar } else { Bar::None };
        let rates = seconds.map(|seconds| bytes / seconds);
        let what = format!("{} (push {:.2}, pull {:.2} GB/s a core)", told(&pushed, states), rates[0], rates[1]);
        report.figure(&what, in_gigabytes(pushed.put.0) / bytes, "", bar);
    }
    report.figure(&format!("all {} checkpoints", states.len()), put / raw, "", Bar::None);
    Ok(())
}

/// Pushes a run's checkpoints, keeps those that the rules keep, and pulls these again.
fn retention(report: &mut Report, trained: &Store, folder: &Path) -> Result<()> {
    let open = |name| Store::open(folder.join(name), Options { keep: None, ..Options::default() });
    let (store, back) = (open("store")?, open("back")?);
    let place = folder.join("archive");
    let archive = Archive::open(place.to_str().context("a path of text")?, &ArchiveOptions::default())?;
    let mut raw = 0;
    for step in every_step() {
        let tensors = with_copies(&trained.load(Step(step))?.tensors, &[]);
        let views: Vec<_> = tensors.iter().map(Tensor::as_view).collect();
        store.save(Step(step), &views, &BTreeMap::new())?.wait()?;
        raw += archive.push(&store, Step(step))?.bytes.0;
    }
    let now = u64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos())?;
    let rules = [Rule::Last(KEEP_LAST), Rule::EverySteps(KEEP_EVERY_STEPS)];
    let before = folder_bytes(&place)?;
    archive.prune(&rules, Timestamp::from_unix_nanos(now), false)?;
    let kept = archive.list()?;
    for one in &kept {
        let step = one.step;
        archive.pull(Some(step), &back)?;
        ensure!(back.load(step)? == store.load(step)?, "step {step} came back changed");
    }
    let part = |bytes: u64| in_gigabytes(bytes) / in_gigabytes(raw);
    let all = every_step().count();
    report.figure(&format!("archived, all {all} checkpoints, of their bytes"), part(before), "", Bar::None);
    let what = format!("kept, {} of {all}, all bytes of the archive's folder, each checkpoint exact", kept.len());
    report.figure(&what, part(folder_bytes(&place)?), "", Bar::AtMost(0.2));
    Ok(())
}

fn every_step() -> impl Iterator<Item = u64> {
    (INTERVAL..=LAST).step_by(usize::try_from(INTERVAL).expect("ten"))
}

/// Bytes of all files below a folder.
fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { folder_bytes(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

/// A key's file, read.
fn key(folder: &Path) -> Result<WrappingKey> {
    let path = folder.join("key");
    std::fs::write(&path, [7; 32])?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
    Ok(WrappingKey::from_file(&path)?)
}

fn told(pushed: &Pushed, states: &[(u64, Vec<Tensor>)]) -> String {
    let megabytes = in_gigabytes(pushed.bytes.0) * 1e3;
    match states.first() {
        Some((first, _)) if *first < pushed.step.0 => {
            format!("step {}, {} after the base, {megabytes:.0} MB", pushed.step, pushed.step.0 - first)
        }
        _ => format!("step {}, the first snapshot, {megabytes:.0} MB", pushed.step),
    }
}

/// The bf16 copy of an fp32 tensor under another name.
fn copy(tensor: &Tensor) -> Tensor {
    let mut data = Vec::with_capacity(tensor.data.len() / 2);
    gangline_compression::derive_bf16(&tensor.data, gangline_compression::Rounding::NearestEven, &mut data);
    Tensor { name: format!("bf16.{}", tensor.name), data_type: DataType::Bf16, shape: tensor.shape.clone(), data }
}

fn is_weight(tensor: &Tensor) -> bool {
    tensor.name.starts_with("model.")
}

fn with_copies(state: &[Tensor], _: &[Tensor]) -> Vec<Tensor> {
    state.iter().cloned().chain(state.iter().filter(|tensor| is_weight(tensor)).map(copy)).collect()
}

fn frozen(state: &[Tensor], first: &[Tensor]) -> Vec<Tensor> {
    let matrices = first.iter().filter(|tensor| is_weight(tensor) && tensor.shape.len() > 1).map(copy);
    matrices.chain(state.iter().filter(|tensor| tensor.shape.len() == 1).cloned()).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a state has fewer than 2^53 bytes")]
fn in_gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
