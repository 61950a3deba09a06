//! Containers by Apptainer. A container is a view of the file system; its processes are processes like any others.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{Contained, joined, of_devices};
use crate::container::is_file;
use crate::supervisor::environment::Environment;

/// Runs before the setup command: makes a file of the image unless the node has it, once for all ranks. Whoever reads
/// the file finds it whole. `$0` says that Apptainer is missing.
const FETCH: &str = r#"command -v apptainer >/dev/null 2>&1 || {
  echo "$0, and the job runs in the image $1" >&2; exit 127; }
[ -e "$2" ] || {
  mkdir -p "${2%/*}" && apptainer pull "$2.$$" "docker://$1" && mv "$2.$$" "$2" || { rm -f "$2.$$"; exit 1; }; }
shift 2; [ $# -eq 0 ] || exec "$@""#;
/// Runs before the setup command of an image that is a file.
const FIND: &str = r#"command -v apptainer >/dev/null 2>&1 || {
  echo "$0, and the job runs in the image $1" >&2; exit 127; }
[ -r "$1" ] || { echo "there is no image $1 on this node, or it can't be read" >&2; exit 127; }
shift; [ $# -eq 0 ] || exec "$@""#;
/// Devices of the node, and the option that brings a container the driver's libraries. The devices are there anyway.
const DEVICES: [(&str, &str); 2] = [("/dev/nvidiactl", "--nv"), ("/dev/kfd", "--rocm")];
/// Apptainer gives containers variables with this prefix, without it.
const PREFIX: &str = "APPTAINERENV_";
/// Where Apptainer keeps what it fetches, if not in the home folder.
const CACHE: &str = "APPTAINER_CACHEDIR";

/// Returns the command line before the setup command's.
pub(super) fn fetch(contained: &Contained<'_>) -> Vec<OsString> {
    let image = &contained.container.image;
    if is_file(image) {
        return contained.script(FIND);
    }
    let file = file(image, contained).into_os_string();
    contained.script(FETCH).into_iter().chain([file]).collect()
}

/// Returns the command line without the shell's arguments. Values of variables aren't in it.
pub(super) fn run(contained: &Contained<'_>) -> Vec<OsString> {
    // Values are what they are, although a shell of Apptainer's sets them.
    let fixed = ["apptainer", "--silent", "exec", "--cleanenv", "--no-eval"];
    let mut line: Vec<OsString> = fixed.map(OsString::from).into();
    line.extend(of_devices(&DEVICES));
    line.extend(contained.mounts().iter().map(|mount| joined("--bind=", &mount.with_colons())));
    line.push(joined("--pwd=", contained.spec.workdir.as_os_str()));
    line.push(file(&contained.container.image, contained).into());
    line.push("sh".into());
    line
}

/// Returns what Apptainer's environment has besides: what the container gets.
pub(super) fn variables(contained: &Contained<'_>) -> Environment {
    contained.passed().map(|(name, value)| (joined(PREFIX, name), value.to_owned())).collect()
}

/// Returns the file of an image: itself, or the one into which it is fetched.
fn file(image: &str, contained: &Contained<'_>) -> PathBuf {
    if is_file(image) {
        return image.into();
    }
    let folder = |name: &str| contained.environment.get(&OsString::from(name)).map(PathBuf::from);
    let home = || folder("HOME").map_or_else(|| contained.spec.folder.clone(), |home| home.join(".apptainer/cache"));
    // Names of images have neither of these letters.
    let name = image.replace('/', "+").replace(':', "=");
    folder(CACHE).unwrap_or_else(home).join("gangline").join(format!("{name}.sif"))
}
