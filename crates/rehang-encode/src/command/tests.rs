use std::path::Path;

use proptest::prelude::*;
use rehang_core::Distance;
use rehang_files::write_matrix;
use tempfile::TempDir;

use super::*;
use crate::EncoderConfig;

const NULL: Value = Value::Null;

fn space() -> Space {
    Space::new("new", 2, Distance::L2, false)
}

fn input<'a>(id: &'a str, source: &'a str) -> Input<'a> {
    Input { id, source, payload: &NULL }
}

/// Four items that a script can tell apart.
fn abcd() -> [Input<'static>; 4] {
    [input("a", "1"), input("b", "2"), input("c", "3"), input("d", "4")]
}

/// Start of a loop that reads id and source of a line into `$id` and `$source`, since `sh` is everywhere and
/// `jq` is not.
const LOOP: &str = r#"
while IFS= read -r line; do
  id=${line#*'"id":"'}; id=${id%%'"'*}
  source=${line#*'"source":"'}; source=${source%%'"'*}
"#;

/// Makes a program of `sh` in a folder of its own, whose loop has the given body.
fn shell(body: &str, change: impl FnOnce(&mut CommandConfig)) -> (TempDir, Command) {
    script(&format!("{LOOP}\n{body}\ndone"), change)
}

fn script(text: &str, change: impl FnOnce(&mut CommandConfig)) -> (TempDir, Command) {
    let folder = tempfile::tempdir().unwrap();
    fs_err::write(folder.path().join("encode.sh"), text).unwrap();
    let mut config = config(&["sh", "encode.sh"]);
    change(&mut config);
    let command = Command::open(&config, &space(), folder.path()).unwrap();
    (folder, command)
}

fn config(program: &[&str]) -> CommandConfig {
    let program = program.iter().map(ToString::to_string).collect();
    CommandConfig {
        program,
        query_program: None,
        format: CommandFormat::Jsonl,
        persistent: None,
        batch: 32,
        processes: 1,
        timeout_seconds: 20.0,
        normalise: false,
        revision: None,
    }
}

const ANSWER: &str = r#"echo "{\"id\":\"$id\",\"vector\":[$source,0.5]}""#;

fn count_starts(folder: &Path) -> usize {
    fs_err::read_to_string(folder.join("starts")).unwrap().lines().count()
}

#[test]
fn one_process_answers_batch_after_batch() {
    let (folder, command) = script(&format!("echo >> starts\n{LOOP}\n{ANSWER}\ndone"), |_| {});
    let expected: Vec<Answer> = (1..=4).map(|n| Ok(vec![n as f32, 0.5])).collect();
    for _ in 0..3 {
        assert_eq!(command.encode(&abcd()).unwrap(), expected);
    }
    assert_eq!(count_starts(folder.path()), 1);
    assert_eq!(command.encode(&[]).unwrap(), []);
    assert_eq!(command.spent().items, 12);
}

#[test]
fn queries_may_have_a_program_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    // Items get 1, queries 2.
    let text = LOOP.to_owned() + "echo \"{\\\"id\\\":\\\"$id\\\",\\\"vector\\\":[$kind,0.5]}\"\ndone";
    fs_err::write(folder.path().join("encode.sh"), format!("kind=$1\n{text}")).unwrap();
    let mut config = config(&["sh", "encode.sh", "1"]);
    config.revision = Some("a".into());
    let first = |config: &EncoderConfig| {
        let EncoderConfig::Command(config) = config else { panic!("another kind") };
        let command = Command::open(config, &space(), folder.path()).unwrap();
        let vector = command.encode(&[input("a", "x")]).unwrap().remove(0).unwrap();
        (vector[0], command.fingerprint().unwrap())
    };
    let plain = EncoderConfig::Command(config.clone());
    assert_eq!(first(&plain.for_queries().unwrap()).0, 1.0, "as items are");
    config.query_program = Some(["sh", "encode.sh", "2"].map(Into::into).to_vec());
    let with = EncoderConfig::Command(config);
    assert_eq!(first(&with), first(&plain), "nothing changes for items");
    assert_eq!(first(&with.for_queries().unwrap()).0, 2.0);
}

#[test]
fn without_persistence_every_batch_has_its_process() {
    let (folder, command) = script(&format!("echo >> starts\n{LOOP}\n{ANSWER}\ndone"), |config| {
        config.persistent = Some(false);
    });
    for _ in 0..3 {
        assert!(command.encode(&abcd()).unwrap().iter().all(Result::is_ok));
    }
    assert_eq!(count_starts(folder.path()), 3);
}

#[test]
fn a_program_may_wait_for_the_end_of_a_batch() {
    // `left` says how many items follow, so answers may be held back until it is 0.
    let body = format!(
        "held=\"$held$({ANSWER})\n\"\ncase $line in *'\"left\":0'*) printf '%s' \"$held\"; held=; esac"
    );
    let (_folder, command) = shell(&body, |_| {});
    for _ in 0..2 {
        assert!(command.encode(&abcd()).unwrap().iter().all(Result::is_ok));
    }
}

#[test]
fn errors_of_the_program_are_the_items_own() {
    let body = format!(
        "case $id in
           a) echo \"{{\\\"id\\\":\\\"a\\\",\\\"error\\\":\\\"gone\\\",\\\"permanent\\\":true}}\";;
           b) echo \"{{\\\"id\\\":\\\"b\\\",\\\"error\\\":\\\"busy\\\"}}\";;
           c) echo \"{{\\\"id\\\":\\\"c\\\",\\\"vector\\\":[null,1]}}\";;
           *) {ANSWER};;
         esac"
    );
    let (_folder, command) = shell(&body, |_| {});
    let answers = command.encode(&abcd()).unwrap();
    assert_eq!(answers[0], Err(ItemFailure::Permanent("gone".into())));
    assert_eq!(answers[1], Err(ItemFailure::Temporary("busy".into())));
    assert!(matches!(&answers[2], Err(ItemFailure::Permanent(why)) if why.contains("NaN")));
    assert_eq!(answers[3], Ok(vec![4.0, 0.5]));
}

