//! File systems that can't hold a journal. SQLite's write-ahead log needs shared memory and reliable locks,
//! which network file systems don't provide (<https://www.sqlite.org/wal.html>).

use std::path::Path;

use super::Error;

/// Magic numbers in `statfs(2)` of Linux's network and cluster file systems.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 13] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0xaad7_aaea, "PanFS"),
    (0x2bad_1dea, "WekaFS"),
];

/// Refuses a folder on a network file system.
pub(super) fn refuse_network(folder: &Path) -> Result<(), Error> {
    let status = rustix::fs::statfs(folder);
    let status = status.map_err(|source| Error::Folder { path: folder.to_owned(), source: source.into() })?;
    match network_file_system(u64::try_from(status.f_type).unwrap_or_default()) {
        Some(kind) => Err(Error::NetworkFolder { path: folder.to_owned(), kind }),
        None => Ok(()),
    }
}

/// Returns the name of a network file system, or `None` for any other.
fn network_file_system(magic: u64) -> Option<&'static str> {
    // Some kernels sign-extend these 32 bits.
    let found = NETWORK_FILE_SYSTEMS.iter().find(|(known, _)| u64::from(*known) == magic & 0xffff_ffff);
    found.map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_local_ones() {
        for (magic, name) in
            [(0x6969, Some("NFS")), (0xffff_ffff_ff53_4d42, Some("CIFS")), (0x0bd0_0bd0, Some("Lustre"))]
        {
            assert_eq!(network_file_system(magic), name);
        }
        for (magic, name) in [(0xef53, "ext4"), (0x5846_5342, "xfs"), (0x9123_683e, "btrfs"), (0x0102_1994, "tmpfs")] {
            assert_eq!(network_file_system(magic), None, "{name}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        assert!(refuse_network(folder.path()).is_ok());
    }
}
