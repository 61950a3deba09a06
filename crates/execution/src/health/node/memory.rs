//! Checks memory: `/dev/shm`, free memory, swap, the cgroup's limit, overcommit, transparent huge pages.

use std::fs;

use gangline_base::Bytes;
use rustix::fs::statvfs;

use super::Expectations;
use crate::cgroup::{self, Limit};
use crate::health::{Finding, Reason, Verdict};

/// Where PyTorch's data loaders pass batches.
const SHARED: &str = "/dev/shm";
/// Docker gives containers 64 MiB by default; batches of a few workers take more.
const SHARED_MIN: Bytes = Bytes(1 << 30);
/// Share of the memory that should be free before a run.
const FREE_SHARE_MIN: f64 = 0.1;
/// More swap in use suggests that memory was short.
const SWAP_USED_MAX: Bytes = Bytes(256 << 20);
/// Maximum share of a cgroup's limit in use.
const LIMIT_USED_SHARE_MAX: f64 = 0.9;

pub(super) fn check_shared(_: &Expectations) -> Vec<Finding> {
    let Ok(room) = statvfs(SHARED) else {
        return vec![Finding::not_here(format!("there is no {SHARED}"))];
    };
    let [total, free] = [room.f_blocks, room.f_bavail].map(|blocks| Bytes(blocks.saturating_mul(room.f_frsize)));
    let reason = Reason {
        expected: &format!("at least {SHARED_MIN} free"),
        why: "PyTorch's data loader workers pass batches through it: when it is full they die of a bus error",
        todo: "run the container with --shm-size=16g (or --ipc=host), or mount -o remount,size=16G /dev/shm; remove what is left in it",
    };
    vec![Finding::fine("", format!("{free} free of {total}")).judged(free < SHARED_MIN, Verdict::Warning, reason)]
}

pub(super) fn check(expectations: &Expectations) -> Vec<Finding> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let Some(machine) = Meminfo::read(&text) else {
        return vec![Finding::unknown("", "/proc/meminfo can't be read", "mount /proc")];
    };
    let mut findings = vec![free(&machine, expectations.share())];
    findings.extend(swap(&machine));
    findings.extend(cgroup::limit().map(|group| limit(&group, &machine, expectations.share())));
    findings.extend(overcommit(&machine));
    findings.extend(huge_pages());
    findings
}

/// Values from /proc/meminfo.
struct Meminfo {
    total: Bytes,
    available: Bytes,
    swap_used: Bytes,
    /// Limit of committed memory, and the memory committed so far.
    commit_limit: Bytes,
    committed: Bytes,
}

impl Meminfo {
    fn read(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let kibibytes: u64 = line.trim().trim_end_matches("kB").trim_end().parse().ok()?;
            Some(Bytes(kibibytes.saturating_mul(1_024)))
        };
        let swap_free = field("SwapFree").unwrap_or_default();
        Some(Meminfo {
            total: field("MemTotal")?,
            available: field("MemAvailable")?,
            swap_used: Bytes(field("SwapTotal").unwrap_or_default().0.saturating_sub(swap_free.0)),
            commit_limit: field("CommitLimit").unwrap_or_default(),
            committed: field("Committed_AS").unwrap_or_default(),
        })
    }
}

fn free(machine: &Meminfo, checkpoint: Bytes) -> Finding {
    let Meminfo { total, available, .. } = machine;
    let finding = Finding::fine("", format!("{available} available of {total}"))
        .figure("memory_available_bytes", available.0 as f64);
    let is_low = (available.0 as f64) < total.0 as f64 * FREE_SHARE_MIN || *available < checkpoint;
    let reason = Reason {
        expected: &format!("a tenth of it, and a share of a checkpoint ({checkpoint})"),
        why: "a save is copied to this memory before it is written, beside data loaders and caches",
        todo: "see who uses it (ps aux --sort -rss | head); end what an earlier run left behind",
    };
    finding.judged(is_low, Verdict::Warning, reason)
}

