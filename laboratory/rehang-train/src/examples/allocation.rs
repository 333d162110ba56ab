//! Allocation of rows: which the old and the new model are trained on, and which neither sees.

use std::path::{Path, PathBuf};

use rand::seq::SliceRandom;
use rehang_core::check::expect_count;
use rehang_core::{Error, Result};
use rehang_files::{AtomicFile, VectorSource, read_labels};
use serde::{Deserialize, Serialize};

use super::dataset::Examples;
use super::draws::{Purpose, generator};

/// Format that every allocation file names.
const FORMAT: &str = "rehang-allocation";

/// Version of the format that is written and read.
const VERSION: u32 = 1;

/// Way in which training data are divided between the old and the new model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocationKind {
    /// The gallery grew: old sees a share of the rows of every class, as with [`AllocationKind::OpenData`],
    /// new all rows.
    Expansion,
    /// Data of one time were replaced by data of another: old sees a share of the rows of every class, new
    /// the rest.
    OpenData,
    /// The world changed: old sees a share of the classes, drawn at random, new the other classes.
    OpenClass,
    /// Classes were added (Shen et al. 2020, BCT): old sees the first share of the classes, new all classes.
    ExtendedClass,
    /// Classes are listed, see [`ClassLists`].
    Classes,
}

/// Parameters by which an allocation is drawn.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `kind` | | how rows are divided | see [`AllocationKind`] |
/// | `share` | | share that old sees, not with `classes` | above 0, below 1 (1 where new sees all) |
/// | `seed` | 0 | draws classes and rows | |
/// | `test` | 0.1 | share of every seen class that is held out for the test | 0 to below 1 |
/// | `test_rows` | none | a file of row numbers that are the test instead | |
/// | `unseen` | 0 | share of the classes that neither model sees; not with `classes` | 0 to below 1 |
/// | `classes` | none | the lists, with `kind = "classes"` | see [`ClassLists`] |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocationParameters {
    /// Way in which rows are divided.
    pub kind: AllocationKind,
    /// Share of rows or classes that the old model sees; `None` only where classes are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    /// Seed that draws classes and rows.
    #[serde(default)]
    pub seed: u64,
    /// Share of the rows of every seen class that is held out for the test, at least one row of a class of
    /// two.
    #[serde(default = "a_tenth")]
    pub test: f64,
    /// File of row numbers, one a row, that are the test instead of a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_rows: Option<PathBuf>,
    /// Share of the classes that neither model sees, drawn at random.
    #[serde(default)]
    pub unseen: f64,
    /// Lists of classes, where they are listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<ClassLists>,
}

/// Classes that each model sees, by hand.
///
/// An entry is the name of a class, or `"A..B"` for the classes number A to B − 1 in the order of
/// [`Examples::classes`]; a class that is called so goes first.
///
/// ```
/// use rehang_train::examples::ClassLists;
///
/// let lists: ClassLists = toml::from_str("old = ['0..80']\nnew = ['0..160']")?;
/// assert_eq!(lists.unseen, None);
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassLists {
    /// Classes of the old model.
    pub old: Vec<String>,
    /// Classes of the new model.
    pub new: Vec<String>,
    /// Classes that neither model sees; by default all that stand in neither list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unseen: Option<Vec<String>>,
}

/// Allocation: who sees which rows. Old and new model are trained from one file of it, so that the test is
/// new to both.
///
/// Each list of rows is increasing. `test` and `unseen` share no row with each other, nor with `old` or
/// `new`; `old` and `new` may share rows, as their kind says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    format: String,
    version: u32,
    /// Parameters that it was drawn from.
    pub parameters: AllocationParameters,
    /// Share that the new model sees, where the allocation is one step of a chain.
    pub new_share: Option<f64>,
    /// Number of rows of the data.
    pub rows: usize,
    /// Fingerprint of the data, by [`Examples::fingerprint`].
    pub fingerprint: String,
    /// Rows that the old model is trained on.
    pub old: Vec<usize>,
    /// Rows that the new model is trained on.
    pub new: Vec<usize>,
    /// Rows of seen classes that are held out from both models.
    pub test: Vec<usize>,
    /// Rows of the classes that neither model sees, all of them.
    pub unseen: Vec<usize>,
}

