//! Files of text: jsonl, one document a line, and plain text, one document a file; each may be compressed by gzip or zstd,
//! which the name's end says. A document is read as its bytes and its place; what they mean is up to others.

use std::io::{BufRead as _, Read as _};
use std::path::{Path, PathBuf};

use crate::compressed::{Compression, Opened};
use crate::error::Error;
use crate::index::FILES_MAX;

/// The longest document, uncompressed: a line of jsonl, or a plain text.
pub const DOCUMENT_BYTES_MAX: u64 = 256 << 20;

/// A file of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFile {
    /// Where it lies.
    pub path: PathBuf,
    /// How documents lie in it.
    pub kind: Kind,
    compression: Compression,
    /// Its bytes on disk.
    pub bytes: u64,
}

/// How documents lie in a file of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A JSON object on each line.
    Jsonl,
    /// The whole file is one document.
    Plain,
}

/// The bytes of one document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its line, from 1; of plain text 1.
    pub line: u64,
    /// As they are in the file, uncompressed.
    pub bytes: Vec<u8>,
    /// Where it ends in the uncompressed file.
    pub end: u64,
}

impl TextFile {
    /// The files of text at a path: the one file, or those of a folder in the order of their names; none if nothing there has
    /// the name of one.
    ///
    /// # Errors
    /// When the folder can't be listed, or has too many.
    pub fn find(path: &Path) -> Result<Vec<TextFile>, Error> {
        if !path.is_dir() {
            return Ok(TextFile::of(path)?.into_iter().collect());
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(Error::io("list", path))? {
            found.extend(TextFile::of(&entry.map_err(Error::io("list", path))?.path())?);
            if found.len() > FILES_MAX {
                return Err(Error::refused("input", format!("{} has more than {FILES_MAX} files", path.display())));
            }
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// The file of text at a path; none if its name says that it is something else.
    fn of(path: &Path) -> Result<Option<TextFile>, Error> {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (name, compression) = Compression::of_name(name);
        let kind = match name.rsplit_once('.').map(|(_, end)| end) {
            Some("jsonl" | "ndjson") => Kind::Jsonl,
            Some("txt" | "text") => Kind::Plain,
            _ => return Ok(None),
        };
        let bytes = std::fs::metadata(path).map_err(Error::io("open", path))?.len();
        Ok(Some(TextFile { path: path.to_owned(), kind, compression, bytes }))
    }

    /// Reads its documents from a place on: behind `lines` lines, which end at the uncompressed byte `start`.
    ///
    /// # Errors
    /// When it can't be opened, or ends before that place.
    pub fn documents(&self, start: u64, lines: u64) -> Result<Documents, Error> {
        let mut opened = Opened::open(&self.path, self.compression)?;
        let skipped = opened.skip(start).map_err(|error| self.damaged(lines, start, &error))?;
        if skipped < start {
            let problem = format!("it ends there, and was read up to byte {start} before: it was changed");
            return Err(Error::Malformed { path: self.path.clone(), offset: skipped, problem });
        }
        Ok(Documents { file: self.clone(), opened, line: lines, at: start })
    }

    fn damaged(&self, line: u64, at: u64, error: &std::io::Error) -> Error {
        let of = if self.compression == Compression::None { "" } else { " of what it holds uncompressed" };
        let problem = format!("line {}, behind byte {at}{of}: {error}", line + 1);
        Error::Malformed { path: self.path.clone(), offset: at, problem }
    }
}

/// Reads a file's documents, one after the other.
pub struct Documents {
    file: TextFile,
    opened: Opened,
    line: u64,
    at: u64,
}

impl Documents {
    /// The next document; none at the end. Lines of spaces are no documents.
    ///
    /// # Errors
    /// When the file can't be read or decompressed, or a document is too long.
    pub fn next_document(&mut self) -> Result<Option<Document>, Error> {
        loop {
            let mut bytes = Vec::new();
            let mut limited = self.opened.by_ref().take(DOCUMENT_BYTES_MAX + 1);
            let read = match self.file.kind {
                Kind::Jsonl => limited.read_until(b'\n', &mut bytes),
                Kind::Plain => limited.read_to_end(&mut bytes),
            };
            let read = read.map_err(|error| self.file.damaged(self.line, self.at, &error))? as u64;
            if read > DOCUMENT_BYTES_MAX {
                let problem = format!("line {} is longer than {DOCUMENT_BYTES_MAX} bytes: split it", self.line + 1);
                return Err(Error::Malformed { path: self.file.path.clone(), offset: self.at, problem });
            }
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            self.at += read;
            if self.file.kind == Kind::Plain || !bytes.trim_ascii().is_empty() {
                return Ok(Some(Document { line: self.line, bytes, end: self.at }));
            }
        }
    }

    /// Bytes of the file that were read so far, as they lie on disk.
    #[must_use]
    pub fn read_on_disk(&self) -> u64 {
        self.opened.read_on_disk()
    }
}

impl std::fmt::Debug for Documents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "documents of {} behind line {}", self.file.path.display(), self.line)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const LINES: &str = "{\"text\": \"one\"}\n\n  \n{\"text\": \"two\"}\n{\"text\": \"three\"}";

    fn gzipped(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// Several frames one after the other, as parallel compressors write them.
    fn zstd(text: &[u8]) -> Vec<u8> {
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        text.chunks(20).flat_map(|part| ruzstd::encoding::compress_to_vec(part, level)).collect()
    }

    fn read(path: &Path, start: u64, lines: u64) -> Result<Vec<(u64, String, u64)>, Error> {
        let mut documents = TextFile::find(path)?[0].documents(start, lines)?;
        let mut found = Vec::new();
        while let Some(Document { line, bytes, end }) = documents.next_document()? {
            found.push((line, String::from_utf8(bytes).unwrap().trim().to_owned(), end));
        }
        Ok(found)
    }

    #[test]
    fn documents_are_the_same_however_they_are_compressed_and_from_any_of_them_on() {
        let folder = tempfile::tempdir().unwrap();
        let all = [(1, "one", 16), (4, "two", 36), (5, "three", 53)];
        let expected = all.map(|(line, text, end)| (line, format!("{{\"text\": \"{text}\"}}"), end)).to_vec();
        let twice = |bytes: &[u8]| [gzipped(&bytes[..30]), gzipped(&bytes[30..])].concat();
        for (name, bytes) in [
            ("a.jsonl", LINES.as_bytes().to_vec()),
            ("b.jsonl.gz", twice(LINES.as_bytes())),
            ("c.jsonl.zst", zstd(LINES.as_bytes())),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path, 0, 0).unwrap(), expected, "{name}");
            assert_eq!(read(&path, 16, 1).unwrap(), expected[1..], "{name}");
            assert_eq!(read(&path, 53, 5).unwrap(), [], "{name}");
            let error = read(&path, 54, 5).unwrap_err().to_string();
            assert!(error.contains("at byte 53: it ends there, and was read up to byte 54"), "{error}");
        }
        let names: Vec<_> = TextFile::find(folder.path()).unwrap().into_iter().map(|file| file.path).collect();
        assert_eq!(names, ["a.jsonl", "b.jsonl.gz", "c.jsonl.zst"].map(|name| folder.path().join(name)));
    }

    #[test]
    fn a_plain_text_is_one_document() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "one\n\ntwo\n").unwrap();
        assert_eq!(read(&folder.path().join("a.txt"), 0, 0).unwrap(), [(1, "one\n\ntwo".to_owned(), 9)]);
        assert_eq!(TextFile::find(&folder.path().join("a.bin")).unwrap(), []);
    }

    #[test]
    fn compressed_files_that_are_cut_off_or_of_another_kind_are_refused_with_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let error = read(&path, 0, 0).unwrap_err().to_string();
            assert!(error.contains(&format!("{name} at byte")) && error.contains("line "), "{error}");
        };
        let (gzip, zst) = (gzipped(LINES.as_bytes()), zstd(LINES.as_bytes()));
        check("cut.jsonl.gz", &gzip[..gzip.len() - 9]);
        check("cut.jsonl.zst", &zst[..zst.len() - 3]);
        check("text.jsonl.gz", LINES.as_bytes());
        check("text.jsonl.zst", LINES.as_bytes());
        check("trailing.jsonl.zst", &[zst.as_slice(), b"abc"].concat());
    }
}
