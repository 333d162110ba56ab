//! Old vectors of items that came without one: the old model embeds them, so that pairs are a sample of the whole gallery.
//!
//! They serve the fit and the report alone, and lie in the folder of the upgrade: where the old vectors of a gallery are a column of an
//! application's table, only the application writes there.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use rehang::files::{folder_of, write_text};
use rehang::{Error, ErrorKind, Result, Space};
use rehang_encode::{Encoder, Input};
use rehang_store::{Item, ItemKey, Record, Revision};
use serde::{Deserialize, Serialize};

use crate::fill::is_finite;
use crate::observe::{Observation, Observer, expect_going};
use crate::run::{encode, input_of};

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum Line {
    /// The first one: which encoder the vectors are of; `null` where its vectors depend on what nobody can see.
    Encoder(Option<String>),
    Vector {
        key: ItemKey,
        revision: Revision,
        vector: Vec<f32>,
    },
}

impl Line {
    fn text(&self) -> Result<String> {
        let line = serde_json::to_string(self).map_err(|error| Error::corrupt("a vector", error))?;
        Ok(line + "\n")
    }
}

/// Old vectors that the encoder of the old model made, by the content that they are of.
#[derive(Debug, Default)]
pub(crate) struct OldVectors {
    path: PathBuf,
    encoder: Option<String>,
    rows: BTreeMap<(ItemKey, Revision), Vec<f32>>,
}

impl OldVectors {
    /// Those in the folder of an upgrade; none where there is no file. A line that is no vector of the space, as the last one is where a
    /// process died while it wrote, is passed over: that item is embedded again.
    ///
    /// # Errors
    ///
    /// I/O errors.
    pub fn read(folder: &Path, old: &Space) -> Result<Self> {
        let mut kept = Self { path: folder.join("old-vectors.jsonl"), ..Self::default() };
        if !kept.path.exists() {
            return Ok(kept);
        }
        let bytes = fs_err::read(&kept.path).map_err(|error| Error::io("read", &kept.path, &error))?;
        for line in bytes.split(|&byte| byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(Line::Encoder(encoder)) => kept.encoder = encoder,
                Ok(Line::Vector { key, revision, vector })
                    if vector.len() == old.dimension && is_finite(&vector) =>
                {
                    kept.rows.insert((key, revision), vector);
                }
                _ => {}
            }
        }
        Ok(kept)
    }

    /// That of an item, as its content is now.
    pub fn of(&self, item: &Item) -> Option<&Vec<f32>> {
        self.rows.get(&(item.key, item.revision))
    }

    /// Embeds items with the old model's encoder and keeps their vectors, after each batch: a death costs one. An item that it
    /// cannot embed has none. Vectors of another encoder are dropped first. Gives how many were embedded.
    ///
    /// # Errors
    ///
    /// A width mismatch where the encoder's vectors are not of the old space; cancelled where the observer wants it to stop; I/O errors;
    /// what the encoder says.
    pub fn embed(
        &mut self,
        items: &[Record],
        encoder: &dyn Encoder,
        observer: &dyn Observer,
    ) -> Result<usize> {
        let fingerprint = encoder.fingerprint()?;
        if self.encoder != fingerprint {
            self.rows.clear();
        }
        self.encoder = fingerprint;
        let lacking: Vec<&Record> = items.iter().filter(|record| self.of(&record.item).is_none()).collect();
        if lacking.is_empty() {
            return Ok(0);
        }
        // Written anew: without what a death cut, and without vectors of another encoder.
        let mut text = Line::Encoder(self.encoder.clone()).text()?;
        for (&(key, revision), vector) in &self.rows {
            text += &Line::Vector { key, revision, vector: vector.clone() }.text()?;
        }
        let folder = folder_of(&self.path);
        fs_err::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        write_text(&self.path, &text)?;
        let appended = fs_err::OpenOptions::new().append(true).open(&self.path);
        let mut file = appended.map_err(|error| Error::io("open", &self.path, &error))?;
        let (stage, unit) = ("embedding with the old model", "items");
        observer.observe(&Observation::Began { stage, unit, total: lacking.len() as u64 });
        let before = self.rows.len();
        for records in lacking.chunks(encoder.batch_max().max(1)) {
            expect_going(observer)?;
            let (records, inputs): (Vec<&Record>, Vec<Input<'_>>) =
                records.iter().filter_map(|&record| Some((record, input_of(record)?))).unzip();
            let mut lines = String::new();
            for (record, answer) in records.iter().zip(encode(encoder, &inputs)?) {
                let Ok(vector) = answer else { continue };
                let (key, revision, id) = (record.item.key, record.item.revision, &record.item.id);
                let (expected, received) = (encoder.space().dimension, vector.len());
                if received != expected {
                    let what = format!("the old model's vector of {id:?}");
                    return Err(ErrorKind::WidthMismatch { what, expected, received }.into());
                }
                lines += &Line::Vector { key, revision, vector: vector.clone() }.text()?;
                self.rows.insert((key, revision), vector);
            }
            let written = file.write_all(lines.as_bytes()).and_then(|()| file.sync_data());
            written.map_err(|error| Error::io("write", &self.path, &error))?;
            observer.observe(&Observation::Advanced { units: records.len() as u64 });
        }
        Ok(self.rows.len() - before)
    }
}
