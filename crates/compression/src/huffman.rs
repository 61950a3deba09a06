//! Huffman coding of a byte plane (Huffman 1952): canonical codes of at most [`CODE_BITS_MAX`] bits, in four streams.
//!
//! The plane is cut into four quarters that are coded on their own, so that a processor decodes four symbols at once; zstd
//! (RFC 8878, section 4.2.2) and ZipNN do the same. Bits fill each byte from the lowest up. Layout: the first and last
//! symbol used; the code lengths of all between, two to a byte; lengths of the first three streams; the streams.

use crate::Error;
use crate::error::malformed;
use crate::histogram::Histogram;
use crate::wire::{Reader, length32};

/// The longest code: five of them fit in a word with the rest of a begun byte, and the decoding table in a
/// quarter of the L1 cache.
pub(crate) const CODE_BITS_MAX: usize = 11;
/// Entries of the decoding table.
const TABLE: usize = 1 << CODE_BITS_MAX;
/// Codes read for each load of input: 5 x 11 bits and 7 of a begun byte make 62.
const CODES_PER_LOAD: usize = 5;
/// Streams of a plane.
const STREAMS: usize = 4;
/// Counts of 32 bits can't give a longer code.
const DEPTH_MAX: usize = 64;

/// Code lengths by symbol, 0 for symbols that don't occur.
type Lengths = [u8; 256];

/// Returns the lengths of optimal codes, shortened to the limit. There must be at least two symbols.
fn lengths_for(histogram: &Histogram) -> Lengths {
    let mut leaves: Vec<(u32, u8)> = (0..=255)
        .zip(histogram.counts)
        .filter(|(_, count)| *count > 0)
        .map(|(symbol, count)| (count, symbol))
        .collect();
    leaves.sort_unstable();
    let mut at_depth = depths(&leaves);
    shorten(&mut at_depth);
    let mut lengths = [0; 256];
    // The rarest symbols, which come first, get the longest codes.
    let longest_first = (1..=CODE_BITS_MAX).rev().flat_map(|length| std::iter::repeat_n(length, at_depth[length]));
    for ((_, symbol), length) in leaves.iter().zip(longest_first) {
        lengths[usize::from(*symbol)] = u8::try_from(length).expect("at most 11");
    }
    lengths
}

/// Returns the number of leaves at each depth of the Huffman tree of these counts (ascending), by the method
/// of two queues (van Leeuwen 1976): the two smallest of all unused leaves and nodes are at the heads of the
/// queues.
fn depths(leaves: &[(u32, u8)]) -> [usize; DEPTH_MAX] {
    let count = leaves.len();
    let mut weights: Vec<u64> = leaves.iter().map(|(count, _)| u64::from(*count)).collect();
    let mut parents = vec![0; 2 * count - 1];
    let (mut leaf, mut node) = (0, count);
    for next in count..2 * count - 1 {
        let mut weight = 0;
        for _ in 0..2 {
            let takes_leaf = leaf < count && (node == next || weights[leaf] <= weights[node]);
            let taken = if takes_leaf { &mut leaf } else { &mut node };
            weight += weights[*taken];
            parents[*taken] = next;
            *taken += 1;
        }
        weights.push(weight);
    }
    let mut depth_of = vec![0; 2 * count - 1];
    let mut at_depth = [0; DEPTH_MAX];
    for place in (0..2 * count - 2).rev() {
        depth_of[place] = depth_of[parents[place]] + 1;
        if place < count {
            at_depth[depth_of[place]] += 1;
        }
    }
    at_depth
}

/// Shortens all codes to the limit: of a pair of leaves that is too deep, one takes its parent's place, and
/// the other joins a leaf higher up (ITU-T T.81, figure K.3).
fn shorten(at_depth: &mut [usize; DEPTH_MAX]) {
    for deep in (CODE_BITS_MAX + 1..DEPTH_MAX).rev() {
        while at_depth[deep] > 0 {
            let above = (1..deep - 1).rev().find(|depth| at_depth[*depth] > 0);
            let above = above.expect("256 symbols fit in 11 bits, so a leaf lies higher");
            at_depth[deep] -= 2;
            at_depth[deep - 1] += 1;
            at_depth[above + 1] += 2;
            at_depth[above] -= 1;
        }
    }
}

