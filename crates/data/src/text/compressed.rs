//! Reads files that are compressed by gzip or zstd, whose parts (members, frames) may be many.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::Error;

/// Bytes that are read from a file at once.
const BUFFER_BYTES: usize = 1 << 18;
/// The largest window of a frame, which is how much memory it takes: what `zstd --ultra --long=27` writes.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// A name without the end that says how it is compressed.
    pub(super) fn of_name(name: &str) -> (&str, Compression) {
        let ends = [(".gz", Compression::Gzip), (".zst", Compression::Zstd), (".zstd", Compression::Zstd)];
        let found = ends.into_iter().find_map(|(end, of)| Some((name.strip_suffix(end)?, of)));
        found.unwrap_or((name, Compression::None))
    }
}

/// A file, uncompressed while it is read.
pub(super) struct Opened {
    reader: Box<dyn BufRead + Send>,
    on_disk: Arc<AtomicU64>,
}

impl Opened {
    pub(super) fn open(path: &Path, compression: Compression) -> Result<Opened, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let on_disk = Arc::new(AtomicU64::new(0));
        let file = BufReader::with_capacity(BUFFER_BYTES, Counted { file, count: Arc::clone(&on_disk) });
        let reader: Box<dyn BufRead + Send> = match compression {
            Compression::None => Box::new(file),
            Compression::Gzip => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(file))),
            Compression::Zstd => Box::new(BufReader::with_capacity(BUFFER_BYTES, Frames::new(file))),
        };
        Ok(Opened { reader, on_disk })
    }

    /// Reads over so many bytes; returns how many there were.
    pub(super) fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        io::copy(&mut self.reader.by_ref().take(bytes), &mut io::sink())
    }

    pub(super) fn read_on_disk(&self) -> u64 {
        self.on_disk.load(Ordering::Relaxed)
    }
}

impl Read for Opened {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.reader.read(to)
    }
}

impl BufRead for Opened {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.reader.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.reader.consume(bytes);
    }
}

/// A file that counts what is read of it.
struct Counted {
    file: File,
    count: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(to)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// The content of zstd frames, one after the other.
struct Frames<R> {
    from: R,
    decoder: FrameDecoder,
    is_inside: bool,
}

impl<R: BufRead> Frames<R> {
    fn new(from: R) -> Frames<R> {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        Frames { from, decoder, is_inside: false }
    }

    /// Begins the next frame; false at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.from.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.from) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut self.from.by_ref().take(length), &mut io::sink())?;
                    if skipped < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(bad(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_inside && !self.begin()? {
                return Ok(0);
            }
            self.is_inside = true;
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBytes(to.len());
                self.decoder.decode_blocks(&mut self.from, strategy).map_err(bad)?;
            }
            let read = self.decoder.read(to)?;
            if read > 0 {
                return Ok(read);
            }
            let (said, found) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
            if said.is_some() && said != found {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a frame of zstd has another checksum than it says",
                ));
            }
            self.is_inside = false;
        }
    }
}

fn bad(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
