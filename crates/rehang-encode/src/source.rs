//! Files that sources name.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use rehang_core::{Error, Result};
use rehang_files::array_from_bytes;

use crate::contract::ItemFailure;

/// Largest file that is read for one item.
const FILE_BYTES_MAX: u64 = 1 << 28;

/// Reader of the files that sources name.
pub(crate) struct Sources {
    root: PathBuf,
    /// Folder that files have to lie in, links resolved; `None` where they may lie anywhere.
    inside: Option<PathBuf>,
}

impl Sources {
    /// Makes a reader of files below a folder; with `outside_root`, files that lie elsewhere are read too.
    pub(crate) fn new(root: PathBuf, outside_root: bool) -> Result<Self> {
        match fs_err::metadata(&root) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(Error::option("root", root.display(), "a folder")),
            Err(error) => return Err(Error::io("read", root, &error)),
        }
        let real_root = fs_err::canonicalize(&root).map_err(|error| Error::io("read", &root, &error))?;
        Ok(Self { root, inside: (!outside_root).then_some(real_root) })
    }

    /// Reads the file that a source names, and gives its path and bytes.
    pub(crate) fn read(&self, source: &str) -> Result<(PathBuf, Vec<u8>), ItemFailure> {
        self.read_at_most(source, FILE_BYTES_MAX)
    }

    /// Reads the file that a source names, where it has no more bytes than `bytes_max`.
    pub(crate) fn read_at_most(
        &self,
        source: &str,
        bytes_max: u64,
    ) -> Result<(PathBuf, Vec<u8>), ItemFailure> {
        let path = self.path(source)?;
        let failed = |error: &std::io::Error| self.failure(&path, error);
        // The links in a path are resolved first, so that none leads out of the folder.
        let real_path = fs_err::canonicalize(&path).map_err(|error| failed(&error))?;
        if let Some(root) = self.inside.as_ref().filter(|root| !real_path.starts_with(root)) {
            return Err(ItemFailure::Permanent(format!(
                "{} lies outside of the folder {}; outside_root = true in [encoder] allows that",
                path.display(),
                root.display()
            )));
        }
        let expect_file = |metadata: std::io::Result<Metadata>| match metadata {
            Ok(metadata) if metadata.is_file() => Ok(()),
            Ok(_) => Err(ItemFailure::Permanent(format!("{} is no file", path.display()))),
            Err(error) => Err(failed(&error)),
        };
        // Devices are not even opened. Whatever has taken the file's place since is no file once it is open.
        expect_file(fs_err::metadata(&real_path))?;
        let file = open_real(self.inside.as_deref(), &real_path).map_err(|error| failed(&error))?;
        expect_file(file.metadata())?;
        let mut bytes = Vec::new();
        // The size that the system gives may be wrong, as it is for files that a device or the kernel writes.
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        if bytes.len() as u64 > bytes_max {
            return Err(ItemFailure::Permanent(format!(
                "{} has more than the {bytes_max} bytes that are read of a file",
                path.display()
            )));
        }
        Ok((path, bytes))
    }

    /// Reads the vector that a source is, or that the `.npy` file it names holds.
    pub(crate) fn vector(&self, source: &str, width: Option<usize>) -> Result<Vec<f32>, ItemFailure> {
        let vector: Vec<f32> = if source.trim_start().starts_with('[') {
            serde_json::from_str(source).map_err(|error| {
                ItemFailure::Permanent(format!("the source is no JSON array of numbers: {error}"))
            })?
        } else {
            let (path, bytes) = self.read(source)?;
            let array = array_from_bytes(&bytes, path.display())
                .map_err(|error| ItemFailure::Permanent(error.to_string()))?;
            // A single vector may be saved with one side, [n], as well as with two, [1, n].
            let (&[_] | &[1, _]) = array.shape.as_slice() else {
                return Err(ItemFailure::Permanent(format!(
                    "{} is an array {:?} where one vector is needed",
                    path.display(),
                    array.shape
                )));
            };
            array.numbers.into_floats()
        };
        match width {
            Some(width) if width != vector.len() => Err(ItemFailure::Permanent(format!(
                "the source is a vector of {} numbers where the model reads {width}",
                vector.len()
            ))),
            _ if vector.is_empty() => {
                Err(ItemFailure::Permanent("the source is a vector of no numbers".into()))
            }
            _ => Ok(vector),
        }
    }

    fn path(&self, source: &str) -> Result<PathBuf, ItemFailure> {
        let refuse = |what: &str| ItemFailure::Permanent(format!("the source {source:?} {what}"));
        let Some(address) = source.strip_prefix("file://") else {
            if source.contains("://") {
                return Err(refuse("is an address; a model reads files"));
            }
            return if source.is_empty() { Err(refuse("names no file")) } else { Ok(self.root.join(source)) };
        };
        let path = address.strip_prefix("localhost").unwrap_or(address);
        if !path.starts_with('/') {
            return Err(refuse("names a file of another machine"));
        }
        let decoded = percent_decoded(path).ok_or_else(|| refuse("has a % that is no %20 or the like"))?;
        // The address file:///C:/x names C:/x.
        let decoded = if cfg!(windows) { decoded.trim_start_matches('/') } else { &decoded };
        Ok(PathBuf::from(decoded))
    }

    /// Says what the failure to read a file means for its item.
    fn failure(&self, path: &Path, error: &std::io::Error) -> ItemFailure {
        let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        let reason = format!("cannot read {}: {cause}", path.display());
        match error.kind() {
            // A whole folder that is gone is a disk that is not mounted, not a million items that have
            // vanished.
            ErrorKind::NotFound if !self.root.is_dir() => {
                ItemFailure::Temporary(format!("{reason}; the folder {} is gone too", self.root.display()))
            }
            ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidFilename => ItemFailure::Permanent(reason),
            _ => ItemFailure::Temporary(reason),
        }
    }
}

