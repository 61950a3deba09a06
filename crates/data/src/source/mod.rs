//! A source: a stream of tokens in files that are read as they lie. Whatever the format, the stream is the files' tokens one
//! after the other, in the order of the files' names (or of the folder's index).

mod flat;
pub(crate) mod layout;
mod mapped;
pub(crate) mod megatron;
mod native;
mod place;
mod reorder;
mod rows;
mod unpacked;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use crate::cache::Fetched;
use crate::compressed::Compression;
use crate::error::Error;
use crate::index::FILES_MAX;
use crate::index::native::MANIFEST;
use crate::index::rows::INDEX;
use crate::sealed::BLOCK_BYTES;
use crate::token_type::{TokenType, Width};
pub use unpacked::unpacked;
use unpacked::unpacked_by;

use layout::Layout;
pub(crate) use mapped::Mapped;
pub(crate) use place::OnDisk;

/// The names of flat files, by their ends.
const FLAT: [&str; 4] = ["bin", "npy", "ds", "tokens"];

/// The format of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tokens and nothing else, or behind a short header: nanoGPT, llm.c, numpy, datatrove.
    Flat,
    /// Megatron-Core's `.bin` and `.idx`.
    Megatron,
    /// MosaicML Streaming's shards or LitData's chunks.
    Rows,
    /// Gangline's own.
    Gangline,
    /// Bytes in memory.
    Memory,
}

/// A stream of tokens.
pub struct Source {
    path: PathBuf,
    format: Format,
    layout: Layout,
    id: [u8; 16],
    /// The blocks whose checksum was right, a bit each.
    verified: Vec<Vec<AtomicU64>>,
    /// The copies that it is read from.
    cached: Option<Fetched>,
}

/// Where a source's files are.
#[derive(Default)]
pub(crate) struct Files<'a> {
    /// The dataset among whose copies they are, by the same names as in its folder.
    fetched: Option<&'a Fetched>,
    /// The folder into which compressed ones are unpacked.
    unpacked: Option<&'a Path>,
}

impl Files<'_> {
    /// Opens a file.
    pub(crate) fn open(&self, path: &Path) -> Result<Mapped, Error> {
        match self.fetched.and_then(|fetched| fetched.copy(path)) {
            Some(copy) => Ok(Mapped::copied(path, copy)),
            None => Mapped::open(path),
        }
    }

    /// Opens what a compressed file holds, at most `bytes_max`.
    pub(crate) fn open_unpacked(&self, path: &Path, compression: Compression, bytes_max: u64) -> Result<Mapped, Error> {
        let problem = || format!("{} is compressed, and there is no folder for what it holds", path.display());
        let folder = self.unpacked.ok_or_else(|| Error::refused("cache", problem()))?;
        Mapped::open(&unpacked_by(compression, path, folder, bytes_max)?)
    }
}

impl Source {
    /// Opens a file or a folder. `data_type` is needed for raw tokens only; elsewhere it has to agree.
    ///
    /// # Errors
    /// When there is nothing, or a file isn't what it says.
    pub fn open(path: &Path, data_type: Option<TokenType>) -> Result<Source, Error> {
        Source::open_files(&Files::default(), path, data_type)
    }

    /// The same; compressed files are unpacked into `folder`, which may be several programs' at a time.
    ///
    /// # Errors
    /// As [`Source::open`]; and when the folder's disk fails.
    pub fn open_unpacking(path: &Path, data_type: Option<TokenType>, folder: &Path) -> Result<Source, Error> {
        Source::open_files(&Files { unpacked: Some(folder), ..Files::default() }, path, data_type)
    }

    fn open_files(files: &Files<'_>, path: &Path, data_type: Option<TokenType>) -> Result<Source, Error> {
        let opened = if path.is_dir() { open_folder } else { open_file };
        let (format, layout) = opened(files, path, data_type)?;
        if let Some(said) = data_type.filter(|said| *said != layout.data_type) {
            let problem = format!("{} holds {}, not {}", path.display(), layout.data_type.name(), said.name());
            return Err(Error::refused("data_type", problem));
        }
        Source::assemble(path.to_owned(), format, layout)
    }

    /// Opens a dataset of the cache. What isn't there yet is fetched as it is read. Blocks of formats without checksums have
    /// those of the bytes that were fetched.
    ///
    /// # Errors
    /// As [`Source::open`].
    pub fn open_fetched(fetched: Fetched, data_type: Option<TokenType>) -> Result<Source, Error> {
        fetched.bring_heads()?;
        let unpacked = fetched.unpacked_folder();
        let files = Files { fetched: Some(&fetched), unpacked: Some(&unpacked) };
        let mut source = Source::open_files(&files, fetched.path(), data_type)?;
        source.cached = Some(fetched);
        Ok(source)
    }

