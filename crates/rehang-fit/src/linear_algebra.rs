//! Dense linear algebra that the closed forms share, in `f64` and with the same bytes out for any thread
//! count.
//!
//! Sums over pairs are made in blocks of a fixed number of rows; blocks are computed in parallel and added in
//! their own order. Factorisations run on one thread, since the order of their sums may otherwise depend on
//! how many threads there are.

use faer::diag::Diag;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt;
use faer::linalg::evd::{self, ComputeEigenvectors};
use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{self, BlockStructure};
use faer::linalg::svd::{self, ComputeSvdVectors};
use faer::linalg::triangular_solve::{solve_lower_triangular_in_place, solve_upper_triangular_in_place};
use faer::{Accum, Mat, MatRef, Par, Spec};
use rayon::prelude::*;
use rehang_core::adapter::InputScaling;
use rehang_core::{Error, ErrorKind, Matrix, Result};

/// Number of rows that one block of a sum holds. It is a constant: the blocks decide in which order numbers
/// are added.
pub(crate) const BLOCK_ROWS: usize = 1024;

/// Computes `block(first row, end row)` for every block of [`BLOCK_ROWS`] rows in parallel and hands the
/// results to `add` in the order of the blocks. At most one block a thread is held at a time.
pub(crate) fn sum_blocks<T: Send>(
    rows: usize,
    block: impl Fn(usize, usize) -> T + Sync,
    mut add: impl FnMut(T),
) {
    let starts: Vec<usize> = (0..rows).step_by(BLOCK_ROWS).collect();
    for wave in starts.chunks(rayon::current_num_threads().max(1)) {
        let parts: Vec<T> =
            wave.par_iter().map(|&start| block(start, (start + BLOCK_ROWS).min(rows))).collect();
        parts.into_iter().for_each(&mut add);
    }
}

/// Returns the factor of a row before it enters a map: 1, or 1/‖row‖ (0 for a zero row, which stays zero).
pub(crate) fn input_factor(scaling: InputScaling, row: &[f32]) -> f64 {
    match scaling {
        InputScaling::AsIs => 1.0,
        InputScaling::UnitLength => {
            let length = rehang_core::norm(row);
            if length > 0.0 { 1.0 / length } else { 0.0 }
        }
    }
}

/// Scales rows as a map takes them.
pub(crate) fn scaled(rows: &Matrix, scaling: InputScaling) -> Matrix {
    let mut scaled = rows.clone();
    for row in 0..scaled.rows() {
        let row = scaled.row_mut(row);
        let factor = input_factor(scaling, row);
        for value in row.iter_mut() {
            *value = (f64::from(*value) * factor) as f32;
        }
    }
    scaled
}

/// Rows about their mean.
pub(crate) struct Centred {
    /// Centred rows, `[n, d]`.
    pub rows: Mat<f64>,
    /// Means of the columns, `[d]`.
    pub means: Vec<f64>,
}

impl Centred {
    /// Centres rows as a map takes them. The mean is taken about the first row, so that a constant column
    /// becomes exactly 0.
    pub(crate) fn from_rows(rows: &Matrix, scaling: InputScaling) -> Self {
        let (n, d) = (rows.rows(), rows.columns());
        let factors: Vec<f64> = (0..n).map(|row| input_factor(scaling, rows.row(row))).collect();
        let value = |row: usize, column: usize| f64::from(rows.row(row)[column]) * factors[row];
        let first: Vec<f64> = (0..d).map(|column| if n > 0 { value(0, column) } else { 0.0 }).collect();
        let mut off = vec![0.0; d];
        for row in 0..n {
            off.iter_mut().enumerate().for_each(|(column, off)| *off += value(row, column) - first[column]);
        }
        for off in &mut off {
            *off /= n.max(1) as f64;
        }
        let centred = Mat::from_fn(n, d, |row, column| value(row, column) - first[column] - off[column]);
        Self { rows: centred, means: first.iter().zip(&off).map(|(first, off)| first + off).collect() }
    }
}

/// Centred second moments of pairs `(x, y)`: all that a linear map needs to know about them.
#[derive(Debug, Clone)]
pub(crate) struct Moments {
    /// Number of pairs.
    pub count: f64,
    /// Mean of x, `[d_x]`.
    pub mean_x: Vec<f64>,
    /// Mean of y, `[d_y]`.
    pub mean_y: Vec<f64>,
    /// Covariance of x, `[d_x, d_x]`.
    pub xx: Mat<f64>,
    /// Covariance of x with y, `[d_x, d_y]`.
    pub xy: Mat<f64>,
    /// Total variance of y (the trace of its covariance).
    pub yy: f64,
}