/// Opens a file by its path without links. A link that has come into the path below `root` since it was
/// resolved is an error, and a pipe that has taken the file's place is open at once.
#[cfg(unix)]
fn open_real(root: Option<&Path>, real_path: &Path) -> std::io::Result<File> {
    use std::ffi::OsStr;

    use rustix::fs::{CWD, Mode, OFlags, openat};

    // A folder may let those through who may not list it.
    #[cfg(target_os = "linux")]
    let passed = OFlags::PATH;
    #[cfg(not(target_os = "linux"))]
    let passed = OFlags::RDONLY;
    let never_follow = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = passed | OFlags::DIRECTORY | never_follow;
    let file = OFlags::NONBLOCK | OFlags::NOCTTY | never_follow;
    let Some(root) = root else { return Ok(openat(CWD, real_path, file, Mode::empty())?.into()) };
    let below = real_path.strip_prefix(root).map_err(std::io::Error::other)?;
    let mut place = openat(CWD, root, folder, Mode::empty())?;
    for name in below.parent().into_iter().flatten() {
        place = openat(&place, name, folder, Mode::empty())?;
    }
    Ok(openat(&place, below.file_name().unwrap_or(OsStr::new(".")), file, Mode::empty())?.into())
}

/// Opens a file by its path without links. A link that has come into the path by the time it is open is an
/// error.
#[cfg(not(unix))]
fn open_real(_: Option<&Path>, real_path: &Path) -> std::io::Result<File> {
    let file = fs_err::File::open(real_path)?.into_file();
    if fs_err::canonicalize(real_path)? != real_path {
        return Err(std::io::Error::other("a link has come into its path"));
    }
    Ok(file)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut bytes_left = text.as_bytes();
    while let [first, tail @ ..] = bytes_left {
        bytes_left = tail;
        if *first == b'%' {
            let digits = bytes_left.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            bytes_left = &bytes_left[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_name_files() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs_err::write(root.join("a b.png"), "x").unwrap();
        let sources = Sources::new(root.to_path_buf(), false).unwrap();
        let absolute = root.join("a b.png").display().to_string();
        let address = absolute.replace(' ', "%20");
        for source in
            ["a b.png", &absolute, &format!("file://{address}"), &format!("file://localhost{address}")]
        {
            assert_eq!(sources.read(source).unwrap().1, b"x", "{source}");
        }
        for (source, word) in [
            ("https://host/a.png", "address"),
            ("file://host/a.png", "another machine"),
            ("file:///a%2", "%20"),
            ("file:///a%zz", "%20"),
            ("", "no file"),
            (".", "no file"),
            ("gone.png", "gone.png"),
            ("a b.png/c", "a b.png/c"),
            ("nul\0.png", "nul"),
        ] {
            let failure = sources.read(source).unwrap_err();
            assert!(
                matches!(&failure, ItemFailure::Permanent(why) if why.contains(word)),
                "{source}: {failure:?}"
            );
        }
    }

    #[test]
    fn sources_stay_inside_the_root_unless_told_otherwise() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs_err::create_dir(&root).unwrap();
        fs_err::write(root.join("in.png"), "x").unwrap();
        fs_err::write(folder.path().join("out.png"), "y").unwrap();
        // A folder whose name begins alike is another one.
        fs_err::create_dir(folder.path().join("root2")).unwrap();
        fs_err::write(folder.path().join("root2/a.png"), "z").unwrap();
        let absolute = folder.path().join("out.png").display().to_string();
        let mut ways = vec![
            "../out.png".to_owned(),
            "./../root/../out.png".into(),
            "../root2/a.png".into(),
            absolute.clone(),
            format!("file://{absolute}"),
            format!("file://{}", absolute.replace("out", "root/%2e%2e/out")),
        ];
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&absolute, root.join("link.png")).unwrap();
            std::os::unix::fs::symlink(folder.path(), root.join("link")).unwrap();
            std::os::unix::fs::symlink("in.png", root.join("inside.png")).unwrap();
            ways.extend(["link.png".into(), "link/out.png".into()]);
        }
        let (confined, free) =
            (Sources::new(root.clone(), false).unwrap(), Sources::new(root, true).unwrap());
        for way in ways {
            let failure = confined.read(&way).unwrap_err();
            assert!(
                matches!(&failure, ItemFailure::Permanent(why) if why.contains("outside_root")),
                "{way}: {failure:?}"
            );
            assert!(free.read(&way).is_ok(), "{way}");
        }
        assert!(confined.read("in.png").is_ok() && confined.read("../root/in.png").is_ok());
        #[cfg(unix)]
        assert!(confined.read("inside.png").is_ok());
    }

    /// Links may take the places of a file and of its folders after the look at its path.
    #[cfg(unix)]
    #[test]
    fn what_takes_the_place_of_a_file_is_not_followed() {
        use std::os::unix::fs::symlink;

        let folder = tempfile::tempdir().unwrap();
        let place = fs_err::canonicalize(folder.path()).unwrap();
        let root = place.join("root");
        for name in ["root/in", "other"] {
            fs_err::create_dir_all(place.join(name)).unwrap();
        }
        for name in ["root/a.png", "root/in/a.png", "other/a.png"] {
            fs_err::write(place.join(name), name).unwrap();
        }
        let (file, deep) = (root.join("a.png"), root.join("in/a.png"));
        for path in [&file, &deep] {
            let mut text = String::new();
            open_real(Some(&root), path).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(place.join(text), *path);
            assert!(open_real(None, path).is_ok());
        }
        fs_err::remove_file(&file).unwrap();
        symlink(place.join("other/a.png"), &file).unwrap();
        fs_err::rename(root.join("in"), place.join("was in")).unwrap();
        symlink(place.join("other"), root.join("in")).unwrap();
        for path in [&file, &deep, &place.join("other/a.png")] {
            assert!(open_real(Some(&root), path).is_err(), "{}", path.display());
        }
        assert!(open_real(None, &file).is_err());
    }

    /// A pipe that is opened for reading waits for a writer, unless it is asked not to.
    #[cfg(target_os = "linux")]
    #[test]
    fn what_takes_the_place_of_a_file_is_not_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};

        let folder = tempfile::tempdir().unwrap();
        let root = fs_err::canonicalize(folder.path()).unwrap();
        let pipe = root.join("a.png");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for inside in [Some(root.as_path()), None] {
            assert!(!open_real(inside, &pipe).unwrap().metadata().unwrap().is_file());
        }
        for outside_root in [false, true] {
            let failure = Sources::new(root.clone(), outside_root).unwrap().read("a.png").unwrap_err();
            assert!(
                matches!(&failure, ItemFailure::Permanent(why) if why.contains("no file")),
                "{failure:?}"
            );
        }
    }

    /// The kernel says of this file that it is empty, and writes without end.
    #[cfg(target_os = "linux")]
    #[test]
    fn files_that_say_they_are_empty_are_read_up_to_a_bound() {
        let sources = Sources::new(PathBuf::from("/proc/self"), true).unwrap();
        assert!(sources.read("pagemap").is_err());
    }

    #[test]
    fn a_folder_that_is_gone_is_no_fate_of_its_items() {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources::new(folder.path().to_path_buf(), false).unwrap();
        folder.close().unwrap();
        assert!(matches!(sources.read("a.png"), Err(ItemFailure::Temporary(_))));
        assert!(Sources::new(PathBuf::from("/no/such/folder"), false).is_err());
    }

    #[test]
    fn vectors_are_arrays_or_files() {
        let folder = tempfile::tempdir().unwrap();
        let sources = Sources::new(folder.path().to_path_buf(), false).unwrap();
        rehang_files::write_f32(folder.path().join("one.npy"), &[1.0, 2.0]).unwrap();
        let row = rehang_core::Matrix::new(2, vec![3.0, 4.0]).unwrap();
        rehang_files::write_matrix(folder.path().join("row.npy"), &row, None).unwrap();
        rehang_files::write_matrix(folder.path().join("two.npy"), &rehang_core::Matrix::zeros(2, 2), None)
            .unwrap();
        assert_eq!(sources.vector(" [1, 2.5]", Some(2)).unwrap(), [1.0, 2.5]);
        assert_eq!(sources.vector("one.npy", Some(2)).unwrap(), [1.0, 2.0]);
        assert_eq!(sources.vector("row.npy", None).unwrap(), [3.0, 4.0]);
        for source in ["[]", "[1]", "[1, \"x\"]", "[1, 2", "two.npy", "gone.npy"] {
            assert!(matches!(sources.vector(source, Some(2)), Err(ItemFailure::Permanent(_))), "{source}");
        }
    }
}
