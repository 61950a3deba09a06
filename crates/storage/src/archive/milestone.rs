//! Milestones: the tensors of a removed checkpoint that are worth keeping, each bit for bit.
//!
//! A run's weights are a small part of its state (2 of 14 bytes for each parameter that is trained in mixed
//! precision with Adam) and the only part that anybody looks at later. A milestone is a checkpoint's catalog
//! with those tensors alone. They are coded anew against the previous milestone, because their bases in the
//! archive (for example, an fp32 master) are to be removed. A milestone records what it lacks, and is never
//! taken for a state that training can resume from.

use std::collections::BTreeMap;
use std::path::Path;

use gangline_base::{Bytes, Step};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Error;
use super::access::{Access, Change};
use super::catalog::{Catalog, Item, Shard, Tensor, catalog_key, pack_key};
use super::draft::{Base, Draft};
use super::encode::{Encoder, Way};
use super::fetch::Fetcher;
use super::known::{Known, Like, list_packs};
use super::pack::{self, Closed};
use super::source::element_of;
use crate::disk::Disk;
use crate::{DataType, Flaw, layout};

/// What a milestone keeps of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Milestone {
    /// Name patterns of the tensors it keeps; `*` matches any part of a name.
    pub kept: Vec<String>,
    /// The number of the checkpoint's tensors that it lacks.
    pub tensors_lacking: u64,
    /// The bytes of these tensors.
    pub bytes_lacking: u64,
}

/// The most bytes of a shard's header: safetensors' own limit, plus the header's length field.
const HEADER_BYTES_MAX: u64 = 100_000_008;
/// A written header's length is a multiple of this, so that the data begins at a page boundary, as in a
/// store's shards.
const PAGE: usize = 4_096;
/// The member of a header that isn't a tensor, and its entry for the offsets of parts in whole tensors.
const METADATA: &str = "__metadata__";
const SHARDING_INFO: &str = "DCP_SHARDING_INFO";

/// A milestone under construction.
struct Making<'a> {
    change: &'a Change<'a>,
    known: &'a Known,
    fetcher: Fetcher<'a>,
    from: &'a Catalog,
    draft: Draft,
    put: Bytes,
}

/// Reports whether a name matches one of the patterns; `*` matches any part of it.
pub(crate) fn is_kept(patterns: &[String], name: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, name))
}

fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let (last, between) = parts.split_last().expect("a split has a part");
    for part in between {
        match name.split_once(part) {
            Some((_, after)) => name = after,
            None => return false,
        }
    }
    name.ends_with(last)
}

/// Returns the bytes of the tensors that a milestone of this checkpoint would keep; none if there are none.
pub(crate) fn bytes_kept(catalog: &Catalog, patterns: &[String]) -> Option<Bytes> {
    let tensors = catalog.shards.iter().flat_map(|shard| &shard.tensors);
    let kept: Vec<u64> =
        tensors.filter(|tensor| is_kept(patterns, &tensor.name)).map(|tensor| tensor.item.bytes).collect();
    (!kept.is_empty()).then(|| Bytes(kept.iter().sum()))
}

/// Replaces a checkpoint by a milestone, and returns the bytes put. It may refer to chunks of `milestones`,
/// which are sorted nearest first.
pub(crate) fn thin(
    change: &Change<'_>,
    catalog: &Catalog,
    milestones: Vec<Catalog>,
    patterns: &[String],
) -> Result<(Catalog, Bytes), Error> {
    let known = Known::of(list_packs(change.access.link)?, milestones);
    let fetcher = Fetcher::new(&change.access, catalog);
    let draft = Draft::new(catalog.step);
    let mut making = Making { change, known: &known, fetcher, from: catalog, draft, put: Bytes(0) };
    for (shard, rank) in catalog.shards.iter().zip(0..) {
        let header = making.item((None, rank), DataType::U8, &shard.header)?;
        let mut tensors = Vec::new();
        for Tensor { name, data_type, item } in shard.tensors.iter().filter(|one| is_kept(patterns, &one.name)) {
            let item = making.item((Some(name), rank), *data_type, item)?;
            tensors.push(Tensor { name: name.clone(), data_type: *data_type, item });
        }
        making.draft.catalog.shards.push(Shard { header, tensors });
    }
    making.draft.catalog.manifest = making.item((None, 0), DataType::U8, &catalog.manifest)?;
    making.publish(patterns)
}

