//! Measures the numerical difference between the tensors of two checkpoints.
//!
//! One side is read as for a load, on several threads, with every byte checked; the bytes of the same
//! elements are read from the other side's files, a block at a time (A-10: memory doesn't depend on the
//! tensors), and that side is checked afterwards.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::elements::Elements;
use crate::manifest::ShardRecord;
use crate::region::Region;
use crate::shard::{Placed, Shard};
use crate::{Error, Snapshot};

/// Bytes of each side that are compared at once.
const BLOCK_BYTES: usize = 64 << 10;

/// The difference between the elements of one or several tensors in two checkpoints. A complex number counts
/// as two elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Magnitude {
    /// The number of elements.
    pub elements: u64,
    /// The number of elements whose bits differ.
    pub changed: u64,
    /// The largest absolute difference of elements that are finite on both sides.
    pub max_abs: f64,
    /// The sums of squares over the elements that are finite on both sides.
    pub squares: Squares,
    /// The number of elements that were NaN.
    pub nan_before: u64,
    /// The number of elements that are NaN now.
    pub nan_after: u64,
    /// The number of elements that were infinite.
    pub infinite_before: u64,
    /// The number of elements that are infinite now.
    pub infinite_after: u64,
}

/// Sums of squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Squares {
    /// Of the differences.
    pub difference: f64,
    /// Of the earlier elements.
    pub before: f64,
    /// The number of elements summed.
    pub elements: u64,
}

impl Magnitude {
    /// Returns the root mean square of the differences; none without elements that are finite on both sides.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a mean over 2^53 elements isn't exact anyway")]
    pub fn rms(&self) -> Option<f64> {
        let Squares { difference, elements, .. } = self.squares;
        (elements > 0).then(|| (difference / elements as f64).sqrt())
    }

    /// Returns the L2 norm of the difference relative to that of the earlier elements; none if that was zero.
    #[must_use]
    pub fn relative_l2(&self) -> Option<f64> {
        let Squares { difference, before, .. } = self.squares;
        (before > 0.0).then(|| (difference / before).sqrt())
    }

    /// Combines the measurements of two sets of elements.
    #[must_use]
    pub fn and(self, other: &Magnitude) -> Magnitude {
        Magnitude {
            elements: self.elements + other.elements,
            changed: self.changed + other.changed,
            max_abs: self.max_abs.max(other.max_abs),
            squares: Squares {
                difference: self.squares.difference + other.squares.difference,
                before: self.squares.before + other.squares.before,
                elements: self.squares.elements + other.squares.elements,
            },
            nan_before: self.nan_before + other.nan_before,
            nan_after: self.nan_after + other.nan_after,
            infinite_before: self.infinite_before + other.infinite_before,
            infinite_after: self.infinite_after + other.infinite_after,
        }
    }

    /// Adds an element.
    fn add(&mut self, before: f64, after: f64) {
        self.elements += 1;
        self.nan_before += u64::from(before.is_nan());
        self.nan_after += u64::from(after.is_nan());
        self.infinite_before += u64::from(before.is_infinite());
        self.infinite_after += u64::from(after.is_infinite());
        if before.is_finite() && after.is_finite() {
            let difference = (after - before).abs();
            self.max_abs = self.max_abs.max(difference);
            self.squares.difference += difference * difference;
            self.squares.before += before * before;
            self.squares.elements += 1;
        }
    }
}

/// A part of a tensor on the other side, and the box to read for it.
struct Part<'a> {
    /// The index of the tensor.
    tensor: usize,
    shard: &'a Shard<'a>,
    placed: Placed<'a>,
}

impl Snapshot {
    /// Measures how tensors differ between this checkpoint and a later one. Both must have them with the same
    /// type and shape; their shardings may differ. None for types that can't be decoded as numbers (6-bit
    /// floats).
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] for a tensor that isn't in both, or differs in type or shape;
    /// [`Error::Corrupt`] naming the file and tensor that isn't what was saved; [`Error::Io`].
    pub fn measure(&self, after: &Snapshot, names: &[&str]) -> Result<Vec<Option<Magnitude>>, Error> {
        let elements = names.iter().map(|name| self.elements(after, name)).collect::<Result<Vec<_>, Error>>()?;
        let files: Vec<(PathBuf, &ShardRecord)> = after.files();
        let shards = files.iter().map(|(path, record)| Shard::open(path, record)).collect::<Result<Vec<_>, Error>>()?;
        let parts = parts_of(&shards, names, &elements);
        let boxes: Vec<(&str, Region)> =
            parts.iter().map(|part| (names[part.tensor], part.placed.record.region())).collect();
        let sums: Vec<Mutex<Magnitude>> = names.iter().map(|_| Mutex::default()).collect();
        let failure = OnceLock::new();
        self.scatter(&boxes, |of, overlap, at, bytes| {
            let part = &parts[of];
            let Some(elements) = elements[part.tensor].as_ref().filter(|_| failure.get().is_none()) else { return };
            let mut sum = Magnitude::default();
            let added = overlap.each_run(at, bytes, |to, run| part.add(to, run, elements, &mut sum));
            let mut total = sums[part.tensor].lock().unwrap_or_else(PoisonError::into_inner);
            *total = total.and(&sum);
            if let Err(error) = added {
                // Only the first failure is kept: the others are of the same files.
                let _ = failure.set(error);
            }
        })?;
        failure.into_inner().map_or(Ok(()), Err)?;
        // The other side may be damaged: its check reports that.
        after.scatter(&boxes, |_, _, _, _| ())?;
        let sums = sums.into_iter().map(|sum| sum.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(sums.zip(&elements).map(|(sum, elements)| elements.as_ref().map(|_| sum)).collect())
    }

    fn elements(&self, after: &Snapshot, name: &str) -> Result<Option<Elements>, Error> {
        let (old, new) = (self.tensor(name)?, after.tensor(name)?);
        if (old.data_type, &old.shape) != (new.data_type, &new.shape) {
            let why = "it has another element type or shape in the other checkpoint";
            return Err(Error::InvalidTensor { tensor: name.to_owned(), why });
        }
        Ok(Elements::of(old.data_type))
    }
}

/// Returns the parts of the tensors that can be measured.
fn parts_of<'a>(shards: &'a [Shard<'a>], names: &[&str], elements: &[Option<Elements>]) -> Vec<Part<'a>> {
    let mut order: Vec<usize> = (0..names.len()).filter(|index| elements[*index].is_some()).collect();
    order.sort_by_key(|index| names[*index]);
    let placed = shards.iter().flat_map(|shard| (0..shard.len()).map(move |index| (shard, shard.place(index))));
    placed
        .filter_map(|(shard, placed)| {
            let found = order.binary_search_by(|index| names[*index].cmp(&placed.record.name)).ok()?;
            Some(Part { tensor: order[found], shard, placed })
        })
        .collect()
}

impl Part<'_> {
    /// Adds the elements of a run, which lie in this part `to` bytes after its first byte.
    fn add(&self, to: usize, run: &[u8], elements: &Elements, sum: &mut Magnitude) -> Result<(), Error> {
        let mut buffer = [0; BLOCK_BYTES];
        let mut start = self.placed.start + to as u64;
        for before in run.chunks(BLOCK_BYTES) {
            let after = &mut buffer[..before.len()];
            let read = self.shard.files().1.read_exact_at(after, start);
            read.map_err(|source| Error::reading(self.shard.path(), source))?;
            elements.each_pair(before, after, |before, after, is_changed| {
                sum.changed += u64::from(is_changed);
                sum.add(before, after);
            });
            start += before.len() as u64;
        }
        Ok(())
    }
}
