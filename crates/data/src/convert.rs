//! Writes token streams: Gangline's own format, or Megatron's. Nothing is visible under its name before it is whole and on
//! disk.

use std::fs::{self, File, TryLockError};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::error::Error;
use crate::index::native::{Described, FORMAT, MANIFEST, Manifest, VERSION, documents_name, tokens_name};
use crate::sealed::{BLOCK_BYTES, hex};
use crate::source::megatron;
use crate::token_type::TokenType;

/// A file of tokens is ended by the first document that makes it at least this large.
const FILE_BYTES: u64 = 1 << 30;
/// The longest document of Megatron's format, whose lengths have 31 bits.
const LENGTH_MAX: u64 = i32::MAX.cast_unsigned() as u64;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A folder with a manifest and checksums.
    Gangline,
    /// `NAME.bin` and `NAME.idx`.
    Megatron,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Documents.
    pub documents: u64,
    /// Tokens.
    pub tokens: u64,
}

/// Writes documents, one after the other.
#[derive(Debug)]
pub struct Writer {
    target: Target,
    /// What is made, and where it is until it is whole.
    path: PathBuf,
    aside: PathBuf,
    /// Keeps others from writing there; ends with this process.
    _lock: File,
    data_type: TokenType,
    /// A file of tokens is ended by the first document that makes it at least this large.
    file_bytes: u64,
    file: Option<TokensFile>,
    done: Vec<Described>,
    /// Of Megatron's format, whose index is written last.
    lengths: Vec<u32>,
    written: Written,
}

/// The file of tokens that is being written.
#[derive(Debug)]
struct TokensFile {
    path: PathBuf,
    out: BufWriter<File>,
    bytes: u64,
    block: Xxh3Block,
    blocks: Vec<String>,
    ends: Vec<u8>,
}

/// The checksum of the block that is being written.
struct Xxh3Block {
    sum: Xxh3,
    bytes: usize,
}

impl std::fmt::Debug for Xxh3Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "block of {} bytes", self.bytes)
    }
}

impl Writer {
    /// Begins to write. `path` is the folder that is made, or the pair's name without its ends.
    ///
    /// # Errors
    /// When there is something of that name, or Megatron has no such type.
    pub fn create(path: &Path, target: Target, data_type: TokenType) -> Result<Writer, Error> {
        refuse_taken(path, target, data_type)?;
        let aside = path.with_added_extension("partial");
        let lock = lock(&aside)?;
        // What a writer left that was killed is begun anew.
        clear(&aside, &|_| true)?;
        Ok(Writer {
            target,
            path: path.to_owned(),
            aside,
            _lock: lock,
            data_type,
            file_bytes: FILE_BYTES,
            file: None,
            done: Vec::new(),
            lengths: Vec::new(),
            written: Written { documents: 0, tokens: 0 },
        })
    }

    /// Writes a folder of Gangline's format, and goes on behind the files that a writer which was killed had ended; behind
    /// none, if one of them isn't there as it was.
    #[cfg(feature = "tokenize")]
    pub(crate) fn resume(
        path: &Path,
        data_type: TokenType,
        file_bytes: u64,
        done: &[Described],
    ) -> Result<Writer, Error> {
        refuse_taken(path, Target::Gangline, data_type)?;
        let aside = path.with_added_extension("partial");
        let lock = lock(&aside)?;
        let bytes_of = |name: String| fs::metadata(aside.join(name)).ok().map(|found| found.len());
        let is_there = |(number, described): (usize, &Described)| {
            bytes_of(tokens_name(number)) == Some(described.bytes)
                && bytes_of(documents_name(number)) == Some(described.documents * 8)
        };
        let done = if done.iter().enumerate().all(is_there) { done } else { &[] };
        let kept: Vec<String> =
            (0..done.len()).flat_map(|number| [tokens_name(number), documents_name(number)]).collect();
        clear(&aside, &|name| !kept.iter().any(|kept| kept == name))?;
        let width = data_type.bytes() as u64;
        let written = Written {
            documents: done.iter().map(|described| described.documents).sum(),
            tokens: done.iter().map(|described| described.bytes / width).sum(),
        };
        Ok(Writer {
            target: Target::Gangline,
            path: path.to_owned(),
            aside,
            _lock: lock,
            data_type,
            file_bytes,
            file: None,
            done: done.to_vec(),
            lengths: Vec::new(),
            written,
        })
    }