impl AllocationParameters {
    /// Takes a kind and a share, and the defaults above.
    pub fn new(kind: AllocationKind, share: f64) -> Self {
        Self {
            kind,
            share: Some(share),
            seed: 0,
            test: a_tenth(),
            test_rows: None,
            unseen: 0.0,
            classes: None,
        }
    }

    /// Takes listed classes, and the defaults above.
    pub fn of_classes(lists: ClassLists) -> Self {
        Self { share: None, classes: Some(lists), ..Self::new(AllocationKind::Classes, 0.5) }
    }

    fn check(&self) -> Result<()> {
        for (option, value) in [("test", self.test), ("unseen", self.unseen)] {
            if !(0.0..1.0).contains(&value) {
                return Err(Error::option(option, value, "a number from 0 to below 1"));
            }
        }
        let listed = self.kind == AllocationKind::Classes;
        match (&self.classes, listed) {
            (None, true) => return Err(Error::missing("classes", "an allocation of kind \"classes\"")),
            (Some(_), false) => {
                return Err(Error::option("classes", "given", "no lists without kind = \"classes\""));
            }
            _ => {}
        }
        match self.share {
            None if !listed => Err(Error::missing("share", "an allocation")),
            Some(share) if listed => {
                Err(Error::option("share", share, "no share with kind = \"classes\": the lists say it"))
            }
            _ if listed && self.unseen > 0.0 => Err(Error::option(
                "unseen",
                self.unseen,
                "0 with kind = \"classes\": the lists say which classes are unseen",
            )),
            Some(share) => check_share("share", share),
            None => Ok(()),
        }
    }
}

impl Allocation {
    /// Draws an allocation: who sees which rows.
    ///
    /// First the unseen classes are set aside, then the test rows, then the rest is divided. Unseen classes
    /// and test rows do not depend on the kind and the share, and a larger share holds every row of a smaller
    /// one, so allocations of one seed can be compared. A share of rows or classes is rounded to the nearest
    /// number, but leaves at least one on either side.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::InvalidOption`] and [`rehang_core::ErrorKind::MissingInput`] for parameters out of
    /// range, and for test rows of a class that no list names; [`rehang_core::ErrorKind::NotFound`] for a listed
    /// class that is not there; [`rehang_core::ErrorKind::Empty`] where a model would see nothing; as
    /// [`Examples::check_trainable`].
    pub fn draw(examples: &Examples, parameters: &AllocationParameters) -> Result<Self> {
        parameters.check()?;
        let division = Division::new(examples, parameters)?;
        let (old, new) = match parameters.share {
            None => division.listed(examples, parameters)?,
            Some(share) => {
                let old = division.stage(share);
                let new = match parameters.kind {
                    AllocationKind::OpenData | AllocationKind::OpenClass => {
                        without(&division.stage(1.0), &old)
                    }
                    _ => division.stage(1.0),
                };
                (old, new)
            }
        };
        division.finish(examples, parameters.clone(), None, old, new)
    }

    /// Draws a step in a sequence of models, each trained on more than the last: from a model that was
    /// trained on `parameters.share` to one that is trained on `new_share`. With shares of 0.3, 0.6, 0.8 and
    /// 1 there are three steps.
    ///
    /// Every model sees all that the one before it saw, also where a single step of this kind would divide
    /// the rows, and all steps of one seed have one test.
    ///
    /// # Errors
    ///
    /// As [`Allocation::draw`]; missing input without a share; [`rehang_core::ErrorKind::InvalidOption`] for a
    /// `new_share` that is not larger.
    pub fn step(examples: &Examples, parameters: &AllocationParameters, new_share: f64) -> Result<Self> {
        if parameters.kind == AllocationKind::Classes {
            return Err(Error::option("kind", "classes", "a kind with shares, for a sequence of models"));
        }
        let missing = || Error::missing("share", "an allocation with a new_share");
        let share = parameters.share.ok_or_else(missing)?;
        parameters.check()?;
        check_share("new_share", new_share)?;
        if share >= new_share {
            return Err(Error::option("new_share", new_share, format!("a share above the old one, {share}")));
        }
        let division = Division::new(examples, parameters)?;
        let (old, new) = (division.stage(share), division.stage(new_share));
        division.finish(examples, parameters.clone(), Some(new_share), old, new)
    }

