//! Templates: several vectors of one person, seen as one.

use rayon::prelude::*;
use rehang_core::{Error, Matrix, Result};
use rehang_files::lists::TemplateItem;

/// Averaged templates.
#[derive(Debug, Clone, PartialEq)]
pub struct Templates {
    /// Unit vector of each template, `[templates, d]`; zeros where [`Templates::zeros`] counts it.
    pub vectors: Matrix,
    /// Number of templates whose items cancel each other out, or are all zero: their similarity to everything
    /// is 0.
    pub zeros: usize,
}

/// Averages items into templates: `[n, d]` → `[templates, d]`.
///
/// Every item is scaled to length 1 (a zero vector stays zero). Items of one template and one medium are
/// averaged, then the template's media, each with the same weight; the mean is scaled to length 1 again. So a
/// video of a hundred frames weighs as much as one photograph (the IJB-C convention). Sums are made in `f64`
/// in the order of `items`.
///
/// ```
/// use rehang_core::Matrix;
/// use rehang_files::lists::TemplateItem;
/// use rehang_protocols::templates::average;
///
/// let vectors = Matrix::new(2, vec![2.0, 0.0, 0.0, 1.0, 0.0, 3.0])?;
/// let item = |row, media| TemplateItem { row, template: 0, media };
/// // A photograph along x, and a video of two frames along y: the two media weigh the same.
/// let made = average(&vectors, &[item(0, None), item(1, Some(7)), item(2, Some(7))], 1)?;
/// assert!((made.vectors.row(0)[0] - 0.5_f32.sqrt()).abs() < 1e-6);
/// assert!((made.vectors.row(0)[1] - 0.5_f32.sqrt()).abs() < 1e-6);
/// // Without media ids every frame counts: 1/3 along x and 2/3 along y, scaled to length 1.
/// let made = average(&vectors, &[item(0, None), item(1, None), item(2, None)], 1)?;
/// assert!((made.vectors.row(0)[1] - 2.0 / 5.0_f32.sqrt()).abs() < 1e-6);
/// # Ok::<(), rehang_core::Error>(())
/// ```
///
/// # Errors
///
/// [`rehang_core::ErrorKind::Empty`] for a template without items, [`rehang_core::ErrorKind::InvalidOption`] for an
/// item of a row or template that does not exist, [`rehang_core::ErrorKind::NotFinite`].
pub fn average(vectors: &Matrix, items: &[TemplateItem], templates: usize) -> Result<Templates> {
    vectors.check_finite("vectors of template items")?;
    let mut members: Vec<Vec<&TemplateItem>> = vec![Vec::new(); templates];
    for item in items {
        if item.row >= vectors.rows() {
            let expected = format!("below {}", vectors.rows());
            return Err(Error::option("the row of a template item", item.row, expected));
        }
        let Some(of_template) = members.get_mut(item.template) else {
            let expected = format!("below {templates}");
            return Err(Error::option("the template of an item", item.template, expected));
        };
        of_template.push(item);
    }
    if let Some(empty) = members.iter().position(Vec::is_empty) {
        return Err(rehang_core::ErrorKind::Empty { what: format!("template {empty}") }.into());
    }
    let rows: Vec<Option<Vec<f32>>> =
        members.par_iter().map(|members| average_one(vectors, members)).collect();
    let mut made = Matrix::zeros(templates, vectors.columns());
    let mut zeros = 0;
    for (template, row) in rows.into_iter().enumerate() {
        match row {
            Some(row) => made.row_mut(template).copy_from_slice(&row),
            None => zeros += 1,
        }
    }
    Ok(Templates { vectors: made, zeros })
}

/// Averages one template to a unit vector; `None` where its items cancel each other out.
fn average_one(vectors: &Matrix, members: &[&TemplateItem]) -> Option<Vec<f32>> {
    // Media in the order in which they first appear, each with its sum and its number of items.
    let mut media: Vec<(Option<i64>, Vec<f64>, f64)> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for item in members {
        let row = vectors.row(item.row);
        let length = rehang_core::norm(row);
        let at = match item.media {
            Some(id) => *known.entry(id).or_insert(media.len()),
            None => media.len(),
        };
        if at == media.len() {
            media.push((item.media, vec![0.0; row.len()], 0.0));
        }
        let (_, sum, count) = &mut media[at];
        *count += 1.0;
        if length > 0.0 {
            for (sum, &value) in sum.iter_mut().zip(row) {
                *sum += f64::from(value) / length;
            }
        }
    }
    let mut mean = vec![0.0; vectors.columns()];
    for (_, sum, count) in &media {
        for (mean, sum) in mean.iter_mut().zip(sum) {
            *mean += sum / count;
        }
    }
    let length = mean.iter().map(|value| value * value).sum::<f64>().sqrt();
    // Opposite items cancel out up to the rounding of their `f32`; what is left then is noise and no
    // direction.
    let noise = 1e-6 * media.len() as f64;
    (length > noise).then(|| mean.iter().map(|value| (value / length) as f32).collect())
}
