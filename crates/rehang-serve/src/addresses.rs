//! Addresses of the configuration, which are for the log and not for callers: hosts, URLs and paths.

use rehang_upgrade::{Configuration, Location};

/// Names that say where the gallery and the configuration lie, each with the words that answers have in its
/// place.
pub struct Addresses {
    names: Vec<(String, &'static str)>,
    /// Name of the gallery's server without its scheme, which stands alone in some messages.
    server: Option<String>,
}

impl Addresses {
    /// Finds the names of a configuration, and of the gallery as its store calls it.
    pub fn new(configuration: &Configuration, gallery: &str) -> Self {
        let file = configuration.path.display().to_string();
        let names = [(gallery.to_owned(), "the gallery"), (file, "the configuration")].into_iter();
        // A name that is one word, such as `g`, says no place, and is a part of other words.
        let names = names.filter(|(name, _)| name.contains(['/', '\\', '.', ':'])).collect();
        let server = gallery.split_once("://").and_then(|(_, place)| place.split([' ', ',']).next());
        Self { names, server: server.filter(|server| !server.is_empty()).map(str::to_owned) }
    }

    /// Replaces the addresses in a sentence. A value that it quotes may be the caller's, so only the gallery
    /// and the configuration are replaced there; `quoted` is empty where it quotes none.
    pub fn hidden(&self, sentence: &str, quoted: &str) -> String {
        let Some((before, after)) = sentence.split_once(quoted) else { return self.without(sentence) };
        format!("{}{}{}", self.without(before), self.without_names(quoted), self.without(after))
    }

    /// Replaces the names of the gallery and of the configuration in a text.
    fn without_names(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (name, words)| text.replace(name, words))
    }

    /// Replaces all addresses in a text.
    fn without(&self, text: &str) -> String {
        let text = self.without_names(text);
        let is_between = |letter: char| letter.is_whitespace() || "\"'`()[]{}<>,;=".contains(letter);
        let shown = |word: &str| {
            let bare = word.trim_end_matches(|letter: char| is_between(letter) || ":.!?".contains(letter));
            if is_address(bare) { format!("…{}", &word[bare.len()..]) } else { word.to_owned() }
        };
        let text: String = text.split_inclusive(is_between).map(shown).collect();
        match &self.server {
            Some(server) => text.replace(server, "the database"),
            None => text,
        }
    }
}

/// Whether a word is a URL, or a path from the root of a disk.
fn is_address(word: &str) -> bool {
    let after_letter = word.get(1..3).unwrap_or_default();
    word.contains("://")
        || word.len() > 1 && word.starts_with('/')
        || word.starts_with("\\\\")
        || after_letter == ":\\"
        || after_letter == ":/"
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
                "PostgreSQL at the database: the gallery, once",
            ),
            ("Qdrant at http://q:6333, collection notes", "ask http://q:6333/x, now", "ask …, now"),
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
