//! Reads compressed files. Those of gzip, zstd and bzip2 may have many parts (members, frames, streams), one after the other.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brotli_decompressor::Decompressor;
use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::Error;

/// Bytes that are read from a file at once.
const BUFFER_BYTES: usize = 1 << 18;
/// The largest window of a frame, which is how much memory it takes: what `zstd --ultra --long=27` writes.
const WINDOW_BYTES_MAX: u64 = 128 << 20;
/// The most that a file by snappy may have and hold: it is in memory at once.
const SNAPPY_BYTES_MAX: u64 = 1 << 30;
/// The most bytes that a byte of snappy stands for: three of them copy 64 (github.com/google/snappy, format_description.txt).
const SNAPPY_RATIO_MAX: u64 = 22;
/// Bytes that are unpacked at once.
const UNPACKED_AT_ONCE: usize = 1 << 20;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Gzip,
    Zstd,
    Brotli,
    Bzip2,
    /// One block of snappy, without the format of frames.
    Snappy,
}

impl Compression {
    /// A name without the end that says how text and records are compressed.
    pub(crate) fn of_name(name: &str) -> (&str, Compression) {
        let ends = [(".gz", Compression::Gzip), (".zst", Compression::Zstd), (".zstd", Compression::Zstd)];
        let found = ends.into_iter().find_map(|(end, of)| Some((name.strip_suffix(end)?, of)));
        found.unwrap_or((name, Compression::None))
    }
}

/// Writes what a compressed file holds to another file.
///
/// # Errors
/// When it can't be read or decompressed, holds more than `bytes_max`, or the disk fails.
pub(crate) fn unpack(path: &Path, compression: Compression, to: &Path, bytes_max: u64) -> Result<(), Error> {
    let mut opened = Opened::open(path, compression)?;
    let mut out = File::create(to).map_err(Error::io("make", to))?;
    let (mut room, mut written) = (vec![0; UNPACKED_AT_ONCE], 0);
    loop {
        let read = opened.read(&mut room);
        let read = read.map_err(|error| unreadable(path, opened.read_on_disk(), written, &error))?;
        if read == 0 {
            // It gets its name afterwards, which a power failure mustn't leave to a file without its bytes.
            out.sync_data().map_err(Error::io("sync", to))?;
            return Ok(());
        }
        written += read as u64;
        if written > bytes_max {
            let problem = format!("it holds more than the {bytes_max} bytes that it should: copy it again");
            return Err(Error::Malformed { path: path.to_owned(), offset: opened.read_on_disk(), problem });
        }
        out.write_all(&room[..read]).map_err(Error::io("write", to))?;
    }
}

fn unreadable(path: &Path, offset: u64, written: u64, error: &io::Error) -> Error {
    let problem = format!("what it holds can't be read behind byte {written}: {error}");
    Error::Malformed { path: path.to_owned(), offset, problem }
}

/// A file, uncompressed while it is read.
pub(crate) struct Opened {
    reader: Box<dyn BufRead + Send>,
    on_disk: Arc<AtomicU64>,
}

impl Opened {
    pub(crate) fn open(path: &Path, compression: Compression) -> Result<Opened, Error> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let on_disk = Arc::new(AtomicU64::new(0));
        let file = BufReader::with_capacity(BUFFER_BYTES, Counted { file, count: Arc::clone(&on_disk) });
        let reader = decompressed(file, compression).map_err(|error| unreadable(path, 0, 0, &error))?;
        Ok(Opened { reader, on_disk })
    }

    /// Reads over so many bytes; returns how many there were.
    pub(crate) fn skip(&mut self, bytes: u64) -> io::Result<u64> {
        io::copy(&mut self.reader.by_ref().take(bytes), &mut io::sink())
    }

    pub(crate) fn read_on_disk(&self) -> u64 {
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

/// Returns what something compressed holds, as it is read.
fn decompressed(from: impl BufRead + Send + 'static, compression: Compression) -> io::Result<Box<dyn BufRead + Send>> {
    let decoder: Box<dyn Read + Send> = match compression {
        Compression::None => return Ok(Box::new(from)),
        Compression::Snappy => return Ok(Box::new(Cursor::new(snappy(from)?))),
        Compression::Gzip => Box::new(MultiGzDecoder::new(from)),
        Compression::Zstd => Box::new(Frames::new(from)),
        Compression::Bzip2 => Box::new(MultiBzDecoder::new(from)),
        Compression::Brotli => Box::new(Decompressor::new(from, BUFFER_BYTES)),
    };
    Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder)))
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

