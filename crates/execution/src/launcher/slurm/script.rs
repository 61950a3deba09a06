//! A gang as a Slurm job: the arguments of `sbatch`, and the script, with one step on each node that runs a
//! supervisor.
//!
//! The job is pinned to exactly the nodes that the engine chose (`--nodelist` of as many as `--nodes`). Slurm
//! chooses which of a node's GPUs it gets, so the step passes its CUDA_VISIBLE_DEVICES on. Sources:
//! sbatch(1), srun(1).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::gres::Gpus;
use super::limits::JobLimits;
use super::nodes::SlurmNode;
use crate::protocol::SupervisorSpec;
use crate::supervisor::{EXIT_CODE_FILE, STOPPED, STOPPED_CODE};

/// The file in a share's folder that holds the exit code of its step, once that is over.
pub(super) const STEP_END_FILE: &str = "step-ended";
/// Prefix of steps' names.
pub(super) const STEP_PREFIX: &str = "gangline";
/// The most letters of a job's name.
const NAME_LETTERS_MAX: usize = 100;
/// The kind of a CPU slot.
const CPU_KIND: &str = "cpu";
/// Slurm's own time limit is this much longer than the control plane's, which lets a job save first.
pub(super) const TIME_LIMIT_MARGIN: Duration = Duration::from_mins(10);

/// Account, partition and further options of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobOptions {
    /// The partition; none: Slurm's default.
    pub partition: Option<String>,
    /// The account.
    pub account: Option<String>,
    /// The quality of service.
    pub qos: Option<String>,
    /// Additional arguments for sbatch, passed unchanged.
    pub sbatch: Vec<String>,
}

/// Resources that a gang takes of each of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    /// The argument of `--gres`; none on nodes with CPU slots.
    pub(super) gres: Option<String>,
    pub(super) cpus: u32,
    pub(super) memory_mib: u64,
}

impl Slice {
    /// Returns all of a node.
    pub(super) fn whole(node: &SlurmNode) -> Slice {
        let gres = node.gpus.as_ref().map(|gpus| Gpus::request(gpus.slurm_type.as_deref(), gpus.count as usize));
        Slice { gres, cpus: node.cpus, memory_mib: node.memory_mib }
    }

    /// Returns the resources that a gang requests. For CPUs or memory that it doesn't request, it gets the
    /// share of the free amount that corresponds to its share of the free accelerators, so that the next gang
    /// finds its part. `nodes` are the gang's.
    pub(super) fn of(gang: &[SupervisorSpec], nodes: &[&SlurmNode]) -> Slice {
        let Some(spec) = gang.first() else { return Slice { gres: None, cpus: 1, memory_mib: 1 } };
        let devices = u32::try_from(spec.devices.len()).unwrap_or(u32::MAX);
        let is_cpu = spec.device_kind == CPU_KIND;
        let cpus = nodes.iter().map(|node| {
            let part = part(node, devices, u64::from(node.cpus), u64::from(node.cpus_used));
            // Slurm allocates whole cores: rounding up would take the rest from the next gang.
            let part = u32::try_from(part).unwrap_or(u32::MAX);
            (part - part % node.threads_per_core).max(1)
        });
        let memory = nodes.iter().map(|node| part(node, devices, node.memory_mib, node.memory_used_mib).max(1));
        let (cpus, memory) = (cpus.min().unwrap_or(1), memory.min().unwrap_or(1));
        let asked_cpus = if is_cpu { spec.cpus.max(devices) } else { spec.cpus };
        let types = || nodes.iter().filter_map(|node| node.gpus.as_ref()?.slurm_type.as_deref());
        let is_one_type = types().count() == nodes.len() && types().all(|other| Some(other) == types().next());
        let slurm_type = types().next().filter(|_| is_one_type);
        Slice {
            gres: (!is_cpu).then(|| Gpus::request(slurm_type, spec.devices.len())),
            cpus: if asked_cpus > 0 { asked_cpus } else { cpus },
            memory_mib: if spec.memory_bytes > 0 { spec.memory_bytes.div_ceil(1 << 20) } else { memory },
        }
    }
}

