//! A 64-bit ARM that is emulated, to try a wheel on: QEMU's user mode, and Debian's Python for that processor in a folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::command::{run, succeeds};
use crate::environment::Environment;
use crate::tools::{self, Tool};

/// The processor, by Rust's name.
pub(crate) const PROCESSOR: &str = "aarch64";
const QEMU: Tool = Tool { program: "qemu-aarch64-static", package: "qemu-user-static" };
const DEBOOTSTRAP: Tool = Tool { program: "debootstrap", package: "debootstrap" };
/// The release of Debian, and the version of its Python.
const DEBIAN: &str = "bookworm";
const PYTHON: &str = "3.11";

/// Installs the wheel for the emulated processor and runs `trial`, a Python program, with it.
///
/// # Errors
/// When Debian's packages can't be fetched, the wheel can't be installed, or the program fails.
pub(crate) fn try_wheel(environment: &Environment, target: &Path, wheel: &Path, trial: &str) -> anyhow::Result<()> {
    if let Err(missing) = tools::ensure(&[&QEMU, &DEBOOTSTRAP], tools::is_ci()) {
        println!("skipped: {} on an emulated processor: {missing}", wheel.display());
        return Ok(());
    }
    let root = root(target)?;
    let packages = target.join("arm64-packages");
    let _ = std::fs::remove_dir_all(&packages);
    let install = ["-m", "pip", "install", "--quiet", "--only-binary=:all:", "--platform", "manylinux2014_aarch64"];
    let mut install_for_arm = environment.python();
    install_for_arm.args(install).args(["--python-version", PYTHON, "--target"]).arg(&packages);
    run(install_for_arm.arg("numpy>=2,<3").arg(wheel))?;
    let mut emulated = Command::new(QEMU.program);
    emulated.arg("-L").arg(&root).arg(root.join("usr/bin").join(format!("python{PYTHON}"))).args(["-c", trial]);
    run(emulated.env("PYTHONPATH", &packages).current_dir(target))
}

/// The folder with Debian's files for the processor; made if it isn't there.
fn root(target: &Path) -> anyhow::Result<PathBuf> {
    let (root, begun) = (target.join("arm64-root"), target.join("arm64-root.begun"));
    if root.exists() {
        return Ok(root);
    }
    let _ = std::fs::remove_dir_all(&begun);
    let mut debootstrap = Command::new(DEBOOTSTRAP.program);
    debootstrap.args(["--arch=arm64", "--foreign", "--variant=minbase", "--include=python3", DEBIAN]).arg(&begun);
    ensure!(succeeds(&mut debootstrap)?, "debootstrap has written why into {}", begun.join("debootstrap").display());
    // Debootstrap unpacks only what a system needs to install the others itself. Nothing is to run here, so unpacking is enough.
    let archives = begun.join("var/cache/apt/archives");
    let entries = std::fs::read_dir(&archives).with_context(|| format!("read {}", archives.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    for archive in files.filter(|path| path.extension().is_some_and(|extension| extension == "deb")) {
        let unpack = "dpkg-deb --fsys-tarfile \"$1\" | tar -x --keep-directory-symlink -f - -C \"$2\"";
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", unpack, "unpack"]).arg(archive).arg(&begun);
        ensure!(shell.status()?.success(), "`{unpack}` failed in {}", begun.display());
    }
    std::fs::rename(&begun, &root).with_context(|| format!("name {}", root.display()))?;
    Ok(root)
}
