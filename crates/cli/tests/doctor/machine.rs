//! One machine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{doctor, findings, json};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn looking_is_quick_and_says_of_every_check_what_came_out() {
    let place = folder();
    let output = doctor(place.path(), &["--quick", "--json"]);
    let report = json(&output);
    let looks = [
        "gpu",
        "links",
        "kernel-log",
        "space",
        "shared-memory",
        "memory",
        "network",
        "infiniband",
        "limits",
        "governor",
        "clock",
    ];
    for check in looks {
        let found = findings(&report, check);
        assert!(!found.is_empty(), "nothing of {check}: {report:#}");
        for finding in found {
            assert!(finding["measured"].as_str().is_some_and(|text| !text.is_empty()), "{finding:#}");
            let is_problem = ["warning", "failed", "hung"].contains(&finding["verdict"].as_str().expect("a verdict"));
            assert_eq!(is_problem, !finding["why"].as_str().expect("text").is_empty(), "{finding:#}");
        }
    }
    assert!(findings(&report, "jitter").is_empty() && findings(&report, "storage").is_empty(), "{report:#}");
    let problems = report["problems"].as_u64().expect("a number");
    assert_eq!(output.status.code(), Some(i32::from(problems > 0)), "{report:#}");
}

#[test]
fn measuring_gives_figures_and_estimates_and_leaves_nothing_behind() {
    let place = folder();
    let only = ["--only", "jitter", "--only", "storage", "--only", "loopback", "--only", "load", "--only", "start"];
    let report = json(&doctor(place.path(), &[&only[..], &["--run-nodes", "100", "--json"]].concat()));
    let figure = |check: &str, name: &str| {
        let found = findings(&report, check);
        found
            .iter()
            .find_map(|finding| finding["figures"][name].as_f64())
            .unwrap_or_else(|| panic!("no {name}: {report:#}"))
    };
    assert!((0.0..=1.0).contains(&figure("jitter", "lost_share")));
    assert!(figure("jitter", "gang_loss_share") >= 0.0 && figure("jitter", "longest_gap_ms") >= 0.0);
    let estimate = &findings(&report, "jitter")[0]["estimate"];
    assert!(estimate.as_str().is_some_and(|text| text.contains("100 like it")), "{estimate}");
    for rate in ["write_bytes_per_second", "read_bytes_per_second", "copy_bytes_per_second"] {
        assert!(figure("storage", rate) > 1e6, "{rate}: {report:#}");
    }
    assert!(figure("loopback", "loopback_bytes_per_second") > 1e6 && figure("start", "start_ms") > 0.0);
    assert!(figure("load", "busy_share") <= 1.0);
    assert_eq!(std::fs::read_dir(place.path()).expect("it is there").count(), 0);
}

#[test]
fn people_read_what_is_wrong_first_and_what_to_do() {
    let place = folder();
    let output =
        doctor(place.path(), &["--only", "space", "--only", "gpu", "--folder", "/nowhere", "--accelerators", "H100:8"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).expect("text");
    for part in ["FAILED   space /nowhere", "No such file", "do        make the folder", "8 x H100", "2 problems found"]
    {
        assert!(text.contains(part), "no \"{part}\" in:\n{text}");
    }
}

#[test]
fn senseless_arguments_are_refused() {
    let place = folder();
    let refused = |words: &[&str], said: &str| {
        let output = doctor(place.path(), words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(said), "{words:?}: {text}");
    };
    refused(&["--only", "nonsense"], "there are: gpu, links");
    refused(&["--accelerators", "H100"], "KIND:COUNT");
    refused(&["--run-nodes", "0"], "0 is not in");
    refused(&["--checkpoint-size", "7"], "with its unit");
    refused(&["--nodes", "a b"], "a b");
    let lost = doctor(place.path(), &["--rank"]);
    assert_eq!(lost.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&lost.stderr).contains("MASTER_PORT is not set"), "{lost:?}");
    let away = doctor(place.path(), &["--pool", "--data", "none"]);
    assert_eq!(away.status.code(), Some(5), "{away:?}");
}

/// The driver's program stops itself, as one does that waits for a driver that doesn't answer.
#[test]
fn a_driver_that_hangs_makes_a_finding_and_holds_nobody_up() {
    let place = folder();
    let program = place.path().join("nvidia-smi");
    std::fs::write(&program, "#!/bin/sh\nkill -STOP $$\n").expect("a program");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("it may run");
    let mut command =
        super::gangline(place.path(), &["doctor", "--only", "links", "--only", "space", "--timeout", "2s", "--json"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", place.path().display()));
    let started = Instant::now();
    let output = command.output().expect("gangline runs");
    assert!(started.elapsed() < Duration::from_secs(60), "it waited {:?}", started.elapsed());
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(findings(&report, "links")[0]["verdict"], "hung", "{report:#}");
    assert!(!findings(&report, "space").is_empty(), "the others are checked: {report:#}");
}

/// Opening a FIFO that nobody writes to hangs like a read from a dead disk, unless it is opened as the kernel's log is.
#[test]
fn a_log_that_is_no_log_has_no_records() {
    let place = folder();
    let log = place.path().join("log");
    std::fs::write(&log, "3,9,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n")
        .expect("written");
    let log = log.to_str().expect("text");
    let report = json(&doctor(place.path(), &["--only", "kernel-log", "--kernel-log", log, "--json"]));
    let found = findings(&report, "kernel-log");
    // A machine that has run for more than a day has forgotten it.
    assert!(["failed", "fine"].contains(&found[0]["verdict"].as_str().expect("a verdict")), "{report:#}");
    let none = json(&doctor(place.path(), &["--only", "kernel-log", "--kernel-log", "/nowhere", "--json"]));
    assert_eq!(findings(&none, "kernel-log")[0]["verdict"], "not_here");
}

#[test]
fn a_full_disk_is_a_fault_of_the_node() {
    let place = folder();
    let Some(_mounted) = Mounted::tmpfs(place.path(), "1m") else {
        println!("skipped: a tmpfs can't be mounted here (root may)");
        return;
    };
    // As much as goes in.
    let _ = std::fs::write(place.path().join("filler"), vec![0; 2 << 20]);
    let full = place.path().to_str().expect("text");
    let report = json(&doctor(Path::new("/"), &["--only", "space", "--only", "storage", "--folder", full, "--json"]));
    let space = findings(&report, "space");
    assert_eq!(space[0]["verdict"], "failed", "{report:#}");
    assert!(space[0]["measured"].as_str().is_some_and(|text| text.contains("No space left")), "{report:#}");
    assert_eq!(findings(&report, "storage")[0]["verdict"], "unknown", "{report:#}");
}

/// A file system that is unmounted at the end.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    fn tmpfs(place: &'a Path, size: &str) -> Option<Self> {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(place).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Mounted(place))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "the test's file system can't be unmounted");
    }
}
