//! Python environments below the target folder: made once, and completed when more is wanted of them.
//!
//! PyTorch from PyPI comes with its CUDA libraries and doesn't import without them even where there is no GPU: 6.5 GB on
//! disk, fetched once in a minute or two. Nothing is written into the tree.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::command::run;

/// An environment (Python's `venv`) that packages are installed into.
pub struct Environment {
    folder: PathBuf,
}

/// The folder of results: cargo's own.
///
/// # Errors
/// Outside the file system.
pub fn target() -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    std::path::absolute(target).context("find the target folder")
}

impl Environment {
    /// The environment of this name in the folder `target`; an empty one is made if it isn't there.
    ///
    /// # Errors
    /// When Python can't make it.
    pub fn open(target: &Path, name: &str) -> anyhow::Result<Environment> {
        let environment = Environment { folder: target.join(name) };
        if !environment.programs().join("pip").exists() {
            run(Command::new("python3").args(["-m", "venv"]).arg(&environment.folder))?;
        }
        Ok(environment)
    }

    /// Where its programs are.
    pub fn programs(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// Its Python.
    pub fn python(&self) -> Command {
        Command::new(self.programs().join("python"))
    }

    /// Installs packages, unless it has just these for this purpose. An option of pip's may be among them.
    ///
    /// # Errors
    /// When pip fails, naming its command line.
    pub fn install(&self, purpose: &str, packages: &[&str]) -> anyhow::Result<()> {
        let (ready, wanted) = (self.folder.join(format!("has-{purpose}")), packages.join("\n"));
        if std::fs::read_to_string(&ready).is_ok_and(|has| has == wanted) {
            return Ok(());
        }
        let install = ["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"];
        run(self.python().args(install).args(packages))?;
        std::fs::write(&ready, wanted).with_context(|| format!("mark the environment as ready for {purpose}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_installed_once_and_again_only_when_others_are_wanted() {
        let folder = std::env::temp_dir().join(format!("gangline-environment-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("bin")).unwrap();
        let environment = Environment { folder: folder.clone() };
        // A Python that fails when it is run.
        std::os::unix::fs::symlink("/bin/false", folder.join("bin/python")).unwrap();
        std::fs::write(folder.join("has-tests"), "a\nb").unwrap();
        assert!(environment.install("tests", &["a", "b"]).is_ok(), "it has them, so nothing is run");
        let error = environment.install("tests", &["a", "c"]).unwrap_err().to_string();
        assert!(error.contains("pip install") && error.contains(" a c"), "{error}");
        assert!(environment.install("peers", &["a", "b"]).is_err(), "for another purpose");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
