//! Containers by Docker. Docker's daemon starts them: a rank's shim isn't their parent, and they would go on after the program that the
//! shim has started. Two things tie a container to its shim instead: a variable that names the shim as its owner
//! ([`crate::process::OWNERS_VARIABLE`]), and its standard input, which the shim holds open: when that ends, so does the container.
//!
//! What Docker is told is described in its documentation: <https://docs.docker.com/reference/cli/docker/container/run/>.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::process::{getegid, geteuid, getgroups};

use super::podman::name;
use super::{Contained, Mount, joined, of_devices};
use crate::process::OWNERS_VARIABLE;

/// Runs before the setup command: checks that the daemon runs containers on this machine and that their files will be this user's, and
/// fetches the image unless the node has it, once for all ranks. A daemon that was just restarted is waited for. `$0` says that Docker is
/// missing. The code 126 says that another attempt would fail too.
pub(super) const FETCH: &str = r#"command -v docker >/dev/null 2>&1 || {
  echo "$0, and the job runs in the image $1" >&2; exit 127; }
for pause in 1 2 4 8; do docker info >/dev/null 2>&1 && break; sleep "$pause"; done
kind=$(docker info --format '{{.OperatingSystem}} {{.SecurityOptions}}') || exit 126
place=$(docker context inspect --format '{{.Endpoints.docker.Host}}') || exit 126
case "$place $kind" in
  unix:*"Docker Desktop"*) what="Docker Desktop runs containers in a virtual machine" ;;
  unix:*name=rootless*) what="Docker runs without root here, so other users of its containers can't write the job's files" ;;
  unix:*) what= ;;
  *) what="Docker runs containers on another machine, at $place" ;;
