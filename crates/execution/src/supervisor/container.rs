//! Runs a job's commands in a container image, by podman.
//!
//! A container shares the node's network, shared memory and control group with its rank, so gangs meet, tensors
//! pass between ranks and limits hold as without one. It has its own numbers of processes: their first is the
//! shell that runs the job's command, and when that one ends, the kernel ends all others. Podman has no daemon:
//! all processes of a container descend from the rank's shim, which ends them as it ends those of any rank.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::input::Kept;
use crate::protocol::{ContainerSpec, SupervisorSpec};

/// Runs before the setup command: fetches the image unless the node has it, once for all ranks.
const FETCH: &str = r#"command -v podman >/dev/null 2>&1 || {
  echo "podman isn't installed on this node, and the job runs in the image $1" >&2; exit 127; }
podman image exists "$1" || podman pull --quiet "$1" || exit
shift; [ $# -eq 0 ] || exec "$@""#;
/// Comes before the job's command. Asked to end, the shell waits for the program that it runs, which is asked too and
/// may be saving, and ends as that program does. Without this line the first process of a container ignores SIGTERM
/// (pid_namespaces(7)).
const END_AS_PROGRAM: &str = "trap 'exit $?' TERM\n";
/// Inherited variables that tune libraries and name nothing of the node; others belong to the node, such as `PATH`.
const TUNING: [&str; 13] = [
    "NCCL_",
    "RCCL_",
    "UCX_",
    "FI_",
    "GLOO_",
    "OMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "TORCH_",
    "PYTORCH_",
    "LC_",
    "LANG",
];
/// Devices of the node, and the option that hands them to a container. NVIDIA's toolkit names its devices
/// (github.com/cncf-tags/container-device-interface); all of them are visible, since CUDA_VISIBLE_DEVICES counts all.
const DEVICES: [(&str, &str); 4] = [
    ("/dev/nvidiactl", "--device=nvidia.com/gpu=all"),
    ("/dev/kfd", "--device=/dev/kfd"),
    ("/dev/dri/renderD128", "--device=/dev/dri"),
    ("/dev/infiniband", "--device=/dev/infiniband"),
];
/// The variable that tells a rank's shim, and whoever looks at it, the container's name.
pub(super) const NAME_VARIABLE: &str = "GANGLINE_CONTAINER";
/// Variables whose values are folders that the ranks use.
const FOLDERS: [&str; 2] = ["GANGLINE_CHECKPOINT_DIR", "GANGLINE_STAGING_DIR"];
/// Variables whose values are files in folders that the ranks use.
const FILES: [&str; 1] = ["GANGLINE_SOCKET"];

/// Returns the program and arguments that run a shell command of the job: in its image, if it has one.
pub(super) fn command(
    spec: &SupervisorSpec,
    kept: Kept,
    shell_command: &str,
    (inherited, environment): (&Environment, &Environment),
) -> Vec<OsString> {
    let Some(container) = &spec.container else {
        return ["sh", "-c", shell_command].map(OsString::from).into();
    };
    let run = || run(spec, container, name(spec, kept), (inherited, environment));
    let shell = [OsString::from("-c"), format!("{END_AS_PROGRAM}{shell_command}").into()];
    match kept {
        Kept::Rank(_) => run().into_iter().chain(shell).collect(),
        Kept::Setup => {
            let fetch = ["sh", "-c", FETCH, "sh", &container.image].map(OsString::from);
            let setup = if spec.setup.is_some() { run().into_iter().chain(shell).collect() } else { Vec::new() };
            fetch.into_iter().chain(setup).collect()
        }
    }
}

/// Returns the container's name, which no other container has had.
pub(super) fn name(spec: &SupervisorSpec, kept: Kept) -> String {
    let of_attempt = format!("gangline-job-{}-{}-attempt-{}", spec.job, spec.epoch, spec.attempt);
    match kept {
        Kept::Setup => format!("{of_attempt}-setup-{}", spec.node_rank),
        Kept::Rank(local) => format!("{of_attempt}-rank-{}", spec.node_rank * spec.ranks_per_node + local),
    }
}

/// Returns the command line without the shell's arguments. Values of variables aren't in it, since every user of the
/// node may read it: podman takes them from its own environment.
fn run(
    spec: &SupervisorSpec,
    container: &ContainerSpec,
    name: String,
    (inherited, environment): (&Environment, &Environment),
) -> Vec<OsString> {
    let fixed = [
        "podman",
        "run",
        "--rm",
        // The setup command has fetched it.
        "--pull=never",
        "--sig-proxy=false",
        "--log-driver=none",
        "--network=host",
        "--ipc=host",
        "--cgroups=disabled",
        // SELinux would keep the container from the job's folders.
        "--security-opt=label=disable",
        "--entrypoint=sh",
    ];
    let mut line: Vec<OsString> = fixed.map(OsString::from).into();
    line.push(format!("--name={name}").into());
    let present = DEVICES.iter().filter(|(device, _)| Path::new(device).exists());
    line.extend(present.map(|(_, option)| OsString::from(option)));
    line.extend(volumes(spec, container, environment));
    line.push(joined("--workdir=", spec.workdir.as_os_str()));
    line.extend(variables(inherited, environment).map(|name| joined("--env=", name)));
    line.push(OsString::from(&container.image));
    line
}

/// Returns the names of the variables that a container gets: Gangline's and the job's, and those that tune libraries.
fn variables<'e>(inherited: &'e Environment, environment: &'e Environment) -> impl Iterator<Item = &'e OsStr> {
    let is_tuning = |name: &OsStr| TUNING.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
    let is_passed =
        move |(name, value): &(&OsString, &OsString)| inherited.get(*name) != Some(*value) || is_tuning(name);
    environment.iter().filter(is_passed).map(|(name, _)| name.as_os_str())
}

/// Returns the options that mount the job's own folders and its volumes. A volume at the same place comes first.
fn volumes(spec: &SupervisorSpec, container: &ContainerSpec, environment: &Environment) -> Vec<OsString> {
    let value = |name: &str| environment.get(OsStr::new(name)).map(PathBuf::from).filter(|path| path.is_absolute());
    let files = FILES.iter().filter_map(|name| Some(value(name)?.parent()?.to_owned()));
    let own =
        [spec.workdir.clone(), spec.folder.clone()].into_iter().chain(FOLDERS.iter().filter_map(|name| value(name)));
    let targets: BTreeSet<&Path> = container.volumes.iter().map(|volume| Path::new(&volume.target)).collect();
    let asked = container.volumes.iter().map(|volume| {
        let options = if volume.is_read_only { ":ro" } else { "" };
        OsString::from(format!("--volume={}:{}{options}", volume.source, volume.target))
    });
    let mut options: Vec<OsString> = asked.collect();
    // Shared memory is there already.
    let mut mounted = vec![PathBuf::from("/dev/shm")];
    for folder in own.chain(files) {
        if mounted.iter().any(|above| folder.starts_with(above)) || targets.contains(folder.as_path()) {
            continue;
        }
        let mut option = joined("--volume=", folder.as_os_str());
        option.push(":");
        option.push(&folder);
        options.push(option);
        mounted.push(folder);
    }
    options
}

fn joined(option: &str, value: &OsStr) -> OsString {
    let mut joined = OsString::from(option);
    joined.push(value);
    joined
}

impl SupervisorSpec {
    /// Reports whether something has to run before the ranks: a setup command, or what fetches the image.
    pub(super) fn has_setup(&self) -> bool {
        self.setup.is_some() || self.container.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::node_attempt_tests::tested::spec;
    use super::*;
    use crate::protocol::VolumeSpec;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect()
    }

    fn in_image(setup: Option<&str>) -> SupervisorSpec {
        let data = VolumeSpec { source: "/data".into(), target: "/corpus".into(), is_read_only: true };
        let image = "localhost/torch:1".to_owned();
        let container = Some(ContainerSpec { image, volumes: vec![data] });
        SupervisorSpec {
            container,
            setup: setup.map(str::to_owned),
            workdir: "/work/llama".into(),
            folder: "/data/attempt".into(),
            ..spec(1, 1)
        }
    }

    fn texts(line: &[OsString]) -> Vec<&str> {
        line.iter().map(|argument| argument.to_str().expect("UTF-8")).collect()
    }

    #[test]
    fn a_job_without_an_image_runs_in_the_nodes_own_shell() {
        let none = Environment::new();
        let line = command(&spec(1, 1), Kept::Rank(0), "python train.py", (&none, &none));
        assert_eq!(texts(&line), ["sh", "-c", "python train.py"]);
    }

    #[test]
    fn a_container_gets_the_jobs_variables_by_name_and_none_that_belong_to_the_node() {
        let inherited = environment(&[("PATH", "/usr/bin"), ("NCCL_DEBUG", "INFO"), ("HOME", "/root"), ("A", "1")]);
        let mut all = inherited.clone();
        all.extend(environment(&[("RANK", "0"), ("HF_TOKEN", "secret"), ("A", "2")]));
        let line = command(&in_image(None), Kept::Rank(0), "python train.py", (&inherited, &all));
        let line = texts(&line);
        let named: Vec<&str> = line.iter().filter_map(|argument| argument.strip_prefix("--env=")).collect();
        assert_eq!(named, ["A", "HF_TOKEN", "NCCL_DEBUG", "RANK"]);
        assert!(!line.iter().any(|argument| argument.contains("secret")));
        assert_eq!(line[line.len() - 3..], ["localhost/torch:1", "-c", "trap 'exit $?' TERM\npython train.py"]);
    }

    #[test]
    fn folders_of_the_job_are_mounted_once_where_they_are_and_volumes_where_they_are_asked_for() {
        let none = Environment::new();
        let spec = in_image(None);
        let all = environment(&[
            ("GANGLINE_CHECKPOINT_DIR", "/work/llama"),
            ("GANGLINE_STAGING_DIR", "/dev/shm/gangline-1"),
            ("GANGLINE_SOCKET", "/tmp/gangline-7/rank-0.sock"),
        ]);
        let line = command(&spec, Kept::Rank(0), "x", (&none, &all));
        let line = texts(&line);
        let mounted: Vec<&str> = line.iter().filter_map(|argument| argument.strip_prefix("--volume=")).collect();
        let own = ["/work/llama:/work/llama", "/data/attempt:/data/attempt", "/tmp/gangline-7:/tmp/gangline-7"];
        assert_eq!((mounted[0], &mounted[1..]), ("/data:/corpus:ro", &own[..]));
    }

    #[test]
    fn the_image_is_fetched_before_the_setup_and_the_ranks_never_fetch_it() {
        let none = Environment::new();
        let line = |setup, kept| command(&in_image(setup), kept, "pip install x", (&none, &none));
        assert_eq!(texts(&line(None, Kept::Setup)), ["sh", "-c", FETCH, "sh", "localhost/torch:1"]);
        let with_setup = line(Some("pip install x"), Kept::Setup);
        assert_eq!(texts(&with_setup)[4..7], ["localhost/torch:1", "podman", "run"]);
        assert!(texts(&line(None, Kept::Rank(0))).contains(&"--pull=never"));
    }
}
