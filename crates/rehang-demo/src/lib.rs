//! A whole upgrade of a small gallery of handwritten digits, offline: what the command line shows to people
//! who have no gallery yet.
//!
//! The data travels inside the program: the UCI digits (E. Alpaydin and C. Kaynak, 1998, CC BY 4.0) and what
//! two small encoders made of them. [`unpack`] writes it to a folder; [`live`] upgrades the gallery of that
//! folder while threads search and write.

mod live;

use std::io::ErrorKind;
use std::path::Path;

use rehang_core::{Error, Result};
use rehang_files::AtomicFile;

pub use live::{Live, LiveOptions, Load, Stages, Writes, live, write_images};

/// Items that the live backfill embeds per second: fast enough for a demo, slow enough to be watched.
pub const RATE: f64 = 250.0;

/// A step that a demo is about to take, for a face that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DemoStep {
    /// The gallery's images are embedded by the old encoder and put into a gallery file.
    Import,
    /// The new space is filled with adapted vectors.
    Start,
    /// Searches move to the new space.
    Switch,
    /// Images are embedded again, while threads search and write.
    Run,
}

/// The files of the demo: name and content.
const FILES: [(&str, &[u8]); 9] = [
    ("images.npy", include_bytes!("../../../demo/images.npy")),
    ("old_encoder.onnx", include_bytes!("../../../demo/old_encoder.onnx")),
    ("new_encoder.onnx", include_bytes!("../../../demo/new_encoder.onnx")),
    ("label.npy", include_bytes!("../../../demo/label.npy")),
    ("role.npy", include_bytes!("../../../demo/role.npy")),
    ("old.npy", include_bytes!("../../../demo/old.npy")),
    ("new.npy", include_bytes!("../../../demo/new.npy")),
    ("head_weight.npy", include_bytes!("../../../demo/head_weight.npy")),
    ("head_bias.npy", include_bytes!("../../../demo/head_bias.npy")),
];

/// Writes the files of the demo into a folder that is new, empty or of an earlier demo.
///
/// # Errors
///
/// An invalid option `out` for a folder that holds other files; I/O errors.
pub fn unpack(folder: &Path) -> Result<()> {
    expect_own(folder)?;
    fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    for (name, bytes) in FILES {
        AtomicFile::write(folder.join(name), bytes)?;
    }
    Ok(())
}

/// Fails for a folder that holds anything but an earlier demo. A demo begins anew and replaces the files that
/// bear its files' names, a gallery among them. The first of its files tells whose folder it is.
fn expect_own(folder: &Path) -> Result<()> {
    let is_empty = match fs_err::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) if error.kind() == ErrorKind::NotFound => true,
        Err(error) => return Err(Error::io("read", folder, &error)),
    };
    let (name, bytes) = FILES[0];
    let file = folder.join(name);
    // Another file of that name may be of any size, so the length is asked for before the content is read.
    let is_own = || {
        fs_err::metadata(&file).is_ok_and(|metadata| metadata.len() == bytes.len() as u64)
            && fs_err::read(&file).is_ok_and(|content| content == bytes)
    };
    if is_empty || is_own() {
        return Ok(());
    }
    Err(Error::option(
        "out",
        folder.display(),
        "a folder that is new, empty or of an earlier demo: this one holds other files, and the demo would replace them",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_takes_no_folder_but_its_own() {
        let place = tempfile::tempdir().unwrap();
        let write = |path: &Path, bytes: &[u8]| AtomicFile::write(path, bytes).unwrap();
        let folder = place.path().join("demo");
        expect_own(&folder).unwrap();
        fs_err::create_dir(&folder).unwrap();
        expect_own(&folder).unwrap();
        write(&folder.join("gallery.db"), b"of a project");
        write(&folder.join("images.npy"), b"of a project");
        let error = expect_own(&folder).unwrap_err().to_string();
        assert!(error.contains("out") && error.contains("earlier demo"), "{error}");
        write(&folder.join("images.npy"), FILES[0].1);
        expect_own(&folder).unwrap();
        // A path that is not a folder cannot be a demo's folder either.
        assert!(expect_own(&folder.join("gallery.db")).is_err());
    }
}
