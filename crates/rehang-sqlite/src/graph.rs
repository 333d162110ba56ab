//! The graph (HNSW) that finds candidates in large galleries, and the file it rests in.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rehang_core::{Error, Result, Semaphore, Space};
use rehang_files::folder_of;
use serde::{Deserialize, Serialize};
use tempfile::TempPath;
use usearch::{Index, IndexOptions, ScalarKind};
use xxhash_rust::xxh3::Xxh3;

use crate::exact::{Near, RowKey};
use crate::metric::{Counted, Lift, Metric, metric};
use crate::options::SearchOptions;

/// Graph over vectors of one space.
pub(crate) struct Graph {
    index: Index,
    /// Coordinates of the space's vectors.
    dimension: usize,
    /// Number that the graph counts for a distance of 0.
    zero: f32,
    /// Lift of the vectors, where inner products of vectors of different lengths are compared.
    lift: Option<Lift>,
    /// Vectors that the graph had when it was built.
    pub(crate) built: usize,
    /// Vectors that were overwritten or removed since the build.
    pub(crate) overwritten: usize,
    /// Recall of the graph when it was built.
    pub(crate) recall_at_build: f64,
    /// Record of how the graph has been looked after.
    pub(crate) care: Care,
    gate: Semaphore,
}

/// Record of how a graph has been looked after. It rests in the side file, so that it adds up over processes
/// that live shortly.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Care {
    /// Vectors that had been overwritten when the recall was measured last; 0 before the first time.
    pub(crate) checked_at: usize,
    /// Recall that was measured then.
    pub(crate) recall_checked: Option<f64>,
    /// Number of graphs of the space that were replaced before this one was made.
    pub(crate) rebuilt: u64,
    /// Reason why the last of them was made again.
    pub(crate) rebuilt_because: Option<String>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graph").field("built", &self.built).finish_non_exhaustive()
    }
}

impl Graph {
    /// Makes a graph with room for `capacity` vectors.
    pub(crate) fn new(space: &Space, options: SearchOptions, capacity: usize) -> Result<Self> {
        let mut index = Index::new(&index_options(space, options)).map_err(trouble)?;
        let lift = Lift::is_for(space).then(Lift::default);
        index.change_metric::<f32>(metric_of(space, lift.as_ref()));
        let gate = Semaphore::new(threads());
        index.reserve_capacity_and_threads(capacity.max(1), threads()).map_err(trouble)?;
        Ok(Self {
            index,
            dimension: space.dimension,
            zero: if lift.is_some() { 0.0 } else { Counted::of(space).zero },
            lift,
            built: 0,
            overwritten: 0,
            recall_at_build: 1.0,
            care: Care::default(),
            gate,
        })
    }

    /// Number of vectors in the graph.
    pub(crate) fn len(&self) -> usize {
        self.index.size()
    }

    /// Number of coordinates that a vector has.
    pub(crate) fn dimension(&self) -> usize {
        self.dimension
    }

