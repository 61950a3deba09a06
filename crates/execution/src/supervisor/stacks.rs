//! Collects what the processes of a hung rank wait for: states and kernel functions from `/proc`, the frames that
//! Python processes tell themselves, and the stacks that py-spy or gdb show where a process doesn't answer. All of
//! it is bounded, and nothing waits for a process that doesn't respond.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::frames;
use crate::process::{descendants, environment};
use crate::program::{self, Limits};

/// Maximum numbers of processes and threads that are examined.
const PROCESSES_MAX: usize = 32;
const THREADS_MAX: usize = 32;
/// Maximum number of folders that are searched for tools.
const FOLDERS_MAX: usize = 64;
/// Limits of a tool for one process.
const TOOL_LIMITS: Limits = Limits { time: Duration::from_secs(4), output: 64 << 10, errors: 0 };

/// Stacks of a hung rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stacks {
    /// The rank.
    pub(super) rank: u32,
    /// Whether one of its processes can't continue by itself: it was stopped, or hangs in the kernel.
    pub(super) is_halted: bool,
    /// One line for each process, short enough for a report.
    pub(super) summary: Vec<String>,
    /// The full text.
    pub(super) text: String,
}

/// Examines the process `root` of `rank` and its descendants, which write their frames to the file `frames`.
pub(super) fn of_rank(rank: u32, root: u32, frames: &Path) -> Stacks {
    let mut stacks = Stacks { rank, ..Stacks::default() };
    for pid in std::iter::once(root).chain(descendants(root, &[])).take(PROCESSES_MAX) {
        let Some((is_halted, state)) = state(pid) else { continue };
        stacks.is_halted |= is_halted;
        let name = read(&format!("/proc/{pid}/comm"));
        let waits = waits_in(pid);
        stacks.summary.push(format!("rank {rank}: {name} ({pid}) {state}{waits}"));
        stacks.text += &format!("rank {rank}: process {pid} {name}: {state}\n{}", threads(pid));
        // A process that can't run can't answer.
        let told = if is_halted { None } else { frames::of(pid, frames) };
        match told {
            Some(told) => stacks.text += &told,
            None if is_python(pid, &name) => stacks.text += &own_stacks(pid),
            None => {}
        }
        stacks.text.push('\n');
    }
    stacks
}

/// Returns whether a process can't continue by itself, and its state in words.
fn state(pid: u32) -> Option<(bool, &'static str)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let letter = status.lines().find_map(|line| line.strip_prefix("State:"))?.trim().chars().next()?;
    Some(match letter {
        'R' => (false, "runs"),
        'S' => (false, "sleeps"),
        'D' => (true, "waits for a device or a disk and can't be interrupted"),
        'T' | 't' => (true, "was stopped by a signal or a debugger"),
        'Z' => (false, "has ended"),
        _ => (false, "is in an unknown state"),
    })
}

/// Returns the kernel function in which its first thread waits, if the kernel tells.
fn waits_in(pid: u32) -> String {
    match read(&format!("/proc/{pid}/wchan")).as_str() {
        "" | "0" => String::new(),
        function => format!(", in {function}"),
    }
}

/// Returns each thread's name and the kernel function in which it waits.
fn threads(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lines = tasks.take(THREADS_MAX).map(|task| {
        let path = task.path();
        let of = |name: &str| read(&path.join(name).display().to_string());
        let number = task.file_name();
        let kernel: String = of("stack").lines().map(|line| format!("    {}\n", line.trim())).collect();
        format!("  thread {} {}: {}\n{kernel}", number.to_string_lossy(), of("comm"), of("wchan"))
    });
    lines.collect()
}

/// Reports whether a process runs Python, whatever it calls itself: PyTorch names its main process.
fn is_python(pid: u32, name: &str) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let program = program.file_name().unwrap_or_default();
    name.starts_with("python") || program.as_bytes().starts_with(b"python")
}

/// Returns the output of py-spy or gdb for a process, whichever is installed: in the environment of the
/// process, such as a virtual environment, or on this node.
fn own_stacks(pid: u32) -> String {
    let path = path_of(pid);
    let pid = pid.to_string();
    let tools: [(&str, &[&str]); 2] = [
        ("py-spy", &["dump", "--nonblocking", "--pid", &pid]),
        ("gdb", &["-p", &pid, "-batch", "-nx", "-ex", "thread apply all bt 24"]),
    ];
    tools.iter().find_map(|(tool, arguments)| run(&found(tool, &path), arguments)).unwrap_or_default()
}

