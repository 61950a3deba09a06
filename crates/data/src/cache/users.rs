//! Which programs use a copy: those that hold its lock, as the kernel lists them.

use std::collections::BTreeMap;
use std::fs;

/// Programs by the number of the file that they hold locked. Of another process namespace, the kernel lists none.
#[derive(Debug)]
pub(super) struct Users(BTreeMap<u64, Vec<u32>>);

impl Users {
    /// Returns who holds locks now.
    pub(super) fn now() -> Users {
        Users::of(&fs::read_to_string("/proc/locks").unwrap_or_default())
    }

    /// Reads lines such as `1: FLOCK  ADVISORY  READ 4242 fe:00:1188 0 EOF` (proc_locks(5)).
    fn of(text: &str) -> Users {
        let mut found: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let is_flock = words.nth(1) == Some("FLOCK");
            let (pid, file) = (words.nth(2), words.next());
            let pid = pid.and_then(|pid| pid.parse::<u32>().ok()).filter(|pid| is_flock && *pid > 0);
            let inode = file.and_then(|file| file.rsplit(':').next()?.parse().ok());
            if let Some((pid, inode)) = pid.zip(inode) {
                found.entry(inode).or_default().push(pid);
            }
        }
        for pids in found.values_mut() {
            pids.sort_unstable();
            pids.dedup();
        }
        Users(found)
    }

    /// Returns the programs that hold a file locked.
    pub(super) fn holding(&self, inode: u64) -> Vec<u32> {
        self.0.get(&inode).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_the_file_that_they_hold() {
        let text = "1: FLOCK  ADVISORY  READ 4242 fe:00:1188 0 EOF\n2: POSIX  ADVISORY  WRITE 7 fe:00:1188 0 EOF\n\
                    3: FLOCK  ADVISORY  READ 9 fe:00:1188 0 EOF\n3: -> FLOCK ADVISORY WRITE 8 fe:00:1188 0 EOF\n\
                    4: FLOCK  ADVISORY  WRITE 4242 fe:00:12 0 EOF\n5: FLOCK  ADVISORY  READ 9 fe:00:1188 0 EOF\nx\n";
        let users = Users::of(text);
        assert_eq!((users.holding(1188), users.holding(12), users.holding(1)), (vec![9, 4242], vec![4242], vec![]));
    }
}
