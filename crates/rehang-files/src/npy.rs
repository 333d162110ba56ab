//! NumPy's `.npy`: a header written as a Python dictionary, then the numbers.
//!
//! The header of an untrusted file decides how much is allocated, so it is read here rather than by a crate.
//! Every size is compared with the length of the file first, and nesting is refused instead of followed.

use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use crate::element::{Element, Meaning};
use crate::given::Scalars;
use crate::opened::{Opened, open};
use crate::raw::{Layout, RawRows, RawWriter};
use rehang_core::{Error, ErrorKind, Matrix, Result};

/// The first bytes of every `.npy` file.
const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest header that is read. NumPy itself distrusts headers above 10,000 bytes.
const HEADER_BYTES_MAX: usize = 1 << 16;

/// Length of the header that is written: NumPy's own for one- and two-dimensional arrays, with room for any
/// shape.
const HEADER_BYTES: usize = 128;

/// Content of an array: numbers or text.
enum Content {
    Numbers(Element),
    /// Texts of a fixed width: bytes per character, characters per entry, and the byte order of wide
    /// characters.
    Text {
        unit: usize,
        length: usize,
        big_endian: bool,
    },
}

/// Numbers of any shape, as a `.npy` file or an entry of a `.npz` archive holds them.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Length of every axis; empty for a single number.
    pub shape: Vec<usize>,
    /// Numbers in C order: the last axis runs fastest, whatever the order in the file.
    pub numbers: ArrayNumbers,
}

/// Numbers of an [`Array`], by the type that the file holds.
#[derive(Debug, Clone, PartialEq)]
pub enum ArrayNumbers {
    /// Unsigned integers of one byte.
    Bytes(Vec<u8>),
    /// Integers of any other size, and truth values as 0 and 1.
    Integers(Vec<i64>),
    /// Floating-point numbers; those of eight bytes are rounded to the nearest `f32`.
    Floats(Vec<f32>),
}

impl ArrayNumbers {
    /// Converts the numbers to `f32`, each rounded to the nearest.
    pub fn into_floats(self) -> Vec<f32> {
        match self {
            Self::Bytes(bytes) => bytes.into_iter().map(f32::from).collect(),
            Self::Integers(integers) => integers.into_iter().map(|value| value as f32).collect(),
            Self::Floats(floats) => floats,
        }
    }
}

impl Array {
    /// Converts an array of two axes to vectors, `[rows, coordinates]`; `what` names the array in errors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] where there are not two axes, or no coordinates; [`ErrorKind::Empty`] without a
    /// row.
    pub fn into_matrix(self, what: impl Display) -> Result<Matrix> {
        let (_, columns) = rows_and_columns(&self.shape, &what)?;
        Matrix::new(columns, self.numbers.into_floats())
    }
}

/// Rows and columns of an array of vectors, which must have at least one row and one coordinate.
fn rows_and_columns(shape: &[usize], what: &dyn Display) -> Result<(usize, usize)> {
    match *shape {
        [_, 0] => Err(Error::corrupt(what, "its rows have no coordinates (shape [n, 0])")),
        [0, _] => Err(Error::empty(what)),
        [rows, columns] => Ok((rows, columns)),
        _ => {
            let detail = format!("its shape is {shape:?}; vectors are two-dimensional, [rows, coordinates]");
            Err(Error::corrupt(what, detail))
        }
    }
}

/// Reads a whole array of numbers. NaN and infinite numbers are read as they are; an axis of length 0 is
/// allowed.
///
/// # Errors
///
/// [`ErrorKind::Io`]; [`ErrorKind::Corrupt`] for a file that is no `.npy` file, is truncated, or holds text,
/// records or objects; [`ErrorKind::Empty`] for a file without a byte.
pub fn read_array(path: impl AsRef<Path>) -> Result<Array> {
    let path = path.as_ref();
    let (mut opened, header) = open_array(path)?;
    let mut raw = vec![0; (opened.bytes - header.offset) as usize];
    opened.file.read_exact(&mut raw).map_err(|error| Error::io("read", path, &error))?;
    array(&header, raw, &path.display())
}

