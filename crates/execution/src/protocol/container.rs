//! The image in which a job's commands run, on the wire.

use serde::{Deserialize, Serialize};

use gangline_base::{Container, Volume};

/// The image, and what a container sees of the node besides the job's own folders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerSpec {
    /// The image's name.
    pub image: String,
    /// Folders or files of the node.
    #[serde(default)]
    pub volumes: Vec<VolumeSpec>,
}

/// A folder or file of the node in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// The path on the node.
    pub source: String,
    /// The path in the container.
    pub target: String,
    /// Whether the container may not write to it.
    #[serde(default)]
    pub is_read_only: bool,
}

impl From<&Container> for ContainerSpec {
    fn from(container: &Container) -> ContainerSpec {
        let volume = |volume: &Volume| VolumeSpec {
            source: volume.source.clone(),
            target: volume.target.clone(),
            is_read_only: volume.is_read_only,
        };
        ContainerSpec { image: container.image.clone(), volumes: container.volumes.iter().map(volume).collect() }
    }
}