    /// Writes the allocation as JSON.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Io`].
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| Error::corrupt("the allocation", error))?;
        bytes.push(b'\n');
        AtomicFile::write(path, &bytes)
    }

    /// Reads an allocation and holds it against the data that it is for.
    ///
    /// # Errors
    ///
    /// [`rehang_core::ErrorKind::Io`]; [`rehang_core::ErrorKind::Corrupt`] for a file that is no allocation, or one
    /// whose lists contradict what an [`Allocation`] is; [`rehang_core::ErrorKind::CountMismatch`] for data of
    /// another length; [`rehang_core::ErrorKind::Conflict`] for other data of the same length.
    pub fn read(path: impl AsRef<Path>, examples: &Examples) -> Result<Self> {
        let path = path.as_ref();
        let corrupt = |detail: String| Error::corrupt(path.display(), detail);
        let bytes = fs_err::read(path).map_err(|error| Error::io("read", path, &error))?;
        let header: Header = serde_json::from_slice(&bytes)
            .map_err(|error| corrupt(format!("it is no allocation: {error}")))?;
        if header.format != FORMAT {
            return Err(corrupt(format!("its format is {:?} and not {FORMAT:?}", header.format)));
        }
        if header.version != VERSION {
            return Err(corrupt(format!(
                "it is of version {} of the format, and version {VERSION} is read",
                header.version
            )));
        }
        let allocation: Self = serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
        let what = format!("the allocation {}", path.display());
        expect_count(&what, allocation.rows, "the set of examples", examples.len())?;
        let fingerprint = examples.fingerprint();
        if allocation.fingerprint != fingerprint {
            return Err(Error::conflict(
                path.display(),
                format!(
                    "it is for data with the fingerprint {}, and these have {fingerprint}; give the data it was drawn \
                     from, or draw it again",
                    allocation.fingerprint
                ),
            ));
        }
        allocation.check().map_err(corrupt)?;
        Ok(allocation)
    }

    /// Fails with what contradicts the definition of an allocation.
    pub(super) fn check(&self) -> Result<(), String> {
        let lists = [("old", &self.old), ("new", &self.new), ("test", &self.test), ("unseen", &self.unseen)];
        let mut marks = vec![0_u8; self.rows];
        for (number, (name, list)) in lists.into_iter().enumerate() {
            if !list.is_sorted_by(|a, b| a < b) {
                return Err(format!("the list {name} is not increasing"));
            }
            for &row in list {
                let mark = marks
                    .get_mut(row)
                    .ok_or_else(|| format!("the list {name} names row {row} of {}", self.rows))?;
                *mark |= 1 << number;
            }
        }
        // Bits: old 1, new 2, test 4, unseen 8.
        match marks.iter().position(|&mark| mark & 4 != 0 && mark != 4 || mark & 8 != 0 && mark != 8) {
            Some(row) => Err(format!("row {row} is held out and stands in another list as well")),
            None if self.old.is_empty() || self.new.is_empty() => Err("one of the models sees no row".into()),
            None => Ok(()),
        }
    }
}

/// Start of the file, read by itself so that another version is named as such.
#[derive(Deserialize)]
struct Header {
    format: String,
    version: u32,
}

/// Division that is the same for every share: who is held out, and in which order the rest is handed out.
struct Division {
    kind: AllocationKind,
    test: Vec<usize>,
    unseen: Vec<usize>,
    /// Rows that may be trained on, one part a class. Each kind hands out either the first of the rows of
    /// every part, or the first parts as a whole.
    parts: Vec<Vec<usize>>,
}

