//! Texts as a model reads them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rehang_core::finding::{Finding, FindingCode, Severity};
use rehang_core::{Error, Result, catch_panic};
use rehang_files::{expect_no_lfs_pointer, folder_of};
use rten::{NodeId, Value, ValueOrView};
use tokenizers::{Tokenizer, TruncationParams};

use super::model::{ModelInput, Positions, fixed, shown};
use crate::config::keys::{at_least_one, resolve};
use crate::config::{Pooling, TextInput};
use crate::contract::ItemFailure;

/// Most tokens that are read of a text where neither the configuration nor the tokeniser says.
const TOKENS_MAX: usize = 512;

/// Property of tokens that an input of a model wants.
#[derive(Clone, Copy)]
enum Feed {
    Ids,
    Mask,
    Types,
    Positions,
}

/// Converter of texts into the inputs of one model.
pub(super) struct Texts {
    pooling: Pooling,
    reader: Reader,
    feeds: Vec<(NodeId, Feed)>,
    /// Tokens of every run, where the model was exported for one number of them only.
    tokens_fixed: Option<usize>,
}

/// Reader of texts as tokens, cut where they are longer than is read of them.
pub(crate) struct Reader {
    tokenizer: Tokenizer,
    prefix: String,
    padding: i32,
    length: Length,
    /// Texts that came. `cut` counts those among them that were longer than is read.
    texts: AtomicU64,
    cut: AtomicU64,
}

/// Length that is read of a text, and why no more.
struct Length {
    tokens: usize,
    because: Because,
    /// Most tokens that the model takes, where it says so.
    taken: Option<Positions>,
    /// Tokens that sentence-transformers reads, by a file beside the tokeniser's.
    elsewhere: Option<usize>,
}

/// Setting that decides how much is read of a text.
enum Because {
    Key,
    Tokenizer(PathBuf),
    Nobody,
    Model,
}

impl Length {
    /// Decides how much is read: no more than a model was made for. A key above that is refused.
    fn decide(
        key: Option<usize>,
        tokenizer: (Option<usize>, &Path),
        taken: Option<Positions>,
        fixed: Option<usize>,
    ) -> Result<Self> {
        let (own_length, path) = tokenizer;
        let (mut tokens, mut because) = match (key, own_length) {
            (Some(key), _) => (key, Because::Key),
            (None, Some(own_length)) => (own_length, Because::Tokenizer(path.into())),
            (None, None) => (TOKENS_MAX, Because::Nobody),
        };
        at_least_one("max_tokens", tokens)?;
        if let (Some(key), Some(positions)) = (key, &taken)
            && key > positions.count
        {
            let Positions { count, table } = positions;
            return Err(Error::option(
                "max_tokens",
                key,
                format!("at most {count}, the positions that the model has ({table})"),
            ));
        }
        if let Some(least) = taken.iter().map(|positions| positions.count).chain(fixed).min()
            && least < tokens
        {
            (tokens, because) = (least, Because::Model);
        }
        let elsewhere = read_elsewhere(path);
        Ok(Self { tokens, because, taken, elsewhere })
    }
}

/// Reads from the file beside a tokeniser's how many tokens sentence-transformers reads of a text.
fn read_elsewhere(tokenizer: &Path) -> Option<usize> {
    let text = fs_err::read_to_string(folder_of(tokenizer).join("sentence_bert_config.json")).ok()?;
    let read: serde_json::Value = serde_json::from_str(&text).ok()?;
    usize::try_from(read.get("max_seq_length")?.as_u64()?).ok()
}

impl Texts {
    pub(super) fn pooling(&self) -> Pooling {
        self.pooling
    }

    pub(super) fn open(
        config: &TextInput,
        base: &Path,
        inputs: &[ModelInput],
        (model, positions): (&str, Option<Positions>),
    ) -> Result<Self> {
        let tokens_fixed = inputs.iter().find_map(|input| fixed(&input.shape, 1));
        let reader = Reader::open(config, base, positions, tokens_fixed)?;
        let feeds =
            inputs.iter().map(|input| feed(input, inputs.len(), model)).collect::<Result<Vec<_>>>()?;
        Ok(Self { pooling: config.pooling, reader, feeds, tokens_fixed })
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        self.reader.findings()
    }

    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>, ItemFailure> {
        self.reader.tokens(text)
    }

