//! Copies of what tracking keeps, for backups: the database as of one moment, and the artifacts that it names, but for
//! those whose contents are objects elsewhere.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::Failure;
use super::blobs::{Blobs, Digest};
use super::service::DATABASE;
use crate::link_or_copy;

/// The folder of tracking in a data folder.
pub const TRACKING_FOLDER: &str = "tracking";
/// The folder of artifacts in that one.
pub const ARTIFACTS_FOLDER: &str = "artifacts";

/// Copies the folder of tracking of a data folder into another folder, while the control plane may run; returns the names of
/// the files, as `tracking/tracking.db`. Artifacts never change, so they are linked where possible. Without tracking there is
/// nothing to copy.
///
/// # Errors
/// If something can't be read or written.
pub fn copy_tracking(data: &Path, to: &Path) -> Result<Vec<String>, Failure> {
    let (from, to) = (data.join(TRACKING_FOLDER), to.join(TRACKING_FOLDER));
    if !from.join(DATABASE).exists() {
        return Ok(Vec::new());
    }
    fs::create_dir_all(&to)?;
    let database = to.join(DATABASE);
    // A reader of a write-ahead log writes its index.
    let connection = Connection::open_with_flags(from.join(DATABASE), OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let text = database.to_str().ok_or_else(|| Failure::Store("the backup's path isn't UTF-8".into()))?;
    connection.execute("VACUUM INTO ?1", [text])?;
    drop(connection);
    let mut names = vec![format!("{TRACKING_FOLDER}/{DATABASE}")];
    names.extend(copy_artifacts(&Connection::open(&database)?, &from, &to)?);
    File::open(&database)?.sync_all()?;
    Ok(names)
}

/// Reports whether a backup may have a file of this name as tracking's.
#[must_use]
pub fn is_of_tracking(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    match parts.as_slice() {
        [TRACKING_FOLDER, file] => *file == DATABASE,
        [TRACKING_FOLDER, ARTIFACTS_FOLDER, first, rest] => is_hex(first, 2) && is_hex(rest, 62),
        _ => false,
    }
}

fn copy_artifacts(copied: &Connection, from: &Path, to: &Path) -> Result<Vec<String>, Failure> {
    let version: i64 = copied.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    // Before version 3, all contents were in the data folder.
    let in_folder = if version < 3 { "1" } else { "place IS NULL" };
    let digests: Vec<[u8; 32]> = copied
        .prepare(&format!("SELECT DISTINCT digest FROM artifact WHERE {in_folder} ORDER BY digest"))?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let (from, to) = (Blobs::of(from.join(ARTIFACTS_FOLDER)), Blobs::of(to.join(ARTIFACTS_FOLDER)));
    let mut names = Vec::new();
    for digest in digests {
        let (from, to) = (from.path(Digest(digest)), to.path(Digest(digest)));
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        match link_or_copy(&from, &to) {
            Ok(()) => {
                let text = Digest(digest).to_string();
                names.push(format!("{TRACKING_FOLDER}/{ARTIFACTS_FOLDER}/{}/{}", &text[..2], &text[2..]));
            }
            // It was deleted since the database was copied.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                copied.execute(&format!("DELETE FROM artifact WHERE digest = ?1 AND {in_folder}"), [digest])?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(names)
}
