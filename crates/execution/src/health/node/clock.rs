//! Checks whether the clock is synchronised: logs and faults of a gang's nodes are ordered by their times.
//!
//! The kernel knows, but tells only through adjtimex(2), which needs `unsafe`; systemd's timedatectl asks it.
//! Without timedatectl, a running time service counts.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};
use crate::program::{self, Limits};

/// Names of time services.
const SERVICES: [&str; 7] = ["chronyd", "ntpd", "systemd-timesyn", "ptp4l", "phc2sys", "ntpd-rs", "openntpd"];

/// Limits for timedatectl, whose service may hang.
const LIMITS: Limits = Limits { time: Duration::from_secs(4), output: 64, errors: 0 };

pub(super) fn check(_: &Expectations) -> Vec<Finding> {
    let service = service();
    let by = service.as_ref().map(|name| format!(" ({name} runs)")).unwrap_or_default();
    vec![match (told_by_system(), service) {
        (Some(true), _) => Finding::fine("", format!("synchronised{by}")),
        (Some(false), _) => Finding::fine("", format!("not synchronised{by}")).wrong(
            Verdict::Warning,
            Reason {
                expected: "synchronised",
                why: "which of a gang's ranks failed first is told by their clocks, and so is how old a credential is",
                todo: "run chrony or systemd-timesyncd: timedatectl set-ntp true",
            },
        ),
        (None, Some(name)) => Finding::fine("", format!("{name} runs")),
        (None, None) => Finding::unknown(
            "",
            "no time service is seen",
            "in a container the host's keeps the clock; elsewhere run chrony",
        ),
    }]
}

/// Returns what timedatectl reports; none without it.
fn told_by_system() -> Option<bool> {
    let mut command = Command::new("timedatectl");
    command.args(["show", "--property=NTPSynchronized", "--value"]);
    match program::run(&mut command, Vec::new(), LIMITS).ok()?.output.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

/// Returns a running time service.
fn service() -> Option<String> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let mut names = entries.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    names.find(|name| SERVICES.contains(&name.trim())).map(|name| name.trim().to_owned())
}
