//! Sources as the streams that Megatron-Core reads, one of them or a blend.

use std::sync::Arc;

use crate::cursor::{Options, Tables};
use crate::error::Error;
use crate::order::{Blend, MEGATRON_MAX, Megatron, MegatronOrder, normalized, share_of};
use crate::source::Source;

/// Makes the sources the streams that Megatron-Core reads, and returns the order of their samples.
///
/// # Errors
/// When an option makes no sense with this order, or a source has no such stream.
pub(crate) fn reorder(sources: &mut [Source], order: Megatron, options: &Options) -> Result<Tables, Error> {
    if options.part.is_some() || options.packs_documents || options.epochs != Some(1) || !options.stages.is_empty() {
        return Err(refused("Megatron's order has a split and passes of its own, and packs nothing".to_owned()));
    }
    let seed =
        u32::try_from(options.seed).map_err(|_| refused(format!("seed {} has more than 32 bits", options.seed)))?;
    let shares = shares(order, &options.blend, sources.len())?;
    let wanted = |source: usize| match &shares {
        Some(shares) => Some(shares.built[source]),
        // Each source of a blend without weights is read once.
        None => order.samples.filter(|_| sources.len() == 1),
    };
    let wanted: Vec<Option<u64>> = (0..sources.len()).map(wanted).collect();
    let each = sources.iter_mut().zip(wanted);
    let samples =
        each.map(|(source, wanted)| reorder_one(source, order, wanted, (options.sequence_length.get(), seed)));
    let samples = samples.collect::<Result<Vec<_>, Error>>()?;
    let counts: Vec<u64> = samples.iter().map(|table| table.len() as u64).collect();
    let blend = match shares {
        Some(Shares { weights, size, .. }) => Some(of_weights(&weights, size)?),
        None if sources.len() == 1 => None,
        None => Some(of_counts(&counts, order.samples)?),
    };
    if let Some(blend) = &blend {
        let is_short = |source: &usize| blend.drawn(*source) > counts[*source];
        if let Some(source) = (0..sources.len()).find(is_short) {
            let (path, drawn, there) = (sources[source].path().display(), blend.drawn(source), counts[source]);
            let problem = format!("the blend takes {drawn} samples of {path}, which is read for {there}");
            return Err(refused(format!("{problem}: give the run's surplus, or a larger one")));
        }
    }
    Ok(Tables { blend, samples })
}

/// How many samples of each source a blend with weights takes.
struct Shares {
    /// Weights whose sum is one.
    weights: Vec<f64>,
    /// Samples of the blend.
    size: u64,
    /// Samples for which each source is read, with the surplus.
    built: Vec<u64>,
}

fn shares(order: Megatron, weights: &[f64], sources: usize) -> Result<Option<Shares>, Error> {
    if weights.is_empty() {
        return Ok(None);
    }
    if weights.len() != sources || !weights.iter().all(|weight| weight.is_finite() && *weight > 0.0) {
        return Err(refused("Megatron's blends have a weight above 0 for each source".to_owned()));
    }
    let samples = order.samples.ok_or_else(|| refused("weights need the run's samples".to_owned()))?;
    let weights = normalized(weights);
    let shares: Vec<(u64, u64)> = weights.iter().map(|weight| share_of(samples, *weight, order.surplus)).collect();
    let size = shares.iter().fold(0_u64, |sum, (target, _)| sum.saturating_add(*target));
    Ok(Some(Shares { weights, size, built: shares.into_iter().map(|(_, built)| built).collect() }))
}

fn of_weights(weights: &[f64], size: u64) -> Result<Blend, Error> {
    if size > MEGATRON_MAX {
        return Err(refused(format!("{size} samples of a blend are more than {MEGATRON_MAX}")));
    }
    Ok(Blend::of_weights(&normalized(weights), size))
}

/// A blend in which sources count by their samples.
#[expect(clippy::cast_precision_loss, reason = "as Megatron-Core counts")]
fn of_counts(counts: &[u64], samples: Option<u64>) -> Result<Blend, Error> {
    let all: u64 = counts.iter().sum();
    match samples {
        Some(samples) => {
            let weights: Vec<f64> = counts.iter().map(|count| *count as f64).collect();
            of_weights(&weights, samples.min(all))
        }
        None if all > MEGATRON_MAX => Err(refused(format!("{all} samples of a blend are more than {MEGATRON_MAX}"))),
        None => Ok(Blend::of_all(counts)),
    }
}

/// Makes a source the stream that Megatron-Core reads, and returns the order of its samples.
fn reorder_one(
    source: &mut Source,
    order: Megatron,
    wanted: Option<u64>,
    (sequence_length, seed): (u32, u32),
) -> Result<Arc<[u32]>, Error> {
    let of = |problem: String| refused(format!("{}: {problem}", source.path().display()));
    let Some(count) = source.documents() else {
        return Err(of("it doesn't say where its documents end".to_owned()));
    };
    let documents = order.documents(count);
    if documents.is_empty() || u64::from(documents.end) > count {
        let (first, end) = (documents.start, documents.end);
        return Err(of(format!("documents {first} to {end} aren't among its {count}")));
    }
    let lengths = source.document_lengths_from(documents.start.into()).take(documents.len());
    let order = MegatronOrder::new(&documents, lengths.sum(), wanted, sequence_length, seed);
    let order =
        order.ok_or_else(|| of(format!("it gives no sample in Megatron's order, or more than {MEGATRON_MAX}")))?;
    source.reorder(&order.documents)?;
    Ok(order.samples.into())
}

fn refused(problem: String) -> Error {
    Error::refused("shuffle", problem)
}
