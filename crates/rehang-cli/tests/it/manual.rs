//! The manual, the completions and `docs/cli.md` come from the definitions of the command line.

use crate::common::Place;

#[test]
fn the_page_of_all_commands_is_fresh() {
    let place = Place::new();
    place.json(&["man", "--format", "markdown", "--out", "pages"]);
    let made = fs_err::read_to_string(place.path("pages/cli.md")).unwrap();
    let kept = fs_err::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md")).unwrap();
    let first = made.lines().zip(kept.lines()).find(|(made, kept)| made != kept);
    assert!(
        made == kept,
        "docs/cli.md is stale: run `cargo xtask cli-docs` and look at the difference: {first:?}"
    );
}

#[test]
fn every_command_has_a_page_and_every_option_of_a_command_is_on_it() {
    let place = Place::new();
    let written = place.json(&["man", "--out", "pages"])["written"].as_array().unwrap().len();
    let page = |name: &str| fs_err::read_to_string(place.path("pages").join(name)).unwrap();
    assert!(written > 30, "{written} pages");
    assert!(page("rehang.1").starts_with(".ie"), "no page of man");
    // In pages of man a hyphen is written `\-`.
    assert!(
        page("rehang-upgrade-switch.1").contains("\\-\\-fused")
            && page("rehang-fit.1").contains("\\-\\-old\\-ids")
    );
    // Pages of the same names are replaced.
    place.json(&["man", "--out", "pages"]);
}

#[test]
fn shells_are_given_their_completions() {
    let place = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = place.run(&["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && script.contains("keep-common"), "{shell}: {script}");
    }
    let output = place.run(&["completions", "cmd"]);
    assert!(
        output.status.code() == Some(2)
            && String::from_utf8_lossy(&output.stderr).contains("[possible values: bash")
    );
}
