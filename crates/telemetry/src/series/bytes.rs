//! Numbers and texts as bytes: integers take seven bits a byte, the lowest first; the formats of the log and of the
//! segments' indexes are made of these.

/// The most bytes of an encoded integer.
const INTEGER_BYTES_MAX: usize = 10;

/// Appends values to bytes.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn unsigned(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    pub(super) fn count(&mut self, count: usize) {
        self.unsigned(wide(count));
    }

    /// Writes 0 for none, and one more than the value otherwise; `u64::MAX` itself can't be written.
    pub(super) fn optional(&mut self, value: Option<u64>) {
        self.unsigned(value.map_or(0, |value| value.saturating_add(1)));
    }

    pub(super) fn float(&mut self, value: f64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// Takes values from bytes; `None` means that the bytes are not what a [`Writer`] wrote.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'b>(pub(super) &'b [u8]);

impl<'b> Reader<'b> {
    pub(super) fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for place in 0..INTEGER_BYTES_MAX {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f).checked_shl(u32::try_from(7 * place).ok()?)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Takes a count of things that take at least a byte each, so that damage can't ask for much memory.
    pub(super) fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.unsigned()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.unsigned()?).ok()
    }

    pub(super) fn optional(&mut self) -> Option<Option<u64>> {
        Some(self.unsigned()?.checked_sub(1))
    }

    pub(super) fn optional_small(&mut self) -> Option<Option<u32>> {
        self.optional()?.map(u32::try_from).transpose().ok()
    }

    pub(super) fn float(&mut self) -> Option<f64> {
        let (bytes, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(f64::from_le_bytes(*bytes))
    }

    pub(super) fn bytes(&mut self, count: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn text(&mut self) -> Option<&'b str> {
        let count = self.count()?;
        str::from_utf8(self.bytes(count)?).ok()
    }
}

/// Returns a count as 64 bits.
pub(super) fn wide(count: usize) -> u64 {
    u64::try_from(count).expect("a count fits in 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_cut_bytes_are_none() {
        let mut writer = Writer::default();
        writer.unsigned(u64::MAX);
        writer.optional(None);
        writer.optional(Some(7));
        writer.float(f64::NEG_INFINITY);
        writer.text("näme");
        let read = |bytes: &[u8]| {
            let mut reader = Reader(bytes);
            let values = (reader.unsigned()?, reader.optional()?, reader.optional()?, reader.float()?);
            Some((values, reader.text()?.to_owned()))
        };
        let expected = ((u64::MAX, None, Some(7), f64::NEG_INFINITY), "näme".to_owned());
        assert_eq!(read(&writer.0), Some(expected));
        assert!((0..writer.0.len()).all(|length| read(&writer.0[..length]).is_none()));
        assert_eq!(Reader(&[0xff; 11]).unsigned(), None);
        assert_eq!(Reader(&[9, 1]).count(), None, "a count beyond the bytes that are there");
    }
}
