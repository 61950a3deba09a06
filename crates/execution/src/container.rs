//! What runs containers on a node: podman; Apptainer, which sites with shared clusters tend to have; enroot, which NVIDIA's clusters have;
//! or Docker. All processes of a container descend from the rank's shim, which ends them as it ends those of any rank. Docker's daemon is
//! the parent of its containers, so their environment names the shim ([`crate::process::OWNERS_VARIABLE`]), and they count as descendants.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

/// How files of squashed file systems are named.
const SQUASHED: [&str; 2] = [".sqsh", ".squashfs"];

/// A program that runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerRuntime {
    /// Podman. Its containers have numbers of processes of their own.
    Podman,
    /// Apptainer. Its containers are views of the file system and nothing else.
    Apptainer,
    /// Enroot. Its containers are views of the file system too.
    Enroot,
    /// Docker. Its containers have numbers of processes of their own, and are started by its daemon.
    Docker,
}

impl ContainerRuntime {
    /// The variable that says which is used where a node has several.
    pub const CHOICE: &str = "GANGLINE_CONTAINERS";
    /// All, in the order in which they are looked for.
    const ALL: [ContainerRuntime; 4] =
        [ContainerRuntime::Podman, ContainerRuntime::Apptainer, ContainerRuntime::Enroot, ContainerRuntime::Docker];
    /// All under Slurm: Docker's containers would leave the allocation's control groups, and with them its limits and its accounting.
    const UNDER_SLURM: [ContainerRuntime; 3] =
        [ContainerRuntime::Podman, ContainerRuntime::Apptainer, ContainerRuntime::Enroot];

    /// Returns what runs the containers of an image: what the environment asks for, if that can; else the first that can and
    /// is installed, or the first of all if none is.
    pub(crate) fn of(image: &str, environment: &BTreeMap<OsString, OsString>) -> ContainerRuntime {
        let able = Self::able(image, environment);
        let installed = || able.iter().copied().find(|runtime| runtime.is_installed(environment));
        Self::chosen(image, environment).or_else(installed).unwrap_or(able[0])
    }

    /// Returns what the environment asks for, if that can run an image.
    fn chosen(image: &str, environment: &BTreeMap<OsString, OsString>) -> Option<ContainerRuntime> {
        let named = environment.get(OsStr::new(Self::CHOICE)).and_then(|name| name.to_str()?.parse().ok());
        named.filter(|runtime| Self::able(image, environment).contains(runtime))
    }

    /// Returns those that can run an image, in the order in which they are looked for. A squashed file system is enroot's own format, and
    /// only enroot reads the environment that is in it.
    fn able(image: &str, environment: &BTreeMap<OsString, OsString>) -> &'static [ContainerRuntime] {
        let is_squashed = SQUASHED.iter().any(|extension| image.ends_with(extension));
        match (is_file(image), is_squashed) {
            (false, _) if is_under_slurm(environment) => &Self::UNDER_SLURM,
            (false, _) => &Self::ALL,
            (true, false) => &[ContainerRuntime::Apptainer],
            (true, true) => &[ContainerRuntime::Enroot, ContainerRuntime::Apptainer],
        }
    }

    /// Reports whether its program is in the environment's `PATH`.
    pub(crate) fn is_installed(self, environment: &BTreeMap<OsString, OsString>) -> bool {
        let is_program =
            |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        let path = environment.get(OsStr::new("PATH")).map_or(&[][..], |path| path.as_bytes());
        let mut folders = path.split(|byte| *byte == b':').map(|folder| Path::new(OsStr::from_bytes(folder)));
        folders.any(|folder| folder.is_absolute() && is_program(&folder.join(self.program())))
    }

    /// Reports whether its containers have process numbers and process groups of their own. Processes in other runtimes' containers are
    /// ordinary processes of the node with another view of the file system.
    #[must_use]
    pub fn is_apart(self) -> bool {
        matches!(self, ContainerRuntime::Podman | ContainerRuntime::Docker)
    }

    /// Reports whether a daemon starts its containers, and not the rank's shim.
    pub(crate) fn has_daemon(self) -> bool {
        self == ContainerRuntime::Docker
    }

    /// Returns the program's name.
    #[must_use]
    pub fn program(self) -> &'static str {
        match self {
            ContainerRuntime::Podman => "podman",
            ContainerRuntime::Apptainer => "apptainer",
            ContainerRuntime::Enroot => "enroot",
            ContainerRuntime::Docker => "docker",
        }
    }

    /// Returns why no container of an image can be run at a place with this environment, such as "this node"; none if one can.
    pub(crate) fn missing_for(image: &str, environment: &BTreeMap<OsString, OsString>, place: &str) -> Option<String> {
        let chosen = environment.get(OsStr::new(Self::CHOICE)).map(|name| name.to_string_lossy().into_owned());
        let misnamed = chosen.filter(|name| name.parse::<ContainerRuntime>().is_err());
        if let Some(name) = misnamed {
            return Some(format!("{} is {name:?}, which is none of {}", Self::CHOICE, listed(&Self::ALL)));
        }
        let runtime = ContainerRuntime::of(image, environment);
        (!runtime.is_installed(environment)).then(|| missing(image, environment, place))
    }
}

