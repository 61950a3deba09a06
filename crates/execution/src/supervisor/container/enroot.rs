//! Containers by enroot, which NVIDIA's clusters have. A container is an unpacked image and views of the node's folders; its processes
//! are processes like any others.
//!
//! An image is unpacked once on a node, under a name that tells which one it is, and stays for the next job. What enroot is told is
//! described in its documentation: <https://github.com/NVIDIA/enroot/blob/master/doc/cmd/start.md> and
//! <https://github.com/NVIDIA/enroot/blob/master/doc/image-format.md>.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Contained, Mount, joined};
use crate::container::is_file;
use crate::supervisor::environment::Environment;

/// Runs before the setup command: unpacks the image unless the node has it, once for all jobs; writes what starts programs in it.
/// `$0` says that enroot is missing; `$1` is the image, `$2` the container's name, `$3` where the image is, `$4` the file of the start
/// script, `$5` its text. An image that was unpacked only in part lacks the mark.
const FETCH: &str = r#"command -v enroot >/dev/null 2>&1 || {
  echo "$0, and the job runs in the image $1" >&2; exit 127; }
printf %s "$5" > "$4" || exit
unpack() {
  if [ "$3" = "${3#docker:}" ]; then
    [ -r "$3" ] || { echo "there is no image $3 on this node, or it can't be read" >&2; return 127; }
    file=$3
  else
    folder=$(mktemp -d) && file=$folder/image.sqsh && enroot import --output "$file" "$3" || return 1
  fi
  enroot remove --force "$2" >/dev/null 2>&1
  enroot create --name "$2" "$file" && enroot start --rw --rc "$4" "$2" / sh -c ': > /.gangline'
}
locks=${XDG_CACHE_HOME:-${HOME:-${4%/*}}/.cache}/gangline
mkdir -p "$locks" && exec 9> "$locks/enroot-$(uname -n).lock" && flock 9 || exit
enroot start --rc "$4" "$2" / sh -c '[ -e /.gangline ]' 2>/dev/null || { unpack "$@"; code=$?; }
[ -z "$folder" ] || rm -rf "$folder"
[ "${code:-0}" -eq 0 ] || exit "$code"
exec 9>&-
shift 5; [ $# -eq 0 ] || exec "$@""#;
/// Runs in the container in place of the image's entry point: goes to the folder `$1`, gives variables back what they were
/// before [`encoded`], and becomes the rest of its arguments.
const START: &str = r#"cd "$1" || exit
shift
for name in $GANGLINE_ENCODED; do
  eval "value=\$$name"; value=$(printf '%b.' "$value"); export "$name=${value%.}"
done
unset GANGLINE_ENCODED name value
exec "$@"
"#;
/// The variable with the names of those whose values are encoded.
const ENCODED: &str = "GANGLINE_ENCODED";
/// The file of the start script in the attempt's folder.
const START_FILE: &str = "enroot.rc";
/// What enroot's own settings are to be: no login, which would change the folder and print greetings.
const SETTINGS: [(&str, &str); 1] = [("ENROOT_LOGIN_SHELL", "no")];
/// Variables with this prefix are enroot's own, and it gives containers none of them.
const PREFIX: &str = "ENROOT_";
/// The device whose presence says that the node has NVIDIA's GPUs, and what asks enroot's hook for the driver: all of them are visible,
/// since `CUDA_VISIBLE_DEVICES` counts all. Other devices are there anyway.
const NVIDIA: (&str, [(&str, &str); 2]) =
    ("/dev/nvidiactl", [("NVIDIA_VISIBLE_DEVICES", "all"), ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility")]);
/// Where images are whose names tell no registry, or Docker's.
const DOCKERS: &str = "docker.io";

/// Returns the command line before the setup command's.
pub(super) fn fetch(contained: &Contained<'_>) -> Vec<OsString> {
    let image = &contained.container.image;
    let place = if is_file(image) { image.clone() } else { address(image) };
    let others = [name(image).into(), place.into(), start_file(contained).into(), START.into()];
    contained.script(FETCH).into_iter().chain(others).collect()
}

/// Returns the command line without the shell's arguments. Values of variables aren't in it.
pub(super) fn run(contained: &Contained<'_>) -> Vec<OsString> {
    let mut line: Vec<OsString> = ["enroot", "start"].map(OsString::from).into();
    line.extend(contained.mounts().iter().map(|mount| joined("--mount=", &fields(mount))));
    line.extend(passed(contained).map(|(name, _)| joined("--env=", name)));
    line.extend([joined("--env=", OsStr::new(ENCODED)), "--rc".into(), start_file(contained).into()]);
    if Path::new(NVIDIA.0).exists() {
        line.extend(NVIDIA.1.map(|(name, value)| OsString::from(format!("--env={name}={value}"))));
    }
    line.extend([name(&contained.container.image).into(), contained.spec.workdir.clone().into(), "sh".into()]);
    line
}

/// Returns what enroot's environment has besides: its settings, and the variables that it would change on their way.
pub(super) fn variables(contained: &Contained<'_>) -> Environment {
    let mut variables: Environment = SETTINGS.map(|(name, value)| (name.into(), value.into())).into();
    let changed = passed(contained).filter(|(_, value)| is_awkward(value));
    let changed: Environment = changed.map(|(name, value)| (name.to_owned(), encoded(value))).collect();
    let names: Vec<&OsStr> = changed.keys().map(OsString::as_os_str).collect();
    variables.insert(ENCODED.into(), names.join(OsStr::new(" ")));
    variables.extend(changed);
    variables
}

/// Returns the variables that enroot takes: a name is a shell's, and none of its own.
fn passed<'a>(contained: &'a Contained<'_>) -> impl Iterator<Item = (&'a OsStr, &'a OsStr)> {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    contained.passed().filter(move |(name, _)| {
        let bytes = name.as_bytes();
        bytes.iter().all(is_letter) && !bytes[0].is_ascii_digit() && !bytes.starts_with(PREFIX.as_bytes())
    })
}

/// Reports whether a value doesn't come through: enroot writes variables into a file, a line each, and strips quotes around values.
fn is_awkward(value: &OsStr) -> bool {
    value.as_bytes().iter().any(|byte| matches!(byte, b'\n' | b'"' | b'\''))
}

/// Returns a value as `printf %b` reads it (POSIX, printf), without lines and quotes.
fn encoded(value: &OsStr) -> OsString {
    let letter = |byte: &u8| match byte {
        b'\n' | b'"' | b'\'' | b'\\' => format!("\\0{byte:03o}").into_bytes(),
        other => vec![*other],
    };
    OsString::from_vec(value.as_bytes().iter().flat_map(letter).collect())
}

fn start_file(contained: &Contained<'_>) -> PathBuf {
    contained.spec.folder.join(START_FILE)
}

/// Returns the name of the unpacked image. That of a file tells its size and its time, so that another file at its place is
/// another image.
fn name(image: &str) -> String {
    let plain = format!("gangline+{}", image.trim_start_matches('/').replace('/', "+"));
    match Path::new(image).metadata() {
        Ok(file) if is_file(image) => format!("{plain}+{}+{}", file.size(), file.mtime()),
        _ => plain,
    }
}

/// Returns an image's address in enroot's form, `docker://REGISTRY#PATH:TAG`.
fn address(image: &str) -> String {
    let is_registry = |first: &str| first.contains(['.', ':']) || first == "localhost";
    match image.split_once('/').filter(|(first, _)| is_registry(first)) {
        Some((DOCKERS, path)) => format!("docker://{path}"),
        Some((registry, path)) => format!("docker://{registry}#{path}"),
        None => format!("docker://{image}"),
    }
}

/// Returns a mount as the fields of an fstab(5) line, with colons between them. Blanks, which end a field, and backslashes are written as
/// octal escapes.
fn fields(mount: &Mount) -> OsString {
    let options = if mount.is_read_only { "x-create=auto,rbind,ro" } else { "x-create=auto,rbind" };
    let letter = |byte: &u8| match byte {
        b' ' | b'\t' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        other => vec![*other],
    };
    let places = [mount.source.as_os_str(), mount.target.as_os_str()].join(OsStr::new(":"));
    let mut fields: Vec<u8> = places.as_bytes().iter().flat_map(letter).collect();
    fields.extend(format!(":none:{options}").into_bytes());
    OsString::from_vec(fields)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn images_have_addresses_in_enroots_form_and_names_of_their_own() {
        let cases = [
            ("python:3.12", "docker://python:3.12"),
            ("pytorch/pytorch:2.6.0", "docker://pytorch/pytorch:2.6.0"),
            ("docker.io/pytorch/pytorch", "docker://pytorch/pytorch"),
            ("nvcr.io/nvidia/pytorch:25.01-py3", "docker://nvcr.io#nvidia/pytorch:25.01-py3"),
            ("localhost:5000/a", "docker://localhost:5000#a"),
        ];
        for (image, expected) in cases {
            assert_eq!(address(image), expected);
        }
        assert_eq!(name("nvcr.io/nvidia/pytorch:25.01-py3"), "gangline+nvcr.io+nvidia+pytorch:25.01-py3");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_str().expect("text");
        let before = name(path);
        assert!(before.starts_with("gangline+tmp+") && !before.contains('/'), "{before}");
        std::fs::write(path, "another image").expect("it is ours");
        assert_ne!(name(path), before);
    }

    #[test]
    fn mounts_are_lines_of_fstab_whatever_is_in_their_paths() {
        let mount = |source: &str, target: &str, is_read_only| Mount {
            source: source.into(),
            target: target.into(),
            is_read_only,
        };
        assert_eq!(fields(&mount("/a b", "/c\\d", true)), "/a\\040b:/c\\134d:none:x-create=auto,rbind,ro");
        assert_eq!(fields(&mount("/a", "/a", false)), "/a:/a:none:x-create=auto,rbind");
    }

    #[test]
    fn the_start_script_gives_variables_back_what_they_were() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join(START_FILE);
        std::fs::write(&script, START).expect("it is writable");
        let values = ["\"quoted\"", "two\nlines\n", "it's \\0101 $HOME `id` %b", "\n", "'"];
        for value in values {
            let coded = encoded(OsStr::new(value));
            assert!(is_awkward(OsStr::new(value)) && !is_awkward(&coded), "{coded:?}");
            let ran = Command::new("sh")
                .arg(&script)
                .args(["/", "sh", "-c", "printf '%s|%s|%s' \"$PWD\" \"$X\" \"${GANGLINE_ENCODED-unset}\""])
                .envs([("X", coded.as_os_str()), (ENCODED, OsStr::new("X"))])
                .output()
                .expect("a shell");
            assert_eq!(String::from_utf8_lossy(&ran.stdout), format!("/|{value}|unset"));
        }
        assert!(!is_awkward(OsStr::new("plain $HOME \\n %s")));
    }
}
