//! The container image in which a job's commands run.

/// The image in which a job's setup and ranks run, and the folders of the node that they see besides the job's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// The image's name, with its registry and a tag or a digest.
    pub image: String,
    /// Folders or files of the node, beside the working directory and the checkpoint folder.
    pub volumes: Vec<Volume>,
}

/// A folder or file of the node that is visible in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The absolute path on the node.
    pub source: String,
    /// The absolute path in the container.
    pub target: String,
    /// Whether the container may not write to it.
    pub is_read_only: bool,
}

impl Container {
    /// Returns the texts that are stored.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        let paths = self.volumes.iter().flat_map(|volume| [volume.source.as_str(), &volume.target]);
        std::iter::once(self.image.as_str()).chain(paths)
    }
}