/// Returns the part of a node's CPUs or memory that corresponds to this number of its accelerators.
fn part(node: &SlurmNode, devices: u32, total: u64, used: u64) -> u64 {
    let (_, accelerators) = node.accelerators();
    let free = accelerators.saturating_sub(node.accelerators_used());
    // If the gang's accelerators aren't free yet, another gang is just leaving them.
    let (amount, of) = if free >= devices { (total.saturating_sub(used), free) } else { (total, accelerators) };
    amount.saturating_mul(u64::from(devices)) / u64::from(of.max(1))
}

/// Returns the arguments of `sbatch`; the script's path comes last.
pub(super) fn sbatch(
    gang: &[SupervisorSpec],
    slice: &Slice,
    options: &JobOptions,
    (folder, limits): (&Path, &JobLimits),
) -> Vec<String> {
    let nodes: Vec<&str> = gang.iter().map(|spec| spec.node.as_str()).collect();
    let count = nodes.len();
    let mut arguments = vec![
        "--parsable".to_owned(),
        "--no-requeue".to_owned(),
        format!("--job-name={}", gang.first().map(job_name).unwrap_or_default()),
        format!("--comment={}", folder.display()),
        format!("--nodes={count}"),
        format!("--ntasks={count}"),
        "--ntasks-per-node=1".to_owned(),
        format!("--nodelist={}", nodes.join(",")),
        format!("--cpus-per-task={}", slice.cpus),
        format!("--mem={}M", slice.memory_mib),
        format!("--chdir={}", folder.display()),
        format!("--output={}", folder.join("slurm.log").display()),
        "--open-mode=append".to_owned(),
    ];
    arguments.extend(slice.gres.as_ref().map(|gres| format!("--gres={gres}")));
    let limit = gang.first().and_then(|spec| spec.time_limit_ms).map(Duration::from_millis);
    arguments.extend(limits.time(limit).map(|time| format!("--time={time}")));
    arguments.extend(account(options));
    arguments
}

/// Returns the arguments of `sbatch` for account, partition and quality of service.
pub(super) fn account(options: &JobOptions) -> Vec<String> {
    let named = [("partition", &options.partition), ("account", &options.account), ("qos", &options.qos)];
    let named = named.iter().filter_map(|(name, value)| Some(format!("--{name}={}", value.as_ref()?)));
    named.chain(options.sbatch.iter().cloned()).collect()
}

/// Returns a job's name in Slurm: `train (job-7)`.
fn job_name(spec: &SupervisorSpec) -> String {
    let name: String = spec.job_name.chars().filter(|letter| !letter.is_control()).take(NAME_LETTERS_MAX).collect();
    format!("{name} (job-{})", spec.job)
}

/// Returns the name by which a share's step is found: `gangline-job-7-attempt-2-n1`.
pub(super) fn step_name(share: &Path) -> String {
    let parts: Vec<_> = share.components().rev().take(3).map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.iter().rev().fold(STEP_PREFIX.to_owned(), |name, part| format!("{name}-{part}"))
}

/// Returns the script of a gang's own job, or the one that starts supervisors as steps of the existing job
/// `within`.
pub(super) fn script(gang: &[SupervisorSpec], slice: &Slice, program: &Path, within: Option<u64>) -> String {
    let is_own_job = within.is_none();
    let mut text = String::from("#!/bin/bash\n# Written by Gangline: a supervisor on each node of a gang.\n");
    if is_own_job {
        // An srun that is told to terminate waits for its step, and for long if the step's node is lost.
        text.push_str("trap 'kill -KILL 0' TERM\n");
    }
    let gres = slice.gres.as_ref().map(|gres| format!(" --gres={}", quoted(gres))).unwrap_or_default();
    let within = within.map(|job| format!(" --jobid={job} --immediate=30 --mem=0 --cpu-bind=none")).unwrap_or_default();
    text.push_str(&format!(
        "step() {{\n  srun{within} --nodelist=\"$1\" --job-name=\"$2\" --nodes=1 --ntasks=1 --overlap --cpus-per-task={}{gres} \\\n    \
         --input=none --output=\"$3/supervisor.log\" --open-mode=append /bin/bash -c {} gangline \"$3\"\n  \
         echo $? > \"$3/{STEP_END_FILE}\"\n}}\n",
        slice.cpus,
        quoted(&step(program)),
    ));
    for spec in gang {
        let folder = spec.folder.to_string_lossy();
        text.push_str(&format!(
            "step {} {} {} &\n",
            quoted(&spec.node),
            quoted(&step_name(&spec.folder)),
            quoted(&folder)
        ));
    }
    text.push_str("wait\n");
    if is_own_job {
        text.push_str(&exit(gang));
    }
    text
}