#[test]
fn numbers_that_are_not_finite_fail_their_item_and_no_process() {
    let body = format!(
        "case $id in
           b) echo \"{{\\\"id\\\":\\\"b\\\",\\\"vector\\\":[NaN,-Infinity]}}\";;
           *) {ANSWER};;
         esac"
    );
    let (_folder, command) = shell(&body, |_| {});
    let answers = command.encode(&abcd()).unwrap();
    assert!(matches!(&answers[1], Err(ItemFailure::Permanent(why)) if why.contains("NaN")), "{answers:?}");
    assert_eq!(answers[3], Ok(vec![4.0, 0.5]));
    assert_eq!(command.spent().items, 4, "each was asked for once");
}

#[test]
fn the_item_that_kills_the_program_is_found_and_the_others_are_served() {
    let body = format!("[ $id = c ] && {{ echo 'no memory for c' >&2; exit 9; }}\n{ANSWER}");
    let (_folder, command) = shell(&body, |_| {});
    let answers = command.encode(&abcd()).unwrap();
    let Err(ItemFailure::Temporary(why)) = &answers[2] else { panic!("{answers:?}") };
    assert!(why.contains("exit status: 9") && why.contains("no memory for c"), "{why}");
    for at in [0, 1, 3] {
        assert_eq!(answers[at], Ok(vec![at as f32 + 1.0, 0.5]));
    }
}

#[test]
fn items_that_kill_the_program_one_after_the_other_take_no_others_with_them() {
    let body = format!("case $id in bad*) exit 9;; esac\n{ANSWER}");
    let inputs =
        [input("bad 1", "1"), input("bad 2", "2"), input("x", "3"), input("y", "4"), input("z", "5")];
    // The program may have answered before, or not.
    for answered in [true, false] {
        let (_folder, command) = shell(&body, |_| {});
        if answered {
            assert!(command.encode(&abcd()).unwrap().iter().all(Result::is_ok));
        }
        let answers = command.encode(&inputs).unwrap();
        assert!(answers[..2].iter().all(|answer| matches!(answer, Err(ItemFailure::Temporary(_)))));
        assert!(answers[2..].iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_)))));
        assert!(command.encode(&inputs[2..]).unwrap().iter().all(Result::is_ok));
    }
}

#[test]
fn a_program_that_is_killed_from_outside_is_started_again() {
    let (folder, command) = shell(&format!("echo $$ > pid\n{ANSWER}"), |_| {});
    assert!(command.encode(&abcd()).unwrap().iter().all(Result::is_ok));
    let pid = fs_err::read_to_string(folder.path().join("pid")).unwrap();
    let killed = std::process::Command::new("sh").args(["-c", &format!("kill -9 {pid}")]).status().unwrap();
    assert!(killed.success());
    // The dead process costs one attempt; every item of the batch is served all the same.
    assert!(command.encode(&abcd()).unwrap().iter().all(Result::is_ok));
    assert_ne!(pid, fs_err::read_to_string(folder.path().join("pid")).unwrap());
}

