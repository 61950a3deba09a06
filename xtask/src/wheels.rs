//! `wheels`: the wheels that others install: for x86-64 and 64-bit ARM, and for every Linux with glibc 2.17 or newer (CentOS 7's).
//!
//! The linker is zig's, which has the symbols of each version of glibc and other processors' libraries (`maturin build --zig`). What
//! came out is judged by `auditwheel`, and by the versions of the symbols that it lists; the ARM wheel is tried on an emulated processor. Takes two minutes for each processor, so it is no
//! part of the gate.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::command::run;
use crate::emulated;
use crate::environment::{self, Environment};
use crate::wheel::MATURIN;

/// What builds and judges.
const PACKAGES: [&str; 4] = [MATURIN, "ziglang>=0.14", "auditwheel>=6", "numpy>=2,<3"];
/// Processors, by Rust's names for them.
const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];
/// The oldest glibc that the wheels run with, and that one as a platform's tag.
const GLIBC: (u32, u32) = (2, 17);
const PLATFORM: &str = "manylinux_2_17";
/// What a wheel has to do once it is installed.
const TRIAL: &str = "
import gangline, numpy, platform, tempfile
weights = numpy.arange(1_000_000, dtype='float32')
with gangline.Store(tempfile.mkdtemp()) as store:
    store.save(1, {'w': weights, 'step': 1}).durable()
    store.save(2, {'w': weights + 1, 'step': 2}).durable()
    assert store.load()['step'] == 2 and (store.load(1)['w'] == weights).all()
    assert store.load(verify='background')['w'][-1] == 1_000_000
print('gangline', gangline.__version__, 'saved and loaded on', platform.machine())
";

/// Builds the wheels into `target/wheels-for-all/` and judges them.
///
/// # Errors
/// When one doesn't build, asks for a newer glibc, or doesn't work here.
pub(crate) fn wheels() -> anyhow::Result<bool> {
    let target = environment::target()?;
    let environment = Environment::open(&target, "wheels-venv")?;
    environment.install("wheels", &PACKAGES)?;
    let folder = target.join("wheels-for-all");
    let _ = std::fs::remove_dir_all(&folder);
    for processor in TARGETS {
        run(Command::new("rustup").args(["target", "add", processor]))?;
        let wheel = build(&environment, &target, &folder.join(processor), processor)?;
        judge(&environment, &wheel)?;
        if processor.starts_with(std::env::consts::ARCH) {
            let install = ["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"];
            run(environment.python().args(install).arg(&wheel))?;
            run(environment.python().args(["-c", TRIAL]).env_remove("PYTHONPATH").current_dir(&target))?;
        } else if processor.starts_with(emulated::PROCESSOR) {
            emulated::try_wheel(&environment, &target, &wheel, TRIAL)?;
        }
    }
    Ok(true)
}

fn build(environment: &Environment, target: &Path, folder: &Path, processor: &str) -> anyhow::Result<PathBuf> {
    let programs = environment.programs();
    // Maturin looks for zig there.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs.clone()).chain(std::env::split_paths(&path)))?;
    let mut build = Command::new(programs.join("maturin"));
    build.args(["build", "--release", "--locked", "--quiet", "--manifest-path", "python/Cargo.toml", "--zig"]);
    build.args(["--compatibility", PLATFORM, "--target", processor, "--interpreter"]).arg(programs.join("python"));
    run(build.arg("--out").arg(folder).env("CARGO_TARGET_DIR", target).env("PATH", path))?;
    let entries = std::fs::read_dir(folder).context("look for the wheel")?;
    let wheels: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    ensure!(wheels.len() == 1, "maturin built {} wheels for {processor}", wheels.len());
    Ok(wheels[0].clone())
}

/// Has auditwheel look at what the wheel asks of the system.
fn judge(environment: &Environment, wheel: &Path) -> anyhow::Result<()> {
    let output = Command::new(environment.programs().join("auditwheel")).arg("show").arg(wheel).output()?;
    let told = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "auditwheel: {}", String::from_utf8_lossy(&output.stderr));
    let newest = newest_glibc(&told).context("auditwheel lists no symbols of glibc")?;
    let (name, size) = (wheel.file_name().unwrap_or_default().display(), std::fs::metadata(wheel)?.len());
    ensure!(newest <= GLIBC && told.contains(PLATFORM), "{name} asks for glibc {}.{}: {told}", newest.0, newest.1);
    println!("{name}: {size} bytes, needs glibc {}.{}", newest.0, newest.1);
    Ok(())
}

/// The newest version of glibc in a list of symbols' versions.
fn newest_glibc(told: &str) -> Option<(u32, u32)> {
    let versions = told.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let mut numbers = rest[..end].split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_is_found_by_its_number_and_not_by_its_text() {
        let told =
            "libc.so.6 with versions\n{'GLIBC_2.3', 'GLIBC_2.9', 'GLIBC_2.2.5', 'GLIBC_2.17'}, libm.so.6 {'GLIBC_2.4'}";
        assert_eq!(newest_glibc(told), Some((2, 17)));
        assert_eq!(newest_glibc("{'GLIBC_2.34', 'GLIBC_2.17'}"), Some((2, 34)));
        assert_eq!(newest_glibc("no external shared libraries"), None);
    }
}
