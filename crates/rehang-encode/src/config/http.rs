//! `kind = "http"`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::keys::{number, resolve};
use crate::contract::Spent;

/// Tokens that a price is given for.
const TOKENS_OF_A_PRICE: f64 = 1e6;

/// An embedding endpoint.
///
/// | Name | Default | Purpose | Range |
/// |---|---|---|---|
/// | `url` | | the service: `https://api.openai.com`, with or without `/v1/embeddings` | `http://` or `https://` |
/// | `model` | | the model's name there | |
/// | `key_env` | none | name of the environment variable that holds the key | |
/// | `key_header` | none | the header that the key is sent in, such as Azure's `api-key`; without it, `Authorization: Bearer` | needs `key_env` |
/// | `headers` | none | headers of every request, such as `{ x-team = "search", x-token = "$TOKEN" }`; a value that begins with `$` is that of an environment variable | |
/// | `body` | none | more fields of every request, such as Voyage's `{ output_dimension = 512, truncation = false }` | none that other keys are for |
/// | `plain_http` | `false` | send the key over `http://`, where it can be read on the way; to this machine it always may | |
/// | `root_certificates` | none | a file in the PEM format with authorities that are trusted besides the system's, such as a company's own | |
/// | `batch` | 64 | texts a request | from 1 |
/// | `concurrency` | 4 | requests at a time | from 1 |
/// | `requests_per_minute` | no limit | requests a minute, evenly spread | above 0 |
/// | `tokens_per_minute` | no limit | tokens a minute, evenly spread | above 0 |
/// | `dimensions` | not sent | the width that the service is asked for | the space's width |
/// | `prefix` | none | text in front of every source, such as `"passage: "` | |
/// | `query_prefix` | as `prefix` | the same for queries, such as `"query: "` | |
/// | `input_type` | not sent | `input_type` of the request, for services that tell documents from queries | what the service takes |
/// | `query_input_type` | as `input_type` | the same for queries | what the service takes |
/// | `timeout_seconds` | 60 | the longest that a request may take | above 0, at most a day |
/// | `attempts` | 5 | times that a request is sent before it is given up | from 1 |
/// | `budget_items` | no limit | items that may be sent by all of an upgrade, retries included | from 1 |
/// | `budget_tokens` | no limit | tokens that may be used by all of an upgrade | from 1 |
/// | `budget_money` | no limit | money that may be spent by all of an upgrade; needs `price_per_million_tokens` | above 0 |
/// | `price_per_million_tokens` | 0 | money that a million tokens cost | from 0 |
/// | `characters_per_token` | 4 | estimate of tokens before the service says how many there were | above 0 |
/// | `batch_api` | `false` | have a backfill's items embedded by the service's batch API: cheaper, within a day | |
/// | `batch_api_items` | 10000 | texts of a batch file | 1–100000 |
/// | `batch_api_poll_seconds` | 60 | time between two questions how far a batch is | above 0, at most a day |
/// | `seed` | 0 | of the jitter between attempts | |
/// | `normalise` | `false` | scale vectors to length 1 | |
/// | `revision` | none | names what the vectors depend on, and changes with it; without it a run embeds some items again and compares | any text |
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HttpConfig {
    /// The service.
    pub url: String,
    /// The model's name there.
    pub model: String,
    /// Name of the environment variable that holds the key.
    pub key_env: Option<String>,
    /// Header that the key is sent in, where it is not `Authorization: Bearer`.
    pub key_header: Option<String>,
    /// Headers of every request. A value that begins with `$` names an environment variable.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// More fields of every request. The vectors may depend on them, so they are a part of the fingerprint.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub body: BTreeMap<String, serde_json::Value>,
    /// Whether the key is sent over `http://` to another machine.
    #[serde(default)]
    pub plain_http: bool,
    /// File with authorities that are trusted besides the system's.
    pub root_certificates: Option<PathBuf>,
    /// Texts a request.
    #[serde(default = "number::<64, _>")]
    pub batch: usize,
    /// Requests at a time.
    #[serde(default = "number::<4, _>")]
    pub concurrency: usize,
    /// Requests a minute at most.
    pub requests_per_minute: Option<f64>,
    /// Tokens a minute at most.
    pub tokens_per_minute: Option<f64>,
    /// Width that the service is asked for.
    pub dimensions: Option<usize>,
    /// Text in front of every source.
    #[serde(default)]
    pub prefix: String,
    /// Text in front of every query, where it is another one;
    /// [`EncoderConfig::for_queries`](super::EncoderConfig::for_queries) puts it into the place of `prefix`.
    pub query_prefix: Option<String>,
    /// `input_type` of the request.
    pub input_type: Option<String>,
    /// `input_type` of requests with queries, where it is another one; put into the place of `input_type` in
    /// the same way.
    pub query_input_type: Option<String>,
    /// Longest time that a request may take, in seconds.
    #[serde(default = "number::<60, _>")]
    pub timeout_seconds: f64,
    /// Times that a request is sent before it is given up.
    #[serde(default = "number::<5, _>")]
    pub attempts: usize,
    /// Items that may be sent, retries included, by this encoder and all whose use the caller
    /// [notes](crate::Encoder::note_others) together.
    pub budget_items: Option<u64>,
    /// Tokens that may be used, by all of these together.
    pub budget_tokens: Option<u64>,
    /// Money that may be spent, by all of these together.
    pub budget_money: Option<f64>,
    /// Money that a million tokens cost.
    #[serde(default)]
    pub price_per_million_tokens: f64,
    /// Characters of a token, as an estimate before the service says how many tokens there were.
    #[serde(default = "number::<4, _>")]
    pub characters_per_token: f64,
    /// Whether a backfill's items go to the service's batch API, which is cheaper and may take a day
    /// ([`Encoder::encode_in_bulk`](crate::Encoder::encode_in_bulk)).
    #[serde(default)]
    pub batch_api: bool,
    /// Texts of a batch file.
    #[serde(default = "number::<10_000, _>")]
    pub batch_api_items: usize,
    /// Seconds between two questions how far a batch is.
    #[serde(default = "number::<60, _>")]
    pub batch_api_poll_seconds: f64,
    /// Seed of the jitter between attempts.
    #[serde(default)]
    pub seed: u64,
    /// Whether vectors are scaled to length 1.
    #[serde(default)]
    pub normalise: bool,
    /// Text that names what the vectors depend on, and changes with it.
    pub revision: Option<String>,
}

