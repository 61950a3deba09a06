//! Range asymmetric numeral systems (Duda 2013, arXiv 1311.2540) over a byte plane, with a table for each
//! context.
//!
//! Eight interleaved states share one stream of 16-bit words (Giesen 2014, "Interleaved entropy coders",
//! arXiv 1402.3392). Encoding runs from the last symbol to the first, so that decoding runs forwards.
//! Divisions by a frequency are multiplications by its reciprocal (Alverson 1991). A state is at least 2^15
//! and below 2^31; the initial states are 2^15, to which decoding must return. Layout: the tables; the eight
//! states; the words.

use crate::Error;
use crate::error::malformed;
use crate::histogram::Histogram;
use crate::wire::Reader;

/// Binary logarithm of the sum of a table's frequencies.
const SCALE_BITS: u32 = 12;
/// The sum of a table's frequencies.
const SCALE: u32 = 1 << SCALE_BITS;
/// Interleaved states.
const LANES: usize = 8;
/// The smallest state.
const LEAST: u32 = 1 << 15;
/// A frequency below this takes one byte in a table, others take two.
const SHORT: u16 = 128;
/// Bytes of a coded plane besides tables and words: the eight states.
pub(crate) const OVERHEAD_BYTES: u32 = 4 * 8;

/// The expected frequency of each symbol, in 4096ths. They sum to 4096.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frequencies([u16; 256]);

impl Frequencies {
    /// Returns the frequencies nearest to a histogram with at least one symbol.
    pub(crate) fn nearest(histogram: &Histogram) -> Frequencies {
        let total = u64::from(histogram.total());
        let scaled = histogram.counts.map(|count| {
            let nearest = (u64::from(count) * u64::from(SCALE) + total / 2) / total.max(1);
            let nearest = u16::try_from(nearest).expect("a part of 4096");
            if count > 0 { nearest.max(1) } else { 0 }
        });
        let mut frequencies = Frequencies(scaled);
        frequencies.settle(histogram);
        frequencies
    }

    /// Adds or subtracts single 4096ths, where that costs least, until the sum is 4096.
    fn settle(&mut self, histogram: &Histogram) {
        let sum = |frequencies: &Frequencies| frequencies.0.iter().map(|frequency| u32::from(*frequency)).sum::<u32>();
        // Each symbol was rounded by at most one, so the sum is off by at most 256.
        for _ in 0..256 {
            let sum = sum(self);
            if sum == SCALE {
                break;
            }
            let is_over = sum > SCALE;
            let loss = |symbol: &usize| {
                let (count, frequency) = (f64::from(histogram.counts[*symbol]), f64::from(self.0[*symbol]));
                if is_over { count / (frequency - 0.5) } else { -count / (frequency + 0.5) }
            };
            let may = |symbol: &usize| self.0[*symbol] > u16::from(is_over);
            let symbol = (0..256).filter(may).min_by(|a, b| loss(a).total_cmp(&loss(b)));
            let symbol = symbol.expect("256 symbols fit in 4096");
            self.0[symbol] = if is_over { self.0[symbol] - 1 } else { self.0[symbol] + 1 };
        }
        assert_eq!(sum(self), SCALE, "frequencies are settled within 256 steps");
    }

