//! Checks the kernel's log: XIDs of NVIDIA's driver, I/O errors, machine checks, hung tasks.
//!
//! Each read of `/dev/kmsg` returns one record, `priority,sequence,microseconds since boot,flags;text`, then
//! lines of properties that begin with a space (the kernel's Documentation/ABI/testing/dev-kmsg). Which XIDs
//! mean hardware: NVIDIA's "XID Errors" catalog.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;

use gangline_telemetry::kernel_log::{Action, DriverEvent, Kind, Rules};

use super::Expectations;
use crate::files::read_bounded;
use crate::health::{Finding, Reason, Verdict};

/// Larger than any record of the kernel, which is at most 8 KiB with its properties.
const RECORD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of records that are read; the kernel's buffer holds fewer.
const RECORDS_MAX: usize = 200_000;
/// Maximum number of lines about faults that are returned.
const FAULTS_MAX: usize = 64;
/// Maximum length of the quoted part of a record.
const QUOTE_BYTES_MAX: usize = 160;

/// Why faults of GPUs matter.
const GPU_FAULT: &str = "the GPU, its memory or its links failed: a run that uses it stops or computes wrongly";

/// A kind of fault.
struct Trouble {
    name: &'static str,
    /// The record contains any of these.
    words: &'static [&'static str],
    verdict: Verdict,
    why: &'static str,
    todo: &'static str,
}

const TROUBLES: [Trouble; 5] = [
    Trouble {
        name: "machine checks",
        words: &["[Hardware Error]", "Machine check", "mce: CPU", "EDAC MC", " UE "],
        verdict: Verdict::Warning,
        why: "processor or memory reported errors: the next ones may end the machine or change data",
        todo: "read the lines (rasdaemon, mcelog); uncorrected errors: replace the memory module they name",
    },
    Trouble {
        name: "I/O errors",
        words: &[
            "I/O error",
            "EXT4-fs error",
            "Remounting filesystem read-only",
            "XFS_WANT_CORRUPTED",
            "metadata I/O error",
            "critical medium error",
        ],
        verdict: Verdict::Failed,
        why: "checkpoints and data on that device can't be relied on",
        todo: "look at the device's health (smartctl -a, nvme smart-log), check the file system, replace the device",
    },
    Trouble {
        name: "hung tasks",
        words: &["blocked for more than"],
        verdict: Verdict::Warning,
        why: "a task waited for minutes for a disk, a file server or a driver: ranks stand still in the same way",
        todo: "see what it waited for: the call trace follows in dmesg",
    },
    Trouble {
        name: "PCIe errors",
        words: &["AER: Uncorrect", "severity=Uncorrect", "PCIe Bus Error: severity=Fatal"],
        verdict: Verdict::Warning,
        why: "a card's link to the machine loses data",
        todo: "reseat the card that is named; update its firmware; replace it if it comes back",
    },
    Trouble {
        name: "out of memory",
        words: &["Out of memory: Killed process", "Memory cgroup out of memory: Killed process"],
        verdict: Verdict::Warning,
        why: "the kernel ended processes for want of memory",
        todo: "see which (dmesg), and give jobs here less of the machine's memory",
    },
];

/// A record: microseconds since boot, and its text.
struct Record {
    at: Duration,
    text: String,
}

pub(super) fn check(expectations: &Expectations) -> Vec<Finding> {
    let path = &expectations.kernel_log;
    let rules = match rules(expectations) {
        Ok(rules) => rules,
        Err(finding) => return vec![*finding],
    };
    match OpenOptions::new().read(true).custom_flags(nonblocking()).open(path).and_then(read) {
        Ok(records) => judge(&records, (uptime(), expectations.kernel_log_window), &rules),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            vec![Finding::not_here(format!("there is no {}", path.display()))]
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let measured = format!("{} can't be read: {error}", path.display());
            vec![Finding::unknown("", measured, "run this as root: only root, or who has CAP_SYSLOG, may read it")]
        }
        Err(error) => vec![Finding::unknown("", format!("{} can't be read: {error}", path.display()), "")],
    }
}

/// Returns the rules for lines of GPUs' drivers, with those of the site.
fn rules(expectations: &Expectations) -> Result<Rules, Box<Finding>> {
    let Some(path) = &expectations.kernel_rules else { return Ok(Rules::standard()) };
    let refused = |error: String| {
        let measured = format!("the rules in {} can't be used: {error}", path.display());
        Box::new(Finding::unknown("rules", measured, "correct the file, or leave it out"))
    };
    let text = read_bounded(path).map_err(|error| refused(error.to_string()))?;
    Rules::standard().with(&String::from_utf8_lossy(&text)).map_err(|error| refused(error.to_string()))
}

/// Returns lines of the last `window`, as dmesg prints them, that explain why processes of this machine
/// failed: XIDs of the hardware, and out-of-memory kills of `pids`. Kills of other processes don't concern
/// the run. Empty if the log can't be read.
pub(crate) fn faults(path: &Path, window: Duration, pids: &[u32]) -> Vec<u8> {
    let opened = OpenOptions::new().read(true).custom_flags(nonblocking()).open(path);
    let records = opened.and_then(read).unwrap_or_default();
    faults_of(&records, uptime().saturating_sub(window), pids).into_bytes()
}

