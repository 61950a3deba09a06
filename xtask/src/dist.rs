//! `dist`: what others install: a tarball with a static binary, and a Debian package of the same.
//!
//! The binary is linked against musl with zig's compiler, so that it asks nothing of the system but a kernel. The
//! package is made by `dpkg-deb`, and tried in a folder with nothing else in it as a root. Takes some minutes, so it
//! is no part of the gate.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::command::{output, run};
use crate::environment::{self, Environment};
use crate::tools::{self, Tool};
use system::{VERSION, lay_out, put, tarball};
use trial::try_package;

mod system;
mod trial;

const PACKAGES: [&str; 2] = ["cargo-zigbuild>=0.20,<1", "ziglang>=0.14"];
const DPKG: Tool = Tool { program: "dpkg-deb", package: "dpkg" };
/// Rust's name of the processor and system, and Debian's of the processor.
const TARGETS: [(&str, &str); 2] = [("x86_64-unknown-linux-musl", "amd64"), ("aarch64-unknown-linux-musl", "arm64")];
/// What Debian runs once the files are there: makes the user, and has systemd read the unit.
const AFTER_INSTALL: &str = "#!/bin/sh
set -e
if command -v systemd-sysusers >/dev/null; then systemd-sysusers gangline.conf; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
";
/// Options of `dist`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Also builds for 64-bit ARM; that binary isn't tried.
    #[arg(long)]
    arm: bool,
}

/// Builds the tarballs and packages into `target/dist/` and tries those that run here.
///
/// # Errors
/// When one doesn't build, isn't static, or doesn't work in an empty root.
pub(crate) fn dist(options: &Options) -> anyhow::Result<bool> {
    tools::ensure(&[&DPKG], tools::is_ci())?;
    let target = environment::target()?;
    let environment = Environment::open(&target, "dist-venv")?;
    environment.install("dist", &PACKAGES)?;
    let folder = target.join("dist");
    let _ = fs::remove_dir_all(&folder);
    let native = build(&environment, &target, TARGETS[0].0)?;
    for (index, (name, processor)) in TARGETS.into_iter().enumerate() {
        if index > 0 && !options.arm {
            println!("left out: {name}; --arm builds it");
            continue;
        }
        let binary = if index == 0 { native.clone() } else { build(&environment, &target, name)? };
        let system = folder.join(format!("gangline_{VERSION}_{processor}"));
        lay_out(&system, &binary, &native)?;
        let tarball = tarball(&system, &folder.join(format!("gangline-{VERSION}-{name}.tar.gz")))?;
        let package = package(&system, processor)?;
        if index == 0 {
            try_package(&package, &folder.join("trial"))?;
        }
        for file in [tarball, package] {
            let sum = output(Command::new("sha256sum").arg(&file))?;
            println!("{}  {} bytes", sum.trim(), fs::metadata(&file)?.len());
        }
    }
    Ok(true)
}

/// Packs a built binary into a tarball like the one that users unpack, and returns the tarball's path.
///
/// # Errors
/// When a file can't be read or written.
pub(crate) fn tarball_of(binary: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let _ = fs::remove_dir_all(folder);
    let system = folder.join("system");
    lay_out(&system, binary, binary)?;
    tarball(&system, &folder.join(format!("gangline-{VERSION}.tar.gz")))
}

/// Builds the static binary for a processor; its path.
fn build(environment: &Environment, target: &Path, name: &str) -> anyhow::Result<PathBuf> {
    run(Command::new("rustup").args(["target", "add", name]))?;
    let programs = environment.programs();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs.clone()).chain(std::env::split_paths(&path)))?;
    let mut build = Command::new(programs.join("cargo-zigbuild"));
    build.args(["zigbuild", "--release", "--locked", "--package", "gangline-cli", "--target", name]);
    // Functions' names stay for backtraces; the lines' tables are twice the size of the program.
    build.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    run(build.env("CARGO_TARGET_DIR", target).env("PATH", path))?;
    let binary = target.join(name).join("release/gangline");
    let headers = fs::read(&binary).with_context(|| format!("read {}", binary.display()))?;
    ensure!(!asks_for_loader(&headers), "{} is linked dynamically", binary.display());
    Ok(binary)
}