    /// Tokens that are in memory, little-endian; `name` is for messages.
    ///
    /// # Errors
    /// When the bytes are no whole number of tokens.
    pub fn of_bytes(name: &str, bytes: Vec<u8>, data_type: TokenType) -> Result<Source, Error> {
        let mut layout = Layout::new(data_type);
        let length = bytes.len();
        let file = layout.add_file(Mapped::own(name, bytes))?;
        layout.add_piece(file, 0, length)?;
        Source::assemble(PathBuf::from(name), Format::Memory, layout)
    }

    fn assemble(path: PathBuf, format: Format, layout: Layout) -> Result<Source, Error> {
        let id = id(&layout)?;
        let words = |sums: &Vec<u64>| (0..sums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let verified = layout.sums.iter().map(words).collect();
        Ok(Source { path, format, layout, id, verified, cached: None })
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it is stored.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The type of its tokens.
    #[must_use]
    pub fn data_type(&self) -> TokenType {
        self.layout.data_type
    }

    /// Tokens of the stream.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.layout.tokens()
    }

    /// Files of tokens.
    #[must_use]
    pub fn files(&self) -> usize {
        self.layout.files.len()
    }

    /// Documents, if the format says where they end.
    #[must_use]
    pub fn documents(&self) -> Option<u64> {
        let is_known = self.layout.ends.len() == self.layout.files.len() && !self.layout.ends.is_empty();
        is_known.then(|| self.layout.ends.iter().map(layout::Ends::count).sum())
    }

    /// The documents' lengths in tokens, in the stream's order; none if the format doesn't say.
    pub fn document_lengths(&self) -> impl Iterator<Item = u64> + '_ {
        self.document_lengths_from(0)
    }

