//! Makes tokens of text, on all cores, by Hugging Face's `tokenizers`: each document's tokens are what that library gives
//! for it alone, without truncation or padding, and the token that ends a document.
//!
//! What was done is noted whenever a file of tokens is ended. A run that is killed goes on from there when it is started
//! again, and what it makes is, to the byte, what an undisturbed run makes.

mod record;
mod vocabulary;
mod work;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use crate::convert::{Writer, Written};
use crate::cursor::THREADS_MAX;
use crate::error::Error;
use crate::index::native::Described;
use crate::text::{Documents, TextFile};
use crate::token_type::TokenType;
use record::{Place, Record};
use vocabulary::Vocabulary;
use work::{Batch, Workers};

/// A file of tokens is ended by the first document that makes it at least this large, if nothing else is said: what a run
/// that is killed does again takes a core less than a minute.
pub const FILE_BYTES: u64 = 64 << 20;
/// Documents are handed to a thread until they have at least so many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// The most documents that are handed to a thread at once.
const BATCH_DOCUMENTS: usize = 4_096;

/// What is made of which text, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// A file of text, or a folder of them (see [`TextFile::find`]).
    pub input: PathBuf,
    /// The folder that is made, in Gangline's format.
    pub output: PathBuf,
    /// A `tokenizer.json`, or the folder that has it.
    pub tokenizer: PathBuf,
    /// Where a line of jsonl has its text.
    pub key: String,
    /// What ends each document.
    pub end: End,
    /// Whether the tokenizer adds its own special tokens to each document, as it does for a prompt.
    pub adds_special: bool,
    /// The type that is written; the smallest that holds the vocabulary if none.
    pub data_type: Option<TokenType>,
    /// Threads that make tokens.
    pub threads: NonZeroU32,
    /// See [`FILE_BYTES`].
    pub file_bytes: u64,
}

/// The token that ends each document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// What `tokenizer_config.json` beside the tokenizer says is its `eos_token`.
    OfTokenizer,
    /// The one with this text.
    Token(String),
    /// None.
    None,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the input, as it lies on disk, that were read.
    pub read: u64,
    /// Bytes of the input.
    pub bytes: u64,
    /// What was written.
    pub written: Written,
}

/// What was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokenized {
    /// All that is in the output.
    pub written: Written,
    /// What an earlier run had made of it.
    pub resumed: Written,
    /// The type of the tokens.
    pub data_type: TokenType,
    /// Tokens of the vocabulary.
    pub vocabulary: u64,
}

/// Makes tokens of text.
///
/// # Errors
/// When the input has no text, a line of it isn't what it should be, the vocabulary doesn't fit the type, or an unfinished
/// output is of another input, tokenizer or options.
pub fn tokenize(options: &Options, progress: &mut dyn FnMut(Progress)) -> Result<Tokenized, Error> {
    let files = TextFile::find(&options.input)?;
    if files.is_empty() {
        let problem = "no file of text: .jsonl, .ndjson or .txt, each also with .gz or .zst behind it".to_owned();
        return Err(Error::NotFound { path: options.input.clone(), problem });
    }
    if options.threads.get() > THREADS_MAX {
        return Err(Error::refused("threads", format!("{} are more than {THREADS_MAX}", options.threads)));
    }
    let vocabulary = Vocabulary::load(&options.tokenizer, &options.end)?;
    let data_type = vocabulary.data_type(options.data_type)?;
    let job = record::job_id(options, &files, &vocabulary, data_type)?;
    let found = Record::read(&options.output, &job)?.unwrap_or_else(|| Record::new(&job, Place::default(), &[]));
    let mut writer = Writer::resume(&options.output, data_type, options.file_bytes.max(1), &found.files)?;
    let resumed = writer.written();
    let place = if resumed.documents > 0 { found.place } else { Place::default() };
    let bytes = files.iter().map(|file| file.bytes).sum();
    let mut input = Input { files: &files, place, open: None, read_before: 0 };
    let mut sink = Sink { writer: &mut writer, output: &options.output, job: &job };
    let workers = Workers { vocabulary: &vocabulary, options, data_type };
    workers.run(&mut || input.next_batch(), &mut |batch, read| {
        let written = sink.push(&batch)?;
        progress(Progress { read, bytes, written });
        Ok(())
    })?;
    let written = writer.finish()?;
    Record::remove(&options.output)?;
    Ok(Tokenized { written, resumed, data_type, vocabulary: vocabulary.size() })
}

/// Reads the files of text, one after the other.
struct Input<'a> {
    files: &'a [TextFile],
    place: Place,
    open: Option<Documents>,
    /// Bytes of the files before the open one.
    read_before: u64,
}

impl Input<'_> {
    /// The next documents, all of one file; none at the end.
    fn next_batch(&mut self) -> Result<Option<Batch>, Error> {
        while let Some(file) = self.files.get(self.place.file) {
            let documents = match &mut self.open {
                Some(documents) => documents,
                None => self.open.insert(file.documents(self.place.byte, self.place.line)?),
            };
            let (mut found, mut bytes) = (Vec::new(), 0);
            while bytes < BATCH_BYTES && found.len() < BATCH_DOCUMENTS {
                let Some(document) = documents.next_document()? else { break };
                bytes += document.bytes.len();
                found.push(document);
            }
            if !found.is_empty() {
                let read = self.read_before + documents.read_on_disk();
                return Ok(Some(Batch { number: self.place.file, file: file.clone(), documents: found, read }));
            }
            self.open = None;
            self.read_before += file.bytes;
            self.place = Place { file: self.place.file + 1, line: 0, byte: 0 };
        }
        Ok(None)
    }
}

/// Writes documents in order, and notes what was done whenever a file is ended.
struct Sink<'a> {
    writer: &'a mut Writer,
    output: &'a Path,
    job: &'a str,
}

impl Sink<'_> {
    fn push(&mut self, batch: &work::Encoded) -> Result<Written, Error> {
        for document in &batch.documents {
            let before = self.writer.done().len();
            self.writer.push_stored(&document.tokens)?;
            if self.writer.done().len() > before {
                let place = Place { file: batch.number, line: document.line, byte: document.end };
                self.note(place, self.writer.done())?;
            }
        }
        Ok(self.writer.written())
    }

    fn note(&self, place: Place, files: &[Described]) -> Result<(), Error> {
        Record::new(self.job, place, files).write(self.output)
    }
}