esac
[ -z "$what" ] || { echo "$what: install podman, or Docker Engine as root" >&2; exit 126; }
docker image inspect "$1" >/dev/null 2>&1 || docker pull --quiet "$1" || exit
shift; [ $# -eq 0 ] || exec "$@""#;
/// The first process of a container. It starts two shells and waits for both. The first shell passes on the line that comes on standard
/// input, and kills all processes of the container when that input ends. The second shell waits for the line, runs the job's shell with
/// the arguments `$@`, and ends with its exit code, which becomes the container's. The first process stays in Docker's control group.
/// Messages of these three shells about signals are dropped, since they aren't output of the job.
const FIRST: &str = r#"exec 3<&0 4>&2 2>/dev/null
{ trap '' TERM; read -r _ <&3 && echo; exec >&-; while read -r _ <&3; do :; done; kill -KILL -1; } | {
  trap : TERM; read -r _ || exit; sh "$@" </dev/null 2>&4 3<&- 4>&-; code=$?; kill -KILL -1; exit "$code"; }"#;
/// Devices of the node, and options for a container of a node that has them. All of NVIDIA's are visible, since `CUDA_VISIBLE_DEVICES`
/// counts all. RDMA locks memory.
const DEVICES: [(&str, &str); 5] = [
    ("/dev/nvidiactl", "--gpus=all"),
    ("/dev/kfd", "--device=/dev/kfd"),
    ("/dev/dri/renderD128", "--device=/dev/dri"),
    ("/dev/infiniband", "--device=/dev/infiniband"),
    ("/dev/infiniband", "--ulimit=memlock=-1"),
];
/// The home folder of a user whom the image doesn't know, and that user's names.
const HOME: [&str; 3] = ["--env=HOME=/tmp", "--env=USER", "--env=LOGNAME"];

/// Returns the command line before the setup command's.
pub(super) fn fetch(contained: &Contained<'_>) -> Vec<OsString> {
    contained.script(FETCH)
}

/// Returns the command line without the shell's arguments. Values of variables aren't in it: Docker takes them from its own
/// environment.
pub(super) fn run(contained: &Contained<'_>) -> Vec<OsString> {
    let fixed = [
        "docker",
        "run",
        "--rm",
        // The setup command has fetched it.
        "--pull=never",
        "--sig-proxy=false",
        "--log-driver=none",
        "--network=host",
        "--ipc=host",
        "--userns=host",
        // SELinux would keep the container from the job's folders.
        "--security-opt=label=disable",
        "--init=false",
        "--no-healthcheck",
        "--interactive",
        "--entrypoint=sh",
    ];
    let mut line: Vec<OsString> = fixed.map(OsString::from).into();
    line.push(format!("--name={}", name(contained)).into());
    line.push(format!("--env={OWNERS_VARIABLE}").into());
    line.extend(as_this_user());
    line.extend(of_devices(&DEVICES));
    line.extend(contained.mounts().iter().map(|mount| joined("--mount=", &fields(mount))));
    line.push(joined("--workdir=", contained.spec.workdir.as_os_str()));
    line.extend(contained.passed().map(|(name, _)| joined("--env=", name)));
    line.push(OsString::from(&contained.container.image));
    line.extend(["-c", FIRST, "sh"].map(OsString::from));
    line
}

/// Returns what makes a container's processes this user's, with this user's groups, whatever user the image names.
fn as_this_user() -> Vec<OsString> {
    let (user, group) = (geteuid(), getegid());
    let mut options = vec![format!("--user={}:{}", user.as_raw(), group.as_raw())];
    if !user.is_root() {
        let others = getgroups().unwrap_or_default();
        options.extend(others.iter().map(|group| format!("--group-add={}", group.as_raw())));
        options.extend(HOME.map(str::to_owned));
    }
    options.into_iter().map(OsString::from).collect()
}

/// Returns a mount as the fields of a line of comma-separated values, each of which may be in quotes (RFC 4180).
fn fields(mount: &Mount) -> OsString {
    let quoted = |name: &str, value: &OsStr| {
        let letter = |byte: &u8| if *byte == b'"' { vec![b'"'; 2] } else { vec![*byte] };
        let value: Vec<u8> = value.as_bytes().iter().flat_map(letter).collect();
        [b"\"", name.as_bytes(), b"=", &value, b"\""].concat()
    };
    let places = [quoted("source", mount.source.as_os_str()), quoted("target", mount.target.as_os_str())];
    let mut fields = [b"type=bind".to_vec(), places.join(&b',')].join(&b',');
    if mount.is_read_only {
        fields.extend(b",readonly");
    }
    OsString::from_vec(fields)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    /// When a container's input ends.
    enum End {
        /// Before the line on which the command waits.
        AtOnce,
        /// Once the command has printed something.
        AfterOutput,
        /// After the container.
        Never,
    }

    /// Runs the first process's text in namespaces of its own, as a container does; returns its code and the rest of its output. None
    /// where such namespaces aren't allowed.
    fn first(command: &str, end: End) -> Option<(Option<i32>, String)> {
        let mut container = Command::new("unshare");
        container.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "sh", "-c", FIRST, "sh", "-c"]);
        container.arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = container.spawn().ok()?;
        let mut input = child.stdin.take()?;
        if !matches!(end, End::AtOnce) {
            let _ = input.write_all(b"\n");
        }
        if matches!(end, End::AfterOutput) {
            child.stdout.as_mut()?.read_exact(&mut [0]).ok()?;
        }
        let held = matches!(end, End::Never).then_some(input);
        let output = child.wait_with_output().ok()?;
        drop(held);
        Some((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    #[test]
    fn a_container_runs_its_command_when_a_line_comes_and_ends_with_its_input() {
        if first("exit 0", End::Never).and_then(|(code, _)| code) != Some(0) {
            println!("skipped: this user may not make namespaces of processes");
            return;
        }
        let ran = first("echo done; sleep 60 & exit 7", End::Never);
        assert_eq!(ran, Some((Some(7), "done\n".to_owned())), "what it left behind isn't waited for");
        let (code, output) = first("echo done", End::AtOnce).expect("it starts");
        assert!(code != Some(0) && output.is_empty(), "the input ended before the line: {code:?} {output}");
        let ended = first("echo begun; sleep 60; echo slept", End::AfterOutput);
        assert_eq!(ended, Some((Some(137), "egun\n".to_owned())), "the input ended, and everything was killed");
    }

    #[test]
    fn mounts_are_fields_whatever_is_in_their_paths() {
        let mount = |source: &str, is_read_only| Mount { source: source.into(), target: "/c".into(), is_read_only };
        assert_eq!(fields(&mount("/a, b", true)), r#"type=bind,"source=/a, b","target=/c",readonly"#);
        assert_eq!(fields(&mount("/\"", false)), r#"type=bind,"source=/""","target=/c""#);
    }
}
