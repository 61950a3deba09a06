//! The host, as the kernel shows it in /proc and /sys: CPUs, memory, pressure, disks, file systems, networks.
//!
//! Sources: the kernel's Documentation/filesystems/proc.rst, admin-guide/iostats.rst, accounting/psi.rst,
//! ABI/stable/sysfs-class-infiniband; the format of mountstats is that of net/sunrpc/stats.c and fs/nfs/super.c.

mod cpu;
mod disks;
mod files;
mod infiniband;
mod memory;
mod mounts;
mod network;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use super::source::{Sample, Source, SourceError};
use files::Files;

/// Disks, interfaces, ports or mounts of which each is shown; further ones are left out.
const PARTS_MAX: usize = 64;

/// Ticks of CPU time a second, as the kernel tells programs on every architecture that has GPUs (USER_HZ).
pub(crate) const TICKS_PER_SECOND: u64 = 100;

/// The host that this program runs on.
#[derive(Clone, Debug)]
pub struct Host {
    files: Files,
}

impl Host {
    /// Returns this machine.
    #[must_use]
    pub fn this_machine() -> Host {
        Host::with_roots(PathBuf::from("/proc"), PathBuf::from("/sys"))
    }

    /// Returns a machine whose /proc and /sys are mounted elsewhere, as in a container.
    #[must_use]
    pub fn with_roots(proc: PathBuf, sys: PathBuf) -> Host {
        Host { files: Files { proc, sys } }
    }
}

impl Source for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn read(&mut self) -> Result<Vec<Sample>, SourceError> {
        let files = &self.files;
        // Every Linux has this one; the others depend on its configuration.
        let mut samples = cpu::samples(&files.required("stat")?);
        samples.extend(cpu::load(&files.proc("loadavg")));
        samples.extend(cpu::pressure(files));
        samples.extend(memory::samples(&files.proc("meminfo"), &files.proc("vmstat")));
        samples.extend(disks::samples(&files.proc("diskstats"), &|name| files.is_whole_disk(name)));
        samples.extend(network::samples(&files.proc("net/dev")));
        samples.extend(infiniband::samples(files));
        samples.extend(mounts::nfs(&files.proc("self/mountstats")));
        samples.extend(mounts::lustre(files));
        samples.extend(mounts::space(&files.proc("self/mounts")));
        Ok(samples)
    }
}