/// Returns canonical codes by symbol, with their bits reversed, since they are written from the lowest bit
/// up.
///
/// # Errors
/// If the lengths leave codes unused, or need more than there are.
fn codes(lengths: &Lengths) -> Result<[u16; 256], Error> {
    let mut codes = [0; 256];
    let mut next = 0_usize;
    for length in 1..=CODE_BITS_MAX {
        for (symbol, _) in lengths.iter().enumerate().filter(|(_, found)| usize::from(**found) == length) {
            let code = u16::try_from(next).map_err(|_| malformed("its Huffman codes overlap"))?;
            codes[symbol] = code.reverse_bits() >> (16 - length);
            next += 1;
        }
        next = if length < CODE_BITS_MAX { next << 1 } else { next };
    }
    if next == TABLE { Ok(codes) } else { Err(malformed("its Huffman codes aren't complete")) }
}

/// Returns the bits of a plane's codes.
fn code_bits(histogram: &Histogram, lengths: &Lengths) -> u32 {
    let bits = |(count, length): (&u32, &u8)| count * u32::from(*length);
    histogram.counts.iter().zip(lengths).map(bits).sum()
}

/// Returns approximately the bits of a coded plane. There must be at least two symbols.
pub(crate) fn bits(histogram: &Histogram) -> f64 {
    let table = histogram.symbols() / 2 + (STREAMS - 1) * size_of::<u32>();
    f64::from(code_bits(histogram, &lengths_for(histogram))) + f64::from(8 * length32(table))
}

/// Appends the coded plane. There must be at least two different symbols.
pub(crate) fn encode(plane: &[u8], histogram: &Histogram, out: &mut Vec<u8>) {
    let lengths = lengths_for(histogram);
    let codes = codes(&lengths).expect("optimal codes are complete");
    let used = || lengths.iter().enumerate().filter(|(_, length)| **length > 0).map(|(symbol, _)| symbol);
    let (first, last) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
    let byte = |value: usize| u8::try_from(value).expect("a symbol is a byte");
    out.extend([byte(first), byte(last)]);
    out.extend(lengths[first..=last].chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |length| length << 4)));
    let mut table = [0_u32; 256];
    for (entry, (code, length)) in table.iter_mut().zip(codes.iter().zip(&lengths)) {
        *entry = u32::from(*code) | u32::from(*length) << 16;
    }
    let header = out.len();
    let mut end = header + (STREAMS - 1) * size_of::<u32>();
    // Room for the codes, for the last byte of each stream, and for a whole word to be written there.
    let code_bytes = code_bits(histogram, &lengths) as usize / 8;
    out.resize(end + code_bytes + STREAMS * (1 + size_of::<u64>()), 0);
    for (place, quarter) in quarters(plane).into_iter().enumerate() {
        let written = write_stream(quarter, &table, &mut out[end..]);
        end += written;
        if place < STREAMS - 1 {
            out[header + 4 * place..][..4].copy_from_slice(&length32(written).to_le_bytes());
        }
    }
    out.truncate(end);
}

fn quarter_length(length: usize) -> usize {
    length.div_ceil(STREAMS)
}

fn quarters(plane: &[u8]) -> [&[u8]; STREAMS] {
    let quarter = quarter_length(plane.len());
    let mut left = plane;
    [(); STREAMS].map(|()| {
        let (taken, rest) = left.split_at(quarter.min(left.len()));
        left = rest;
        taken
    })
}

/// Writes codes and returns the bytes that they fill. There must be room for them and one more word.
fn write_stream(symbols: &[u8], table: &[u32; 256], out: &mut [u8]) -> usize {
    let (mut word, mut bits, mut end) = (0_u64, 0_u32, 0);
    let entry = |symbol: u8| {
        let entry = table[usize::from(symbol)];
        (u64::from(entry & 0xffff), entry >> 16)
    };
    let (fours, rest) = symbols.as_chunks::<4>();
    for [a, b, c, d] in fours {
        let ((a, a_bits), (b, b_bits), (c, c_bits), (d, d_bits)) = (entry(*a), entry(*b), entry(*c), entry(*d));
        let ab = a | b << (a_bits & 63);
        let cd = c | d << (c_bits & 63);
        let ab_bits = a_bits + b_bits;
        let four = ab | cd << (ab_bits & 63);
        word |= four << (bits & 63);
        bits += ab_bits + c_bits + d_bits;
        out[end..][..8].copy_from_slice(&word.to_le_bytes());
        // At most 7 + 4 x 11 bits are in the word, so less than 7 whole bytes leave it.
        end += (bits >> 3) as usize;
        word >>= bits & 56;
        bits &= 7;
    }
    for symbol in rest {
        let (code, length) = entry(*symbol);
        word |= code << bits;
        bits += length;
    }
    let left = (bits as usize).div_ceil(8);
    out[end..][..8].copy_from_slice(&word.to_le_bytes());
    end + left
}