impl Division {
    fn new(examples: &Examples, parameters: &AllocationParameters) -> Result<Self> {
        examples.check_trainable()?;
        let seed = parameters.seed;
        let by_class = examples.rows_by_class();
        let mut roles = vec![Role::Seen; by_class.len()];
        if let Some(lists) = &parameters.classes {
            roles = lists.roles(examples)?;
        } else if parameters.unseen > 0.0 {
            let mut order: Vec<usize> =
                (0..by_class.len()).filter(|&class| !by_class[class].is_empty()).collect();
            order.shuffle(&mut generator(seed, Purpose::UnseenClasses, [0, 0]));
            for &class in &order[..part(order.len(), parameters.unseen)] {
                roles[class] = Role::Unseen;
            }
        }
        let of_role =
            |role: Role| by_class.iter().zip(&roles).filter(move |pair| *pair.1 == role).map(|pair| pair.0);
        let mut unseen: Vec<usize> = of_role(Role::Unseen).flatten().copied().collect();
        unseen.sort_unstable();

        let mut is_test = vec![false; examples.len()];
        if let Some(path) = &parameters.test_rows {
            for row in read_rows(path, examples.len())? {
                let class = examples.labels[row] as usize;
                if roles[class] == Role::Unused {
                    return Err(Error::option(
                        "test_rows",
                        format!("row {row} of {}", path.display()),
                        format!(
                            "rows of listed classes: {:?} stands in none of classes.old, classes.new and classes.unseen, so \
                             no search would use them",
                            examples.classes[class]
                        ),
                    ));
                }
                // Rows of unseen classes are held out already.
                is_test[row] = roles[class] == Role::Seen;
            }
        } else if parameters.test > 0.0 {
            for rows in of_role(Role::Seen).filter(|rows| rows.len() > 1) {
                let class = u64::from(examples.labels[rows[0]]);
                let mut order = rows.clone();
                order.shuffle(&mut generator(seed, Purpose::TestRows, [class, 0]));
                for &row in &order[..part(order.len(), parameters.test)] {
                    is_test[row] = true;
                }
            }
        }
        let test = (0..examples.len()).filter(|&row| is_test[row]).collect();

        let mut parts: Vec<Vec<usize>> = of_role(Role::Seen)
            .map(|rows| rows.iter().copied().filter(|&row| !is_test[row]).collect::<Vec<_>>())
            .filter(|rows| !rows.is_empty())
            .collect();
        match parameters.kind {
            // Both share one old training set (RACT table 1).
            AllocationKind::Expansion | AllocationKind::OpenData => {
                for rows in &mut parts {
                    let class = rows.first().map_or(0, |&row| examples.labels[row]);
                    rows.shuffle(&mut generator(seed, Purpose::Rows, [u64::from(class), 1]));
                }
            }
            AllocationKind::OpenClass => parts.shuffle(&mut generator(seed, Purpose::Classes, [0, 0])),
            AllocationKind::ExtendedClass | AllocationKind::Classes => {}
        }
        Ok(Self { kind: parameters.kind, test, unseen, parts })
    }

    /// Lists the rows that a model of this share sees, increasing.
    fn stage(&self, share: f64) -> Vec<usize> {
        let mut rows: Vec<usize> = match self.kind {
            AllocationKind::Expansion | AllocationKind::OpenData => {
                self.parts.iter().flat_map(|rows| &rows[..part(rows.len(), share)]).copied().collect()
            }
            AllocationKind::OpenClass | AllocationKind::ExtendedClass | AllocationKind::Classes => {
                self.parts[..part(self.parts.len(), share)].concat()
            }
        };
        rows.sort_unstable();
        rows
    }

    /// Lists the rows of the listed classes that may be trained on, for the old and for the new model.
    fn listed(
        &self,
        examples: &Examples,
        parameters: &AllocationParameters,
    ) -> Result<(Vec<usize>, Vec<usize>)> {
        let Some(lists) = &parameters.classes else {
            return Err(Error::missing("classes", "an allocation of kind \"classes\""));
        };
        let rows_of = |entries: &[String], list: &str| -> Result<Vec<usize>> {
            let mut wanted = vec![false; examples.classes.len()];
            for class in numbers(entries, list, examples)? {
                wanted[class] = true;
            }
            Ok(self.stage(1.0).into_iter().filter(|&row| wanted[examples.labels[row] as usize]).collect())
        };
        Ok((rows_of(&lists.old, "old")?, rows_of(&lists.new, "new")?))
    }