    /// Makes the inputs of a run of `count` texts, all as long as the longest; the positions beyond the texts
    /// are padding.
    pub(super) fn feeds(
        &self,
        texts: &[&[u32]],
        count: usize,
    ) -> Result<Vec<(NodeId, ValueOrView<'static>)>, String> {
        let longest = texts.iter().map(|tokens| tokens.len()).max().unwrap_or(1);
        let length = self.tokens_fixed.unwrap_or(longest);
        let tensor = |value: &dyn Fn(&[u32], usize) -> i32| {
            let mut data = Vec::with_capacity(count * length);
            for row in 0..count {
                // A text that is nothing but padding would have nothing to attend to; the first one stands
                // in.
                let tokens = texts.get(row).or(texts.first()).copied().unwrap_or_default();
                data.extend((0..length).map(|place| value(tokens, place)));
            }
            Value::from_shape([count, length], data).map(ValueOrView::from).map_err(|error| error.to_string())
        };
        self.feeds
            .iter()
            .map(|&(node, feed)| {
                let value: &dyn Fn(&[u32], usize) -> i32 = match feed {
                    Feed::Ids => {
                        &|tokens, place| tokens.get(place).map_or(self.reader.padding, |&token| token as i32)
                    }
                    Feed::Mask => &|tokens, place| i32::from(place < tokens.len()),
                    Feed::Types => &|_, _| 0,
                    Feed::Positions => &|_, place| place as i32,
                };
                Ok((node, tensor(value)?))
            })
            .collect()
    }
}

impl Reader {
    /// Opens a reader by the tokeniser alone: how much the model takes is not known.
    pub(crate) fn from_tokenizer(config: &TextInput, base: &Path) -> Result<Self> {
        Self::open(config, base, None, None)
    }