impl Moments {
    /// Measures the moments of the rows `rows` (all, where `None`) of `old`, scaled, against those of `new`.
    ///
    /// Sums are taken about the first row, so that a constant column has a covariance of exactly 0.
    pub(crate) fn from_pairs(
        old: &Matrix,
        new: &Matrix,
        rows: Option<&[usize]>,
        scaling: InputScaling,
    ) -> Self {
        let (d_x, d_y) = (old.columns(), new.columns());
        let count = rows.map_or(old.rows(), <[usize]>::len);
        let row_at = |position: usize| rows.map_or(position, |rows| rows[position]);
        let scaled = |position: usize| {
            let row = old.row(row_at(position));
            let factor = input_factor(scaling, row);
            row.iter().map(move |&value| f64::from(value) * factor)
        };
        let target = |position: usize| new.row(row_at(position)).iter().map(|&value| f64::from(value));
        let shift_x: Vec<f64> = if count > 0 { scaled(0).collect() } else { vec![0.0; d_x] };
        let shift_y: Vec<f64> = if count > 0 { target(0).collect() } else { vec![0.0; d_y] };

        let mut sums = Sums::zeros(d_x, d_y);
        sum_blocks(
            count,
            |start, end| {
                let mut x = Vec::with_capacity((end - start) * d_x);
                let mut y = Vec::with_capacity((end - start) * d_y);
                for position in start..end {
                    x.extend(scaled(position).zip(&shift_x).map(|(value, shift)| value - shift));
                    y.extend(target(position).zip(&shift_y).map(|(value, shift)| value - shift));
                }
                Sums::from_block(&x, &y, end - start, d_x, d_y)
            },
            |part| sums.add(&part),
        );
        sums.centre(count, &shift_x, &shift_y)
    }

    /// Returns the mean of the diagonal of x's covariance, to which a ridge penalty is relative.
    pub(crate) fn mean_diagonal(&self) -> f64 {
        let d = self.xx.nrows();
        if d == 0 { 0.0 } else { (0..d).map(|i| self.xx[(i, i)]).sum::<f64>() / d as f64 }
    }
}

/// Plain sums over a block of shifted rows.
struct Sums {
    x: Vec<f64>,
    y: Vec<f64>,
    xx: Mat<f64>,
    xy: Mat<f64>,
    yy: f64,
}

impl Sums {
    fn zeros(d_x: usize, d_y: usize) -> Self {
        Self {
            x: vec![0.0; d_x],
            y: vec![0.0; d_y],
            xx: Mat::zeros(d_x, d_x),
            xy: Mat::zeros(d_x, d_y),
            yy: 0.0,
        }
    }

