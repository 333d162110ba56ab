//! `rehang.toml`: what an upgrade is made of. Unknown keys are errors; secrets come from the environment by name.

use std::path::{Path, PathBuf};

use rehang::order::Policy;
use rehang::{Adapter, Distance, Error, Result, Space};
use rehang_encode::{Encoder, EncoderConfig, Terms};
use rehang_store::SqliteStore;
use rehang_upgrade::{Forecast, Limits, OrderSettings, Setup, Until};
use serde::Deserialize;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    gallery: GalleryPart,
    old: SpacePart,
    new: SpacePart,
    adapter: AdapterPart,
    #[serde(default)]
    order: OrderPart,
    encoder: Option<EncoderConfig>,
    #[serde(default)]
    run: RunPart,
    forecast: Option<ForecastPart>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GalleryPart {
    path: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpacePart {
    name: String,
    dim: usize,
    distance: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdapterPart {
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForecastPart {
    file: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OrderPart {
    #[serde(default = "coverage")]
    policy: String,
    #[serde(default)]
    seed: u64,
}

impl Default for OrderPart {
    fn default() -> Self {
        Self { policy: coverage(), seed: 0 }
    }
}

fn coverage() -> String {
    Policy::Coverage.name().into()
}

#[derive(Debug, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RunPart {
    batch: Option<usize>,
    workers: Option<usize>,
    rate: Option<Rate>,
    budget: Option<u64>,
    until: Option<toml::Value>,
    attempts: Option<u32>,
}

#[derive(Debug, Deserialize, Clone)]
#[serde(untagged)]
enum Rate {
    Number(f64),
    Text(String),
}

/// A configuration that was read: spaces and adapter at hand, paths seen from the folder of the file.
pub struct Configuration {
    /// The file.
    pub path: PathBuf,
    /// The gallery file.
    pub gallery: PathBuf,
    /// The space that is replaced.
    pub old: Space,
    /// The space that replaces it.
    pub new: Space,
    /// The adapter.
    pub adapter: Adapter,
    /// The order.
    pub order: OrderSettings,
    /// Limits of a run, before what the command line says.
    pub limits: Limits,
    /// Whether the file says how many items go to the encoder together; if not, the encoder does.
    pub says_batch: bool,
    encoder: Option<EncoderConfig>,
    forecast: Option<PathBuf>,
}

impl Configuration {
    /// Reads a configuration and its adapter.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs_err::read_to_string(path).map_err(|error| Error::io("open", path, &error))?;
        let file: File = toml::from_str(&text)
            .map_err(|error| Error::corrupt(path.display(), error.to_string().trim_end()))?;
        let within = |error: Error| error.context(path.display().to_string());
        let base = path.parent().unwrap_or(Path::new(""));
        let distance = |part: &SpacePart, key: &str| {
            part.distance.parse::<Distance>().map_err(|error| within(error.context(key.to_owned())))
        };
        let (old_distance, new_distance) =
            (distance(&file.old, "[old] distance")?, distance(&file.new, "[new] distance")?);
        for (key, dim) in [("[old] dim", file.old.dim), ("[new] dim", file.new.dim)] {
            if dim == 0 {
                return Err(within(Error::option(key, dim, "1 or more")));
            }
        }
        let adapter = Adapter::load(base.join(&file.adapter.file)).map_err(within)?;
        let order = OrderSettings {
            policy: file.order.policy.parse().map_err(|error: Error| within(error.context("[order]")))?,
            seed: file.order.seed,
        };
        let mut limits = Limits::default();
        let run = &file.run;
        if let Some(batch) = run.batch {
            limits.batch = at_least_one("[run] batch", batch).map_err(within)?;
        }
        if let Some(workers) = run.workers {
            limits.workers = at_least_one("[run] workers", workers).map_err(within)?;
        }
        if let Some(attempts) = run.attempts {
            limits.attempts = at_least_one("[run] attempts", attempts as usize).map_err(within)? as u32;
        }
        limits.budget = run.budget;
        limits.rate = match &run.rate {
            None => None,
            Some(Rate::Number(number)) => {
                Some(parse_rate("[run] rate", &number.to_string()).map_err(within)?)
            }
            Some(Rate::Text(text)) => Some(parse_rate("[run] rate", text).map_err(within)?),
        };
        if let Some(until) = &run.until {
            let text = until.as_str().map_or_else(|| until.to_string(), str::to_owned);
            limits.until = parse_until("[run] until", &text).map_err(within)?;
        }
        Ok(Self {
            path: path.to_owned(),
            gallery: base.join(&file.gallery.path),
            old: Space::new(file.old.name, file.old.dim, old_distance, adapter.old.normalised),
            new: Space::new(file.new.name, file.new.dim, new_distance, adapter.output_space().normalised),
            adapter,
            order,
            limits,
            says_batch: file.run.batch.is_some(),
            encoder: file.encoder,
            forecast: file.forecast.map(|part| base.join(part.file)),
        })
    }

    /// Opens the gallery, which has to be there.
    pub fn open_gallery(&self) -> Result<SqliteStore> {
        SqliteStore::open(&self.gallery).map_err(|error| error.context(self.path.display().to_string()))
    }

    /// Opens the encoder.
    pub fn open_encoder(&self) -> Result<Box<dyn Encoder>> {
        let config = self
            .encoder
            .as_ref()
            .ok_or_else(|| Error::missing("[encoder]", format!("re-embedding ({})", self.path.display())))?;
        let base = self.path.parent().unwrap_or(Path::new(""));
        rehang_encode::open(config, &self.new, base)
            .map_err(|error| error.context(self.path.display().to_string()))
    }

    /// What the encoder's service takes and allows, as far as the file says so.
    pub fn terms(&self) -> Option<Terms> {
        self.encoder.as_ref().and_then(EncoderConfig::terms)
    }

    /// The forecast of this upgrade; `None` where the configuration names none.
    pub fn forecast(&self) -> Result<Option<Forecast>> {
        let Some(path) = &self.forecast else { return Ok(None) };
        let within = |error: Error| error.context(format!("[forecast] of {}", self.path.display()));
        let text = fs_err::read_to_string(path).map_err(|error| within(Error::io("open", path, &error)))?;
        Forecast::read(&text, &path.display().to_string(), &self.setup()).map(Some).map_err(within)
    }

    /// What the verbs of the upgrade take.
    pub fn setup(&self) -> Setup<'_> {
        Setup { old: &self.old, new: &self.new, adapter: &self.adapter, order: self.order }
    }
}

/// A count that has to be 1 or more.
pub fn at_least_one(option: &str, value: usize) -> Result<usize> {
    if value == 0 { Err(Error::option(option, value, "1 or more")) } else { Ok(value) }
}

/// `5`, `5/s`, `300/min` or `1000/h`: items a second.
pub fn parse_rate(option: &str, text: &str) -> Result<f64> {
    let expected = "items a second above 0, such as 5/s, or 300/min, or 1000/h";
    let wrong = || Error::option(option, text, expected);
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    if number > 0.0 && number.is_finite() { Ok(number / seconds) } else { Err(wrong()) }
}

/// `all`, a share such as `0.3`, or `30%`.
pub fn parse_until(option: &str, text: &str) -> Result<Until> {
    let wrong = || Error::option(option, text, "all, or a share from 0 to 1 such as 0.3 or 30%");
    if text == "all" {
        return Ok(Until::All);
    }
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0,
        None => text.parse().map_err(|_| wrong())?,
    };
    if (0.0..=1.0).contains(&share) { Ok(Until::Fraction(share)) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_shares_are_read_as_people_write_them() {
        assert_eq!(parse_rate("--rate", "5/s").unwrap(), 5.0);
        assert_eq!(parse_rate("--rate", "300/min").unwrap(), 5.0);
        assert_eq!(parse_rate("--rate", "2.5").unwrap(), 2.5);
        assert_eq!(parse_until("--until", "30%").unwrap(), Until::Fraction(0.3));
        assert_eq!(parse_until("--until", "all").unwrap(), Until::All);
        for bad in ["0/s", "-1", "x", "1/fortnight", "nan", "inf"] {
            assert!(parse_rate("--rate", bad).is_err(), "{bad}");
        }
        for bad in ["1.5", "-0.1", "130%", "most", "nan"] {
            assert!(parse_until("--until", bad).is_err(), "{bad}");
        }
    }
}
