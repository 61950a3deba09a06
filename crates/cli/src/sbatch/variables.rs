//! The variables that Slurm sets for a script, as far as a rank knows their values (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES",
//! and srun(1)). What Slurm's launcher has left of its own goes first.

use super::quoted;

/// What the script asked for.
#[derive(Debug, Default)]
pub(super) struct Given<'a> {
    /// The job's name.
    pub(super) name: &'a str,
    /// Cores of each task, if asked for.
    pub(super) cpus_per_task: Option<u32>,
    /// GPUs of each node.
    pub(super) gpus: Option<u32>,
    /// The numbers of an array.
    pub(super) array: &'a [u64],
}

/// Values that torchrun's and Gangline's variables have.
const KNOWN: [(&str, &str); 12] = [
    ("SLURM_JOB_ID", "${SLURM_JOB_ID:-${GANGLINE_JOB_ID#job-}}"),
    ("SLURM_JOBID", "$SLURM_JOB_ID"),
    ("SLURM_NNODES", "$GROUP_WORLD_SIZE"),
    ("SLURM_JOB_NUM_NODES", "$GROUP_WORLD_SIZE"),
    ("SLURM_NODEID", "$GROUP_RANK"),
    ("SLURM_NTASKS", "$WORLD_SIZE"),
    ("SLURM_NPROCS", "$WORLD_SIZE"),
    ("SLURM_NTASKS_PER_NODE", "$LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "$RANK"),
    ("SLURM_LOCALID", "$LOCAL_RANK"),
    ("SLURMD_NODENAME", "${SLURMD_NODENAME:-$GANGLINE_NODE}"),
    ("SLURM_SUBMIT_DIR", "$PWD"),
];

/// Returns the shell command that exports them.
pub(super) fn export(given: &Given<'_>) -> String {
    let mut commands: Vec<String> = KNOWN.iter().map(|(name, value)| format!("export {name}=\"{value}\"")).collect();
    // Only of a gang of one node a rank knows all names.
    commands.push(
        "[ \"$GROUP_WORLD_SIZE\" != 1 ] || export SLURM_JOB_NODELIST=\"${SLURM_JOB_NODELIST:-$SLURMD_NODENAME}\""
            .to_owned(),
    );
    commands.push("[ -z \"$SLURM_JOB_NODELIST\" ] || export SLURM_NODELIST=\"$SLURM_JOB_NODELIST\"".to_owned());
    commands.push("export SLURM_RESTART_COUNT=$((GANGLINE_ATTEMPT - 1))".to_owned());
    commands.push(format!("export SLURM_JOB_NAME={}", quoted(given.name)));
    let (first, last) = (given.array.iter().min(), given.array.iter().max());
    let numbers = [
        ("SLURM_CPUS_PER_TASK", given.cpus_per_task.map(u64::from)),
        ("SLURM_GPUS_ON_NODE", given.gpus.map(u64::from)),
        ("SLURM_ARRAY_TASK_COUNT", first.map(|_| u64::try_from(given.array.len()).unwrap_or(u64::MAX))),
        ("SLURM_ARRAY_TASK_MIN", first.copied()),
        ("SLURM_ARRAY_TASK_MAX", last.copied()),
    ];
    commands.extend(numbers.iter().filter_map(|(name, value)| Some(format!("export {name}={}", (*value)?))));
    commands.join("; ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns the variables of a rank, as `sh` exports them.
    fn exported(given: &Given<'_>, environment: &[(&str, &str)], wanted: &str) -> String {
        let rank = [
            ("PATH", "/usr/bin:/bin"),
            ("GANGLINE_JOB_ID", "job-42"),
            ("GANGLINE_ATTEMPT", "3"),
            ("GANGLINE_NODE", "n2"),
            ("GROUP_WORLD_SIZE", "2"),
            ("GROUP_RANK", "1"),
            ("WORLD_SIZE", "16"),
            ("LOCAL_WORLD_SIZE", "8"),
            ("RANK", "11"),
            ("LOCAL_RANK", "3"),
        ];
        let script = format!("{}; env | sort | grep -E '^({wanted})='", export(given));
        let mut command = Command::new("sh");
        command.env_clear().envs(rank).envs(environment.iter().copied()).args(["-c", &script]);
        let output = command.output().expect("sh starts");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn a_rank_has_its_place_by_slurms_names() {
        let given = Given { name: "it's gpt", cpus_per_task: Some(12), gpus: Some(8), array: &[1, 4, 7] };
        let wanted = "SLURM_(PROCID|LOCALID|NODEID|NTASKS|NNODES|JOB_ID|JOB_NAME|RESTART_COUNT|CPUS_PER_TASK|GPUS_ON_NODE|\
                      ARRAY_TASK_(COUNT|MIN|MAX)|JOB_NODELIST)|SLURMD_NODENAME";
        let expected = "SLURMD_NODENAME=n2\nSLURM_ARRAY_TASK_COUNT=3\nSLURM_ARRAY_TASK_MAX=7\nSLURM_ARRAY_TASK_MIN=1\n\
                        SLURM_CPUS_PER_TASK=12\nSLURM_GPUS_ON_NODE=8\nSLURM_JOB_ID=42\nSLURM_JOB_NAME=it's gpt\nSLURM_LOCALID=3\n\
                        SLURM_NNODES=2\nSLURM_NODEID=1\nSLURM_NTASKS=16\nSLURM_PROCID=11\nSLURM_RESTART_COUNT=2\n";
        assert_eq!(exported(&given, &[], wanted), expected);
    }

    #[test]
    fn what_slurm_itself_says_goes_first_and_one_node_is_its_own_list() {
        let wanted = "SLURM_(JOB_ID|NODELIST|CPUS_PER_TASK)|SLURMD_NODENAME";
        let of_slurm = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "rack[1-2]"), ("SLURMD_NODENAME", "rack2")];
        let expected = "SLURMD_NODENAME=rack2\nSLURM_JOB_ID=7\nSLURM_NODELIST=rack[1-2]\n";
        assert_eq!(exported(&Given::default(), &of_slurm, wanted), expected);
        let alone = exported(&Given::default(), &[("GROUP_WORLD_SIZE", "1")], "SLURM_(NODELIST|JOB_NODELIST)");
        assert_eq!(alone, "SLURM_JOB_NODELIST=n2\nSLURM_NODELIST=n2\n");
    }
}
