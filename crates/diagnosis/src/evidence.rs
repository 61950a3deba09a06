//! Evidence about a failed run: its ranks' output, how they ended, and the kernel logs of their nodes.

use gangline_base::Timestamp;

/// All evidence about a failed run. Texts are bytes as they were written, with any encoding and colours.
///
/// A text is examined as a whole. Callers that read files pass the head and the tail that fit (see
/// [`HEAD_BYTES_MAX`] and [`TAIL_BYTES_MAX`]).
#[derive(Clone, Debug, Default)]
pub struct Evidence<'a> {
    /// The exit code of the whole run, if only that is known.
    pub exit_code: Option<i32>,
    /// The signal that ended the whole run.
    pub signal: Option<i32>,
    /// Logs of ranks, of launchers or of the whole run.
    pub logs: Vec<Log<'a>>,
    /// Kernel logs of the nodes during the run.
    pub kernels: Vec<KernelLog<'a>>,
    /// Events of accelerators.
    pub devices: Vec<DeviceEvent>,
    /// Counts of processes that cgroups killed for memory.
    pub cgroups: Vec<CgroupEvents>,
}

/// Number of bytes worth reading at the beginning of a file.
pub const HEAD_BYTES_MAX: usize = 8 << 20;
/// Number of bytes worth reading at the end of a file.
pub const TAIL_BYTES_MAX: usize = 56 << 20;

/// The log of a rank, or of several ranks together.
#[derive(Clone, Debug, Default)]
pub struct Log<'a> {
    /// Name of the log in quotes: its file's name.
    pub name: String,
    /// The rank that wrote it; none if several did.
    pub rank: Option<u32>,
    /// The node of that rank.
    pub node: Option<String>,
    /// When that rank ended. The first to end is the likelier cause.
    pub ended_at: Option<Timestamp>,
    /// Exit code of that rank.
    pub exit_code: Option<i32>,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// The text.
    pub text: &'a [u8],
    /// The part that was left out of the text, so that lines keep their numbers.
    pub left_out: Option<LeftOut>,
}

/// A part of a log that isn't in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Offset in the text where it would be.
    pub at: usize,
    /// Number of its lines.
    pub lines: usize,
}

/// The kernel log of a node.
#[derive(Clone, Debug)]
pub struct KernelLog<'a> {
    /// The node.
    pub node: String,
    /// Lines as dmesg or the journal prints them.
    pub text: &'a [u8],
}

/// Something an accelerator's driver reported.
#[derive(Clone, Debug)]
pub struct DeviceEvent {
    /// The node.
    pub node: String,
    /// Which device, as the driver names it.
    pub device: String,
    /// What happened.
    pub what: DeviceFault,
}

/// A fault that an accelerator's driver reports.
#[derive(Clone, Debug)]
pub enum DeviceFault {
    /// An NVIDIA XID by number.
    Xid(u32),
    /// Anything else, in the driver's words.
    Other(String),
}

/// A cgroup's `memory.events`.
#[derive(Clone, Debug)]
pub struct CgroupEvents {
    /// The node.
    pub node: String,
    /// How often it killed a process for memory (`oom_kill`).
    pub oom_kill: u64,
}
