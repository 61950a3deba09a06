//! Runs a job's commands in a container image, by what the node has for it ([`ContainerRuntime`]).
//!
//! A container shares the node's network, shared memory and control group with its rank, so gangs meet, tensors
//! pass between ranks and limits hold as without one. Under Docker it shares the control group where the supervisor is root's.

mod apptainer;
mod docker;
mod enroot;
mod podman;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::environment::Environment;
use super::input::Kept;
use crate::container::{ContainerRuntime, missing};
use crate::protocol::{ContainerSpec, SupervisorSpec};

/// Comes before the job's command. Asked to end, the shell waits for the program that it runs, which is asked too and
/// may be saving, and ends as that program does. Without this line the first process of a container ignores SIGTERM
/// (pid_namespaces(7)).
const END_AS_PROGRAM: &str = "trap 'exit $?' TERM\n";
/// Inherited variables that containers get too: those that tune libraries, and those that tell which devices of the node and which
/// part of Slurm's job are the rank's. Others belong to the node, such as `PATH`.
const PASSED_ON: [&str; 20] = [
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
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "SLURM_",
    "SLURMD_NODENAME",
];
/// How a node is called in messages of a job that runs there.
const THIS_NODE: &str = "this node";
/// Variables whose values are folders that the ranks use.
const FOLDERS: [&str; 2] = ["GANGLINE_CHECKPOINT_DIR", "GANGLINE_STAGING_DIR"];
/// Variables whose values are files in folders that the ranks use.
const FILES: [&str; 1] = ["GANGLINE_SOCKET"];

/// How a shell command of a job is started.
pub(super) struct CommandLine {
    /// What runs its container; none without an image.
    pub(super) runtime: Option<ContainerRuntime>,
    /// The program and its arguments.
    pub(super) arguments: Vec<OsString>,
    /// Variables for the program beside the environment.
    pub(super) variables: Environment,
}

/// A job's image, and whose commands run in it.
struct Contained<'a> {
    spec: &'a SupervisorSpec,
    container: &'a ContainerSpec,
    kept: Kept,
    /// The supervisor's environment.
    inherited: &'a Environment,
    /// What the command would get without a container.
    environment: &'a Environment,
}

/// Returns how a shell command of the job is started: in its image, if it has one.
pub(super) fn command_line(
    spec: &SupervisorSpec,
    kept: Kept,
    shell_command: &str,
    (inherited, environment): (&Environment, &Environment),
) -> CommandLine {
    let Some(container) = &spec.container else {
        let arguments = ["sh", "-c", shell_command].map(OsString::from).into();
        return CommandLine { runtime: None, arguments, variables: Environment::new() };
    };
    let contained = Contained { spec, container, kept, inherited, environment };
    let runtime = ContainerRuntime::of(&container.image, environment);
    let Lines { fetch, run, variables } = Lines::of(runtime);
    let in_it = || {
        let shell = ["-c".into(), format!("{END_AS_PROGRAM}{shell_command}").into()];
        run(&contained).into_iter().chain(shell).collect::<Vec<_>>()
    };
    let arguments = match kept {
        Kept::Rank(_) => in_it(),
        Kept::Setup => {
            let setup = if spec.setup.is_some() { in_it() } else { Vec::new() };
            fetch(&contained).into_iter().chain(setup).collect()
        }
    };
    CommandLine { runtime: Some(runtime), arguments, variables: variables(&contained) }
}

