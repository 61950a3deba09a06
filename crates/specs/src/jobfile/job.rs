//! Converts the tree into a specification: every key of `docs/reference/job-file.md`, its default and its
//! limits.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, Bytes, CheckpointPolicy, GangShape, HangTimeout, JobSpec, Launch, Money, Notify, PoolName,
    Priority, Program, QueueName, RecoveryPolicy,
};

use gangline_orchestration::SPARES_MAX;

use super::Context;
use super::container;
use super::elastic;
use super::field::{Field, Section, scalar};
use super::problem::{Code, Problems, Refusal, shown};
use super::values::{self, DURATION_MAX};
use super::workdir::{self, Workdir};
use super::yaml::{Node, Value};
use super::{after, datasets, notify, pins, planned, sweep, topology};

/// The most nodes of a gang.
pub(super) const NODES_MAX: u32 = 16_384;
/// The most CPU cores per node.
const CPUS_MAX: u32 = 4_096;
/// The most environment variables of a job.
const ENVS_MAX: usize = 1_000;
/// The longest command or `NAME=value`: Linux limits a program's argument to this.
const ARGUMENT_BYTES_MAX: usize = 128 * 1_024 - 1;
/// The longest time that a job may take to save and stop.
const GRACE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// The most faults a job may be allowed.
const FAULTS_MAX: u32 = 10_000;

const QUEUE_DEFAULT: &str = "default";
const GRACE_DEFAULT: Duration = CheckpointPolicy::GRACE_DEFAULT;
const MAX_FAULTS_DEFAULT: u32 = 10;
/// For jobs that name a checkpoint folder. Other jobs may never report a checkpoint, so only their budget
/// ends them.
const NO_PROGRESS_LIMIT_DEFAULT: u32 = 3;
/// The name of a job if neither its file nor the file's name gives a valid one.
const NAME_DEFAULT: &str = "job";

/// Reads all keys before it fails, so that all problems are reported at once.
pub(super) fn read(
    root: &Node,
    context: &Context<'_>,
    problems: &mut Problems,
) -> Option<(JobSpec, Option<sweep::Sweep>)> {
    let Value::Mapping(entries) = &root.value else { return None };
    let top = Section::open("", entries, problems);
    let name = top.get_or("name", name_from_file(context.file_name), |field| field.parsed(problems, values::name));
    let queue = match top.get("queue") {
        None => Some(QueueName::new(QUEUE_DEFAULT).expect("the default is a valid name")),
        Some(field) => field.parsed(problems, values::queue),
    };
    let priority = top.get_or("priority", Priority::NORMAL, |field| field.parsed(problems, values::priority));
    let width = elastic::read(&top, problems);
    let gang = gang(&top, width.as_ref().map(|width| width.nodes), problems);
    let workdir = workdir::read(&top, context, problems);
    let container = container::read(&top, context, problems);
    if let (Some(Some(container)), Some(workdir)) = (&container, &workdir) {
        container::check_workdir(container, &workdir.shown, workdir.place(), problems);
    }
    let program = program(&top, root, workdir.as_ref(), problems);
    let checkpoint = checkpoint(&top, context, problems);
    let has_path = checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.path.is_some());
    let recovery = recovery(&top, has_path, problems);
    let time_limit = top.get_or("time_limit", None, |field| time_limit(field, problems).map(Some));
    let budget = top.get_or("budget", None, |field| budget(field, problems).map(Some));
    let sweep = sweep::read(&top, problems);
    let spares = top.get_or("spares", 0, |field| field.count(problems, 0..=SPARES_MAX));
    let datasets = top.get_or("datasets", BTreeSet::new(), |field| datasets::read(field, problems));
    let planned = top.get_or("plan", None, |field| planned::read(field, problems).map(Some));
    let pins = top.get_or("retention", BTreeSet::new(), |field| pins::read(field, problems));
    let after = top.get_or("after", BTreeSet::new(), |field| after::read(field, problems));
    let notify = top.get_or("notify", Notify::default(), |field| notify::read(field, problems));
    let mut job = JobSpec {
        name: name?,
        queue: queue?,
        priority: priority?,
        gang: gang?,
        elastic: width?.elastic,
        program: program?,
        checkpoint: apart(checkpoint?, sweep.as_ref().is_some_and(Option::is_some)),
        recovery: recovery?,
        time_limit: time_limit?,
        budget: budget?,
        spares: spares?,
        datasets: datasets?,
        planned: planned?,
        pins: pins?,
        after: after?,
        notify: notify?,
        origin: None,
        submitter: context.submitter.clone(),
    };
    job.program.container = container?;
    let sweep = sweep?;
    if let Some(workdir) = workdir.filter(|_| problems.is_empty()) {
        job.program.code = workdir.copied(&job, context, problems)?;
    }
    Some((job, sweep))
}

fn name_from_file(file_name: &str) -> String {
    let stem = Path::new(file_name).file_stem().and_then(|stem| stem.to_str());
    stem.and_then(|stem| values::name(stem).ok()).unwrap_or_else(|| NAME_DEFAULT.to_owned())
}

