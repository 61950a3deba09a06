//! `gangline data bench`: fills batches of a dataset for a while, and says how fast.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use clap::Args;
use gangline_base::Bytes;
use gangline_data::order::Shuffle;
use gangline_data::{Loader, Options, Room, Width};
use serde_json::json;

use super::{Place, failure};
use crate::failure::Failure;
use crate::{amount, output};

#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    place: Place,
    /// Tokens of a sample
    #[arg(long, value_name = "TOKENS", default_value = "2048", value_parser = amount::positive::<NonZeroU32>)]
    sequence_length: NonZeroU32,
    /// Samples of a batch
    #[arg(long, value_name = "SAMPLES", default_value = "32", value_parser = amount::positive::<NonZeroU32>)]
    batch: NonZeroU32,
    /// Threads that fill a batch
    #[arg(long, value_name = "N", default_value = "1", value_parser = amount::positive::<NonZeroU32>)]
    threads: NonZeroU32,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Tokens that the ranks of a node need in a second together: their number times `tokens_per_second_per_accelerator` of `gangline plan`. Less than
    /// that is a failure
    #[arg(long, value_name = "TOKENS_PER_SECOND", value_parser = positive)]
    needs: Option<f64>,
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "a number above 0, such as 250000".to_owned())
}

pub(crate) fn run(args: &BenchArgs, is_json: bool) -> Result<(), Failure> {
    let began = Instant::now();
    let source = args.place.open()?;
    let stored = source.data_type().bytes() as u64;
    let options = Options {
        sequence_length: args.sequence_length,
        global_batch: args.batch,
        seed: 1,
        shuffle: Shuffle::default(),
        part: None,
        stages: Vec::new(),
        blend: Vec::new(),
        epochs: None,
        rank: 0,
        world_size: NonZeroU32::MIN,
        threads: args.threads,
        packs_documents: false,
    };
    let mut loader = Loader::new(vec![source], options).map_err(|error| failure(&error))?;
    let tokens = u64::from(args.batch.get()) * u64::from(args.sequence_length.get());
    let room =
        usize::try_from(tokens * 8).map_err(|_| Failure::local("failed to make room for a batch", "use less"))?;
    let (mut inputs, mut labels) = (vec![0; room], vec![0; room]);
    let mut fill = |loader: &mut Loader| {
        let mut room = Room { width: Width::Int64, inputs: &mut inputs, labels: &mut labels, positions: &mut [] };
        loader.fill(&mut room).map_err(|error| failure(&error))
    };
    fill(&mut loader)?;
    let first = began.elapsed();
    let (began, limit) = (Instant::now(), Duration::from_secs(args.seconds));
    let mut batches = 0_u64;
    while began.elapsed() < limit {
        fill(&mut loader)?;
        batches += 1;
    }
    let seconds = began.elapsed().as_secs_f64();
    let rate = (batches * u64::from(args.batch.get())) as f64 / seconds;
    let token_rate = (batches * tokens) as f64 / seconds;
    if is_json {
        output::json(&json!({
            "first_batch_seconds": first.as_secs_f64(),
            "samples_per_second": rate,
            "tokens_per_second": token_rate,
            "bytes_read_per_second": token_rate * stored as f64,
            "needed_tokens_per_second": args.needs,
            "kind": "measured",
        }))?;
    } else {
        let read = Bytes(batches.saturating_mul(tokens).saturating_mul(stored) / args.seconds);
        output::say(&format!(
            "first batch after {}; then {rate:.0} samples/s, {token_rate:.3e} tokens/s, {read}/s read (measured, inputs and labels as int64)",
            output::duration(first)
        ))?;
    }
    args.needs.map_or(Ok(()), |needs| judge(token_rate, needs, is_json))
}

/// Says whether a node gives its ranks the tokens that they need.
fn judge(rate: f64, needs: f64, is_json: bool) -> Result<(), Failure> {
    let times = rate / needs;
    if times < 1.0 {
        let message = format!("this node gives {:.0} % of the {needs:.3e} tokens/s that are needed", times * 100.0);
        let hint = "try more --threads, a faster disk, or gangline data warm beforehand for a remote dataset";
        return Err(Failure::local(message, hint));
    }
    if is_json {
        return Ok(());
    }
    output::say(&format!("that is {times:.1} times the {needs:.3e} tokens/s that are needed"))
}
