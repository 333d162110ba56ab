//! Examples that an encoder is trained on: images or vectors with a class each, who may see which of them,
//! and in what form.
//!
//! | Part | Holds |
//! |---|---|
//! | [`Examples`], [`ExamplesSource`] | rows with a class each: image folders, arrays, CIFAR or vectors |
//! | [`Allocation`] | which rows the old and the new model are trained on, and which neither sees |
//! | [`Augmentation`], [`Augmenter`] | rows as numbers of the encoder, varied while it is trained |
//! | [`SamplerParameters`], [`Sampler`] | which rows make a batch |
//!
//! ```
//! use rehang_core::Matrix;
//! use rehang_train::examples::{
//!     Allocation, AllocationKind, AllocationParameters, Augmentation, Augmenter, Examples, ExampleInputs, Normalisation,
//!     Sampler, SamplerParameters,
//! };
//!
//! // Forty vectors of four classes, as an encoder of ready-made features reads them.
//! let features = Matrix::from_fn(40, 3, |row, column| (row % 4 + column) as f32);
//! let labels: Vec<u32> = (0..40).map(|row| row % 4).collect();
//! let classes = ["ash", "birch", "fir", "oak"].map(str::to_string).to_vec();
//! let examples = Examples::new(ExampleInputs::Features(features), labels, classes)?;
//!
//! // The old model is trained on half of the classes, the new one on all; a tenth of every class is for the test.
//! let parameters = AllocationParameters::new(AllocationKind::ExtendedClass, 0.5);
//! let allocation = Allocation::draw(&examples, &parameters)?;
//! assert_eq!((allocation.old.len(), allocation.new.len(), allocation.test.len()), (18, 36, 4));
//!
//! let normalisation = Normalisation::measured(&examples.inputs, &allocation.old)?;
//! let augmenter = Augmenter::new(Augmentation::default(), normalisation, &examples.inputs, 7)?;
//! let sampler = Sampler::new(&SamplerParameters::shuffled(6), &examples.labels, &allocation.old, 7)?;
//! let mut batch = Vec::new();
//! for rows in sampler.batches(0) {
//!     augmenter.batch(&examples.inputs, &rows, 0, 0, &mut batch);
//!     assert_eq!(batch.len(), rows.len() * 3);
//! }
//! # Ok::<(), rehang_core::Error>(())
//! ```
//!
//! # Same seed, same bytes
//!
//! Everything that is drawn here is a function of a seed, and of the epoch, the row and the view where it is
//! drawn while a model is trained; never of the number of threads, nor of what was drawn before.

mod allocation;
mod arrays;
mod augmentation;
mod cifar;
mod dataset;
mod draws;
mod folder;
mod geometry;
mod normalisation;
// The decoder is `rehang-encode`'s own file; depending on that crate would bring a runtime of models,
// tokenisers and HTTP along.
#[path = "../../../../crates/rehang-encode/src/onnx/image/picture.rs"]
mod picture;
mod sampler;
mod source;
#[cfg(test)]
pub(crate) mod tests;

pub use allocation::{Allocation, AllocationKind, AllocationParameters, ClassLists};
pub use arrays::ArrayLayout;
pub use augmentation::{Affine, Augmentation, Augmenter, Border, ColourJitter, ResizedCrop};
pub use cifar::CifarLabels;
pub(crate) use dataset::SIDE_MAX;
pub use dataset::{ExampleInputs, Examples, Images, Refusal};
pub use normalisation::Normalisation;
pub(crate) use sampler::Sisters;
pub use sampler::{LastBatch, Sampler, SamplerParameters};
pub use source::ExamplesSource;