fn gang(top: &Section<'_>, nodes: Option<NonZeroU32>, problems: &mut Problems) -> Option<GangShape> {
    let topology = topology::read(top, nodes, problems);
    let launch = top.get_or("launch", Launch::PerAccelerator, |field| field.parsed(problems, values::launch));
    let one_cpu = (AcceleratorKind(AcceleratorKind::CPU.to_owned()), NonZeroU32::MIN);
    let resources = match top.get("resources") {
        None => Some((Some(one_cpu), Some(0), Some(Bytes(0)), Some(PoolName::default()))),
        Some(field) => field.section(problems, "resources").map(|section| {
            let accelerators = section.get_or("accelerators", one_cpu, |field| accelerators(field, problems));
            let cpus = section.get_or("cpus", 0, |field| field.count(problems, 0..=CPUS_MAX));
            let memory = section.get_or("memory", Bytes(0), |field| field.parsed(problems, values::bytes));
            let pool = section.get_or("pool", PoolName::default(), |field| field.parsed(problems, values::pool));
            (accelerators, cpus, memory, pool)
        }),
    };
    let (accelerators, cpus, memory, pool) = resources?;
    let (accelerator, accelerators_per_node) = accelerators?;
    Some(GangShape {
        nodes: nodes?,
        pool: pool?,
        accelerator,
        accelerators_per_node,
        cpus_per_node: cpus?,
        memory_per_node: memory?,
        launch: launch?,
        topology: topology?,
    })
}

/// Parses a text; other tools take a mapping or a list here.
fn accelerators(field: Field<'_>, problems: &mut Problems) -> Option<(AcceleratorKind, NonZeroU32)> {
    if matches!(field.node.value, Value::Scalar(_)) {
        return field.parsed(problems, values::accelerators);
    }
    let refusal = Refusal::new(Code::WrongType, "expects one kind and a count").hint("write \"H100:8\"");
    field.refuse(problems, refusal);
    None
}

fn program(top: &Section<'_>, root: &Node, workdir: Option<&Workdir>, problems: &mut Problems) -> Option<Program> {
    let envs = top.get_or("envs", BTreeMap::new(), |field| envs(field, problems));
    let setup = top.get_or("setup", None, |field| command(field, problems).map(Some));
    let run = match top.get("run") {
        Some(field) => command(field, problems),
        None => {
            let refusal = Refusal::new(Code::MissingKey, "key \"run\" is missing");
            problems.add(&root.place, refusal.hint("write the command that trains: run: python train.py"));
            None
        }
    };
    let workdir = workdir?.shown.clone();
    Some(Program { workdir, code: None, container: None, envs: envs?, setup: setup?, run: run? })
}

/// Resolves `written` against `base` and drops `.` components.
pub(super) fn absolute(base: &Path, written: &str) -> PathBuf {
    base.join(written).components().filter(|component| *component != Component::CurDir).collect()
}

fn command(field: Field<'_>, problems: &mut Problems) -> Option<String> {
    field.parsed(problems, |text| {
        if text.trim().is_empty() {
            Err(Refusal::new(Code::BadValue, "is empty").hint("write a shell command"))
        } else if text.len() > ARGUMENT_BYTES_MAX {
            let message = format!("has {} bytes, over the limit of {ARGUMENT_BYTES_MAX}", text.len());
            Err(Refusal::new(Code::OutOfRange, message).hint("put the commands into a script"))
        } else {
            Ok(text.to_owned())
        }
    })
}

fn envs(field: Field<'_>, problems: &mut Problems) -> Option<BTreeMap<String, String>> {
    let entries = field.entries(problems)?;
    if entries.len() > ENVS_MAX {
        let message = format!("has {} variables, over the limit of {ENVS_MAX}", entries.len());
        field.refuse(problems, Refusal::new(Code::OutOfRange, message));
        return None;
    }
    let mut envs = Some(BTreeMap::new());
    for entry in entries {
        let in_envs = |refusal: Refusal| Refusal { message: format!("\"envs\": {}", refusal.message), ..refusal };
        let named = problems.keep(&entry.place, values::variable(&entry.key).map_err(in_envs));
        let of_variable = |refusal: Refusal| Refusal {
            message: format!("{} {}", shown(&format!("envs.{}", entry.key)), refusal.message),
            ..refusal
        };
        let value = scalar(&entry.value).and_then(|text| within_argument(&entry.key, text)).map_err(of_variable);
        match (named, problems.keep(&entry.value.place, value), &mut envs) {
            (Some(()), Some(text), Some(envs)) => {
                envs.insert(entry.key.clone(), text.to_owned());
            }
            _ => envs = None,
        }
    }
    envs
}

pub(super) fn within_argument<'t>(name: &str, text: &'t str) -> Result<&'t str, Refusal> {
    if name.len() + 1 + text.len() <= ARGUMENT_BYTES_MAX {
        return Ok(text);
    }
    let message = format!("has {} bytes, over the limit of {ARGUMENT_BYTES_MAX}", text.len());
    Err(Refusal::new(Code::OutOfRange, message).hint("put it into a file"))
}

