//! A segment of the history archive: a contiguous range of records in one compressed, self-describing file.
//!
//! Layout, little-endian: magic with version; first and last sequence; the chain's checksum before the first
//! record and after the last; length of the records, plain and compressed; records by DEFLATE; BLAKE3 of all
//! of that. A record is its time, the length of its body, and the body. Its checksum isn't stored: it follows
//! from the chain, which has to end as the header says, so reading a segment verifies it from end to end
//!

use gangline_base::{Bytes, Timestamp};

use super::archive::Range;
use super::record::{Checksum, Head, StoredRecord};
use super::{Limits, Record, Sequence};
use crate::deflate::{deflate, inflate};

const MAGIC: &[u8; 19] = b"gangline history 1\n";
const HEAD_BYTES: usize = MAGIC.len() + 2 * 8 + 2 * Checksum::BYTES + 2 * 8;
const HASH_BYTES: usize = 32;
/// Bytes of a record's time and of its body's length.
const RECORD_HEAD_BYTES: usize = 8 + 4;

/// The most records in a segment.
pub(super) const RECORDS_MAX: u32 = 10_000;
/// A segment with this many record bytes takes no more records; the last one may exceed it.
pub(super) const BYTES_WANTED: Bytes = Bytes(16 << 20);
/// The most bytes of a segment's records.
const BYTES_MAX: u64 = BYTES_WANTED.0 + Limits::RECORD.0 + (RECORDS_MAX as u64) * (RECORD_HEAD_BYTES as u64);
/// The largest file of a segment: incompressible data grows a little.
pub(super) const FILE_BYTES_MAX: u64 = BYTES_MAX + (1 << 20);

/// The verified contents of a segment.
#[derive(Debug)]
pub(super) struct Contents {
    /// The chain before the first record.
    pub(super) before: Head,
    /// The records, each with the checksum that the chain gives it.
    pub(super) records: Vec<StoredRecord>,
}

impl Contents {
    /// Returns the chain after the last record.
    pub(super) fn end(&self) -> Head {
        self.records.last().map_or(self.before, head_of)
    }

    /// Returns the range of the records.
    pub(super) fn range(&self) -> Range {
        Range { first: self.before.sequence.next(), last: self.end().sequence }
    }

    /// Returns the chain at a record, or before the first.
    pub(super) fn head_at(&self, sequence: Sequence) -> Option<Head> {
        if sequence == self.before.sequence {
            return Some(self.before);
        }
        self.records.iter().find(|stored| stored.record.sequence == sequence).map(head_of)
    }
}

fn head_of(stored: &StoredRecord) -> Head {
    let checksum = stored.checksum.as_slice().try_into().expect("it was computed with the chain");
    Head { sequence: stored.record.sequence, checksum: Checksum(checksum) }
}

/// The header of a segment's file whose hash is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) before: Head,
    pub(super) end: Head,
}

/// Encodes the records that follow `before`.
pub(super) fn encode(before: Head, records: &[Record]) -> Vec<u8> {
    let mut raw = Vec::new();
    let mut end = before;
    for record in records {
        let length = u32::try_from(record.body.len()).expect("a record's body has a limit");
        raw.extend(record.at.unix_nanos().to_le_bytes());
        raw.extend(length.to_le_bytes());
        raw.extend(&record.body);
        end = end.extended(record.at, &record.body);
    }
    let packed = deflate(Vec::new(), &raw);
    let mut file = Vec::with_capacity(HEAD_BYTES + packed.len() + HASH_BYTES);
    file.extend(MAGIC);
    file.extend(before.sequence.next().0.to_le_bytes());
    file.extend(end.sequence.0.to_le_bytes());
    file.extend(before.checksum.0);
    file.extend(end.checksum.0);
    file.extend(length_of(&raw).to_le_bytes());
    file.extend(length_of(&packed).to_le_bytes());
    file.extend(&packed);
    let hash = blake3::hash(&file);
    file.extend(hash.as_bytes());
    file
}

/// Returns the records of a file, or its defect.
pub(super) fn decode(file: &[u8]) -> Result<Contents, &'static str> {
    let (Ends { before, end }, raw_bytes, packed) = opened(file)?;
    let raw = inflate(packed, raw_bytes).filter(|raw| length_of(raw) == raw_bytes);
    let raw = raw.ok_or("its records can't be unpacked")?;
    let (mut records, mut head, mut rest) = (Vec::new(), before, raw.as_slice());
    while !rest.is_empty() {
        let record;
        (record, rest) = next_record(head, rest).ok_or("a record in it is cut")?;
        head = head_of(&record);
        records.push(record);
    }
    if head == end { Ok(Contents { before, records }) } else { Err("its records don't lead to where it says") }
}