    fn open(
        config: &TextInput,
        base: &Path,
        positions: Option<Positions>,
        tokens_fixed: Option<usize>,
    ) -> Result<Self> {
        let path = resolve(base, &config.tokenizer);
        let bytes = fs_err::read(&path).map_err(|error| Error::io("read", &path, &error))?;
        expect_no_lfs_pointer(&path)?;
        let corrupt = |error: &str| Error::corrupt(path.display(), format!("it is no tokeniser: {error}"));
        let mut tokenizer = catch_panic(|| Tokenizer::from_bytes(&bytes))
            .ok_or_else(|| corrupt("reading it makes the tokenisers' crate panic"))?
            .map_err(|error| corrupt(&error.to_string()))?;
        let own_length = tokenizer.get_truncation().map(|truncation| truncation.max_length);
        let length = Length::decide(config.max_tokens, (own_length, &path), positions, tokens_fixed)?;
        let padding = padding(&tokenizer);
        let truncation = TruncationParams { max_length: length.tokens, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(|error| {
            Error::option(
                "max_tokens",
                length.tokens,
                format!("room for the tokeniser's special tokens ({error})"),
            )
        })?;
        // Batches are padded here, to their own longest text.
        tokenizer.with_padding(None);
        Ok(Self {
            tokenizer,
            prefix: config.prefix.clone(),
            padding,
            length,
            texts: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        })
    }

    /// Counts a text as one that came, and whether it is longer than is read. Texts that are short anyhow are
    /// not looked into.
    pub(crate) fn count(&self, text: &str) {
        // No token is shorter than a byte, and few tokens are put around a text.
        if self.prefix.len() + text.len() + 16 <= self.length.tokens || self.tokens(text).is_err() {
            self.texts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Findings about texts that are cut: how many of how many, by whose setting, and what can be done.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let (cut, texts) = (self.cut.load(Ordering::Relaxed), self.texts.load(Ordering::Relaxed));
        if cut == 0 {
            return Vec::new();
        }
        let Length { tokens, because, taken, elsewhere } = &self.length;
        let (severity, who) = match because {
            Because::Key => (Severity::Note, "as max_tokens in [encoder.input] says".to_owned()),
            Because::Tokenizer(path) => (Severity::Warning, format!("as {} says", path.display())),
            Because::Nobody => {
                (Severity::Warning, "as is done where neither max_tokens nor the tokeniser says more".into())
            }
            Because::Model => (Severity::Warning, "the most that this model takes".into()),
        };
        let elsewhere_note = elsewhere.filter(|length| length > tokens).map_or_else(String::new, |length| {
            format!(" (sentence-transformers reads {length}, by sentence_bert_config.json)")
        });
        let shorter = "give it shorter texts, such as a passage an item, or take a model that reads more";
        let remedy = match (taken.as_ref().map(|positions| positions.count), because) {
            (_, Because::Model) => format!("The model reads no more: {shorter}."),
            (Some(most), _) if most <= *tokens => format!("The model reads no more: {shorter}."),
            (most, _) => {
                let most = most.map_or_else(
                    || "where the model takes more".to_owned(),
                    |most| format!("which may be up to {most} with this model"),
                );
                format!(
                    "Set max_tokens in [encoder.input], {most}{elsewhere_note}, before more is embedded: with another length it is another \
                     model. Or {shorter}."
                )
            }
        };
        let observation = format!(
            "{cut} of {texts} texts are longer than the {tokens} tokens that are read of each, {who}: the rest of them is cut off."
        );
        let finding = Finding::new(severity, FindingCode::CutTexts, observation)
            .may_mean("What follows there is in no vector, so no search finds an item by it.")
            .remedy(remedy)
            .evidence(&[("cut", cut as f64), ("texts", texts as f64), ("tokens", *tokens as f64)]);
        vec![finding]
    }

    /// Reads a text as tokens; at least one.
    fn tokens(&self, text: &str) -> Result<Vec<u32>, ItemFailure> {
        let prefixed_text = format!("{}{text}", self.prefix);
        let unreadable =
            |why: &str| ItemFailure::Permanent(format!("the tokeniser cannot read the text: {why}"));
        let encoding = catch_panic(|| self.tokenizer.encode(prefixed_text, true))
            .ok_or_else(|| unreadable("its crate panics at it; its file may be damaged"))?
            .map_err(|error| unreadable(&error.to_string()))?;
        self.texts.fetch_add(1, Ordering::Relaxed);
        self.cut.fetch_add(u64::from(!encoding.get_overflowing().is_empty()), Ordering::Relaxed);
        if encoding.get_ids().is_empty() {
            return Err(ItemFailure::Permanent("the text has no token".into()));
        }
        Ok(encoding.get_ids().to_vec())
    }
}

/// Property of tokens that an input wants, by the names that exporters give it.
fn feed(input: &ModelInput, inputs: usize, model: &str) -> Result<(NodeId, Feed)> {
    let refuse = |what: String| Error::option("model", model, what);
    if !matches!(input.shape.len(), 0 | 2) {
        return Err(refuse(format!(
            "a model that reads tokens, [batch, tokens]; its input {} is {}",
            input.name,
            shown(&input.shape)
        )));
    }
    let feed = match input.name.as_str() {
        "attention_mask" | "mask" => Feed::Mask,
        "token_type_ids" | "segment_ids" => Feed::Types,
        "position_ids" => Feed::Positions,
        "input_ids" | "ids" | "tokens" => Feed::Ids,
        _ if inputs == 1 => Feed::Ids,
        other => {
            return Err(refuse(format!(
                "a model whose inputs are input_ids, attention_mask, token_type_ids or position_ids; it has {other}"
            )));
        }
    };
    Ok((input.node, feed))
}

/// Token that fills a text up; the mask hides it, so for most models any would do.
fn padding(tokenizer: &Tokenizer) -> i32 {
    let own_padding = tokenizer.get_padding().map(|padding| padding.pad_id);
    own_padding
        .or_else(|| ["[PAD]", "<pad>", "<|endoftext|>"].iter().find_map(|token| tokenizer.token_to_id(token)))
        .unwrap_or(0) as i32
}
