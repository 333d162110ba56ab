//! The Arrow schema that Parquet files carry beside their own. It lets Arrow readers give vectors back as
//! lists of one fixed size; Parquet itself only knows lists of any size.
//!
//! The schema is Arrow's `Message` of a `Schema`, a flatbuffer, in base64 under the key `ARROW:schema`
//! (`format/Message.fbs` and `format/Schema.fbs` of Arrow's columnar format, version 5). Files of rehang have
//! four types of columns, so the few tables are built here.

use ::parquet::file::metadata::KeyValue;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, VOffsetT, WIPOffset};

/// Key of the file's metadata that Arrow readers look for.
const KEY: &str = "ARROW:schema";

/// Name of a list's numbers, in Arrow's schema as in Parquet's.
pub(super) const ELEMENT: &str = "element";

/// Type of a column. No column may have missing values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldType {
    Int64,
    Utf8,
    Float32,
    Float32List { width: i32 },
}

/// Numbers of types in the union `Type`.
const INT: u8 = 2;
const FLOATING_POINT: u8 = 3;
const UTF8: u8 = 5;
const FIXED_SIZE_LIST: u8 = 16;

/// Values of the enumerations `Precision` and `MetadataVersion`, and the number of a schema in the union
/// `MessageHeader`.
const SINGLE: i16 = 1;
const VERSION_5: i16 = 4;
const SCHEMA: u8 = 1;

/// Byte in a table's list of offsets that holds the offset of the field with this number.
const fn slot(number: VOffsetT) -> VOffsetT {
    4 + 2 * number
}

/// Makes the entry of a Parquet file's metadata for columns of these names and types.
pub(super) fn metadata(fields: &[(&str, FieldType)]) -> KeyValue {
    let message = message(fields);
    // The frame of an Arrow stream is a mark and the length.
    let mut framed = vec![0xff; 4];
    framed.extend((message.len() as u32).to_le_bytes());
    framed.extend(message);
    KeyValue::new(KEY.to_string(), STANDARD.encode(framed))
}

/// Builds the flatbuffer, filled up to a multiple of 8 bytes as the format asks.
fn message(fields: &[(&str, FieldType)]) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let fields: Vec<_> = fields.iter().map(|&(name, kind)| field(&mut builder, name, kind)).collect();
    let fields = builder.create_vector(&fields);
    let table = builder.start_table();
    builder.push_slot_always(slot(1), fields);
    let schema = builder.end_table(table);
    let table = builder.start_table();
    builder.push_slot_always(slot(0), VERSION_5);
    builder.push_slot_always(slot(1), SCHEMA);
    builder.push_slot_always(slot(2), schema);
    let message = builder.end_table(table);
    builder.finish(message, None);
    let mut bytes = builder.finished_data().to_vec();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

/// Builds a `Field`: name (0), nullable (1, false by default), the number in the union and the type itself
/// (2, 3), children (5).
fn field(
    builder: &mut FlatBufferBuilder<'_>,
    name: &str,
    kind: FieldType,
) -> WIPOffset<TableFinishedWIPOffset> {
    let children: Vec<_> = match kind {
        FieldType::Float32List { .. } => vec![field(builder, ELEMENT, FieldType::Float32)],
        _ => Vec::new(),
    };
    let children = builder.create_vector(&children);
    let name = builder.create_string(name);
    let table = builder.start_table();
    let member = match kind {
        FieldType::Int64 => {
            builder.push_slot_always(slot(0), 64_i32);
            builder.push_slot_always(slot(1), true);
            INT
        }
        FieldType::Utf8 => UTF8,
        FieldType::Float32 => {
            builder.push_slot_always(slot(0), SINGLE);
            FLOATING_POINT
        }
        FieldType::Float32List { width } => {
            builder.push_slot_always(slot(0), width);
            FIXED_SIZE_LIST
        }
    };
    let kind = builder.end_table(table);
    let table = builder.start_table();
    builder.push_slot_always(slot(0), name);
    builder.push_slot_always(slot(2), member);
    builder.push_slot_always(slot(3), kind);
    builder.push_slot_always(slot(5), children);
    builder.end_table(table)
}
