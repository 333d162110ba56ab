//! The files that describe face and landmark data sets.

use rehang_files::join::MissingPolicy;
use rehang_files::lists::{
    FaceList, GroundTruth, read_faces, read_landmark_solution, read_pairs, read_revisited, read_templates,
};

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> std::path::PathBuf {
        let path = self.0.path().join(name);
        rehang_files::AtomicFile::write(&path, text).unwrap();
        path
    }
}

fn names(text: &str) -> Vec<String> {
    text.split_whitespace().map(String::from).collect()
}

const METADATA: &str = "TEMPLATE_ID,SUBJECT_ID,FILENAME,SIGHTING_ID\n\
    10,7,a.jpg,100\n10,7,b.jpg,100\n11,8,\"c,d.jpg\",\n\n12,7,a.jpg,101\n";

#[test]
fn face_lists_are_read_with_and_without_file_names() {
    let files = Files::new();
    let path = files.write("metadata.csv", METADATA);
    let by_order = read_faces(&[&path], None).unwrap();
    assert_eq!(by_order.templates, ["10", "11", "12"]);
    assert_eq!((by_order.subjects.as_slice(), by_order.rows), (&[0, 1, 0][..], 4));
    assert_eq!(by_order.items.iter().map(|item| item.row).collect::<Vec<_>>(), [0, 1, 2, 3]);
    // Two frames share a medium; an empty id is a medium of its own.
    assert_eq!(by_order.items[0].media, by_order.items[1].media);
    assert_eq!(by_order.items[2].media, None);
    assert_ne!(by_order.items[3].media, by_order.items[0].media);

    let mut rows = names("b.jpg x.jpg");
    rows.extend(["c,d.jpg".to_string(), "a.jpg".to_string()]);
    let by_name = read_faces(&[&path], Some(&rows)).unwrap();
    assert_eq!(by_name.items.iter().map(|item| item.row).collect::<Vec<_>>(), [3, 0, 2, 3]);
    assert_eq!(by_name.rows, 4);

    // A second file continues the rows, and its subjects are the same people.
    let more = files.write("more.csv", "subject_id,template_id\n8,20\n");
    let both = read_faces(&[&path, &more], None).unwrap();
    assert_eq!((both.items[4].row, both.subjects[3], both.rows), (4, 1, 5));
}

#[test]
fn face_lists_say_the_line_that_is_wrong() {
    let files = Files::new();
    let faces = |text: &str, names: Option<&[String]>| {
        let path = files.write("bad.csv", text);
        read_faces(&[&path], names).unwrap_err().to_string()
    };
    for (text, says) in [
        ("SUBJECT_ID,FILENAME\n1,a", vec!["line 1", "TEMPLATE_ID"]),
        ("TEMPLATE_ID,FILENAME\n1,a", vec!["line 1", "SUBJECT_ID"]),
        ("TEMPLATE_ID,SUBJECT_ID\n1,2\n1\n", vec!["line 3", "1 fields"]),
        ("TEMPLATE_ID,SUBJECT_ID\n1,2\n,2\n", vec!["line 3", "empty"]),
        ("TEMPLATE_ID,SUBJECT_ID\n1,2\n1,3\n", vec!["line 3", "template 1"]),
        ("TEMPLATE_ID,SUBJECT_ID\n\"1,2\n", vec!["line 2", "quote"]),
        ("TEMPLATE_ID,SUBJECT_ID\n", vec!["bad.csv", "empty"]),
        ("", vec!["bad.csv", "empty"]),
    ] {
        let message = faces(text, None);
        assert!(says.iter().all(|word| message.contains(word)), "{text:?}: {message}");
    }
    let message = faces("TEMPLATE_ID,SUBJECT_ID\n1,2\n", Some(&names("a")));
    assert!(message.contains("FILENAME"), "{message}");
    let message = faces(METADATA, Some(&names("a.jpg b.jpg")));
    assert!(message.contains("c,d.jpg") && message.contains("line 4"), "{message}");
    let message = faces(METADATA, Some(&names("a.jpg a.jpg")));
    assert!(message.contains("more than once"), "{message}");
}

fn three_faces(files: &Files) -> FaceList {
    read_faces(&[files.write("metadata.csv", METADATA)], None).unwrap()
}

