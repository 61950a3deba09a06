//! Folders of shards with an `index.json`: MosaicML Streaming's shards (MDS, version 2) and LitData's chunks of tokens, also compressed
//! ones. The stream is their rows, one after the other.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::cache::in_parallel;
use crate::compressed::Compression;
use crate::error::Error;
use crate::index::INDEX_BYTES_MAX;
use crate::index::rows::{Chunk, Config, INDEX, Index, Raw, Shard, is_plain, parse};
use crate::source::Files;
use crate::source::layout::Layout;
use crate::source::mapped::Mapped;
use crate::token_type::TokenType;

/// The columns that hold tokens, where there are several.
const COLUMNS: [&str; 3] = ["tokens", "input_ids", "text"];

/// How shards may be compressed: the word for it, which a level may follow.
const COMPRESSIONS: [(&str, Compression); 5] = [
    ("zstd", Compression::Zstd),
    ("gz", Compression::Gzip),
    ("br", Compression::Brotli),
    ("bz2", Compression::Bzip2),
    ("snappy", Compression::Snappy),
];

/// Reads a folder by its `index.json`.
pub(crate) fn read(files: &Files<'_>, folder: &Path) -> Result<Layout, Error> {
    let path = folder.join(INDEX);
    let size = std::fs::metadata(&path).map_err(Error::io("open", &path))?.len();
    if size > INDEX_BYTES_MAX {
        return Err(Error::malformed(&path, 0, format!("it has {size} bytes, more than {INDEX_BYTES_MAX}")));
    }
    let text = std::fs::read(&path).map_err(Error::io("read", &path))?;
    let place = Place { files, folder, index: &path };
    match parse(&path, &text)? {
        Index { shards: Some(shards), version, .. } => mds(&place, &shards, version),
        Index { chunks: Some(chunks), config: Some(config), .. } => litdata(&place, &chunks, &config),
        _ => Err(Error::malformed(&path, 0, "it has neither shards (MDS) nor chunks with a config (LitData)")),
    }
}

/// A folder with its index.
struct Place<'a> {
    files: &'a Files<'a>,
    folder: &'a Path,
    index: &'a Path,
}

impl Place<'_> {
    /// Opens a file of the folder.
    fn open(&self, name: &str) -> Result<Mapped, Error> {
        self.files.open(&self.path(name)?)
    }

    /// Opens what a compressed file of the folder holds.
    fn open_unpacked(&self, name: &str, compression: Compression, bytes_max: u64) -> Result<Mapped, Error> {
        self.files.open_unpacked(&self.path(name)?, compression, bytes_max)
    }

    /// Returns where a file of the folder is; nothing outside of it is one.
    fn path(&self, name: &str) -> Result<PathBuf, Error> {
        if is_plain(name) {
            return Ok(self.folder.join(name));
        }
        Err(Error::malformed(self.index, 0, format!("{name:?} is no name of a file in this folder")))
    }

    /// Opens a shard of MDS, which has as many bytes as the index says.
    fn open_shard(&self, shard: &Shard) -> Result<Mapped, Error> {
        let Raw { basename, bytes } = &shard.raw_data;
        let Some(compression) = &shard.compression else { return sized(self.open(basename)?, *bytes) };
        let bad = |problem: String| Err(Error::malformed(self.index, 0, problem));
        let Some(known) = compression_of(compression) else {
            return bad(format!(
                "shard {basename} is compressed by {compression}: zstd, gz, br, bz2 and snappy are read; write it with one of them"
            ));
        };
        let Some(Raw { basename: name, bytes: compressed }) = &shard.zip_data else {
            return bad(format!("shard {basename} is compressed by {compression}, and has no zip_data"));
        };
        sized(self.open(name)?, *compressed)?;
        sized(self.open_unpacked(name, known, *bytes)?, *bytes)
    }
}

/// Opens all of them: compressed ones are unpacked by as many threads as there are processors.
fn open_all<T: Sync>(all: &[T], open: &(dyn Fn(&T) -> Result<Mapped, Error> + Sync)) -> Result<Vec<Mapped>, Error> {
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let places: Vec<(&T, OnceLock<Mapped>)> = all.iter().map(|one| (one, OnceLock::new())).collect();
    in_parallel(threads, &places, &|(one, place)| {
        let file = open(one)?;
        place.get_or_init(|| file);
        Ok(())
    })?;
    Ok(places.into_iter().map(|(_, place)| place.into_inner().expect("each was opened")).collect())
}

