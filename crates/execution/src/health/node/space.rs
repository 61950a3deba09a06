//! Checks the folders that a run writes to: free bytes and inodes, and whether a small file can be written
//! durably.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use gangline_base::Bytes;
use rustix::fs::{StatVfs, statvfs};

use super::Expectations;
use crate::health::{Finding, Reason, Verdict};

/// With less, logs and small checkpoints fill the disk.
const FREE_MIN: Bytes = Bytes(1 << 30);
/// A run makes a few thousand files.
const INODES_MIN: u64 = 10_000;
/// A small file takes milliseconds.
const WRITE_MAX: Duration = Duration::from_secs(1);
/// Size of the small file.
const PROBE_BYTES: usize = 4_096;

pub(super) fn check(expectations: &Expectations) -> Vec<Finding> {
    if expectations.folders.is_empty() {
        return vec![Finding::not_here("no folder was named")];
    }
    expectations.folders.iter().flat_map(|folder| of(folder, expectations.share())).collect()
}

fn of(folder: &Path, checkpoint: Bytes) -> Vec<Finding> {
    let subject = folder.display().to_string();
    let unusable = |error: &io::Error| {
        let reason =
            Reason { expected: "a folder that can be written to", why: "a run can't save here", todo: todo(error) };
        vec![Finding::fine(&subject, error.to_string()).wrong(Verdict::Failed, reason)]
    };
    let room = match statvfs(folder) {
        Ok(room) => room,
        Err(errno) => return unusable(&errno.into()),
    };
    let took = match write_probe(folder) {
        Ok(took) => took,
        Err(error) => return unusable(&error),
    };
    [Some(bytes(&subject, &room, checkpoint)), inodes(&subject, &room), slow(&subject, took)]
        .into_iter()
        .flatten()
        .collect()
}

fn todo(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free space, or name another folder",
        ErrorKind::NotFound => "make the folder, or mount what it is on",
        ErrorKind::ReadOnlyFilesystem => {
            "look in dmesg for why it is read-only; check the file system and mount it again"
        }
        ErrorKind::PermissionDenied => "give this user the folder, or name another",
        _ => "look at the disk or the file server (dmesg)",
    }
}

fn bytes(subject: &str, room: &StatVfs, checkpoint: Bytes) -> Finding {
    let free = Bytes(room.f_bavail.saturating_mul(room.f_frsize));
    let total = Bytes(room.f_blocks.saturating_mul(room.f_frsize));
    let finding = Finding::fine(subject, format!("{free} free of {total}")).figure("free_bytes", free.0 as f64);
    if free < FREE_MIN {
        let reason = Reason {
            expected: &format!("at least {FREE_MIN}"),
            why: "saves and logs fail when it is full",
            todo: "free space, or name a folder on another disk",
        };
        return finding.wrong(Verdict::Failed, reason);
    }
    // The last good checkpoint stays until the next one is complete.
    let two = Bytes(checkpoint.0.saturating_mul(2));
    let reason = Reason {
        expected: &format!("room for two shares of a checkpoint, {two}"),
        why: "the last checkpoint stays until the next is whole",
        todo: "free space, keep fewer checkpoints, or name a folder on a larger disk (--checkpoint-size says how large a share is)",
    };
    finding.judged(free < two, Verdict::Warning, reason)
}

/// Checks free inodes. Some file systems make inodes as they are needed and report none.
fn inodes(subject: &str, room: &StatVfs) -> Option<Finding> {
    if room.f_files == 0 || room.f_favail >= INODES_MIN {
        return None;
    }
    let finding = Finding::fine(subject, format!("{} inodes free of {}", room.f_favail, room.f_files));
    let reason = Reason {
        expected: &format!("at least {INODES_MIN}"),
        why: "without inodes no file can be made, however many bytes are free",
        todo: "remove small files (caches, logs), or make the file system with more inodes",
    };
    Some(finding.wrong(Verdict::Failed, reason))
}

fn slow(subject: &str, took: Duration) -> Option<Finding> {
    let finding = Finding::fine(subject, format!("{:.1} s to write 4 KiB and fsync", took.as_secs_f64()));
    let reason = Reason {
        expected: &format!("under {} s", WRITE_MAX.as_secs()),
        why: "each checkpoint's commit waits for several of these",
        todo: "see who else writes to this disk or file server; look for I/O errors in dmesg",
    };
    (took > WRITE_MAX).then(|| finding.wrong(Verdict::Warning, reason))
}

/// Writes a small file, makes it durable, and removes it.
fn write_probe(folder: &Path) -> io::Result<Duration> {
    let path = folder.join(format!(".gangline-check-{}", crate::process::own_pid()));
    let started = Instant::now();
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
    let written = file.write_all(&[0; PROBE_BYTES]).and_then(|()| file.sync_all());
    let took = started.elapsed();
    std::fs::remove_file(&path)?;
    written.map(|()| took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_room_is_fine_and_one_that_isnt_there_is_a_fault() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = of(folder.path(), Bytes(1));
        assert!(found.iter().all(|finding| finding.verdict == Verdict::Fine), "{found:?}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0, "nothing is left behind");
        let found = of(&folder.path().join("none"), Bytes(1));
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Failed), "{found:?}");
        assert_eq!(found[0].todo, "make the folder, or mount what it is on");
        let large = of(folder.path(), Bytes(u64::MAX / 2));
        assert_eq!(large[0].verdict, Verdict::Warning, "{large:?}");
    }
}
