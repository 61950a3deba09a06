//! Objects that are too large to be put at once: a file is put in parts, several at a time, and the object is there only
//! when all of them are.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{Error, Fault, Link, Tag};

/// The usual length of a part. S3 takes no part but the last below 5 MiB
/// (<https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>).
const PART_BYTES: u64 = 16 << 20;
/// The most parts of an object in S3 (same page).
const PARTS_MAX: u64 = 10_000;
/// The parts that are on their way at once.
const TOGETHER: u64 = 4;

/// A part of an object that is being put.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The upload, as [`crate::Remote::begin_parts`] named it.
    pub upload: &'a str,
    /// The part's place among all, from 0.
    pub number: usize,
    /// Where it begins in the object.
    pub offset: u64,
}

impl Link {
    /// Puts what a file holds, replacing an object of the same name. Large files go in parts, of which each is tried again by
    /// itself; the object is there only when it is whole.
    ///
    /// # Errors
    /// [`Error::Failed`], also if the file can't be read or is shorter. What was sent is given up then.
    pub fn put_file(&self, key: &str, file: &File, bytes: u64) -> Result<(), Error> {
        if bytes <= PART_BYTES {
            return self.put(key, &read(key, file, 0, bytes)?);
        }
        let upload = self.persist("put", key, || self.remote.begin_parts(key))?;
        let put = self.put_parts(key, &upload, file, bytes).and_then(|parts| self.finish(key, &upload, &parts, bytes));
        if put.is_err() {
            // Parts that stay cost space until the place removes them; the failure itself is what is told.
            let _ = self.persist("give up", key, || self.remote.abandon_parts(key, &upload));
        }
        put
    }

    /// Puts all parts and returns their tags in order.
    fn put_parts(&self, key: &str, upload: &str, file: &File, bytes: u64) -> Result<Vec<Tag>, Error> {
        let length = PART_BYTES.max(bytes.div_ceil(PARTS_MAX));
        let count = bytes.div_ceil(length);
        let next = AtomicU64::new(0);
        let tags = Mutex::new(vec![None; usize::try_from(count).unwrap_or(usize::MAX)]);
        let put_next = || -> Result<(), Error> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return Ok(());
                }
                let (number, offset) = (usize::try_from(at).unwrap_or(usize::MAX), at * length);
                let contents = read(key, file, offset, length.min(bytes - offset))?;
                self.pay(contents.len() as u64);
                let part = Part { upload, number, offset };
                let put = self.persist("put", key, || self.remote.put_part(key, part, &contents));
                if put.is_err() {
                    // The others end too: the upload is lost.
                    next.store(count, Ordering::Relaxed);
                }
                tags.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(put?);
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..TOGETHER.min(count)).map(|_| scope.spawn(put_next)).collect();
            let ended = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            // All are waited for, whichever fails.
            ended.collect::<Vec<_>>().into_iter().collect::<Result<(), Error>>()
        })?;
        Ok(tags.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect())
    }

    fn finish(&self, key: &str, upload: &str, parts: &[Tag], bytes: u64) -> Result<(), Error> {
        let finished = self.persist("put", key, || self.remote.finish_parts(key, upload, parts));
        match finished {
            // The answer to an earlier try may have been lost.
            Err(Error::Missing { .. }) if self.size(key)? == Some(bytes) => Ok(()),
            finished => finished,
        }
    }

    /// Returns the length of an object; none if there is no such object.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn size(&self, key: &str) -> Result<Option<u64>, Error> {
        self.persist("look at", key, || self.remote.size(key))
    }

    /// Returns an address at which anybody can read the object until the time is over; none if the place has no such
    /// addresses.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn signed_url(&self, key: &str, lifetime: Duration) -> Result<Option<String>, Error> {
        self.persist("sign", key, || match self.remote.signed_url(key, lifetime) {
            Err(Fault::Unable(_)) => Ok(None),
            signed => signed.map(Some),
        })
    }
}

fn read(key: &str, file: &File, offset: u64, bytes: u64) -> Result<Vec<u8>, Error> {
    let mut contents = vec![0; usize::try_from(bytes).expect("64-bit Linux only")];
    let read = file.read_exact_at(&mut contents, offset);
    read.map_err(|error| Error::Failed {
        act: "read the file of",
        key: key.to_owned(),
        tries: 1,
        source: error.into(),
    })?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::{Folder, Policy};

    #[test]
    fn a_file_of_many_parts_is_put_whole_or_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let policy = Policy { bytes_per_second_max: None, first_pause: Duration::ZERO };
        let link = Link::new(Box::new(Folder::new(place.path().to_owned())), policy);
        let contents: Vec<u8> = (0..PART_BYTES * 5 / 2).map(|at| (at ^ (at >> 11)).to_le_bytes()[0]).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&contents).unwrap();
        let bytes = contents.len() as u64;
        link.put_file("a/large", &file, bytes).unwrap();
        assert!(link.get("a/large", 0..bytes).unwrap() == contents);
        assert_eq!(link.size("a/large").unwrap(), Some(bytes));
        link.put_file("a/small", &file, 3).unwrap();
        assert_eq!(link.get("a/small", 0..3).unwrap(), contents[..3]);
        let failed = link.put_file("a/shorter", &file, bytes + 1).unwrap_err();
        assert!(matches!(&failed, Error::Failed { act: "read the file of", .. }), "{failed:?}");
        assert_eq!(std::fs::read_dir(place.path().join("a")).unwrap().count(), 2, "what was begun is given up");
        assert_eq!(link.signed_url("a/large", Duration::from_secs(1)).unwrap(), None);
    }
}