/// How a runtime is told what to do.
struct Lines {
    /// What comes before the setup command: fetches the image.
    fetch: fn(&Contained<'_>) -> Vec<OsString>,
    /// What comes before the arguments of the image's shell.
    run: fn(&Contained<'_>) -> Vec<OsString>,
    /// Variables of the runtime's own environment.
    variables: fn(&Contained<'_>) -> Environment,
}

impl Lines {
    fn of(runtime: ContainerRuntime) -> Lines {
        match runtime {
            ContainerRuntime::Podman => Lines { fetch: podman::fetch, run: podman::run, variables: podman::variables },
            ContainerRuntime::Apptainer => {
                Lines { fetch: apptainer::fetch, run: apptainer::run, variables: apptainer::variables }
            }
            ContainerRuntime::Enroot => Lines { fetch: enroot::fetch, run: enroot::run, variables: enroot::variables },
            ContainerRuntime::Docker => Lines { fetch: docker::fetch, run: docker::run, variables: podman::variables },
        }
    }
}

impl Contained<'_> {
    /// Returns the command line of a script that fetches the image: `$0` says that the runtime is missing, `$1` is the image.
    fn script(&self, script: &str) -> Vec<OsString> {
        let image = &self.container.image;
        ["sh", "-c", script, &missing(image, self.environment, THIS_NODE), image].map(OsString::from).into()
    }

    /// Returns the variables that the container gets: Gangline's and the job's, and those of [`PASSED_ON`].
    fn passed(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let is_passed_on =
            |name: &OsStr| PASSED_ON.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
        let is_passed = move |(name, value): &(&OsString, &OsString)| {
            self.inherited.get(*name) != Some(*value) || is_passed_on(name)
        };
        self.environment.iter().filter(is_passed).map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Returns the mounts: the job's volumes, and its own folders where no volume is at the same place.
    fn mounts(&self) -> Vec<Mount> {
        let Contained { spec, container, environment, .. } = self;
        let value = |name: &str| environment.get(OsStr::new(name)).map(PathBuf::from).filter(|path| path.is_absolute());
        let files = FILES.iter().filter_map(|name| Some(value(name)?.parent()?.to_owned()));
        let own = [spec.workdir.clone(), spec.folder.clone()]
            .into_iter()
            .chain(FOLDERS.iter().filter_map(|name| value(name)));
        let targets: BTreeSet<&Path> = container.volumes.iter().map(|volume| Path::new(&volume.target)).collect();
        let asked = container.volumes.iter().map(|volume| {
            let (source, target) = (PathBuf::from(&volume.source), PathBuf::from(&volume.target));
            Mount { source, target, is_read_only: volume.is_read_only }
        });
        let mut mounts: Vec<Mount> = asked.collect();
        // Shared memory is there already.
        let mut mounted = vec![PathBuf::from("/dev/shm")];
        for folder in own.chain(files) {
            if mounted.iter().any(|above| folder.starts_with(above)) || targets.contains(folder.as_path()) {
                continue;
            }
            mounts.push(Mount { source: folder.clone(), target: folder.clone(), is_read_only: false });
            mounted.push(folder);
        }
        mounts
    }
}

/// A folder or file of the node that a container sees.
struct Mount {
    source: PathBuf,
    target: PathBuf,
    is_read_only: bool,
}

impl Mount {
    /// Returns it as `SOURCE:TARGET`, with `:ro` if need be.
    fn with_colons(&self) -> OsString {
        let options = if self.is_read_only { OsStr::new("ro") } else { OsStr::new("") };
        let fields = [self.source.as_os_str(), self.target.as_os_str(), options];
        fields[..if self.is_read_only { 3 } else { 2 }].join(OsStr::new(":"))
    }
}

/// Returns the options of those devices that this node has.
fn of_devices(options: &[(&str, &str)]) -> impl Iterator<Item = OsString> {
    options.iter().filter(|(device, _)| Path::new(device).exists()).map(|(_, option)| OsString::from(option))
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

    fn command(
        spec: &SupervisorSpec,
        kept: Kept,
        shell_command: &str,
        environments: (&Environment, &Environment),
    ) -> Vec<OsString> {
        command_line(spec, kept, shell_command, environments).arguments
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
        let inherited = environment(&[
            ("PATH", "/usr/bin"),
            ("NCCL_DEBUG", "INFO"),
            ("HOME", "/root"),
            ("A", "1"),
            ("CUDA_VISIBLE_DEVICES", "2,3"),
            ("CUDA_HOME", "/usr/local/cuda"),
            ("SLURM_JOB_ID", "7"),
        ]);
        let mut all = inherited.clone();
        all.extend(environment(&[("RANK", "0"), ("HF_TOKEN", "secret"), ("A", "2")]));
        let line = command(&in_image(None), Kept::Rank(0), "python train.py", (&inherited, &all));
        let line = texts(&line);
        let named: Vec<&str> = line.iter().filter_map(|argument| argument.strip_prefix("--env=")).collect();
        assert_eq!(named, ["A", "CUDA_VISIBLE_DEVICES", "HF_TOKEN", "NCCL_DEBUG", "RANK", "SLURM_JOB_ID"]);
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
        let missing = crate::container::missing("localhost/torch:1", &none, THIS_NODE);
        assert_eq!(texts(&line(None, Kept::Setup)), ["sh", "-c", podman::FETCH, &missing, "localhost/torch:1"]);
        let with_setup = line(Some("pip install x"), Kept::Setup);
        assert_eq!(texts(&with_setup)[4..7], ["localhost/torch:1", "podman", "run"]);
        assert!(texts(&line(None, Kept::Rank(0))).contains(&"--pull=never"));
    }

    #[test]
    fn apptainer_gets_variables_by_its_own_names_and_runs_the_file_that_was_fetched() {
        let inherited =
            environment(&[("HOME", "/home/ada"), ("GANGLINE_CONTAINERS", "apptainer"), ("PATH", "/usr/bin")]);
        let mut all = inherited.clone();
        all.extend(environment(&[("RANK", "0"), ("HF_TOKEN", "it's $ecret"), ("APPTAINER_CACHEDIR", "/cache")]));
        let spec = in_image(Some("make"));
        let rank = command_line(&spec, Kept::Rank(0), "python train.py", (&inherited, &all));
        let line = texts(&rank.arguments);
        assert_eq!(rank.runtime, Some(ContainerRuntime::Apptainer));
        let file = "/cache/gangline/localhost+torch=1.sif";
        assert_eq!(line[line.len() - 4..], [file, "sh", "-c", "trap 'exit $?' TERM\npython train.py"]);
        assert!(line.contains(&"--bind=/data:/corpus:ro") && line.contains(&"--pwd=/work/llama"), "{line:?}");
        assert!(!line.iter().any(|word| word.contains("ecret")));
        let given: Vec<(&str, &str)> =
            rank.variables.iter().map(|(name, value)| (name.to_str().unwrap(), value.to_str().unwrap())).collect();
        assert!(
            given.contains(&("APPTAINERENV_HF_TOKEN", "it's $ecret")) && given.contains(&("APPTAINERENV_RANK", "0"))
        );
        assert!(!given.iter().any(|(name, _)| name.ends_with("PATH") || name.ends_with("HOME")), "{given:?}");

        let setup = command_line(&spec, Kept::Setup, "make", (&inherited, &all)).arguments;
        let setup = texts(&setup);
        assert_eq!((setup[4..6].to_vec(), setup[6]), (vec!["localhost/torch:1", file], "apptainer"));
    }

    #[test]
    fn enroot_gets_variables_by_name_and_what_it_would_change_encoded() {
        let inherited = environment(&[("HOME", "/home/ada"), ("GANGLINE_CONTAINERS", "enroot"), ("PATH", "/usr/bin")]);
        let mut all = inherited.clone();
        let odd = [("RANK", "0"), ("HF_TOKEN", "\"secret\""), ("ENROOT_X", "1"), ("BASH_FUNC_x%%", "() { :; }")];
        all.extend(environment(&odd));
        let rank = command_line(&in_image(Some("make")), Kept::Rank(0), "python train.py", (&inherited, &all));
        let line = texts(&rank.arguments);
        assert_eq!(rank.runtime, Some(ContainerRuntime::Enroot));
        let end = ["--rc", "/data/attempt/enroot.rc", "gangline+localhost+torch:1", "/work/llama", "sh", "-c"];
        assert_eq!(line[line.len() - 7..line.len() - 1], end);
        assert!(line.contains(&"--mount=/data:/corpus:none:x-create=auto,rbind,ro"), "{line:?}");
        let named: Vec<&str> = line.iter().filter_map(|word| word.strip_prefix("--env=")).collect();
        assert_eq!(named, ["HF_TOKEN", "RANK", "GANGLINE_ENCODED"]);
        let given =
            [("ENROOT_LOGIN_SHELL", "no"), ("GANGLINE_ENCODED", "HF_TOKEN"), ("HF_TOKEN", "\\0042secret\\0042")];
        assert_eq!(rank.variables, environment(&given));

        let setup = command_line(&in_image(Some("make")), Kept::Setup, "make", (&inherited, &all)).arguments;
        let setup = texts(&setup);
        assert_eq!((setup[4], setup[6], setup[9]), ("localhost/torch:1", "docker://localhost#torch:1", "enroot"));
    }

    #[test]
    fn docker_starts_containers_that_name_their_shim_and_run_the_command_when_they_are_told() {
        let inherited = environment(&[("GANGLINE_CONTAINERS", "docker"), ("PATH", "/usr/bin")]);
        let mut all = inherited.clone();
        all.extend(environment(&[("RANK", "0"), ("HF_TOKEN", "secret")]));
        let rank = command_line(&in_image(Some("make")), Kept::Rank(0), "python train.py", (&inherited, &all));
        let line = texts(&rank.arguments);
        assert_eq!((rank.runtime, line[0]), (Some(ContainerRuntime::Docker), "docker"));
        let named: Vec<&str> = line.iter().filter_map(|word| word.strip_prefix("--env=")).collect();
        assert!(["GANGLINE_OWNERS", "HF_TOKEN", "RANK"].iter().all(|name| named.contains(name)), "{named:?}");
        assert!(!line.iter().any(|word| word.contains("secret")));
        assert!(line.contains(&"--mount=type=bind,\"source=/data\",\"target=/corpus\",readonly"), "{line:?}");
        assert_eq!(line[line.len() - 2..], ["-c", "trap 'exit $?' TERM\npython train.py"]);
        let image = line.iter().position(|word| *word == "localhost/torch:1").expect("the image is named");
        assert_eq!((line[image + 1], line[image + 3]), ("-c", "sh"));

        let setup = command_line(&in_image(Some("make")), Kept::Setup, "make", (&inherited, &all)).arguments;
        assert_eq!(texts(&setup)[4..7], ["localhost/torch:1", "docker", "run"]);
    }

    #[test]
    fn an_image_that_is_a_file_is_run_as_it_lies() {
        let none = Environment::new();
        let mut spec = in_image(None);
        spec.container.as_mut().expect("it has one").image = "/images/torch.sif".to_owned();
        let line = command_line(&spec, Kept::Rank(0), "x", (&none, &none)).arguments;
        let line = texts(&line);
        assert_eq!(line[line.len() - 4], "/images/torch.sif");
        let setup = command_line(&spec, Kept::Setup, "", (&none, &none)).arguments;
        assert_eq!(texts(&setup)[3..], ["apptainer isn't installed on this node", "/images/torch.sif"]);
    }
}
