//! File systems: clients of NFS and Lustre, and the space on local disks.

use std::collections::BTreeSet;

use super::PARTS_MAX;
use super::files::{Files, names, read};
use crate::collectors::metric::metric;
use crate::collectors::rates::float;
use crate::collectors::source::Sample;

/// File systems on disks of this machine. Asking them for their space doesn't wait for a server.
const LOCAL: [&str; 6] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs"];

/// Returns what /proc/self/mountstats says of NFS mounts: for each a line `device D mounted on M with fstype nfs4 ...`,
/// then `bytes:` (the fifth and sixth number are what went to and from the server), then for each operation `NAME: requests
/// transmissions ...`.
pub(super) fn nfs(mountstats: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mounts = mountstats.split("\ndevice ").filter(|mount| mount.contains(" with fstype nfs"));
    for mount in mounts.take(PARTS_MAX) {
        let Some((_, rest)) = mount.split_once(" mounted on ") else { continue };
        let Some((folder, _)) = rest.split_once(" with fstype ") else { continue };
        let numbers = |text: &str| -> Vec<u64> {
            text.split_ascii_whitespace().map_while(|number| number.parse().ok()).collect()
        };
        let mut counter = |name: &str, count: u64| {
            samples.push(Sample::counter(metric(name), count, 1.0).of_part(folder));
        };
        let bytes = mount.lines().find_map(|line| line.trim_start().strip_prefix("bytes:")).map(numbers);
        if let Some([_, _, _, _, read, written, ..]) = bytes.as_deref() {
            counter("host.nfs_read_bytes_per_second", *read);
            counter("host.nfs_write_bytes_per_second", *written);
        }
        let Some((_, operations)) = mount.split_once("per-op statistics") else { continue };
        let (mut requests, mut again) = (0_u64, 0_u64);
        for (_, operation) in operations.lines().filter_map(|line| line.split_once(':')) {
            if let [asked, sent, ..] = numbers(operation)[..] {
                requests = requests.saturating_add(asked);
                again = again.saturating_add(sent.saturating_sub(asked));
            }
        }
        counter("host.nfs_requests_per_second", requests);
        counter("host.nfs_retransmits_per_second", again);
    }
    samples
}

/// Returns what Lustre's client says of each mount: `read_bytes 1 samples [bytes] 4194304 4194304 4194304`, the last being
/// the sum.
pub(super) fn lustre(files: &Files) -> Vec<Sample> {
    let root = files.proc.join("fs/lustre/llite");
    let mut samples = Vec::new();
    for mount in names(&root) {
        let stats = read(&root.join(&mount).join("stats")).unwrap_or_default();
        // `lustrefs-ffff88105db50000`: the file system, and an address.
        let file_system = mount.rsplit_once('-').map_or(mount.as_str(), |(name, _)| name);
        let directions = [
            ("read_bytes ", "host.lustre_read_bytes_per_second"),
            ("write_bytes ", "host.lustre_write_bytes_per_second"),
        ];
        for (key, name) in directions {
            let line = stats.lines().find_map(|line| line.strip_prefix(key));
            let sum = line.and_then(|line| line.split_ascii_whitespace().nth(5)?.parse().ok());
            samples.extend(sum.map(|sum| Sample::counter(metric(name), sum, 1.0).of_part(file_system)));
        }
    }
    samples
}

/// Returns how full local file systems are, each once however often it is mounted.
pub(super) fn space(mounts: &str) -> Vec<Sample> {
    let mut seen = BTreeSet::new();
    let local = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (device, folder, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (LOCAL.contains(&kind) && seen.insert(device)).then(|| unescaped(folder))
    });
    let of = |folder: String| {
        let about = rustix::fs::statvfs(&folder).ok()?;
        // As df counts: what only root may use is neither free nor used.
        let used = part(about.f_blocks.saturating_sub(about.f_bfree), about.f_bavail)?;
        let inodes = part(about.f_files.saturating_sub(about.f_ffree), about.f_favail);
        let sample = |name: &str, value: f64| Sample::gauge(metric(name), value).of_part(&folder);
        let inodes = inodes.map(|inodes| sample("host.filesystem_inodes_used_ratio", inodes));
        Some([Some(sample("host.filesystem_used_ratio", used)), inodes].into_iter().flatten().collect::<Vec<_>>())
    };
    local.take(PARTS_MAX).filter_map(of).flatten().collect()
}

fn part(used: u64, free: u64) -> Option<f64> {
    let all = used.saturating_add(free);
    (all > 0).then(|| float(used) / float(all))
}

/// Returns a folder as /proc/self/mounts writes it, where a space is `\040`.
fn unescaped(folder: &str) -> String {
    let mut text = String::new();
    let mut rest = folder;
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        let Some(code) = code.filter(u8::is_ascii) else {
            text.push('\\');
            rest = after;
            continue;
        };
        text.push(char::from(code));
        rest = &after[3..];
    }
    text + rest
}