/// Returns the end of a gang's script, by which its Slurm job ends as the gang did: with the code of the share that failed, since others
/// were only told to stop then; or as cancelled if the control plane told all of them. Slurm may be out of reach
/// by then: `scancel` gets ten seconds, and SIGTERM ends the script while it waits.
fn exit(gang: &[SupervisorSpec]) -> String {
    let shares: Vec<String> = gang.iter().map(|spec| quoted(&spec.folder.to_string_lossy())).collect();
    format!(
        "code=0 how={STOPPED}\nfor share in {}; do\n  \
         {{ read -r ended told < \"$share/{EXIT_CODE_FILE}\"; }} 2>/dev/null || ended=1\n  \
         [ \"$ended\" = 0 ] || [ \"$told\" = {STOPPED} ] || how=\n  \
         case $code in 0|{STOPPED_CODE}) [ \"$ended\" = 0 ] || code=$ended ;; esac\ndone\n\
         [ \"$code$how\" != {STOPPED_CODE}{STOPPED} ] || {{ timeout 10 scancel \"$SLURM_JOB_ID\" & wait \"$!\"; }}\nexit \"$code\"\n",
        shares.join(" ")
    )
}

/// Returns the shell script of a step; its first argument is the share's folder. Of Slurm's variables a rank
/// keeps those that tell where it runs; the others describe the step, not the gang, and mislead trainers that
/// look for them.
fn step(program: &Path) -> String {
    format!(
        "cd \"$1\" || exit; \
         export CUDA_VISIBLE_DEVICES=\"${{CUDA_VISIBLE_DEVICES:-${{SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}}}}\"; \
         for name in ${{!SLURM_@}}; do \
         case $name in SLURM_JOB_ID|SLURM_JOB_NODELIST|SLURM_CONF) ;; *) unset \"$name\" ;; esac; done; \
         exec {} supervise \"$1/spec.json\"",
        quoted(&program.to_string_lossy())
    )
}

