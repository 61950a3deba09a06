//! Checks of a node: whether a training run should start here, and what would slow it down.
//!
//! Each check runs in a process of its own (`gangline check NAME`), which is killed and abandoned at its
//! time-out: a process can't interrupt its own read that hangs in the kernel, or its own call to a driver
//! that doesn't return. A check that hangs yields a finding, [`Hung`](super::Verdict::Hung), and never delays
//! the caller. Checks that only look run several at once; checks that measure run alone.
//!
//! Keeps A-10 (every check has a time-out, every answer a size limit) and A-13 (what can't be checked is
//! reported as unknown and stops no job).

mod clock;
mod cpu;
mod expectations;
mod gpu;
mod guard;
mod interfaces;
mod jitter;
mod kernel_log;
mod limits;
mod links;
mod loopback;
mod memory;
mod space;
mod speed;
mod start;

use std::time::Duration;

use super::Finding;

pub use expectations::{Expectations, ExpectedAccelerators};
pub use gpu::watch as watch_gpus;
pub use guard::{Guard, Progress};
pub(crate) use kernel_log::faults as kernel_faults;
pub(crate) use kernel_log::of_hardware as gpu_fault;

/// A check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// Its subject.
    pub about: &'static str,
    /// Whether it loads the machine to measure it; then it runs alone.
    pub measures: bool,
    /// Whether it is run before ranks start.
    pub is_before_start: bool,
    /// Time after which it is abandoned.
    pub timeout: Duration,
    run: fn(&Expectations) -> Vec<Finding>,
}

/// All checks, in the order of a report.
pub const CHECKS: [Check; 16] = [
    look("gpu", "GPUs: how many, memory, ECC, row remaps, throttling, temperature, NVLinks up, PCIe", 30, gpu::check),
    look("links", "how the GPUs are joined: NVLink everywhere, or PCIe", 8, links::check),
    look("kernel-log", "XIDs, I/O errors and machine checks in the kernel's log", 5, kernel_log::check),
    look("space", "free space and inodes, and whether a file can be written", 10, space::check),
    look("shared-memory", "/dev/shm", 5, memory::check_shared),
    look("memory", "free memory, swap, limits of the cgroup, overcommit, huge pages", 5, memory::check),
    look("network", "network interfaces: link, speed, errors", 5, interfaces::check),
    look("infiniband", "InfiniBand and RoCE ports: state, rate, errors", 5, interfaces::check_infiniband),
    Check { is_before_start: false, ..look("limits", "open files, locked memory", 5, limits::check) },
    Check { is_before_start: false, ..look("governor", "the CPUs' frequency governor", 5, cpu::check_governor) },
    Check { is_before_start: false, ..look("clock", "whether the clock is kept right", 5, clock::check) },
    measure("start", "how long a process takes to start", 10, start::check),
    measure("load", "CPU time that others take, and what the hypervisor steals", 5, cpu::check_load),
    measure("jitter", "moments in which a busy core stands still", 10, jitter::check),
    measure("loopback", "TCP within this machine", 10, loopback::check),
    measure("storage", "write, read and copy with the checkpoint store", 90, speed::check),
];

const fn look(
    name: &'static str,
    about: &'static str,
    timeout_seconds: u64,
    run: fn(&Expectations) -> Vec<Finding>,
) -> Check {
    Check { name, about, measures: false, is_before_start: true, timeout: Duration::from_secs(timeout_seconds), run }
}

const fn measure(
    name: &'static str,
    about: &'static str,
    timeout_seconds: u64,
    run: fn(&Expectations) -> Vec<Finding>,
) -> Check {
    Check { measures: true, is_before_start: false, ..look(name, about, timeout_seconds, run) }
}

/// Maximum duration of [`before_start`].
const BEFORE_START_MAX: Duration = Duration::from_secs(30);

/// Returns the check of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Check> {
    CHECKS.iter().find(|check| check.name == name)
}

impl Check {
    /// Runs the check in this process, without a time-out: the implementation of `gangline check NAME`.
    #[must_use]
    pub fn run_here(&self, expectations: &Expectations) -> Vec<Finding> {
        let findings = (self.run)(expectations);
        findings.into_iter().map(|finding| Finding { check: self.name.to_owned(), ..finding }).collect()
    }
}

/// Runs the quick checks of a node before a run starts there, within 30 s in total.
/// [`Failed`](super::Verdict::Failed) is a fault of this node, [`Hung`](super::Verdict::Hung) makes it
/// suspect; no other verdict prevents the start.
#[must_use]
pub fn before_start(guard: &Guard, expectations: &Expectations) -> Vec<Finding> {
    let checks: Vec<&Check> = CHECKS.iter().filter(|check| check.is_before_start).collect();
    guard.run(&checks, expectations, BEFORE_START_MAX, &mut |_| ())
}
