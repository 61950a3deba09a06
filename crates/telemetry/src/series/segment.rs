//! A segment: a file of chunks that never changes.
//!
//! ```text
//! magic, version      8 and 4 bytes
//! columns, indexes    blobs: a checksum of 4 bytes (the low half of XXH3) and the bytes; one index for each scope
//! footer              what the segment replaces, which logs it covers, cursors, where the indexes are
//! trailer             length of the footer (4), its XXH3 (8), magic (8)
//! ```
//!
//! It appears by a rename once it is synced, so a crash leaves it out or whole. It names the segments that it was merged
//! from, so those that a crash left behind aren't counted twice.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{Reader, Writer, wide};
use super::chunk::{ChunkEntry, Place, decode};
use super::error::Error;
use super::head::Cursor;
use super::key::{Scope, Series, Source};
use super::rollup::{Bucket, Resolution};

pub(super) const MAGIC: &[u8; 8] = b"GLSERIES";
pub(super) const VERSION: u32 = 1;
/// Bytes before the first blob.
pub(super) const HEADER_BYTES: u64 = 12;
const TRAILER_BYTES: u64 = 20;
/// The largest footer and the largest blob that are read (A-10).
const BLOB_BYTES_MAX: u32 = 256 << 20;
/// Bytes of a blob's checksum.
pub(super) const SUM_BYTES: u32 = 4;

/// What a segment says of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Meta {
    /// How often its points were merged.
    pub(super) level: u32,
    /// Ids of the segments that it was made from.
    pub(super) replaces: Vec<u64>,
    /// The last log whose batches are in it or in an older segment.
    pub(super) log_through: u64,
    /// What had been stored of each source by then.
    pub(super) cursors: BTreeMap<Source, Cursor>,
    /// The newest time of each resolution in milliseconds, if it has any.
    pub(super) newest_ms: [Option<i64>; Resolution::ALL.len()],
    /// Rows of points and buckets.
    pub(super) rows: u64,
    /// Number of rows that are points.
    pub(super) points: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) meta: Meta,
    file: File,
    indexes: BTreeMap<Scope, Place>,
}

/// The index of one scope: its series and their chunks.
pub(super) type Index = BTreeMap<Series, Vec<ChunkEntry>>;

pub(super) fn file_name(id: u64) -> String {
    format!("segment-{id:010}")
}

impl Segment {
    /// Opens a segment and reads its footer.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it isn't one, [`Error::Newer`], or [`Error::Io`].
    pub(super) fn open(path: &Path, id: u64) -> Result<Segment, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let bytes = file.metadata().map_err(Error::io("look at", path))?.len();
        let read = |offset: u64, length: u64| read_at(&file, path, offset, length);
        let damaged = |what| Error::damaged(path, what);
        if bytes < HEADER_BYTES + TRAILER_BYTES {
            return Err(damaged("it is too short"));
        }
        let header = read(0, HEADER_BYTES)?;
        let version = header.last_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if !header.starts_with(MAGIC) {
            return Err(damaged("it doesn't begin as a segment"));
        }
        if version > VERSION {
            return Err(Error::Newer { path: path.to_owned(), found: version, known: VERSION });
        }
        let trailer = read(bytes - TRAILER_BYTES, TRAILER_BYTES)?;
        let length = trailer.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let sum = trailer.get(4..12).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        let room = bytes - HEADER_BYTES - TRAILER_BYTES;
        if !trailer.ends_with(MAGIC) || u64::from(length) > room || length > BLOB_BYTES_MAX {
            return Err(damaged("its end is missing"));
        }
        let footer = read(bytes - TRAILER_BYTES - u64::from(length), u64::from(length))?;
        let content = (xxh3_64(&footer) == sum).then(|| read_footer(&footer)).flatten();
        let (meta, indexes) = content.ok_or_else(|| damaged("its footer doesn't fit its checksum"))?;
        Ok(Segment { id, path: path.to_owned(), bytes, meta, file, indexes })
    }

    /// Returns the scopes that it has series of.
    pub(super) fn scopes(&self) -> impl Iterator<Item = &Scope> {
        self.indexes.keys()
    }

    /// Returns a scope's series and chunks; empty if it has none.
    pub(super) fn index(&self, scope: &Scope) -> Result<Index, Error> {
        let Some(place) = self.indexes.get(scope) else { return Ok(Index::new()) };
        let bytes = self.blob(*place)?;
        read_index(&bytes).ok_or_else(|| Error::damaged(&self.path, "an index isn't one"))
    }

    /// Returns the buckets of a chunk.
    pub(super) fn read(&self, chunk: &ChunkEntry) -> Result<Vec<Bucket>, Error> {
        decode(chunk, &self.columns(chunk)?).ok_or_else(|| Error::damaged(&self.path, "a chunk isn't one"))
    }

    /// Returns the columns of a chunk as they are stored.
    pub(super) fn columns(&self, chunk: &ChunkEntry) -> Result<Vec<Vec<u8>>, Error> {
        chunk.columns.iter().map(|place| self.blob(*place)).collect()
    }

    fn blob(&self, (offset, length): Place) -> Result<Vec<u8>, Error> {
        let is_inside = offset.checked_add(u64::from(length)).is_some_and(|end| end <= self.bytes);
        if !is_inside || !(SUM_BYTES..=BLOB_BYTES_MAX).contains(&length) {
            return Err(Error::damaged(&self.path, "it refers to what is outside"));
        }
        let mut bytes = read_at(&self.file, &self.path, offset, u64::from(length))?;
        let body = bytes.split_off(SUM_BYTES as usize);
        if bytes != blob_sum(&body) {
            return Err(Error::damaged(&self.path, "a part doesn't fit its checksum"));
        }
        Ok(body)
    }
}