/// Returns how something is compressed by the word for it; none for others than are read.
fn compression_of(said: &str) -> Option<Compression> {
    let word = said.split(':').next().unwrap_or_default();
    COMPRESSIONS.iter().find(|(known, _)| *known == word).map(|(_, compression)| *compression)
}

/// Refuses a file that hasn't as many bytes as the index says.
fn sized(file: Mapped, bytes: u64) -> Result<Mapped, Error> {
    let found = file.len();
    if found as u64 == bytes {
        return Ok(file);
    }
    let problem = format!("index.json says it has {bytes} bytes, and it has {found}: copy it again");
    Err(Error::malformed(file.path(), found, problem))
}

fn mds(place: &Place<'_>, shards: &[Shard], version: Option<u32>) -> Result<Layout, Error> {
    let index = place.index;
    if version != Some(2) {
        return Err(Error::malformed(index, 0, format!("version {version:?} of MDS is unknown; there is 2")));
    }
    let mut layout = None;
    let files = open_all(shards, &|shard| place.open_shard(shard))?;
    for (shard, file) in shards.iter().zip(files) {
        let name = &shard.raw_data.basename;
        if shard.format != "mds" {
            return Err(Error::malformed(index, 0, format!("shard {name} is {}, and not mds", shard.format)));
        }
        let column = Columns::of(index, shard)?;
        let layout = layout.get_or_insert_with(|| Layout::new(column.data_type));
        if layout.data_type != column.data_type {
            return Err(Error::malformed(index, 0, format!("shard {name} has tokens of another type")));
        }
        let number = layout.add_file(file)?;
        column.add_rows(layout, number, shard.samples)?;
    }
    layout
        .ok_or_else(|| Error::NotFound { path: place.folder.to_owned(), problem: "its index has no shards".to_owned() })
}

/// Where a row of MDS has its tokens.
struct Columns {
    data_type: TokenType,
    /// The sizes of all columns, in their order; none for those whose size is in the row.
    sizes: Vec<Option<usize>>,
    /// The column of the tokens.
    tokens: usize,
}

impl Columns {
    fn of(index: &Path, shard: &Shard) -> Result<Columns, Error> {
        let names = &shard.column_names;
        let find = || match names.as_slice() {
            [_] => Some(0),
            _ => COLUMNS.iter().find_map(|wanted| names.iter().position(|name| name == wanted)),
        };
        let bad = |problem: String| Error::malformed(index, 0, problem);
        let tokens = find().ok_or_else(|| bad(format!("none of the columns {names:?} is one of {COLUMNS:?}")))?;
        let encoding = shard.column_encodings.get(tokens).map_or("", String::as_str);
        let data_type = match encoding.split(':').collect::<Vec<_>>()[..] {
            ["ndarray", name, _] => TokenType::of_name(name),
            _ => None,
        };
        let data_type = data_type.ok_or_else(|| {
            let name = &names[tokens];
            bad(format!(
                "column {name} is {encoding:?}: tokens are read from ndarray:TYPE:SHAPE, such as ndarray:uint16:2049"
            ))
        })?;
        let sizes = shard.column_encodings.iter().map(|encoding| size_of(encoding)).collect();
        Ok(Columns { data_type, sizes, tokens })
    }

    /// Adds the tokens of all rows of a shard: a count, the rows' offsets and their end, a text, and the rows.
    fn add_rows(&self, layout: &mut Layout, file: usize, rows: u32) -> Result<(), Error> {
        let number = |layout: &Layout, at: usize| -> Result<usize, Error> {
            let of = &layout.files[file];
            if at.checked_add(4).is_none_or(|end| end > of.len()) {
                return Err(Error::malformed(of.path(), at, "the shard is cut off"));
            }
            let number =
                of.read(at..at + 4, |bytes| bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))?;
            Ok(usize::try_from(number).expect("32 bits fit"))
        };
        let count = number(layout, 0)?;
        if u32::try_from(count) != Ok(rows) {
            let problem = format!("it has {count} rows, and index.json says {rows}");
            return Err(Error::malformed(layout.files[file].path(), 0, problem));
        }
        for row in 0..count {
            let (mut at, end) = (number(layout, 4 + 4 * row)?, number(layout, 8 + 4 * row)?);
            let mut heads = at;
            at = at.saturating_add(4 * self.sizes.iter().filter(|size| size.is_none()).count());
            let mut mine = 0;
            for size in &self.sizes[..=self.tokens] {
                at = at.saturating_add(mine);
                mine = match size {
                    Some(size) => *size,
                    None => number(layout, heads)?,
                };
                heads += if size.is_none() { 4 } else { 0 };
            }
            if at.checked_add(mine).is_none_or(|behind| behind > end) {
                let problem = format!("row {row} ends at byte {end}, before its tokens do");
                return Err(Error::malformed(layout.files[file].path(), at, problem));
            }
            layout.add_piece(file, at, mine)?;
        }
        Ok(())
    }
}

