//! Threads that make tokens of documents. Batches are read, handed out and written by one thread, in their order; only as
//! many are under way as keep all threads busy.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::error::Error;
use crate::text::{Document, Kind, TextFile};
use crate::token_type::TokenType;
use crate::tokenize::Options;
use crate::tokenize::vocabulary::Vocabulary;

/// Batches under way for each thread.
const BATCHES_OF_A_THREAD: usize = 4;

/// Documents of one file.
pub(super) struct Batch {
    /// The file's number in the input.
    pub(super) number: usize,
    pub(super) file: TextFile,
    pub(super) documents: Vec<Document>,
    /// Bytes of the input that were read up to here.
    pub(super) read: u64,
}

/// The tokens of a batch's documents.
pub(super) struct Encoded {
    pub(super) number: usize,
    pub(super) documents: Vec<EncodedDocument>,
}

/// The tokens of a document, as they are stored.
pub(super) struct EncodedDocument {
    pub(super) line: u64,
    pub(super) end: u64,
    pub(super) tokens: Vec<u8>,
}

/// A batch, and where its tokens go.
type Work = (Batch, SyncSender<Result<Encoded, Error>>);

/// What the threads need to know.
pub(super) struct Workers<'a> {
    pub(super) vocabulary: &'a Vocabulary,
    pub(super) options: &'a Options,
    pub(super) data_type: TokenType,
}

impl Workers<'_> {
    /// Reads batches until there is none, and writes the tokens of each in the same order, with the bytes read up to it.
    pub(super) fn run(
        &self,
        read: &mut dyn FnMut() -> Result<Option<Batch>, Error>,
        write: &mut dyn FnMut(Encoded, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let threads = usize::try_from(self.options.threads.get()).expect("32 bits fit");
        let under_way_max = threads * BATCHES_OF_A_THREAD;
        let (hand_out, take) = sync_channel::<Work>(under_way_max);
        let take = Mutex::new(take);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.work(&take));
            }
            // Dropped when this ends, by an error too: the threads end with it.
            let hand_out = hand_out;
            let mut under_way: VecDeque<(u64, Receiver<Result<Encoded, Error>>)> = VecDeque::new();
            let mut next = read()?;
            while next.is_some() || !under_way.is_empty() {
                if let Some(batch) = next.take() {
                    let (reply, tokens) = sync_channel(1);
                    under_way.push_back((batch.read, tokens));
                    hand_out.send((batch, reply)).expect("the threads wait for work");
                    next = read()?;
                }
                if under_way.len() >= under_way_max || next.is_none() {
                    let Some((read, tokens)) = under_way.pop_front() else { break };
                    write(tokens.recv().expect("a thread answers whatever it takes")?, read)?;
                }
            }
            Ok(())
        })
    }

    fn work(&self, take: &Mutex<Receiver<Work>>) {
        loop {
            let taken = take.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((batch, reply)) = taken else { return };
            // Nobody waits for it after an error.
            let _ = reply.send(self.encode(batch));
        }
    }

    fn encode(&self, batch: Batch) -> Result<Encoded, Error> {
        let documents = batch.documents.into_iter().map(|document| {
            let (line, end) = (document.line, document.end);
            let tokens = self.encode_document(&batch.file, document)?;
            Ok(EncodedDocument { line, end, tokens })
        });
        Ok(Encoded { number: batch.number, documents: documents.collect::<Result<_, Error>>()? })
    }

    fn encode_document(&self, file: &TextFile, document: Document) -> Result<Vec<u8>, Error> {
        let start = document.end - document.bytes.len() as u64;
        let bad = |problem: String| {
            let problem = format!("line {}: {problem}", document.line);
            Error::Malformed { path: file.path.clone(), offset: start, problem }
        };
        let text = match file.kind {
            Kind::Plain => {
                String::from_utf8(document.bytes).map_err(|error| bad(format!("it is no UTF-8: {error}")))?
            }
            Kind::Jsonl => text_of(&document.bytes, &self.options.key).map_err(bad)?,
        };
        let tokens = self.vocabulary.encode(&text, self.options.adds_special);
        let tokens = tokens.map_err(|error| bad(format!("the tokenizer refuses it: {error}")))?;
        let (width, largest) = (self.data_type.bytes(), self.data_type.largest());
        if let Some(token) = tokens.iter().find(|token| u64::from(**token) > largest) {
            return Err(bad(format!("token {token} doesn't fit {}", self.data_type.name())));
        }
        let wide = tokens.iter().map(|token| u64::from(*token).to_le_bytes());
        Ok(wide.flat_map(|bytes| bytes.into_iter().take(width)).collect())
    }
}

/// The text of a line of jsonl.
fn text_of(line: &[u8], key: &str) -> Result<String, String> {
    let mut value: Value = serde_json::from_slice(line).map_err(|error| format!("it is no JSON: {error}"))?;
    match value.get_mut(key).map(Value::take) {
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!("its {key:?} is no text")),
        None => {
            let keys = value.as_object().map(|object| object.keys().take(10).cloned().collect::<Vec<_>>());
            let keys = keys.map_or("it is no object".to_owned(), |keys| format!("it has {}", keys.join(", ")));
            Err(format!("it has no {key:?}: say which key has the text ({keys})"))
        }
    }
}