fn checkpoint(top: &Section<'_>, context: &Context<'_>, problems: &mut Problems) -> Option<CheckpointPolicy> {
    let Some(field) = top.get("checkpoint") else {
        return Some(CheckpointPolicy { path: None, is_shared: false, grace: GRACE_DEFAULT });
    };
    let section = field.section(problems, "checkpoint")?;
    let path = section.get_or("path", None, |field| {
        field.parsed(problems, |text| {
            let path = absolute(context.base, text);
            let empty = || Refusal::new(Code::BadValue, "is empty").hint("write a folder's path");
            let foreign = || Refusal::new(Code::BadValue, "leads to a path that is not UTF-8");
            if text.is_empty() {
                Err(empty())
            } else {
                path.to_str().map(|path| Some(path.to_owned())).ok_or_else(foreign)
            }
        })
    });
    let grace = section.get_or("grace", GRACE_DEFAULT, |field| field.duration(problems, GRACE_MAX));
    let is_shared = section.get_or("share", false, |field| field.parsed(problems, yes_or_no));
    Some(CheckpointPolicy { path: path?, is_shared: is_shared?, grace: grace? })
}

/// Gives each job of a sweep a folder of its own below the one that the file names, unless the file says where the id
/// goes, or that the jobs share the folder.
fn apart(checkpoint: CheckpointPolicy, is_sweep: bool) -> CheckpointPolicy {
    let is_together = |path: &String| !is_sweep || checkpoint.is_shared || path.contains(CheckpointPolicy::JOB);
    let own = |path: String| Path::new(&path).join(CheckpointPolicy::JOB).to_str().map_or(path.clone(), str::to_owned);
    let path = checkpoint.path.map(|path| if is_together(&path) { path } else { own(path) });
    CheckpointPolicy { path, ..checkpoint }
}

/// Reads the recovery rules. `has_path` says whether the job names a checkpoint folder.
fn recovery(top: &Section<'_>, has_path: bool, problems: &mut Problems) -> Option<RecoveryPolicy> {
    let unless_given = |max_faults: u32| if has_path { NO_PROGRESS_LIMIT_DEFAULT } else { max_faults + 1 };
    let Some(field) = top.get("recovery") else {
        let no_progress_limit = unless_given(MAX_FAULTS_DEFAULT);
        let hang_timeout = HangTimeout::Learned;
        let max_faults = MAX_FAULTS_DEFAULT;
        return Some(RecoveryPolicy { max_faults, no_progress_limit, hang_timeout, evicts_stragglers: false });
    };
    let section = field.section(problems, "recovery")?;
    let max_faults = section.get_or("max_faults", MAX_FAULTS_DEFAULT, |field| field.count(problems, 0..=FAULTS_MAX));
    let given = section.get_or("no_progress_limit", None, |field| field.count(problems, 1..=FAULTS_MAX).map(Some));
    let hang_timeout =
        section.get_or("hang_timeout", HangTimeout::Learned, |field| field.parsed(problems, hang_timeout));
    let evicts_stragglers = section.get_or("evict_stragglers", false, |field| field.parsed(problems, yes_or_no));
    let (max_faults, given, hang_timeout, evicts_stragglers) = (max_faults?, given?, hang_timeout?, evicts_stragglers?);
    let no_progress_limit = given.unwrap_or_else(|| unless_given(max_faults));
    Some(RecoveryPolicy { max_faults, no_progress_limit, hang_timeout, evicts_stragglers })
}

/// Parses `true` or `false`.
fn yes_or_no(text: &str) -> Result<bool, Refusal> {
    values::choice(text, &["true", "false"]).map(|word| word == "true")
}

/// Parses `never` or a duration.
fn hang_timeout(text: &str) -> Result<HangTimeout, Refusal> {
    if text == "never" {
        return Ok(HangTimeout::Never);
    }
    match values::duration(text, DURATION_MAX) {
        Ok(time) if time.is_zero() => {
            Err(Refusal::new(Code::BadValue, "is no time".to_owned()).hint("write a time such as 10m, or never"))
        }
        Ok(time) => Ok(HangTimeout::After(time)),
        Err(refusal) => Err(refusal.hint("write a time such as 10m, or never")),
    }
}

fn budget(field: Field<'_>, problems: &mut Problems) -> Option<Money> {
    let section = field.section(problems, "budget")?;
    let Some(usd) = section.get("usd") else {
        field.refuse(problems, Refusal::new(Code::MissingKey, "has no \"usd\"").hint("write {usd: \"500\"}"));
        return None;
    };
    usd.parsed(problems, |text| {
        let wrong = || {
            let message = format!("expects an amount of dollars, not {}", shown(text));
            Refusal::new(Code::BadValue, message).hint("write \"500\" or \"0.50\"")
        };
        text.parse::<Money>().map_err(|_| wrong())
    })
}

fn time_limit(field: Field<'_>, problems: &mut Problems) -> Option<Duration> {
    field.parsed(problems, |text| match values::duration(text, DURATION_MAX)? {
        Duration::ZERO => Err(Refusal::new(Code::OutOfRange, "is zero, it has to be at least 1s")),
        limit => Ok(limit),
    })
}
