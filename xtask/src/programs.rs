//! Programs that cargo builds, found by what it says about them.

use std::io::BufReader;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use cargo_metadata::{Message, Target};

use crate::command;

/// Runs a build by cargo and returns the path of the one program that was wanted of it.
///
/// # Errors
/// When it doesn't build, or what was wanted isn't among what was built.
pub(crate) fn built(build: &mut Command, is_wanted: impl Fn(&Target) -> bool) -> anyhow::Result<PathBuf> {
    eprintln!("$ {}", command::line(build));
    build.args(["--message-format", "json-render-diagnostics"]).stdout(Stdio::piped());
    let mut child = build.spawn().context("start cargo")?;
    let mut program = None;
    for message in Message::parse_stream(BufReader::new(child.stdout.take().context("read from cargo")?)) {
        if let Message::CompilerArtifact(artifact) = message.context("read from cargo")?
            && is_wanted(&artifact.target)
        {
            program = artifact.executable;
        }
    }
    let status = child.wait().context("wait for cargo")?;
    anyhow::ensure!(status.success(), "`{}` failed: {status}", command::line(build));
    Ok(program.context("find what cargo built")?.into_std_path_buf())
}
