//! Tries the package as a machine would have it that has nothing else: no library, no shell.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::command::{output, run};

/// How long the control plane may take to answer.
const START_MAX: Duration = Duration::from_secs(60);

/// A control plane that ends with its trial.
struct Plane(Child);

impl Drop for Plane {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Unpacks the package into the empty folder `system`, and plans, starts a control plane and asks it there.
///
/// # Errors
/// When anything of that fails.
pub(super) fn try_package(package: &Path, system: &Path) -> anyhow::Result<()> {
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(system))?;
    for folder in ["tmp", "var/lib/gangline", "proc", "dev"] {
        fs::create_dir_all(system.join(folder))?;
    }
    let version = output(&mut inside(system, &["--version"]))?;
    ensure!(version.contains(env!("CARGO_PKG_VERSION")), "the program says that it is {version}");
    let plane = ["--data", "/var/lib/gangline", "up", "--config", "/etc/gangline/gangline.toml", "--node", "box=cpu:2"];
    let plane = inside(system, &[&plane[..], &["--listen", "127.0.0.1:0"]].concat()).spawn();
    let _plane = Plane(plane.context("start the control plane in the trial's root")?);
    let began = Instant::now();
    while output(&mut inside(system, &["--data", "/var/lib/gangline", "ps"])).is_err() {
        ensure!(began.elapsed() < START_MAX, "the control plane doesn't answer in the trial's root");
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("{} answered in an empty root: {}", package.display(), version.trim());
    Ok(())
}

/// The program with the folder as its root, in namespaces of its own, so that no right of root's is needed.
fn inside(system: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--root"]).arg(system);
    command.arg("/usr/bin/gangline").args(arguments);
    command
}
