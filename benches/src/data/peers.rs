//! The peers, in a process of Python's with an environment of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use xtask::environment::{self, Environment};
use xtask::wheel::TORCH;

/// What the peers are and import.
const PACKAGES: [&str; 10] = [
    "numpy>=2,<3",
    TORCH,
    "megatron-core>=0.16,<0.17",
    "transformers>=5,<6",
    "torchvision",
    "lightning_utilities",
    "catalogue",
    "requests",
    "pillow",
    "tqdm",
];
/// Those that would bring along much more than they need here.
const ALONE: [&str; 14] = [
    "--no-deps",
    "litdata==0.2.76",
    "mosaicml-streaming==0.13.0",
    "boto3",
    "botocore",
    "s3transfer",
    "jmespath",
    "python-dateutil<3",
    "six",
    "brotli",
    "python-snappy",
    "cramjam",
    "zstd",
    "xxhash",
];

pub(super) struct Peers {
    python: PathBuf,
    /// Where the tokens lie in the peers' own formats.
    folder: PathBuf,
}

impl Peers {
    /// Installs them.
    pub(super) fn install(folder: &Path) -> Result<Peers> {
        let own = Environment::open(&environment::target()?, "data-venv")?;
        own.install("peers", &PACKAGES)?;
        own.install("peers alone", &ALONE)?;
        Ok(Peers { python: own.programs().join("python"), folder: folder.join("peers") })
    }

    /// Writes the first part of the tokens in the peers' formats.
    pub(super) fn convert(&self, tokens: &Path) -> Result<()> {
        self.ask("convert", &[tokens.as_os_str()])
    }

    /// Samples a second from memory, by peer.
    pub(super) fn warm(&self, tokens: &Path) -> Result<BTreeMap<String, f64>> {
        self.ask("warm", &[tokens.as_os_str()])
    }

    /// Samples a second of numpy's map of a file that isn't in memory.
    pub(super) fn cold(&self, tokens: &Path) -> Result<f64> {
        self.ask("cold", &[tokens.as_os_str()])
    }

    /// Samples a second of an epoch from an S3 server that has what [`Peers::sets`] returns, by peer.
    pub(super) fn remote(&self, endpoint: &str) -> Result<BTreeMap<String, f64>> {
        self.ask("remote", &[endpoint.as_ref()])
    }

    /// The files of the peers' formats, by their names below the folder.
    pub(super) fn sets(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut files = Vec::new();
        for set in ["mds", "litdata"] {
            let Ok(entries) = std::fs::read_dir(self.folder.join(set)) else { continue };
            for entry in entries {
                let entry = entry.context("list a peer's files")?;
                let name = format!("{set}/{}", entry.file_name().to_string_lossy());
                files.push((name, std::fs::read(entry.path()).context("read a peer's file")?));
            }
        }
        Ok(files)
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, what: &str, arguments: &[&std::ffi::OsStr]) -> Result<T> {
        let mut command = Command::new(&self.python);
        command.args(["-c", include_str!("peers.py"), what]).arg(&self.folder).args(arguments);
        // Where `cargo xtask python` has installed the package.
        command.env("PACKAGE_OF_TESTS", environment::target()?.join("python-venv"));
        let output = command.output().context("start Python")?;
        ensure!(output.status.success(), "the peers failed: {}", String::from_utf8_lossy(&output.stderr));
        // Peers print what they like; the answer is the last line.
        let text = String::from_utf8_lossy(&output.stdout);
        let last = text.lines().last().context("the peers say nothing")?;
        serde_json::from_str(last).with_context(|| format!("read what the peers printed: {last}"))
    }
}
