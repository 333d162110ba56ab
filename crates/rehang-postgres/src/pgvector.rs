//! The extension pgvector: where it is, its version, and what an older one cannot do or gets wrong.

use crate::parameter::ArrayType;

/// First version that searches an index further where a filter leaves too few.
const ITERATIVE: Version = (0, 8, 0);
/// First version in which several processes may build an index together (CVE-2026-3172: they wrote
/// past a buffer before).
const PARALLEL_BUILDS: Version = (0, 8, 2);
/// First version in which a vacuum and an insertion leave the graph of an index whole (0.8.3 and
/// 0.8.4 mended one each).
const WHOLE_GRAPHS: Version = (0, 8, 4);

type Version = (u32, u32, u32);

/// Installation of pgvector in a database.
#[derive(Debug, Clone)]
pub(crate) struct Pgvector {
    version: Version,
    /// Schema that the extension is in, as SQL takes it.
    pub(crate) schema: String,
    pub(crate) vectors: ArrayType,
    pub(crate) halfvecs: ArrayType,
}

impl Pgvector {
    /// Reads the version. `numbers` are those of the type `vector`, of its arrays, of
    /// `halfvec` and of its arrays.
    pub(crate) fn new(version: &str, schema: String, numbers: [u32; 4]) -> Self {
        let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
        let mut next = || parts.next().unwrap_or(0);
        Self {
            version: (next(), next(), next()),
            schema,
            vectors: ArrayType::new("vector", numbers[0], numbers[1]),
            halfvecs: ArrayType::new("halfvec", numbers[2], numbers[3]),
        }
    }

    pub(crate) fn is_at_least(&self, version: (u32, u32)) -> bool {
        (self.version.0, self.version.1) >= version
    }

    pub(crate) fn has_iterative_scan(&self) -> bool {
        self.version >= ITERATIVE
    }

    pub(crate) fn builds_in_parallel(&self) -> bool {
        self.version >= PARALLEL_BUILDS
    }

    /// Returns the full name of something of pgvector: a type, a function, a class of operators.
    pub(crate) fn named(&self, name: &str) -> String {
        format!("{}.{name}", self.schema)
    }

    /// Returns the full name of the type `vector`.
    pub(crate) fn vector(&self) -> String {
        self.named("vector")
    }

    /// Returns the expression for a vector as bytes, which [`crate::parameter::vector`] reads.
    pub(crate) fn sent(&self, value: &str) -> String {
        format!("{}({value}::{})", self.named("vector_send"), self.vector())
    }

    /// Returns an operator of pgvector by its full name.
    pub(crate) fn operator(&self, operator: &str) -> String {
        format!("OPERATOR({}.{operator})", self.schema)
    }

    /// Tells what this version risks; `None` where nothing is known.
    pub(crate) fn risk(&self) -> Option<String> {
        let (major, minor, patch) = self.version;
        let risks = [
            (
                PARALLEL_BUILDS,
                "below 0.8.2 a build of an HNSW index by several processes may write past a buffer (CVE-2026-3172): rehang builds with one; \
                 your own builds need SET max_parallel_maintenance_workers = 0",
            ),
            (
                WHOLE_GRAPHS,
                "below 0.8.4 a vacuum or an insertion may damage the graph of an HNSW index, so that searches find less",
            ),
        ];
        let sentences: Vec<&str> =
            risks.iter().filter(|(mended, _)| self.version < *mended).map(|(_, risk)| *risk).collect();
        (!sentences.is_empty()).then(|| {
            format!(
                "pgvector is of version {major}.{minor}.{patch}: {}. Install a later one, run ALTER EXTENSION vector UPDATE, and make the indexes again",
                sentences.join("; ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_version_says_what_it_risks() {
        let of_version = |version: &str| Pgvector::new(version, "public".into(), [0; 4]);
        for (version, is_parallel, words) in [
            ("0.7.4", false, &["0.7.4", "CVE-2026-3172", "below 0.8.4"][..]),
            ("0.8.1", false, &["0.8.1", "CVE-2026-3172", "below 0.8.4"]),
            ("0.8.2", true, &["0.8.2", "below 0.8.4"]),
            ("0.8.3", true, &["0.8.3", "below 0.8.4"]),
        ] {
            let warning = of_version(version).risk().unwrap();
            assert!(words.iter().all(|word| warning.contains(word)), "{warning}");
            assert_eq!(warning.contains("CVE"), !is_parallel, "{warning}");
            assert_eq!(of_version(version).builds_in_parallel(), is_parallel);
        }
        for version in ["0.8.4", "0.8.10", "0.9", "1"] {
            assert_eq!(of_version(version).risk(), None, "{version}");
            assert!(of_version(version).builds_in_parallel() && of_version(version).has_iterative_scan());
        }
        assert!(!of_version("0.7.4").has_iterative_scan() && of_version("0.7.4").is_at_least((0, 7)));
    }
}
