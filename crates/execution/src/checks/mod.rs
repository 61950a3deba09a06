//! Checks of a node: whether a training run should start here, and what it will suffer from.
//!
//! Each check runs in a process of its own (`gangline check NAME`), which is killed and abandoned at its time-out: a read that
//! hangs in the kernel, or a driver that doesn't answer, can't be interrupted from within a process, and would keep one that waits for
//! it from ever ending. So a check that hangs makes a finding, [`Verdict::Hung`], and never holds up who asked. Checks that only look
//! run several at once; those that measure run alone.
//!
//! Keeps A-10 (every check has a time-out, every answer a limit) and A-13 (what can't be looked at is unknown and hurts no job).

mod clock;
mod cpu;
mod expectations;
mod finding;
mod gpu;
mod guard;
mod jitter;
mod kernel_log;
mod limits;
mod links;
mod loopback;
mod memory;
mod network;
mod space;
mod speed;
mod start;

use std::time::Duration;

pub use expectations::{Expectations, ExpectedAccelerators};
pub(crate) use finding::Reason;
pub use finding::{Finding, Verdict};
pub use gpu::watch as watch_gpus;
pub use guard::{Guard, Progress};
pub(crate) use kernel_log::faults as kernel_faults;
pub(crate) use kernel_log::of_hardware as gpu_fault;

/// A check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What it looks at.
    pub about: &'static str,
    /// Whether it loads the machine for its figures; then it runs alone.
    pub measures: bool,
    /// Whether it is run before ranks start.
    pub is_before_start: bool,
    /// When it is given up.
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
    look("network", "network interfaces: link, speed, errors", 5, network::check_interfaces),
    look("infiniband", "InfiniBand and RoCE ports: state, rate, errors", 5, network::check_infiniband),
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

/// The longest that [`before_start`] takes.
const BEFORE_START_MAX: Duration = Duration::from_secs(30);

/// The check of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Check> {
    CHECKS.iter().find(|check| check.name == name)
}

impl Check {
    /// Runs it in this process, however long it takes: what `gangline check NAME` does.
    #[must_use]
    pub fn run_here(&self, expectations: &Expectations) -> Vec<Finding> {
        let findings = (self.run)(expectations);
        findings.into_iter().map(|finding| Finding { check: self.name.to_owned(), ..finding }).collect()
    }
}

/// The checks of a node that a run begins on: quick ones, all together within 30 s. [`Verdict::Failed`] is a fault of this node,
/// [`Verdict::Hung`] makes it suspect; the others are no reason not to start.
#[must_use]
pub fn before_start(guard: &Guard, expectations: &Expectations) -> Vec<Finding> {
    let checks: Vec<&Check> = CHECKS.iter().filter(|check| check.is_before_start).collect();
    guard.run(&checks, expectations, BEFORE_START_MAX, &mut |_| ())
}
