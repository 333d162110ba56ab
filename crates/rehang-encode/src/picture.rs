//! Pictures of items: files that sources name, for people who look at what a search finds.

use std::path::{Path, PathBuf};

use crate::config::keys::resolve;
use crate::config::{EncoderConfig, OnnxInput};
use crate::source::Sources;

/// Largest file that is shown.
const BYTES_MAX: u64 = 16 << 20;

/// File of a picture that browsers show: PNG, JPEG, GIF or WebP, by its first bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PictureFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Media type, such as `image/png`.
    pub media_type: &'static str,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

impl EncoderConfig {
    /// Reads the picture that the source of an item names; `base` is the folder of the configuration file.
    ///
    /// Only files in the folder that sources are seen from are read, also where `outside_root` lets the model
    /// read others: `root` of a model of images, and the folder of the configuration file for a program.
    /// `None` where the source names no such file, one of another kind, or one of more than 16 MiB, and for
    /// encoders that read no files.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use rehang_encode::EncoderConfig;
    ///
    /// let table: EncoderConfig = serde_json::from_str(r#"{"kind": "table", "vectors": "new.npy"}"#).unwrap();
    /// assert_eq!(table.picture("cat.png", Path::new(".")), None);
    /// ```
    pub fn picture(&self, source: &str, base: &Path) -> Option<PictureFile> {
        let root = match self {
            Self::Onnx(config) if matches!(config.input, OnnxInput::Image(_)) => {
                config.root.as_deref().unwrap_or(Path::new(""))
            }
            Self::Command(_) => Path::new(""),
            Self::Onnx(_) | Self::Table(_) | Self::Http(_) => return None,
        };
        let sources = Sources::new(resolve(base, root), false).ok()?;
        let (path, bytes) = sources.read_at_most(source, BYTES_MAX).ok()?;
        let media_type = media_type(&bytes)?;
        Some(PictureFile { path, media_type, bytes })
    }
}

/// Tells the kind of a picture by its first bytes. SVG is none: it may hold programs.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pictures_in_the_folder_of_sources_are_read_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("images");
        fs_err::create_dir(&root).unwrap();
        let png = b"\x89PNG\r\n\x1a\nand more";
        let files: [(&str, &[u8]); 8] = [
            ("a.png", png),
            ("b.txt", b"\xff\xd8\xff\xe0"),
            ("c", b"GIF89a"),
            ("d.webp", b"RIFF\x10\0\0\0WEBPVP8 "),
            ("e.png", b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>"),
            ("f.png", b""),
            ("g.png", b"RIFF\x10\0\0\0WAVE"),
            ("../outside.png", png),
        ];
        for (name, bytes) in files {
            fs_err::write(root.join(name), bytes).unwrap();
        }
        let mut large = png.to_vec();
        large.resize(BYTES_MAX as usize + 1, 0);
        fs_err::write(root.join("large.png"), large).unwrap();
        let images: EncoderConfig = serde_json::from_value(json!({
            "kind": "onnx", "model": "none.onnx", "root": "images", "outside_root": true,
            "input": { "kind": "image", "width": 8, "height": 8 },
        }))
        .unwrap();
        let kind = |config: &EncoderConfig, source: &str| {
            config.picture(source, folder.path()).map_or("none", |picture| picture.media_type)
        };
        let kinds = ["a.png", "b.txt", "c", "d.webp"].map(|source| kind(&images, source));
        assert_eq!(kinds, ["image/png", "image/jpeg", "image/gif", "image/webp"]);
        let picture = images.picture("a.png", folder.path()).unwrap();
        assert_eq!((picture.path, picture.bytes), (root.join("a.png"), png.to_vec()));
        let outside = folder.path().join("outside.png").display().to_string();
        let others = ["e.png", "f.png", "g.png", "large.png", "gone.png", "", ".", "../outside.png"];
        for source in others.into_iter().chain([outside.as_str()]) {
            assert_eq!(kind(&images, source), "none", "{source}");
        }
        let program: EncoderConfig =
            serde_json::from_value(json!({ "kind": "command", "program": ["none"] })).unwrap();
        assert_eq!(kind(&program, "images/a.png"), "image/png");
        assert_eq!((kind(&program, "a.png"), kind(&program, "a plum cake")), ("none", "none"));
    }
}
