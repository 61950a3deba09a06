//! `gangline data`: looks at token datasets, checks, converts and measures them. Needs no control plane.

mod bench;
mod cache;
mod convert;
mod tokenize;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use gangline_base::{Bytes, with_causes};
use gangline_data::{Error, Format, Source, TokenType, is_remote, unpacked_folder};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

#[cfg(feature = "demo")]
pub(crate) use cache::list_folder as list_cache;

use crate::failure::Failure;
use crate::output;

#[derive(Subcommand)]
pub(crate) enum DataCommand {
    /// Say what a dataset holds: format, tokens, documents, samples
    Inspect(InspectArgs),
    /// Read all of a dataset: compare checksums, and tokens with a vocabulary
    Verify(VerifyArgs),
    /// Make tokens of text: jsonl or plain, on all cores; goes on where a killed run was
    Tokenize(tokenize::TokenizeArgs),
    /// Write a dataset anew: from jsonl, or from any format that is read, into Gangline's with checksums or Megatron's
    Convert(convert::ConvertArgs),
    /// Fetch a dataset from S3 or HTTPS into this node's cache, once for all programs
    Warm(cache::WarmArgs),
    /// Say what this node's cache holds, and what is in use
    Cache(cache::CacheArgs),
    /// Measure how fast batches of a dataset are filled here
    Bench(bench::BenchArgs),
}

/// A dataset.
#[derive(Args)]
struct Place {
    /// A file or folder of tokens, or s3://bucket/folder or https://host/folder, which are read through this node's cache
    path: PathBuf,
    /// The type of raw tokens, which no header says: uint8, uint16, uint32, int32 or int64
    #[arg(long, value_name = "TYPE", value_parser = token_type)]
    dtype: Option<TokenType>,
}

#[derive(Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    place: Place,
    /// Tokens of a sample
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, value_parser = clap::value_parser!(u64).range(1..=16_777_216))]
    sequence_length: u64,
}

#[derive(Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    place: Place,
    /// Refuse tokens that aren't below this
    #[arg(long, value_name = "TOKENS")]
    vocabulary: Option<u64>,
}

pub(crate) fn run(command: &DataCommand, is_json: bool) -> Result<(), Failure> {
    match command {
        DataCommand::Inspect(args) => inspect(args, is_json),
        DataCommand::Verify(args) => verify(args, is_json),
        DataCommand::Tokenize(args) => tokenize::run(args, is_json),
        DataCommand::Convert(args) => convert::run(args, is_json),
        DataCommand::Warm(args) => cache::warm(args, is_json),
        DataCommand::Cache(args) => cache::list(args, is_json),
        DataCommand::Bench(args) => bench::run(args, is_json),
    }
}

fn inspect(args: &InspectArgs, is_json: bool) -> Result<(), Failure> {
    let source = args.place.open()?;
    let samples = source.tokens().saturating_sub(1) / args.sequence_length;
    let id: String = source.id().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut first = vec![0; usize::try_from(source.tokens().min(8)).unwrap_or(0) * 8];
    source.copy(0..source.tokens().min(8), gangline_data::Width::Int64, &mut first).map_err(|error| failure(&error))?;
    let first: Vec<i64> = first.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    if is_json {
        return output::json(&json!({
            "path": source.path(),
            "format": format_name(source.format()),
            "dtype": source.data_type().name(),
            "files": source.files(),
            "tokens": source.tokens(),
            "documents": source.documents(),
            "has_checksums": source.has_checksums(),
            "sequence_length": args.sequence_length,
            "samples": samples,
            "first_tokens": first,
            "id": id,
        }));
    }
    let bytes = Bytes(source.tokens().saturating_mul(source.data_type().bytes() as u64));
    let documents = source.documents().map_or("not said by the format".to_owned(), |count| count.to_string());
    let sums = if source.has_checksums() { "of each MiB, compared when it is first read" } else { "none" };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let rows = vec![
        row("format", format_name(source.format()).to_owned()),
        row("tokens", format!("{} of {}, {bytes}", source.tokens(), source.data_type().name())),
        row("files", source.files().to_string()),
        row("documents", documents),
        row("checksums", sums.to_owned()),
        row("samples", format!("{samples} of {} tokens", args.sequence_length)),
        row("begins with", format!("{first:?}")),
        row("id", id),
    ];
    output::print(&output::table(&["what", "value"], rows))
}

