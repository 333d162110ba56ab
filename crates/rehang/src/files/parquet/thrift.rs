//! The header of a page, read before the Parquet crate reads it and before any room for the page is made.
//!
//! A header is a struct of Thrift's compact protocol: each field is a byte of (step of the field number, type), the value behind it.
//! The crate reads fields by their number whatever their type, and passes over lists of two billion values that take no byte. A
//! header that is read here has the fields of the format, with their types, and no lists.

use std::io::{Error, ErrorKind, Read, Result};

/// Bytes that a header may have: it may hold statistics, the least and the largest value.
const HEADER_MAX: u64 = 1 << 20;
/// Structs within structs that a header may have.
const DEPTH_MAX: usize = 8;

/// A header, and what it says of the page's size, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PageHeader {
    pub bytes: Vec<u8>,
    pub compressed: u64,
    pub uncompressed: u64,
}

/// The type of a field.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Number32,
    Number64,
    Bytes,
    Truth,
    Struct(&'static [Self]),
}

use Kind::{Bytes, Number32, Number64, Struct, Truth};

/// The fields of a header, from number 1 on: type, size, compressed size, checksum, and a struct for each type of page.
const PAGE: [Kind; 8] = [
    Number32,
    Number32,
    Number32,
    Number32,
    Struct(&[Number32, Number32, Number32, Number32, STATISTICS]),
    Struct(&[]),
    Struct(&[Number32, Number32, Truth]),
    Struct(&[Number32, Number32, Number32, Number32, Number32, Number32, Truth, STATISTICS]),
];
const STATISTICS: Kind = Struct(&[Bytes, Bytes, Number64, Number64, Bytes, Bytes, Truth, Truth]);

/// Reads a header from its first byte.
pub(super) fn page_header(input: impl Read) -> Result<PageHeader> {
    let mut header = Header { input: input.take(HEADER_MAX), bytes: Vec::new() };
    let mut numbers = [0; 3];
    header.structure(&PAGE, DEPTH_MAX, &mut numbers)?;
    let size = |number: i64| u64::try_from(number).map_err(|_| damaged("a size below 0"));
    Ok(PageHeader { uncompressed: size(numbers[1])?, compressed: size(numbers[2])?, bytes: header.bytes })
}

struct Header<R> {
    input: std::io::Take<R>,
    bytes: Vec<u8>,
}

impl<R: Read> Header<R> {
    fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.input.read_exact(&mut byte)?;
        self.bytes.extend(byte);
        Ok(byte[0])
    }

    fn pass(&mut self, count: u64) -> Result<()> {
        let passed = self.input.by_ref().take(count).read_to_end(&mut self.bytes)?;
        if passed as u64 == count { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
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

    /// Reads a struct up to its end; `numbers` takes the numbers among its first fields.
    fn structure(&mut self, fields: &[Kind], depth: usize, numbers: &mut [i64]) -> Result<()> {
        if depth == 0 {
            return Err(damaged("structs within structs"));
        }
        let mut field = 0;
        loop {
            let byte = self.byte()?;
            if byte == 0 {
                return Ok(());
            }
            let number = match byte >> 4 {
                0 => self.number()?,
                step => field + i64::from(step),
            };
            if !(1..=i64::from(i16::MAX)).contains(&number) {
                return Err(damaged("a field without a number"));
            }
            field = number;
            let place = field as usize - 1;
            // A field that is not in the list is one of a later format; the crate passes over it by its type.
            match (fields.get(place), byte & 0x0f) {
                (Some(Truth) | None, 1 | 2) => {}
                (None, 3) => self.pass(1)?,
                (Some(Number32), 5) => {
                    let value = self.number()?;
                    if let Some(number) = numbers.get_mut(place) {
                        // The crate cuts off what is beyond 32 bits.
                        *number =
                            i32::try_from(value).map_err(|_| damaged("a size of more than 32 bits"))?.into();
                    }
                }
                (Some(Number64), 6) | (None, 4..=6) => drop(self.unsigned()?),
                (None, 7) => self.pass(8)?,
                (Some(Bytes) | None, 8) => {
                    let count = self.unsigned()?;
                    self.pass(count)?;
                }
                (Some(Struct(fields)), 12) => self.structure(fields, depth - 1, &mut [])?,
                (None, 12) => self.structure(&[], depth - 1, &mut [])?,
                (_, kind) => {
                    return Err(damaged(&format!(
                        "a field {field} of type {kind}, which is not the format's"
                    )));
                }
            }
        }
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
        let header = PageHeader { bytes: HEADER.to_vec(), compressed: 100, uncompressed: 300 };
        assert_eq!(page_header(&beside[..]).unwrap(), header);
        for cut in 0..HEADER.len() {
            assert!(page_header(&HEADER[..cut]).is_err(), "cut after {cut} bytes");
        }
        // A struct, a byte and a string of a later format, behind all that there is today.
        let later = [&HEADER[..26], &[0x5c, 0x18, 0x01, 0x61, 0x00, 0x13, 0x07, 0x18, 0x00, 0x00]].concat();
        assert_eq!(page_header(&later[..]).unwrap().bytes, later);
    }

    #[test]
    fn a_damaged_header_ends() {
        // Structs without an end, lists of many values and of truth values, which take no byte, a string of the largest length, a
        // string in place of a number, a size of 33 bits, a number without an end, a size below 0, fields without a number.
        for bytes in [
            vec![0x1c; 4096],
            [&[0x99, 0xfc][..], &[0xff; 9], &[0x01]].concat(),
            vec![0x99, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07, 0x00],
            [&[0x98][..], &[0xff; 9], &[0x01]].concat(),
            vec![0x18, 0x01, 0x00, 0x00],
            vec![0x25, 0x80, 0x80, 0x80, 0x80, 0x20, 0x00],
            vec![0xff; 64],
            vec![0x25, 0x01, 0x00],
            vec![0x05, 0x00, 0x00, 0x00],
        ] {
            assert!(page_header(&bytes[..]).is_err(), "{bytes:?}");
        }
    }
}