    /// The same, from a document on.
    pub(crate) fn document_lengths_from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let ends = if self.documents().is_some() { self.layout.ends.as_slice() } else { &[] };
        let (mut file, mut first) = (0, first);
        while ends.get(file).is_some_and(|ends| ends.count() <= first) {
            first -= ends[file].count();
            file += 1;
        }
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let here = ends.get(file).map(|ends| ends.lengths_from(first));
        let behind = ends.get(file + 1..).unwrap_or_default();
        here.into_iter().flatten().chain(behind.iter().flat_map(|ends| ends.lengths_from(0)))
    }

    /// Whether its blocks have checksums.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        !self.layout.sums.is_empty() || self.cached.is_some()
    }

    /// The dataset of the cache that it is read from, if it is.
    #[must_use]
    pub fn cached(&self) -> Option<&Fetched> {
        self.cached.as_ref()
    }

    /// What tells it from other data, wherever it lies: made of the sizes of its files and of their first bytes, or of all
    /// its checksums if it has some.
    #[must_use]
    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    /// Reports whether the id is made of checksums of every byte.
    #[must_use]
    pub fn is_id_of_every_byte(&self) -> bool {
        (0..self.layout.files.len()).all(|number| self.layout.sums.get(number).is_some())
    }

    /// Refuses files that were changed since they were opened.
    ///
    /// # Errors
    /// Names the first one.
    pub fn check(&self) -> Result<(), Error> {
        self.layout.files.iter().try_for_each(Mapped::check)
    }

    /// Copies tokens of the stream, as numbers of a width, into `to`.
    ///
    /// # Errors
    /// When a file was changed, a block has another checksum, or a token doesn't fit.
    ///
    /// # Panics
    /// If the range is outside of the stream or `to` has another length.
    pub fn copy(&self, tokens: Range<u64>, width: Width, to: &mut [u8]) -> Result<(), Error> {
        let layout = &self.layout;
        let wide = layout.data_type.bytes_as(width) / layout.data_type.bytes();
        let mut to = to;
        self.pieces_of(&tokens, &mut |file, range| {
            let (room, rest) = std::mem::take(&mut to).split_at_mut(range.len() * wide);
            to = rest;
            if self.read(file, range, |bytes| layout.data_type.copy(bytes, width, room))? {
                return Ok(());
            }
            Err(Error::TooWide { path: layout.files[file].path().to_owned() })
        })?;
        assert!(to.is_empty(), "as much room as tokens");
        Ok(())
    }

    /// The files in which tokens of the stream lie, and where in them, in the stream's order.
    #[inline]
    fn pieces_of(
        &self,
        tokens: &Range<u64>,
        act: &mut dyn FnMut(usize, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let layout = &self.layout;
        let stored = layout.data_type.bytes();
        let mut piece = layout.pieces.partition_point(|piece| piece.end <= tokens.start);
        let mut at = tokens.start;
        while at < tokens.end {
            let here = layout.pieces[piece];
            let begin = if piece == 0 { 0 } else { layout.pieces[piece - 1].end };
            let count = sized(here.end.min(tokens.end) - at);
            let offset = here.offset + sized(at - begin) * stored;
            act(here.file, offset..offset + count * stored)?;
            (at, piece) = (at + count as u64, piece + 1);
        }
        Ok(())
    }

    /// Has the processor fetch the beginning of tokens that are copied soon.
    #[inline]
    pub(crate) fn prefetch(&self, tokens: &Range<u64>) {
        self.places_of(&(tokens.start..tokens.end), &mut |_, mapped, bytes| mapped.prefetch(&bytes));
    }

    /// Refuses the files of these tokens if they were changed since they were opened.
    pub(crate) fn check_files(&self, tokens: &Range<u64>, checked: &mut Vec<usize>) -> Result<(), Error> {
        let first = self.layout.pieces.partition_point(|piece| piece.end <= tokens.start);
        // The first piece that ends behind the tokens is the last.
        let last = self.layout.pieces.partition_point(|piece| piece.end < tokens.end);
        for piece in &self.layout.pieces[first..=last] {
            if let Err(place) = checked.binary_search(&piece.file) {
                self.layout.files[piece.file].check()?;
                checked.insert(place, piece.file);
            }
        }
        Ok(())
    }

    /// Compares all blocks with their checksums, and the token types' limits with a vocabulary; `progress` is told the bytes
    /// of each file.
    ///
    /// # Errors
    /// Names the first block that differs, or the first token that isn't below `vocabulary`.
    pub fn verify(&self, vocabulary: Option<u64>, progress: &mut dyn FnMut(u64)) -> Result<(), Error> {
        self.check()?;
        for (file, mapped) in self.layout.files.iter().enumerate() {
            for start in (0..mapped.len()).step_by(BLOCK_BYTES) {
                let end = mapped.len().min(start + BLOCK_BYTES);
                self.read(file, start..end, |_| ())?;
                progress((end - start) as u64);
            }
        }
        vocabulary.map_or(Ok(()), |vocabulary| self.check_vocabulary(vocabulary))
    }

    fn check_vocabulary(&self, vocabulary: u64) -> Result<(), Error> {
        let (width, mut begin) = (self.layout.data_type.bytes(), 0);
        for piece in &self.layout.pieces {
            let file = &self.layout.files[piece.file];
            let end = piece.offset + sized(piece.end - begin) * width;
            for start in (piece.offset..end).step_by(BLOCK_BYTES) {
                let is_outside =
                    |token: &[u8]| self.layout.data_type.read(token).is_none_or(|token| token >= vocabulary);
                let bytes = start..end.min(start + BLOCK_BYTES);
                let found = self.read(piece.file, bytes, |bytes| bytes.chunks_exact(width).position(is_outside))?;
                if let Some(number) = found {
                    let problem = format!(
                        "a token that isn't in a vocabulary of {vocabulary}: another tokenizer's, or another type"
                    );
                    return Err(Error::malformed(file.path(), start + number * width, problem));
                }
            }
            begin = piece.end;
        }
        Ok(())
    }

    /// What `act` makes of bytes of a file, with their blocks verified if they have checksums.
    #[inline]
    fn read<R>(&self, file: usize, range: Range<usize>, act: impl FnMut(&[u8]) -> R) -> Result<R, Error> {
        if let Some(verified) = self.verified.get(file) {
            for block in range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES) {
                let (word, bit) = (&verified[block / 64], 1 << (block % 64));
                // Two threads may both verify a block, and find the same.
                if word.load(Ordering::Relaxed) & bit == 0 {
                    self.verify_block(file, block)?;
                    word.fetch_or(bit, Ordering::Relaxed);
                }
            }
        }
        self.layout.files[file].read(range, act)
    }

    #[cold]
    fn verify_block(&self, file: usize, block: usize) -> Result<(), Error> {
        let mapped = &self.layout.files[file];
        let start = block * BLOCK_BYTES;
        let end = mapped.len().min(start + BLOCK_BYTES);
        if mapped.read(start..end, xxh3_64)? == self.layout.sums[file][block] {
            return Ok(());
        }
        let problem = format!(
            "the block of {} bytes has another checksum than its manifest says: copy the file again",
            end - start
        );
        Err(Error::malformed(mapped.path(), start, problem))
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source")
            .field("path", &self.path)
            .field("format", &self.format)
            .field("tokens", &self.tokens())
            .finish()
    }
}

