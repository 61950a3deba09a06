//! `gangline data tokenize`: text into a dataset of tokens, on all cores; goes on where a killed run was.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use gangline_base::Bytes;
use gangline_data::TokenType;
use gangline_data::tokenize::{End, FILE_BYTES, Options, tokenize};
use serde_json::json;

use super::{failure, progress, token_type};
use crate::failure::Failure;
use crate::{amount, output};

#[derive(Args)]
pub(crate) struct TokenizeArgs {
    /// Text: a file, or a folder's files, .jsonl (a document a line) or .txt (a document a file), also .gz and .zst
    input: PathBuf,
    /// The folder to make
    output: PathBuf,
    /// A tokenizer.json of Hugging Face's, or the folder that has it
    #[arg(long, value_name = "PATH")]
    tokenizer: PathBuf,
    /// Which key of a line of jsonl has the text
    #[arg(long, value_name = "KEY", default_value = "text")]
    key: String,
    /// The token that ends each document [default: eos_token of tokenizer_config.json beside the tokenizer]
    #[arg(long, value_name = "TOKEN", conflicts_with = "no_end_token")]
    end_token: Option<String>,
    /// End documents by no token
    #[arg(long)]
    no_end_token: bool,
    /// Let the tokenizer add its own special tokens to each document, as it does for a prompt
    #[arg(long)]
    special_tokens: bool,
    /// The type to write [default: uint16 if it holds the vocabulary, else uint32]
    #[arg(long, value_name = "TYPE", value_parser = token_type)]
    dtype: Option<TokenType>,
    /// Threads that make tokens [default: one for each core]
    #[arg(long, value_name = "N", value_parser = amount::positive::<NonZeroU32>)]
    threads: Option<NonZeroU32>,
    /// End a file of tokens at this size; a killed run goes on behind the last one that it ended
    #[arg(long, value_name = "BYTES", default_value_t = FILE_BYTES, value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    file_bytes: u64,
}

pub(crate) fn run(args: &TokenizeArgs, is_json: bool) -> Result<(), Failure> {
    let end = match (&args.end_token, args.no_end_token) {
        (Some(token), _) => End::Token(token.clone()),
        (None, true) => End::None,
        (None, false) => End::OfTokenizer,
    };
    let options = Options {
        input: args.input.clone(),
        output: args.output.clone(),
        tokenizer: args.tokenizer.clone(),
        key: args.key.clone(),
        end,
        adds_special: args.special_tokens,
        data_type: args.dtype,
        threads: args.threads.unwrap_or_else(cores),
        file_bytes: args.file_bytes,
    };
    let began = Instant::now();
    let bar = progress(0);
    let made = tokenize(&options, &mut |at| {
        bar.set_length(at.bytes);
        bar.set_position(at.read);
    });
    bar.finish_and_clear();
    let made = made.map_err(|error| failure(&error))?;
    let (written, resumed) = (made.written, made.resumed);
    let seconds = began.elapsed().as_secs_f64();
    let rate = (written.tokens - resumed.tokens) as f64 / seconds;
    if is_json {
        return output::json(&json!({
            "output": args.output,
            "documents": written.documents,
            "tokens": written.tokens,
            "dtype": made.data_type.name(),
            "vocabulary": made.vocabulary,
            "resumed_documents": resumed.documents,
            "resumed_tokens": resumed.tokens,
            "seconds": seconds,
            "tokens_per_second": rate,
            "kind": "measured",
        }));
    }
    if resumed.documents > 0 {
        output::tell(&format!("went on behind {} documents of an earlier run", resumed.documents));
    }
    let bytes = Bytes(written.tokens.saturating_mul(made.data_type.bytes() as u64));
    output::say(&format!(
        "{} documents, {} tokens of {} ({bytes}) in {}",
        written.documents,
        written.tokens,
        made.data_type.name(),
        args.output.display()
    ))?;
    output::tell(&format!("{rate:.0} tokens/s on {} threads (measured)", options.threads));
    Ok(())
}

/// As many as there are cores, if the data's threads may be as many.
fn cores() -> NonZeroU32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let threads = u32::try_from(cores).unwrap_or(u32::MAX).min(gangline_data::THREADS_MAX);
    NonZeroU32::new(threads).unwrap_or(NonZeroU32::MIN)
}
