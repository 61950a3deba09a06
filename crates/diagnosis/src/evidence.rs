//! What is known of a failed run: what its ranks wrote, how they ended, and what their nodes said meanwhile.

use gangline_base::Timestamp;

/// Everything that may say why a run failed. Texts are bytes as they were written: any encoding, colours and all.
///
/// A text is looked at whole. Whoever reads files passes the head and tail that fit (see [`HEAD_BYTES_MAX`] and [`TAIL_BYTES_MAX`]).
#[derive(Clone, Debug, Default)]
pub struct Evidence<'a> {
    /// The exit code of the whole run, where only that is known.
    pub exit_code: Option<i32>,
    /// The signal that ended the whole run.
    pub signal: Option<i32>,
    /// One for each log of a rank, a launcher or a whole run.
    pub logs: Vec<Log<'a>>,
    /// What the kernels said while the run ran.
    pub kernels: Vec<KernelLog<'a>>,
    /// Events of accelerators.
    pub devices: Vec<DeviceEvent>,
    /// Processes that cgroups killed for memory.
    pub cgroups: Vec<CgroupEvents>,
}

/// Bytes of a file's beginning that are worth reading.
pub const HEAD_BYTES_MAX: usize = 8 << 20;
/// Bytes of a file's end that are worth reading.
pub const TAIL_BYTES_MAX: usize = 56 << 20;

/// The log of a rank, or one into which several wrote.
#[derive(Clone, Debug, Default)]
pub struct Log<'a> {
    /// What the log is called when it is quoted: a file's name.
    pub name: String,
    /// Whose it is; none when several ranks write into it.
    pub rank: Option<u32>,
    /// Where that rank ran.
    pub node: Option<String>,
    /// When that rank ended. The first to end is the likelier cause.
    pub ended_at: Option<Timestamp>,
    /// What it returned.
    pub exit_code: Option<i32>,
    /// What killed it.
    pub signal: Option<i32>,
    /// Its text.
    pub text: &'a [u8],
    /// What was left out of the text, so that lines keep their numbers.
    pub left_out: Option<LeftOut>,
}

/// A part of a log that isn't in its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Where in the text it would stand.
    pub at: usize,
    /// How many lines it has.
    pub lines: usize,
}

/// Lines of a node's kernel.
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

/// What an accelerator's driver can report.
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