fn sized(tokens: u64) -> usize {
    usize::try_from(tokens).expect("what is mapped can be counted")
}

fn id(layout: &Layout) -> Result<[u8; 16], Error> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"gangline data 2");
    hasher.update(layout.data_type.name().as_bytes());
    hasher.update(&layout.tokens().to_le_bytes());
    for (number, file) in layout.files.iter().enumerate() {
        hasher.update(&(file.len() as u64).to_le_bytes());
        if let Some(sums) = layout.sums.get(number) {
            sums.iter().for_each(|sum| {
                hasher.update(&sum.to_le_bytes());
            });
            continue;
        }
        hasher.update(&file.head()?);
    }
    Ok(*hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes"))
}

type Opened = Result<(Format, Layout), Error>;

fn open_folder(files: &Files<'_>, folder: &Path, data_type: Option<TokenType>) -> Opened {
    if folder.join(MANIFEST).is_file() {
        return Ok((Format::Gangline, native::read(files, folder)?));
    }
    if folder.join(INDEX).is_file() {
        return Ok((Format::Rows, rows::read(files, folder)?));
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let path = entry.map_err(Error::io("list", folder))?.path();
        if path.extension().and_then(|end| end.to_str()).is_some_and(|end| FLAT.contains(&end)) {
            paths.push(path);
        }
        if paths.len() > FILES_MAX {
            return Err(Error::refused("source", format!("{} has more than {FILES_MAX} files", folder.display())));
        }
    }
    paths.sort();
    let (mut layout, mut format) = (None, Format::Flat);
    for path in &paths {
        format = add_file(files, path, data_type, &mut layout)?;
    }
    let problem = || format!("no manifest.json, no index.json, and no file whose name ends with .{}", FLAT.join(", ."));
    let layout = layout.ok_or_else(|| Error::NotFound { path: folder.to_owned(), problem: problem() })?;
    Ok((format, layout))
}

fn open_file(files: &Files<'_>, path: &Path, data_type: Option<TokenType>) -> Opened {
    let mut layout = None;
    // Megatron's own tools take the pair's name without its end.
    let bin = path.with_added_extension("bin");
    let is_pair = !path.exists() && bin.is_file();
    let format = if path.extension().is_some_and(|end| end == "idx") {
        add_file(files, &path.with_extension("bin"), data_type, &mut layout)?
    } else {
        add_file(files, if is_pair { &bin } else { path }, data_type, &mut layout)?
    };
    let layout = layout.expect("a file that was read is in the layout");
    Ok((format, layout))
}

fn add_file(
    files: &Files<'_>,
    path: &Path,
    data_type: Option<TokenType>,
    layout: &mut Option<Layout>,
) -> Result<Format, Error> {
    let is_pair = path.extension().is_some_and(|end| end == "bin") && path.with_extension("idx").is_file();
    if is_pair {
        megatron::read(files, path, layout)?;
        return Ok(Format::Megatron);
    }
    flat::read(files, path, data_type, layout)?;
    Ok(Format::Flat)
}

/// What the fuzzer runs: the readers of indexes and headers.
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz {
    use super::{Path, flat, megatron};
    use crate::index::{native, rows};

    pub(crate) fn indexes(bytes: &[u8]) {
        let path = Path::new("fuzzed");
        if let Ok(index) = megatron::parse(path, bytes) {
            let tokens: u64 = index.lengths.iter().map(|length| u64::from(u32::from_le_bytes(*length))).sum();
            assert_eq!(tokens * index.data_type.bytes() as u64, index.bytes, "sequences cover the tokens");
        }
        if let Ok(flat) = flat::describe(path, bytes, bytes.len(), None) {
            assert!(flat.offset + flat.bytes == bytes.len(), "tokens lie in their file");
        }
        if let Ok(manifest) = native::parse(path, bytes) {
            assert!(
                native::parse(path, &manifest.seal()).is_ok_and(|again| again == manifest),
                "a manifest is read back"
            );
        }
        rows::fuzz_index(bytes);
    }
}
