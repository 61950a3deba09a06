//! Coding a checkpoint and adding up bytes and processor time.

use anyhow::{Context as _, Result, ensure};
use gangline_compression::{Coder, Decoder, Effort, Element, Source, decode_tensor, encode_tensor};

use super::state::{Checkpoint, Entry};

/// Repetitions of the copy.
const COPIES: u32 = 5;
/// Bytes that are copied.
const COPIED_MAX: usize = 64 << 20;

/// Bytes and seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    raw: f64,
    coded: f64,
    encoding: f64,
    decoding: f64,
}

impl Sums {
    pub(super) fn ratio(self) -> f64 {
        self.coded / self.raw
    }

    /// Gigabytes of raw data a second.
    pub(super) fn encode_rate(self) -> f64 {
        self.raw / self.encoding / 1e9
    }

    /// Gigabytes of raw data a second.
    pub(super) fn decode_rate(self) -> f64 {
        self.raw / self.decoding / 1e9
    }

    pub(super) fn with(self, other: Sums) -> Sums {
        Sums {
            raw: self.raw + other.raw,
            coded: self.coded + other.coded,
            encoding: self.encoding + other.encoding,
            decoding: self.decoding + other.decoding,
        }
    }

    /// As if nothing had to be stored of it.
    pub(super) fn coded_to_nothing(self) -> Sums {
        Sums { raw: self.raw, ..Sums::default() }
    }
}

/// A count, for arithmetic.
pub(super) fn count(value: usize) -> f64 {
    f64::from(u32::try_from(value).unwrap_or(u32::MAX))
}

/// Codes and decodes all tensors of a kind, and compares.
pub(super) fn code(checkpoint: &Checkpoint, kind: &str, base: Option<&Checkpoint>, effort: Effort) -> Result<Sums> {
    let mut sums = Sums::default();
    let mut decoder = Decoder::new();
    let mut coders = [Element::Bf16, Element::F32].map(|element| (element, Coder::new(element, effort)));
    let largest = checkpoint.of(kind).map(|entry| entry.place.len()).max().unwrap_or(0);
    // Memory is touched before it is timed: a store keeps its buffers too.
    let (mut coded, mut back) = (vec![1; largest + largest / 8 + 1_024], vec![1; largest]);
    for entry in checkpoint.of(kind) {
        let raw = checkpoint.bytes(entry);
        let base = base.map(|base| same_tensor(base, entry)).transpose()?;
        let (_, coder) = coders.iter_mut().find(|(element, _)| *element == entry.element).context("bf16 or fp32")?;
        let back = &mut back[..raw.len()];
        coded.clear();
        let begin = processor_seconds()?;
        encode_tensor(coder, Source { raw, base, columns: entry.columns }, &mut coded)?;
        let middle = processor_seconds()?;
        decode_tensor(&mut decoder, &coded, base, back)?;
        let end = processor_seconds()?;
        ensure!(back == raw, "{} of {kind} came back changed", entry.name);
        sums = sums.with(Sums {
            raw: count(raw.len()),
            coded: count(coded.len()),
            encoding: middle - begin,
            decoding: end - middle,
        });
    }
    Ok(sums)
}

fn same_tensor<'a>(base: &'a Checkpoint, entry: &Entry) -> Result<&'a [u8]> {
    let same = base.of(&entry.kind).find(|other| other.name == entry.name);
    Ok(base.bytes(same.with_context(|| format!("the base has no {}", entry.name))?))
}

/// Gigabytes a second that this thread copies.
pub(super) fn copy_rate(data: &[u8]) -> f64 {
    let data = &data[..data.len().min(COPIED_MAX)];
    let mut to = vec![1_u8; data.len()];
    let copy = |to: &mut [u8]| {
        let begin = processor_seconds().unwrap_or(0.0);
        to.copy_from_slice(data);
        processor_seconds().unwrap_or(0.0) - begin
    };
    let seconds: f64 = (0..COPIES).map(|_| copy(std::hint::black_box(&mut to))).sum();
    count(data.len()) * f64::from(COPIES) / seconds / 1e9
}

/// Seconds that this thread has been on a processor.
fn processor_seconds() -> Result<f64> {
    // The kernel brings its account up to date when the thread yields.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").context("read this thread's CPU time")?;
    let nanoseconds: f64 = text.split(' ').next().unwrap_or_default().parse().context("read this thread's CPU time")?;
    Ok(nanoseconds * 1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_passes_only_while_computing() {
        let begin = processor_seconds().unwrap();
        let sum: u64 = (0..20_000_000_u64).map(std::hint::black_box).sum();
        assert!(sum > 0);
        let middle = processor_seconds().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let end = processor_seconds().unwrap();
        assert!(middle - begin > 1e-4, "{}", middle - begin);
        assert!(end - middle < 0.01, "{}", end - middle);
    }

    #[test]
    fn sums_add_up() {
        let one = Sums { raw: 4.0, coded: 2.0, encoding: 1.0, decoding: 2.0 };
        let both = one.with(one.coded_to_nothing());
        assert_eq!((both.ratio(), one.ratio()), (0.25, 0.5));
        assert!((one.encode_rate() - 4e-9).abs() < 1e-18 && (one.decode_rate() - 2e-9).abs() < 1e-18);
    }
}
