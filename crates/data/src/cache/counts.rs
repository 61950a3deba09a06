//! How well a copy serves: the bytes that programs found here when they first wanted them, and those that they fetched.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::Cache;

/// The end of the file's name: two numbers.
pub(super) const COUNTS: &str = "counts";
const BYTES: usize = 16;

/// What programs wanted of a copy so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) found: u64,
    pub(super) fetched: u64,
}

impl Counts {
    /// Returns what is counted; nothing without a file.
    pub(super) fn read(path: &Path) -> Counts {
        File::open(path).ok().and_then(|file| Counts::of(&file)).unwrap_or_default()
    }

    fn of(file: &File) -> Option<Counts> {
        let mut bytes = [0; BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("there are so many"));
        Some(Counts { found: number(0), fetched: number(8) })
    }

    /// Adds to a copy's counts. Errors are ignored: a count that can't be written mustn't end a training run.
    pub(super) fn add(self, cache: &Cache, key: &str) {
        let path = cache.part_path(key, COUNTS);
        let open = || File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let Ok(file) = open() else { return };
        if file.lock().is_err() {
            return;
        }
        let before = Counts::of(&file).unwrap_or_default();
        let sum = [before.found.saturating_add(self.found), before.fetched.saturating_add(self.fetched)];
        let bytes: Vec<u8> = sum.iter().flat_map(|number| number.to_le_bytes()).collect();
        let _ = file.write_all_at(&bytes, 0);
    }
}
