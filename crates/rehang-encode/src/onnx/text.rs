//! Texts as a model reads them.

use std::path::Path;

use rehang::{Error, Result, catch_panic};
use rten::{NodeId, Value, ValueOrView};
use tokenizers::{Tokenizer, TruncationParams};

use super::model::{ModelInput, fixed, shown};
use crate::config::keys::{at_least_one, resolve};
use crate::config::{Pooling, TextInput};
use crate::contract::ItemFailure;

/// The most tokens of a text where neither the configuration nor the tokeniser says.
const TOKENS_MAX: usize = 512;

/// What a model wants to know about tokens.
#[derive(Clone, Copy)]
enum Feed {
    Ids,
    Mask,
    Types,
    Places,
}

/// Turns texts into the inputs of one model.
pub(super) struct Texts {
    pooling: Pooling,
    tokenizer: Tokenizer,
    prefix: String,
    padding: i32,
    feeds: Vec<(NodeId, Feed)>,
    /// Tokens of every run, where the model was exported for one number of them only.
    tokens_fixed: Option<usize>,
}

impl Texts {
    pub(super) fn pooling(&self) -> Pooling {
        self.pooling
    }

    pub(super) fn open(config: &TextInput, base: &Path, inputs: &[ModelInput], model: &str) -> Result<Self> {
        let path = resolve(base, &config.tokenizer);
        let bytes = fs_err::read(&path).map_err(|error| Error::io("read", &path, &error))?;
        let corrupt = |error: &str| Error::corrupt(path.display(), format!("it is no tokeniser: {error}"));
        let mut tokenizer = catch_panic(|| Tokenizer::from_bytes(&bytes))
            .ok_or_else(|| corrupt("reading it makes the tokenisers' crate panic"))?
            .map_err(|error| corrupt(&error.to_string()))?;
        let feeds =
            inputs.iter().map(|input| feed(input, inputs.len(), model)).collect::<Result<Vec<_>>>()?;
        let tokens_fixed = inputs.iter().find_map(|input| fixed(&input.shape, 1));
        let own = tokenizer.get_truncation().map(|own| own.max_length);
        let mut tokens_max = config.max_tokens.or(own).unwrap_or(TOKENS_MAX);
        at_least_one("max_tokens", tokens_max)?;
        if let Some(fixed) = tokens_fixed {
            tokens_max = tokens_max.min(fixed);
        }
        let padding = padding(&tokenizer);
        let truncation = TruncationParams { max_length: tokens_max, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(truncation)).map_err(|error| {
            Error::option(
                "max_tokens",
                tokens_max,
                format!("room for the tokeniser's special tokens ({error})"),
            )
        })?;
        // Batches are padded here, to their own longest text.
        tokenizer.with_padding(None);
        Ok(Self {
            pooling: config.pooling,
            tokenizer,
            prefix: config.prefix.clone(),
            padding,
            feeds,
            tokens_fixed,
        })
    }

    /// The tokens of a text; at least one.
    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>, ItemFailure> {
        let whole = format!("{}{text}", self.prefix);
        let unreadable =
            |why: &str| ItemFailure::Permanent(format!("the tokeniser cannot read the text: {why}"));
        let encoding = catch_panic(|| self.tokenizer.encode(whole, true))
            .ok_or_else(|| unreadable("its crate panics at it; its file may be damaged"))?
            .map_err(|error| unreadable(&error.to_string()))?;
        if encoding.get_ids().is_empty() {
            return Err(ItemFailure::Permanent("the text has no token".into()));
        }
        Ok(encoding.get_ids().to_vec())
    }

    /// The inputs of a run of `count` texts, all as long as the longest; the places beyond the texts are padding.
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
                // A text that is nothing but padding would have nothing to attend to; the first one stands in.
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
                        &|tokens, place| tokens.get(place).map_or(self.padding, |&token| token as i32)
                    }
                    Feed::Mask => &|tokens, place| i32::from(place < tokens.len()),
                    Feed::Types => &|_, _| 0,
                    Feed::Places => &|_, place| place as i32,
                };
                Ok((node, tensor(value)?))
            })
            .collect()
    }
}

/// What an input wants, by the names that exporters give it.
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
        "position_ids" => Feed::Places,
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

/// The token that fills a text up; the mask hides it, so for most models any would do.
fn padding(tokenizer: &Tokenizer) -> i32 {
    let own = tokenizer.get_padding().map(|padding| padding.pad_id);
    own.or_else(|| ["[PAD]", "<pad>", "<|endoftext|>"].iter().find_map(|token| tokenizer.token_to_id(token)))
        .unwrap_or(0) as i32
}
