//! Bad input of every kind, command by command: one clear error, exit code 2, nothing half-written.

use std::process::{Command, Output};

use rehang_core::Matrix;

use crate::common::{Place, faults_of_refusal, waves, words};

/// A command, what its error must say, and why the input is bad.
struct Case {
    why: &'static str,
    command: &'static str,
    says: &'static [&'static str],
}

const fn case(why: &'static str, command: &'static str, says: &'static [&'static str]) -> Case {
    Case { why, command, says }
}

const CASES: &[Case] = &[
    case(
        "a file that is not there, said once",
        "fit --old gone.npy --new new.npy -o OUT.safetensors",
        &["cannot read gone.npy: No such file"],
    ),
    case(
        "fewer labels than vectors that go by id",
        "fit --old old.npy --new new.npy --old-ids ids.txt --new-ids ids.txt --labels short-labels.npy -o OUT.safetensors",
        &["59", "60"],
    ),
    case(
        "fewer ids than vectors",
        "fit --old old.npy --new new.npy --old-ids few-ids.txt --new-ids ids.txt -o OUT.safetensors",
        &["few-ids.txt", "10", "60"],
    ),
    case(
        "σ² over the vectors",
        "transform adapter.safetensors old.npy -o OUT.npy --sigma OUT.npy",
        &["another file"],
    ),
    case(
        "rows to transform that are none",
        "transform adapter.safetensors old.npy --rows labels.npy=77 -o OUT.npy",
        &["77"],
    ),
    case(
        "one report twice",
        "report adapter.safetensors --old old.npy --new new.npy --labels labels.npy -o OUT.md -o OUT.md",
        &["each file once"],
    ),
    case(
        "names of classes beside a head, which numbers them",
        "fit --old old.npy --new new.npy --labels ids.txt --head-weight new.npy -o OUT.safetensors",
        &["ids.txt", "names", "--head-weight"],
    ),
    case(
        "an evaluation of another width",
        "fit --old old.npy --new new.npy --evaluation-old wide.npy -o OUT.safetensors",
        &["wide.npy", "9", "3"],
    ),
    case(
        "an adapter of another new width",
        "curve --new wide.npy --adapted wide.npy --labels labels.npy --order order.npy --adapter adapter.safetensors",
        &["wide.npy", "9"],
    ),
    case("the oracle without new vectors", "order --policy oracle --sigma sigma.npy -o OUT.npy", &["--new"]),
    case(
        "old vectors that are all equal",
        "fit --old equal.npy --new new.npy --method kernel-ridge -o OUT.safetensors",
        &["differ"],
    ),
    case("a file that is not there", "fit --old none.npy --new new.npy -o OUT.safetensors", &["none.npy"]),
    case("a folder as a file", "fit --old folder --new new.npy -o OUT.safetensors", &["folder"]),
    case("an unknown extension", "fit --old old.xyz --new new.npy -o OUT.safetensors", &["old.xyz", ".npy"]),
    case("a truncated file", "fit --old truncated.npy --new new.npy -o OUT.safetensors", &["truncated.npy"]),
    case("an empty file", "fit --old empty.npy --new new.npy -o OUT.safetensors", &["empty.npy"]),
    case("a file without rows", "fit --old no-rows.npy --new new.npy -o OUT.safetensors", &["no-rows.npy"]),
    case("text as npy", "fit --old text.npy --new new.npy -o OUT.safetensors", &["text.npy"]),
    case(
        "NaN in the old vectors",
        "fit --old nan.npy --new new.npy -o OUT.safetensors",
        &["nan.npy", "row 3", "NaN"],
    ),
    case(
        "NaN in the new vectors",
        "fit --old old.npy --new nan.npy -o OUT.safetensors",
        &["nan.npy", "row 3"],
    ),
    case("fewer new than old rows", "fit --old old.npy --new short.npy -o OUT.safetensors", &["60", "59"]),
    case(
        "fewer labels than rows",
        "fit --old old.npy --new new.npy --labels short-labels.npy -o OUT.safetensors",
        &["old.npy", "60", "short-labels.npy", "59"],
    ),
    case(
        "labels that are not there",
        "fit --old old.npy --new new.npy --labels none.npy -o OUT.safetensors",
        &["none.npy"],
    ),
    case(
        "fewer rows of side information",
        "fit --old old.npy --new new.npy --side short.npy -o OUT.safetensors",
        &["60", "59"],
    ),
    case(
        "an unknown method",
        "fit --old old.npy --new new.npy --method best -o OUT.safetensors",
        &["best", "ridge"],
    ),
    case(
        "an unknown distance",
        "fit --old old.npy --new new.npy --distance manhattan -o OUT.safetensors",
        &["manhattan", "cosine"],
    ),
    case("an unknown loss", "fit --old old.npy --new new.npy --loss l1 -o OUT.safetensors", &["l1", "disc"]),
    case("no epochs", "fit --old old.npy --new new.npy --epochs 0 -o OUT.safetensors", &["epochs"]),
    case("no seeds", "fit --old old.npy --new new.npy --seeds 0 -o OUT.safetensors", &["seeds"]),
    case(
        "an output in no folder",
        "fit --old old.npy --new new.npy -o nowhere/OUT.safetensors",
        &["nowhere"],
    ),
    case("a folder as output", "fit --old old.npy --new new.npy -o folder", &["folder"]),
    case(
        "a head of another width",
        "fit --old old.npy --new new.npy --head-weight wide.npy -o OUT.safetensors",
        &["head", "9", "4"],
    ),
    case(
        "a head with too few biases",
        "fit --old old.npy --new new.npy --head-weight new.npy --head-bias sigma-short.npy -o OUT.safetensors",
        &["bias"],
    ),
    case(
        "an unknown head",
        "fit --old old.npy --new new.npy --head-weight new.npy --head-kind cosface -o OUT.safetensors",
        &["cosface", "arcface"],
    ),
    case(
        "rows of a value that is not there",
        "fit --old old.npy --new new.npy --rows labels.npy=77 -o OUT.safetensors",
        &["77", "labels.npy"],
    ),
    case(
        "rows without a value",
        "fit --old old.npy --new new.npy --rows labels.npy -o OUT.safetensors",
        &["FILE=VALUES"],
    ),
    case(
        "rows of a file of another length",
        "fit --old old.npy --new new.npy --rows short-labels.npy=0 -o OUT.safetensors",
        &["59", "60"],
    ),
    case(
        "ids that stand twice",
        "fit --old old.npy --new new.npy --old-ids twice.txt --new-ids ids.txt -o OUT.safetensors",
        &["twice.txt", "more than once"],
    ),
    case("no threads", "fit --old old.npy --new new.npy --threads 0 -o OUT.safetensors", &["threads"]),
    case(
        "old and new are swapped at transform",
        "transform adapter.safetensors new.npy -o OUT.npy",
        &["swapped"],
    ),
    case("vectors of another width", "transform adapter.safetensors wide.npy -o OUT.npy", &["9", "3"]),
    case(
        "NaN in vectors to transform",
        "transform adapter.safetensors nan.npy -o OUT.npy",
        &["nan.npy", "row 3"],
    ),
    case("an adapter that is none", "transform old.npy old.npy -o OUT.npy", &["old.npy"]),
    case("a damaged adapter", "transform damaged.safetensors old.npy -o OUT.npy", &["damaged.safetensors"]),
    case(
        "a truncated adapter",
        "transform truncated.safetensors old.npy -o OUT.npy",
        &["truncated.safetensors"],
    ),
    case(
        "σ² over the vectors, in another spelling",
        "transform adapter.safetensors old.npy -o OUT.npy --sigma ./OUT.npy",
        &["another file"],
    ),
    case(
        "one report twice, in another spelling",
        "report adapter.safetensors --old old.npy --new new.npy --labels labels.npy -o OUT.md -o ./OUT.md",
        &["each file once"],
    ),
    case(
        "NaN in the σ² of a curve whose points are written",
        "curve --new new.npy --adapted new.npy --labels labels.npy --order order.npy --points OUT.npy --sigma nan-sigma.npy",
        &["nan-sigma.npy"],
    ),
    case(
        "an endless scale",
        "fit --old old.npy --new new.npy --head-weight new.npy --head-kind arcface:inf,0.5 -o OUT.safetensors",
        &["arcface:inf,0.5"],
    ),
    case("an output of unknown format", "transform adapter.safetensors old.npy -o OUT.xyz", &["OUT.xyz"]),
    case(
        "σ² in no folder",
        "transform adapter.safetensors old.npy -o OUT.npy --sigma nowhere/s.npy",
        &["nowhere"],
    ),
    case("no rows a batch", "transform adapter.safetensors old.npy -o OUT.npy --batch 0", &["batch"]),
    case("an unknown policy", "order --policy best --sigma sigma.npy -o OUT.npy", &["best", "sigma"]),
    case("sigma without σ²", "order --policy sigma --adapted new.npy -o OUT.npy", &["σ²"]),
    case("entropy without a head", "order --policy entropy --adapted new.npy -o OUT.npy", &["head"]),
    case("NaN in σ²", "order --policy sigma --sigma nan-sigma.npy -o OUT.npy", &["NaN"]),
    case("an order without anything", "order --policy random -o OUT.npy", &["--sigma"]),
    case(
        "the oracle with vectors of another shape",
        "order --policy oracle --adapted new.npy --new wide.npy -o OUT.npy",
        &["adapted"],
    ),
    case(
        "an order of another length",
        "curve --new new.npy --adapted new.npy --labels labels.npy --order short-order.npy",
        &["59", "60"],
    ),
    case(
        "an order that names a row twice",
        "curve --new new.npy --adapted new.npy --labels labels.npy --order twice-order.npy",
        &["twice-order.npy", "more than once"],
    ),
    case(
        "adapted vectors of another width",
        "curve --new new.npy --adapted wide.npy --labels labels.npy --order order.npy",
        &["9"],
    ),
    case(
        "labels of another length",
        "curve --new new.npy --adapted new.npy --labels short-labels.npy --order order.npy",
        &["short-labels.npy", "59", "60"],
    ),
    case(
        "labels without any pair",
        "curve --new new.npy --adapted new.npy --labels order.npy --order order.npy",
        &["right answer"],
    ),
    case(
        "queries without labels",
        "curve --new new.npy --adapted new.npy --labels labels.npy --queries new.npy --order order.npy",
        &["--query-labels"],
    ),
    case(
        "a grid of one point",
        "curve --new new.npy --adapted new.npy --labels labels.npy --order order.npy --grid 1",
        &["grid"],
    ),
    case(
        "a depth of 0",
        "curve --new new.npy --adapted new.npy --labels labels.npy --order order.npy -k 0",
        &["1 or more"],
    ),
    case(
        "a report of unknown format",
        "report adapter.safetensors --old old.npy --new new.npy --labels labels.npy -o OUT.pdf",
        &["OUT.pdf", ".html"],
    ),
    case(
        "a report on swapped files",
        "report adapter.safetensors --old new.npy --new old.npy --labels labels.npy -o OUT.html",
        &["swapped"],
    ),
    case(
        "a report with an unknown order",
        "report adapter.safetensors --old old.npy --new new.npy --labels labels.npy --orders best -o OUT.html",
        &["best"],
    ),
    case(
        "a report with groups of another length",
        "report adapter.safetensors --old old.npy --new new.npy --labels labels.npy --groups short-labels.npy -o OUT.html",
        &["59"],
    ),
    case(
        "judgements of an unknown item",
        "curve --new new.npy --adapted new.npy --order order.npy --queries new.npy --qrels qrels.tsv --ids ids.txt --query-ids ids.txt",
        &["nobody"],
    ),
    case(
        "ids with a line too many",
        "curve --new new.npy --adapted new.npy --order order.npy --queries new.npy --qrels good-qrels.tsv --ids more-ids.txt --query-ids ids.txt",
        &["more-ids.txt", "61", "60"],
    ),
    case(
        "ids of other queries",
        "curve --new new.npy --adapted new.npy --order order.npy --queries new.npy --qrels good-qrels.tsv --ids ids.txt --query-ids more-ids.txt",
        &["more-ids.txt", "61", "60"],
    ),
    case(
        "labels that are all different",
        "curve --new new.npy --adapted new.npy --order order.npy --labels order.npy",
        &["right answer", "labels"],
    ),
    case(
        "more points than any curve has",
        "curve --new new.npy --adapted new.npy --order order.npy --labels labels.npy --grid 18446744073709551615",
        &["--grid", "18446744073709551615"],
    ),
    case(
        "2 kB that say one label 134 million times",
        "fit --old old.npy --new new.npy --labels millions-of-one-value.parquet -o OUT.safetensors",
        &["millions-of-one-value.parquet", "134217727 values"],
    ),
    case(
        "a dictionary of 270 million ids in 439 bytes",
        "fit --old old.npy --new new.npy --old-ids a-dictionary-of-270-million.parquet --new-ids ids.txt -o OUT.safetensors",
        &["a-dictionary-of-270-million.parquet", "more values than it has room for"],
    ),
    case(
        "ids in a page at which the Parquet crate panics",
        "fit --old old.npy --new new.npy --old-ids a-page-that-ends-too-soon.parquet --new-ids ids.txt -o OUT.safetensors",
        &["a-page-that-ends-too-soon.parquet", "its content is damaged"],
    ),
    case(
        "a page whose header makes the Parquet crate pass over two billion values",
        "fit --old a-header-of-2-billion-values.parquet --new new.npy --method ridge -o OUT.safetensors",
        &["a-header-of-2-billion-values.parquet", "the header of a page"],
    ),
    case(
        "a footer that makes the Parquet crate pass over two billion truth values, many times",
        "fit --old a-footer-of-2-billion-truth-values.parquet --new new.npy --method ridge -o OUT.safetensors",
        &["a-footer-of-2-billion-truth-values.parquet", "its footer has a list of values that take no byte"],
    ),
    case("a demo among the files of a project", "demo --out .", &["--out", "earlier demo"]),
    case(
        "classes of a head that nothing names",
        "fit --old old.npy --new new.npy --method fastfill --loss both --head-weight new.npy -o OUT.safetensors",
        &["--head-weight", "--labels", "leave the head out"],
    ),
    case(
        "labels of an unknown extension",
        "fit --old old.npy --new new.npy --labels old.xyz -o OUT.safetensors",
        &["old.xyz", ".txt", ".jsonl"],
    ),
    case(
        "σ² of other items than the adapted vectors",
        "order --policy sigma --sigma sigma-short.npy --adapted new.npy -o OUT.npy",
        &["sigma-short.npy", "3", "new.npy", "60"],
    ),
    case("an adapter to inspect that is not there", "inspect none.safetensors", &["none.safetensors"]),
];

