//! Lines whose verb is none of the program's own.

use serde_json::Value;

use crate::common::Place;

#[test]
fn a_verb_of_the_other_command_line_is_handed_on_with_what_stands_in_front_of_it() {
    let output = Place::new().run(&["--json", "--threads", "1", "completions", "bash"]);
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &said["shell"]), (Some(0), &"bash".into()));
}

#[test]
fn a_verb_or_a_study_that_nobody_knows_is_refused() {
    let place = Place::new();
    for (line, says) in [
        (&["no-such-verb"][..], "unrecognized subcommand 'no-such-verb'"),
        (&["study", "no-such-study"], "[possible values: bias, bridge, demo-data"),
        (&["--threads", "0", "embed", "a", "b", "-o", "c"], "--threads"),
    ] {
        let output = place.run(line);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && error.contains(says), "{line:?}: {error}");
    }
    assert!(place.names().is_empty());
}
