//! Nearest anchors by Euclidean distance.

use rayon::prelude::*;
use rehang::{Matrix, Result};

use crate::linear_algebra::BLOCK_ROWS;
use crate::outputs::multiply_transposed;

/// Anchors made ready for finding the nearest ones.
pub(crate) struct NearestAnchors {
    anchors: Matrix,
    squares: Vec<f64>,
}

impl NearestAnchors {
    pub(crate) fn new(anchors: &Matrix) -> Result<Self> {
        anchors.check_finite("anchors")?;
        let squares = anchors.norms().iter().map(|norm| norm * norm).collect();
        Ok(Self { anchors: anchors.clone(), squares })
    }

    /// The `count` nearest anchors of every query, nearest first, as (distance, anchor), the first one among
    /// equals; anchors for which `leave_out(query, anchor)` holds are passed over.
    pub(crate) fn search(
        &self,
        queries: &Matrix,
        count: usize,
        leave_out: impl Fn(usize, usize) -> bool + Sync,
    ) -> Vec<Vec<(f64, usize)>> {
        let (m, d) = (self.anchors.rows(), queries.columns());
        queries
            .as_slice()
            .par_chunks((BLOCK_ROWS / 4 * d).max(1))
            .enumerate()
            .flat_map_iter(|(block, rows)| {
                let n = rows.len() / d;
                let mut products = vec![0.0_f32; n * m];
                multiply_transposed(rows, n, &self.anchors, &mut products);
                (0..n)
                    .map(|row| {
                        let query = &rows[row * d..(row + 1) * d];
                        let position = block * (BLOCK_ROWS / 4) + row;
                        let mut scores: Vec<(f64, usize)> = (0..m)
                            .filter(|&anchor| !leave_out(position, anchor))
                            .map(|anchor| {
                                (self.squares[anchor] - 2.0 * f64::from(products[row * m + anchor]), anchor)
                            })
                            .collect();
                        let keep = (count + 8).min(scores.len());
                        if keep > 0 && keep < scores.len() {
                            scores.select_nth_unstable_by(keep - 1, |a, b| {
                                a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
                            });
                            scores.truncate(keep);
                        }
                        for (score, anchor) in &mut scores {
                            let pairs = query.iter().zip(self.anchors.row(*anchor));
                            let square: f64 =
                                pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum();
                            *score = square.sqrt();
                        }
                        scores.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                        scores.truncate(count);
                        scores
                    })
                    .collect::<Vec<_>>()
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::random_matrix;

    #[test]
    fn the_nearest_anchors_are_those_of_a_slow_search() {
        let (anchors, queries) = (random_matrix(70, 5, 1), random_matrix(300, 5, 2));
        let odd = |query: usize, anchor: usize| (query + anchor) % 2 == 1;
        let found = NearestAnchors::new(&anchors).unwrap().search(&queries, 4, odd);
        for (query, found) in found.iter().enumerate() {
            let distance = |anchor: usize| {
                let pairs = queries.row(query).iter().zip(anchors.row(anchor));
                pairs.map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>().sqrt()
            };
            let mut slow: Vec<(f64, usize)> = (0..70)
                .filter(|&anchor| !odd(query, anchor))
                .map(|anchor| (distance(anchor), anchor))
                .collect();
            slow.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert_eq!(*found, slow[..4]);
        }
    }
}