/// Reads an array from the bytes of a `.npy` file; `what` names them in errors.
///
/// ```
/// use rehang_files::{ArrayNumbers, array_from_bytes};
///
/// let mut bytes = b"\x93NUMPY\x01\x00\x46\x00".to_vec();
/// bytes.extend(format!("{:<70}", "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1, 2), }").bytes());
/// bytes.extend([1, 2, 3, 4]);
/// let array = array_from_bytes(&bytes, "images")?;
/// assert_eq!(array.shape, [2, 1, 2]);
/// assert_eq!(array.numbers, ArrayNumbers::Bytes(vec![1, 2, 3, 4]));
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// As [`read_array`].
pub fn array_from_bytes(bytes: &[u8], what: impl Display) -> Result<Array> {
    if bytes.is_empty() {
        return Err(ErrorKind::Empty { what: what.to_string() }.into());
    }
    let header = read_header(&mut &*bytes, bytes.len() as u64, &what)?;
    let raw = bytes[header.offset as usize..].to_vec();
    array(&header, raw, &what)
}

/// Builds an array from its header and the bytes behind it. The header was checked against the length of the
/// file.
fn array(header: &Header, raw: Vec<u8>, what: &dyn Display) -> Result<Array> {
    let Content::Numbers(element) = header.content else {
        return Err(Error::corrupt(what, "it holds text where numbers are needed"));
    };
    let shape = header.shape.clone();
    let numbers = if element.is_integer() {
        if element.is_byte() {
            ArrayNumbers::Bytes(in_c_order(raw, &shape, header.fortran))
        } else {
            ArrayNumbers::Integers(in_c_order(element.integers(&raw, what)?, &shape, header.fortran))
        }
    } else {
        let mut floats = Vec::with_capacity(raw.len() / element.bytes());
        element.append_f32(&raw, &mut floats);
        ArrayNumbers::Floats(in_c_order(floats, &shape, header.fortran))
    };
    Ok(Array { shape, numbers })
}

/// Puts numbers into C order. In Fortran order, the first axis runs fastest.
fn in_c_order<T: Copy>(numbers: Vec<T>, shape: &[usize], fortran: bool) -> Vec<T> {
    if !fortran || shape.len() < 2 || numbers.is_empty() {
        return numbers;
    }
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = 1;
    for &side in shape {
        strides.push(stride);
        stride *= side;
    }
    let mut at = vec![0; shape.len()];
    let mut turned = Vec::with_capacity(numbers.len());
    for _ in 0..numbers.len() {
        turned.push(numbers[at.iter().zip(&strides).map(|(&index, &stride)| index * stride).sum::<usize>()]);
        for (index, &side) in at.iter_mut().zip(shape).rev() {
            *index += 1;
            if *index < side {
                break;
            }
            *index = 0;
        }
    }
    turned
}

struct Header {
    content: Content,
    fortran: bool,
    shape: Vec<usize>,
    offset: u64,
}

/// Opens a two-dimensional array of numbers as rows.
pub(super) fn open_rows(path: &Path) -> Result<RawRows> {
    let (opened, header) = open_array(path)?;
    let Content::Numbers(element) = header.content else {
        return Err(Error::corrupt(path.display(), "it holds text where vectors (numbers) are needed"));
    };
    let (rows, columns) = rows_and_columns(&header.shape, &path.display())?;
    // A single column or row is the same in both orders.
    let layout = if header.fortran { Layout::Columns } else { Layout::Rows };
    Ok(RawRows::new(path.to_path_buf(), opened.file, header.offset, (rows, columns), element, layout))
}

/// Reads a one-dimensional array (`[n]`, or `[n, 1]`) of numbers or text.
pub(super) fn read_scalars(path: &Path) -> Result<Scalars> {
    let (mut opened, header) = open_array(path)?;
    let ([count] | [count, 1]) = *header.shape.as_slice() else {
        let detail = format!("its shape is {:?}; one value a row is needed, [rows]", header.shape);
        return Err(Error::corrupt(path.display(), detail));
    };
    if count == 0 {
        return Err(opened.empty());
    }
    match header.content {
        Content::Numbers(element) => {
            let path = path.to_path_buf();
            RawRows::new(path, opened.file, header.offset, (count, 1), element, Layout::Rows).scalars()
        }
        Content::Text { unit, length, big_endian } => {
            let mut bytes = vec![0; count * length * unit];
            opened.file.read_exact(&mut bytes).map_err(|error| Error::io("read", path, &error))?;
            bytes
                .chunks_exact(length * unit)
                .enumerate()
                .map(|(row, entry)| {
                    text_entry(entry, unit, big_endian)
                        .ok_or_else(|| Error::corrupt(path.display(), format!("row {row} is not text")))
                })
                .collect::<Result<_>>()
                .map(Scalars::Texts)
        }
    }
}