/// Returns the checksum that stands before a blob.
pub(super) fn blob_sum(body: &[u8]) -> [u8; SUM_BYTES as usize] {
    let sum = xxh3_64(body).to_le_bytes();
    [sum[0], sum[1], sum[2], sum[3]]
}

fn read_at(file: &File, path: &Path, offset: u64, length: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    file.read_exact_at(&mut bytes, offset).map_err(Error::io("read", path))?;
    Ok(bytes)
}

pub(super) fn write_footer(meta: &Meta, indexes: &BTreeMap<Scope, Place>) -> Vec<u8> {
    let mut to = Writer::default();
    to.unsigned(u64::from(meta.level));
    to.count(meta.replaces.len());
    meta.replaces.iter().for_each(|id| to.unsigned(*id));
    to.unsigned(meta.log_through);
    to.count(meta.cursors.len());
    for (source, cursor) in &meta.cursors {
        source.write(&mut to);
        cursor.write(&mut to);
    }
    meta.newest_ms.iter().for_each(|time| to.optional(time.map(i64::unsigned_abs)));
    [meta.rows, meta.points].into_iter().for_each(|number| to.unsigned(number));
    to.count(indexes.len());
    for (scope, (offset, length)) in indexes {
        scope.write(&mut to);
        to.unsigned(*offset);
        to.unsigned(u64::from(*length));
    }
    to.0
}

fn read_footer(bytes: &[u8]) -> Option<(Meta, BTreeMap<Scope, Place>)> {
    let from = &mut Reader(bytes);
    let level = from.small()?;
    let replaces = (0..from.count()?).map(|_| from.unsigned()).collect::<Option<Vec<_>>>()?;
    let log_through = from.unsigned()?;
    let cursor = |from: &mut Reader<'_>| Some((Source::read(from)?, Cursor::read(from)?));
    let cursors = (0..from.count()?).map(|_| cursor(from)).collect::<Option<BTreeMap<_, _>>>()?;
    let mut newest_ms = [None; Resolution::ALL.len()];
    for time in &mut newest_ms {
        *time = from.optional()?.map(u64::cast_signed);
    }
    let (rows, points) = (from.unsigned()?, from.unsigned()?);
    let index = |from: &mut Reader<'_>| Some((Scope::read(from)?, (from.unsigned()?, from.small()?)));
    let indexes = (0..from.count()?).map(|_| index(from)).collect::<Option<BTreeMap<_, _>>>()?;
    let meta = Meta { level, replaces, log_through, cursors, newest_ms, rows, points };
    from.0.is_empty().then_some((meta, indexes))
}

pub(super) fn write_index(index: &Index) -> Vec<u8> {
    let mut to = Writer::default();
    to.unsigned(wide(index.len()));
    for (series, chunks) in index {
        series.source.write(&mut to);
        to.text(&series.metric);
        to.count(chunks.len());
        chunks.iter().for_each(|chunk| chunk.write(&mut to));
    }
    to.0
}

fn read_index(bytes: &[u8]) -> Option<Index> {
    let from = &mut Reader(bytes);
    let count = from.count()?;
    let series = |from: &mut Reader<'_>| {
        let series = Series { source: Source::read(from)?, metric: from.text()?.to_owned() };
        let chunks = (0..from.count()?).map(|_| ChunkEntry::read(from)).collect::<Option<Vec<_>>>()?;
        Some((series, chunks))
    };
    let index = (0..count).map(|_| series(from)).collect::<Option<Index>>()?;
    from.0.is_empty().then_some(index)
}
