//! Checks of the footer of a Parquet file and of the headers of its pages. They run before the Parquet crate
//! sees these, since it would trust them.
//!
//! Footer and headers are structs of Thrift's compact protocol: each field is one byte (the step of the field
//! number, and the type) and the value behind it. The crate reads fields by their number whatever their type,
//! and passes over lists of two billion truth values, which take no byte. The checks here accept only the
//! fields of the format, with their types, and only lists whose values take at least a byte each.

use std::io::{Error, ErrorKind, Read, Result};

/// Most bytes that a page's header may have. A header may hold statistics, such as the least and the largest
/// value.
const HEADER_MAX: u64 = 1 << 20;
/// Most levels of structs and lists within one another; the format has eight.
const DEPTH_MAX: usize = 16;

/// Bytes of a page's header, and the sizes of the page that it states, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PageHeader {
    pub bytes: Vec<u8>,
    pub compressed: u64,
    pub uncompressed: u64,
}

/// Type of a field.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Number8,
    Number16,
    Number32,
    Number64,
    Double,
    Bytes,
    Truth,
    List(&'static Self),
    /// Fields of a struct, from number 1 on. Numbers beyond the last one belong to a later format.
    Struct(&'static [Self]),
}

use Kind::{Bytes, Double, List, Number8, Number16, Number32, Number64, Struct, Truth};

/// The header of a page: type, size, compressed size, checksum, and a struct for each type of page.
const PAGE: [Kind; 8] = [
    Number32,
    Number32,
    Number32,
    Number32,
    Struct(&[Number32, Number32, Number32, Number32, STATISTICS]),
    EMPTY,
    Struct(&[Number32, Number32, Truth]),
    Struct(&[Number32, Number32, Number32, Number32, Number32, Number32, Truth, STATISTICS]),
];
const STATISTICS: Kind = Struct(&[Bytes, Bytes, Number64, Number64, Bytes, Bytes, Truth, Truth, Number64]);
const EMPTY: Kind = Struct(&[]);

/// The footer of a file: version, schema, rows, row groups, notes, writer, orders of the columns, encryption.
const FOOTER: [Kind; 9] = [
    Number32,
    List(&SCHEMA_ELEMENT),
    Number64,
    List(&ROW_GROUP),
    List(&NOTE),
    Bytes,
    List(&Struct(&[EMPTY, EMPTY])),
    EMPTY,
    Bytes,
];
const NOTE: Kind = Struct(&[Bytes, Bytes]);
const SCHEMA_ELEMENT: Kind = Struct(&[
    Number32,
    Number32,
    Number32,
    Bytes,
    Number32,
    Number32,
    Number32,
    Number32,
    Number32,
    LOGICAL_TYPE,
]);
/// Logical types: a struct for each one, most of them empty; number 9 is reserved.
const LOGICAL_TYPE: Kind = Struct(&[
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    Struct(&[Number32, Number32]),
    EMPTY,
    TIME,
    TIME,
    EMPTY,
    Struct(&[Number8, Truth]),
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    Struct(&[Number8]),
    Struct(&[Bytes]),
    Struct(&[Bytes, Number32]),
    EMPTY,
]);
const TIME: Kind = Struct(&[Truth, Struct(&[EMPTY, EMPTY, EMPTY])]);
const ROW_GROUP: Kind = Struct(&[
    List(&COLUMN_CHUNK),
    Number64,
    Number64,
    List(&Struct(&[Number32, Truth, Truth])),
    Number64,
    Number64,
    Number16,
]);
const COLUMN_CHUNK: Kind =
    Struct(&[Bytes, Number64, COLUMN, Number64, Number32, Number64, Number32, EMPTY, Bytes]);
/// Description of a column chunk: type, encodings, path, codec, values, sizes, notes, places of pages,
/// statistics, encodings of pages, Bloom filter, sizes of values, places on the globe.
const COLUMN: Kind = Struct(&[
    Number32,
    List(&Number32),
    List(&Bytes),
    Number32,
    Number64,
    Number64,
    Number64,
    List(&NOTE),
    Number64,
    Number64,
    Number64,
    STATISTICS,
    List(&Struct(&[Number32, Number32, Number32])),
    Number64,
    Number32,
    Struct(&[Number64, List(&Number64), List(&Number64)]),
    Struct(&[Struct(&[Double, Double, Double, Double, Double, Double, Double, Double]), List(&Number32)]),
]);

/// Reads the header of a page from its first byte.
pub(super) fn page_header(input: impl Read) -> Result<PageHeader> {
    let mut walk = Walk { input: input.take(HEADER_MAX), bytes: Vec::new() };
    let mut numbers = [0; 3];
    walk.structure(&PAGE, DEPTH_MAX, &mut numbers)
        .map_err(|error| Error::new(error.kind(), format!("the header of a page has {error}")))?;
    // The crate would cut off what is beyond 32 bits.
    let size = |number: i64| match i32::try_from(number).map(u64::try_from) {
        Ok(Ok(size)) => Ok(size),
        _ => Err(damaged("the header of a page has a size below 0, or of more than 32 bits".into())),
    };
    Ok(PageHeader { uncompressed: size(numbers[1])?, compressed: size(numbers[2])?, bytes: walk.bytes })
}

/// Reads a footer of `length` bytes from its first byte.
pub(super) fn footer(input: impl Read, length: u64) -> Result<Vec<u8>> {
    let mut walk = Walk { input: input.take(length), bytes: Vec::new() };
    walk.structure(&FOOTER, DEPTH_MAX, &mut []).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => damaged("its footer ends too soon".into()),
        kind => Error::new(kind, format!("its footer has {error}")),
    })?;
    Ok(walk.bytes)
}

