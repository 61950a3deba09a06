//! Reads Slurm's jobs from `squeue --json`.

use gangline_base::Timestamp;
use serde_json::Value;

use super::{gres, hostlist, json};
use crate::launcher::{AllocationEnd, LaunchError};

/// The program that prints this output.
const PROGRAM: &str = "squeue";
/// States in which a job holds its resources.
const HOLDING: [&str; 7] = ["RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "CONFIGURING", "RESIZING"];

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmJob {
    pub(super) id: u64,
    pub(super) comment: String,
    pub(super) stage: Stage,
    /// When its nodes were allocated, in whole seconds; none if they weren't.
    pub(super) allocated_at: Option<Timestamp>,
    /// When it ended, in whole seconds, if it has.
    pub(super) ended_at: Option<Timestamp>,
    /// Slurm has stopped its processes for a while (scontrol suspend, gang scheduling).
    pub(super) is_suspended: bool,
    /// How Slurm ended it, if it is over and Slurm did.
    pub(super) end: Option<AllocationEnd>,
    /// Why it is pending, by Slurm's word for it, and in more words if Slurm has them.
    pub(super) reason: String,
    pub(super) description: String,
    /// The nodes that it asks for by name while it is pending, and how many GPUs of each.
    pub(super) required: Vec<String>,
    pub(super) gpus_per_node: u32,
    /// The nodes it holds, with the number of GPUs on each.
    pub(super) nodes: Vec<(String, u32)>,
    /// CPU cores on each node.
    pub(super) cpus_per_node: u32,
    /// Memory on each node, if Slurm allocates memory.
    pub(super) memory_per_node_mib: u64,
}

impl SlurmJob {
    /// Reports whether it has no nodes yet.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Pending | Stage::Configuring)
    }

    /// Returns why it is pending, in as many words as Slurm has for it.
    pub(super) fn why(&self) -> &str {
        if self.description.is_empty() { &self.reason } else { &self.description }
    }
}

/// Stage of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Pending.
    Pending,
    /// Its nodes are being prepared.
    Configuring,
    /// Holds its nodes.
    Holding,
    /// Ended; the nodes it still holds are being cleaned up.
    Completing,
    /// Ended.
    Over,
}

/// Returns the jobs in the output.
pub(super) fn read(output: &[u8]) -> Result<Vec<SlurmJob>, LaunchError> {
    let document = json::parse(PROGRAM, output)?;
    json::list(PROGRAM, &document, "jobs")?.iter().map(read_one).collect()
}

fn read_one(job: &Value) -> Result<SlurmJob, LaunchError> {
    let unclear = |what: String| json::not_understood(PROGRAM, what);
    let id = json::number(&job["job_id"]).ok_or_else(|| unclear("a job has no job_id".to_owned()))?;
    let states = json::words(&job["job_state"]);
    let stage = stage(&states).ok_or_else(|| unclear(format!("job {id} has no job_state")))?;
    let hosts = Some(json::text(&job["nodes"])).filter(|nodes| !nodes.is_empty() && stage != Stage::Pending);
    let names =
        hosts.map_or(Ok(Vec::new()), hostlist::expand).map_err(|error| unclear(format!("job {id}: {error}")))?;
    let required = Some(json::text(&job["required_nodes"])).filter(|_| stage == Stage::Pending);
    let required = required.and_then(|nodes| hostlist::expand(nodes).ok()).unwrap_or_default();
    let count = u32::try_from(names.len()).unwrap_or(u32::MAX).max(1);
    let (cpus, memory) = allocated(json::text(&job["tres_alloc_str"]));
    let cpus = cpus.or_else(|| json::number(&job["cpus"])).unwrap_or(0);
    let gpus = gpus(job, names.len());
    // A job that was cancelled in the queue has a start, and no nodes. Slurm also says when it expects a pending job to start,
    // and a running one to end.
    let never_had_nodes = stage == Stage::Pending || stage == Stage::Over && names.is_empty();
    let time = |name: &str| json::number(&job[name]).filter(|seconds| *seconds > 0).and_then(timestamp);
    Ok(SlurmJob {
        id,
        comment: json::text(&job["comment"]).to_owned(),
        stage,
        allocated_at: time("start_time").filter(|_| !never_had_nodes),
        ended_at: time("end_time").filter(|_| matches!(stage, Stage::Completing | Stage::Over)),
        is_suspended: states.iter().any(|state| state == "SUSPENDED"),
        end: states.iter().filter(|_| stage == Stage::Over).find_map(|state| end(state)),
        reason: json::text(&job["state_reason"]).to_owned(),
        description: json::text(&job["state_description"]).to_owned(),
        required,
        gpus_per_node: gres::count(json::text(&job["tres_per_node"])),
        nodes: names.into_iter().zip(gpus).collect(),
        cpus_per_node: u32::try_from(cpus).unwrap_or(u32::MAX).div_ceil(count),
        memory_per_node_mib: memory.div_ceil(u64::from(count)),
    })
}

