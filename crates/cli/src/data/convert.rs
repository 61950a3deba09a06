//! `gangline data convert`: jsonl or any format that is read, into one with an index.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use gangline_data::text::{Kind, TextFile};
use gangline_data::{Source, Target, TokenType, Width, Writer, Written};
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::json;

use super::{failure, open_all, progress, token_type};
use crate::failure::Failure;
use crate::output;

/// What ends a document of bytes: the number behind the last byte.
const END_OF_BYTES: u64 = 256;
/// Tokens of a document without an end are copied so many at a time.
const COPIED_TOKENS: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct ConvertArgs {
    /// A dataset, a .jsonl file (also .gz, .zst), or a folder of them; a line has "tokens" or "input_ids", or with --bytes "text"
    input: PathBuf,
    /// The folder to make; for Megatron, the pair's name without its ends
    output: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value_t = To::Gangline)]
    to: To,
    /// The type to write [default: the input's, and uint16 for jsonl]
    #[arg(long, value_name = "TYPE", value_parser = token_type)]
    dtype: Option<TokenType>,
    /// The type of raw tokens in the input, which no header says
    #[arg(long, value_name = "TYPE", value_parser = token_type)]
    input_dtype: Option<TokenType>,
    /// Take "text" as its bytes in UTF-8, each document ended by token 256
    #[arg(long)]
    bytes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum To {
    /// A folder with checksums
    Gangline,
    /// NAME.bin and NAME.idx
    Megatron,
}

/// A line of jsonl; other keys are left alone.
#[derive(Deserialize)]
struct Line {
    #[serde(alias = "input_ids")]
    tokens: Option<Vec<u64>>,
    text: Option<String>,
}

pub(crate) fn run(args: &ConvertArgs, is_json: bool) -> Result<(), Failure> {
    let target = match args.to {
        To::Gangline => Target::Gangline,
        To::Megatron => Target::Megatron,
    };
    let mut lines = TextFile::find(&args.input).map_err(|error| failure(&error))?;
    lines.retain(|file| file.kind == Kind::Jsonl);
    let written = if lines.is_empty() {
        from_source(&open_all(&args.input, args.input_dtype)?, args, target)?
    } else {
        from_lines(&lines, args, target)?
    };
    let Written { documents, tokens } = written;
    if is_json {
        return output::json(&json!({ "output": args.output, "documents": documents, "tokens": tokens }));
    }
    output::say(&format!("{documents} documents, {tokens} tokens in {}", args.output.display()))
}

fn unread(path: &Path, problem: &str) -> Failure {
    Failure::coded(
        "G0901",
        format!("failed to read {}: {problem}", path.display()),
        "docs/errors/G0901.md says what is read",
    )
}

fn from_lines(files: &[TextFile], args: &ConvertArgs, target: Target) -> Result<Written, Failure> {
    let bar = progress(files.iter().map(|file| file.bytes).sum());
    let data_type = args.dtype.unwrap_or(TokenType::Uint16);
    let mut writer = Writer::create(&args.output, target, data_type).map_err(|error| failure(&error))?;
    for file in files {
        push_lines(file, args.bytes, &mut writer, &bar)?;
    }
    bar.finish_and_clear();
    writer.finish().map_err(|error| failure(&error))
}

fn push_lines(file: &TextFile, is_bytes: bool, writer: &mut Writer, bar: &ProgressBar) -> Result<(), Failure> {
    let mut documents = file.documents(0, 0).map_err(|error| failure(&error))?;
    let before = bar.position();
    while let Some(document) = documents.next_document().map_err(|error| failure(&error))? {
        bar.set_position(before + documents.read_on_disk());
        let bad = |problem: &str| unread(&file.path, &format!("line {}: {problem}", document.line));
        let parsed: Line = serde_json::from_slice(&document.bytes).map_err(|error| bad(&error.to_string()))?;
        let tokens = match (parsed.tokens, parsed.text) {
            (Some(tokens), _) if !is_bytes => tokens,
            (_, Some(text)) if is_bytes => text.bytes().map(u64::from).chain([END_OF_BYTES]).collect(),
            (_, Some(_)) => {
                return Err(bad(
                    "it has text and no tokens: make them with `gangline data tokenize`, or take its bytes with --bytes",
                ));
            }
            _ => return Err(bad("it has neither tokens nor input_ids, nor text for --bytes")),
        };
        writer.push(&tokens).map_err(|error| failure(&error))?;
    }
    Ok(())
}

fn from_source(source: &Source, args: &ConvertArgs, target: Target) -> Result<Written, Failure> {
    let data_type = args.dtype.unwrap_or(source.data_type());
    let mut writer = Writer::create(&args.output, target, data_type).map_err(|error| failure(&error))?;
    let bar = progress(source.tokens().saturating_mul(source.data_type().bytes() as u64));
    let mut push = |from: u64, count: u64| -> Result<(), Failure> {
        let mut bytes = vec![0; usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(8)];
        source.copy(from..from + count, Width::Int64, &mut bytes).map_err(|error| failure(&error))?;
        let tokens: Option<Vec<u64>> =
            bytes.as_chunks().0.iter().map(|bytes| u64::try_from(i64::from_le_bytes(*bytes)).ok()).collect();
        let tokens = tokens.ok_or_else(|| unread(source.path(), "a token is negative"))?;
        bar.inc(count.saturating_mul(source.data_type().bytes() as u64));
        writer.push(&tokens).map_err(|error| failure(&error))
    };
    let mut at = 0;
    for length in source.document_lengths() {
        push(at, length)?;
        at += length;
    }
    // Without documents, parts of the stream stand for them.
    while at < source.tokens() {
        let count = COPIED_TOKENS.min(source.tokens() - at);
        push(at, count)?;
        at += count;
    }
    bar.finish_and_clear();
    writer.finish().map_err(|error| failure(&error))
}