/// Decodes one entry of a text array, without the zeros that fill it up.
fn text_entry(entry: &[u8], unit: usize, big_endian: bool) -> Option<String> {
    if unit == 1 {
        let end = entry.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        return String::from_utf8(entry[..end].to_vec()).ok();
    }
    let (characters, _) = entry.as_chunks::<4>();
    let mut text = String::new();
    for &bytes in characters {
        let code = if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
        text.push(char::from_u32(code)?);
    }
    text.truncate(text.trim_end_matches('\0').len());
    Some(text)
}

/// Opens an array and checks its header against the length of the file. The file is then positioned at the
/// first number.
fn open_array(path: &Path) -> Result<(Opened, Header)> {
    let mut opened = open(path)?;
    if opened.bytes == 0 {
        return Err(opened.empty());
    }
    let header = read_header(&mut opened.file, opened.bytes, &path.display())?;
    Ok((opened, header))
}

/// Reads a header and checks it against the `bytes` of the whole file. The reader is then positioned at the
/// first number.
fn read_header(reader: &mut impl Read, bytes: u64, what: &dyn Display) -> Result<Header> {
    let corrupt = |detail: String| Error::corrupt(what, detail);
    let mut take = |count: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        reader
            .read_exact(&mut bytes)
            .map_err(|_| corrupt("it ends inside the header of a .npy file".into()))?;
        Ok(bytes)
    };
    let start = take(8.min(bytes as usize))?;
    if start.len() < 8 || !start.starts_with(MAGIC) {
        return Err(corrupt("it is no .npy file (its first bytes are not \\x93NUMPY)".into()));
    }
    let (length, before) = match start[6] {
        1 => {
            let size = take(2)?;
            (usize::from(u16::from_le_bytes([size[0], size[1]])), 10)
        }
        2 | 3 => {
            let size = take(4)?;
            (u32::from_le_bytes([size[0], size[1], size[2], size[3]]) as usize, 12)
        }
        version => return Err(corrupt(format!("version {version} of the .npy format is not known"))),
    };
    if length > HEADER_BYTES_MAX {
        return Err(corrupt(format!(
            "its header claims {length} bytes; at most {HEADER_BYTES_MAX} are read"
        )));
    }
    let text = take(length)?;
    let text = std::str::from_utf8(&text).map_err(|_| corrupt("its header is not text".into()))?;
    let (description, fortran, shape) = Literal { unread: text }.dictionary().map_err(corrupt)?;
    let content = content(&description).map_err(corrupt)?;
    let size = match content {
        Content::Numbers(element) => element.bytes(),
        Content::Text { unit, length, .. } => unit * length,
    };
    let offset = (before + length) as u64;
    let claimed =
        shape.iter().try_fold(size, |product, &side| product.checked_mul(side)).map(|bytes| bytes as u64);
    let held = bytes - offset;
    if claimed != Some(held) {
        let problem = match claimed {
            Some(claimed) if claimed < held => "there is more in the file",
            _ => "the file is truncated or its header is wrong",
        };
        let needed =
            claimed.map_or_else(|| "more bytes than can be counted".into(), |n| format!("{n} bytes"));
        return Err(corrupt(format!(
            "shape {shape:?} of {description} needs {needed} and {held} are there: {problem}"
        )));
    }
    Ok(Header { content, fortran, shape, offset })
}

/// Parses a type description such as `<f4`.
fn content(description: &str) -> Result<Content, String> {
    let refused = || {
        let words = match description.trim_start_matches(['<', '>', '|', '=']).chars().next() {
            Some('O') => "Python objects, which are pickled code and never loaded",
            Some('c') => "complex numbers",
            Some('M' | 'm') => "dates or durations",
            Some('V' | '[') => "records",
            _ => "a type that is not known",
        };
        format!("its numbers are of type {description}: {words}; save it as float32 or an integer type")
    };
    let mut characters = description.chars();
    let big_endian = match characters.next() {
        Some('<' | '|') => false,
        Some('>') => true,
        // NumPy writes the byte order out. A file with "=" was not written by NumPy, and means this machine's
        // byte order.
        Some('=') => cfg!(target_endian = "big"),
        _ => return Err(refused()),
    };
    let kind = characters.next().ok_or_else(refused)?;
    let size: usize = characters.as_str().parse().map_err(|_| refused())?;
    let meaning = match kind {
        'f' => Meaning::Float,
        'i' => Meaning::Signed,
        'u' => Meaning::Unsigned,
        'b' => Meaning::Boolean,
        'S' | 'U' => {
            let unit = if kind == 'U' { 4 } else { 1 };
            if size == 0 || size > HEADER_BYTES_MAX {
                return Err(refused());
            }
            return Ok(Content::Text { unit, length: size, big_endian });
        }
        _ => return Err(refused()),
    };
    Element::new(meaning, size, big_endian).map(Content::Numbers).ok_or_else(refused)
}

