//! Options of searches: the size and the care of a gallery's search indexes.

/// Options of the searches of a gallery.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `exact_max` | 20,000 | vectors that are compared one by one; more get a graph | ≥ 1 |
/// | `merge_at` | 1,024 | new vectors that wait before they are merged into the graph | ≥ 1 |
/// | `connectivity` | 16 | neighbours a vector has in the graph | ≥ 2 |
/// | `expansion_add` | 128 | candidates looked at when a vector is added | ≥ 1 |
/// | `expansion_search` | 128 | candidates looked at in a search | ≥ 1 |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchOptions {
    /// Vectors that are compared one by one; more get a graph.
    pub exact_max: usize,
    /// New vectors that wait in memory before they are merged into the graph.
    pub merge_at: usize,
    /// Neighbours a vector has in the graph.
    pub connectivity: usize,
    /// Candidates that are looked at when a vector is added.
    pub expansion_add: usize,
    /// Candidates that are looked at in a search.
    pub expansion_search: usize,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            exact_max: 20_000,
            merge_at: 1024,
            connectivity: 16,
            expansion_add: 128,
            expansion_search: 128,
        }
    }
}