fn swap(machine: &Meminfo) -> Option<Finding> {
    let reason = Reason {
        expected: &format!("at most {SWAP_USED_MAX}"),
        why: "memory was short here, and whoever touches what is swapped out waits for the disk",
        todo: "find who uses the memory; then swapoff -a && swapon -a, or turn swap off",
    };
    let finding = Finding::fine("swap", format!("{} in use", machine.swap_used));
    (machine.swap_used > SWAP_USED_MAX).then(|| finding.wrong(Verdict::Warning, reason))
}

fn limit(group: &Limit, machine: &Meminfo, checkpoint: Bytes) -> Finding {
    let Limit { path, limit, used } = group;
    let measured = format!("limit {limit} ({}), {used} in use; the machine has {}", path.display(), machine.total);
    let is_low = used.0 as f64 > limit.0 as f64 * LIMIT_USED_SHARE_MAX || *limit < checkpoint;
    let reason = Reason {
        expected: &format!("a tenth of it free, and at least a share of a checkpoint ({checkpoint})"),
        why: "the kernel ends processes at this limit, however much memory the machine has free",
        todo: "raise it: --mem of Slurm, memory of a container or pod, MemoryMax of a unit",
    };
    Finding::fine("cgroup", measured).judged(*limit < machine.total && is_low, Verdict::Warning, reason)
}

fn overcommit(machine: &Meminfo) -> Option<Finding> {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    let Meminfo { commit_limit, committed, .. } = machine;
    let reason = Reason {
        expected: "vm.overcommit_memory 0 or 1",
        why: "CUDA and data loaders that fork reserve far more than they use: their allocations fail with memory free",
        todo: "sysctl vm.overcommit_memory=0",
    };
    let measured = format!("none allowed (mode 2): {committed} promised of {commit_limit}");
    (mode.trim() == "2").then(|| Finding::fine("overcommit", measured).wrong(Verdict::Warning, reason))
}

fn huge_pages() -> Option<Finding> {
    let modes = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let reason = Reason {
        expected: "always or madvise",
        why: "buffers of gigabytes in pages of 4 KiB cost page faults at first use and misses later",
        todo: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    };
    modes
        .contains("[never]")
        .then(|| Finding::fine("huge pages", "transparent ones are off").wrong(Verdict::Warning, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn machine(available: u64, swap_free: u64) -> Meminfo {
        let text = format!(
            "MemTotal: {} kB\nMemAvailable: {} kB\nSwapTotal: 4194304 kB\nSwapFree: {} kB\n",
            64 << 20,
            available >> 10,
            swap_free >> 10
        );
        Meminfo::read(&text).expect("all fields are there")
    }

    #[test]
    fn little_free_memory_and_used_swap_are_told() {
        let good = machine(60 * GIB, 4 * GIB);
        assert_eq!(free(&good, Bytes(GIB)).verdict, Verdict::Fine);
        assert!(swap(&good).is_none());
        let low = machine(5 * GIB, GIB);
        assert_eq!(free(&low, Bytes(GIB)).verdict, Verdict::Warning);
        assert_eq!(free(&good, Bytes(61 * GIB)).verdict, Verdict::Warning, "a save has to fit");
        assert!(swap(&low).is_some_and(|finding| finding.measured == "3.0 GiB in use"));
    }

    #[test]
    fn a_limit_that_is_almost_reached_is_told() {
        let group = |used: u64| Limit { path: "/sys/fs/cgroup/a".into(), limit: Bytes(8 * GIB), used: Bytes(used) };
        assert_eq!(limit(&group(15 * GIB / 2), &machine(60 * GIB, 0), Bytes(GIB)).verdict, Verdict::Warning);
        assert_eq!(limit(&group(GIB), &machine(60 * GIB, 0), Bytes(GIB)).verdict, Verdict::Fine);
        assert_eq!(limit(&group(GIB), &machine(60 * GIB, 0), Bytes(9 * GIB)).verdict, Verdict::Warning);
    }
}