/// Says that what would run an image isn't installed at a place.
pub(crate) fn missing(image: &str, environment: &BTreeMap<OsString, OsString>, place: &str) -> String {
    if let Some(chosen) = ContainerRuntime::chosen(image, environment) {
        return format!("{chosen}, which {} asks for, isn't installed on {place}", ContainerRuntime::CHOICE);
    }
    match ContainerRuntime::able(image, environment) {
        [only] => format!("{only} isn't installed on {place}"),
        [first, second] => format!("neither {first} nor {second} is installed on {place}"),
        all => format!("none of {} is installed on {place}", listed(all)),
    }
}

/// Returns names as `podman, apptainer and enroot`.
fn listed(runtimes: &[ContainerRuntime]) -> String {
    let (last, others) = runtimes.split_last().expect("something runs every image");
    let others: Vec<&str> = others.iter().map(|runtime| runtime.program()).collect();
    format!("{} and {last}", others.join(", "))
}

/// Reports whether an environment is that of a job of Slurm.
fn is_under_slurm(environment: &BTreeMap<OsString, OsString>) -> bool {
    environment.contains_key(OsStr::new("SLURM_JOB_ID"))
}

/// Reports whether an image is a file or folder of the node, and no name in a registry.
pub(crate) fn is_file(image: &str) -> bool {
    image.starts_with('/')
}

impl fmt::Display for ContainerRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program())
    }
}

impl FromStr for ContainerRuntime {
    type Err = String;

    fn from_str(name: &str) -> Result<ContainerRuntime, String> {
        let named = Self::ALL.into_iter().find(|runtime| runtime.program() == name);
        named.ok_or_else(|| format!("no container runtime is called {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_that_is_installed_runs_containers_unless_another_is_asked_for() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut environment = BTreeMap::from([("PATH".into(), folder.path().as_os_str().to_owned())]);
        let install = |name: &str, mode: u32| {
            let program = folder.path().join(name);
            fs::write(&program, "").expect("it can be written");
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        let name = "python:3.12";
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Podman);
        assert!(!ContainerRuntime::Podman.is_installed(&environment));
        install("apptainer", 0o755);
        install("podman", 0o644);
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Apptainer, "podman can't be run");
        install("podman", 0o755);
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Podman);
        assert_eq!(ContainerRuntime::of("/images/torch.sif", &environment), ContainerRuntime::Apptainer);
        assert_eq!(ContainerRuntime::of("/images/torch.sqsh", &environment), ContainerRuntime::Apptainer);
        install("enroot", 0o755);
        assert_eq!(ContainerRuntime::of("/images/torch.sqsh", &environment), ContainerRuntime::Enroot);
        environment.insert(ContainerRuntime::CHOICE.into(), "enroot".into());
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Enroot);
        assert_eq!(ContainerRuntime::of("/images/torch.sif", &environment), ContainerRuntime::Apptainer, "it can't");
        environment.insert(ContainerRuntime::CHOICE.into(), "apptainer".into());
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Apptainer);
        environment.insert(ContainerRuntime::CHOICE.into(), "docker".into());
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Docker);
        environment.insert("SLURM_JOB_ID".into(), "7".into());
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Podman, "its containers leave Slurm");
        environment.remove(OsStr::new("SLURM_JOB_ID"));
        environment.insert(ContainerRuntime::CHOICE.into(), "nerdctl".into());
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Podman, "an unknown one is no choice");
        let missing =
            |environment: &BTreeMap<OsString, OsString>| ContainerRuntime::missing_for(name, environment, "n1");
        let told = "GANGLINE_CONTAINERS is \"nerdctl\", which is none of podman, apptainer, enroot and docker";
        assert_eq!(missing(&environment).as_deref(), Some(told));
        environment.remove(OsStr::new(ContainerRuntime::CHOICE));
        assert_eq!(missing(&environment), None);
        environment.insert("PATH".into(), "bin:/nowhere".into());
        let told = "none of podman, apptainer, enroot and docker is installed on n1";
        assert_eq!(missing(&environment).as_deref(), Some(told));
        environment.insert(ContainerRuntime::CHOICE.into(), "podman".into());
        let told = "podman, which GANGLINE_CONTAINERS asks for, isn't installed on n1";
        assert_eq!(missing(&environment).as_deref(), Some(told));
        let of_file = |file: &str| ContainerRuntime::missing_for(file, &environment, "n1");
        assert_eq!(of_file("/a.sif").as_deref(), Some("apptainer isn't installed on n1"));
        assert_eq!(of_file("/a.sqsh").as_deref(), Some("neither enroot nor apptainer is installed on n1"));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for runtime in ContainerRuntime::ALL {
            assert_eq!(runtime.to_string().parse(), Ok(runtime));
        }
        assert!("nerdctl".parse::<ContainerRuntime>().is_err());
    }
}
