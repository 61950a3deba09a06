//! The options of sbatch: parses them from a script, and translates each.

use std::collections::BTreeMap;

use gangline_execution::launcher::slurm::gpus;
use serde_json::{Value, json};

use super::{refused, words};

/// Short option names and their long ones.
const SHORT: [(char, &str); 29] = [
    ('J', "job-name"),
    ('N', "nodes"),
    ('n', "ntasks"),
    ('c', "cpus-per-task"),
    ('G', "gpus"),
    ('t', "time"),
    ('p', "partition"),
    ('A', "account"),
    ('q', "qos"),
    ('a', "array"),
    ('d', "dependency"),
    ('o', "output"),
    ('e', "error"),
    ('x', "exclude"),
    ('w', "nodelist"),
    ('D', "chdir"),
    ('C', "constraint"),
    ('M', "clusters"),
    ('F', "nodefile"),
    ('H', "hold"),
    ('L', "licenses"),
    ('Q', "quiet"),
    ('W', "wait"),
    ('b', "begin"),
    ('i', "input"),
    ('k', "no-kill"),
    ('m', "distribution"),
    ('s', "oversubscribe"),
    ('v', "verbose"),
];
/// Options without a value.
const FLAGS: [&str; 14] = [
    "exclusive",
    "requeue",
    "no-requeue",
    "overcommit",
    "contiguous",
    "hold",
    "no-kill",
    "spread-job",
    "nice",
    "quiet",
    "verbose",
    "wait",
    "oversubscribe",
    "parsable",
];

/// An option in a script.
pub(super) struct Directive {
    /// Its line, from 1.
    pub(super) line: usize,
    /// Its long name.
    pub(super) name: String,
    /// Its value; empty if it has none.
    pub(super) value: String,
}

/// Returns the options in a script's head: `#SBATCH` lines before its first command.
pub(super) fn of(text: &str, problems: &mut Vec<String>) -> Vec<Directive> {
    let mut found = Vec::new();
    let head = text.lines().zip(1..).take_while(|(line, _)| line.trim().is_empty() || line.starts_with('#'));
    for (text, line) in head.filter_map(|(text, line)| Some((text.strip_prefix("#SBATCH")?, line))) {
        match words::split(text).and_then(|words| of_line(line, words)) {
            Ok(options) => found.extend(options),
            Err(problem) => problems.push(format!("line {line}: {problem}")),
        }
    }
    found
}

fn of_line(line: usize, words: Vec<String>) -> Result<Vec<Directive>, String> {
    let mut found = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let (name, value) = match word.strip_prefix("--") {
            Some(long) => match long.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (long.to_owned(), None),
            },
            None => short(&word)?,
        };
        let needs = value.is_none() && !FLAGS.contains(&name.as_str());
        let next = words.next_if(|next| needs && !next.starts_with('-'));
        if needs && next.is_none() && Asked::is_known(&name) {
            return Err(format!("--{name} has no value"));
        }
        found.push(Directive { line, name, value: value.or(next).unwrap_or_default() });
    }
    Ok(found)
}

/// Parses `-N`, `-N4`.
fn short(word: &str) -> Result<(String, Option<String>), String> {
    let mut characters = word.chars();
    let letter = characters.next().filter(|dash| *dash == '-').and_then(|_| characters.next());
    let long = letter.and_then(|letter| SHORT.iter().find(|(short, _)| *short == letter));
    let (_, long) = long.ok_or_else(|| format!("\"{word}\" is no option of sbatch that is known here"))?;
    let value = characters.as_str();
    Ok(((*long).to_owned(), (!value.is_empty()).then(|| value.trim_start_matches('=').to_owned())))
}

/// GPUs: their kind, if given, and their number.
pub(super) type Gpus = (Option<String>, u32);

/// Everything that a script requests.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) name: Option<String>,
    nodes: Option<(u32, u32)>,
    tasks: Option<u32>,
    tasks_per_node: Option<u32>,
    tasks_per_gpu: Option<u32>,
    gpus_per_node: Option<Gpus>,
    gpus_per_task: Option<Gpus>,
    gpus: Option<Gpus>,
    pub(super) cpus_per_task: Option<u32>,
    cpus_per_gpu: Option<u32>,
    memory_per_node: Option<u64>,
    memory_per_cpu: Option<u64>,
    memory_per_gpu: Option<u64>,
    pub(super) time_seconds: Option<u64>,
    pub(super) grace_seconds: Option<u64>,
    pub(super) is_never_requeued: bool,
    pub(super) folder: Option<String>,
    pub(super) envs: BTreeMap<String, String>,
    pub(super) array: Option<(Vec<u64>, Option<u32>)>,
    /// The option that leads to a queue, and the queue.
    pub(super) queue: Option<(String, String)>,
    /// Jobs that have to end before this one, and how.
    pub(super) after: BTreeMap<String, String>,
    pub(super) image: Option<String>,
    pub(super) volumes: Vec<String>,
    switches: Option<(u32, bool)>,
    segment: Option<u32>,
}

