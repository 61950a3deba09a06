//! The client's own record: what it asked for and what was answered, on disk before it counts.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// An append-only file of JSON lines.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
    began: Instant,
}

impl Record {
    /// A new one.
    ///
    /// # Errors
    /// When it can't be made.
    pub(super) fn create(path: &Path) -> Result<Record> {
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        let file = file.with_context(|| format!("make {}", path.display()))?;
        Ok(Record { file, began: Instant::now() })
    }

    /// Adds a line and waits until it is on disk. This disk isn't the one that fills up.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn note(&mut self, what: &str, of: &Value) -> Result<()> {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let line = json!({"at": since_1970.as_secs_f64(), "after": self.began.elapsed().as_secs_f64(), "what": what, "of": of});
        self.file.write_all(format!("{line}\n").as_bytes()).context("write the record")?;
        self.file.sync_data().context("write the record")
    }

    /// Since the record began.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }
}