/// Returns what a block of snappy holds.
fn snappy(from: impl Read) -> io::Result<Vec<u8>> {
    let mut block = Vec::new();
    from.take(SNAPPY_BYTES_MAX + 1).read_to_end(&mut block)?;
    let bytes = snap::raw::decompress_len(&block)? as u64;
    if bytes.max(block.len() as u64) > SNAPPY_BYTES_MAX {
        let problem = format!("a block of snappy has more than {SNAPPY_BYTES_MAX} bytes, which are in memory at once");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    if bytes > SNAPPY_RATIO_MAX * block.len() as u64 {
        let problem = format!("a block of snappy of {} bytes can't hold the {bytes} that it says", block.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(snap::raw::Decoder::new().decompress_vec(&block)?)
}

fn bad(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// For the fuzzers: the first byte says how the rest is compressed, of which a MiB is read.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let ways = [Compression::Zstd, Compression::Gzip, Compression::Brotli, Compression::Bzip2, Compression::Snappy];
    let Some((way, rest)) = bytes.split_first() else { return };
    let way = ways[usize::from(*way) % ways.len()];
    if let Ok(reader) = decompressed(Cursor::new(rest.to_vec()), way) {
        let _ = io::copy(&mut reader.take(1 << 20), &mut io::sink());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shard of MosaicML Streaming's by each way; without its last bytes it's an error, and never a shorter shard.
    #[test]
    fn what_is_cut_off_or_too_long_is_refused_however_it_is_compressed() {
        let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/writers");
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let ways = [
            ("zstd", Compression::Zstd),
            ("gz", Compression::Gzip),
            ("br", Compression::Brotli),
            ("bz2", Compression::Bzip2),
            ("snappy", Compression::Snappy),
        ];
        for (end, compression) in ways {
            let whole = std::fs::read(written.join(format!("mds-{end}/shard.00001.mds.{end}"))).unwrap();
            let unpack = |bytes: &[u8], max: u64| {
                std::fs::write(&from, bytes).unwrap();
                let unpacked = super::unpack(&from, compression, &to, max).map_err(|error| error.to_string());
                unpacked.map(|()| std::fs::metadata(&to).unwrap().len())
            };
            let plain = unpack(&whole, u64::MAX).unwrap();
            assert!(plain > 200 && unpack(&whole, plain) == Ok(plain), "{end}: {plain}");
            let refused = unpack(&whole, plain - 1).unwrap_err();
            assert!(refused.contains("it holds more than the"), "{end}: {refused}");
            for cut in 1..whole.len() {
                let refused = unpack(&whole[..cut], plain);
                assert!(refused.is_err(), "{end}, {cut} bytes of {}: {refused:?}", whole.len());
            }
        }
        let lengths: [(&[u8], &str); 2] = [
            (&[0xff, 0xff, 0xff, 0xff, 0x0f, 0], "a block of snappy has more than 1073741824 bytes"),
            (&[0xff, 0xff, 0xff, 0x0f, 0], "a block of snappy of 5 bytes can't hold the 33554431 that it says"),
        ];
        for (bytes, expected) in lengths {
            std::fs::write(&from, bytes).unwrap();
            let refused = super::unpack(&from, Compression::Snappy, &to, u64::MAX).unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
    }
}
