//! Little-endian reading and writing of headers, with every length checked.

use crate::Error;
use crate::error::malformed;

/// Reads untrusted bytes from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Reader { left: bytes }
    }

    /// Returns the next bytes.
    ///
    /// # Errors
    /// If there are fewer.
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, left) = self.left.split_at_checked(count).ok_or(malformed("it ends too early"))?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (taken, left) = self.left.split_first_chunk().ok_or(malformed("it ends too early"))?;
        self.left = left;
        Ok(*taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Error> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// Returns all remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.left)
    }

    /// # Errors
    /// If anything is left.
    pub(crate) fn end(&self) -> Result<(), Error> {
        if self.left.is_empty() { Ok(()) } else { Err(malformed("there are bytes behind its end")) }
    }
}

/// Converts a length, which fits in 32 bits because a block's does.
pub(crate) fn length32(length: usize) -> u32 {
    u32::try_from(length).expect("a block is far smaller than 4 GiB")
}
