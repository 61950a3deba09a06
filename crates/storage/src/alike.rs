//! Compares the state that all ranks of a gang replicate, before a checkpoint is committed.
//!
//! A rank copies only its share of replicated tensors, so a value that differs by rank would be lost
//! silently. Each rank sends rank 0 digests of its replicated state with its index, and if they differ, rank
//! 0 refuses the save and names the difference. Metadata, values and small tensors are hashed whole. Hashing
//! every byte of large tensors on every rank would block the trainer for a time that grows with the model, so
//! evenly spread samples of them are hashed: ranks that have diverged differ almost everywhere, while a
//! single differing element is found only with [`Compare::All`].
//!
//! Keeps A-10: at most [`GROUPS_MAX`] digests of 8 bytes for each rank, whatever the number of tensors and
//! values.

use std::collections::BTreeMap;

use crate::digest::{FramedHasher, SEGMENT_BYTES, SegmentHash, hash_segment, join_segments};
use crate::manifest::hash_declaration;
use crate::note::ORIGIN_PREFIX;
use crate::staged::threads_for;
use crate::threads::on_threads;
use crate::{DataType, Digest, TensorView};

/// The most digests that a rank sends; if there are more tensors and values, several share a digest.
const GROUPS_MAX: usize = 4_096;
/// Tensors up to this size are hashed whole: random generators' states, cursors, scalars, biases.
const WHOLE_BYTES_MAX: usize = 64 << 10;
/// Samples of a larger tensor.
const SAMPLES: usize = 64;
/// Bytes of a sample: a cache line.
const SAMPLE_BYTES: usize = 64;
/// Hexadecimal digits of a group's digest.
const DIGITS: usize = 16;
/// The most differences named in an error.
const NAMED_MAX: usize = 3;

/// How ranks compare replicated tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compare {
    /// Tensors up to 64 KiB whole, and 64 evenly spread samples of 64 bytes of larger ones.
    #[default]
    Sampled,
    /// Every byte. The caller of [`Store::save`](crate::Store::save) waits for the hashes.
    All,
}

/// A replicated value that is only compared, and not stored under this name.
#[derive(Clone, Copy, Debug)]
pub struct AlikeValue<'a> {
    /// The value's name in errors.
    pub name: &'a str,
    /// The bytes that must be equal.
    pub data: &'a [u8],
}

/// A rank's digests of its replicated state.
#[derive(Clone, Debug)]
pub(crate) struct Alike {
    /// The digest of each group, in hexadecimal digits.
    pub(crate) digests: String,
    /// The name of each group; empty if the names are no longer known.
    names: Vec<String>,
}

/// A tensor or value to compare.
struct Entry<'a> {
    name: String,
    declared: (DataType, &'a [usize]),
    data: &'a [u8],
    is_sampled: bool,
}

/// A part of an entry to hash.
struct Piece<'a> {
    data: &'a [u8],
    at: usize,
    is_sampled: bool,
}