#[test]
fn pairs_and_template_lists_are_read() {
    let files = Files::new();
    let faces = three_faces(&files);
    for text in [
        "10,11\n10,12\n",
        "ENROL_TEMPLATE_ID,VERIF_TEMPLATE_ID\r\n10,11\r\n10,12\r\n",
        "10 11 0\n10 12 1\n",
        "\u{feff}10\t11\n\n10\t12",
    ] {
        assert_eq!(read_pairs(files.write("pairs.csv", text), &faces).unwrap(), [(0, 1), (0, 2)], "{text:?}");
    }
    for text in ["TEMPLATE_ID,SUBJECT_ID\n12,7\n10,7\n12,7\n", "12\n10\n", "TEMPLATE_ID\n12\n10\n"] {
        assert_eq!(read_templates(files.write("list.csv", text), &faces).unwrap(), [2, 0], "{text:?}");
    }
    for (text, says) in [
        ("10,99\n", vec!["99", "line 1"]),
        ("10,11\n10\n", vec!["line 2", "1 fields"]),
        ("10,11,1\n", vec!["line 1", "different"]),
        ("TEMPLATE_ID,TEMPLATE_ID\n", vec!["pairs.csv", "empty"]),
    ] {
        let message = read_pairs(files.write("pairs.csv", text), &faces).unwrap_err().to_string();
        assert!(says.iter().all(|word| message.contains(word)), "{text:?}: {message}");
    }
    for (text, says) in [
        ("TEMPLATE_ID,X\n10,1\n99,1\n", vec!["99", "line 3"]),
        ("A,B\n10,1\n", vec!["line 1", "TEMPLATE_ID"]),
        ("X,TEMPLATE_ID\n10\n", vec!["line 2", "field 2"]),
        ("TEMPLATE_ID\n", vec!["list.csv", "empty"]),
    ] {
        let message = read_templates(files.write("list.csv", text), &faces).unwrap_err().to_string();
        assert!(says.iter().all(|word| message.contains(word)), "{text:?}: {message}");
    }
}

#[test]
fn a_landmark_solution_is_read() {
    let files = Files::new();
    let text = "id,images,Usage\nq2,i1 i0 i1,Public\nq0,None,Ignored\nq1,i2,Private\n";
    let path = files.write("solution.csv", text);
    let (queries, index) = (names("q0 q1 q2"), names("i0 i1 i2"));
    let solution = read_landmark_solution(&path, &queries, &index, MissingPolicy::Error).unwrap();
    assert_eq!(solution.answers, [vec![], vec![2], vec![0, 1]]);
    assert_eq!(solution.usage, ["Ignored", "Private", "Public"]);

    let read = |queries: &str, index: &str, policy| {
        read_landmark_solution(&path, &names(queries), &names(index), policy)
    };
    let message = read("q0 q1 q2", "i0 i1", MissingPolicy::Error).unwrap_err().to_string();
    assert!(message.contains("\"i2\"") && message.contains("line 4"), "{message}");
    let kept = read("q1 q2", "i0 i1", MissingPolicy::KeepCommon).unwrap();
    assert_eq!((kept.answers, kept.unknown), (vec![vec![], vec![0, 1]], 2));
    let message = read("q1 q9", "i0 i1 i2", MissingPolicy::KeepCommon).unwrap_err().to_string();
    assert!(message.contains("\"q9\""), "{message}");
    for (text, says) in [
        ("id,answers\n", "images"),
        ("id,images\nq0,i0,x\n", "line 2"),
        ("id,images\nq0,i0\nq0,i1\n", "line 3"),
    ] {
        let path = files.write("bad.csv", text);
        let message = read_landmark_solution(path, &queries, &index, MissingPolicy::Error).unwrap_err();
        assert!(message.to_string().contains(says), "{text:?}: {message}");
    }
}

#[test]
fn a_revisited_ground_truth_is_read() {
    let files = Files::new();
    let read = |text: &str| read_revisited(files.write("truth.json", text));
    let whole = r#"{"queries": ["q"], "gallery": ["a", "b", "c"],
        "ground_truth": [{"easy": [1], "hard": ["a"], "junk": [], "bbx": [1, 2, 3, 4]}]}"#;
    let truth = read(whole).unwrap();
    assert_eq!(truth.truth, [GroundTruth { easy: vec![1], hard: vec![0], junk: vec![] }]);
    assert_eq!((truth.queries, truth.gallery), (names("q"), names("a b c")));
    for (from, to, says) in [
        ("[1]", "[3]", "image 3"),
        ("\"hard\": [\"a\"]", "\"hard\": [\"z\"]", "\"z\""),
        ("\"hard\": [\"a\"]", "\"hard\": [1]", "more than once"),
        ("[\"q\"]", "[\"q\", \"r\"]", "2"),
        ("\"easy\": [1],", "", "easy"),
        ("\"a\", \"b\"", "\"b\", \"b\"", "more than once"),
    ] {
        let message = read(&whole.replace(from, to)).unwrap_err().to_string();
        assert!(message.contains(says), "{from} -> {to}: {message}");
    }
    assert!(read("[]").is_err());
}
