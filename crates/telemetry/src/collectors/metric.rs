//! The table of everything that is collected of nodes and accelerators: name, unit, source, meaning.
//!
//! docs/reference/metrics.md is written from it, and a test compares the two.

use std::fmt::Write as _;

/// What is done with samples of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value at a time.
    Gauge,
    /// A counter of the source; what is stored is how fast it grew since the reading before.
    Rate,
    /// A counter that is stored as it stands: single events matter.
    Total,
}

/// The unit of a metric's readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A part of 1.
    Ratio,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
    /// Events a second.
    PerSecond,
    /// Bits a second.
    BitsPerSecond,
    /// Degrees Celsius.
    Celsius,
    /// Watts.
    Watts,
    /// Joules.
    Joules,
    /// Hertz.
    Hertz,
    /// Seconds.
    Seconds,
    /// A number of things.
    Count,
    /// 1 if it is so, 0 if not.
    Flag,
    /// A code; the meaning says which.
    Code,
}

impl Unit {
    /// Returns the unit in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Ratio => "part of 1",
            Unit::Bytes => "bytes",
            Unit::BytesPerSecond => "bytes/s",
            Unit::PerSecond => "1/s",
            Unit::BitsPerSecond => "bits/s",
            Unit::Celsius => "°C",
            Unit::Watts => "W",
            Unit::Joules => "J",
            Unit::Hertz => "Hz",
            Unit::Seconds => "s",
            Unit::Count => "count",
            Unit::Flag => "0 or 1",
            Unit::Code => "code",
        }
    }
}

/// A metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name. Readings of one of several (a disk, a network interface) add a dot and the part.
    pub name: &'static str,
    /// What readings are made from.
    pub kind: Kind,
    /// The unit of its readings.
    pub unit: Unit,
    /// Where it is read.
    pub source: &'static str,
    /// What it says.
    pub meaning: &'static str,
}

impl Metric {
    pub(super) fn is_ratio(&self) -> bool {
        self.unit == Unit::Ratio
    }
}

/// Returns the metric of this name, which is in the table.
pub(super) fn metric(name: &str) -> &'static Metric {
    metric_named(name).expect("collectors name only metrics of the table, as their tests show")
}