/// Reads how many values follow in the encoding DELTA_BINARY_PACKED. It is the third of the numbers in front,
/// which are written like Thrift's numbers.
pub(super) fn delta_count(input: impl Read) -> Result<u64> {
    let mut walk = Walk { input: input.take(HEADER_MAX), bytes: Vec::new() };
    walk.unsigned()?;
    walk.unsigned()?;
    walk.unsigned()
}

struct Walk<R> {
    input: std::io::Take<R>,
    bytes: Vec<u8>,
}

impl<R: Read> Walk<R> {
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

    /// Reads an unsigned number: seven bits a byte, the lowest first.
    fn unsigned(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("a number without an end".into()))
    }

    /// Reads a number with a sign, which stands in the lowest bit.
    fn number(&mut self) -> Result<i64> {
        self.unsigned().map(|value| (value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Reads a struct up to its end; `numbers` takes the numbers among its first fields.
    fn structure(&mut self, fields: &[Kind], depth: usize, numbers: &mut [i64]) -> Result<()> {
        if depth == 0 {
            return Err(too_deep());
        }
        let mut field = 0;
        loop {
            let byte = self.byte()?;
            if byte == 0 {
                return Ok(());
            }
            field = match byte >> 4 {
                0 => self.number()?,
                step => field + i64::from(step),
            };
            if !(1..=i64::from(i16::MAX)).contains(&field) {
                return Err(damaged("a field without a number".into()));
            }
            let place = field as usize - 1;
            let value = self.value(fields.get(place).copied(), byte & 0x0f, depth)?;
            if let (Some(number), Some(value)) = (numbers.get_mut(place), value) {
                *number = value;
            }
        }
    }

    /// Passes over a value of type `wire`, and returns it where the format has a number of 32 bits. A field
    /// that the format does not have belongs to a later version; the crate passes over it by its type.
    fn value(&mut self, kind: Option<Kind>, wire: u8, depth: usize) -> Result<Option<i64>> {
        match (kind, wire) {
            (Some(Truth) | None, 1 | 2) => {}
            (Some(Number8) | None, 3) => self.pass(1)?,
            (Some(Number32), 5) => {
                return self.number().map(Some);
            }
            (Some(Number16), 4) | (Some(Number64), 6) | (None, 4..=6) => drop(self.unsigned()?),
            (Some(Double) | None, 7) => self.pass(8)?,
            (Some(Bytes) | None, 8) => {
                let count = self.unsigned()?;
                self.pass(count)?;
            }
            (Some(List(of)), 9) => self.list(Some(*of), depth - 1)?,
            (None, 9 | 10) => self.list(None, depth - 1)?,
            (Some(Struct(fields)), 12) => self.structure(fields, depth - 1, &mut [])?,
            (None, 12) => self.structure(&[], depth - 1, &mut [])?,
            _ => return Err(damaged(format!("a value of type {wire}, which is not the format's"))),
        }
        Ok(None)
    }

    fn list(&mut self, of: Option<Kind>, depth: usize) -> Result<()> {
        if depth == 0 {
            return Err(too_deep());
        }
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => self.unsigned()?,
            count => count.into(),
        };
        let wire = byte & 0x0f;
        // Some writers give an empty list no type.
        if byte != 0 && matches!(wire, 0..=2) {
            return Err(damaged("a list of values that take no byte".into()));
        }
        for _ in 0..count {
            self.value(of, wire, depth)?;
        }
        Ok(())
    }
}

fn damaged(what: String) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

fn too_deep() -> Error {
    damaged("structs within structs without an end".into())
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
    fn a_footer_is_read_up_to_its_end() {
        // Version 1, a list of one schema element "a", no rows, no row groups by a writer that gives them no
        // type, and a list of a later format.
        let footer_bytes = [
            &[0x15, 0x02, 0x19, 0x1c, 0x48, 0x01, 0x61, 0x00, 0x16, 0x00, 0x19, 0x00][..],
            &[0x69, 0x25, 0x02, 0x04, 0x00],
        ]
        .concat();
        let length = footer_bytes.len() as u64;
        assert_eq!(footer(&[&footer_bytes[..], &[7]].concat()[..], length + 1).unwrap(), footer_bytes);
        let error = footer(&footer_bytes[..], length - 1).unwrap_err().to_string();
        assert_eq!(error, "its footer ends too soon");
        // Truth values beside and within another list, numbers in place of the schema, lists without an end.
        for bytes in [
            vec![0x09, 0x28, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x07, 0x00],
            vec![0x09, 0x28, 0x19, 0x22, 0x00],
            vec![0x25, 0x02, 0x00],
            vec![0x19; 4096],
        ] {
            let error = footer(&bytes[..], bytes.len() as u64).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{bytes:?}: {error}");
        }
    }

    #[test]
    fn a_damaged_header_ends() {
        // Structs without an end, lists of many values and of truth values, which take no byte, a string of
        // the largest length, a string in place of a number, a size of 33 bits, a number without an end, a
        // size below 0, fields without a number.
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