    /// Bytes that the graph takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.index.memory_usage()
    }

    pub(crate) fn contains(&self, key: RowKey) -> bool {
        self.index.contains(key)
    }

    /// Makes room for `more` vectors. The library moves its memory for that, so no thread may search or add
    /// meanwhile: `&mut` keeps them out.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<()> {
        let wanted = self.index.size() + more;
        if wanted > self.index.capacity() {
            self.index
                .reserve_capacity_and_threads(wanted + wanted / 4 + 1024, threads())
                .map_err(trouble)?;
        }
        Ok(())
    }

    /// Adds a vector of an item that has none in the graph; there must be room. Several threads may add at
    /// once.
    pub(crate) fn add(&self, key: RowKey, vector: &[f32]) -> Result<()> {
        let _permit = self.gate.acquire();
        match &self.lift {
            None => self.index.add(key, vector),
            Some(lift) => self.index.add(key, &lift.item(vector)),
        }
        .map_err(trouble)
    }

    /// Takes an item's vector out of the graph.
    pub(crate) fn remove(&mut self, key: RowKey) -> Result<()> {
        self.index.remove(key).map_err(trouble)?;
        self.overwritten += 1;
        Ok(())
    }

    /// Finds about the `k` nearest vectors among those that `passes` lets through, nearest first.
    pub(crate) fn nearest(
        &self,
        query: &[f32],
        k: usize,
        passes: Option<&dyn Fn(RowKey) -> bool>,
    ) -> Result<Vec<Near>> {
        if k == 0 || self.index.size() == 0 {
            return Ok(Vec::new());
        }
        // As many candidates as results leave a search no room to err: it stops at the first ones that fill
        // its list.
        let looked_at = if 2 * k > self.index.expansion_search() { 2 * k } else { k };
        // Where some are many times as long as others, the way to the longest is long too.
        let least = if self.lift.as_ref().is_some_and(Lift::lengths_differ) { LIFTED_CANDIDATES } else { 0 };
        let looked_at = looked_at.max(least).min(self.index.size());
        let lifted = self.lift.as_ref().map(|_| Lift::query(query));
        let query = lifted.as_deref().unwrap_or(query);
        let _permit = self.gate.acquire();
        let matches = match passes {
            None => self.index.search(query, looked_at),
            Some(passes) => self.index.filtered_search(query, looked_at, passes),
        }
        .map_err(trouble)?;
        let near = matches.distances.into_iter().map(|distance| distance - self.zero).zip(matches.keys);
        Ok(near.take(k).collect())
    }

    /// Whether enough vectors were overwritten since the recall was measured last to measure it again.
    pub(crate) fn is_check_due(&self) -> bool {
        (self.overwritten - self.care.checked_at) as f64 >= OVERWRITTEN_SHARE * self.built as f64
    }

    /// Sets the number of candidates that a search looks at from now on.
    pub(crate) fn set_search_candidates(&self, candidates: usize) {
        self.index.change_expansion_search(candidates);
    }

    /// Writes the graph to a file beside `path` and to the disk: the graph, then a footer that says what it
    /// is. [`Partial::persist`] gives the file its name; without it the file is removed again.
    pub(crate) fn write(
        &self,
        path: &Path,
        identity: &str,
        space: &Space,
        settled: u64,
        mode: Option<std::fs::Permissions>,
    ) -> Result<Partial> {
        let folder = folder_of(path);
        let failed = |error: &std::io::Error| Error::io("write", path, error);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        remove_partials_of_the_dead(folder, &name);
        let partial = folder.join(format!(".{name}.{}.partial", std::process::id()));
        let partial = TempPath::try_from_path(partial).map_err(|error| failed(&error))?;
        // The library knows one reason for a file that it cannot write, and does not name it.
        self.index.save(&partial.to_string_lossy()).map_err(|error| {
            let reason = format!(
                "it failed, as when the disk is full ({error}); nothing of the gallery is lost and searches go on, make room and try again"
            );
            failed(&std::io::Error::other(reason))
        })?;
        let mut file = fs_err::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&partial)
            .map_err(|error| failed(&error))?;
        let (bytes, checksum) = digest(&mut file, u64::MAX).map_err(|error| failed(&error))?;
        let footer = Footer {
            format: SIDE_FORMAT,
            identity: identity.to_owned(),
            space: space.clone(),
            settled,
            built: self.built,
            overwritten: self.overwritten,
            recall_at_build: self.recall_at_build,
            longest: self.lift.as_ref().map_or(0.0, Lift::longest),
            shortest: self.lift.as_ref().map_or(0.0, Lift::shortest),
            care: self.care.clone(),
            bytes,
            checksum,
        };
        let text = serde_json::to_vec(&footer).map_err(|error| Error::corrupt(path.display(), error))?;
        let finish = || -> std::io::Result<()> {
            file.seek(SeekFrom::End(0))?;
            file.write_all(&text)?;
            file.write_all(&(text.len() as u64).to_le_bytes())?;
            file.write_all(MAGIC)?;
            // A reader that may not read the gallery may not read its vectors here either.
            if let Some(mode) = mode {
                file.set_permissions(mode)?;
            }
            file.sync_all()
        };
        finish().map_err(|error| failed(&error))?;
        Ok(Partial { file: partial, path: path.to_path_buf() })
    }

    /// Reads from a file's footer alone for which gallery and at which moment the file was saved; `None`
    /// where there is no whole footer.
    pub(crate) fn identity(path: &Path) -> Option<String> {
        Some(footer(&mut fs_err::File::open(path).ok()?)?.identity)
    }

    /// Reads from a file's footer alone up to which change the graph in it is whole; `None` where the file is
    /// another gallery's or space's.
    pub(crate) fn settled(path: &Path, is_known: impl Fn(&str) -> bool, space: &Space) -> Option<u64> {
        let footer = footer(&mut fs_err::File::open(path).ok()?)?;
        let fits = footer.format == SIDE_FORMAT && is_known(&footer.identity) && footer.space == *space;
        fits.then_some(footer.settled)
    }

    /// Reads the graph of this very gallery and space, and the change up to which it is whole. `None` where
    /// the file is missing, damaged, or another's: the graph is made again then, so the reason does not
    /// matter.
    pub(crate) fn load(
        path: &Path,
        is_known: impl Fn(&str) -> bool,
        space: &Space,
        options: SearchOptions,
    ) -> Option<(Self, u64)> {
        let mut file = fs_err::File::open(path).ok()?;
        let footer = footer(&mut file)?;
        if footer.format != SIDE_FORMAT || !is_known(&footer.identity) || footer.space != *space {
            return None;
        }
        file.rewind().ok()?;
        // The library trusts the lengths inside its files, so every byte is checked before it sees them.
        if digest(&mut file, footer.bytes).ok()? != (footer.bytes, footer.checksum) {
            return None;
        }
        let mut graph = Self::new(space, options, 1).ok()?;
        // Loading brings the library's own distances back, so ours are set after it.
        let mut index = Index::new(&index_options(space, options)).ok()?;
        index.load(&path.to_string_lossy()).ok()?;
        graph.lift = graph.lift.map(|_| Lift::with(footer.longest, footer.shortest));
        index.change_metric::<f32>(metric_of(space, graph.lift.as_ref()));
        graph.index = index;
        if graph.index.dimensions() != dimensions(space) {
            return None;
        }
        graph.index.change_expansion_add(expansion_add(space, options));
        graph.index.change_expansion_search(options.expansion_search);
        graph.index.reserve_capacity_and_threads(graph.index.size() + 1024, threads()).ok()?;
        graph.built = footer.built;
        graph.overwritten = footer.overwritten;
        let checked_at = footer.care.checked_at.min(footer.overwritten);
        graph.care = Care { checked_at, ..footer.care };
        graph.recall_at_build = footer.recall_at_build;
        Some((graph, footer.settled))
    }
}

