//! Containers by podman. A container has its own numbers of processes: their first is the shell that runs the job's
//! command, and when that one ends, the kernel ends all others.

use std::ffi::OsString;

use super::{Contained, joined, of_devices};
use crate::supervisor::environment::Environment;
use crate::supervisor::input::Kept;

/// Runs before the setup command: fetches the image unless the node has it, once for all ranks. `$0` says that podman is
/// missing.
pub(super) const FETCH: &str = r#"command -v podman >/dev/null 2>&1 || {
  echo "$0, and the job runs in the image $1" >&2; exit 127; }
podman image exists "$1" || podman pull --quiet "$1" || exit
shift; [ $# -eq 0 ] || exec "$@""#;
/// Devices of the node, and the option that hands them to a container. NVIDIA's toolkit names its devices
/// (github.com/cncf-tags/container-device-interface); all of them are visible, since CUDA_VISIBLE_DEVICES counts all.
const DEVICES: [(&str, &str); 4] = [
    ("/dev/nvidiactl", "--device=nvidia.com/gpu=all"),
    ("/dev/kfd", "--device=/dev/kfd"),
    ("/dev/dri/renderD128", "--device=/dev/dri"),
    ("/dev/infiniband", "--device=/dev/infiniband"),
];
/// The variable that tells a rank's shim, and whoever looks at it, the container's name.
const NAME_VARIABLE: &str = "GANGLINE_CONTAINER";

/// Returns the command line before the setup command's.
pub(super) fn fetch(contained: &Contained<'_>) -> Vec<OsString> {
    contained.script(FETCH)
}

/// Returns the command line without the shell's arguments. Values of variables aren't in it, since every user of the
/// node may read it: podman takes them from its own environment.
pub(super) fn run(contained: &Contained<'_>) -> Vec<OsString> {
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
    line.push(format!("--name={}", name(contained)).into());
    line.extend(of_devices(&DEVICES));
    line.extend(contained.mounts().iter().map(|mount| joined("--volume=", &mount.with_colons())));
    line.push(joined("--workdir=", contained.spec.workdir.as_os_str()));
    line.extend(contained.passed().map(|(name, _)| joined("--env=", name)));
    line.push(OsString::from(&contained.container.image));
    line
}

/// Returns what podman's environment has besides, for whoever wants to run something beside the rank: gangline exec.
pub(super) fn variables(contained: &Contained<'_>) -> Environment {
    Environment::from([(NAME_VARIABLE.into(), name(contained).into())])
}

/// Returns the container's name, which no other container has had.
pub(super) fn name(contained: &Contained<'_>) -> String {
    let spec = contained.spec;
    let of_attempt = format!("gangline-job-{}-{}-attempt-{}", spec.job, spec.epoch, spec.attempt);
    match contained.kept {
        Kept::Setup => format!("{of_attempt}-setup-{}", spec.node_rank),
        Kept::Rank(local) => format!("{of_attempt}-rank-{}", spec.node_rank * spec.ranks_per_node + local),
    }
}