    /// Writes the set of symbols, as 32 bytes of bits or as a list if that is shorter; then their frequencies
    /// less one.
    fn write(&self, out: &mut Vec<u8>) {
        let used = (0..=255_u8).filter(|symbol| self.0[usize::from(*symbol)] > 0);
        let count = u8::try_from(used.clone().count() - 1).expect("1 to 256 symbols occur");
        out.push(count);
        if count < 32 {
            out.extend(used.clone());
        } else {
            let mut bits = [0_u8; 32];
            used.clone().for_each(|symbol| bits[usize::from(symbol / 8)] |= 1 << (symbol % 8));
            out.extend(bits);
        }
        for symbol in used {
            let less_one = self.0[usize::from(symbol)] - 1;
            let [low, high] = less_one.to_le_bytes();
            if less_one < SHORT {
                out.push(low);
            } else {
                // At most five bits of the high byte are used: its highest bit distinguishes the two forms.
                out.extend([high | 0x80, low]);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Frequencies, Error> {
        let count = reader.byte()?;
        let mut used = [false; 256];
        if count < 32 {
            reader.take(usize::from(count) + 1)?.iter().for_each(|symbol| used[usize::from(*symbol)] = true);
        } else {
            let bits = reader.take(32)?;
            used.iter_mut().enumerate().for_each(|(symbol, used)| *used = bits[symbol / 8] >> (symbol % 8) & 1 == 1);
        }
        let mut frequencies = Frequencies([0; 256]);
        for (_, frequency) in used.iter().zip(&mut frequencies.0).filter(|(used, _)| **used) {
            let first = reader.byte()?;
            let less_one =
                if first < 0x80 { u16::from(first) } else { u16::from_be_bytes([first & 0x7f, reader.byte()?]) };
            *frequency = (less_one & 0x0fff) + 1;
        }
        let sum: u32 = frequencies.0.iter().map(|frequency| u32::from(*frequency)).sum();
        if sum == SCALE { Ok(frequencies) } else { Err(malformed("its frequencies don't sum to 4096")) }
    }

    fn encoding(&self) -> [Step; 256] {
        let mut start = 0;
        self.0.map(|frequency| {
            let step = Step::new(start, u32::from(frequency));
            start += u32::from(frequency);
            step
        })
    }

    /// Returns the table indexed by the lowest bits of a state: the symbol in the low byte, its frequency
    /// less one, and the offset within it.
    fn decoding(&self) -> impl Iterator<Item = u32> + '_ {
        let spread = |(symbol, frequency): (u32, &u16)| {
            let frequency = u32::from(*frequency);
            (0..frequency).map(move |place| symbol | (frequency - 1) << 8 | place << 20)
        };
        (0..256).zip(&self.0).flat_map(spread)
    }
}

/// Precomputed constants to encode one symbol without a division.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    /// A state at or above this first emits a word.
    limit: u32,
    reciprocal: u32,
    bias: u16,
    complement: u16,
    shift: u32,
}

impl Step {
    fn new(start: u32, frequency: u32) -> Step {
        let small = |value: u32| u16::try_from(value).expect("at most 2 x 4096");
        let limit = frequency << 19;
        let complement = small(SCALE - frequency);
        if frequency < 2 {
            // The quotient is the state less one, which the bias corrects.
            return Step { limit, reciprocal: u32::MAX, shift: 0, bias: small(start + SCALE - 1), complement };
        }
        let shift = (frequency - 1).ilog2() + 1;
        let reciprocal = (1_u64 << (shift + 31)).div_ceil(u64::from(frequency));
        let reciprocal = u32::try_from(reciprocal).expect("a quotient below 2 to 32");
        Step { limit, reciprocal, shift: shift - 1, bias: small(start), complement }
    }