/// Graph that is on the disk whole, in a file that does not have its name yet.
pub(crate) struct Partial {
    file: TempPath,
    path: PathBuf,
}

impl Partial {
    /// Gives the file its name. Its bytes are on the disk already, so that a loss of power leaves no name
    /// without them.
    pub(crate) fn persist(self) -> Result<()> {
        let Self { file, path } = self;
        let persist = || -> std::io::Result<()> {
            file.persist(&path).map_err(|error| error.error)?;
            fs_err::File::open(folder_of(&path))?.sync_all()
        };
        persist().map_err(|error| Error::io("write", &path, &error))
    }
}

/// Removes the files of processes that were killed while they saved: each is as large as the graph. A file
/// that cannot be removed only takes room.
fn remove_partials_of_the_dead(folder: &Path, name: &str) {
    if !cfg!(target_os = "linux") {
        return;
    }
    for entry in fs_err::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let process = file.strip_prefix(&format!(".{name}.")).and_then(|tail| tail.strip_suffix(".partial"));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs_err::remove_file(entry.path());
        }
    }
}

/// Path of the file in which the graph of a space rests, beside the gallery.
pub(crate) fn side_file(gallery: &Path, number: i64) -> PathBuf {
    let mut name = gallery.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{number}.usearch"));
    gallery.with_file_name(name)
}