fn place_with_files() -> Place {
    let place = Place::new();
    let (old, new) = (waves(60, 3, 1), waves(60, 4, 2));
    place.write_matrix("old.npy", &old);
    place.write_matrix("new.npy", &new);
    for bomb in [
        "millions-of-one-value",
        "a-dictionary-of-270-million",
        "a-page-that-ends-too-soon",
        "a-header-of-2-billion-values",
        "a-footer-of-2-billion-truth-values",
    ] {
        let found = format!("{}/../../xtask/fuzz/corpus/parquet/{bomb}", env!("CARGO_MANIFEST_DIR"));
        fs_err::copy(found, place.path(&format!("{bomb}.parquet"))).unwrap();
    }
    place.write_matrix("wide.npy", &waves(60, 9, 3));
    place.write_matrix("short.npy", &waves(59, 4, 4));
    let mut nan = old.clone();
    nan.row_mut(3)[1] = f32::NAN;
    place.write_matrix("nan.npy", &nan);
    place.write_labels("labels.npy", &(0..60).map(|item| item % 6).collect::<Vec<_>>());
    place.write_labels("short-labels.npy", &(0..59).map(|item| item % 6).collect::<Vec<_>>());
    place.write_labels("order.npy", &(0..60).collect::<Vec<_>>());
    place.write_labels("short-order.npy", &(0..59).collect::<Vec<_>>());
    place.write_labels("twice-order.npy", &(0..60).map(|item| item % 30).collect::<Vec<_>>());
    let sigma = |values: Vec<f32>, name: &str| rehang_files::write_f32(place.path(name), &values).unwrap();
    sigma(vec![1.0; 60], "sigma.npy");
    sigma(vec![1.0; 3], "sigma-short.npy");
    sigma((0..60).map(|item| if item == 5 { f32::NAN } else { 1.0 }).collect(), "nan-sigma.npy");
    place.write_bytes("empty.npy", b"");
    place.write_bytes("text.npy", b"these are no vectors\n");
    place.write_bytes("old.xyz", b"whatever");
    let bytes = fs_err::read(place.path("old.npy")).unwrap();
    place.write_bytes("truncated.npy", &bytes[..bytes.len() - 7]);
    // A header that is right about a file without rows.
    let header = String::from_utf8_lossy(&bytes[..128]).replace("(60, 3)", "(0, 3) ");
    let mut no_rows = bytes[..10].to_vec();
    no_rows.extend_from_slice(&header.as_bytes()[header.len() - 118..]);
    place.write_bytes("no-rows.npy", &no_rows);
    let ids: String = (0..60).map(|id| format!("item-{id}\n")).collect();
    place.write_bytes("ids.txt", ids.as_bytes());
    place.write_bytes("few-ids.txt", ids.split_inclusive('\n').take(10).collect::<String>().as_bytes());
    place.write_matrix("equal.npy", &Matrix::from_fn(60, 3, |_, _| 1.0));
    place.write_bytes("twice.txt", ids.replace("item-7\n", "item-8\n").as_bytes());
    place.write_bytes("more-ids.txt", format!("id\n{ids}").as_bytes());
    place.write_bytes("good-qrels.tsv", b"item-0\titem-1\t1\nitem-2\titem-3\t1\n");
    place.write_bytes("qrels.tsv", b"item-0\titem-1\t1\nitem-0\tnobody\t1\n");
    fs_err::create_dir(place.path("folder")).unwrap();
    place.json(&words("fit --old old.npy --new new.npy --method ridge -o adapter.safetensors", &[]));
    let mut bytes = fs_err::read(place.path("adapter.safetensors")).unwrap();
    place.write_bytes("truncated.safetensors", &bytes[..bytes.len() / 2]);
    let last = bytes.len() - 5;
    bytes[last] ^= 0x40;
    place.write_bytes("damaged.safetensors", &bytes);
    place
}

