//! Image files in one folder a class.

use std::path::{Path, PathBuf};

use image::imageops::FilterType;
use rayon::prelude::*;
use rehang_core::{Error, Result, Semaphore};

use super::arrays::in_order;
use super::dataset::{ExampleInputs, Examples, Images, Refusal, check_size};
use super::picture::{DECODING_BYTES_MAX, Picture, covering};

/// Number of images decoded before their pixels are put together: enough for every thread, little to hold
/// twice.
const DECODED_AT_ONCE: usize = 1024;

/// Number of folders inside a class that are descended into at most; deeper ones are a circle of mounts or a
/// mistake.
const DEPTH_MAX: usize = 16;

/// Reads the images of a folder of folders; see [`super::ExamplesSource::Folder`].
pub(super) fn read(root: &Path, size: [usize; 2], channels: usize) -> Result<Examples> {
    check_size(size, channels)?;
    let mut classes: Vec<String> = Vec::new();
    let mut files: Vec<(u32, PathBuf)> = Vec::new();
    let mut refused = Vec::new();
    for (name, folder) in entries(root)?.into_iter().filter(|(_, path)| path.is_dir()) {
        let before = files.len();
        let class = classes.len() as u32;
        images_in(&folder, 0, &mut |path| files.push((class, path)))?;
        if files.len() == before {
            refused.push(Refusal {
                what: folder.display().to_string(),
                why: "the folder of this class holds no .png, .jpg or .jpeg file".into(),
            });
        } else {
            classes.push(name);
        }
    }
    if files.is_empty() {
        return Err(Error::corrupt(
            root.display(),
            "it has no folder with images; there must be one folder a class, with .png, .jpg or .jpeg files",
        ));
    }
    let image_bytes = channels * size[0] * size[1];
    let mut pixels: Vec<u8> = Vec::new();
    if files.len().checked_mul(image_bytes).is_none_or(|bytes| pixels.try_reserve_exact(bytes).is_err()) {
        return Err(Error::corrupt(
            root.display(),
            format!(
                "{} images of {channels} × {} × {} bytes do not fit into memory",
                files.len(),
                size[0],
                size[1]
            ),
        ));
    }
    let memory = Semaphore::new(DECODING_BYTES_MAX);
    let mut labels = Vec::new();
    for some in files.chunks(DECODED_AT_ONCE) {
        let decoded: Vec<_> =
            some.par_iter().map(|(_, path)| decode(path, size, channels, &memory)).collect();
        for ((class, path), image) in some.iter().zip(decoded) {
            match image {
                Ok(image) => {
                    pixels.extend_from_slice(&image);
                    labels.push(*class);
                }
                Err(why) => refused.push(Refusal { what: path.display().to_string(), why }),
            }
        }
    }
    if labels.is_empty() {
        let first = &refused[refused.len() - files.len()];
        return Err(Error::corrupt(
            root.display(),
            format!(
                "not one of its {} images can be read; the first is {}: {}",
                files.len(),
                first.what,
                first.why
            ),
        ));
    }
    // Classes of which no image could be read go, so that no class number stands for nothing.
    let (labels, kept) = in_order(&labels);
    let classes = kept.into_iter().map(|class: u32| classes[class as usize].clone()).collect();
    let images = Images { channels, height: size[0], width: size[1], pixels };
    Ok(Examples { inputs: ExampleInputs::Images(images), labels, classes, refused })
}

/// Lists the content of a folder, without hidden names, sorted by name.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let named = |error: &std::io::Error| Error::io("read", folder, error);
    if fs_err::metadata(folder).map_err(|error| named(&error))?.is_file() {
        return Err(Error::refused("read", folder, "it is a file; give the folder of the classes' folders"));
    }
    let mut all = Vec::new();
    for entry in fs_err::read_dir(folder).map_err(|error| named(&error))? {
        let path = entry.map_err(|error| named(&error))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.starts_with('.') {
            all.push((name, path));
        }
    }
    all.sort();
    Ok(all)
}

/// Finds every image file in a folder and in the folders inside, in the order of their names. Links to
/// folders inside a class are not followed, since they can lead in a circle.
fn images_in(folder: &Path, depth: usize, found: &mut impl FnMut(PathBuf)) -> Result<()> {
    for (_, path) in entries(folder)? {
        if path.is_dir() {
            if depth < DEPTH_MAX && !path.is_symlink() {
                images_in(&path, depth + 1, found)?;
            }
        } else if path
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| ["png", "jpg", "jpeg"].contains(&&*extension.to_ascii_lowercase()))
        {
            found(path);
        }
    }
    Ok(())
}

/// Decodes the pixels of one file, `[channels, height, width]`, or says what is wrong with it.
fn decode(path: &Path, size: [usize; 2], channels: usize, memory: &Semaphore) -> Result<Vec<u8>, String> {
    let bytes = fs_err::read(path).map_err(|error| {
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })?;
    if bytes.is_empty() {
        return Err("the file is empty".into());
    }
    let mut picture = Picture::open(&bytes)?;
    let (turn, _) = picture.turn(false);
    // An encoder in service does the same with `shorter-side-crop`.
    let size = (size[1] as u32, size[0] as u32);
    let scaled = covering(turn.size(picture.size()), size, None);
    let fitted = picture.fitted(turn, channels, scaled, size, FilterType::Triangle, memory)?;
    let mixed = fitted.as_bytes();
    Ok((0..channels).flat_map(|channel| mixed[channel..].iter().step_by(channels).copied()).collect())
}