/// Returns the metric of this name, or of a reading of one of its parts.
#[must_use]
pub fn metric_named(name: &str) -> Option<&'static Metric> {
    let of_part = |metric: &&Metric| {
        let rest = name.strip_prefix(metric.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    METRICS.iter().flat_map(|group| group.iter()).find(of_part)
}

const fn gauge(name: &'static str, unit: Unit, source: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, unit, source, meaning }
}

const fn rate(name: &'static str, unit: Unit, source: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Rate, unit, source, meaning }
}

const fn total(name: &'static str, unit: Unit, source: &'static str, meaning: &'static str) -> Metric {
    Metric { name, kind: Kind::Total, unit, source, meaning }
}

/// Every metric of nodes and accelerators, in groups.
pub const METRICS: [&[Metric]; 5] = [&CPU_AND_MEMORY, &STORAGE, &NETWORK, &GPU, &AGENT];

const STAT: &str = "/proc/stat";
const PRESSURE: &str = "/proc/pressure";
const MEMINFO: &str = "/proc/meminfo";

const CPU_AND_MEMORY: [Metric; 23] = [
    rate("host.cpu_busy_ratio", Unit::Ratio, STAT, "CPU time in use, of all cores"),
    rate("host.cpu_user_ratio", Unit::Ratio, STAT, "CPU time of programs"),
    rate("host.cpu_system_ratio", Unit::Ratio, STAT, "CPU time of the kernel, with interrupts"),
    rate("host.cpu_iowait_ratio", Unit::Ratio, STAT, "idle CPU time while a disk was waited for"),
    rate("host.cpu_steal_ratio", Unit::Ratio, STAT, "CPU time that the hypervisor gave to others"),
    rate("host.context_switches_per_second", Unit::PerSecond, STAT, "context switches"),
    rate("host.processes_started_per_second", Unit::PerSecond, STAT, "processes and threads that were started"),
    gauge("host.processes_running", Unit::Count, STAT, "threads that run or wait for a core"),
    gauge("host.processes_blocked", Unit::Count, STAT, "threads that wait for a disk"),
    gauge("host.load_1m", Unit::Count, "/proc/loadavg", "mean number of threads that run or wait, over a minute"),
    gauge("host.cpus", Unit::Count, STAT, "cores that are online"),
    rate("host.cpu_pressure_ratio", Unit::Ratio, PRESSURE, "time in which some thread waited for a core"),
    rate("host.memory_pressure_ratio", Unit::Ratio, PRESSURE, "time in which some thread waited for memory"),
    rate("host.memory_pressure_full_ratio", Unit::Ratio, PRESSURE, "time in which all threads waited for memory"),
    rate("host.io_pressure_ratio", Unit::Ratio, PRESSURE, "time in which some thread waited for a disk"),
    rate("host.io_pressure_full_ratio", Unit::Ratio, PRESSURE, "time in which all threads waited for a disk"),
    gauge("host.memory_bytes", Unit::Bytes, MEMINFO, "memory of the machine"),
    gauge("host.memory_available_bytes", Unit::Bytes, MEMINFO, "memory that programs can still get"),
    gauge(
        "host.shared_memory_bytes",
        Unit::Bytes,
        MEMINFO,
        "shared memory and files in tmpfs, as data loaders use them",
    ),
    gauge("host.dirty_bytes", Unit::Bytes, MEMINFO, "written to files, but not yet to disks"),
    gauge("host.swap_used_bytes", Unit::Bytes, MEMINFO, "memory on swap devices"),
    rate("host.major_faults_per_second", Unit::PerSecond, "/proc/vmstat", "page faults that had to read a disk"),
    total(
        "host.oom_kills_total",
        Unit::Count,
        "/proc/vmstat",
        "processes that the kernel killed for memory, since boot",
    ),
];

const DISKS: &str = "/proc/diskstats";
const NFS: &str = "/proc/self/mountstats";
const LUSTRE: &str = "/proc/fs/lustre/llite";

const STORAGE: [Metric; 13] = [
    rate("host.disk_read_bytes_per_second", Unit::BytesPerSecond, DISKS, "read from a disk (each disk)"),
    rate("host.disk_write_bytes_per_second", Unit::BytesPerSecond, DISKS, "written to a disk (each disk)"),
    rate("host.disk_reads_per_second", Unit::PerSecond, DISKS, "reads of a disk (each disk)"),
    rate("host.disk_writes_per_second", Unit::PerSecond, DISKS, "writes to a disk (each disk)"),
    rate("host.disk_busy_ratio", Unit::Ratio, DISKS, "time in which a disk had something to do (each disk)"),
    gauge(
        "host.filesystem_used_ratio",
        Unit::Ratio,
        "statvfs",
        "space in use, as df counts it (each local file system)",
    ),
    gauge("host.filesystem_inodes_used_ratio", Unit::Ratio, "statvfs", "inodes in use (each local file system)"),
    rate("host.nfs_read_bytes_per_second", Unit::BytesPerSecond, NFS, "read from a server (each NFS mount)"),
    rate("host.nfs_write_bytes_per_second", Unit::BytesPerSecond, NFS, "written to a server (each NFS mount)"),
    rate("host.nfs_requests_per_second", Unit::PerSecond, NFS, "requests to a server (each NFS mount)"),
    rate("host.nfs_retransmits_per_second", Unit::PerSecond, NFS, "requests that were sent again (each NFS mount)"),
    rate("host.lustre_read_bytes_per_second", Unit::BytesPerSecond, LUSTRE, "read (each Lustre mount)"),
    rate("host.lustre_write_bytes_per_second", Unit::BytesPerSecond, LUSTRE, "written (each Lustre mount)"),
];

const NET: &str = "/proc/net/dev";
const INFINIBAND: &str = "/sys/class/infiniband";

const NETWORK: [Metric; 15] = [
    rate("host.network_receive_bytes_per_second", Unit::BytesPerSecond, NET, "received (each interface)"),
    rate("host.network_transmit_bytes_per_second", Unit::BytesPerSecond, NET, "sent (each interface)"),
    total("host.network_errors_total", Unit::Count, NET, "packets with errors, both ways (each interface)"),
    total("host.network_drops_total", Unit::Count, NET, "packets that were dropped, both ways (each interface)"),
    rate("host.infiniband_receive_bytes_per_second", Unit::BytesPerSecond, INFINIBAND, "received (each port)"),
    rate("host.infiniband_transmit_bytes_per_second", Unit::BytesPerSecond, INFINIBAND, "sent (each port)"),
    rate(
        "host.infiniband_transmit_waits_per_second",
        Unit::PerSecond,
        INFINIBAND,
        "ticks in which data waited to be sent: congestion (each port)",
    ),
    gauge("host.infiniband_link_up", Unit::Flag, INFINIBAND, "whether the port is active (each port)"),
    gauge("host.infiniband_rate_bits_per_second", Unit::BitsPerSecond, INFINIBAND, "rate of the link (each port)"),
    total("host.infiniband_link_downs_total", Unit::Count, INFINIBAND, "times that the link went down (each port)"),
    total(
        "host.infiniband_link_recoveries_total",
        Unit::Count,
        INFINIBAND,
        "times that the link recovered from errors (each port)",
    ),
    total("host.infiniband_symbol_errors_total", Unit::Count, INFINIBAND, "symbol errors (each port)"),
    total("host.infiniband_receive_errors_total", Unit::Count, INFINIBAND, "packets received with errors (each port)"),
    total(
        "host.infiniband_transmit_discards_total",
        Unit::Count,
        INFINIBAND,
        "packets discarded because the port was down or congested (each port)",
    ),
    total(
        "host.roce_out_of_sequence_total",
        Unit::Count,
        INFINIBAND,
        "packets that came out of order, so data was sent again (each port)",
    ),
];

const NVML: &str = "NVML; DCGM's exporter";
const GPM: &str = "GPM of NVML (Hopper and newer); DCGM's exporter";

const GPU: [Metric; 34] = [
    gauge("gpu.present", Unit::Flag, NVML, "1 if the driver reaches the GPU, 0 once it doesn't any more"),
    gauge(
        "gpu.utilization_ratio",
        Unit::Ratio,
        NVML,
        "time in which any kernel ran; a hung collective counts as busy, so see sm_active and tensor_active",
    ),
    gauge("gpu.memory_utilization_ratio", Unit::Ratio, NVML, "time in which memory was read or written"),
    gauge("gpu.encoder_utilization_ratio", Unit::Ratio, NVML, "use of the video encoder"),
    gauge("gpu.decoder_utilization_ratio", Unit::Ratio, NVML, "use of the video decoder"),
    gauge("gpu.memory_used_bytes", Unit::Bytes, NVML, "memory in use"),
    gauge("gpu.memory_bytes", Unit::Bytes, NVML, "memory of the GPU"),
    gauge("gpu.sm_clock_hertz", Unit::Hertz, NVML, "clock of the multiprocessors"),
    gauge("gpu.memory_clock_hertz", Unit::Hertz, NVML, "clock of the memory"),
    gauge(
        "gpu.clocks_held",
        Unit::Flag,
        NVML,
        "clocks are held down by heat, a power brake or the hardware; its mean is the part of the time",
    ),
    gauge(
        "gpu.clocks_power_capped",
        Unit::Flag,
        NVML,
        "clocks are held down by the power limit, which is usual under full load",
    ),
    gauge("gpu.power_watts", Unit::Watts, NVML, "power draw"),
    gauge("gpu.power_limit_watts", Unit::Watts, NVML, "power limit that is enforced"),
    total("gpu.energy_joules_total", Unit::Joules, NVML, "energy since the driver was loaded"),
    gauge("gpu.temperature_celsius", Unit::Celsius, NVML, "temperature of the GPU"),
    gauge("gpu.memory_temperature_celsius", Unit::Celsius, NVML, "temperature of its memory"),
    total("gpu.ecc_corrected_total", Unit::Count, NVML, "corrected ECC errors since the driver was loaded"),
    total("gpu.ecc_uncorrected_total", Unit::Count, NVML, "uncorrected ECC errors since the driver was loaded"),
    total("gpu.rows_remapped_corrected_total", Unit::Count, NVML, "rows of memory remapped after corrected errors"),
    total("gpu.rows_remapped_uncorrected_total", Unit::Count, NVML, "rows of memory remapped after uncorrected errors"),
    gauge("gpu.row_remap_pending", Unit::Flag, NVML, "a row is remapped at the next reset"),
    gauge("gpu.row_remap_failed", Unit::Flag, NVML, "a row couldn't be remapped: replace the GPU"),
    gauge(
        "gpu.recovery_action",
        Unit::Code,
        NVML,
        "what the driver asks for: 0 nothing, 1 reset, 2 reboot, 3 drain peers, 4 drain and reset",
    ),
    gauge("gpu.last_xid", Unit::Code, "DCGM's exporter", "the last XID; 0 if there was none"),
    total("gpu.pcie_replays_total", Unit::Count, NVML, "transfers over PCIe that were repeated"),
    total("gpu.nvlink_errors_total", Unit::Count, NVML, "NVLink: CRC errors, replays and recoveries, of all links"),
    rate("gpu.nvlink_receive_bytes_per_second", Unit::BytesPerSecond, NVML, "received over NVLink"),
    rate("gpu.nvlink_transmit_bytes_per_second", Unit::BytesPerSecond, NVML, "sent over NVLink"),
    gauge("gpu.sm_active_ratio", Unit::Ratio, GPM, "cycles in which a multiprocessor had work, mean of all"),
    gauge("gpu.sm_occupancy_ratio", Unit::Ratio, GPM, "warps of the most possible"),
    gauge("gpu.tensor_active_ratio", Unit::Ratio, GPM, "cycles in which tensor cores were busy"),
    gauge("gpu.dram_active_ratio", Unit::Ratio, GPM, "use of the memory's bandwidth"),
    gauge("gpu.pcie_receive_bytes_per_second", Unit::BytesPerSecond, GPM, "received over PCIe"),
    gauge("gpu.pcie_transmit_bytes_per_second", Unit::BytesPerSecond, GPM, "sent over PCIe"),
];

const AGENT: [Metric; 5] = [
    rate("agent.cpu_ratio", Unit::Ratio, "/proc/self/stat", "CPU time that the agent and its checks take, of one core"),
    gauge("agent.memory_bytes", Unit::Bytes, "/proc/self/status", "memory that the agent itself takes"),
    gauge("agent.sources_hung", Unit::Count, "the agent", "sources that don't answer: a driver or a file server hangs"),
    total(
        "agent.counter_resets_total",
        Unit::Count,
        "the agent",
        "counters that went back: a driver was reloaded or a device reset",
    ),
    total(
        "agent.dropped_rows_total",
        Unit::Count,
        "the agent",
        "readings that were dropped because the control plane was away for too long",
    ),
];

/// Returns the table as docs/reference/metrics.md has it.
#[must_use]
pub fn reference() -> String {
    let titles = ["CPU and memory", "Disks and file systems", "Networks", "GPUs", "The agent"];
    let mut text = String::new();
    for (title, group) in titles.iter().zip(METRICS) {
        let _ = write!(text, "\n## {title}\n\n| metric | unit | from | what it says |\n|---|---|---|---|\n");
        for metric in group {
            let Metric { name, kind, unit, source, meaning } = metric;
            let made = match kind {
                Kind::Gauge => "",
                Kind::Rate => " (rate of a counter)",
                Kind::Total => " (counter)",
            };
            let _ = writeln!(text, "| `{name}` | {}{made} | {source} | {meaning} |", unit.name());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn names_are_unique_and_end_in_their_unit() {
        let mut names = BTreeSet::new();
        for metric in METRICS.iter().flat_map(|group| group.iter()) {
            assert!(names.insert(metric.name), "{} is there twice", metric.name);
            let end = match metric.unit {
                Unit::Ratio => "_ratio",
                Unit::BytesPerSecond => "_bytes_per_second",
                Unit::BitsPerSecond => "_bits_per_second",
                Unit::PerSecond => "_per_second",
                Unit::Bytes => "_bytes",
                Unit::Celsius => "_celsius",
                Unit::Watts => "_watts",
                Unit::Hertz => "_hertz",
                Unit::Seconds => "_seconds",
                Unit::Joules | Unit::Count | Unit::Flag | Unit::Code => "",
            };
            assert!(metric.name.ends_with(end), "{}", metric.name);
            assert_eq!(metric.name.ends_with("_total"), metric.kind == Kind::Total, "{}", metric.name);
        }
        assert_eq!(
            metric_named("host.disk_busy_ratio.nvme0n1").map(|metric| metric.name),
            Some("host.disk_busy_ratio")
        );
        assert_eq!(metric_named("host.disk_busy_ratios"), None);
    }

    #[test]
    fn the_reference_has_the_table() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
        let text = std::fs::read_to_string(&path).expect("docs/reference/metrics.md");
        let (head, _) = text.split_once("\n## CPU and memory").expect("the table's beginning");
        let (_, tail) = text.split_once("<!-- end of the table -->").expect("the table's end");
        let expected = format!("{head}{}<!-- end of the table -->{tail}", reference());
        if std::env::var_os("GANGLINE_BLESS").is_some() {
            std::fs::write(&path, &expected).expect("written");
        }
        let written = std::fs::read_to_string(&path).expect("docs/reference/metrics.md");
        assert_eq!(written, expected, "GANGLINE_BLESS=1 cargo test -p gangline-telemetry reference writes it anew");
    }
}