/// Returns the folders in which a process finds programs, those of its virtual environment first.
fn path_of(pid: u32) -> Vec<PathBuf> {
    let environment = environment(pid).unwrap_or_default();
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find_map(|variable| Some(OsStr::from_bytes(variable.strip_prefix(name.as_bytes())?).to_owned()))
    };
    let own = value("VIRTUAL_ENV=").map(|folder| PathBuf::from(folder).join("bin"));
    let path = value("PATH=").unwrap_or_default();
    let folders = path.as_bytes().split(|byte| *byte == b':').map(|folder| PathBuf::from(OsStr::from_bytes(folder)));
    own.into_iter().chain(folders).take(FOLDERS_MAX).collect()
}

/// Returns a tool in one of these folders, or its bare name if it is in none.
fn found(tool: &str, path: &[PathBuf]) -> PathBuf {
    let mut places = path.iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join(tool));
    places.find(|place| place.is_file()).unwrap_or_else(|| PathBuf::from(tool))
}

/// Runs a tool for a bounded time; none if it isn't installed or prints nothing.
fn run(tool: &Path, arguments: &[&str]) -> Option<String> {
    let ran = program::run(Command::new(tool).args(arguments), Vec::new(), TOOL_LIMITS).ok()?;
    // Output from before a time-out is useful too.
    let text = String::from_utf8_lossy(&ran.output).into_owned();
    (!text.trim().is_empty()).then_some(text)
}

/// Returns the processor time of a process and its descendants, including children that have ended.
pub(super) fn processor_time(root: u32) -> Duration {
    let ticks: u64 = std::iter::once(root).chain(descendants(root, &[])).filter_map(ticks).sum();
    Duration::from_millis(ticks.saturating_mul(1_000) / TICKS_PER_SECOND)
}

/// `sysconf(_SC_CLK_TCK)`: 100 on every Linux since 2.6, for user space.
const TICKS_PER_SECOND: u64 = 100;

/// Returns the sum of utime, stime, cutime and cstime of `/proc/PID/stat` (proc(5): fields 14 to 17).
fn ticks(pid: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = line.rsplit_once(')')?;
    let fields = rest.split_ascii_whitespace().skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(path)).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_process_and_its_child_are_told() {
        let mut child = Command::new("sh").args(["-c", "sleep 60 & kill -STOP $$; wait"]).spawn().expect("sh starts");
        // The child is another sh until its exec of sleep.
        let stopped =
            |stacks: &Stacks| stacks.is_halted && stacks.summary.get(1).is_some_and(|child| child.contains("sleep ("));
        let mut stacks = of_rank(3, child.id(), Path::new("/nowhere"));
        for _ in 0..1_000 {
            if stopped(&stacks) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            stacks = of_rank(3, child.id(), Path::new("/nowhere"));
        }
        crate::process::kill_all(&descendants(child.id(), &[]));
        child.kill().expect("sh can be killed");
        child.wait().expect("sh can be reaped");
        assert!(stopped(&stacks) && stacks.summary[0].contains("was stopped"), "{stacks:?}");
        assert!(stacks.summary[0].starts_with("rank 3: sh ("), "{stacks:?}");
        assert!(stacks.text.contains("thread "), "{}", stacks.text);
        assert_eq!(of_rank(0, u32::MAX, Path::new("/nowhere")), Stacks::default());
    }

    #[test]
    fn work_is_counted_and_idleness_is_not() {
        let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh starts");
        let mut idle = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let mut worked = Duration::ZERO;
        for _ in 0..500 {
            worked = processor_time(busy.id());
            if worked >= Duration::from_millis(50) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let slept = processor_time(idle.id());
        for child in [&mut busy, &mut idle] {
            child.kill().expect("it can be killed");
            child.wait().expect("it can be reaped");
        }
        assert!(worked >= Duration::from_millis(50) && slept < Duration::from_millis(50), "{worked:?} {slept:?}");
        assert_eq!(run(Path::new("no-such-tool"), &[]), None);
    }
}
