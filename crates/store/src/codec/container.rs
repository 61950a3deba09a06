//! The image in which a job's commands run, as stored on disk.

use gangline_base::{Container, Volume};
use serde::{Deserialize, Serialize};

/// The image and its volumes, version 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ContainerV1 {
    pub(super) image: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<VolumeV1>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct VolumeV1 {
    source: String,
    target: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_read_only: bool,
}

impl ContainerV1 {
    pub(super) fn of(container: &Container) -> ContainerV1 {
        let volume = |volume: &Volume| VolumeV1 {
            source: volume.source.clone(),
            target: volume.target.clone(),
            is_read_only: volume.is_read_only,
        };
        ContainerV1 { image: container.image.clone(), volumes: container.volumes.iter().map(volume).collect() }
    }
}

impl From<ContainerV1> for Container {
    fn from(stored: ContainerV1) -> Container {
        let volume = |volume: VolumeV1| Volume {
            source: volume.source,
            target: volume.target,
            is_read_only: volume.is_read_only,
        };
        Container { image: stored.image, volumes: stored.volumes.into_iter().map(volume).collect() }
    }
}
