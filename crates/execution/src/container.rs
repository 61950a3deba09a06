//! What runs containers on a node: podman, or Apptainer, which sites with shared clusters tend to have. Neither has a
//! daemon, so all processes of a container descend from the rank's shim, which ends them as it ends those of any rank.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

/// The variable that says which is used where a node has both.
const CHOICE: &str = "GANGLINE_CONTAINERS";

/// A program that runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerRuntime {
    /// Podman. Its containers have numbers of processes of their own.
    Podman,
    /// Apptainer. Its containers are views of the file system and nothing else.
    Apptainer,
}

impl ContainerRuntime {
    /// Both, in the order in which they are looked for.
    const ALL: [ContainerRuntime; 2] = [ContainerRuntime::Podman, ContainerRuntime::Apptainer];

    /// Returns what runs the containers of an image: of a file Apptainer, else what the environment asks for, else the
    /// first that is installed; podman if none is.
    pub(crate) fn of(image: &str, environment: &BTreeMap<OsString, OsString>) -> ContainerRuntime {
        if is_file(image) {
            return ContainerRuntime::Apptainer;
        }
        let chosen = environment.get(OsStr::new(CHOICE)).and_then(|name| name.to_str()?.parse().ok());
        let installed = || Self::ALL.into_iter().find(|runtime| runtime.is_installed(environment));
        chosen.or_else(installed).unwrap_or(ContainerRuntime::Podman)
    }

    /// Reports whether its program is in the environment's `PATH`.
    pub(crate) fn is_installed(self, environment: &BTreeMap<OsString, OsString>) -> bool {
        let is_program =
            |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
        let path = environment.get(OsStr::new("PATH")).map_or(&[][..], |path| path.as_bytes());
        let mut folders = path.split(|byte| *byte == b':').map(|folder| Path::new(OsStr::from_bytes(folder)));
        folders.any(|folder| folder.is_absolute() && is_program(&folder.join(self.program())))
    }

    /// Returns the program's name.
    pub(crate) fn program(self) -> &'static str {
        match self {
            ContainerRuntime::Podman => "podman",
            ContainerRuntime::Apptainer => "apptainer",
        }
    }

    /// Returns why no container of an image can be run at a place with this environment, such as "this node"; none if one can.
    pub(crate) fn missing_for(image: &str, environment: &BTreeMap<OsString, OsString>, place: &str) -> Option<String> {
        let chosen = environment.get(OsStr::new(CHOICE)).map(|name| name.to_string_lossy().into_owned());
        let misnamed = chosen.filter(|name| name.parse::<ContainerRuntime>().is_err());
        if let Some(name) = misnamed {
            return Some(format!("{CHOICE} is {name:?}, which is neither podman nor apptainer"));
        }
        let runtime = ContainerRuntime::of(image, environment);
        (!runtime.is_installed(environment)).then(|| runtime.missing(place))
    }

    /// Says that it isn't installed at a place.
    pub(crate) fn missing(self, place: &str) -> String {
        match self {
            ContainerRuntime::Podman => format!("neither podman nor apptainer is installed on {place}"),
            ContainerRuntime::Apptainer => format!("apptainer isn't installed on {place}"),
        }
    }
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
        environment.insert(CHOICE.into(), "apptainer".into());
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Apptainer);
        environment.insert(CHOICE.into(), "docker".into());
        assert_eq!(ContainerRuntime::of(name, &environment), ContainerRuntime::Podman, "an unknown one is no choice");
        let missing =
            |environment: &BTreeMap<OsString, OsString>| ContainerRuntime::missing_for(name, environment, "n1");
        let told = "GANGLINE_CONTAINERS is \"docker\", which is neither podman nor apptainer";
        assert_eq!(missing(&environment).as_deref(), Some(told));
        environment.remove(OsStr::new(CHOICE));
        assert_eq!(missing(&environment), None);
        environment.insert("PATH".into(), "bin:/nowhere".into());
        assert_eq!(missing(&environment).as_deref(), Some("neither podman nor apptainer is installed on n1"));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for runtime in ContainerRuntime::ALL {
            assert_eq!(runtime.to_string().parse(), Ok(runtime));
        }
        assert!("docker".parse::<ContainerRuntime>().is_err());
    }
}
