//! The `[encoder]` part of `rehang.toml`, as users write it.

use std::path::Path;

use rehang_core::{Distance, Space};
use rehang_encode::{EncoderConfig, open};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
struct File {
    encoder: EncoderConfig,
}

fn parse(text: &str) -> Result<EncoderConfig, String> {
    toml::from_str::<File>(text).map(|file| file.encoder).map_err(|error| error.to_string())
}

fn space() -> Space {
    Space::new("new", 4, Distance::Cosine, true)
}

/// Every example of the documentation is a configuration, and none of them changes when it is written and
/// read again.
#[test]
fn the_examples_of_the_documentation_are_right() {
    let text = include_str!("../../../docs/encoders.md");
    let examples: Vec<&str> =
        text.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(examples.len() >= 4, "{} examples", examples.len());
    for example in examples {
        let config = parse(example).unwrap_or_else(|error| panic!("{error}\n{example}"));
        let written = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<EncoderConfig>(&written).unwrap(), config);
    }
}

/// Every key of every kind stands in the documentation.
#[test]
fn the_documentation_names_every_key() {
    let text = include_str!("../../../docs/reference/encoders.md");
    let examples = [
        "kind = 'table'\nno-such-key = 1",
        "kind = 'command'\nno-such-key = 1",
        "kind = 'http'\nno-such-key = 1",
        "kind = 'onnx'\nno-such-key = 1",
        "kind = 'onnx'\ninput = { kind = 'image', no-such-key = 1 }",
        "kind = 'onnx'\ninput = { kind = 'text', no-such-key = 1 }",
    ];
    for example in examples {
        let error = parse(&format!("[encoder]\n{example}")).unwrap_err();
        assert!(error.contains("no-such-key"), "{error}");
        let keys: Vec<&str> = error.split("expected").nth(1).unwrap().split('`').skip(1).step_by(2).collect();
        assert!(keys.len() >= 3, "{error}");
        for key in keys {
            assert!(text.contains(&format!("`{key}`")), "{key} of {example}");
        }
    }
}

#[test]
fn what_is_no_configuration_says_why() {
    for (text, words) in [
        ("", "kind"),
        ("kind = 'onxx'", "unknown variant `onxx`, expected one of `table`, `command`, `http`, `onnx`"),
        ("kind = 'table'", "missing field `vectors`"),
        ("kind = 'table'\nvectors = 7", "expected a string"),
        ("kind = 'command'\nprogram = 'python3 encode.py'", "expected a sequence"),
        ("kind = 'command'\nprogram = ['x']\nformat = 'csv'", "unknown variant `csv`"),
        ("kind = 'http'\nurl = 'http://x'\nmodel = 'm'\nkey = 'sk-1'", "unknown field `key`"),
        ("kind = 'http'\nurl = 'http://x'\nmodel = 'm'\nbatch = -1", "batch"),
        ("kind = 'onnx'\nmodel = 'm'\ninput = { kind = 'sound' }", "unknown variant `sound`"),
        ("kind = 'onnx'\nmodel = 'm'\ninput = { kind = 'vector', width = 3 }", "unknown field `width`"),
        ("kind = 'onnx'\nmodel = 'm'\ninput = { kind = 'image', width = 3 }", "missing field `height`"),
    ] {
        let error = parse(&format!("[encoder]\n{text}")).unwrap_err();
        // TOML quotes the line; a number that is no size is refused without the key's name in the message
        // itself.
        assert!(error.contains(words) || (words == "batch" && error.contains("-1")), "{text}: {error}");
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    for (text, words) in [
        ("kind = 'table'\nvectors = 'gone.npy'", "gone.npy"),
        ("kind = 'table'\nvectors = 'gone.csv'", "gone.csv"),
        ("kind = 'command'\nprogram = []", "program"),
        ("kind = 'http'\nurl = 'localhost'\nmodel = 'm'", "url"),
        (
            "kind = 'http'\nurl = 'http://x'\nmodel = 'm'\nkey_env = 'REHANG_NO_SUCH_KEY'",
            "REHANG_NO_SUCH_KEY",
        ),
        ("kind = 'onnx'\nmodel = 'gone.onnx'\ninput = { kind = 'vector' }", "gone.onnx"),
    ] {
        let config = parse(&format!("[encoder]\n{text}")).unwrap();
        let error = open(&config, &space(), Path::new("")).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_table_embeds_no_query() {
    let error = parse("[encoder]\nkind = 'table'\nvectors = 'new.npy'").unwrap().for_queries().unwrap_err();
    assert!(error.to_string().contains("table") && error.to_string().contains("query"), "{error}");
}
