//! The kinds of cause of a failed run: the words that the diagnosis gives and that scheduling acts on.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Kinds of cause: what to do next differs between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultCategory {
    /// A device, a link or a node is faulty.
    Hardware,
    /// An accelerator's memory was too small.
    CudaOom,
    /// The host's memory, or its limit, was too small.
    HostOom,
    /// Ranks lost one another, or a collective took too long.
    NcclNetwork,
    /// What feeds the model failed.
    DataPipeline,
    /// Numbers went bad: not finite, overflow.
    Numerical,
    /// A disk, a file system, an object store or a checkpoint on it failed.
    Storage,
    /// The program or its configuration is wrong.
    UserCode,
    /// The run was asked to leave.
    Preemption,
    /// What starts and keeps runs failed: scheduler, launcher, image, driver.
    SchedulerInfra,
    /// Nothing says so clearly enough, or nothing failed.
    #[default]
    Unknown,
}

impl FaultCategory {
    /// All, in the order of the documentation.
    pub const ALL: [FaultCategory; 11] = [
        FaultCategory::Hardware,
        FaultCategory::CudaOom,
        FaultCategory::HostOom,
        FaultCategory::NcclNetwork,
        FaultCategory::DataPipeline,
        FaultCategory::Numerical,
        FaultCategory::Storage,
        FaultCategory::UserCode,
        FaultCategory::Preemption,
        FaultCategory::SchedulerInfra,
        FaultCategory::Unknown,
    ];

    /// Its stable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FaultCategory::Hardware => "hardware",
            FaultCategory::CudaOom => "cuda_oom",
            FaultCategory::HostOom => "host_oom",
            FaultCategory::NcclNetwork => "nccl_network",
            FaultCategory::DataPipeline => "data_pipeline",
            FaultCategory::Numerical => "numerical",
            FaultCategory::Storage => "storage",
            FaultCategory::UserCode => "user_code",
            FaultCategory::Preemption => "preemption",
            FaultCategory::SchedulerInfra => "scheduler_infra",
            FaultCategory::Unknown => "unknown",
        }
    }

    /// The category of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<FaultCategory> {
        FaultCategory::ALL.into_iter().find(|category| category.name() == name)
    }
}

impl fmt::Display for FaultCategory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_category_is_found_by_its_name() {
        for category in FaultCategory::ALL {
            assert_eq!(FaultCategory::from_name(category.name()), Some(category));
        }
        assert_eq!(FaultCategory::from_name("gremlins"), None);
    }
}