impl Asked {
    fn is_known(name: &str) -> bool {
        // Only whether the option is in the table matters here, not the value.
        !matches!(Asked::default().take(name, "1"), Ok(Some(note)) if note.starts_with("it isn't known"))
    }

    /// Adds an option. Returns a note if it isn't honoured, or only in another way.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<Option<String>, String> {
        match name {
            "job-name" => self.name = Some(value.to_owned()),
            "nodes" => self.nodes = Some(words::range(value)?),
            "ntasks" => self.tasks = Some(words::count(value)?),
            "ntasks-per-node" => self.tasks_per_node = Some(words::count(value)?),
            "gpus-per-node" => self.gpus_per_node = Some(gpus(&format!("gpu:{value}")).ok_or("it names no GPUs")?),
            "gpus-per-task" => self.gpus_per_task = Some(gpus(&format!("gpu:{value}")).ok_or("it names no GPUs")?),
            "gpus" => self.gpus = Some(gpus(&format!("gpu:{value}")).ok_or("it names no GPUs")?),
            "gres" => match gpus(value) {
                Some(found) => self.gpus_per_node = Some(found),
                None => return Ok(Some("only GPUs are honoured".to_owned())),
            },
            "cpus-per-task" => self.cpus_per_task = Some(words::count(value)?),
            "cpus-per-gpu" => self.cpus_per_gpu = Some(words::count(value)?),
            "ntasks-per-gpu" => self.tasks_per_gpu = Some(words::count(value)?),
            "mem" => self.memory_per_node = Some(words::mebibytes(value)?),
            "mem-per-cpu" => self.memory_per_cpu = Some(words::mebibytes(value)?),
            "mem-per-gpu" => self.memory_per_gpu = Some(words::mebibytes(value)?),
            "time" => self.time_seconds = words::time(value)?,
            "chdir" => self.folder = Some(value.to_owned()),
            "array" => self.array = Some(words::array(value)?),
            "segment" => self.segment = Some(words::count(value)?),
            "no-requeue" => self.is_never_requeued = true,
            "export" => return Ok(self.take_export(value)),
            "signal" => return self.take_signal(value),
            "switches" => return self.take_switches(value),
            "dependency" => words::dependencies(value, &mut self.after)?,
            "container-image" => self.image = Some(words::image(value)?),
            "container-mounts" => self.volumes.extend(value.split(',').map(str::to_owned)),
            _ => match refused::why(name) {
                Some(why) => return Err(why.to_owned()),
                None => return Ok(Some(not_honoured(name).to_owned())),
            },
        }
        Ok(None)
    }

    /// Adds an option that leads to a queue; returns the problem if another one leads elsewhere.
    pub(super) fn take_queue(&mut self, name: &str, value: &str, queue: &str) -> Option<String> {
        let option = format!("--{name}={value}");
        let (first, chosen) = self.queue.get_or_insert_with(|| (option.clone(), queue.to_owned()));
        (chosen != queue).then(|| {
            format!("{first} leads to queue {chosen}, but {option} to queue {queue}: name one with --set queue={queue}")
        })
    }

    /// Parses `ALL,LR=3e-4`.
    fn take_export(&mut self, value: &str) -> Option<String> {
        let mut left_out = Vec::new();
        for entry in value.split(',').filter(|entry| !entry.is_empty() && *entry != "ALL") {
            match entry.split_once('=') {
                Some((name, value)) => drop(self.envs.insert(name.to_owned(), value.to_owned())),
                None => left_out.push(entry),
            }
        }
        let left_out = (!left_out.is_empty()).then(|| left_out.join(", "));
        left_out
            .map(|names| format!("{names} not honoured: jobs have the control plane's environment and what envs says"))
    }

    /// Parses `B:USR1@90`.
    fn take_signal(&mut self, value: &str) -> Result<Option<String>, String> {
        let seconds = value.split_once('@').map_or(Ok(60), |(_, seconds)| words::count(seconds))?;
        self.grace_seconds = Some(u64::from(seconds));
        let note = format!("the signal is SIGTERM, {seconds} s before a job is killed, whyever it is stopped");
        Ok((!value.contains("TERM") && !value.contains("15")).then_some(note))
    }

    /// Parses `1`, `1@10:00`.
    fn take_switches(&mut self, value: &str) -> Result<Option<String>, String> {
        let (count, wait) = value.split_once('@').map_or((value, None), |(count, wait)| (count, Some(wait)));
        let count = words::count(count)?;
        if count == 1 {
            self.switches = Some((count, wait.is_some()));
            return Ok(None);
        }
        Ok(Some("only 1 is honoured; a gang is placed as close together as fits anyway".to_owned()))
    }

    /// Returns the minimum and maximum number of nodes.
    pub(super) fn nodes(&self) -> Result<(u32, u32), String> {
        if let Some(nodes) = self.nodes {
            return Ok(nodes);
        }
        let nodes = match (self.tasks, self.tasks_per_node) {
            (Some(tasks), Some(per_node)) if per_node > 0 => tasks.div_ceil(per_node),
            _ => 1,
        };
        Ok((nodes, nodes))
    }

    /// Returns the number of tasks on a node with so many GPUs.
    pub(super) fn tasks_per_node(&self, nodes: u32, gpus: u32) -> u32 {
        let spread = self.tasks.map(|tasks| tasks.div_ceil(nodes.max(1)));
        let by_gpu = self.tasks_per_gpu.map(|tasks| tasks.saturating_mul(gpus));
        self.tasks_per_node.or(by_gpu).or(spread).unwrap_or(1).max(1)
    }

    /// Returns the number of cores on a node with so many tasks and GPUs; 0 if none are requested.
    pub(super) fn cpus_per_node(&self, tasks: u32, gpus: u32) -> u32 {
        let by_gpu = self.cpus_per_gpu.map(|cpus| cpus.saturating_mul(gpus));
        by_gpu.or(self.cpus_per_task.map(|cpus| cpus.saturating_mul(tasks))).unwrap_or(0)
    }

    pub(super) fn gpus_per_node(&self, nodes: u32) -> Result<Option<Gpus>, String> {
        if let Some(gpus) = &self.gpus_per_node {
            return Ok(Some(gpus.clone()));
        }
        if let Some((kind, count)) = &self.gpus_per_task {
            return Ok(Some((kind.clone(), count.saturating_mul(self.tasks_per_node(nodes, 0)))));
        }
        let Some((kind, count)) = &self.gpus else { return Ok(None) };
        if nodes == 0 || !count.is_multiple_of(nodes) {
            return Err(format!("--gpus={count} aren't as many on each of {nodes} nodes"));
        }
        Ok(Some((kind.clone(), count / nodes)))
    }

    /// Returns the memory of each node; none if no memory, or all of it, was requested.
    pub(super) fn memory_mib(&self, cpus: u32, gpus: u32) -> Option<u64> {
        let per_cpu = self.memory_per_cpu.map(|memory| memory.saturating_mul(u64::from(cpus)));
        let per_gpu = self.memory_per_gpu.map(|memory| memory.saturating_mul(u64::from(gpus)));
        self.memory_per_node.or(per_cpu).or(per_gpu).filter(|memory| *memory > 0)
    }

    pub(super) fn topology(&self) -> Option<Value> {
        let segment = self.segment.map(|nodes| json!({"segment": {"nodes": nodes, "level": "rack"}}));
        segment.or(self.switches.map(|(_, may_wait)| json!({if may_wait { "prefer" } else { "require" }: "rack"})))
    }
}

/// Returns why an option isn't honoured.
fn not_honoured(name: &str) -> &'static str {
    match name {
        "partition" | "account" | "qos" => {
            "not honoured: the control plane has its own for all jobs (gangline up --launcher slurm)"
        }
        "output" | "error" => "not honoured: gangline logs shows what each rank prints",
        "open-mode" => "it is always so: logs go on from attempt to attempt",
        "requeue" => "it is always so, up to recovery.max_faults faults",
        "exclusive" => "not honoured: ask for all accelerators of a node to have it alone",
        "mail-type" | "mail-user" => "not honoured: a job file's notify says whom the job tells",
        "comment" | "wckey" | "nice" | "priority" | "input" | "oversubscribe" => "not honoured",
        "overcommit" | "contiguous" | "no-kill" | "spread-job" | "distribution" | "hint" | "threads-per-core"
        | "ntasks-per-core" | "ntasks-per-socket" | "gpu-bind" | "cpu-bind" | "mem-bind" | "tmp" => "not honoured",
        "parsable" | "quiet" | "verbose" | "wait" => "not honoured: say it on the command line of gangline submit",
        _ => "it isn't known here, and not honoured",
    }
}