#[cfg(test)]
impl SlurmJob {
    /// Returns a job of this stage, for tests.
    pub(super) fn example(id: u64, stage: Stage) -> SlurmJob {
        SlurmJob {
            id,
            comment: "/data/pool/queue/job-1".to_owned(),
            stage,
            allocated_at: None,
            ended_at: None,
            is_suspended: false,
            end: None,
            reason: "Priority".to_owned(),
            description: String::new(),
            required: Vec::new(),
            gpus_per_node: 0,
            nodes: Vec::new(),
            cpus_per_node: 0,
            memory_per_node_mib: 0,
        }
    }
}

/// Returns a time from seconds since the Unix epoch.
fn timestamp(seconds: u64) -> Option<Timestamp> {
    seconds.checked_mul(1_000_000_000).map(Timestamp::from_unix_nanos)
}

fn stage(states: &[String]) -> Option<Stage> {
    let has = |name: &str| states.iter().any(|state| state == name);
    let holds = || states.iter().any(|state| HOLDING.contains(&state.as_str()));
    Some(match states.first()? {
        _ if has("COMPLETING") => Stage::Completing,
        _ if has("PENDING") => Stage::Pending,
        _ if has("CONFIGURING") => Stage::Configuring,
        _ if holds() => Stage::Holding,
        _ => Stage::Over,
    })
}

/// Returns how Slurm ended a job of this state, if it did (slurm.h, job_states).
fn end(state: &str) -> Option<AllocationEnd> {
    match state {
        "CANCELLED" => Some(AllocationEnd::Cancelled),
        "TIMEOUT" | "DEADLINE" => Some(AllocationEnd::TimeLimit),
        "PREEMPTED" => Some(AllocationEnd::Preempted),
        "NODE_FAIL" | "BOOT_FAIL" => Some(AllocationEnd::NodeFailed),
        _ => None,
    }
}

/// Returns the number of GPUs on each node: from Slurm's details, or as requested.
fn gpus(job: &Value, nodes: usize) -> Vec<u32> {
    let detailed = job["gres_detail"].as_array().map(Vec::as_slice).unwrap_or_default();
    if detailed.len() == nodes {
        return detailed.iter().map(|on_node| gres::count(json::text(on_node))).collect();
    }
    vec![gres::count(json::text(&job["tres_per_node"])); nodes]
}

/// Returns total CPUs and MiB of memory of all nodes, from `cpu=8,mem=2000M,node=2,billing=8`.
fn allocated(tres: &str) -> (Option<u64>, u64) {
    let value = |name: &str| tres.split(',').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    (value("cpu").and_then(|cpus| cpus.parse().ok()), value("mem").and_then(mebibytes).unwrap_or(0))
}

