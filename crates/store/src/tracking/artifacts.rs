//! Which artifact has which contents. Artifacts form a tree of paths; a folder is there while something lies in it.

use gangline_tracking::{Refusal, UnixMillis, limits};
use rusqlite::{OptionalExtension, Row, params};

use super::blobs::Digest;
use super::{Failure, Reading, Writing};

/// The most entries of a listing.
const LISTED_MAX: usize = 10_000;

/// An artifact's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredArtifact {
    /// The digest, which names the file or object.
    pub digest: Digest,
    /// The size in bytes.
    pub bytes: u64,
    /// The address of the place with the object; none if the contents are a file in the data folder.
    pub place: Option<String>,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactEntry {
    /// Its name in the folder.
    pub name: String,
    /// Its size in bytes; none if it is a folder.
    pub bytes: Option<u64>,
}

impl Reading<'_> {
    /// Returns the name of this database, which no other has but its copies.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn installation(&self) -> Result<String, Failure> {
        Ok(self.0.prepare_cached("SELECT id FROM installation")?.query_row([], |row| row.get(0))?)
    }

    /// Returns an artifact's contents.
    ///
    /// # Errors
    /// If there is none.
    pub fn artifact(&self, path: &str) -> Result<StoredArtifact, Failure> {
        limits::check_artifact_path(path)?;
        let sql = "SELECT digest, bytes, place FROM artifact WHERE path = ?1";
        let found = self.0.prepare_cached(sql)?.query_row([path], stored).optional()?;
        found.ok_or_else(|| Refusal::missing(format!("No such artifact: '{path}'")).into())
    }

    /// Lists what lies in a folder, by name; the root is the empty path. An artifact has nothing in it.
    ///
    /// # Errors
    /// If the path leads elsewhere.
    pub fn list_artifacts(&self, folder: &str) -> Result<Vec<ArtifactEntry>, Failure> {
        let prefix = match folder {
            "" => String::new(),
            folder => {
                limits::check_artifact_path(folder)?;
                format!("{folder}/")
            }
        };
        let sql = "SELECT path, bytes FROM artifact WHERE path >= ?1 ORDER BY path LIMIT 1";
        let mut statement = self.0.prepare_cached(sql)?;
        let mut listed: Vec<ArtifactEntry> = Vec::new();
        let mut from = prefix.clone();
        while listed.len() < LISTED_MAX {
            let row = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
            let Some((path, bytes)) = next(&mut statement, &from, row)? else { break };
            let Some(rest) = path.strip_prefix(&prefix) else { break };
            match rest.split_once('/') {
                None => {
                    listed.push(ArtifactEntry { name: rest.to_owned(), bytes: Some(bytes.cast_unsigned()) });
                    // The next path that can follow.
                    from = format!("{path}\0");
                }
                Some((name, _)) => {
                    listed.push(ArtifactEntry { name: name.to_owned(), bytes: None });
                    // '0' follows '/', so this skips everything in the folder.
                    from = format!("{prefix}{name}0");
                }
            }
        }
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        listed.dedup_by(|one, other| one.name == other.name);
        Ok(listed)
    }
}

/// Returns the first path from `from` on.
fn next<T>(
    statement: &mut rusqlite::CachedStatement<'_>,
    from: &str,
    row: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    statement.query_row([from], row).optional()
}

impl Writing<'_> {
    /// Keeps an artifact in place of one that had its path. Returns contents that no artifact has any more.
    ///
    /// # Errors
    /// If the path leads elsewhere, or passes through another artifact.
    pub fn put_artifact(
        &self,
        path: &str,
        stored: &StoredArtifact,
        now: UnixMillis,
    ) -> Result<Option<StoredArtifact>, Failure> {
        limits::check_artifact_path(path)?;
        self.refuse_in_the_way(path)?;
        let before = self.contents_of(path)?;
        let sql = "INSERT OR REPLACE INTO artifact (path, digest, bytes, stored, place) VALUES (?1, ?2, ?3, ?4, ?5)";
        let bytes = i64::try_from(stored.bytes).unwrap_or(i64::MAX);
        self.0.prepare_cached(sql)?.execute(params![path, stored.digest.0.as_slice(), bytes, now.0, stored.place])?;
        before.map_or(Ok(None), |before| self.unused(before))
    }

    /// Removes an artifact, or all that lie in a folder. Returns contents that no artifact has any more.
    ///
    /// # Errors
    /// If the path leads elsewhere, or nothing is there.
    pub fn remove_artifacts(&self, path: &str) -> Result<Vec<StoredArtifact>, Failure> {
        limits::check_artifact_path(path)?;
        let (folder, end) = (format!("{path}/"), format!("{path}0"));
        let sql = "DELETE FROM artifact WHERE path = ?1 OR (path > ?2 AND path < ?3) RETURNING digest, bytes, place";
        let mut statement = self.0.prepare_cached(sql)?;
        let mut removed: Vec<StoredArtifact> =
            statement.query_map(params![path, folder, end], stored)?.collect::<Result<_, _>>()?;
        if removed.is_empty() {
            return Err(Refusal::missing(format!("No such artifact: '{path}'")).into());
        }
        removed.sort_unstable_by(|one, other| (one.digest, &one.place).cmp(&(other.digest, &other.place)));
        removed.dedup();
        let unused: Result<Vec<Option<StoredArtifact>>, Failure> =
            removed.into_iter().map(|stored| self.unused(stored)).collect();
        Ok(unused?.into_iter().flatten().collect())
    }

    /// Refuses a path in a folder that is an artifact, and one of a folder with artifacts.
    fn refuse_in_the_way(&self, path: &str) -> Result<(), Failure> {
        let ends = path.match_indices('/').map(|(end, _)| &path[..end]);
        for folder in ends {
            if self.contents_of(folder)?.is_some() {
                return Err(Refusal::invalid(format!("'{folder}' is an artifact, so nothing can lie in it")).into());
            }
        }
        let sql = "SELECT 1 FROM artifact WHERE path > ?1 AND path < ?2 LIMIT 1";
        let (folder, end) = (format!("{path}/"), format!("{path}0"));
        match self.0.prepare_cached(sql)?.query_row([folder, end], |_| Ok(())).optional()? {
            None => Ok(()),
            Some(()) => Err(Refusal::invalid(format!("'{path}' is a folder of artifacts")).into()),
        }
    }

    fn contents_of(&self, path: &str) -> Result<Option<StoredArtifact>, Failure> {
        let sql = "SELECT digest, bytes, place FROM artifact WHERE path = ?1";
        Ok(self.0.prepare_cached(sql)?.query_row([path], stored).optional()?)
    }

    /// Returns these contents if no artifact has them.
    fn unused(&self, stored: StoredArtifact) -> Result<Option<StoredArtifact>, Failure> {
        let sql = "SELECT 1 FROM artifact WHERE digest = ?1 AND place IS ?2 LIMIT 1";
        let contents = params![stored.digest.0.as_slice(), stored.place];
        let user = self.0.prepare_cached(sql)?.query_row(contents, |_| Ok(())).optional()?;
        Ok(user.is_none().then_some(stored))
    }
}

fn stored(row: &Row<'_>) -> rusqlite::Result<StoredArtifact> {
    let bytes: i64 = row.get(1)?;
    Ok(StoredArtifact { digest: Digest(row.get(0)?), bytes: bytes.cast_unsigned(), place: row.get(2)? })
}