/// Parser of the one Python dictionary that a header may hold. Its keys are texts; its values are a text, a
/// truth value and a tuple.
struct Literal<'a> {
    unread: &'a str,
}

impl Literal<'_> {
    fn dictionary(mut self) -> Result<(String, bool, Vec<usize>), String> {
        let wrong = || String::from("its header is no .npy header");
        let (mut description, mut fortran, mut shape) = (None, None, None);
        if !self.eat('{') {
            return Err(wrong());
        }
        while !self.eat('}') {
            let key = self.text().ok_or_else(wrong)?;
            if !self.eat(':') {
                return Err(wrong());
            }
            let twice = match key.as_str() {
                "descr" if self.peek() == Some('[') => {
                    return Err("it holds records of several fields; save one array of plain numbers".into());
                }
                "descr" => description.replace(self.text().ok_or_else(wrong)?).is_some(),
                "fortran_order" => fortran.replace(self.truth().ok_or_else(wrong)?).is_some(),
                "shape" => shape.replace(self.tuple().ok_or_else(wrong)?).is_some(),
                _ => return Err(format!("its header has the unknown key {key:?}")),
            };
            if twice {
                return Err(format!("its header has the key {key:?} twice"));
            }
            if !self.eat(',') && self.peek() != Some('}') {
                return Err(wrong());
            }
        }
        if !self.unread.trim().is_empty() {
            return Err(wrong());
        }
        match (description, fortran, shape) {
            (Some(description), Some(fortran), Some(shape)) => Ok((description, fortran, shape)),
            _ => Err("its header lacks one of 'descr', 'fortran_order' and 'shape'".into()),
        }
    }

    fn peek(&mut self) -> Option<char> {
        self.unread = self.unread.trim_start();
        self.unread.chars().next()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let is_next = self.peek() == Some(wanted);
        if is_next {
            self.unread = &self.unread[wanted.len_utf8()..];
        }
        is_next
    }

    fn text(&mut self) -> Option<String> {
        let quote = self.peek().filter(|quote| matches!(quote, '\'' | '"'))?;
        let inside = &self.unread[1..];
        let end = inside.find(quote)?;
        self.unread = &inside[end + 1..];
        Some(inside[..end].to_string())
    }

    fn truth(&mut self) -> Option<bool> {
        self.peek()?;
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(after) = self.unread.strip_prefix(word) {
                self.unread = after;
                return Some(value);
            }
        }
        None
    }

    fn tuple(&mut self) -> Option<Vec<usize>> {
        let mut sides = Vec::new();
        if !self.eat('(') {
            return None;
        }
        while !self.eat(')') {
            self.peek()?;
            let digits = self.unread.bytes().take_while(u8::is_ascii_digit).count();
            sides.push(self.unread[..digits].parse().ok()?);
            self.unread = &self.unread[digits..];
            // Python 2 wrote long integers with an L behind them.
            self.unread = self.unread.strip_prefix('L').unwrap_or(self.unread);
            if !self.eat(',') && self.peek() != Some(')') {
                return None;
            }
        }
        Some(sides)
    }
}

/// Makes the header of an array in C order, always 128 bytes long, as NumPy writes it.
fn header(description: &str, shape: &str) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&[1, 0]);
    header.extend_from_slice(&((HEADER_BYTES - 10) as u16).to_le_bytes());
    header.extend_from_slice(
        format!("{{'descr': '{description}', 'fortran_order': False, 'shape': {shape}, }}").as_bytes(),
    );
    header.resize(HEADER_BYTES - 1, b' ');
    header.push(b'\n');
    header
}

/// Makes the header of `[rows, width]` numbers of four bytes.
pub(super) fn matrix_header(rows: u64, width: usize) -> Vec<u8> {
    header("<f4", &format!("({rows}, {width})"))
}

/// Makes the header of a list of numbers of four bytes.
pub(super) fn list_header(rows: u64, _: usize) -> Vec<u8> {
    header("<f4", &format!("({rows},)"))
}

/// Writes a one-dimensional array of `int64`.
pub(super) fn write_integers(path: &Path, values: &[i64]) -> Result<()> {
    let mut writer =
        RawWriter::create(path, 1, Layout::Rows, |rows, _| header("<i8", &format!("({rows},)")))?;
    for chunk in values.chunks(1 << 16) {
        writer.put(chunk.len(), chunk.iter().map(|value| value.to_le_bytes()))?;
    }
    writer.finish().map(|_| ())
}