impl Making<'_> {
    /// Refers to those chunks of an item that a milestone has, and stores the others.
    fn item(&mut self, (name, rank): (Option<&str>, usize), data_type: DataType, item: &Item) -> Result<Item, Error> {
        let mut encoder = Encoder::new(element_of(data_type), 0);
        let mut chunks = Vec::with_capacity(item.chunks.len());
        for (index, number) in item.chunks.iter().zip(0..) {
            let chunk = self.from.chunks[*index];
            let found = match (self.draft.find(chunk.blake3), self.known.chunk(chunk.blake3)) {
                (Some(found), _) => Some(found),
                (None, Some((catalog, index))) => self.draft.adopt(catalog, index)?,
                (None, None) => None,
            };
            let like = Like { rank, data_type, bytes: item.bytes, chunk_bytes: chunk.bytes };
            let base = name.and_then(|name| self.known.base(name, number, &like));
            chunks.push(found.map_or_else(|| self.store(*index, &mut encoder, base), Ok)?);
        }
        Ok(Item { chunks, ..item.clone() })
    }

    fn store(&mut self, index: usize, encoder: &mut Encoder, base: Option<(usize, u32)>) -> Result<usize, Error> {
        let chunk = self.from.chunks[index];
        let raw = self.fetcher.chunk(index)?;
        let nearest = || Fetcher::new(&self.change.access, &self.known.catalogs[0]);
        // A damaged base is not used.
        let against = match base.map(|(index, _)| nearest().chunk(index)) {
            Some(Err(Error::Corrupt { .. })) | None => None,
            Some(raw) => Some(raw?),
        };
        let coded = encoder.encode(raw, against.as_deref());
        let base = match (coded.way, base) {
            (Way::Difference, Some((index, age))) => {
                let adopted = self.draft.adopt(&self.known.catalogs[0], index)?;
                Some(Base { index: adopted.expect("what follows from nothing can be adopted"), age })
            }
            _ => None,
        };
        let vault = &self.change.access.vault;
        let (index, closed) = self.draft.add(vault, (chunk.blake3, chunk.bytes), &coded, base)?;
        closed.map_or(Ok(()), |closed| self.put(&closed))?;
        Ok(index)
    }

    fn put(&mut self, closed: &Closed) -> Result<(), Error> {
        pack::put(self.change, &BTreeMap::new(), closed)?;
        self.put = self.put + Bytes(closed.pack.bytes);
        Ok(())
    }

    fn publish(mut self, patterns: &[String]) -> Result<(Catalog, Bytes), Error> {
        let closed = self.draft.close(&self.change.access.vault);
        closed.map_or(Ok(()), |closed| self.put(&closed))?;
        let listed = list_packs(self.change.access.link)?;
        let mut packs = self.draft.catalog.packs.iter();
        packs.try_for_each(|pack| pack.check(listed.get(&pack_key(&pack.blake3))))?;
        let drafted = self.draft.catalog;
        let of = |catalog: &Catalog| -> (u64, u64) {
            let tensors = catalog.shards.iter().flat_map(|shard| &shard.tensors);
            tensors.fold((0, 0), |(count, bytes), tensor| (count + 1, bytes + tensor.item.bytes))
        };
        let (all, left) = (of(self.from), of(&drafted));
        let (tensors_lacking, bytes_lacking) = (all.0 - left.0, all.1 - left.1);
        let milestone = Some(Milestone { kept: patterns.to_vec(), tensors_lacking, bytes_lacking });
        let Catalog { saved_at, bytes, content_blake3, .. } = *self.from;
        let Catalog { metadata, metadata_types, lineage, .. } = self.from.clone();
        let catalog =
            Catalog { saved_at, bytes, content_blake3, metadata, metadata_types, lineage, milestone, ..drafted };
        let catalog = catalog.of_its_version();
        let put = Bytes(self.put.0 + self.change.publish(&catalog)?);
        Ok((catalog, put))
    }
}

