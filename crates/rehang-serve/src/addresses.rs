//! Addresses of the configuration, which are for the log and not for callers: hosts, URLs and paths.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use rehang_core::Result;
use rehang_encode::{EncoderConfig, OnnxInput};
use rehang_upgrade::{Configuration, Location};
use serde::Serialize;
use serde_json::Value;

use crate::events::value;

/// Places of the configuration, each with the words that answers have for it.
pub struct Addresses {
    /// Gallery as its store calls it, and its name without its place.
    gallery: String,
    name: String,
    /// Places and their words, the longest place first.
    places: Vec<(String, &'static str)>,
}

impl Addresses {
    /// Finds the places of a configuration, and of the gallery as its store calls it.
    pub fn new(configuration: &Configuration, gallery: &str) -> Self {
        let file = &configuration.path;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let url = match &configuration.gallery {
            Location::File(_) => None,
            Location::Table(table) => table.url.as_ref(),
            Location::Collection(collection) => collection.url.as_ref(),
        };
        let mut places: Vec<(String, &'static str)> = Vec::new();
        places.extend(url.map(|url| (url.clone(), GALLERY)));
        for (path, words) in [
            (Path::new(gallery), GALLERY),
            (file.as_path(), "the configuration"),
            (folder, "the configuration's folder"),
        ] {
            places.extend(paths(path.to_owned()).map(|path| (path, words)));
        }
        let files = configuration.files();
        let files = files.map(|path| (path.display().to_string(), "a file of the configuration"));
        for (place, words) in configuration.encoders().flat_map(of_encoder).chain(files) {
            places.extend(paths(folder.join(&place)).map(|path| (path, words)));
            places.push((place, words));
        }
        let of_urls: Vec<_> = places.iter().flat_map(|&(ref place, words)| servers(place, words)).collect();
        places.extend(of_urls);
        // A word, such as `g`, says no place, and is a part of other words; so is what is as short.
        let letters = |place: &str| place.chars().filter(|letter| letter.is_alphanumeric()).count();
        places.retain(|(place, _)| place.contains(['/', '\\', '.', ':']) && letters(place) >= LETTERS_MIN);
        places.sort_by_key(|(place, _)| Reverse(place.len()));
        Self { gallery: gallery.to_owned(), name: name_of(&configuration.gallery), places }
    }

    /// Replaces the addresses in a sentence. A value that it quotes may be the caller's, so only places that
    /// are known are replaced there; `quoted` is empty where it quotes none.
    pub fn hidden(&self, sentence: &str, quoted: &str) -> String {
        let (sentence, quoted) = (self.without_places(sentence), self.without_places(quoted));
        let Some((before, after)) = sentence.split_once(&quoted) else { return without_guessed(&sentence) };
        format!("{}{quoted}{}", without_guessed(before), without_guessed(after))
    }

    /// Makes JSON of a result for an answer: its texts have the gallery's name alone, and words for places.
    pub fn value(&self, result: &impl Serialize) -> Result<Value> {
        let mut value = value(result)?;
        self.hide(&mut value);
        Ok(value)
    }

    /// Replaces the places that are known in all texts of a result.
    fn hide(&self, value: &mut Value) {
        match value {
            Value::String(text) if *text == self.gallery => text.clone_from(&self.name),
            Value::String(text) => *text = self.without_places(text),
            Value::Array(all) => all.iter_mut().for_each(|inner| self.hide(inner)),
            // An id is the application's, whatever it looks like.
            Value::Object(fields) => {
                fields.iter_mut().filter(|(name, _)| *name != "id").for_each(|(_, inner)| self.hide(inner));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Replaces the places that are known in a text.
    fn without_places(&self, text: &str) -> String {
        self.places.iter().fold(text.to_owned(), |text, (place, words)| text.replace(place, words))
    }
}

/// Words for the gallery and its server, and for an encoder.
const GALLERY: &str = "the gallery";
const ENCODER: &str = "the encoder";
/// Fewest letters and digits of a place that is replaced wherever it stands.
const LETTERS_MIN: usize = 3;

/// Gives a path as it is written, and as it is without links.
fn paths(path: PathBuf) -> impl Iterator<Item = String> {
    let real = fs_err::canonicalize(&path).ok();
    [Some(path), real].into_iter().flatten().map(|path| path.display().to_string())
}

/// Lists the places of an encoder as they are written, each with its words.
fn of_encoder(encoder: &EncoderConfig) -> Vec<(String, &'static str)> {
    let shown = |path: &Path| path.display().to_string();
    match encoder {
        EncoderConfig::Table(table) => {
            let files = [Some(&table.vectors), table.ids.as_ref()].into_iter().flatten();
            files.map(|file| (file.clone(), "of the encoder")).collect()
        }
        EncoderConfig::Command(command) => {
            let programs = [Some(&command.program), command.query_program.as_ref()].into_iter().flatten();
            let parts = programs.flat_map(|program| program.iter().cloned().chain([program.join(" ")]));
            // A number stands in other texts too.
            parts.filter(|part| part.contains(char::is_alphabetic)).map(|part| (part, ENCODER)).collect()
        }
        EncoderConfig::Http(http) => {
            // Messages have the whole address, of which the configuration may leave the end out.
            let url = http.url.split('?').next().unwrap_or_default().trim_end_matches('/');
            ["/v1/embeddings", "/embeddings", ""].map(|end| (format!("{url}{end}"), ENCODER)).into()
        }
        EncoderConfig::Onnx(onnx) => {
            let tokenizer = match &onnx.input {
                OnnxInput::Text(text) => Some((shown(&text.tokenizer), ENCODER)),
                OnnxInput::Image(_) | OnnxInput::Vector(_) => None,
            };
            let root = onnx.root.as_ref().map(|root| (shown(root), "the encoder's folder"));
            [(shown(&onnx.model), ENCODER)].into_iter().chain(tokenizer).chain(root).collect()
        }
    }
}

/// Finds the servers in a URL, or in the name of a gallery with one: with the scheme, the port, and alone.
fn servers(place: &str, words: &'static str) -> Vec<(String, &'static str)> {
    let Some((before, after)) = place.split_once("://") else { return Vec::new() };
    let scheme = before.rsplit(' ').next().unwrap_or_default();
    let url = after.split(' ').next().unwrap_or_default().trim_end_matches(',');
    let bare = url.rsplit('@').next().unwrap_or_default();
    let servers = bare.split(['/', '?', '#']).next().unwrap_or_default();
    let mut all = vec![format!("{scheme}://{servers}"), bare.to_owned()];
    for server in servers.split(',') {
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
        all.extend([server.to_owned(), host.to_owned()]);
    }
    all.into_iter().map(|server| (server, words)).collect()
}

/// Replaces what looks like an address in a text.
fn without_guessed(text: &str) -> String {
    let is_between = |letter: char| letter.is_whitespace() || "\"'`()[]{}<>,;=".contains(letter);
    let shown = |word: &str| {
        let bare = word.trim_end_matches(|letter: char| is_between(letter) || ":.!?".contains(letter));
        if is_address(bare) { format!("…{}", &word[bare.len()..]) } else { word.to_owned() }
    };
    text.split_inclusive(is_between).map(shown).collect()
}

/// Whether a word is a URL, or a path of several names from the root of a disk.
fn is_address(word: &str) -> bool {
    let is_rooted = word.starts_with(['/', '\\']) || matches!(word.get(1..3), Some(":\\" | ":/"));
    let has_scheme = word.find("://").is_some_and(|length| length > 0);
    has_scheme || is_rooted && word.split(['/', '\\']).filter(|name| !name.is_empty()).count() > 1
}

/// Returns the name of a gallery without its place.
pub fn name_of(gallery: &Location) -> String {
    match gallery {
        Location::File(path) => {
            path.file_name().map_or_else(|| path.display().to_string(), |name| name.display().to_string())
        }
        Location::Table(table) => table.table.clone(),
        Location::Collection(collection) => collection.collection.clone(),
    }
}

#[cfg(test)]
mod tests {
    use rehang_core::{Distance, Space};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_sentence_keeps_its_words_and_loses_its_addresses() {
        let space = |name: &str| Space::new(name, 2, Distance::Cosine, false);
        let mut configuration =
            Configuration::new(Location::file("data/g.db"), space("old"), space("new")).unwrap();
        configuration.path = "shop.toml".into();
        for (gallery, sentence, expected) in [
            ("data/g.db", "the upgrade of data/g.db is filling", "the upgrade of the gallery is filling"),
            ("g", "a gallery of g", "a gallery of g"),
            ("g", "a query needs [encoder] (shop.toml)", "a query needs [encoder] (the configuration)"),
            (
                "postgresql://db.lan:5433/shop notes",
                "PostgreSQL at db.lan:5433/shop: postgresql://db.lan:5433/shop notes, once",
                "PostgreSQL at the gallery: the gallery, once",
            ),
            (
                "Qdrant at http://q:6333, collection notes",
                "ask http://q:6333/x, now",
                "ask the gallery/x, now",
            ),
            ("g", "POINTS/$ (/h) of ../g, 1/2 and /", "POINTS/$ (/h) of ../g, 1/2 and /"),
            (
                "g",
                "cannot read \"/srv/a b.png\": ai/clip at https://host:1/v1: C:\\x and 1/2 / of file:///a.",
                "cannot read \"… b.png\": ai/clip at …: … and 1/2 / of ….",
            ),
        ] {
            assert_eq!(Addresses::new(&configuration, gallery).hidden(sentence, ""), expected);
        }
    }

    #[test]
    fn places_of_encoders_are_replaced_as_wholes_and_results_have_the_gallerys_name() {
        let space = |name: &str| Space::new(name, 2, Distance::Cosine, false);
        let image = json!({ "kind": "image", "width": 8, "height": 8 });
        let onnx = json!({ "kind": "onnx", "model": "ai/m.onnx", "root": "/srv/my photos", "input": image });
        let http = json!({ "kind": "http", "url": "http://gpu.lan:8080/v1", "model": "m" });
        let command = json!({ "kind": "command", "program": ["python3", "embed.py", "10.25"] });
        let configured = |new: &Value, old: &Value| {
            let configuration =
                Configuration::new(Location::file("/srv/shop/g.db"), space("old"), space("new")).unwrap();
            let [new, old] = [new, old].map(|encoder| serde_json::from_value(encoder.clone()).unwrap());
            let configuration = configuration.with_encoder(new).with_old_encoder(old);
            Addresses::new(&configuration, "/srv/shop/g.db")
        };
        let addresses = configured(&onnx, &http);
        for (sentence, expected) in [
            ("/srv/my photos/a b.png is no picture", "the encoder's folder/a b.png is no picture"),
            ("./ai/m.onnx and ai/m.onnx", "the encoder and the encoder"),
            (
                "gpu.lan:8080 or gpu.lan: at http://gpu.lan:8080/v1/x",
                "the encoder or the encoder: at the encoder/x",
            ),
        ] {
            assert_eq!(addresses.hidden(sentence, ""), expected);
        }
        let hidden = configured(&command, &http).hidden("python3 embed.py 10.25: ./embed.py of 10.25", "");
        assert_eq!(hidden, "the encoder: the encoder of 10.25");
        let result = json!({
            "gallery": "/srv/shop/g.db",
            "failures": [{ "id": "/srv/my photos/a", "reason": "at gpu.lan:8080" }],
            "forecast": { "source": "report-1.json in /srv/shop/g.db" },
        });
        let expected = json!({
            "gallery": "g.db", "failures": [{ "id": "/srv/my photos/a", "reason": "at the encoder" }],
            "forecast": { "source": "report-1.json in the gallery" },
        });
        assert_eq!(addresses.value(&result).unwrap(), expected);
    }

    #[test]
    fn what_the_caller_named_is_named() {
        let space = |name: &str| Space::new(name, 2, Distance::Cosine, false);
        let configuration = Configuration::new(Location::file("g.db"), space("old"), space("new")).unwrap();
        let sentence = "items cannot be \"https://shop/1\"; expected what https://model takes";
        let hidden = Addresses::new(&configuration, "g.db").hidden(sentence, "\"https://shop/1\"");
        assert_eq!(hidden, "items cannot be \"https://shop/1\"; expected what … takes");
        let of_file = "config cannot be \"data/g.db\"; expected another";
        let hidden = Addresses::new(&configuration, "data/g.db").hidden(of_file, "\"data/g.db\"");
        assert_eq!(hidden, "config cannot be \"the gallery\"; expected another");
        assert_eq!(name_of(&Location::file("/srv/shop/g.db")), "g.db");
    }
}