/// The bytes of a column whose size doesn't differ by row.
fn size_of(encoding: &str) -> Option<usize> {
    match encoding.split(':').collect::<Vec<_>>()[..] {
        ["ndarray", name, shape] => {
            let width = match name {
                "int8" | "uint8" | "bool" => 1,
                "int16" | "uint16" | "float16" => 2,
                "int32" | "uint32" | "float32" => 4,
                "int64" | "uint64" | "float64" => 8,
                _ => return None,
            };
            shape.split(',').try_fold(width, |size: usize, length| size.checked_mul(length.trim().parse().ok()?))
        }
        ["int" | "int64" | "uint64" | "float64"] => Some(8),
        ["int32" | "uint32" | "float32"] => Some(4),
        ["int16" | "uint16" | "float16"] => Some(2),
        ["int8" | "uint8"] => Some(1),
        _ => None,
    }
}

fn litdata(place: &Place<'_>, chunks: &[Chunk], config: &Config) -> Result<Layout, Error> {
    let bad = |problem: String| Err(Error::malformed(place.index, 0, problem));
    if config.encryption.as_ref().is_some_and(|how| !how.is_null()) {
        return bad("its chunks are encrypted: write it without".to_owned());
    }
    let compression = match &config.compression {
        None => None,
        Some(said) => match compression_of(said) {
            Some(Compression::Zstd) => Some(Compression::Zstd),
            _ => return bad(format!("its chunks are compressed by {said}: zstd is read; write it with that")),
        },
    };
    let format = config.data_format.as_deref().unwrap_or_default();
    let data_type = match format {
        [one] => litdata_type(one),
        _ => None,
    };
    let Some(data_type) = data_type else {
        return bad(format!("its items are {format:?}: tokens are read that were written for TokensLoader"));
    };
    let mut layout = Layout::new(data_type);
    let files = open_all(chunks, &|chunk| match compression {
        None => place.open(&chunk.filename),
        Some(compression) => place.open_unpacked(&chunk.filename, compression, chunk.chunk_bytes),
    })?;
    for (chunk, file) in chunks.iter().zip(files) {
        let Some(tokens) = chunk.dim else {
            return bad(format!("chunk {} has no dim: it wasn't written for TokensLoader", chunk.filename));
        };
        // A chunk begins with the count of its items and their offsets.
        let head = (u64::from(chunk.chunk_size) + 2) * 4;
        let bytes = tokens.checked_mul(data_type.bytes() as u64);
        let found = file.len() as u64;
        if bytes.and_then(|bytes| bytes.checked_add(head)) != Some(found) {
            let said = chunk.chunk_bytes;
            let problem = format!(
                "it has {found} bytes, and index.json says {tokens} tokens behind {head} bytes ({said} in all)"
            );
            return Err(Error::malformed(file.path(), 0, problem));
        }
        let number = layout.add_file(file)?;
        let sized = |bytes: u64| usize::try_from(bytes).expect("the file is mapped");
        layout.add_piece(number, sized(head), sized(found - head))?;
    }
    Ok(layout)
}

/// LitData numbers torch's types and numpy's (litdata/constants.py).
fn litdata_type(format: &str) -> Option<TokenType> {
    match format {
        "no_header_tensor:11" | "no_header_numpy:4" => Some(TokenType::Uint8),
        "no_header_tensor:20" | "no_header_numpy:5" => Some(TokenType::Uint16),
        "no_header_numpy:6" => Some(TokenType::Uint32),
        "no_header_tensor:15" | "no_header_tensor:16" | "no_header_numpy:2" => Some(TokenType::Int32),
        "no_header_tensor:17" | "no_header_tensor:18" | "no_header_numpy:3" => Some(TokenType::Int64),
        _ => None,
    }
}