/// Reports whether an ELF file names a program to load it (a segment PT_INTERP, type 3), as dynamic ones do.
///
/// Source: the System V ABI, program header of 64-bit files (<https://refspecs.linuxfoundation.org/elf/gabi4+/ch5.pheader.html>).
fn asks_for_loader(file: &[u8]) -> bool {
    let number = |at: usize, size: usize| {
        let bytes = file.get(at..at + size).unwrap_or_default();
        bytes.iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let (begin, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).any(|index| number(begin + index * size, 4) == 3)
}

/// Makes the Debian package beside the system's folder; its path.
fn package(system: &Path, processor: &str) -> anyhow::Result<PathBuf> {
    let size = output(Command::new("du").args(["-sk", "--apparent-size"]).arg(system))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let control = format!(
        "Package: gangline\nVersion: {VERSION}\nArchitecture: {processor}\nSection: admin\nPriority: optional\n\
         Maintainer: Gangline's developers <gangline@localhost>\nInstalled-Size: {size}\n\
         Recommends: systemd\nSuggests: slurm-client, podman | docker.io\n\
         Description: control plane for LLM training\n \
         Plans, schedules, runs, checkpoints, watches and accounts for training jobs, on one machine or on Slurm.\n"
    );
    let debian = system.join("DEBIAN");
    put(control.as_bytes(), &debian.join("control"), 0o644)?;
    put(b"/etc/gangline/gangline.toml\n", &debian.join("conffiles"), 0o644)?;
    put(AFTER_INSTALL.as_bytes(), &debian.join("postinst"), 0o755)?;
    let package = system.with_file_name(format!("gangline_{VERSION}_{processor}.deb"));
    run(Command::new("dpkg-deb").args(["--build", "--root-owner-group"]).arg(system).arg(&package))?;
    Ok(package)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::root;

    #[test]
    fn a_dynamic_program_asks_for_a_loader() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(asks_for_loader(&own), "tests are linked against the system's libc");
        assert!(!asks_for_loader(b"\x7fELF, cut off"));
    }

    #[test]
    fn systemd_accepts_the_unit_and_those_of_the_guide() {
        let root = root().unwrap();
        let guide = fs::read_to_string(root.join("docs/guides/deployment.md")).unwrap();
        let folder = std::env::temp_dir().join(format!("gangline-units-{}", std::process::id()));
        let unit = fs::read_to_string(root.join("packaging/gangline.service")).unwrap();
        put_unit(&folder, "gangline.service", &unit);
        for block in guide.split("<!-- unit ").skip(1) {
            let (name, rest) = block.split_once(" -->\n```ini\n").expect("a name and a block");
            put_unit(&folder, name, rest.split("```").next().unwrap());
        }
        let units: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(units.len(), 3, "the service, and the guide's backup and its timer");
        match Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => println!("skipped: systemd isn't installed"),
            said => {
                let said = said.unwrap();
                let told = String::from_utf8_lossy(&said.stderr).into_owned();
                // Before release 254 systemd doesn't know it, and goes on without it.
                let mut told = told.lines().filter(|line| !line.contains("'DelegateSubgroup'"));
                let complaint = told.find(|line| line.contains("gangline"));
                assert!(said.status.success() && complaint.is_none(), "{complaint:?}");
            }
        }
        fs::remove_dir_all(folder).unwrap();
    }

    /// The user and the program needn't be here for a unit to be well-formed.
    fn put_unit(folder: &Path, name: &str, unit: &str) {
        let unit = unit.replace("/usr/bin/gangline", "/bin/true").replace("=gangline\n", "=root\n");
        put(unit.as_bytes(), &folder.join(name), 0o644).unwrap();
    }
}