#[test]
fn broken_output_is_a_temporary_failure_with_the_line_in_it() {
    let cases = [
        ("echo 'loading model'", "loading model"),
        ("echo '{\"id\":\"a\"}'", "either a vector or an error"),
        ("echo '{\"id\":\"zzz\",\"vector\":[1,2]}'", "zzz"),
        ("head -c 100000 /dev/zero | tr '\\0' x; echo", "more than"),
    ];
    for (output, reason) in cases {
        let (_folder, command) =
            shell(&format!("if [ $source = bad ]; then {output}; else {ANSWER}; fi"), |_| {});
        let answers = command.encode(&[input("x", "1"), input("a", "bad"), input("y", "3")]).unwrap();
        let Err(ItemFailure::Temporary(why)) = &answers[1] else { panic!("{output}: {answers:?}") };
        assert!(why.contains(reason), "{output}: {why}");
        assert!(answers[0].is_ok() && answers[2].is_ok(), "{output}: {answers:?}");
    }
}

#[test]
fn a_wrong_number_of_lines_never_shifts_vectors() {
    for persistent in [true, false] {
        for output in [format!("{ANSWER}; {ANSWER}"), format!("[ $id = b ] || {ANSWER}")] {
            let (_folder, command) = shell(&output, |config| {
                config.persistent = Some(persistent);
                config.timeout_seconds = 0.3;
            });
            let Ok(answers) = command.encode(&abcd()) else { continue };
            assert!(answers.iter().any(Result::is_err), "{output}");
            for (at, answer) in answers.into_iter().enumerate() {
                assert!(answer.is_err() || answer == Ok(vec![at as f32 + 1.0, 0.5]), "{output}");
            }
        }
    }
}

#[test]
fn another_width_stops_the_run() {
    let (_folder, command) = shell(r#"echo "{\"id\":\"$id\",\"vector\":[1,2,3]}""#, |_| {});
    let error = command.encode(&abcd()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WidthMismatch { expected: 2, received: 3, .. }), "{error}");
}

#[test]
fn a_program_that_never_answers_stops_the_run_with_its_last_words() {
    let (_folder, command) = script("echo 'No module named torch' >&2; exit 1", |_| {});
    let error = command.encode(&abcd()).unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(error.to_string().contains("No module named torch"), "{error}");
    // In batches of one, giving the program up takes as many calls.
    let (_folder, command) = script("exit 1", |_| {});
    for _ in 0..2 {
        assert!(matches!(command.encode(&abcd()[..1]).unwrap()[0], Err(ItemFailure::Temporary(_))));
    }
    command.encode(&abcd()[..1]).unwrap_err();
}

#[test]
fn a_program_that_hangs_is_killed_with_all_it_started() {
    let body = format!("[ $id = b ] && {{ sleep 1000 & echo $! > sleeper; wait; }}\n{ANSWER}");
    let (folder, command) = shell(&body, |config| config.timeout_seconds = 0.3);
    let answers = command.encode(&abcd()).unwrap();
    let Err(ItemFailure::Temporary(why)) = &answers[1] else { panic!("{answers:?}") };
    assert!(why.contains("timeout_seconds = 0.3"), "{why}");
    assert!(answers[0].is_ok() && answers[2].is_ok() && answers[3].is_ok());
    drop(command);
    let sleeper = fs_err::read_to_string(folder.path().join("sleeper")).unwrap();
    assert!(is_gone(sleeper.trim()), "{sleeper}");
}

#[test]
fn nothing_is_left_when_the_encoder_goes() {
    let (folder, command) = shell(&format!("echo $$ > pid\n{ANSWER}"), |_| {});
    command.encode(&abcd()).unwrap();
    let pid = fs_err::read_to_string(folder.path().join("pid")).unwrap();
    assert!(!is_gone(pid.trim()));
    drop(command);
    assert!(is_gone(pid.trim()));
}

/// Variable with the folder in which the process below starts its program.
const FOLDER: &str = "REHANG_TEST_FOLDER_OF_THE_PARENT";

