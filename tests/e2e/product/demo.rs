//! The README's first command.

use std::process::Command;

use crate::fixtures::gangline;
use crate::fixtures::product::Ran;

#[test]
fn the_demo_trains_three_jobs_through_one_recovery() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(gangline());
    command.args(["demo", "--steps", "240"]).env("TMPDIR", folder.path()).env_remove("GANGLINE_DATA");
    let ran = Ran::from(command.output().expect("the demo runs"));
    assert_eq!(ran.code, 0, "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("$ gangline explain job-3"), "it explains the waiting job: {}", ran.stderr);
    assert!(ran.stderr.contains("held by job-1, job-2"), "it says who holds the slots: {}", ran.stderr);
    assert!(ran.stderr.contains("killed rank 1 of job-3"), "it kills a rank: {}", ran.stderr);
    let count = |text: &str| ran.stdout.matches(text).count();
    assert_eq!(count("state        succeeded"), 3, "three jobs finish: {}", ran.stdout);
    assert_eq!(count("recovery     attempt 1 to 2"), 1, "one recovers: {}", ran.stdout);
    for phase in ["detect", "cleanup", "rendezvous", "init", "restore", "first_step"] {
        assert!(ran.stdout.contains(&format!("{phase} ")), "the phase {phase} is timed: {}", ran.stdout);
    }
    assert_eq!(count("exactly what was allocated"), 3, "all buckets sum: {}", ran.stdout);
    // None when the kill came right behind a save, one run in thirty.
    let (jobs, bill) = ran.stdout.split_once("The bill of the demo").expect("it ends with the bill");
    assert!(jobs.matches("lost_work").count() <= 1, "only the killed job does steps again: {}", ran.stdout);
    for part in ["job-1 ", "job-2 ", "job-3 ", "idle_spare ", ", each of which is in one line\n"] {
        assert!(bill.contains(part), "the bill has {part}: {bill}");
    }
    assert!(ran.stdout.contains("at $0.0400 a slot-hour on local"), "the price is stated: {}", ran.stdout);
    let fetched = ran.stdout.lines().filter(|line| line.contains("/corpus fetched by ")).count();
    assert_eq!(fetched, 3, "each job says what it asked for of its data: {}", ran.stdout);
    let (_, cache) = ran.stdout.split_once("$ gangline data cache\n").expect("it shows the cache");
    let tokens = cache.lines().find(|line| line.contains("/tokens-00000.bin")).expect("the corpus is there");
    // All ranks read the same range of 8 MiB, which was fetched once.
    let words: Vec<&str> = tokens.split_whitespace().collect();
    assert_eq!(words[1..5], ["8.0", "MiB", "8.0", "MiB"], "{tokens}");
    assert_eq!(words[5], "1", "once for all jobs: {tokens}");
    assert!(words[6].parse::<u32>().is_ok_and(|percent| percent >= 75), "the others find it there: {tokens}");
    let losses = losses(&ran.stdout);
    assert_eq!(losses.len(), 3, "{}", ran.stdout);
    assert!(losses.iter().all(|(first, last)| last < first), "the losses fall: {losses:?}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder is there").flatten().collect();
    assert!(left.is_empty(), "it cleans up behind itself: {left:?}");
}

/// First and last loss of each job in the report.
fn losses(report: &str) -> Vec<(f64, f64)> {
    let number = |text: &str| text.trim_start().split(' ').next().and_then(|word| word.parse().ok());
    let pair = |line: &str| {
        let (first, last) = line.split_once(", loss ")?.1.split_once(" at first, ")?;
        Some((number(first)?, number(last)?))
    };
    report.lines().filter(|line| line.trim_start().starts_with("progress ")).filter_map(pair).collect()
}