/// Footer of a side file: what stands at its end.
#[derive(Debug, Serialize, Deserialize)]
struct Footer {
    format: u32,
    /// Gallery that the file belongs to, and the moment at which it was saved.
    identity: String,
    space: Space,
    /// Change up to which all changes are in the graph.
    settled: u64,
    built: usize,
    overwritten: usize,
    recall_at_build: f64,
    /// Largest squared length of a vector that was ever added, where vectors are lifted.
    #[serde(default)]
    longest: f32,
    /// Smallest squared length of a vector that was ever added, where vectors are lifted.
    #[serde(default)]
    shortest: f32,
    /// Record of the graph's care; missing in files of earlier versions, which did not keep one.
    #[serde(default)]
    care: Care,
    /// Bytes in front of the footer; `checksum` is of these.
    bytes: u64,
    checksum: u64,
}

const SIDE_FORMAT: u32 = 1;

/// Smallest number of candidates of a search among lifted vectors of different lengths.
const LIFTED_CANDIDATES: usize = 1024;

/// Share of overwritten vectors, of those at the build, after which the recall of a graph is measured.
const OVERWRITTEN_SHARE: f64 = 0.2;

const MAGIC: &[u8; 8] = b"rehangix";

/// Longest footer that is believed.
const FOOTER_MAX: u64 = 1 << 20;

fn footer(file: &mut fs_err::File) -> Option<Footer> {
    let length = file.metadata().ok()?.len();
    let tail_start = length.checked_sub(16)?;
    file.seek(SeekFrom::Start(tail_start)).ok()?;
    let (mut size, mut magic) = ([0; 8], [0; 8]);
    file.read_exact(&mut size).ok()?;
    file.read_exact(&mut magic).ok()?;
    let size = u64::from_le_bytes(size);
    if magic != *MAGIC || size > FOOTER_MAX {
        return None;
    }
    file.seek(SeekFrom::Start(tail_start.checked_sub(size)?)).ok()?;
    let mut text = vec![0; size as usize];
    file.read_exact(&mut text).ok()?;
    let footer: Footer = serde_json::from_slice(&text).ok()?;
    (footer.bytes == tail_start - size).then_some(footer)
}

/// Counts the bytes of a file from its present place on, up to `limit`, and gives their check sum too.
fn digest(file: &mut fs_err::File, limit: u64) -> std::io::Result<(u64, u64)> {
    let mut hasher = Xxh3::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let want = usize::try_from(limit - bytes).unwrap_or(usize::MAX).min(buffer.len());
        let read = file.read(&mut buffer[..want])?;
        if read == 0 {
            return Ok((bytes, hasher.digest()));
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
    }
}

/// Numbers that a vector of a space has in the graph. A file with another count is another graph, such as
/// that of an earlier version, and is made again.
fn dimensions(space: &Space) -> usize {
    space.dimension + usize::from(Lift::is_for(space))
}

fn metric_of(space: &Space, lift: Option<&Lift>) -> Metric {
    lift.map_or_else(|| metric(space), |lift| lift.metric(space))
}

/// Factor by which more candidates are looked at when a lifted vector is added.
///
/// The neighbours of such a vector are spread over more of the sphere than by other distances. A vector that
/// the links miss is found by no search, however many candidates it looks at.
const LIFTED_ADD_TIMES: usize = 4;

fn expansion_add(space: &Space, options: SearchOptions) -> usize {
    options.expansion_add * if Lift::is_for(space) { LIFTED_ADD_TIMES } else { 1 }
}