    #[inline(always)]
    fn take_in(&self, state: u32) -> u32 {
        let product = (u64::from(state) * u64::from(self.reciprocal)) >> 32;
        let [a, b, c, d, ..] = product.to_le_bytes();
        let quotient = u32::from_le_bytes([a, b, c, d]) >> (self.shift & 31);
        state.wrapping_add(u32::from(self.bias)).wrapping_add(quotient.wrapping_mul(u32::from(self.complement)))
    }
}

/// Appends the coded plane: symbol `i` with the table `contexts[i]`. `memory` is reused.
pub(crate) fn encode(
    (plane, contexts): (&[u8], &[u8]),
    tables: &[Frequencies],
    memory: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    tables.iter().for_each(|table| table.write(out));
    let steps: Vec<Step> = tables.iter().flat_map(Frequencies::encoding).collect();
    // A symbol emits at most one word. Words are written from the back, so that they can be read from the
    // front.
    memory.resize(2 * plane.len(), 0);
    let words = memory.as_chunks_mut::<2>().0;
    let mut states = [LEAST; LANES];
    let mut next = words.len();
    let mut encode = |state: &mut u32, symbol: u8, context: u8| {
        let step = &steps[usize::from(context) << 8 | usize::from(symbol)];
        let [low, high, ..] = state.to_le_bytes();
        let is_full = *state >= step.limit;
        words[next - 1] = [low, high];
        next -= usize::from(is_full);
        *state = step.take_in(if is_full { *state >> 16 } else { *state });
    };
    let (eights, rest) = plane.as_chunks::<LANES>();
    let (contexts, rest_contexts) = contexts.as_chunks::<LANES>();
    for ((symbol, context), state) in rest.iter().zip(rest_contexts).zip(&mut states).rev() {
        encode(state, *symbol, *context);
    }
    for (symbols, contexts) in eights.iter().zip(contexts).rev() {
        for lane in (0..LANES).rev() {
            encode(&mut states[lane], symbols[lane], contexts[lane]);
        }
    }
    out.extend(states.iter().flat_map(|state| state.to_le_bytes()));
    out.extend(words[next..].as_flattened());
}

/// A coded plane being decoded.
pub(crate) struct Decoding<'a> {
    table: &'a [u32],
    words: &'a [[u8; 2]],
    next: usize,
    states: [u32; LANES],
}

impl<'a> Decoding<'a> {
    /// Reads this many tables and the states; `memory` is reused.
    ///
    /// # Errors
    /// If they aren't what [`encode`] writes.
    pub(crate) fn begin(mut reader: Reader<'a>, tables: usize, memory: &'a mut Vec<u32>) -> Result<Self, Error> {
        memory.clear();
        for _ in 0..tables {
            memory.extend(Frequencies::read(&mut reader)?.decoding());
        }
        let mut states = [0; LANES];
        for state in &mut states {
            *state = reader.u32()?;
        }
        if states.iter().any(|state| !(LEAST..LEAST << 16).contains(state)) {
            return Err(malformed("an rANS state is out of range"));
        }
        let (words, rest) = reader.rest().as_chunks();
        if !rest.is_empty() {
            return Err(malformed("it ends within a word"));
        }
        Ok(Decoding { table: memory, words, next: 0, states })
    }

    /// Decodes the next symbol, from the state `lane`, with the table `context`.
    #[inline(always)]
    fn symbol(&mut self, lane: usize, context: u8) -> u8 {
        let state = self.states[lane];
        let entry = self.table[usize::from(context) << SCALE_BITS | (state & (SCALE - 1)) as usize];
        let frequency = ((entry >> 8) & (SCALE - 1)) + 1;
        let given = frequency * (state >> SCALE_BITS) + (entry >> 20);
        let word = self.words.get(self.next).copied().unwrap_or_default();
        let is_low = given < LEAST;
        self.next += usize::from(is_low);
        self.states[lane] = if is_low { given << 16 | u32::from(u16::from_le_bytes(word)) } else { given };
        let [symbol, ..] = entry.to_le_bytes();
        symbol
    }

    /// Decodes `plane`, whose contexts are known.
    ///
    /// # Errors
    /// If a plane of this length doesn't end where the bytes do.
    pub(crate) fn run(mut self, plane: &mut [u8], contexts: &[u8]) -> Result<(), Error> {
        let (eights, rest) = plane.as_chunks_mut::<LANES>();
        let (contexts, rest_contexts) = contexts.as_chunks::<LANES>();
        for (symbols, contexts) in eights.iter_mut().zip(contexts) {
            for lane in 0..LANES {
                symbols[lane] = self.symbol(lane, contexts[lane]);
            }
        }
        for (lane, (symbol, context)) in rest.iter_mut().zip(rest_contexts).enumerate() {
            *symbol = self.symbol(lane, *context);
        }
        self.end()
    }