/// Runs a command within 2 GB of memory, where such a limit can be had: no input of a few bytes takes more.
fn run_within_memory(place: &Place, arguments: &[&str]) -> Output {
    let command = place.command(arguments);
    if cfg!(not(target_os = "linux")) {
        return place.run(arguments);
    }
    let mut limited = Command::new("sh");
    limited.args(["-c", r#"ulimit -v 2000000 && exec "$0" "$@""#]).arg(command.get_program());
    limited.args(arguments).current_dir(place.path("")).output().unwrap()
}

#[test]
fn bad_input_gets_one_clear_error_and_leaves_nothing_behind() {
    let place = place_with_files();
    let before = place.names();
    let mut failures = Vec::new();
    for Case { why, command, says } in CASES {
        let arguments = words(command, &[]);
        let output = run_within_memory(&place, &arguments);
        failures.extend(faults_of_refusal(why, &output, says, (&place, &before)));
        if place.names() != before {
            break;
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n{}", failures.len(), CASES.len(), failures.join("\n"));
}

#[test]
fn unknown_options_and_missing_ones_end_with_code_2() {
    let place = Place::new();
    for arguments in [&["fit", "--odl", "x.npy"][..], &["fit"], &["nothing"], &["transform"], &[]] {
        let output = place.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(place.run(&["--help"]).status.code(), Some(0));
    assert_eq!(place.run(&["fit", "--help"]).status.code(), Some(0));
}

#[test]
fn an_output_that_was_there_survives_a_failure() {
    let place = place_with_files();
    let before = fs_err::read(place.path("adapter.safetensors")).unwrap();
    let output = place.run(&["fit", "--old", "nan.npy", "--new", "new.npy", "-o", "adapter.safetensors"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(fs_err::read(place.path("adapter.safetensors")).unwrap() == before);
}

#[test]
fn no_output_takes_the_place_of_an_input() {
    let place = place_with_files();
    fs_err::hard_link(place.path("old.npy"), place.path("hard.npy")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(place.path("old.npy"), place.path("soft.npy")).unwrap();
    #[cfg(not(unix))]
    fs_err::copy(place.path("old.npy"), place.path("soft.npy")).unwrap();
    place.write_bytes(
        "items.jsonl",
        (0..60).map(|id| format!("{{\"id\": \"i{id}\"}}\n")).collect::<String>().as_bytes(),
    );
    let import = "gallery import --gallery gallery.db --space old --vectors old.npy --items items.jsonl";
    place.json(&words(import, &[]));
    let contents = || -> Vec<(String, Option<Vec<u8>>)> {
        place.names().into_iter().map(|name| (name.clone(), fs_err::read(place.path(&name)).ok())).collect()
    };
    let before = contents();
    let commands = [
        "fit --old old.npy --new new.npy -o ./old.npy",
        "fit --old old.npy --new new.npy --labels labels.npy -o labels.npy",
        "fit --old old.npy --new new.npy --rows labels.npy=0 -o labels.npy",
        "transform adapter.safetensors old.npy -o old.npy",
        "transform adapter.safetensors old.npy -o soft.npy",
        "transform adapter.safetensors old.npy -o hard.npy",
        "transform adapter.safetensors old.npy -o adapter.safetensors",
        "transform adapter.safetensors old.npy -o OUT.npy --sigma folder/../old.npy",
        "order --policy sigma --sigma sigma.npy -o sigma.npy",
        "curve --new new.npy --adapted new.npy --labels labels.npy --order order.npy --points new.npy",
        "curve --new new.npy --adapted new.npy --labels labels.npy --order order.npy --points labels.npy",
        "gallery export --gallery gallery.db --space old --vectors OUT.npy --ids gallery.db",
        "gallery export --gallery gallery.db --space old --vectors OUT.npy --ids OUT.txt --provenance OUT.txt",
    ];
    for command in commands {
        let output = place.run(&words(command, &[]));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("another file than"), "{command}: {said}");
        assert!(contents() == before, "{command} changed a file");
    }
}

#[test]
fn zero_vectors_duplicates_and_constant_columns_are_ordinary_input() {
    let place = Place::new();
    let old = Matrix::from_fn(
        80,
        3,
        |row, column| if row % 10 == 0 || column == 2 { 0.0 } else { (row / 2) as f32 },
    );
    place.write_matrix("old.npy", &old);
    place.write_matrix("new.npy", &waves(80, 5, 1));
    for method in ["procrustes", "ridge", "low-rank", "kernel-ridge"] {
        place.json(&words("fit --old old.npy --new new.npy --method {} -o a.safetensors", &[method]));
        place.json(&["transform", "a.safetensors", "old.npy", "-o", "out.npy", "--sigma", "s.npy"]);
    }
}

#[test]
fn nothing_that_steers_a_terminal_reaches_it() {
    let place = Place::new();
    let name = "a\u{1b}[2J\u{202e}b.npy";
    let output = place.run(&["inspect", name]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("a\\u{1b}[2J\\u{202e}b.npy"), "{said}");
    place.write_matrix(name, &waves(4, 3, 1));
    let output = place.run(&["inspect", name]);
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!said.contains(['\u{1b}', '\u{202e}']), "{said}");
}

#[test]
fn a_secret_in_the_wrong_place_is_not_repeated() {
    for line in [
        "api_key = \"SECRET\"",
        "key_env = SECRET",
        "url = \"postgresql://me:SECRET@host",
        "url = \"a\"SECRET",
    ] {
        let place = Place::new();
        place.write_bytes("rehang.toml", format!("[gallery]\nkind = \"qdrant\"\n{line}\n").as_bytes());
        let output = place.run(&["upgrade", "status"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains("rehang.toml") && said.contains("line 3"), "{said}");
        assert!(!said.contains("SECRET"), "{said}");
    }
}