fn index_options(space: &Space, options: SearchOptions) -> IndexOptions {
    IndexOptions {
        dimensions: dimensions(space),
        metric: Counted::of(space).library,
        quantization: ScalarKind::F32,
        connectivity: options.connectivity,
        expansion_add: expansion_add(space, options),
        expansion_search: options.expansion_search,
        multi: false,
    }
}

fn trouble(error: impl std::fmt::Display) -> Error {
    Error::corrupt("the search index", format!("{error}; rebuild it"))
}

/// Threads that may be inside a graph at once; the library gives each a place of its own and fails without
/// one.
fn threads() -> usize {
    2 * std::thread::available_parallelism().map_or(4, usize::from).max(2)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rehang_core::Distance;
    use rehang_store::exact;

    use super::*;

    /// Measures the share of the true `k` nearest that a graph of 6,000 vectors of different lengths and few
    /// dimensions finds.
    fn recall(distance: Distance, inner: usize, ks: &[usize]) -> Vec<f64> {
        const ITEMS: usize = 6_000;
        let space = Space::new("m", 24, distance, false);
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let mut number = || rng.random_range(-1.0_f32..1.0);
        let directions: Vec<f32> = (0..inner * 24).map(|_| number()).collect();
        // Lengths lie between a third and three, as without normalisation.
        let mut vector = || -> Vec<f32> {
            let length = 3.0_f32.powf(number());
            let inside: Vec<f32> = (0..inner).map(|_| number()).collect();
            let at = |axis: usize| (0..inner).map(|of| inside[of] * directions[of * 24 + axis]).sum::<f32>();
            (0..24).map(|axis| length * (at(axis) + 0.1 * number())).collect()
        };
        let vectors: Vec<Vec<f32>> = (0..ITEMS).map(|_| vector()).collect();
        let queries: Vec<Vec<f32>> = (0..20).map(|_| vector()).collect();
        let graph = Graph::new(&space, SearchOptions::default(), ITEMS).unwrap();
        for (key, vector) in (0..).zip(&vectors) {
            graph.add(key, vector).unwrap();
        }
        let share = |&k: &usize| {
            let mut hits = 0;
            for query in &queries {
                let mut truth: Vec<f32> =
                    vectors.iter().map(|vector| exact::distance(distance, query, vector)).collect();
                truth.sort_unstable_by(f32::total_cmp);
                let border = truth[k - 1] + truth[k - 1].abs() * 1e-5 + 1e-6;
                let near = graph.nearest(query, k, None).unwrap();
                assert!(near.windows(2).all(|two| two[0].0 <= two[1].0) && near.len() <= k);
                hits += near.iter().filter(|(hit_distance, _)| *hit_distance <= border).count();
            }
            hits as f64 / (k * queries.len()) as f64
        };
        ks.iter().map(share).collect()
    }

    #[test]
    fn lengths_that_rounding_leaves_are_one_length() {
        let (lift, unit_vector) = (Lift::default(), [0.6_f32, 0.8]);
        assert!(!lift.lengths_differ());
        lift.item(&unit_vector);
        lift.item(&[0.600_1, 0.8]);
        assert!(!lift.lengths_differ());
        assert!(Lift::with(lift.longest(), 0.5).lengths_differ());
        lift.item(&[0.3, 0.4]);
        assert!(lift.lengths_differ());
    }

    #[test]
    fn vectors_of_different_lengths_are_found_at_every_depth() {
        for distance in Distance::ALL {
            // Models' vectors have few dimensions.
            let shares = recall(distance, 6, &[10, 100, 500, 3_000]);
            assert!(shares.iter().all(|&share| share >= 0.97), "{distance}: {shares:?}");
        }
        let shares = recall(Distance::Dot, 24, &[10, 100]);
        assert!(shares.iter().all(|&share| share >= 0.99), "{shares:?}");
    }
}