    /// Decodes `plane`, where each context follows from the symbols before it: `context` is called with the
    /// last one.
    ///
    /// # Errors
    /// As [`Decoding::run`].
    pub(crate) fn follow(mut self, plane: &mut [u8], mut context: impl FnMut(Option<u8>) -> u8) -> Result<(), Error> {
        let mut last = None;
        for (place, symbol) in plane.iter_mut().enumerate() {
            *symbol = self.symbol(place % LANES, context(last));
            last = Some(*symbol);
        }
        self.end()
    }

    fn end(&self) -> Result<(), Error> {
        let is_whole = self.next == self.words.len() && self.states.iter().all(|state| *state == LEAST);
        if is_whole { Ok(()) } else { Err(malformed("its rANS stream has another length")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(counts: &[(u8, u32)]) -> Histogram {
        let mut histogram = Histogram::EMPTY;
        counts.iter().for_each(|(symbol, count)| histogram.counts[usize::from(*symbol)] = *count);
        histogram
    }

    #[test]
    fn a_state_takes_in_and_gives_back_every_frequency() {
        for frequency in 1..=SCALE {
            let start = SCALE - frequency;
            let step = Step::new(start, frequency);
            for state in [LEAST, LEAST + 1, 99_999, 1 << 20, step.limit - 1, step.limit / 2 + 7] {
                let state = state.min(step.limit - 1);
                let (quotient, rest) = (state / frequency, state % frequency);
                assert_eq!(step.take_in(state), quotient * SCALE + start + rest, "{state} of {frequency}");
            }
        }
    }

    #[test]
    fn frequencies_sum_to_the_scale_and_keep_every_symbol() {
        let many: Vec<(u8, u32)> = (0..=255).map(|symbol| (symbol, 1)).collect();
        let rare: Vec<(u8, u32)> = (0..=255).map(|symbol| (symbol, if symbol == 9 { 1 << 20 } else { 1 })).collect();
        for counts in [&many[..], &rare, &[(7, 3)], &[(0, 1), (255, 1 << 20)], &[(1, 5), (2, 5), (3, 5)]] {
            let frequencies = Frequencies::nearest(&histogram(counts));
            assert_eq!(frequencies.0.iter().map(|frequency| u32::from(*frequency)).sum::<u32>(), SCALE);
            assert!(counts.iter().all(|(symbol, _)| frequencies.0[usize::from(*symbol)] > 0));
            let mut written = Vec::new();
            frequencies.write(&mut written);
            let mut reader = Reader::new(&written);
            assert_eq!(Frequencies::read(&mut reader).unwrap(), frequencies);
            assert!(reader.end().is_ok());
        }
    }

    #[test]
    fn frequencies_of_another_sum_are_refused() {
        let mut written = Vec::new();
        Frequencies::nearest(&histogram(&[(1, 5), (2, 6)])).write(&mut written);
        *written.last_mut().unwrap() ^= 1;
        assert!(Frequencies::read(&mut Reader::new(&written)).is_err());
    }

    #[test]
    fn planes_of_every_length_come_back_with_two_tables() {
        for length in (0..40).chain([1_000, 4_096]) {
            let plane: Vec<u8> = (0..length).map(|i: u32| (i * i % 7).to_le_bytes()[0]).collect();
            let contexts: Vec<u8> = (0..length).map(|i| u8::from(i % 3 == 0)).collect();
            let table = Frequencies::nearest(&histogram(&[(0, 9), (1, 5), (2, 5), (4, 1), (3, 1)]));
            let other = Frequencies::nearest(&histogram(&[(0, 1), (1, 1), (2, 1), (4, 1), (3, 1), (6, 2)]));
            let mut coded = Vec::new();
            encode((&plane, &contexts), &[table, other], &mut Vec::new(), &mut coded);
            let mut back = vec![0; plane.len()];
            let decode = |coded: &[u8], back: &mut [u8]| {
                Decoding::begin(Reader::new(coded), 2, &mut Vec::new())?.run(back, &contexts)
            };
            decode(&coded, &mut back).unwrap();
            assert_eq!(back, plane);
            coded.extend([0, 0]);
            assert!(decode(&coded, &mut back).is_err());
        }
    }
}
