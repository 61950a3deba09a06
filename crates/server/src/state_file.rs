//! A small file of the data folder that outlives a restart: replaced as a whole, and durable once it is written.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The file, and what it has.
#[derive(Debug, Default)]
pub(crate) struct StateFile {
    path: Option<PathBuf>,
    saved: String,
}

impl StateFile {
    /// Returns the file at this path.
    pub(crate) fn at(path: PathBuf) -> StateFile {
        StateFile { path: Some(path), saved: String::new() }
    }

    /// Replaces the file, unless it has this text already.
    ///
    /// # Errors
    /// Outside the file system; the file then has the text before.
    pub(crate) fn write(&mut self, text: String) -> io::Result<()> {
        let Some(path) = self.path.as_deref().filter(|_| text != self.saved) else { return Ok(()) };
        let begun = path.with_extension("json.new");
        let mut file = fs::File::create(&begun)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&begun, path)?;
        fs::File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
        self.saved = text;
        Ok(())
    }
}

/// Returns the text of a file; none if there is no file.
///
/// # Errors
/// Outside the file system, for text that isn't UTF-8, and for a file above `bytes_max`.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Option<String>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(about) if about.len() > bytes_max => {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes")))
        }
        Ok(_) => fs::read_to_string(path).map(Some),
    }
}

/// Renames a file that can't be used, so that the next save doesn't destroy it. Returns its new path.
pub(crate) fn put_aside(path: &Path) -> PathBuf {
    let aside = path.with_extension("json.unreadable");
    // The next save replaces the file if this fails.
    let _ = fs::rename(path, &aside);
    aside
}
