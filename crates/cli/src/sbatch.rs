//! Translates a batch script with `#SBATCH` lines to a job file. Options that aren't honoured, or only in
//! another way, are reported with their line. Source of the options: sbatch(1).
//!
//! The script runs once on each node (or, with as many tasks a node as GPUs, once for each GPU), as `srun`
//! would run it; an `srun` in it is reported.

mod options;
mod queues;
mod refused;
mod variables;
mod words;

use serde_json::{Map, Value, json};

use options::{Asked, Directive, Gpus};
use queues::Place;
pub(crate) use queues::Queues;
use variables::Given;

/// A translated script, and notes for the user.
#[derive(Debug, PartialEq)]
pub(crate) struct Translated {
    /// JSON, which is YAML.
    pub(crate) job_file: String,
    /// One sentence with its line for each option that isn't honoured, or only in another way.
    pub(crate) notes: Vec<String>,
}

/// Reports whether a file is a script rather than a job file.
pub(crate) fn is_script(text: &str) -> bool {
    text.starts_with("#!")
}

/// What a script's words mean in this cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    /// The kind of a GPU without a type, if the cluster has only one.
    pub(crate) kind: Option<String>,
    /// The queues; none that are known if nobody is to be asked for one, because the command line names it.
    pub(crate) queues: Queues,
}

/// Translates a script.
///
/// # Errors
/// All invalid lines, and lines that request something a job can't be started without.
pub(crate) fn translate(text: &str, name: &str, cluster: &Cluster) -> Result<Translated, Vec<String>> {
    let mut asked = Asked::default();
    let (mut notes, mut problems) = (Vec::new(), Vec::new());
    for Directive { line, name, value } in options::of(text, &mut problems) {
        match cluster.queues.place_of(&name, &value) {
            Place::Queue(queue) => {
                problems
                    .extend(asked.take_queue(&name, &value, queue).map(|problem| format!("line {line}: {problem}")));
                continue;
            }
            Place::Unknown(note) => {
                notes.push(format!("line {line}: --{name}: {note}"));
                continue;
            }
            Place::NoOption => {}
        }
        match asked.take(&name, &value) {
            Ok(None) => {}
            Ok(Some(note)) => notes.push(format!("line {line}: --{name}: {note}")),
            Err(problem) => problems.push(format!("line {line}: --{name}: {problem}")),
        }
    }
    let srun = text.lines().zip(1..).find(|(line, _)| line.split_whitespace().any(|word| word == "srun"));
    notes.extend(srun.map(|(_, line)| {
        format!("line {line}: srun: the script runs on each node already; take srun out, or it starts as many steps as nodes")
    }));
    let document =
        document(text, name, cluster.kind.as_deref(), asked, &mut notes).map_err(|problem| problems.push(problem));
    match document {
        Ok(document) if problems.is_empty() => Ok(Translated { job_file: document.to_string(), notes }),
        _ => Err(problems),
    }
}

