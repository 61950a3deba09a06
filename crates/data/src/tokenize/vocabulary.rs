//! A tokenizer of Hugging Face's, with what Gangline needs to know of it: the largest token, and the one that ends documents.

use std::fs;
use std::path::{Path, PathBuf};

use tokenizers::Tokenizer;

use crate::error::Error;
use crate::token_type::TokenType;
use crate::tokenize::End;

/// The largest `tokenizer.json` that is read; known ones have up to 35 MB.
const BYTES_MAX: u64 = 1 << 30;

/// A tokenizer.
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    largest: u32,
    end: Option<u32>,
    hash: blake3::Hash,
}

impl Vocabulary {
    /// Loads a `tokenizer.json`, or the one in a folder.
    pub(super) fn load(path: &Path, end: &End) -> Result<Vocabulary, Error> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let text = read(&path)?;
        let bad = |error: tokenizers::Error| Error::malformed(&path, 0, format!("no tokenizer: {error}"));
        let mut tokenizer = Tokenizer::from_bytes(&text).map_err(bad)?;
        // Some files ask for them, for batches of prompts.
        tokenizer.with_truncation(None).map_err(bad)?;
        tokenizer.with_padding(None);
        let largest = tokenizer.get_vocab(true).into_values().max();
        let largest = largest.ok_or_else(|| Error::malformed(&path, 0, "its vocabulary is empty"))?;
        let end = match end {
            End::None => None,
            End::Token(text) => Some(text.clone()),
            End::OfTokenizer => Some(end_of(&path)?),
        };
        let end = end.map(|text| {
            let unknown =
                || Error::refused("end_token", format!("{text:?} isn't in the vocabulary of {}", path.display()));
            tokenizer.token_to_id(&text).ok_or_else(unknown)
        });
        Ok(Vocabulary { largest, end: end.transpose()?, hash: blake3::hash(&text), tokenizer })
    }

    /// Tokens of the vocabulary: one more than the largest.
    pub(super) fn size(&self) -> u64 {
        u64::from(self.largest) + 1
    }

    /// The token that ends a document.
    pub(super) fn end(&self) -> Option<u32> {
        self.end
    }

    /// Of the tokenizer's file.
    pub(super) fn hash(&self) -> &[u8] {
        self.hash.as_bytes()
    }

    /// The type that was asked for, if it holds the vocabulary; the smallest one that does, if none was.
    pub(super) fn data_type(&self, said: Option<TokenType>) -> Result<TokenType, Error> {
        let smallest = if self.largest <= u32::from(u16::MAX) { TokenType::Uint16 } else { TokenType::Uint32 };
        match said {
            Some(said) if u64::from(self.largest) > said.largest() => {
                let problem = format!(
                    "the tokenizer's largest token is {}, which doesn't fit {}: use {}",
                    self.largest,
                    said.name(),
                    smallest.name()
                );
                Err(Error::refused("data_type", problem))
            }
            _ => Ok(said.unwrap_or(smallest)),
        }
    }

    /// The tokens of a text, with the one that ends it.
    pub(super) fn encode(&self, text: &str, adds_special: bool) -> Result<Vec<u32>, tokenizers::Error> {
        let encoding = self.tokenizer.encode_fast(text, adds_special)?;
        Ok(encoding.get_ids().iter().copied().chain(self.end).collect())
    }
}

/// What `tokenizer_config.json` beside a tokenizer says ends a text.
fn end_of(tokenizer: &Path) -> Result<String, Error> {
    let path = tokenizer.with_file_name("tokenizer_config.json");
    let unsaid = |why: &str| {
        let problem =
            format!("{} {why}: name the token that ends a document, such as <|endoftext|>, or none", path.display());
        Error::refused("end_token", problem)
    };
    let text = match read(&path) {
        Err(Error::NotFound { .. }) => return Err(unsaid("isn't there to say it")),
        read => read?,
    };
    let config: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| Error::malformed(&path, 0, format!("no JSON: {error}")))?;
    let end = config.get("eos_token").and_then(|end| end.as_str().or_else(|| end.get("content")?.as_str()));
    end.map(str::to_owned).ok_or_else(|| unsaid("has no eos_token"))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let path: &PathBuf = &path.to_owned();
    let bytes = fs::metadata(path).map_err(Error::io("open", path))?.len();
    if bytes > BYTES_MAX {
        return Err(Error::malformed(path, 0, format!("it has {bytes} bytes, more than {BYTES_MAX}")));
    }
    fs::read(path).map_err(Error::io("read", path))
}