/// Process that the next test kills; no test by itself.
#[test]
fn a_parent_that_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    // The program's input stays open behind its back, so that nothing but the system ends it.
    let program = config(&["sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 1000"]);
    let command = Command::open(&program, &space(), Path::new(&folder)).unwrap();
    // The thread that starts the program is over before the program is.
    let process = thread::scope(|scope| {
        scope.spawn(|| Process::start(&command.launch, Output::Lines).unwrap()).join().unwrap()
    });
    process.next(rehang_clock::now() + Duration::from_mins(1));
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_ends_with_this_process_however_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut parent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "command::tests::a_parent_that_is_killed"])
        .env(FOLDER, folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (place, deadline) = (folder.path().join("pid"), rehang_clock::now() + Duration::from_secs(20));
    while !place.exists() && rehang_clock::now() < deadline {
        rehang_clock::wait(Duration::from_millis(5));
    }
    let pid = fs_err::read_to_string(place).unwrap();
    assert!(!is_gone(pid.trim()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    while !is_gone(pid.trim()) {
        assert!(rehang_clock::now() < deadline, "the program outlived its parent");
    }
}

/// Whether a process is no more, or at most waits for its parent to take note of its end.
fn is_gone(pid: &str) -> bool {
    let deadline = rehang_clock::now() + Duration::from_secs(5);
    loop {
        let listed = std::process::Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
        let state = String::from_utf8_lossy(&listed.stdout).trim().to_string();
        if state.is_empty() || (state.starts_with('Z') && rehang_clock::now() > deadline) {
            return true;
        }
        if !state.starts_with('Z') {
            return false;
        }
    }
}

#[test]
fn what_cannot_be_started_stops_the_run() {
    for program in ["rehang-no-such-program", "./no-such-program"] {
        let command = Command::open(&config(&[program]), &space(), Path::new(".")).unwrap();
        let error = command.encode(&abcd()).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::NotFound { .. }), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    fs_err::write(folder.path().join("encode.txt"), "no program").unwrap();
    let command = Command::open(&config(&["./encode.txt"]), &space(), folder.path()).unwrap();
    let error = command.encode(&abcd()).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidOption { .. }), "{error}");
}

#[test]
fn keys_that_cannot_be_are_refused() {
    type Change = fn(&mut CommandConfig);
    let cases: [(Change, &str); 6] = [
        (|config| config.program.clear(), "program"),
        (|config| config.batch = 0, "batch"),
        (|config| config.processes = 0, "processes"),
        (|config| config.timeout_seconds = 0.0, "timeout_seconds"),
        (|config| config.timeout_seconds = f64::NAN, "timeout_seconds"),
        (
            |config| {
                config.format = CommandFormat::Npy;
                config.persistent = Some(true);
            },
            "persistent",
        ),
    ];
    for (change, key) in cases {
        let mut config = config(&["sh"]);
        change(&mut config);
        let error = Command::open(&config, &space(), Path::new("")).err().unwrap();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidOption { option, .. } if option == key),
            "{key}: {error}"
        );
    }
}

#[test]
fn several_processes_serve_several_callers() {
    // Each process waits until the other runs, so one process alone would never answer.
    let body = format!("echo > running-$$\nwhile [ $(ls running-* | wc -l) -lt 2 ]; do :; done\n{ANSWER}");
    let (folder, command) = shell(&body, |config| config.processes = 2);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..2).map(|_| scope.spawn(|| command.encode(&abcd()).unwrap())).collect();
        for caller in callers {
            assert!(caller.join().unwrap().iter().all(Result::is_ok));
        }
    });
    let running = fs_err::read_dir(folder.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("running-"));
    assert_eq!(running.count(), 2);
}

#[test]
fn several_processes_serve_one_caller() {
    // As above, one process alone would never answer.
    let body = format!("echo > running-$$\nwhile [ $(ls running-* | wc -l) -lt 2 ]; do :; done\n{ANSWER}");
    let (_folder, command) = shell(&body, |config| (config.processes, config.batch) = (2, 2));
    assert_eq!(command.batch_max(), 4);
    let expected: Vec<Answer> = (1..=4).map(|n| Ok(vec![n as f32, 0.5])).collect();
    assert_eq!(command.encode(&abcd()).unwrap(), expected);
}

/// Makes a program that writes a finished matrix, once it has read all its items into `items`.
fn matrix_script(matrix: &Matrix, after: &str) -> (TempDir, Command) {
    let (folder, command) = script(&format!("cat > items; cat out.npy; {after}"), |config| {
        config.format = CommandFormat::Npy;
    });
    write_matrix(folder.path().join("out.npy"), matrix, None).unwrap();
    (folder, command)
}