/// Returns the job file.
fn document(
    text: &str,
    name: &str,
    kind: Option<&str>,
    asked: Asked,
    notes: &mut Vec<String>,
) -> Result<Value, String> {
    let mut job = Map::new();
    let mut set = |key: &str, value: Value| drop(job.insert(key.to_owned(), value));
    set("name", json!(asked.name.as_deref().unwrap_or(name)));
    if let Some((_, queue)) = &asked.queue {
        set("queue", json!(queue));
    }
    let nodes = asked.nodes()?;
    set("num_nodes", if nodes.0 == nodes.1 { json!(nodes.0) } else { json!({"min": nodes.0, "max": nodes.1}) });
    let gpus = asked.gpus_per_node(nodes.0)?;
    let tasks = asked.tasks_per_node(nodes.0, gpus.as_ref().map_or(0, |(_, count)| *count));
    let cpus = asked.cpus_per_node(tasks, gpus.as_ref().map_or(0, |(_, count)| *count));
    set("resources", resources(&asked, (tasks, cpus), gpus.as_ref(), kind, notes)?);
    let count = gpus.as_ref().map_or(tasks, |(_, count)| *count);
    set("launch", json!(if tasks > 1 && tasks == count { "accelerator" } else { "node" }));
    if tasks > 1 && tasks != count {
        notes.push(format!(
            "{tasks} tasks on a node with {count} accelerator(s): the script runs once on each node instead"
        ));
    }
    if let Some(seconds) = asked.time_seconds {
        set("time_limit", json!(format!("{seconds}s")));
    }
    if let Some(seconds) = asked.grace_seconds {
        set("checkpoint", json!({"grace": format!("{seconds}s")}));
    }
    if asked.is_never_requeued {
        set("recovery", json!({"max_faults": 0}));
    }
    if let Some(folder) = &asked.folder {
        set("workdir", json!(folder));
    }
    if !asked.envs.is_empty() {
        set("envs", json!(asked.envs));
    }
    if !asked.after.is_empty() {
        set("after", json!(asked.after));
    }
    if asked.image.is_none() && !asked.volumes.is_empty() {
        return Err("--container-mounts without --container-image: name the image too".to_owned());
    }
    if let Some(image) = &asked.image {
        set("image", json!(image));
    }
    if !asked.volumes.is_empty() {
        set("volumes", json!(asked.volumes));
    }
    if let Some(topology) = asked.topology() {
        set("topology", topology);
    }
    if let Some((ids, parallel)) = &asked.array {
        set("sweep", sweep(ids, *parallel));
    }
    let given = Given {
        name: asked.name.as_deref().unwrap_or(name),
        cpus_per_task: asked.cpus_per_task,
        gpus: gpus.map(|(_, count)| count),
        array: asked.array.as_ref().map_or(&[], |(ids, _)| ids),
    };
    let command = format!("{}; {}", variables::export(&given), run(text, name));
    set("run", json!(command));
    Ok(Value::Object(job))
}

