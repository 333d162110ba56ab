//! What a page says of its size, read before any room for the page is made.
//!
//! A page header is a struct of Thrift's compact protocol: each field is a byte of (step of the field number, type), the value behind it.
//! Fields 1 to 3 are the page's type and its sizes with and without compression; the others only have to be passed over.

use std::io::{Error, ErrorKind, Read, Result};

/// Bytes that a header may have: it may hold statistics, the least and the largest value.
const HEADER_MAX: u64 = 1 << 20;
/// Structs within structs that a header may have.
const DEPTH_MAX: usize = 8;

/// The sizes of a page, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PageSizes {
    pub is_index: bool,
    pub header: u64,
    pub compressed: u64,
    pub uncompressed: u64,
}

/// Reads a header from its first byte.
pub(super) fn page_sizes(input: impl Read) -> Result<PageSizes> {
    let mut header = Header { input: input.take(HEADER_MAX) };
    let mut sizes = PageSizes::default();
    let mut field = 0;
    loop {
        let byte = header.byte()?;
        let kind = byte & 0x0f;
        if kind == STOP {
            break;
        }
        field = match byte >> 4 {
            0 => header.number()?,
            step => field + i64::from(step),
        };
        match (field, kind) {
            (1, NUMBER_32) => sizes.is_index = header.number()? == INDEX_PAGE,
            (2, NUMBER_32) => sizes.uncompressed = header.size()?,
            (3, NUMBER_32) => sizes.compressed = header.size()?,
            _ => header.pass(kind, DEPTH_MAX)?,
        }
    }
    sizes.header = HEADER_MAX - header.input.limit();
    Ok(sizes)
}

const STOP: u8 = 0;
const INDEX_PAGE: i64 = 1;
const NUMBER_32: u8 = 5;

struct Header<R> {
    input: std::io::Take<R>,
}

impl<R: Read> Header<R> {
    fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.input.read_exact(&mut byte).map(|()| byte[0])
    }

    /// Seven bits a byte, the lowest first.
    fn unsigned(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("a number without an end"))
    }

    /// Signs stand in the lowest bit.
    fn number(&mut self) -> Result<i64> {
        self.unsigned().map(|value| (value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    fn size(&mut self) -> Result<u64> {
        u64::try_from(self.number()?).map_err(|_| damaged("a size below 0"))
    }

    /// Passes over a value.
    fn pass(&mut self, kind: u8, depth: usize) -> Result<()> {
        if depth == 0 {
            return Err(damaged("structs within structs"));
        }
        match kind {
            // Truth values, which stand in the type.
            1 | 2 => Ok(()),
            3 => self.byte().map(drop),
            4..=6 => self.unsigned().map(drop),
            7 => self.skip(8),
            8 => {
                let bytes = self.unsigned()?;
                self.skip(bytes)
            }
            // A list, or a set: up to 14 elements in the byte of their type, more behind it.
            9 | 10 => {
                let byte = self.byte()?;
                let count = match byte >> 4 {
                    15 => self.unsigned()?,
                    count => u64::from(count),
                };
                (0..count).try_for_each(|_| match byte & 0x0f {
                    // There a truth value has a byte of its own.
                    1 | 2 => self.byte().map(drop),
                    kind => self.pass(kind, depth - 1),
                })
            }
            12 => loop {
                let byte = self.byte()?;
                if byte & 0x0f == STOP {
                    return Ok(());
                }
                if byte >> 4 == 0 {
                    self.unsigned()?;
                }
                self.pass(byte & 0x0f, depth - 1)?;
            },
            _ => Err(damaged("a value of no known type")),
        }
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        let passed = std::io::copy(&mut self.input.by_ref().take(bytes), &mut std::io::sink())?;
        if passed == bytes { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the header of a page has {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A data page of 300 bytes, 100 compressed, with a checksum and a struct of counts and statistics.
    const HEADER: [u8; 27] = [
        0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0xc8, 0x01, 0x15, 0x09, 0x1c, 0x15, 0x08, 0x15, 0x00, 0x15, 0x06,
        0x15, 0x06, 0x1c, 0x18, 0x02, 0x61, 0x62, 0x00, 0x00, 0x00,
    ];

    #[test]
    fn sizes_are_read_and_everything_else_is_passed_over() {
        let beside = [&HEADER[..], b"the page"].concat();
        let sizes = PageSizes { is_index: false, header: 27, compressed: 100, uncompressed: 300 };
        assert_eq!(page_sizes(&beside[..]).unwrap(), sizes);
        for cut in 0..HEADER.len() {
            assert!(page_sizes(&HEADER[..cut]).is_err(), "cut after {cut} bytes");
        }
    }

    #[test]
    fn a_damaged_header_ends() {
        // Structs without an end, lists of many elements, a string of the largest length, a number without an end, a size below 0.
        for bytes in [
            vec![0x1c; 4096],
            [&[0x19, 0xfc][..], &[0xff; 9], &[0x01]].concat(),
            [&[0x18][..], &[0xff; 9], &[0x01]].concat(),
            vec![0xff; 64],
            vec![0x25, 0x01, 0x00],
        ] {
            assert!(page_sizes(&bytes[..]).is_err(), "{bytes:?}");
        }
    }
}
