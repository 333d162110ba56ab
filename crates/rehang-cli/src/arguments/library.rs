//! How arguments become the options of a library: an argument fills the option of its name.

use std::path::PathBuf;
use std::str::FromStr;

use rehang_core::curve::Metric;
use rehang_core::report::Precision;
use rehang_core::{Distance, Error, HeadKind, Result, one_of};
use rehang_files::adapter_file::AdapterSource;
use rehang_files::thresholds::Budget;
use rehang_files::{RowSelection, VectorSource};
use rehang_fit::objectives::squared::SquaredScale;
use rehang_fit::{LossParts, Method, UncertaintySource, Within};
use rehang_upgrade::{SwitchIf, Until, parse_rate};

/// Fills a library's options from the arguments of the same names. Options without such an argument stand
/// behind them, with their values.
#[doc(hidden)]
#[macro_export]
macro_rules! options {
    ($options:ident { $($name:ident),* $(,)? } from $arguments:expr $(, $other:ident: $value:expr)* $(; ..$plain:expr)?) => {
        $options {
            $($name: $crate::arguments::library::Argument::value(&$arguments.$name)?,)*
            $($other: $value,)*
            $(..$plain)?
        }
    };
}
pub use options;

/// Lists the names of distances for the help of an argument, which takes them from the library.
pub fn distances() -> String {
    one_of(&Distance::ALL.map(Distance::name))
}

/// Argument that becomes a value of a library.
pub trait Argument<T> {
    /// The library's value.
    fn value(&self) -> Result<T>;
}

/// Type that the command line and the libraries share.
pub trait Shared: Clone {}

/// Type that a library reads from text. The library words what it expects.
pub trait Text: FromStr<Err = Error> {}

macro_rules! are {
    ($kind:ident: $($type:ty),*) => { $(impl $kind for $type {})* };
}

are!(Shared: bool, f32, f64, u64, usize, String, PathBuf, VectorSource);
are!(Text: Distance, Budget, HeadKind, LossParts, Method, Metric, Precision, RowSelection, SquaredScale, SwitchIf, UncertaintySource, Until, Within);

impl<T: Shared> Argument<T> for T {
    fn value(&self) -> Result<T> {
        Ok(self.clone())
    }
}

impl<T: Text> Argument<T> for String {
    fn value(&self) -> Result<T> {
        self.parse()
    }
}

/// Rates are the numbers that people write with a unit.
impl Argument<f64> for String {
    fn value(&self) -> Result<f64> {
        parse_rate("rate", self)
    }
}

impl Argument<AdapterSource> for PathBuf {
    fn value(&self) -> Result<AdapterSource> {
        Ok(self.into())
    }
}

impl<T, A: Argument<T>> Argument<Option<T>> for Option<A> {
    fn value(&self) -> Result<Option<T>> {
        self.as_ref().map(A::value).transpose()
    }
}

impl<T, Each: Argument<T>> Argument<Vec<T>> for Vec<Each> {
    fn value(&self) -> Result<Vec<T>> {
        self.iter().map(Each::value).collect()
    }
}

/// Argument that can be written as a person types it.
pub trait Typed {
    /// Words that give the argument to the option of a name; none where nothing was given.
    fn words(&self, name: &str) -> Vec<String>;
}

impl<T: ToString> Typed for Option<T> {
    fn words(&self, name: &str) -> Vec<String> {
        self.iter().flat_map(|value| [flag(name), value.to_string()]).collect()
    }
}

impl Typed for bool {
    fn words(&self, name: &str) -> Vec<String> {
        if *self { vec![flag(name)] } else { Vec::new() }
    }
}

fn flag(name: &str) -> String {
    format!("--{}", name.replace('_', "-"))
}