/// Returns what a node of the job has: accelerators, and cores and memory if any are requested.
fn resources(
    asked: &Asked,
    (tasks, cpus): (u32, u32),
    gpus: Option<&Gpus>,
    kind: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<Value, String> {
    let mut resources = Map::new();
    let accelerators = match gpus {
        None => format!("cpu:{}", cpus.max(tasks)),
        Some((Some(kind), count)) => format!("{kind}:{count}"),
        Some((None, count)) => {
            let kind = kind.ok_or("the GPUs have no type: say which, as in --gpus-per-node=h100:8")?;
            notes.push(format!("the GPUs have no type: {kind} is taken, the only one that there is"));
            format!("{kind}:{count}")
        }
    };
    resources.insert("accelerators".to_owned(), json!(accelerators));
    if gpus.is_some() && cpus > 0 {
        resources.insert("cpus".to_owned(), json!(cpus));
    }
    if let Some(memory) = asked.memory_mib(cpus.max(tasks), gpus.map_or(0, |(_, count)| *count)) {
        resources.insert("memory".to_owned(), json!(format!("{memory}MiB")));
    }
    Ok(Value::Object(resources))
}

/// Returns the sweep that an array becomes.
fn sweep(ids: &[u64], parallel: Option<u32>) -> Value {
    let mut sweep = json!({"parameters": {"SLURM_ARRAY_TASK_ID": ids}});
    if let Some(parallel) = parallel {
        sweep["max_parallel"] = json!(parallel);
    }
    sweep
}

/// Returns the script as one command: its present contents, as with sbatch, whatever becomes of the file.
fn run(text: &str, name: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    let interpreter = first.strip_prefix("#!").map(str::trim).filter(|words| !words.is_empty()).unwrap_or("/bin/bash");
    format!("exec {interpreter} -c {} {}", quoted(text), quoted(name))
}

/// Returns a text as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn h100() -> Cluster {
        Cluster { kind: Some("H100".to_owned()), queues: Queues::default() }
    }

    fn translated(lines: &str) -> (Value, Vec<String>) {
        let script = format!("#!/bin/bash\n{lines}\necho \"it's on\"\n");
        let Translated { job_file, notes } = translate(&script, "train", &h100()).expect("it can be translated");
        (serde_json::from_str(&job_file).expect("it is JSON"), notes)
    }

    /// Checks options: the key they lead to, and its value.
    fn check(lines: &str, key: &str, expected: Value) {
        let (job, _) = translated(lines);
        let found = key.split('.').fold(&job, |value, key| &value[key]);
        assert_eq!(*found, expected, "{lines}: {job:#}");
    }

    #[test]
    fn what_is_asked_for_becomes_a_job_file() {
        check("#SBATCH --job-name=gpt", "name", json!("gpt"));
        check("", "name", json!("train"));
        check("#SBATCH -N 4", "num_nodes", json!(4));
        check("#SBATCH --nodes=4-8", "num_nodes", json!({"min": 4, "max": 8}));
        check("#SBATCH --ntasks=16 --ntasks-per-node=8 --gpus-per-node=8", "num_nodes", json!(2));
        check("#SBATCH --gpus-per-node=a100:8", "resources.accelerators", json!("A100:8"));
        check("#SBATCH --gres=gpu:nvidia_h100_80gb_hbm3:8", "resources.accelerators", json!("H100:8"));
        check("#SBATCH --gres gpu:8", "resources.accelerators", json!("H100:8"));
        check("#SBATCH -N2 -G 16", "resources.accelerators", json!("H100:8"));
        check("#SBATCH --ntasks-per-node=8 --gpus-per-task=1", "resources.accelerators", json!("H100:8"));
        check("#SBATCH -c 4", "resources.accelerators", json!("cpu:4"));
        check("#SBATCH -c 12 --ntasks-per-node=8 --gres=gpu:8", "resources.cpus", json!(96));
        check("#SBATCH --mem=200G", "resources.memory", json!("204800MiB"));
        check("#SBATCH --mem-per-cpu=2G -c 4", "resources.memory", json!("8192MiB"));
        check("#SBATCH --mem=1GB", "resources.memory", json!("1024MiB"));
        check("#SBATCH --mem=0", "resources.memory", Value::Null);
        check("#SBATCH --gres=gpu:8 --cpus-per-gpu=12", "resources.cpus", json!(96));
        check("#SBATCH --gres=gpu:8 --ntasks-per-gpu=1", "launch", json!("accelerator"));
        check(
            "#SBATCH -d afterok:12:13,afterany:job-14",
            "after",
            json!({"12": "success", "13": "success", "job-14": "any"}),
        );
        check("#SBATCH --dependency=afternotok:7", "after", json!({"7": "failure"}));
        check(
            "#SBATCH --container-image=nvcr.io#nvidia/pytorch:25.01-py3",
            "image",
            json!("nvcr.io/nvidia/pytorch:25.01-py3"),
        );
        let mounts = "#SBATCH --container-image=docker://python:3.12 --container-mounts=/data:/data:ro,/scratch";
        check(mounts, "volumes", json!(["/data:/data:ro", "/scratch"]));
        check(mounts, "image", json!("python:3.12"));
        check("#SBATCH --ntasks-per-node=8 --gres=gpu:8", "launch", json!("accelerator"));
        check("#SBATCH --gres=gpu:8", "launch", json!("node"));
        check("#SBATCH --time=1-12:30:00", "time_limit", json!("131400s"));
        check("#SBATCH -t 90", "time_limit", json!("5400s"));
        check("#SBATCH -t 02:00:00", "time_limit", json!("7200s"));
        check("#SBATCH --signal=B:USR1@90", "checkpoint.grace", json!("90s"));
        check("#SBATCH --no-requeue", "recovery.max_faults", json!(0));
        check("#SBATCH --chdir=/work", "workdir", json!("/work"));
        check("#SBATCH --export=ALL,LR=3e-4", "envs", json!({"LR": "3e-4"}));
        check("#SBATCH --switches=1", "topology.require", json!("rack"));
        check("#SBATCH --switches=1@10:00", "topology.prefer", json!("rack"));
        check("#SBATCH -N 8 --segment=4", "topology.segment", json!({"nodes": 4, "level": "rack"}));
        check(
            "#SBATCH --array=1-7:3,20%2",
            "sweep",
            json!({
                "parameters": {"SLURM_ARRAY_TASK_ID": [1, 4, 7, 20]}, "max_parallel": 2
            }),
        );
    }

    #[test]
    fn the_script_goes_along_whole() {
        let (job, notes) = translated("#SBATCH -N 1");
        let run = job["run"].as_str().expect("a command");
        let output = std::process::Command::new("sh").args(["-c", run]).output().expect("sh starts");
        assert_eq!((String::from_utf8_lossy(&output.stdout).as_ref(), notes.len()), ("it's on\n", 0), "{run}");
    }

    #[test]
    fn what_is_not_honoured_is_said_with_its_line() {
        let (_, notes) = translated(
            "#SBATCH --exclusive\n#SBATCH -p gpus   # the big ones\n#SBATCH --output=%x_%j.out --open-mode=append\n\
             #SBATCH --comment=x\n#SBATCH --nice\n#SBATCH --frobnicate=1\nsrun python train.py\n#SBATCH -N 9",
        );
        let check = |place: usize, expected: &str| {
            assert!(notes.get(place).is_some_and(|note| note.starts_with(expected)), "{expected} in {notes:#?}");
        };
        check(0, "line 2: --exclusive: ");
        check(1, "line 3: --partition: ");
        check(2, "line 4: --output: ");
        check(3, "line 4: --open-mode: ");
        check(4, "line 5: --comment: ");
        check(5, "line 6: --nice: ");
        check(6, "line 7: --frobnicate: it isn't known");
        check(7, "line 8: srun: ");
        assert_eq!(notes.len(), 8, "what follows the first command is no option: {notes:#?}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_line() {
        let check = |lines: &str, expected: &str| {
            let script = format!("#!/bin/sh\n{lines}\n");
            let problems = translate(&script, "train", &Cluster::default()).expect_err(lines);
            assert!(problems.iter().any(|problem| problem.starts_with(expected)), "{lines}: {problems:?}");
        };
        check("#SBATCH --nodes=many", "line 2: --nodes: \"many\"");
        check("#SBATCH --time=soon", "line 2: --time: \"soon\"");
        for dependency in
            ["singleton", "after:42", "afterok:42?afterany:7", "afterok", "afterok:x", "afterok:1,afterany:1"]
        {
            check(&format!("#SBATCH --dependency={dependency}"), "line 2: --dependency: ");
        }
        for option in
            ["--hold", "-H", "-b now+1hour", "-x n7", "-w n7", "-C a100", "-L matlab", "--reservation=r", "-M other"]
        {
            let long = options::of(&format!("#SBATCH {option}"), &mut Vec::new()).remove(0).name;
            check(&format!("#SBATCH {option}"), &format!("line 2: --{long}: "));
        }
        check("#SBATCH --container-image=dockerd://torch", "line 2: --container-image: ");
        check("#SBATCH --container-mounts=/data:/data", "--container-mounts without --container-image");
        check("#SBATCH --array=5-1", "line 2: --array: ");
        check("#SBATCH --array=0-9999999", "line 2: --array: ");
        check("#SBATCH --gres=gpu:8", "the GPUs have no type");
        check("#SBATCH --nodes", "line 2: --nodes has no value");
        check("#SBATCH --comment='half", "line 2: a quote is open");
        check("#SBATCH -N 3 -G 16", "--gpus=16 aren't as many on each of 3 nodes");
    }
}
