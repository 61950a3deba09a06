//! Categories of failure, assigned by the diagnosis and used by the scheduler.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The category of a failure's cause; categories differ in what to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultCategory {
    /// A device, a link or a node is faulty.
    Hardware,
    /// An accelerator ran out of memory.
    CudaOom,
    /// The host ran out of memory or reached its memory limit.
    HostOom,
    /// Ranks lost contact with one another, or a collective timed out.
    NcclNetwork,
    /// The input data pipeline failed.
    DataPipeline,
    /// A numerical error: a value that is not finite, or an overflow.
    Numerical,
    /// A disk, a file system, an object store or a checkpoint on it failed.
    Storage,
    /// The program or its configuration is wrong.
    UserCode,
    /// The run was asked to stop.
    Preemption,
    /// Infrastructure that starts and maintains runs failed: scheduler, launcher, image or driver.
    SchedulerInfra,
    /// The evidence is not clear enough, or nothing failed.
    #[default]
    Unknown,
}

impl FaultCategory {
    /// All categories, in the order of the documentation.
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

    /// Returns the category's stable name.
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

    /// Returns the category with this name.
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