    /// The files that were ended.
    #[cfg(feature = "tokenize")]
    pub(crate) fn done(&self) -> &[Described] {
        &self.done
    }

    /// What was written so far.
    #[must_use]
    pub fn written(&self) -> Written {
        self.written
    }

    /// Adds a document.
    ///
    /// # Errors
    /// When a token doesn't fit the type, or the disk fails.
    pub fn push(&mut self, tokens: &[u64]) -> Result<(), Error> {
        let largest = self.data_type.largest();
        if let Some(token) = tokens.iter().find(|token| **token > largest) {
            let problem =
                format!("token {token} of document {} doesn't fit {}", self.written.documents, self.data_type.name());
            return Err(Error::refused("data_type", problem));
        }
        let width = self.data_type.bytes();
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes().into_iter().take(width)).collect();
        self.push_stored(&bytes)
    }

    /// Adds a document whose tokens are stored as they will be.
    ///
    /// # Errors
    /// When the disk fails, or a document is too long for Megatron's format.
    pub fn push_stored(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let tokens = (bytes.len() / self.data_type.bytes()) as u64;
        assert_eq!(tokens * self.data_type.bytes() as u64, bytes.len() as u64, "whole tokens");
        if self.target == Target::Megatron {
            let length = u32::try_from(tokens).ok().filter(|_| tokens <= LENGTH_MAX);
            let problem = || format!("document {} has {tokens} tokens, more than {LENGTH_MAX}", self.written.documents);
            self.lengths.push(length.ok_or_else(|| Error::refused("output", problem()))?);
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(TokensFile::create(&self.aside.join(tokens_name(self.done.len())))?),
        };
        file.push(bytes, self.data_type)?;
        self.written.documents += 1;
        self.written.tokens += tokens;
        if self.target == Target::Gangline && self.file.as_ref().is_some_and(|file| file.bytes >= self.file_bytes) {
            self.end_file()?;
        }
        Ok(())
    }

    /// Makes what was written visible under its name, once it is on disk.
    ///
    /// # Errors
    /// When the disk fails, or nothing was written.
    pub fn finish(mut self) -> Result<Written, Error> {
        if self.written.tokens == 0 {
            let removed = fs::remove_dir_all(&self.aside);
            removed.map_err(Error::io("remove", &self.aside))?;
            return Err(Error::refused("input", "it has no tokens"));
        }
        self.end_file()?;
        match self.target {
            Target::Gangline => self.finish_folder()?,
            Target::Megatron => self.finish_pair()?,
        }
        Ok(self.written)
    }

    fn end_file(&mut self) -> Result<(), Error> {
        if let Some(file) = self.file.take() {
            let documents = self.aside.join(documents_name(self.done.len()));
            let described = file.finish(&documents)?;
            self.done.push(described);
        }
        Ok(())
    }

    fn finish_folder(&mut self) -> Result<(), Error> {
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            data_type: self.data_type,
            tokens: self.written.tokens,
            files: std::mem::take(&mut self.done),
        };
        write_synced(&self.aside.join(MANIFEST), &manifest.seal())?;
        sync_folder(&self.aside)?;
        fs::rename(&self.aside, &self.path).map_err(Error::io("make", &self.path))?;
        sync_folder(parent(&self.path))
    }

    fn finish_pair(&mut self) -> Result<(), Error> {
        let index = megatron::index(self.data_type, &self.lengths).expect("the type was checked at the beginning");
        let aside = self.aside.join("index");
        write_synced(&aside, &index)?;
        let (bin, idx) = (self.path.with_added_extension("bin"), self.path.with_added_extension("idx"));
        fs::rename(self.aside.join(tokens_name(0)), &bin).map_err(Error::io("make", &bin))?;
        fs::rename(&aside, &idx).map_err(Error::io("make", &idx))?;
        sync_folder(parent(&self.path))?;
        fs::remove_dir_all(&self.aside).map_err(Error::io("remove", &self.aside))
    }
}