    fn from_block(x: &[f64], y: &[f64], rows: usize, d_x: usize, d_y: usize) -> Self {
        let mut sums = Self::zeros(d_x, d_y);
        for row in x.chunks_exact(d_x.max(1)) {
            sums.x.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        for row in y.chunks_exact(d_y.max(1)) {
            sums.y.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        sums.yy = y.iter().map(|value| value * value).sum();
        let x = MatRef::from_row_major_slice(x, rows, d_x);
        let y = MatRef::from_row_major_slice(y, rows, d_y);
        triangular::matmul(
            sums.xx.as_mut(),
            BlockStructure::TriangularLower,
            Accum::Replace,
            x.transpose(),
            BlockStructure::Rectangular,
            x,
            BlockStructure::Rectangular,
            1.0,
            Par::Seq,
        );
        matmul(sums.xy.as_mut(), Accum::Replace, x.transpose(), y, 1.0, Par::Seq);
        sums
    }

    fn add(&mut self, part: &Self) {
        self.x.iter_mut().zip(&part.x).for_each(|(sum, value)| *sum += value);
        self.y.iter_mut().zip(&part.y).for_each(|(sum, value)| *sum += value);
        self.xx += &part.xx;
        self.xy += &part.xy;
        self.yy += part.yy;
    }

    fn centre(mut self, count: usize, shift_x: &[f64], shift_y: &[f64]) -> Moments {
        let n = (count as f64).max(1.0);
        let mean = |sums: &[f64]| -> Vec<f64> { sums.iter().map(|sum| sum / n).collect() };
        let (off_x, off_y) = (mean(&self.x), mean(&self.y));
        for column in 0..self.xx.ncols() {
            for row in column..self.xx.nrows() {
                let value = self.xx[(row, column)] / n - off_x[row] * off_x[column];
                self.xx[(row, column)] = value;
                self.xx[(column, row)] = value;
            }
        }
        for column in 0..self.xy.ncols() {
            for row in 0..self.xy.nrows() {
                self.xy[(row, column)] = self.xy[(row, column)] / n - off_x[row] * off_y[column];
            }
        }
        let add = |shift: &[f64], off: &[f64]| shift.iter().zip(off).map(|(a, b)| a + b).collect();
        Moments {
            count: count as f64,
            mean_x: add(shift_x, &off_x),
            mean_y: add(shift_y, &off_y),
            yy: (self.yy / n - off_y.iter().map(|value| value * value).sum::<f64>()).max(0.0),
            xx: self.xx,
            xy: self.xy,
        }
    }
}

/// Returns `a b`, in parallel over blocks of the columns of `b`, whose width is a constant: blocks do not
/// know of each other.
pub(crate) fn product(a: MatRef<'_, f64>, b: MatRef<'_, f64>) -> Mat<f64> {
    const COLUMNS: usize = 128;
    let mut c = Mat::zeros(a.nrows(), b.ncols());
    c.as_mut()
        .par_col_chunks_mut(COLUMNS)
        .zip(b.par_col_chunks(COLUMNS))
        .for_each(|(target, columns)| matmul(target, Accum::Replace, a, columns, 1.0, Par::Seq));
    c
}

/// Returns `a aᵀ`: the products of the rows with each other. What lies below the diagonal is computed, in
/// blocks as by [`product`], and mirrored.
pub(crate) fn gram(a: MatRef<'_, f64>) -> Mat<f64> {
    const COLUMNS: usize = 128;
    let n = a.nrows();
    let mut gram = Mat::zeros(n, n);
    gram.as_mut().par_col_chunks_mut(COLUMNS).enumerate().for_each(|(chunk, mut block)| {
        let (first, width) = (chunk * COLUMNS, block.ncols());
        let rows = a.subrows(first, n - first);
        let columns = a.subrows(first, width).transpose();
        matmul(block.as_mut().subrows_mut(first, n - first), Accum::Replace, rows, columns, 1.0, Par::Seq);
    });
    for column in 0..n {
        for row in column + 1..n {
            gram[(column, row)] = gram[(row, column)];
        }
    }
    gram
}

/// Returns eigenvalues (increasing, negative rounding errors set to 0) and eigenvectors (columns) of a
/// symmetric positive semi-definite matrix, read from its lower triangle.
///
/// # Errors
///
/// [`ErrorKind::Diverged`] where the iteration does not converge, as with numbers near the end of the range.
pub(crate) fn eigen(a: MatRef<'_, f64>, what: &str) -> Result<(Vec<f64>, Mat<f64>)> {
    let n = a.nrows();
    let mut vectors = Mat::zeros(n, n);
    let mut values = Diag::zeros(n);
    let scratch =
        evd::self_adjoint_evd_scratch::<f64>(n, ComputeEigenvectors::Yes, Par::Seq, Spec::default());
    evd::self_adjoint_evd(
        a,
        values.as_mut(),
        Some(vectors.as_mut()),
        Par::Seq,
        MemStack::new(&mut MemBuffer::new(scratch)),
        Spec::default(),
    )
    .map_err(|_| diverged(what))?;
    let values = values.column_vector();
    Ok(((0..n).map(|i| values[i].max(0.0)).collect(), vectors))
}

/// Replaces a positive definite matrix by its lower Cholesky factor (the upper triangle is left as it is).
///
/// # Errors
///
/// [`ErrorKind::Diverged`] where it is not positive definite.
pub(crate) fn factorise(matrix: &mut Mat<f64>, what: &str) -> Result<()> {
    let scratch = llt::factor::cholesky_in_place_scratch::<f64>(matrix.nrows(), Par::Seq, Spec::default());
    llt::factor::cholesky_in_place(
        matrix.as_mut(),
        llt::factor::LltRegularization::default(),
        Par::Seq,
        MemStack::new(&mut MemBuffer::new(scratch)),
        Spec::default(),
    )
    .map(|_| ())
    .map_err(|_| diverged(what))
}

/// Replaces b by `(L Lᵀ)⁻¹ b`, where L is the factor that [`factorise`] makes.
pub(crate) fn solve_factorised(factor: &Mat<f64>, b: &mut Mat<f64>) {
    const COLUMNS: usize = 256;
    b.as_mut().par_col_chunks_mut(COLUMNS).for_each(|mut columns| {
        solve_lower_triangular_in_place(factor.as_ref(), columns.as_mut(), Par::Seq);
        solve_upper_triangular_in_place(factor.as_ref().transpose(), columns, Par::Seq);
    });
}

/// Returns the thin singular value decomposition `a = U diag(σ) Vᵀ`: `U [m, k]`, σ decreasing `[k]`,
/// `V [n, k]`, k = min(m, n).
///
/// # Errors
///
/// [`ErrorKind::Diverged`] as for [`eigen`].
pub(crate) fn singular_values(a: MatRef<'_, f64>, what: &str) -> Result<(Mat<f64>, Vec<f64>, Mat<f64>)> {
    let (m, n) = a.shape();
    let k = m.min(n);
    let (mut u, mut v, mut values) = (Mat::zeros(m, k), Mat::zeros(n, k), Diag::zeros(k));
    let scratch = svd::svd_scratch::<f64>(
        m,
        n,
        ComputeSvdVectors::Thin,
        ComputeSvdVectors::Thin,
        Par::Seq,
        Spec::default(),
    );
    svd::svd(
        a,
        values.as_mut(),
        Some(u.as_mut()),
        Some(v.as_mut()),
        Par::Seq,
        MemStack::new(&mut MemBuffer::new(scratch)),
        Spec::default(),
    )
    .map_err(|_| diverged(what))?;
    let values = values.column_vector();
    let values = (0..k).map(|i| values[i]).collect();
    Ok((u, values, v))
}

fn diverged(what: &str) -> Error {
    ErrorKind::Diverged { what: what.into(), step: 0 }.into()
}

/// Sums every column of row-major numbers, row after row, in `f64`.
pub fn column_sums(values: &[f32], columns: usize) -> Vec<f64> {
    let mut sums = vec![0.0; columns];
    for row in values.chunks_exact(columns.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    sums
}

/// Averages every column, summed in `f64`; zeros for no rows.
pub(crate) fn column_means(rows: &Matrix) -> Vec<f64> {
    let count = rows.rows().max(1) as f64;
    column_sums(rows.as_slice(), rows.columns()).into_iter().map(|sum| sum / count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::test_data::random_matrix;

    #[test]
    fn moments_equal_their_definition() {
        let old = random_matrix(2500, 3, 1);
        let new = random_matrix(2500, 2, 2);
        let moments = Moments::from_pairs(&old, &new, None, InputScaling::AsIs);
        let n = 2500.0;
        let mean = |m: &Matrix, c: usize| (0..2500).map(|r| f64::from(m.row(r)[c])).sum::<f64>() / n;
        for i in 0..3 {
            assert!((moments.mean_x[i] - mean(&old, i)).abs() < 1e-12);
            for j in 0..2 {
                let expected = (0..2500)
                    .map(|r| {
                        (f64::from(old.row(r)[i]) - mean(&old, i))
                            * (f64::from(new.row(r)[j]) - mean(&new, j))
                    })
                    .sum::<f64>()
                    / n;
                assert!((moments.xy[(i, j)] - expected).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn moments_are_the_same_bytes_for_any_number_of_threads() {
        let old = random_matrix(5000, 7, 3);
        let new = random_matrix(5000, 4, 4);
        let with = |threads| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap()
                .install(|| Moments::from_pairs(&old, &new, None, InputScaling::UnitLength))
        };
        let (one, four) = (with(1), with(4));
        assert_eq!(one.xx, four.xx);
        assert_eq!(one.xy, four.xy);
        assert_eq!(one.yy.to_bits(), four.yy.to_bits());
    }

    #[test]
    fn a_constant_column_has_no_variance() {
        let old = Matrix::from_fn(3000, 2, |row, column| if column == 0 { 0.3 } else { row as f32 * 1e-3 });
        let moments = Moments::from_pairs(&old, &old, None, InputScaling::AsIs);
        assert_eq!(moments.xx[(0, 0)], 0.0);
        assert!(moments.xx[(1, 1)] > 0.0);
    }
}