impl HttpConfig {
    /// Tokens that a source will probably take with its `prefix`, at least 1.
    pub fn tokens(&self, source: &str) -> u64 {
        let characters = self.prefix.chars().count() + source.chars().count();
        ((characters as f64 / self.characters_per_token).ceil() as u64).max(1)
    }

    /// Money that tokens cost; `None` where no price is known.
    pub fn money(&self, tokens: f64) -> Option<f64> {
        let price = Some(self.price_per_million_tokens).filter(|price| *price > 0.0);
        price.map(|price| tokens * price / TOKENS_OF_A_PRICE)
    }

    /// Copies the configuration with its path seen from the folder of the configuration file.
    pub(crate) fn seen_from(&self, base: &Path) -> Self {
        let root_certificates = self.root_certificates.as_ref().map(|path| resolve(base, path));
        Self { root_certificates, ..self.clone() }
    }

    /// Money that a token costs.
    pub(crate) fn price(&self) -> f64 {
        self.price_per_million_tokens / TOKENS_OF_A_PRICE
    }

    /// Items a second at most, by the limit on requests.
    pub fn items_per_second(&self) -> Option<f64> {
        self.requests_per_minute.map(|requests| requests * self.batch as f64 / 60.0)
    }

    /// Number of items of so many tokens each after which the first budget is spent, where `spent` is used
    /// already; `None` without a budget.
    pub fn items_of_budgets(&self, tokens_per_item: f64, spent: Spent) -> Option<u64> {
        let money_per_item = self.money(tokens_per_item).unwrap_or(0.0);
        let spent_money = self.money(spent.tokens as f64).unwrap_or(0.0);
        let budget_left = |budget: u64, spent: u64| budget.saturating_sub(spent) as f64;
        [
            self.budget_items.map(|items| budget_left(items, spent.items)),
            self.budget_tokens.map(|tokens| budget_left(tokens, spent.tokens) / tokens_per_item.max(1.0)),
            self.budget_money
                .filter(|_| money_per_item > 0.0)
                .map(|money| (money - spent_money).max(0.0) / money_per_item),
        ]
        .into_iter()
        .flatten()
        .min_by(f64::total_cmp)
        .map(|items| items as u64)
    }
}