/// A stream being read.
struct Stream<'a> {
    bytes: &'a [u8],
    bit: usize,
}

impl Stream<'_> {
    /// Returns at least the next 57 bits; bits after the end are 0.
    #[inline(always)]
    fn peek(&self) -> u64 {
        let byte = self.bit >> 3;
        let word = match self.bytes.get(byte..byte + 8) {
            Some(eight) => u64::from_le_bytes(eight.try_into().expect("eight bytes")),
            None => self.peek_at_end(byte),
        };
        word >> (self.bit & 7)
    }

    #[cold]
    fn peek_at_end(&self, byte: usize) -> u64 {
        let mut eight = [0; 8];
        let left = self.bytes.get(byte..).unwrap_or(&[]);
        eight.iter_mut().zip(left).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(eight)
    }

    /// Decodes as many symbols as there is room for, at most five.
    #[inline(always)]
    fn read(&mut self, table: &[u16; TABLE], symbols: &mut [u8]) {
        let mut word = self.peek();
        for symbol in symbols {
            let entry = table[place(word)];
            let [length, decoded] = entry.to_le_bytes();
            *symbol = decoded;
            word >>= length & 63;
            self.bit += usize::from(length);
        }
    }

    /// # Errors
    /// If it wasn't read exactly to its last byte.
    fn end(&self) -> Result<(), Error> {
        if self.bit.div_ceil(8) == self.bytes.len() {
            Ok(())
        } else {
            Err(malformed("a Huffman stream has another length"))
        }
    }
}

/// Returns the index in the decoding table that a word's lowest bits give.
#[inline(always)]
fn place(word: u64) -> usize {
    let [low, high, ..] = word.to_le_bytes();
    usize::from(u16::from_le_bytes([low, high])) & (TABLE - 1)
}

fn read_lengths(reader: &mut Reader<'_>) -> Result<Lengths, Error> {
    let (first, last) = (usize::from(reader.byte()?), usize::from(reader.byte()?));
    if first >= last {
        return Err(malformed("its Huffman symbols are out of order"));
    }
    let mut lengths = [0; 256];
    let packed = reader.take((last - first + 1).div_ceil(2))?;
    let nibbles = packed.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    for (length, nibble) in lengths[first..=last].iter_mut().zip(nibbles) {
        if usize::from(nibble) > CODE_BITS_MAX {
            return Err(malformed("a Huffman code is too long"));
        }
        *length = nibble;
    }
    Ok(lengths)
}

/// Returns the table indexed by the next bits of the input: a code's length in the low byte, its symbol in
/// the high one.
fn decoding_table(lengths: &Lengths) -> Result<[u16; TABLE], Error> {
    let codes = codes(lengths)?;
    let mut table = [0; TABLE];
    for (symbol, (length, code)) in (0_u8..=255).zip(lengths.iter().zip(codes)) {
        if *length > 0 {
            let places = (usize::from(code)..TABLE).step_by(1 << length);
            places.for_each(|place| table[place] = u16::from_le_bytes([*length, symbol]));
        }
    }
    Ok(table)
}

