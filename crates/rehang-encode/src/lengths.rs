//! Lengths: how many texts a model of this machine cuts, told without running it.

use std::path::Path;

use rehang_core::Result;
use rehang_core::finding::Finding;

use crate::config::EncoderConfig;
#[cfg(feature = "tokenizers")]
use crate::config::OnnxInput;
#[cfg(feature = "tokenizers")]
use crate::onnx::Reader;

/// Texts that are counted at most: some seconds' work.
const TEXTS_MAX: usize = 20_000;

/// Counter of the texts that an ONNX model would cut, by its tokeniser alone.
pub struct Lengths {
    #[cfg(feature = "tokenizers")]
    reader: Reader,
    texts: usize,
}

impl Lengths {
    /// Opens the tokeniser of a configuration; `None` where its model reads no texts, or this build has no
    /// tokenisers. Relative paths are relative to `base`.
    ///
    /// # Errors
    ///
    /// A tokeniser that cannot be read.
    pub fn open(config: &EncoderConfig, base: &Path) -> Result<Option<Self>> {
        #[cfg(feature = "tokenizers")]
        if let EncoderConfig::Onnx(config) = config
            && let OnnxInput::Text(text) = &config.input
        {
            return Ok(Some(Self { reader: Reader::from_tokenizer(text, base)?, texts: 0 }));
        }
        let _ = (config, base);
        Ok(None)
    }

    /// Counts a text; texts after the first 20,000 are passed over.
    pub fn count(&mut self, text: &str) {
        if self.texts < TEXTS_MAX {
            self.texts += 1;
            #[cfg(feature = "tokenizers")]
            self.reader.count(text);
            let _ = text;
        }
    }

    /// Findings: how many of the texts are longer than the model reads, by whose setting, and what can be
    /// done. Empty where none is.
    pub fn findings(&self) -> Vec<Finding> {
        #[cfg(feature = "tokenizers")]
        return self.reader.findings();
        #[cfg(not(feature = "tokenizers"))]
        Vec::new()
    }
}