/// Parses `2000M`, `1.5G`, `4096` (MiB).
fn mebibytes(text: &str) -> Option<u64> {
    let (number, unit) = match text.char_indices().last()? {
        (at, unit) if unit.is_ascii_alphabetic() => (&text[..at], unit.to_ascii_uppercase()),
        _ => (text, 'M'),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    // Slurm prints at most two digits of a fraction.
    let hundredths: u64 = format!("{fraction:0<2}").get(..2)?.parse().ok()?;
    let hundredths = whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(hundredths)?;
    let times: u64 = match unit {
        'K' => return Some(hundredths / 102_400),
        'M' => 1,
        'G' => 1 << 10,
        'T' => 1 << 20,
        'P' => 1 << 30,
        _ => return None,
    };
    hundredths.checked_mul(times).map(|hundredths| hundredths / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of 22.05.8: a gang of two nodes, a job next to it, and a pending job.
    const OF_22_05: &str = include_str!("../../../tests/fixtures/squeue_22.05.json");
    /// The same jobs in the schema of v0.0.42 (24.11).
    const OF_24_11: &str = include_str!("../../../tests/fixtures/squeue_24.11.json");

    fn jobs(output: &str) -> Vec<SlurmJob> {
        read(output.as_bytes()).expect("it is understood")
    }

    #[test]
    fn jobs_of_both_forms_are_the_same() {
        let old = jobs(OF_22_05);
        assert_eq!(old, jobs(OF_24_11));
        let gang = SlurmJob {
            id: 1,
            comment: "/tmp/x/y".to_owned(),
            stage: Stage::Holding,
            allocated_at: timestamp(1_795_351_509),
            ended_at: None,
            is_suspended: false,
            end: None,
            reason: "None".to_owned(),
            description: String::new(),
            required: Vec::new(),
            gpus_per_node: 2,
            nodes: vec![("n2".to_owned(), 2), ("n3".to_owned(), 2)],
            cpus_per_node: 4,
            memory_per_node_mib: 0,
        };
        assert_eq!(old[0], gang);
        assert_eq!((old[1].nodes.as_slice(), old[1].cpus_per_node), (&[("n2".to_owned(), 1)][..], 3));
        assert_eq!((old[2].stage, old[2].reason.as_str(), old[2].nodes.len()), (Stage::Pending, "Resources", 0));
        assert_eq!((old[2].required.as_slice(), old[2].gpus_per_node), (&["n2".to_owned()][..], 3));
        assert_eq!(old[2].allocated_at, None, "the time when it is expected to start is no allocation");
    }

    #[test]
    fn a_job_that_was_cancelled_in_the_queue_was_never_allocated() {
        let mut document: Value = serde_json::from_str(OF_22_05).expect("it is JSON");
        let pending = &mut document["jobs"][2];
        (pending["job_state"], pending["end_time"]) = ("CANCELLED".into(), pending["start_time"].clone());
        let cancelled = jobs(&document.to_string()).remove(2);
        let found = (cancelled.stage, cancelled.allocated_at, cancelled.end);
        assert_eq!(found, (Stage::Over, None, Some(AllocationEnd::Cancelled)));
        assert!(cancelled.ended_at.is_some());
    }

    #[test]
    fn states_say_where_a_job_stands() {
        let check = |states: &[&str], expected: Stage| {
            let states: Vec<String> = states.iter().map(|state| (*state).to_owned()).collect();
            assert_eq!(stage(&states), Some(expected), "{states:?}");
        };
        check(&["RUNNING"], Stage::Holding);
        check(&["SUSPENDED"], Stage::Holding);
        check(&["RUNNING", "CONFIGURING"], Stage::Configuring);
        check(&["CANCELLED", "COMPLETING"], Stage::Completing);
        check(&["COMPLETING"], Stage::Completing);
        check(&["NODE_FAIL"], Stage::Over);
        check(&["PENDING"], Stage::Pending);
        assert_eq!(stage(&[]), None);
    }

    #[test]
    fn memory_is_read_in_all_units() {
        let check = |text: &str, expected: Option<u64>| assert_eq!(mebibytes(text), expected, "{text}");
        check("2000M", Some(2_000));
        check("1.50G", Some(1_536));
        check("2T", Some(2 << 20));
        check("4096K", Some(4));
        check("512", Some(512));
        check("many", None);
        check("", None);
    }

    #[test]
    fn a_job_without_a_state_is_refused() {
        let refused = read(OF_22_05.replace("job_state", "state_of_job").as_bytes()).expect_err("it has none");
        assert!(refused.to_string().ends_with("job 1 has no job_state"), "{refused}");
    }
}