impl Alike {
    /// Computes the digests of a save.
    pub(crate) fn of(
        tensors: &[TensorView<'_>],
        metadata: &BTreeMap<String, String>,
        values: &[AlikeValue<'_>],
        compare: Compare,
    ) -> Alike {
        let bytes = |name, data| Entry { name, declared: (DataType::U8, &[]), data, is_sampled: false };
        let agreed = metadata.iter().filter(|(name, _)| !name.starts_with(ORIGIN_PREFIX));
        let mut entries: Vec<Entry<'_>> =
            agreed.map(|(name, value)| bytes(format!("metadata {name:?}"), value.as_bytes())).collect();
        let mut values = values.to_vec();
        values.sort_by_key(|value| value.name);
        entries.extend(values.into_iter().map(|value| bytes(value.name.to_owned(), value.data)));
        let mut replicated: Vec<_> = tensors.iter().filter(|tensor| tensor.part_of.is_none()).collect();
        replicated.sort_by_key(|tensor| tensor.name);
        entries.extend(replicated.into_iter().map(|tensor| Entry {
            name: format!("tensor {:?}", tensor.name),
            declared: (tensor.data_type, tensor.shape),
            data: tensor.data,
            is_sampled: compare == Compare::Sampled && tensor.data.len() > WHOLE_BYTES_MAX,
        }));
        Alike::grouped(&entries)
    }

    /// Returns digests that another process recorded.
    pub(crate) fn found(digests: String) -> Alike {
        Alike { digests, names: Vec::new() }
    }

    fn grouped(entries: &[Entry<'_>]) -> Alike {
        let contents = contents(entries);
        let count = entries.len().min(GROUPS_MAX);
        let (mut digests, mut names) = (String::with_capacity(count * DIGITS), Vec::with_capacity(count));
        for group in 0..count {
            let (from, to) = (group * entries.len() / count, (group + 1) * entries.len() / count);
            let mut hasher = FramedHasher::new("gangline values held alike 1");
            for (entry, content) in entries[from..to].iter().zip(&contents[from..to]) {
                let (data_type, shape) = entry.declared;
                hash_declaration(&mut hasher, &entry.name, data_type, shape);
                hasher.field(content.as_bytes());
            }
            digests.push_str(&hasher.finish().to_string()[..DIGITS]);
            let (first, last) = (&entries[from].name, &entries[to - 1].name);
            names.push(if to - from == 1 { first.clone() } else { format!("one of {first} to {last}") });
        }
        Alike { digests, names }
    }

    /// Describes the difference from another rank's digests; none if they are equal.
    pub(crate) fn difference(&self, others: &str) -> Option<String> {
        if self.digests == others {
            return None;
        }
        let (mine, others) = (self.digests.as_bytes().chunks(DIGITS), others.as_bytes().chunks(DIGITS));
        let is_as_long = mine.len() == others.len();
        let first = mine.len().min(others.len());
        let mut differing: Vec<usize> =
            mine.zip(others).enumerate().filter(|(_, (mine, other))| mine != other).map(|(at, _)| at).collect();
        if !is_as_long {
            // From the first difference on, the groups at one index may hold different entries.
            differing = vec![differing.first().copied().unwrap_or(first)];
        }
        let name = |at: &usize| self.names.get(*at).map_or("something", String::as_str);
        let named: Vec<&str> = differing.iter().take(NAMED_MAX).map(name).collect();
        let more = differing.len() - named.len();
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        Some(format!("{}{more}", named.join(", ")))
    }
}

/// Returns the digest of each entry's content, computed on several threads.
fn contents(entries: &[Entry<'_>]) -> Vec<Digest> {
    let pieces_of =
        |entry: &Entry<'_>| if entry.is_sampled { 1 } else { entry.data.len().max(1).div_ceil(SEGMENT_BYTES) };
    let mut pieces = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        bytes += if entry.is_sampled { SAMPLES * SAMPLE_BYTES } else { entry.data.len() };
        let places = (0..pieces_of(entry)).map(|piece| piece * SEGMENT_BYTES);
        pieces.extend(places.map(|at| Piece { data: entry.data, at, is_sampled: entry.is_sampled }));
    }
    let hashes: Vec<SegmentHash> = on_threads(threads_for(bytes), pieces, || |piece: Piece<'_>| piece.hash());
    let mut rest = hashes.as_slice();
    let join = |entry: &Entry<'_>| {
        let (own, others) = rest.split_at(pieces_of(entry));
        rest = others;
        join_segments(own, entry.data.len())
    };
    entries.iter().map(join).collect()
}

impl Piece<'_> {
    fn hash(&self) -> SegmentHash {
        let Piece { data, at, is_sampled } = *self;
        if !is_sampled {
            return hash_segment(&data[at..data.len().min(at + SEGMENT_BYTES)], at, data.len());
        }
        let mut sample = [0; SAMPLES * SAMPLE_BYTES];
        for (number, place) in sample.chunks_mut(SAMPLE_BYTES).enumerate() {
            let from = number * (data.len() - SAMPLE_BYTES) / (SAMPLES - 1);
            place.copy_from_slice(&data[from..from + SAMPLE_BYTES]);
        }
        *Digest::of(&sample).as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(tensors: &[(&str, &[u8])], values: &[(&str, &str)], compare: Compare) -> Alike {
        let shapes: Vec<[usize; 1]> = tensors.iter().map(|(_, data)| [data.len()]).collect();
        let views: Vec<TensorView<'_>> = tensors
            .iter()
            .zip(&shapes)
            .map(|((name, data), shape)| TensorView { name, data_type: DataType::U8, shape, data, part_of: None })
            .collect();
        let values: Vec<_> = values.iter().map(|(name, data)| AlikeValue { name, data: data.as_bytes() }).collect();
        Alike::of(&views, &BTreeMap::new(), &values, compare)
    }

    fn difference(mine: &Alike, other: &Alike) -> Option<String> {
        mine.difference(&other.digests)
    }

    #[test]
    fn what_differs_is_named_and_order_is_no_difference() {
        let mine = of(&[("a", &[1]), ("b", &[2])], &[("['x']", "1"), ("['y']", "2")], Compare::Sampled);
        let same = of(&[("b", &[2]), ("a", &[1])], &[("['y']", "2"), ("['x']", "1")], Compare::Sampled);
        assert_eq!(difference(&mine, &same), None);
        let other = of(&[("a", &[1]), ("b", &[3])], &[("['x']", "0"), ("['y']", "2")], Compare::Sampled);
        assert_eq!(difference(&mine, &other).as_deref(), Some("['x'], tensor \"b\""));
        let more = of(&[("a", &[1]), ("aa", &[1]), ("b", &[2])], &[("['x']", "1"), ("['y']", "2")], Compare::Sampled);
        assert_eq!(difference(&mine, &more).as_deref(), Some("tensor \"b\""), "there the lists part");
        let fewer = of(&[], &[("['x']", "1"), ("['y']", "2")], Compare::Sampled);
        assert_eq!(difference(&mine, &fewer).as_deref(), Some("tensor \"a\""));
        assert_eq!(Alike::found(mine.digests).difference(&other.digests).as_deref(), Some("something, something"));
    }

    #[test]
    fn large_tensors_are_sampled_from_end_to_end_and_compared_whole_if_that_is_asked_for() {
        let zeros = vec![0_u8; WHOLE_BYTES_MAX + 1];
        let with_one = |at: usize| {
            let mut data = zeros.clone();
            data[at] = 1;
            data
        };
        let is_seen = |at: usize, compare| {
            let (mine, other) = (of(&[("w", &zeros)], &[], compare), of(&[("w", &with_one(at))], &[], compare));
            difference(&mine, &other).is_some()
        };
        for at in [0, WHOLE_BYTES_MAX] {
            assert!(is_seen(at, Compare::Sampled), "{at}");
        }
        assert!(!is_seen(SAMPLE_BYTES, Compare::Sampled), "between two places");
        assert!(is_seen(SAMPLE_BYTES, Compare::All));
        let [small, other] = [vec![0; WHOLE_BYTES_MAX], with_one(SAMPLE_BYTES)[..WHOLE_BYTES_MAX].to_vec()];
        let [small, other] = [&small, &other].map(|data| of(&[("w", data)], &[], Compare::Sampled));
        assert!(difference(&small, &other).is_some(), "small ones are hashed whole");
    }

    #[test]
    fn many_values_share_digests_and_are_still_found() {
        let names: Vec<String> = (0..3 * GROUPS_MAX).map(|number| format!("{number:06}")).collect();
        let texts = |changed: usize| -> Vec<(&str, &str)> {
            names.iter().enumerate().map(|(at, name)| (name.as_str(), if at == changed { "1" } else { "0" })).collect()
        };
        let mine = of(&[], &texts(usize::MAX), Compare::Sampled);
        assert_eq!(mine.digests.len(), GROUPS_MAX * DIGITS);
        let other = of(&[], &texts(4), Compare::Sampled);
        assert_eq!(difference(&mine, &other).as_deref(), Some("one of 000003 to 000005"));
    }
}
