//! The built product, which benchmarks and the soak drive.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use xtask::environment;

/// The path of `gangline`: `GANGLINE_BINARY`, or the target folder's.
///
/// # Errors
/// When it isn't there.
pub(crate) fn binary() -> Result<PathBuf> {
    let path = match std::env::var_os("GANGLINE_BINARY") {
        Some(path) => std::path::absolute(path).context("find GANGLINE_BINARY")?,
        None => environment::target()?.join("release/gangline"),
    };
    ensure!(path.is_file(), "{} isn't there: run cargo build --release first", path.display());
    Ok(path)
}