/// Returns the header of a file without decompressing it, or the file's defect.
pub(super) fn ends(file: &[u8]) -> Result<Ends, &'static str> {
    opened(file).map(|(ends, ..)| ends)
}

/// Checks a file's hash and returns its header, the length of its records, and the compressed records.
fn opened(file: &[u8]) -> Result<(Ends, u64, &[u8]), &'static str> {
    let Some((content, hash)) = file.split_last_chunk::<HASH_BYTES>() else { return Err("it is cut") };
    if blake3::hash(content).as_bytes() != hash {
        return Err("its checksum does not match");
    }
    let Some(head) = content.strip_prefix(MAGIC) else { return Err("it is another kind of file, or a newer one") };
    let (first, head) = number(head)?;
    let (last, head) = number(head)?;
    let (before, head) = checksum(head)?;
    let (end, head) = checksum(head)?;
    let (raw_bytes, head) = number(head)?;
    let (packed_bytes, packed) = number(head)?;
    if first == 0 || last < first || raw_bytes > BYTES_MAX || length_of(packed) != packed_bytes {
        return Err("it says what can't be");
    }
    let before = Head { sequence: Sequence(first - 1), checksum: before };
    let end = Head { sequence: Sequence(last), checksum: end };
    Ok((Ends { before, end }, raw_bytes, packed))
}

fn next_record(head: Head, rest: &[u8]) -> Option<(StoredRecord, &[u8])> {
    let (at, rest) = rest.split_first_chunk::<8>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (body, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    let at = Timestamp::from_unix_nanos(u64::from_le_bytes(*at));
    let Head { sequence, checksum } = head.extended(at, body);
    let record = Record { sequence, at, body: body.to_vec() };
    Some((StoredRecord { record, checksum: checksum.0.to_vec() }, rest))
}

fn number(bytes: &[u8]) -> Result<(u64, &[u8]), &'static str> {
    bytes.split_first_chunk().map(|(number, rest)| (u64::from_le_bytes(*number), rest)).ok_or("it is cut")
}

fn checksum(bytes: &[u8]) -> Result<(Checksum, &[u8]), &'static str> {
    bytes.split_first_chunk().map(|(checksum, rest)| (Checksum(*checksum), rest)).ok_or("it is cut")
}

fn length_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("u64 holds a usize on Linux")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: u64) -> Vec<Record> {
        let record = |number: u64| Record {
            sequence: Sequence(7 + number),
            at: Timestamp::from_unix_nanos(number),
            body: format!("record {number}").into_bytes(),
        };
        (1..=count).map(record).collect()
    }

    fn before() -> Head {
        Head { sequence: Sequence(7), checksum: Checksum::of_nothing() }
    }

    #[test]
    fn a_segment_reads_back_as_written() {
        let file = encode(before(), &records(100));
        let contents = decode(&file).expect("it is whole");
        let read: Vec<Record> = contents.records.iter().map(|stored| stored.record.clone()).collect();
        assert_eq!((contents.before, read), (before(), records(100)));
        assert_eq!(ends(&file), Ok(Ends { before: before(), end: contents.end() }));
        assert_eq!(contents.head_at(Sequence(7)), Some(before()));
        assert_eq!(contents.head_at(Sequence(107)), Some(contents.end()));
        assert_eq!(contents.head_at(Sequence(108)), None);
    }

    #[test]
    fn no_flipped_bit_and_no_cut_gets_through() {
        let file = encode(before(), &records(5));
        for bit in 0..file.len() * 8 {
            let mut flipped = file.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "bit {bit}");
        }
        assert!((0..file.len()).all(|length| decode(&file[..length]).is_err()));
    }

    /// A right hash doesn't prove the content: somebody may have computed it anew.
    #[test]
    fn what_a_file_says_of_its_records_is_checked_against_them() {
        let file = encode(before(), &records(5));
        for at in MAGIC.len()..HEAD_BYTES {
            let mut changed = file[..file.len() - HASH_BYTES].to_vec();
            changed[at] ^= 1;
            let hash = blake3::hash(&changed);
            changed.extend(hash.as_bytes());
            assert!(decode(&changed).is_err(), "byte {at}");
        }
    }
}
