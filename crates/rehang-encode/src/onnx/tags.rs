//! Orientation tags of images that were not followed.

use std::sync::atomic::{AtomicU64, Ordering};

use rehang_core::finding::{Finding, FindingCode};

use crate::config::ImageInput;

/// Counter of images, and of those among them that have a tag which was not followed.
#[derive(Debug, Default)]
pub(super) struct Tags {
    images: AtomicU64,
    tagged: AtomicU64,
}

impl Tags {
    pub(super) fn note(&self, has_tag: bool) {
        self.images.fetch_add(1, Ordering::Relaxed);
        self.tagged.fetch_add(u64::from(has_tag), Ordering::Relaxed);
    }

    /// Findings about such images, unless the configuration says what is to be done with them.
    pub(super) fn findings(&self, config: &ImageInput) -> Vec<Finding> {
        let (tagged, images) = (self.tagged.load(Ordering::Relaxed), self.images.load(Ordering::Relaxed));
        if tagged == 0 || config.exif_orientation.is_some() {
            return Vec::new();
        }
        let observation = format!(
            "{tagged} of {images} images have an orientation tag, and were read as they are stored: rotated or mirrored."
        );
        let finding = Finding::warning(FindingCode::OrientationTags, observation)
            .may_mean(
                "Pillow, torchvision and open_clip read them so, too; transformers and sentence-transformers, where they are given paths, turn them.",
            )
            .remedy(
                "Set exif_orientation in [encoder.input]: true, before more is embedded, if the model is to see them upright; false if this is \
                 as it should be.",
            )
            .evidence(&[("tagged", tagged as f64), ("images", images as f64)]);
        vec![finding]
    }
}
