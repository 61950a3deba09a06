//! Checks limits of this process that ranks inherit: open files, and memory that may be locked (RDMA).

use std::path::Path;

use gangline_base::Bytes;
use rustix::process::{Resource, getrlimit};

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};

/// Data loaders pass a descriptor for each tensor, and libraries open thousands of shards.
const FILES_MIN: u64 = 4_096;
/// Folder of RDMA devices.
const INFINIBAND: &str = "/sys/class/infiniband";

pub(super) fn check(_: &Expectations) -> Vec<Finding> {
    vec![open_files(), locked_memory()]
}

fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let [soft, hard] = [limit.current, limit.maximum];
    let shown = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let reason = Reason {
        expected: &format!("at least {FILES_MIN}"),
        why: "data loaders that pass tensors as file descriptors fail with \"too many open files\"",
        todo: "ulimit -n 65536 before gangline up (LimitNOFILE of a unit), or in the job's run line",
    };
    let finding = Finding::fine("open files", format!("{} (hard limit {})", shown(soft), shown(hard)));
    finding.judged(soft.is_some_and(|soft| soft < FILES_MIN), Verdict::Warning, reason)
}

fn locked_memory() -> Finding {
    let limit = getrlimit(Resource::Memlock).current;
    let has_rdma = Path::new(INFINIBAND).read_dir().is_ok_and(|mut devices| devices.next().is_some());
    let shown = limit.map_or_else(|| "unlimited".to_owned(), |limit| Bytes(limit).to_string());
    let reason = Reason {
        expected: "unlimited where there is RDMA",
        why: "RDMA registers its buffers by locking them: NCCL fails with \"Cannot allocate memory\"",
        todo: "ulimit -l unlimited (LimitMEMLOCK=infinity of a unit, --ulimit memlock=-1 of a container)",
    };
    Finding::fine("locked memory", shown).judged(has_rdma && limit.is_some(), Verdict::Warning, reason)
}