fn faults_of(records: &[Record], since: Duration, pids: &[u32]) -> String {
    let rules = Rules::standard();
    let is_told = |record: &&Record| {
        record.at >= since
            && (rules.judge(&record.text).is_some_and(|event| event.is_fault)
                || killed_for_memory(&record.text).is_some_and(|pid| pids.contains(&pid)))
    };
    let line = |record: &Record| format!("[{:12.6}] {}\n", record.at.as_secs_f64(), quote(record));
    records.iter().rev().filter(is_told).take(FAULTS_MAX).map(line).collect::<Vec<_>>().into_iter().rev().collect()
}

/// Returns the process id in `Memory cgroup out of memory: Killed process 4711 (python3) total-vm:...`.
fn killed_for_memory(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("ut of memory: Killed process ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn nonblocking() -> i32 {
    OFlags::NONBLOCK.bits().cast_signed()
}

/// Reads all current records, newest last.
fn read(mut log: File) -> io::Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut buffer = vec![0; RECORD_BYTES_MAX];
    for _ in 0..RECORDS_MAX {
        match log.read(&mut buffer) {
            Ok(0) => break,
            // One record a read; many if the log is a plain file.
            Ok(length) => records.extend(String::from_utf8_lossy(&buffer[..length]).lines().filter_map(parse)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // The record was overwritten before it was read: the next read continues with the oldest one
            // left.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(records)
}

fn parse(line: &str) -> Option<Record> {
    let (head, text) = line.split_once(';')?;
    let micros = head.split(',').nth(2)?.parse().ok()?;
    Some(Record { at: Duration::from_micros(micros), text: text.to_owned() })
}

/// Returns the machine's uptime; zero if unknown.
fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = text.split_ascii_whitespace().next().and_then(|seconds| seconds.parse().ok());
    seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or_default()
}

fn judge(records: &[Record], (now, window): (Duration, Duration), rules: &Rules) -> Vec<Finding> {
    let recent = || records.iter().filter(|record| now.saturating_sub(record.at) <= window);
    let age = |record: &Record| now.saturating_sub(record.at).as_secs() / 60;
    let mut findings = Vec::new();
    let events: Vec<(DriverEvent, &Record)> =
        recent().filter_map(|record| Some((rules.judge(&record.text)?, record))).collect();
    if let Some((event, last)) = events.iter().rev().find(|(event, _)| event.is_fault) {
        let count = events.iter().filter(|(event, _)| event.is_fault).count();
        let (name, age) = (name(event.kind), age(last));
        let measured = format!("{count} event(s) of the hardware; the last, {name}, {age} min ago: {}", quote(last));
        findings.push(Finding::fine("XID", measured).wrong(Verdict::Failed, reason(event.action)));
    } else if let Some((event, last)) = events.last() {
        let (count, name) = (events.len(), name(event.kind));
        let measured = format!("{count} event(s), as programs cause them; the last, {name}, {} min ago", age(last));
        findings.push(Finding::fine("XID", measured));
    }
    for kind in &TROUBLES {
        let found: Vec<&Record> =
            recent().filter(|record| kind.words.iter().any(|word| record.text.contains(word))).collect();
        if let Some(last) = found.last() {
            let measured = format!("{} line(s), the last {} min ago: {}", found.len(), age(last), quote(last));
            let reason = Reason { expected: "none", why: kind.why, todo: kind.todo };
            findings.push(Finding::fine(kind.name, measured).wrong(kind.verdict, reason));
        }
    }
    if findings.iter().all(|finding| !finding.verdict.is_problem()) {
        let hours = window.as_secs() / 3_600;
        findings.push(Finding::fine("", format!("{} records, no trouble in the last {hours} h", records.len())));
    }
    findings
}

/// Returns the finding for a line of the driver (`NVML: Xid (PCI:00000000:3B:00.0): 79`, see
/// [`super::watch_gpus`]) if it reports a hardware fault.
pub(crate) fn of_hardware(line: &str) -> Option<Finding> {
    let event = Rules::standard().judge(line).filter(|event| event.is_fault)?;
    let found = Finding { check: "gpu".to_owned(), ..Finding::fine(event.place.as_str(), line) };
    Some(found.wrong(Verdict::Failed, reason(event.action)))
}

/// Returns why a fault of a GPU matters, and what to do.
fn reason(action: Action) -> Reason<'static> {
    Reason { expected: "none", why: GPU_FAULT, todo: action.words() }
}

fn name(kind: Kind) -> String {
    match kind {
        Kind::Xid(number) => format!("XID {number}"),
        Kind::SXid(number) => format!("SXid {number}"),
        Kind::OffTheBus => "off the bus".to_owned(),
        Kind::DoubleBitEcc => "double-bit ECC".to_owned(),
    }
}

fn quote(record: &Record) -> &str {
    let text = record.text.trim();
    &text[..text.floor_char_boundary(QUOTE_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn judged(log: &str) -> Vec<Finding> {
        let records: Vec<Record> = log.lines().filter_map(parse).collect();
        judge(&records, (Duration::from_secs(7_200), Duration::from_secs(3_600)), &Rules::standard())
    }

    #[test]
    fn xids_of_the_hardware_are_a_fault_and_those_of_programs_are_not() {
        let line = |minutes: u64, xid: u32| {
            format!("3,9,{},-;NVRM: Xid (PCI:0000:3b:00): {xid}, pid=77, GPU has\n SUBSYSTEM=pci\n", minutes * MINUTE)
        };
        let found = judged(&(line(100, 31) + &line(110, 79)));
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Failed), "{found:?}");
        assert!(found[0].measured.contains("XID 79, 10 min ago") && found[0].todo.contains("reboot"), "{found:?}");
        assert_eq!(judged(&line(100, 31))[0].verdict, Verdict::Fine);
        let old = judged(&line(10, 79));
        assert_eq!((old.len(), old[0].verdict), (1, Verdict::Fine), "what is older than the window is past: {old:?}");
    }

    #[test]
    fn what_ended_a_run_is_told_and_what_ended_others_is_not() {
        let killed = |pid: u32| format!("Memory cgroup out of memory: Killed process {pid} (python3) total-vm:9kB");
        let xid = |xid: u32| format!("NVRM: Xid (PCI:0000:3b:00): {xid}, pid=77, GPU has fallen off the bus.");
        let record = |minutes: u64, text: String| Record { at: Duration::from_secs(60 * minutes), text };
        let records = [
            record(1, xid(79)),
            record(9, killed(5)),
            record(9, killed(6)),
            record(10, xid(31)),
            record(11, xid(95)),
            record(12, xid(79)),
        ];
        let told = faults_of(&records, Duration::from_secs(120), &[6, 7]);
        let told: Vec<&str> = told.lines().collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("Killed process 6") && told[1].contains("95") && told[2].contains("79"), "{told:?}");
        assert_eq!(told[2].split_once("] ").map(|(time, _)| time), Some("[  720.000000"));
        assert_eq!(faults(Path::new("/nowhere"), Duration::MAX, &[]), b"");
    }

    #[test]
    fn what_the_driver_tells_is_a_fault_if_the_hardware_failed() {
        let place = |line: &str| of_hardware(line).map(|found| (found.place(), found.verdict));
        let failed = |place: &str| Some((place.to_owned(), Verdict::Failed));
        assert_eq!(place("NVML: Xid (PCI:00000000:3B:00.0): 95"), failed("gpu PCI:00000000:3B:00.0"));
        assert_eq!(place("NVML: Double Bit ECC Error (PCI:3B)"), failed("gpu PCI:3B"));
        assert_eq!(place("NVML: GPU is lost"), failed("gpu"));
        assert_eq!(place("NVML: Xid (PCI:00000000:3B:00.0): 31"), None);
    }

    #[test]
    fn a_site_decides_otherwise_and_rules_that_do_not_parse_are_said() {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, file) = (folder.path().join("kmsg"), folder.path().join("rules.toml"));
        std::fs::write(&log, format!("3,9,{},-;NVRM: Xid (PCI:0000:3b:00): 94, contained\n", u64::MAX >> 12))
            .expect("written");
        let found = |rules: &str| {
            std::fs::write(&file, rules).expect("written");
            let window = Duration::from_secs(1 << 40);
            let expectations = Expectations {
                kernel_log: log.clone(),
                kernel_rules: Some(file.clone()),
                kernel_log_window: window,
                ..Expectations::default()
            };
            let found = check(&expectations);
            (found[0].verdict, found[0].measured.clone())
        };
        assert_eq!(found("").0, Verdict::Fine, "a program met it, and nobody else");
        assert_eq!(found("[[xid]]\nnumber = 94\nfault = true\n").0, Verdict::Failed);
        let (verdict, measured) = found("[[xid]]\nnumber = 'x'\n");
        assert!(
            verdict == Verdict::Unknown && measured.contains("rules.toml") && measured.contains("2:10"),
            "{measured}"
        );
    }

    #[test]
    fn disks_and_machine_checks_are_found() {
        let found = judged(&format!(
            "3,9,{0},-;blk_update_request: I/O error, dev nvme0n1\n2,1,{0},-;mce: [Hardware Error]: CPU 1\n",
            110 * MINUTE
        ));
        let kinds: Vec<&str> = found.iter().map(|finding| finding.subject.as_str()).collect();
        assert_eq!(kinds, ["machine checks", "I/O errors"]);
        assert!(found[1].measured.contains("nvme0n1"));
    }

    #[test]
    fn lines_that_are_no_records_are_passed_over() {
        assert!(parse("nonsense").is_none() && parse("6,1;x").is_none() && parse("6,1,x,-;y").is_none());
        assert_eq!(judged("")[0].verdict, Verdict::Fine);
    }
}