    fn finish(
        &self,
        examples: &Examples,
        parameters: AllocationParameters,
        new_share: Option<f64>,
        old: Vec<usize>,
        new: Vec<usize>,
    ) -> Result<Allocation> {
        for (model, rows) in [("old", &old), ("new", &new)] {
            if rows.is_empty() {
                let what = format!("what the {model} model is trained on under this allocation");
                return Err(Error::empty(what));
            }
        }
        Ok(Allocation {
            format: FORMAT.into(),
            version: VERSION,
            parameters,
            new_share,
            rows: examples.len(),
            fingerprint: examples.fingerprint(),
            old,
            new,
            test: self.test.clone(),
            unseen: self.unseen.clone(),
        })
    }
}

impl ClassLists {
    /// Finds the role of every class.
    fn roles(&self, examples: &Examples) -> Result<Vec<Role>> {
        let rest = if self.unseen.is_some() { Role::Unused } else { Role::Unseen };
        let mut roles = vec![rest; examples.classes.len()];
        for (entries, list) in [(&self.old, "old"), (&self.new, "new")] {
            for class in numbers(entries, list, examples)? {
                roles[class] = Role::Seen;
            }
        }
        for class in numbers(self.unseen.as_deref().unwrap_or_default(), "unseen", examples)? {
            if roles[class] == Role::Seen {
                return Err(Error::option(
                    "classes.unseen",
                    &examples.classes[class],
                    "classes that stand in neither old nor new",
                ));
            }
            roles[class] = Role::Unseen;
        }
        Ok(roles)
    }
}

/// Role of a class in an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Class that one of the models or both are trained on; a part of it is the test.
    Seen,
    /// Class that is held out as a whole.
    Unseen,
    /// Class in no list, where a configuration lists the unseen classes too.
    Unused,
}

/// Finds the numbers of the classes that the entries of a list stand for.
fn numbers(entries: &[String], list: &str, examples: &Examples) -> Result<Vec<usize>> {
    let count = examples.classes.len();
    let mut numbers = Vec::new();
    for entry in entries {
        if let Some(class) = examples.classes.iter().position(|name| name == entry) {
            numbers.push(class);
            continue;
        }
        let Some((first, end)) = entry.split_once("..") else {
            return Err(Error::not_found("class", entry, "the set of examples"));
        };
        let (Ok(first), Ok(end)) = (first.trim().parse::<usize>(), end.trim().parse::<usize>()) else {
            return Err(Error::not_found("class", entry, "the set of examples"));
        };
        if first >= end || end > count {
            return Err(Error::option(
                format!("classes.{list}"),
                entry,
                format!("a range inside of 0..{count}, the first number below the second"),
            ));
        }
        numbers.extend(first..end);
    }
    Ok(numbers)
}

/// Reads row numbers of a file, each at most once.
fn read_rows(path: &Path, rows: usize) -> Result<Vec<usize>> {
    let source = path.to_str().map_or_else(|| Ok(VectorSource::path(path)), VectorSource::parse)?;
    read_labels(&source)?
        .into_iter()
        .map(|row| {
            usize::try_from(row).ok().filter(|&row| row < rows).ok_or_else(|| {
                Error::corrupt(
                    path.display(),
                    format!("it names row {row}, and rows go from 0 to {}", rows - 1),
                )
            })
        })
        .collect()
}

/// Counts how many of `count` a share is: the nearest number, at least 1, and one less than all unless the
/// share is 1.
fn part(count: usize, share: f64) -> usize {
    if share >= 1.0 || count < 2 {
        return if share >= 0.5 { count } else { 0 };
    }
    ((count as f64 * share).round() as usize).clamp(1, count - 1)
}

fn check_share(name: &str, share: f64) -> Result<()> {
    if share > 0.0 && share <= 1.0 {
        return Ok(());
    }
    Err(Error::option(name, share, "a number above 0 and at most 1"))
}

/// Lists the increasing rows of `all` that are not among the increasing rows of `taken`.
fn without(all: &[usize], taken: &[usize]) -> Vec<usize> {
    all.iter().copied().filter(|row| taken.binary_search(row).is_err()).collect()
}

fn a_tenth() -> f64 {
    0.1
}