/// Writes a milestone's tensors to a folder, as a safetensors file for each rank. Replaces existing files.
pub(crate) fn write(access: &Access<'_>, catalog: &Catalog, folder: &Path) -> Result<(), Error> {
    let disk = Disk::new(None);
    disk.create_root(folder)?;
    let mut fetcher = Fetcher::new(access, catalog);
    let world_size = u32::try_from(catalog.shards.len()).expect("a catalog's reader has checked how many there are");
    for (shard, rank) in catalog.shards.iter().zip(0..) {
        let malformed = |what| Error::corrupt(catalog_key(catalog.step), Flaw::Malformed { what });
        if shard.header.bytes > HEADER_BYTES_MAX {
            return Err(malformed("a shard's header is longer than 100 MB"));
        }
        let mut header = Vec::new();
        fetcher.item(&shard.header, |bytes| -> Result<(), Error> {
            header.extend_from_slice(bytes);
            Ok(())
        })?;
        let header = filter_header(&header, &shard.tensors).map_err(malformed)?;
        disk.publish_stream(folder, &layout::shard_file(rank, world_size), |put| -> Result<(), Error> {
            put(&header)?;
            shard.tensors.iter().try_for_each(|tensor| fetcher.item(&tensor.item, |bytes| Ok::<(), Error>(put(bytes)?)))
        })?;
    }
    Ok(())
}

/// Returns a shard's header with only these tensors, in this order; or the rule that the header breaks.
fn filter_header(header: &[u8], kept: &[Tensor]) -> Result<Vec<u8>, &'static str> {
    let json = header.get(size_of::<u64>()..).ok_or("a shard's header is cut short")?;
    let mut members: Map<String, Value> = serde_json::from_slice(json).map_err(|_| "a shard's header isn't JSON")?;
    let mut left = Map::new();
    let mut next = 0_u64;
    for Tensor { name, item, .. } in kept {
        let mut member = members.remove(name).ok_or("a shard's header lacks a tensor")?;
        let end = next.checked_add(item.bytes).ok_or("a shard's tensors have too many bytes")?;
        *member.get_mut("data_offsets").ok_or("a shard's header lacks a tensor's place")? = json!([next, end]);
        left.insert(name.clone(), member);
        next = end;
    }
    if let Some(Value::Object(mut metadata)) = members.remove(METADATA) {
        if let Some(Value::String(info)) = metadata.get_mut(SHARDING_INFO) {
            let mut places: Map<String, Value> =
                serde_json::from_str(info).map_err(|_| "a shard's header says of its parts what isn't JSON")?;
            places.retain(|name, _| left.contains_key(name));
            *info = Value::Object(places).to_string();
        }
        left.insert(METADATA.to_owned(), Value::Object(metadata));
    }
    let mut json = Value::Object(left).to_string().into_bytes();
    let prefix = size_of::<u64>();
    json.resize((prefix + json.len()).next_multiple_of(PAGE) - prefix, b' ');
    Ok([(json.len() as u64).to_le_bytes().as_slice(), &json].concat())
}

/// Returns the error for a milestone where a whole checkpoint was requested.
pub(crate) fn refusal(step: Step, milestone: &Milestone) -> Error {
    Error::Milestone { step, lacking: milestone.tensors_lacking, bytes: Bytes(milestone.bytes_lacking) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_part_of_a_name() {
        for (pattern, name, is) in [
            ("model.*", "model.weight", true),
            ("model.*", "models.weight", false),
            ("*.weight", "model.0.weight", true),
            ("*.weight", "model.0.weights", false),
            ("model.*.weight", "model.0.1.weight", true),
            ("model.*.weight", "model.weight", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("*", "", true),
            ("exact", "exact", true),
            ("exact", "exactly", false),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }
}