fn verify(args: &VerifyArgs, is_json: bool) -> Result<(), Failure> {
    let source = open_all(&args.place.path, args.place.dtype)?;
    let bytes = source.tokens().saturating_mul(source.data_type().bytes() as u64);
    let bar = progress(bytes);
    let verified = source.verify(args.vocabulary, &mut |more| bar.inc(more));
    bar.finish_and_clear();
    verified.map_err(|error| failure(&error))?;
    if is_json {
        let has_checksums = source.has_checksums();
        return output::json(
            &json!({ "tokens": source.tokens(), "has_checksums": has_checksums, "vocabulary": args.vocabulary }),
        );
    }
    let sums = if source.has_checksums() {
        "all checksums are right"
    } else {
        "every byte can be read; the format has no checksums"
    };
    let vocabulary = args.vocabulary.map_or(String::new(), |count| format!("; all are in a vocabulary of {count}"));
    output::say(&format!("{} tokens: {sums}{vocabulary}", source.tokens()))
}

impl Place {
    fn open(&self) -> Result<Source, Failure> {
        open(&self.path, self.dtype)
    }
}

/// Opens a dataset of which all is read: a remote one is fetched first, several ranges at a time.
fn open_all(path: &Path, data_type: Option<TokenType>) -> Result<Source, Failure> {
    if !is_remote(path) {
        return open(path, data_type);
    }
    Source::open_fetched(cache::fetch(path)?, data_type).map_err(|error| failure(&error))
}

/// Opens a dataset; of a remote one, parts are fetched as they are read.
fn open(path: &Path, data_type: Option<TokenType>) -> Result<Source, Failure> {
    let opened = if is_remote(path) {
        Source::open_fetched(cache::find(path)?, data_type)
    } else {
        match cache::folder() {
            Some(root) => Source::open_unpacking(path, data_type, &unpacked_folder(&root)),
            None => Source::open(path, data_type),
        }
    };
    opened.map_err(|error| failure(&error))
}

pub(crate) fn failure(error: &Error) -> Failure {
    let hint = match error {
        Error::Refused { option: "end_token", .. } => "say it with --end-token '<|endoftext|>', or --no-end-token",
        Error::Refused { option: "cache_limit", .. } => "say how much it may have with --cache-limit",
        Error::Remote { url, .. } if url.starts_with("https://") => {
            "authorities whose certificates are trusted are this machine's, or those of the file that SSL_CERT_FILE names"
        }
        Error::Remote { url, .. } if url.starts_with("http://") => {
            "the server has to say an ETag or Last-Modified and to answer ranges, as nginx, Apache and Caddy do of files"
        }
        Error::Remote { .. } => {
            "settings for S3 are those of AWS's own tools: AWS_REGION, AWS_ENDPOINT_URL, AWS_PROFILE and ~/.aws"
        }
        Error::Refused { option: "data_type", .. } => "say it with --dtype uint16, or another type",
        _ => "docs/reference/data.md has the formats and what is checked of each",
    };
    Failure::coded("G0901", format!("failed to {}", with_causes(error)), hint)
}

fn token_type(name: &str) -> Result<TokenType, String> {
    TokenType::of_name(name).ok_or_else(|| "it is one of uint8, uint16, uint32, int32 and int64".to_owned())
}

fn format_name(format: Format) -> &'static str {
    match format {
        Format::Flat => "flat",
        Format::Megatron => "megatron",
        Format::Rows => "mds or litdata",
        Format::Gangline => "gangline",
        Format::Memory => "memory",
    }
}

/// A bar on stderr, which draws itself on terminals only.
fn progress(bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(bytes);
    style.map(|style| bar.clone().with_style(style)).unwrap_or(bar)
}