/// Decodes a plane into `plane`, which must have its length.
///
/// # Errors
/// If the bytes aren't what [`encode`] writes for a plane of this length, as far as that can be detected.
pub(crate) fn decode(coded: &[u8], plane: &mut [u8]) -> Result<(), Error> {
    let mut reader = Reader::new(coded);
    let table = decoding_table(&read_lengths(&mut reader)?)?;
    let lengths = [reader.u32()? as usize, reader.u32()? as usize, reader.u32()? as usize];
    let mut stream = |length: usize| Ok(Stream { bytes: reader.take(length)?, bit: 0 });
    let (mut a, mut b, mut c) = (stream(lengths[0])?, stream(lengths[1])?, stream(lengths[2])?);
    let mut d = Stream { bytes: reader.rest(), bit: 0 };
    let quarter = quarter_length(plane.len());
    let cut = |plane, length: usize| -> (_, _) { <[u8]>::split_at_mut(plane, length) };
    let (first, left) = cut(plane, quarter.min(plane.len()));
    let middle = quarter.min(left.len());
    let (second, left) = cut(left, middle);
    let middle = quarter.min(left.len());
    let (third, fourth) = cut(left, middle);
    let shared = fourth.len() / CODES_PER_LOAD * CODES_PER_LOAD;
    let ((first, first_left), (second, second_left)) = (cut(first, shared), cut(second, shared));
    let ((third, third_left), (fourth, fourth_left)) = (cut(third, shared), cut(fourth, shared));
    let five = <[u8]>::as_chunks_mut::<CODES_PER_LOAD>;
    let together = five(first).0.iter_mut().zip(five(second).0).zip(five(third).0).zip(five(fourth).0);
    for (((first, second), third), fourth) in together {
        a.read(&table, first);
        b.read(&table, second);
        c.read(&table, third);
        d.read(&table, fourth);
    }
    for (stream, left) in [(&mut a, first_left), (&mut b, second_left), (&mut c, third_left), (&mut d, fourth_left)] {
        left.chunks_mut(CODES_PER_LOAD).for_each(|symbols| stream.read(&table, symbols));
        stream.end()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(plane: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(plane, &Histogram::of(plane), &mut out);
        out
    }

    /// Returns a plane whose counts grow like Fibonacci's numbers, which gives the deepest tree.
    fn deep() -> Vec<u8> {
        let mut counts = vec![1_usize, 1];
        (2..25).for_each(|i| counts.push(counts[i - 1] + counts[i - 2]));
        counts.iter().zip(0..).flat_map(|(count, symbol)| std::iter::repeat_n(symbol, *count)).collect()
    }

    #[test]
    fn codes_are_as_long_as_huffman_says() {
        let counts = [(0, 45), (1, 13), (2, 12), (3, 16), (4, 9), (5, 5)];
        let plane: Vec<u8> = counts.iter().flat_map(|(symbol, count)| std::iter::repeat_n(*symbol, *count)).collect();
        assert_eq!(lengths_for(&Histogram::of(&plane))[..6], [1, 3, 3, 3, 4, 4]);
    }

    #[test]
    fn the_deepest_tree_is_cut_to_the_limit_and_stays_complete() {
        let lengths = lengths_for(&Histogram::of(&deep()));
        assert_eq!(lengths.iter().max(), Some(&11));
        assert!(codes(&lengths).is_ok());
        assert!(lengths[..25].windows(2).all(|pair| pair[0] >= pair[1]), "rare symbols have long codes");
    }

    #[test]
    fn planes_of_every_length_come_back() {
        let deep = deep();
        let all: Vec<u8> = (0..=255).collect();
        let lengths = (2..70).map(|length| &deep[..length]).filter(|plane| Histogram::of(plane).symbols() > 1);
        for plane in lengths.chain([&deep[..], &all]) {
            let mut back = vec![0; plane.len()];
            decode(&coded(plane), &mut back).unwrap();
            assert_eq!(back, plane);
        }
    }

    #[test]
    fn tables_that_are_not_complete_codes_are_refused() {
        let plane: Vec<u8> = (0..100).map(|i| i % 3).collect();
        let coded = coded(&plane);
        let mut back = vec![0; plane.len()];
        for (place, value, says) in [(0, 2, "order"), (2, 0xcc, "too long"), (2, 0x11, "overlap"), (3, 0, "complete")] {
            let mut damaged = coded.clone();
            damaged[place] = value;
            let error = decode(&damaged, &mut back).unwrap_err().to_string();
            assert!(error.contains(says) || error.contains("complete"), "{place}: {error}");
        }
        assert!(decode(&coded, &mut back[..96]).is_err());
        assert!(decode(&coded[..coded.len() - 1], &mut back).is_err());
    }
}
