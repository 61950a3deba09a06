//! Copies of jobs' code, as it was when they were submitted: a later edit doesn't reach a job that waits.
//!
//! A copy is a list of files (`tree`), named by its checksum, and the files' contents, named by theirs: what two
//! copies have in common is kept once. Each job unpacks its copy into a folder of its own, which its attempts share,
//! so that what a job writes beside its code stays and reaches no other job. Copies that no job needs any more are
//! removed. Everything has a limit.

mod git;
mod prune;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gangline_base::{Bytes, CodeCopy, CodeSource, JobId};
use gangline_specs::jobfile::NotCopied;

use git::Repository;
use tree::Tree;

pub(crate) use prune::{Pruned, prune};

/// The folder in the data folder.
pub(crate) const FOLDER: &str = "code";

/// Where copies are kept, and how large they may be.
#[derive(Clone, Debug)]
pub struct CodeStore {
    folder: PathBuf,
    bytes_max: Bytes,
}

/// Why code could not be copied.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("can't be copied: {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("has {path}, which is neither a file, a folder nor a link")]
    Special { path: PathBuf },
    #[error("has {path}, whose name is not UTF-8 or has a line break")]
    Name { path: PathBuf },
    #[error("has more than {max} to copy; the most is in {largest}")]
    TooLarge { max: Bytes, largest: String },
    #[error("has more than {max} files to copy; the most are in {largest}")]
    TooMany { max: usize, largest: String },
    #[error("can't be cloned: {0}")]
    Git(String),
    #[error("has no branch, tag or commit \"{0}\"")]
    NoReference(String),
}

impl Error {
    fn at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
        |source| Error::Io { path: path.to_owned(), source }
    }

    fn hint(&self) -> &'static str {
        match self {
            Error::Io { .. } => "make it readable for the user of the control plane, or name it in .gitignore",
            Error::Special { .. } | Error::Name { .. } => "name it in .gitignore",
            Error::TooLarge { .. } | Error::TooMany { .. } => {
                "name data and checkpoints in .gitignore, or set code.snapshot_max in the configuration"
            }
            Error::Git(_) => "check that `git ls-remote` works for the user of the control plane",
            Error::NoReference(_) => "push it first, or name another ref",
        }
    }
}

impl CodeStore {
    /// The copies in a control plane's data folder; each may have at most this size.
    #[must_use]
    pub fn new(data: &Path, bytes_max: Bytes) -> CodeStore {
        CodeStore { folder: data.join(FOLDER), bytes_max }
    }

    /// Copies code, without the folder `left_out`. A dry run only says whether it could be copied.
    ///
    /// # Errors
    /// [`NotCopied`]; nothing of it is used then.
    pub fn copy(&self, source: &CodeSource, left_out: Option<&Path>, is_dry: bool) -> Result<CodeCopy, NotCopied> {
        let copied = match source {
            CodeSource::Folder(folder) => self.copy_folder(Path::new(folder), left_out, is_dry),
            CodeSource::Git { url, reference } => self.copy_commit(url, reference.as_deref()),
        };
        copied.map_err(|error| NotCopied { message: error.to_string(), hint: error.hint().to_owned() })
    }

    fn copy_folder(&self, folder: &Path, left_out: Option<&Path>, is_dry: bool) -> Result<CodeCopy, Error> {
        // A data folder beside the code has sockets, and every earlier copy.
        let left_out: Vec<&Path> = left_out.into_iter().chain(self.folder.parent()).collect();
        let found = walk::files(folder, &left_out, self.bytes_max)?;
        let repository = Repository::of(folder);
        let changes = repository.as_ref().map(Repository::changes).unwrap_or_default();
        let tree = Tree::read(folder, &found, if is_dry { None } else { Some(&self.folder) })?;
        let tree = tree.with_changes(&changes.diff);
        let commit = repository.map(|repository| repository.commit);
        self.keep(&tree, is_dry)?;
        Ok(CodeCopy { tree: tree.id(), commit, changed_files: changes.files })
    }

    /// Copies a commit; one that was copied before isn't fetched again.
    fn copy_commit(&self, url: &str, reference: Option<&str>) -> Result<CodeCopy, Error> {
        let commit = git::resolve(url, reference)?;
        let name = format!("{}-{commit}", blake3::hash(url.as_bytes()).to_hex());
        let known = self.folder.join("commits").join(name);
        let kept = fs::read_to_string(&known).ok().filter(|tree| self.has(tree));
        let tree = match kept {
            Some(tree) => tree,
            None => {
                let clone = git::clone(&self.folder, url, &commit)?;
                let found = walk::files(clone.path(), &[], self.bytes_max)?;
                let tree = Tree::read(clone.path(), &found, Some(&self.folder))?;
                self.keep(&tree, false)?;
                tree::write(&known, tree.id().as_bytes()).map_err(Error::at(&known))?;
                tree.id()
            }
        };
        Ok(CodeCopy { tree, commit: Some(commit), changed_files: 0 })
    }

    fn keep(&self, tree: &Tree, is_dry: bool) -> Result<(), Error> {
        if is_dry { Ok(()) } else { tree.keep(&self.folder) }
    }

    fn has(&self, tree: &str) -> bool {
        tree::list_of(&self.folder, tree).is_some_and(|list| list.is_file())
    }
}

/// Returns the folder into which a job unpacks a copy. It has the names of both, so a launch needs nothing else.
pub(crate) fn folder_of(data: &Path, job: JobId, code: &CodeCopy) -> PathBuf {
    data.join(FOLDER).join("jobs").join(job.to_string()).join(&code.tree)
}

/// Unpacks the copy into the folder that [`folder_of`] named, unless it is there already. Other folders are left
/// alone.
///
/// # Errors
/// If the copy is gone, damaged or can't be unpacked.
pub(crate) fn unpack(data: &Path, folder: &Path) -> io::Result<()> {
    let code = data.join(FOLDER);
    let Ok(below) = folder.strip_prefix(code.join("jobs")) else { return Ok(()) };
    let Some(tree) = below.iter().nth(1).and_then(|name| name.to_str()) else { return Ok(()) };
    if folder.is_dir() {
        return Ok(());
    }
    Tree::load(&code, tree)?.unpack(&code, folder)
}