/// Quotes a text for a shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Returns the gang's folder, the parent of its shares' folders.
pub(super) fn gang_folder(share: &Path) -> PathBuf {
    share.parent().unwrap_or(share).to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::protocol::PROTOCOL_VERSION;

    /// Output of 22.05.8 for four nodes.
    const NODES: &str = include_str!("../../../tests/fixtures/sinfo_22.05.json");

    fn nodes() -> Vec<SlurmNode> {
        super::super::nodes::read(NODES.as_bytes()).expect("it is understood").expect("it has nodes")
    }

    fn gang(kind: &str, devices: u32, nodes: &[&str]) -> Vec<SupervisorSpec> {
        let spec = |node: &&str| SupervisorSpec {
            version: PROTOCOL_VERSION,
            job: 7,
            job_name: "train".to_owned(),
            queue: "default".to_owned(),
            attempt: 2,
            epoch: 7,
            node: (*node).to_owned(),
            node_rank: 0,
            node_count: 2,
            ranks_per_node: devices,
            devices: (0..devices).collect(),
            device_kind: kind.to_owned(),
            keeps_visible_devices: true,
            cpus: 0,
            memory_bytes: 0,
            time_limit_ms: None,
            workdir: "/work".into(),
            envs: BTreeMap::new(),
            setup: None,
            container: None,
            run: "true".to_owned(),
            checkpoint_dir: None,
            faults: 0,
            max_faults: 10,
            metric: None,
            high_water_step: 0,
            restore_below: None,
            skip_data_through: None,
            notice_source: None,
            agent: None,
            token: "secret".to_owned(),
            endpoint_file: "/data/endpoint".into(),
            folder: PathBuf::from("/data/it's/job-7/attempt-2").join(node),
            address: "127.0.0.1".to_owned(),
            heartbeat_ms: 500,
            orphan_after_ms: 600_000,
            hang_timeout_ms: None,
            end_wait_ms: None,
            log_bytes_max: 1 << 20,
        };
        nodes.iter().map(spec).collect()
    }

    fn slice(gang: &[SupervisorSpec], names: &[&str]) -> Slice {
        let nodes = nodes();
        let chosen: Vec<&SlurmNode> = nodes.iter().filter(|node| names.contains(&node.name.as_str())).collect();
        Slice::of(gang, &chosen)
    }

    #[test]
    fn a_gang_takes_of_cpus_and_memory_as_it_takes_of_gpus() {
        // n1 is empty; on n2 others hold 3 of 4 GPUs and 7 of 16 CPUs.
        let expected = |gres: &str, cpus, memory_mib| Slice { gres: Some(gres.to_owned()), cpus, memory_mib };
        assert_eq!(slice(&gang("H100", 2, &["n1"]), &["n1"]), expected("gpu:h100:2", 8, 2_000));
        assert_eq!(slice(&gang("H100", 1, &["n2"]), &["n2"]), expected("gpu:h100:1", 9, 4_000));
        assert_eq!(slice(&gang("H100", 1, &["n1", "n2"]), &["n1", "n2"]), expected("gpu:h100:1", 4, 1_000));
        let asking = |spec: SupervisorSpec| SupervisorSpec { cpus: 3, memory_bytes: 5 << 20, ..spec };
        let gang_that_asks: Vec<_> = gang("H100", 4, &["n1"]).into_iter().map(asking).collect();
        assert_eq!(slice(&gang_that_asks, &["n1"]), expected("gpu:h100:4", 3, 5));
        let cpus = Slice { gres: None, cpus: 6, memory_mib: 1 };
        assert_eq!(Slice { memory_mib: 1, ..slice(&gang("cpu", 6, &["n1"]), &["n1"]) }, cpus);
    }

    #[test]
    fn sbatch_is_told_exactly_which_nodes() {
        let mut gang = gang("H100", 2, &["n3", "n4"]);
        gang[0].time_limit_ms = Some(90_000);
        let options = JobOptions {
            partition: Some("main".to_owned()),
            account: None,
            qos: Some("high".to_owned()),
            sbatch: vec!["--reservation=x".to_owned()],
        };
        let slice = Slice { gres: Some("gpu:h100:2".to_owned()), cpus: 8, memory_mib: 2_000 };
        let arguments =
            sbatch(&gang, &slice, &options, (Path::new("/data/jobs/job-7/attempt-2"), &JobLimits::default()));
        for expected in [
            "--nodes=2",
            "--nodelist=n3,n4",
            "--ntasks-per-node=1",
            "--gres=gpu:h100:2",
            "--cpus-per-task=8",
            "--mem=2000M",
            "--no-requeue",
            "--job-name=train (job-7)",
            "--comment=/data/jobs/job-7/attempt-2",
            "--time=12",
            "--partition=main",
            "--qos=high",
            "--reservation=x",
        ] {
            assert!(arguments.iter().any(|argument| argument == expected), "{expected} in {arguments:?}");
        }
        assert!(!arguments.iter().any(|argument| argument.starts_with("--account")), "{arguments:?}");
    }

    fn executable(folder: &Path, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join(name);
        std::fs::write(&path, text).expect("it is writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    /// Runs the script with a fake srun: no Slurm is needed to see that each supervisor starts in its folder,
    /// with its devices and without Slurm's variables.
    #[test]
    fn the_script_starts_a_supervisor_on_each_node() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut gang = gang("H100", 2, &["n1", "n2"]);
        for spec in &mut gang {
            spec.folder = folder.path().join("it's").join(&spec.node);
            std::fs::create_dir_all(&spec.folder).expect("it is writable");
        }
        executable(
            folder.path(),
            "srun",
            "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nSLURM_STEP_GPUS=2,3 SLURM_NTASKS=1 SLURM_JOB_ID=42 \"$@\"\n",
        );
        let says =
            "#!/bin/bash\necho \"$1 $2 $CUDA_VISIBLE_DEVICES $SLURM_JOB_ID [$SLURM_NTASKS] $PWD\" > said; exit 3\n";
        let program = executable(folder.path(), "gangline", says);
        let slice = Slice { gres: Some("gpu:2".to_owned()), cpus: 1, memory_mib: 1 };
        let path = executable(folder.path(), "slurm.sh", &script(&gang, &slice, &program, None));
        let search = format!("{}:/usr/bin:/bin", folder.path().display());
        let status = std::process::Command::new(path).env_clear().env("PATH", search).status().expect("bash starts");
        assert_eq!(status.code(), Some(1), "nobody said how it ended");
        for spec in &gang {
            let shown = spec.folder.display();
            let said = std::fs::read_to_string(spec.folder.join("said")).expect("it was started");
            assert_eq!(said, format!("supervise {shown}/spec.json 2,3 42 [] {shown}\n"));
            let ended = std::fs::read_to_string(spec.folder.join(STEP_END_FILE)).expect("it has ended");
            assert_eq!(ended, "3\n");
        }
    }

    #[test]
    fn a_script_ends_with_the_code_of_the_share_that_failed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut gang = gang("H100", 2, &["n1", "n2"]);
        for spec in &mut gang {
            spec.folder = folder.path().join(&spec.node);
            std::fs::create_dir_all(&spec.folder).expect("it is writable");
        }
        let cancelled = folder.path().join("cancelled");
        executable(folder.path(), "scancel", &format!("#!/bin/bash\necho \"$@\" > '{}'\n", cancelled.display()));
        let check = |codes: [&str; 2], expected: i32| {
            for (spec, code) in gang.iter().zip(codes) {
                std::fs::write(spec.folder.join(EXIT_CODE_FILE), code).expect("it is writable");
            }
            let mut script = std::process::Command::new("/bin/bash");
            script
                .args(["-c", &exit(&gang)])
                .env_clear()
                .env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()))
                .env("SLURM_JOB_ID", "42");
            let status = script.status().expect("bash starts");
            assert_eq!(status.code(), Some(expected), "{codes:?}");
            let whom = std::fs::read_to_string(&cancelled).ok();
            let _ = std::fs::remove_file(&cancelled);
            whom
        };
        for (codes, expected) in [
            (["0\n", "0\n"], 0),
            (["143 stopped\n", "7\n"], 7),
            (["7\n", "143 stopped\n"], 7),
            (["143\n", "143\n"], 143),
            (["143\n", "143 stopped\n"], 143),
            (["143 stopped\n", "143\n"], 143),
            (["0\n", "137\n"], 137),
        ] {
            assert_eq!(check(codes, expected), None, "{codes:?}: Slurm says itself how it ended, or it failed");
        }
        for codes in [["143 stopped\n", "143 stopped\n"], ["0\n", "143 stopped\n"]] {
            assert_eq!(check(codes, 143).as_deref(), Some("42\n"), "{codes:?}");
        }
        std::fs::remove_file(gang[1].folder.join(EXIT_CODE_FILE)).expect("it was written");
        let status = std::process::Command::new("bash").args(["-c", &exit(&gang)]).status().expect("bash starts");
        assert_eq!(status.code(), Some(1), "the other supervisor is gone");
    }

    #[test]
    fn a_script_that_is_told_to_terminate_does_not_wait_for_a_lost_node() {
        use std::os::unix::process::CommandExt;
        let folder = tempfile::tempdir().expect("a folder");
        let begun = folder.path().join("begun");
        // An srun whose step's node is lost.
        let deaf = format!("#!/bin/bash\ntrap '' TERM\ntouch '{}'\nwhile true; do sleep 600; done\n", begun.display());
        executable(folder.path(), "srun", &deaf);
        let slice = Slice { gres: None, cpus: 1, memory_mib: 1 };
        let text = script(&gang("cpu", 1, &["n1"]), &slice, Path::new("gangline"), None);
        let path = executable(folder.path(), "slurm.sh", &text);
        let search = format!("{}:/usr/bin:/bin", folder.path().display());
        // Slurm, too, gives a script a process group of its own.
        let mut script =
            std::process::Command::new(path).env("PATH", search).process_group(0).spawn().expect("bash starts");
        while !begun.exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let group = crate::process::as_pid(script.id()).expect("a process");
        rustix::process::kill_process(group, rustix::process::Signal::TERM).expect("it runs");
        script.wait().expect("it ends");
        // The script's srun and its children have ended too.
        while rustix::process::test_kill_process_group(group).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