#[test]
fn a_matrix_has_a_row_an_item() {
    let matrix =
        Matrix::from_fn(4, 2, |row, column| if row == 2 { f32::NAN } else { (row * 2 + column) as f32 });
    let (folder, command) = matrix_script(&matrix, "");
    let answers = command.encode(&abcd()).unwrap();
    assert_eq!(answers[1], Ok(vec![2.0, 3.0]));
    assert!(matches!(answers[2], Err(ItemFailure::Permanent(_))));
    let items = fs_err::read_to_string(folder.path().join("items")).unwrap();
    let first: Value = serde_json::from_str(items.lines().next().unwrap()).unwrap();
    assert_eq!(first, serde_json::json!({"id": "a", "source": "1", "payload": null, "left": 3}));
    assert_eq!(items.lines().count(), 4);
}

#[test]
fn a_matrix_that_cannot_be_trusted_is_not() {
    let good = Matrix::from_fn(1, 2, |_, column| column as f32);
    let encode = |matrix: &Matrix, after: &str| matrix_script(matrix, after).1.encode(&abcd()[..1]);
    assert_eq!(encode(&good, "").unwrap(), [Ok(vec![0.0, 1.0])]);
    let reason = |answers: Result<Vec<Answer>>| answers.unwrap().remove(0).unwrap_err().to_string();
    assert!(reason(encode(&good, "exit 3")).contains("exit status: 3"));
    assert!(reason(encode(&good, "echo more")).contains("no .npy matrix"));
    assert!(reason(encode(&Matrix::zeros(2, 2), "")).contains("2 rows for 1 items"));
    let error = encode(&Matrix::zeros(1, 3), "").unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WidthMismatch { expected: 2, received: 3, .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Every id and source arrives, whatever it holds: `sed` sends every line back as a failure of its item.
    #[test]
    fn any_text_arrives(ids in proptest::collection::vec("\\PC{0,8}|[\"\\\\\n\t]{1,3}", 1..4)) {
        let program = ["sed", "-u", "s/,\"source\":/,\"permanent\":true,\"error\":/"];
        let command = Command::open(&config(&program), &space(), Path::new("")).unwrap();
        let inputs: Vec<Input<'_>> = ids.iter().map(|id| input(id, id)).collect();
        let expected: Vec<Answer> = ids.iter().map(|id| Err(ItemFailure::Permanent(id.clone()))).collect();
        prop_assert_eq!(command.encode(&inputs).unwrap(), expected);
    }
}

#[test]
fn a_program_that_becomes_another_model_is_found() {
    let drift =
        format!("[ -e turned ] && source=$((source + 500))\n[ $id = i300 ] && touch turned\n{ANSWER}");
    let ids: Vec<String> = (0..600).map(|number| format!("i{number}")).collect();
    let sources: Vec<String> = (1..=600).map(|number: i32| number.to_string()).collect();
    let inputs: Vec<Input<'_>> = ids.iter().zip(&sources).map(|(id, source)| input(id, source)).collect();
    for (revision, is_found) in [(None, true), (Some("1".to_owned()), false)] {
        let folder = tempfile::tempdir().unwrap();
        fs_err::write(folder.path().join("encode.sh"), format!("{LOOP}\n{drift}\ndone")).unwrap();
        let config = CommandConfig { revision, ..config(&["sh", "encode.sh"]) };
        let encoder = crate::open(&EncoderConfig::Command(config), &space(), folder.path()).unwrap();
        let (mut answer_count, mut message) = (0, None);
        let mut receipts = Vec::new();
        for part in inputs.chunks(64) {
            match encoder.encode(part) {
                Ok(answers) if message.is_none() => {
                    answer_count += answers.len();
                    receipts.push(encoder.receipt());
                }
                Ok(_) => panic!("it went on after {message:?}"),
                Err(error) => {
                    assert!(
                        error.is_conflict()
                            && error.to_string().contains("since the last comparison is not used"),
                        "{error}"
                    );
                    message.get_or_insert(error.to_string());
                }
            }
        }
        assert_eq!(message.is_some(), is_found, "{message:?}");
        // One item is embedded again after every 128, and the vectors of the call before it are thrown away.
        assert_eq!(
            (answer_count, encoder.spent().items),
            if is_found { (320, 384 + 3 + 2) } else { (600, 600) }
        );
        // The encoder handed out the vectors of the call of text 300, and does not vouch for them.
        let vouched = receipts.iter().filter(|receipt| encoder.is_vouched_for(**receipt)).count();
        assert_eq!(vouched * 64, if is_found { 256 } else { 640 });
        assert_eq!(encoder.vouch().is_err(), is_found);
    }
}
