//! Writes a segment: aside, synced, and then renamed into place.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::chunk::{CHUNK_ROWS, ChunkEntry, Place, encode};
use super::error::Error;
use super::key::{Scope, Series, Source};
use super::rollup::{Bucket, Resolution};
use super::segment::{
    HEADER_BYTES, Index, MAGIC, Meta, SUM_BYTES, Segment, VERSION, blob_sum, file_name, write_footer, write_index,
};

/// Extension of a segment that isn't finished; those that a crash left are removed at the next start.
pub(super) const UNFINISHED: &str = "unfinished";

/// See the module. Series come in ascending order. If it is dropped before [`SegmentWriter::finish`], nothing is left.
pub(super) struct SegmentWriter {
    id: u64,
    folder: PathBuf,
    aside: PathBuf,
    file: BufWriter<File>,
    offset: u64,
    meta: Meta,
    indexes: BTreeMap<Scope, Place>,
    /// The series of the scope that is being written.
    index: Index,
    scope: Option<Scope>,
    /// Columns of the current source, by their hash: metrics of the same rows share their times and steps.
    columns: HashMap<u128, Place>,
    source: Option<Source>,
    is_finished: bool,
}

impl SegmentWriter {
    pub(super) fn create(folder: &Path, id: u64, meta: Meta) -> Result<SegmentWriter, Error> {
        let aside = folder.join(file_name(id)).with_extension(UNFINISHED);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&aside);
        let file = BufWriter::with_capacity(1 << 18, file.map_err(Error::io("make", &aside))?);
        let mut writer = SegmentWriter {
            id,
            folder: folder.to_owned(),
            aside,
            file,
            offset: 0,
            meta,
            indexes: BTreeMap::new(),
            index: Index::new(),
            scope: None,
            columns: HashMap::new(),
            source: None,
            is_finished: false,
        };
        writer.put(MAGIC)?;
        writer.put(&VERSION.to_le_bytes())?;
        debug_assert_eq!(writer.offset, HEADER_BYTES);
        Ok(writer)
    }

    /// Writes buckets of a series, sorted by time, as chunks.
    pub(super) fn add(&mut self, series: &Series, resolution: Resolution, buckets: &[Bucket]) -> Result<(), Error> {
        for part in buckets.chunks(CHUNK_ROWS) {
            self.add_chunk(series, ChunkEntry::of(part, resolution), &encode(part, resolution))?;
        }
        Ok(())
    }

    /// Writes a chunk that is coded already.
    pub(super) fn add_chunk(
        &mut self,
        series: &Series,
        mut entry: ChunkEntry,
        columns: &[Vec<u8>],
    ) -> Result<(), Error> {
        if self.scope.as_ref() != Some(&series.source.scope) {
            self.end_scope()?;
            self.scope = Some(series.source.scope.clone());
        }
        if self.source.as_ref() != Some(&series.source) {
            self.columns.clear();
            self.source = Some(series.source.clone());
        }
        entry.columns = columns.iter().map(|column| self.column(column)).collect::<Result<Vec<_>, _>>()?;
        let newest = &mut self.meta.newest_ms[entry.resolution as usize];
        *newest = (*newest).max(Some(entry.times.1));
        self.meta.rows += entry.rows;
        self.meta.points += if entry.resolution == Resolution::Point { entry.rows } else { 0 };
        self.index.entry(series.clone()).or_default().push(entry);
        Ok(())
    }

    /// Makes the segment durable and visible.
    pub(super) fn finish(mut self) -> Result<Segment, Error> {
        self.end_scope()?;
        let footer = write_footer(&self.meta, &self.indexes);
        let length = u32::try_from(footer.len()).expect("cursors and scopes are limited");
        let trailer = [&length.to_le_bytes()[..], &xxh3_64(&footer).to_le_bytes(), MAGIC].concat();
        self.put(&footer)?;
        self.put(&trailer)?;
        self.file.flush().map_err(Error::io("write", &self.aside))?;
        self.file.get_ref().sync_all().map_err(Error::io("sync", &self.aside))?;
        let path = self.folder.join(file_name(self.id));
        fs::rename(&self.aside, &path).map_err(Error::io("rename", &self.aside))?;
        self.is_finished = true;
        sync_folder(&self.folder)?;
        Segment::open(&path, self.id)
    }

    fn end_scope(&mut self) -> Result<(), Error> {
        let index = std::mem::take(&mut self.index);
        if let Some(scope) = self.scope.take() {
            let place = self.blob(&write_index(&index))?;
            self.indexes.insert(scope, place);
        }
        Ok(())
    }

    fn column(&mut self, bytes: &[u8]) -> Result<Place, Error> {
        let hash = xxh3_128(bytes);
        if let Some(place) = self.columns.get(&hash) {
            return Ok(*place);
        }
        let place = self.blob(bytes)?;
        self.columns.insert(hash, place);
        Ok(place)
    }

    fn blob(&mut self, body: &[u8]) -> Result<Place, Error> {
        let place = (self.offset, u32::try_from(body.len()).unwrap_or(u32::MAX).saturating_add(SUM_BYTES));
        self.put(&blob_sum(body))?;
        self.put(body)?;
        Ok(place)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::io("write", &self.aside))?;
        self.offset += super::bytes::wide(bytes.len());
        Ok(())
    }
}

impl Drop for SegmentWriter {
    fn drop(&mut self) {
        if !self.is_finished {
            // The next start removes it if this fails.
            let _ = fs::remove_file(&self.aside);
        }
    }
}

pub(super) fn sync_folder(folder: &Path) -> Result<(), Error> {
    let sync = || File::open(folder)?.sync_all();
    sync().map_err(Error::io("sync", folder))
}