impl TokensFile {
    fn create(path: &Path) -> Result<TokensFile, Error> {
        let file = File::create_new(path).map_err(Error::io("make", path))?;
        let block = Xxh3Block { sum: Xxh3::new(), bytes: 0 };
        let out = BufWriter::with_capacity(BLOCK_BYTES, file);
        Ok(TokensFile { path: path.to_owned(), out, bytes: 0, block, blocks: Vec::new(), ends: Vec::new() })
    }

    fn push(&mut self, bytes: &[u8], data_type: TokenType) -> Result<(), Error> {
        self.out.write_all(bytes).map_err(Error::io("write", &self.path))?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - self.block.bytes));
            self.block.sum.update(now);
            self.block.bytes += now.len();
            if self.block.bytes == BLOCK_BYTES {
                self.end_block();
            }
            rest = later;
        }
        self.bytes += bytes.len() as u64;
        self.ends.extend((self.bytes / data_type.bytes() as u64).to_le_bytes());
        Ok(())
    }

    fn end_block(&mut self) {
        self.blocks.push(hex(self.block.sum.digest()));
        self.block = Xxh3Block { sum: Xxh3::new(), bytes: 0 };
    }

    fn finish(mut self, documents: &Path) -> Result<Described, Error> {
        if self.block.bytes > 0 {
            self.end_block();
        }
        self.out.flush().map_err(Error::io("write", &self.path))?;
        self.out.get_ref().sync_all().map_err(Error::io("sync", &self.path))?;
        write_synced(documents, &self.ends)?;
        Ok(Described {
            bytes: self.bytes,
            blocks: self.blocks,
            documents: self.ends.len() as u64 / 8,
            documents_xxh3: hex(xxh3_64(&self.ends)),
        })
    }
}

/// Refuses what is there already, and types that the target doesn't have.
fn refuse_taken(path: &Path, target: Target, data_type: TokenType) -> Result<(), Error> {
    let files = match target {
        Target::Gangline => vec![path.to_owned()],
        Target::Megatron => ["bin", "idx"].map(|end| path.with_added_extension(end)).to_vec(),
    };
    if let Some(file) = files.iter().find(|file| file.exists()) {
        let problem = format!("{} is there already: give another name, or remove it", file.display());
        return Err(Error::refused("output", problem));
    }
    if target == Target::Megatron && megatron::index(data_type, &[]).is_none() {
        let problem = format!("Megatron's format has no {}: use uint16 or int32", data_type.name());
        return Err(Error::refused("data_type", problem));
    }
    Ok(())
}

/// Makes a folder that no other program writes to as long as the lock is held.
fn lock(folder: &Path) -> Result<File, Error> {
    fs::create_dir_all(folder).map_err(Error::io("make", folder))?;
    let lock = File::open(folder).map_err(Error::io("open", folder))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let problem = format!("another program is writing {}: wait for it, or stop it", folder.display());
            Err(Error::refused("output", problem))
        }
        Err(TryLockError::Error(error)) => Err(Error::io("lock", folder)(error)),
    }
}

/// Removes what is in a folder and has one of these names.
fn clear(folder: &Path, is_removed: &dyn Fn(&str) -> bool) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let path = entry.map_err(Error::io("list", folder))?.path();
        if path.file_name().and_then(|name| name.to_str()).is_none_or(is_removed) {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(Error::io("clear", &path))?;
        }
    }
    Ok(())
}

pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = File::create(path).map_err(Error::io("make", path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(Error::io("write", path))
}

pub(crate) fn sync_folder(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(Error::io("sync", path))
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
