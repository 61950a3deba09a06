//! The code that a job runs, where it is kept as it was when the job was submitted.

/// Where a job's code is copied from at submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodeSource {
    /// A folder, as an absolute path.
    Folder(String),
    /// A commit of a git repository.
    Git {
        /// The repository's address.
        url: String,
        /// A branch, a tag or a commit; none: the repository's default branch.
        reference: Option<String>,
    },
}

/// A copy of code that was taken at submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeCopy {
    /// The copy's content id: the BLAKE3 checksum of its list of files, in hexadecimal.
    pub tree: String,
    /// The git commit that it is, or that it differs from.
    pub commit: Option<String>,
    /// The number of files that differ from the commit.
    pub changed_files: u32,
}

impl CodeCopy {
    /// Returns an upper bound on its stored size without punctuation.
    pub(crate) fn texts(&self) -> [Option<&str>; 2] {
        [Some(&self.tree), self.commit.as_deref()]
    }
}
