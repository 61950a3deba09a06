//! When the programs of this node use which range next: each says it in a file that it holds locked, and who needs room looks
//! at all of them. The order of samples is known in advance, so this isn't guessed from the past.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::{Cache, USES};
use crate::error::Error;

/// Digits of a copy's key.
pub(super) const KEY_DIGITS: usize = 32;
/// The most bytes of a program's file that are read.
const USES_BYTES_MAX: u64 = 64 << 20;
/// Steps of [`Near`] for each doubling of the batches.
const STEPS: f64 = 8.0;

/// How soon something is used, on a scale that grows by the logarithm of the batches until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Near(u8);

impl Near {
    /// It is waited for.
    pub(crate) const NOW: Near = Near(0);
    /// Nobody is known to use it soon.
    pub(crate) const FAR: Near = Near(u8::MAX);

    /// In so many batches.
    pub(crate) fn batches(batches: u64) -> Near {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "64 doublings are 512 steps")]
        let steps = ((batches as f64 + 1.0).log2() * STEPS) as u16;
        Near(u8::try_from(steps.saturating_add(1)).unwrap_or(u8::MAX).min(u8::MAX - 1))
    }
}

/// What a program says.
#[derive(Debug)]
pub(crate) struct Uses {
    path: PathBuf,
    file: File,
}

impl Uses {
    /// Begins to say something.
    pub(super) fn new(cache: &Cache) -> Result<Uses, Error> {
        let folder = cache.options.root.join(USES);
        let pid = std::process::id();
        let mut number = 0;
        loop {
            let path = folder.join(format!("{pid}-{number}"));
            match File::options().create_new(true).read(true).write(true).open(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                made => {
                    let file = made.map_err(Error::io("make", &path))?;
                    file.lock().map_err(Error::io("lock", &path))?;
                    return Ok(Uses { path, file });
                }
            }
        }
    }

    /// Says when each range of some copies is used next. It is advice: who reads while it is written reads some of both.
    pub(crate) fn say(&self, copies: impl Iterator<Item = (String, Vec<Near>)>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for (key, ranges) in copies {
            assert_eq!(key.len(), KEY_DIGITS, "a key has so many digits");
            bytes.extend(key.as_bytes());
            bytes.extend((ranges.len() as u64).to_le_bytes());
            bytes.extend(ranges.iter().map(|near| near.0));
        }
        self.file.write_all_at(&bytes, 0).map_err(Error::io("write", &self.path))?;
        self.file.set_len(bytes.len() as u64).map_err(Error::io("write", &self.path))
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        // What stays is removed by the next who looks.
        let _ = fs::remove_file(&self.path);
    }
}

/// When each range of each copy is used next by any program, as far as they say.
pub(super) fn all(cache: &Cache) -> Result<BTreeMap<String, Vec<Near>>, Error> {
    let folder = cache.options.root.join(USES);
    let mut all: BTreeMap<String, Vec<Near>> = BTreeMap::new();
    for entry in fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
        let path = entry.map_err(Error::io("list", &folder))?.path();
        let Ok(file) = File::options().read(true).open(&path) else { continue };
        if file.try_lock_shared().is_ok() {
            // Its program has ended.
            let _ = fs::remove_file(&path);
            continue;
        }
        let is_small = file.metadata().is_ok_and(|found| found.len() <= USES_BYTES_MAX);
        let Some(bytes) = is_small.then(|| fs::read(&path).ok()).flatten() else { continue };
        merge(&bytes, &mut all);
    }
    Ok(all)
}

/// Takes the earlier use of each range. What is cut off or odd is left out.
fn merge(bytes: &[u8], all: &mut BTreeMap<String, Vec<Near>>) {
    let mut rest = bytes;
    while let Some((key, behind)) = rest.split_at_checked(KEY_DIGITS) {
        let Some((count, behind)) = behind.split_first_chunk::<8>() else { return };
        let count = usize::try_from(u64::from_le_bytes(*count)).unwrap_or(usize::MAX);
        let (Some((ranges, behind)), Ok(key)) = (behind.split_at_checked(count), std::str::from_utf8(key)) else {
            return;
        };
        let known = all.entry(key.to_owned()).or_default();
        known.resize(known.len().max(count), Near::FAR);
        for (slot, near) in known.iter_mut().zip(ranges) {
            *slot = (*slot).min(Near(*near));
        }
        rest = behind;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sooner_is_nearer_and_nothing_is_as_far_as_what_nobody_uses() {
        let steps: Vec<Near> = [0, 1, 2, 5, 100, 1_000_000, u64::MAX].map(Near::batches).into();
        assert!(steps.is_sorted() && steps[0] > Near::NOW && steps[6] < Near::FAR, "{steps:?}");
        assert_eq!(Near::batches(0), Near(1));
    }

    #[test]
    fn the_earliest_use_of_all_programs_counts_and_what_is_cut_off_does_not() {
        let key = "0".repeat(KEY_DIGITS);
        let said = |ranges: &[u8]| [key.as_bytes(), &(ranges.len() as u64).to_le_bytes(), ranges].concat();
        let mut all = BTreeMap::new();
        merge(&said(&[5, 255, 9]), &mut all);
        merge(&said(&[7, 3]), &mut all);
        let expected: Vec<Near> = [5, 3, 9].map(Near).into();
        assert_eq!(all[&key], expected);
        let cut = said(&[0, 0, 0]);
        (0..cut.len()).for_each(|end| merge(&cut[..end], &mut all));
        assert_eq!(all[&key], expected);
    }
}
