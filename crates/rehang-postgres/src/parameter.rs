//! Parameters of statements: values, each with the type that the server gets it as.
//!
//! A statement goes to the server whole. With the types of its parameters it needs no look at it before,
//! and no name that a session would have to keep. So it may go through a pooler, which gives each
//! transaction another session.

use std::fmt;

use pgvector::{HalfVector, Vector};
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use tokio_postgres::types::{FromSql, Kind, ToSql, Type};

use crate::connection::Step;

/// Value of a statement with its type.
pub(crate) trait Parameter {
    /// Returns the type that the server gets the value as.
    fn kind(&self) -> Type;

    /// Returns the value for the driver.
    fn value(&self) -> &(dyn ToSql + Sync);
}

/// Type of Rust that goes to the server as one type.
pub(crate) trait OfType {
    const TYPE: Type;
    const ARRAY: Type;
}

macro_rules! of_type {
    ($($rust:ty: $one:ident, $many:ident;)*) => {
        $(impl OfType for $rust {
            const TYPE: Type = Type::$one;
            const ARRAY: Type = Type::$many;
        })*
    };
}

of_type! {
    bool: BOOL, BOOL_ARRAY;
    i16: INT2, INT2_ARRAY;
    i32: INT4, INT4_ARRAY;
    i64: INT8, INT8_ARRAY;
    u32: OID, OID_ARRAY;
    f32: FLOAT4, FLOAT4_ARRAY;
    f64: FLOAT8, FLOAT8_ARRAY;
    &str: TEXT, TEXT_ARRAY;
    String: TEXT, TEXT_ARRAY;
    Value: JSONB, JSONB_ARRAY;
    &Value: JSONB, JSONB_ARRAY;
}

impl<T: OfType> OfType for Option<T> {
    const TYPE: Type = T::TYPE;
    const ARRAY: Type = T::ARRAY;
}

impl<T: OfType> OfType for &Option<T> {
    const TYPE: Type = T::TYPE;
    const ARRAY: Type = T::ARRAY;
}

/// An array.
impl<T: OfType> OfType for Vec<T> {
    const TYPE: Type = T::ARRAY;
    const ARRAY: Type = T::ARRAY;
}

impl<T: OfType> OfType for &[T] {
    const TYPE: Type = T::ARRAY;
    const ARRAY: Type = T::ARRAY;
}

impl<T: OfType + ToSql + Sync> Parameter for T {
    fn kind(&self) -> Type {
        T::TYPE
    }

    fn value(&self) -> &(dyn ToSql + Sync) {
        self
    }
}

/// Sends a vector without a known type; the statement casts it to pgvector's type, so that the server
/// knows which one is meant.
impl Parameter for Vector {
    fn kind(&self) -> Type {
        unnamed("vector")
    }

    fn value(&self) -> &(dyn ToSql + Sync) {
        self
    }
}

impl Parameter for Option<Vector> {
    fn kind(&self) -> Type {
        unnamed("vector")
    }

    fn value(&self) -> &(dyn ToSql + Sync) {
        self
    }
}

/// Returns a type of an extension that the server is left to find out.
fn unnamed(name: &str) -> Type {
    Type::new(name.to_owned(), 0, Kind::Simple, String::new())
}

/// Type of an array of pgvector's vectors, by the numbers that a database gives to the type and its arrays:
/// an array names the type of its elements.
#[derive(Debug, Clone)]
pub(crate) struct ArrayType(Type);

impl ArrayType {
    pub(crate) fn new(name: &str, number: u32, of_array: u32) -> Self {
        let element = Type::new(name.to_owned(), number, Kind::Simple, String::new());
        Self(Type::new(format!("_{name}"), of_array, Kind::Array(element), String::new()))
    }
}

/// Many vectors as one parameter.
#[derive(Debug)]
pub(crate) struct Many<T> {
    kind: ArrayType,
    values: Vec<T>,
}

impl<T> Many<T> {
    pub(crate) fn new(kind: &ArrayType, values: Vec<T>) -> Self {
        Self { kind: kind.clone(), values }
    }
}

macro_rules! many {
    ($($kind:ty),*) => {
        $(impl Parameter for Many<$kind> {
            fn kind(&self) -> Type {
                self.kind.0.clone()
            }

            fn value(&self) -> &(dyn ToSql + Sync) {
                &self.values
            }
        })*
    };
}

many!(Vector, HalfVector);

/// Reads a vector from a column that pgvector's own `vector_send` has made. The column is of bytes, a type
/// that the driver knows by itself: for any other it would ask the server.
pub(crate) fn vector(row: &Row, column: impl RowIndex + fmt::Display) -> Step<Option<Vec<f32>>> {
    let sent: Option<&[u8]> = row.try_get(column)?;
    let read = |bytes| <Vector as FromSql>::from_sql(&Type::BYTEA, bytes);
    let vector = sent
        .map(read)
        .transpose()
        .map_err(|error| rehang_core::Error::corrupt("a vector of the gallery", error))?;
    Ok(vector.map(Vec::from))
}
