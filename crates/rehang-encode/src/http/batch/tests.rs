use std::path::Path;
use std::sync::mpsc;
use std::thread;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rehang_clock::ManualClock;
use rehang_core::{Distance, Space};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::desk::{BadFile, Created, Death, Desk, Over, answered, completed, expired, refused};
use super::super::stub::{Reply, Seen, Stub, good, vector};
use super::service::PAGES_MAX;
use super::*;
use crate::contract::{Encoder as _, Spent};

fn model(text: &str) -> Vec<f32> {
    vector(text).to_vec()
}

fn texts(count: usize) -> Vec<String> {
    (0..count).map(|number| (number + 100).to_string()).collect()
}

/// Opens an encoder of a process of its own.
fn open_at(url: &str, journal: &Path, change: impl FnOnce(&mut HttpConfig)) -> (Http, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    (open_with(url, journal, clock.clone(), change), clock)
}

fn open_with(
    url: &str,
    journal: &Path,
    clock: Arc<dyn rehang_clock::Clock>,
    change: impl FnOnce(&mut HttpConfig),
) -> Http {
    let config = json!({"url": url, "model": "m", "attempts": 2, "batch_api": true, "key_env": "KEY"});
    let mut config: HttpConfig = serde_json::from_value(config).unwrap();
    change(&mut config);
    let space = Space::new("new", 2, Distance::L2, false);
    let http = Http::with(&config, &space, clock, |_| Some("sk-secret".into())).unwrap();
    http.with_batches(journal).unwrap()
}

fn open(desk: &Desk, journal: &TempDir) -> Http {
    desk.next_process(None);
    open_at(&desk.stub.url, journal.path(), |_| {}).0
}

fn embed(http: &Http, texts: &[String]) -> Result<Vec<Answer>> {
    let inputs: Vec<Input<'_>> =
        texts.iter().map(|text| Input { id: text, source: text, payload: &Value::Null }).collect();
    http.encode_in_bulk(&inputs)
}

fn right(texts: &[String]) -> Vec<Answer> {
    texts.iter().map(|text| Ok(model(text))).collect()
}

fn journal_files(journal: &TempDir) -> usize {
    let entries = fs_err::read_dir(journal.path().join(JOURNAL)).into_iter().flatten();
    entries.filter(|entry| entry.as_ref().unwrap().path().extension() == Some("json".as_ref())).count()
}

fn reason(answer: &Answer) -> &str {
    answer.as_ref().unwrap_err().reason()
}

fn unwell(status: u16) -> Reply {
    Reply::Status(status, vec![], json!({"error": {"message": "we are not well"}}).to_string())
}

#[test]
fn texts_go_in_a_file_and_come_back_whatever_their_order() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.books().polls = 3;
    let (http, clock) = open_at(&desk.stub.url, journal.path(), |config| config.dimensions = Some(2));
    // A text that comes twice is one line.
    let texts = [texts(30), texts(2)].concat();
    assert_eq!(embed(&http, &texts).unwrap(), right(&texts));
    let books = desk.books();
    assert_eq!((books.batches.len(), books.sent.len()), (1, 30));
    let line: Value = serde_json::from_str(books.files["file-0"].lines().next().unwrap()).unwrap();
    let body = json!({"model": "m", "input": ["100"], "encoding_format": "base64", "dimensions": 2});
    assert_eq!(
        line,
        json!({"custom_id": line["custom_id"], "method": "POST", "url": "/v1/embeddings", "body": body})
    );
    drop(books);
    // One word is asked for first, and some texts of the batch afterwards, by which it is compared.
    assert_eq!(desk.direct(), ["rehang", "100", "108", "116", "124", "rehang"]);
    assert!(http.is_vouched_for(http.receipt()));
    assert_eq!(http.spent(), Spent { items: 30 + 6, tokens: 30 * 3 + 4 * 3 + 12, money: 0.0 });
    assert_eq!(clock.waits(), [Duration::from_mins(1); 3]);
    assert_eq!((http.bulk_max(), http.awaits()), (Some(10_000), None));
    assert!(
        desk.stub.seen().iter().all(|request| request.authorization.as_deref() == Some("Bearer sk-secret"))
    );
}

/// A few texts are not worth a day, and a comparison never is.
#[test]
fn a_few_texts_are_asked_for_directly() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    let http = open(&desk, &journal);
    assert_eq!(embed(&http, &texts(FEW)).unwrap(), right(&texts(FEW)));
    let many = texts(40);
    let inputs: Vec<Input<'_>> =
        many.iter().map(|text| Input { id: text, source: text, payload: &Value::Null }).collect();
    assert_eq!(http.encode(&inputs).unwrap(), right(&many));
    assert_eq!(desk.books().batches.len(), 0);
}

/// A process may die at any request, before the service hears it or after: the next one goes on with what was
/// sent.
#[test]
fn no_text_is_sent_twice_wherever_a_process_dies() {
    let texts = texts(20);
    let mut deaths = 0;
    for is_heard in [false, true] {
        for after in 0.. {
            let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
            desk.next_process(Some(Death { after, is_heard }));
            let first = embed(&open_at(&desk.stub.url, journal.path(), |_| {}).0, &texts);
            if first.is_ok() {
                break;
            }
            deaths += 1;
            assert!(first.unwrap_err().is_retryable());
            let http = open(&desk, &journal);
            assert_eq!(embed(&http, &texts).unwrap(), right(&texts), "after {after}, heard {is_heard}");
            assert_eq!(desk.most_sent(), 1, "after {after}, heard {is_heard}");
            assert_eq!(desk.books().batches.len(), 1, "after {after}, heard {is_heard}");
            // No text is sent twice either where the vectors were not written before the next death, with the
            // file lost or not.
            assert_eq!(embed(&open(&desk, &journal), &texts).unwrap(), right(&texts));
            let elsewhere = tempfile::tempdir().unwrap();
            assert_eq!(embed(&open(&desk, &elsewhere), &texts).unwrap(), right(&texts));
            assert_eq!((desk.most_sent(), journal_files(&elsewhere)), (1, 1));
        }
    }
    // The requests are the list, the word, the file, the batch, two looks, the output and the comparison.
    assert!(deaths >= 14, "{deaths}");
}

#[test]
fn what_is_under_way_is_waited_for_and_only_the_rest_is_sent() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.books().polls = 5;
    desk.next_process(Some(Death { after: 5, is_heard: true }));
    let all = texts(60);
    let first = open_at(&desk.stub.url, journal.path(), |_| {}).0;
    embed(&first, &all[..30]).unwrap_err();
    for _ in 0..2 {
        first.note_others(Spent::default());
    }
    let http = open(&desk, &journal);
    desk.books().asked.insert("batch_0".into(), 4);
    // The first call hands out the answers that come first, and the next call the rest.
    let first = embed(&http, &all).unwrap();
    assert_eq!(first[..30], right(&all)[..30]);
    assert!(first[30..].iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_)))));
    assert_eq!(embed(&http, &all[30..]).unwrap(), right(&all[30..]));
    assert_eq!((desk.most_sent(), desk.books().batches.len()), (1, 2));
    // Texts that the first process has sent are on the account.
    assert_eq!(http.spent().items, 30 + 1 + 2 * 5);
    // The journal knows nothing of another model or prefix.
    let other = open_at(&desk.stub.url, journal.path(), |config| config.model = "n".into()).0;
    embed(&other, &all[..30]).unwrap();
    assert_eq!(desk.most_sent(), 2);
}

/// A process that has read the journal long ago learns what another one, on the same machine or another, has
/// sent before it died.
#[test]
fn what_another_process_sent_meanwhile_is_not_sent_again() {
    for is_elsewhere in [false, true] {
        let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
        let elsewhere = tempfile::tempdir().unwrap();
        let all = texts(60);
        let http = open(&desk, &journal);
        assert_eq!(embed(&http, &all[..20]).unwrap(), right(&all[..20]));
        desk.books().polls = 5;
        desk.next_process(Some(Death { after: 6, is_heard: true }));
        let of_other = if is_elsewhere { &elsewhere } else { &journal };
        embed(&open_at(&desk.stub.url, of_other.path(), |_| {}).0, &all[20..]).unwrap_err();
        assert_eq!(desk.books().batches.len(), 2);
        desk.next_process(None);
        let before = http.spent().items;
        assert_eq!(embed(&http, &all[20..]).unwrap(), right(&all[20..]));
        assert_eq!((desk.most_sent(), desk.books().batches.len()), (1, 2));
        // The dead process had no time to tell the account what it has sent. Nobody here knows that of
        // another machine's batch.
        let taken = if is_elsewhere { 0 } else { 40 };
        assert_eq!(http.spent().items - before, taken + 5);
    }
}

/// Each of one batch's lines comes to something else.
#[test]
fn every_line_comes_to_what_it_says() {
    let texts = texts(20);
    let desk = Desk::start(model, |number, lines| {
        let Over { status, output, .. } = completed(lines, model);
        if number > 0 {
            return completed(lines, model);
        }
        // The output is the other way round: its last line is of the first text.
        let mut output: Vec<Value> = output.into_iter().take(14).collect();
        output.push(answered(&lines[2].0, &[f32::NAN, 1.0]));
        let nan = json!({"custom_id": lines[3].0, "response": {"status_code": 200, "body": {"data": [{"embedding": "X"}]}}, "error": null});
        // Python writes numbers that are not finite so.
        output.push(nan.to_string().replace("\"X\"", "[NaN, Infinity]").into());
        output.push(answered(&lines[19].0, &[9.0, 9.0]));
        // The vector comes in the format that it is asked for in.
        let bytes: Vec<u8> = model(&lines[17].1).iter().flat_map(|number| number.to_le_bytes()).collect();
        let vector = output.iter_mut().find(|line| line["custom_id"] == lines[17].0).unwrap();
        vector["response"]["body"]["data"][0]["embedding"] = BASE64_STANDARD.encode(bytes).into();
        output.push(answered("not one of ours", &[1.0, 1.0]));
        output.push("{ broken".into());
        let errors = vec![
            refused(&lines[0].0, 400, "too long for sk-secret"),
            refused(&lines[1].0, 500, "we are sorry"),
            expired(&lines[4].0),
            refused(&lines[18].0, 400, "of one that has a vector"),
        ];
        Over { status, output, errors, said: Value::Null }
    });
    let journal = tempfile::tempdir().unwrap();
    let http = open(&desk, &journal);
    let answers = embed(&http, &texts).unwrap();
    assert_eq!(answers[6..], right(&texts)[6..]);
    assert!(
        matches!(&answers[0], Err(ItemFailure::Permanent(why)) if why.contains("status 400: too long for (the key)")),
        "{answers:?}"
    );
    assert!(
        matches!(&answers[1], Err(ItemFailure::Temporary(why)) if why.contains("status 500: we are sorry"))
    );
    for place in [2, 3] {
        assert!(
            matches!(&answers[place], Err(ItemFailure::Permanent(why)) if why.contains("NaN")),
            "{answers:?}"
        );
    }
    assert!(matches!(&answers[4], Err(ItemFailure::Untried(_))), "{}", reason(&answers[4]));
    let lost = "has no answer for it in batch batch_0";
    assert!(matches!(&answers[5], Err(ItemFailure::Temporary(why)) if why.contains(lost)), "{answers:?}");
    // A few texts are tried again directly.
    assert_eq!(embed(&http, &[texts[5].clone()]).unwrap(), right(&texts[5..6]));
    assert_eq!(embed(&http, &[texts[4].clone()]).unwrap(), right(&texts[4..5]));
    assert_eq!(desk.most_sent(), 1);
    assert!(desk.direct().contains(&texts[5]));
    // A later process tries texts without a vector as well.
    assert_eq!(embed(&open(&desk, &journal), &texts[1..4]).unwrap(), right(&texts[1..4]));
    assert_eq!(embed(&open(&desk, &journal), &texts[6..]).unwrap(), right(&texts[6..]));
    assert_eq!(desk.most_sent(), 1);
}

/// Texts that were not embedded in time are no attempt, cost nothing, and are sent again.
#[test]
fn what_expires_is_sent_again() {
    let texts = texts(40);
    let desk = Desk::start(model, |number, lines| match number {
        // Half of the batch is embedded, and the error file names a part of the other half.
        0 => {
            let Over { output, .. } = completed(&lines[..20], model);
            let errors = lines[20..30].iter().map(|(id, _)| expired(id)).collect();
            Over { status: "expired", output, errors, said: Value::Null }
        }
        1 => Over { status: "expired", output: vec![], errors: vec![], said: Value::Null },
        _ => completed(lines, model),
    });
    let journal = tempfile::tempdir().unwrap();
    let http = open(&desk, &journal);
    let answers = embed(&http, &texts).unwrap();
    assert_eq!(answers[..20], right(&texts)[..20]);
    assert!(answers[20..].iter().all(|answer| matches!(answer, Err(ItemFailure::Untried(_)))));
    assert_eq!(http.spent().items, 20 + 6, "what was not embedded is not counted");
    let error = embed(&http, &texts[20..]).unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("batch batch_1 is expired"), "{error}");
    let http = open(&desk, &journal);
    assert_eq!(embed(&http, &texts[20..]).unwrap(), right(&texts[20..]));
    assert_eq!(embed(&open(&desk, &journal), &texts[..20]).unwrap(), right(&texts[..20]));
    let sent = &desk.books().sent;
    assert!(texts[..20].iter().all(|text| sent[text] == 1) && texts[20..].iter().all(|text| sent[text] == 3));
}

/// A batch that expired takes no texts over from the one after it, in a list that says no dates.
#[test]
fn what_expired_does_not_come_back_from_the_list() {
    let texts = texts(20);
    let expired = || Over { status: "expired", output: vec![], errors: vec![], said: Value::Null };
    let desk = Desk::start(
        model,
        move |number, lines| if number == 0 { expired() } else { completed(lines, model) },
    );
    let journal = tempfile::tempdir().unwrap();
    assert!(embed(&open(&desk, &journal), &texts).unwrap_err().to_string().contains("is expired"));
    desk.next_process(Some(Death { after: 5, is_heard: true }));
    embed(&open_at(&desk.stub.url, journal.path(), |_| {}).0, &texts).unwrap_err();
    assert_eq!(desk.books().batches.len(), 2);
    let elsewhere = tempfile::tempdir().unwrap();
    for journal in [&journal, &elsewhere, &journal] {
        assert_eq!(embed(&open(&desk, journal), &texts).unwrap(), right(&texts));
        assert_eq!((desk.most_sent(), desk.books().batches.len()), (2, 2));
    }
}

#[test]
fn a_batch_that_fails_or_is_cancelled_says_why() {
    let batch_error = |code: &str, message: &str, line: Value| json!({"object": "list", "data": [{"code": code, "message": message, "line": line}]});
    let failed = |said| Over { status: "failed", output: vec![], errors: vec![], said };
    let texts = texts(20);
    // A line that is named is to blame, and the others are sent again.
    let blame = batch_error("invalid_line", "no such text", json!(3));
    let desk = Desk::start(
        model,
        move |number, lines| if number == 0 { failed(blame.clone()) } else { completed(lines, model) },
    );
    let journal = tempfile::tempdir().unwrap();
    let http = open(&desk, &journal);
    let answers = embed(&http, &texts).unwrap();
    assert!(
        matches!(&answers[2], Err(ItemFailure::Permanent(why)) if why.contains("no such text")),
        "{answers:?}"
    );
    let untried = |answer: &&Answer| matches!(answer, Err(ItemFailure::Untried(_)));
    assert_eq!(answers.iter().filter(untried).count(), 19);
    assert_eq!(embed(&http, &texts[3..]).unwrap(), right(&texts[3..]));
    // Where no line is named, none is to blame.
    let desk = Desk::start(model, move |_, _| {
        failed(batch_error("model_not_found", "there is no model m", Value::Null))
    });
    let error = embed(&open(&desk, &journal), &texts).unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("is failed: there is no model m"), "{error}");
    // A batch that somebody cancelled is not sent again by this process.
    let desk = Desk::start(model, |_, lines| Over { status: "cancelled", ..completed(&lines[..15], model) });
    let http = open(&desk, &journal);
    assert_eq!(embed(&http, &texts).unwrap()[..15], right(&texts)[..15]);
    let error = embed(&http, &texts[15..]).unwrap_err();
    assert!(error.to_string().contains("is cancelled"), "{error}");
    assert_eq!(desk.books().batches.len(), 1);
    // A later process sends it again.
    assert_eq!(embed(&open(&desk, &journal), &texts[15..]).unwrap(), right(&texts[15..]));
    assert_eq!(embed(&open(&desk, &journal), &texts[..15]).unwrap(), right(&texts[..15]));
}

/// A service that takes fewer tokens at a time is sent fewer texts.
#[test]
fn a_queue_that_is_too_short_is_sent_smaller_batches() {
    let desk = Desk::start(model, |_, lines| {
        if lines.len() <= 30 {
            return completed(lines, model);
        }
        let message = "Enqueued token limit reached for m";
        let said = json!({"data": [{"code": "token_limit_exceeded", "message": message, "line": null}]});
        Over { status: "failed", output: vec![], errors: vec![], said }
    });
    let journal = tempfile::tempdir().unwrap();
    let http = open(&desk, &journal);
    let (all, mut texts_left) = (texts(100), texts(100));
    for _ in 0..9 {
        let answers = embed(&http, &texts_left).unwrap();
        texts_left = texts_left
            .into_iter()
            .zip(answers)
            .filter(|(_, answer)| answer.is_err())
            .map(|(text, _)| text)
            .collect();
        if texts_left.is_empty() {
            break;
        }
    }
    assert_eq!(texts_left, Vec::<String>::new());
    let sizes: Vec<u64> = desk
        .books()
        .batches
        .iter()
        .map(|batch| batch["request_counts"]["completed"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes, [0, 0, 25, 25, 25, 25]);
    assert_eq!(http.spent().items, 100 + 2 + 4 * 5 - 1);
    drop(all);
}

/// A queue that other batches fill takes as many texts when they are over.
#[test]
fn a_queue_that_is_full_is_waited_for() {
    let desk = Desk::start(model, |number, lines| {
        if number != 1 {
            return completed(lines, model);
        }
        let said = json!({"data": [{"code": "token_limit_exceeded", "message": "Enqueued", "line": null}]});
        Over { status: "failed", output: vec![], errors: vec![], said }
    });
    let (journal, all) = (tempfile::tempdir().unwrap(), texts(70));
    desk.books().polls = 50;
    desk.next_process(Some(Death { after: 5, is_heard: true }));
    embed(&open_at(&desk.stub.url, journal.path(), |_| {}).0, &all[..30]).unwrap_err();
    desk.next_process(None);
    let (http, clock) = open_at(&desk.stub.url, journal.path(), |_| {});
    desk.books().asked.insert("batch_1".into(), 50);
    assert_eq!(embed(&http, &all).unwrap()[..30], right(&all)[..30]);
    assert_eq!(embed(&http, &all[30..]).unwrap(), right(&all[30..]));
    let books = desk.books();
    let sizes = books
        .batches
        .iter()
        .map(|batch| books.files[batch["input_file_id"].as_str().unwrap()].lines().count());
    assert_eq!(sizes.collect::<Vec<_>>(), [30, 40, 40]);
    assert!(clock.waits().len() >= 50, "{:?}", clock.waits());
}

/// A worker that finds no room in the budget does not end the wait of another one for what is paid for.
#[test]
fn a_budget_that_is_spent_ends_no_wait() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    let all = texts(60);
    desk.next_process(Some(Death { after: 5, is_heard: true }));
    let open = || open_at(&desk.stub.url, journal.path(), |config| config.budget_items = Some(40)).0;
    embed(&open(), &all[..30]).unwrap_err();
    desk.next_process(None);
    let http = open();
    http.note_others(Spent { items: 10, ..Spent::default() });
    assert!(embed(&http, &all[30..]).unwrap_err().is_budget_spent());
    assert_eq!(embed(&http, &all[..30]).unwrap(), right(&all[..30]));
    assert!(embed(&http, &all[30..]).unwrap_err().is_budget_spent());
    assert_eq!(desk.books().batches.len(), 1);
}

#[test]
fn a_budget_is_what_is_sent() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    let open = || {
        desk.next_process(None);
        open_at(&desk.stub.url, journal.path(), |config| config.budget_items = Some(50)).0
    };
    let all = texts(100);
    let http = open();
    let answers = embed(&http, &all).unwrap();
    let answer_count = answers.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!((answer_count, http.spent().items), (50 - 1 - 5, 50));
    assert!(embed(&http, &all[answer_count..]).unwrap_err().is_budget_spent());
    assert_eq!(desk.books().sent.len() + desk.direct().len(), 50);
    // The next process takes what is there, and has nothing left for more: not where the account was told of
    // the batch, and not where the first process died before.
    let beside = Spent { items: 6, ..Spent::default() };
    let died = open();
    died.note_others(beside);
    assert_eq!(embed(&died, &all[..answer_count]).unwrap(), right(&all[..answer_count]));
    assert_eq!(died.spent().items, 44);
    for _ in 0..2 {
        died.note_others(beside);
    }
    let next = open();
    next.note_others(http.spent());
    assert_eq!(embed(&next, &all[..answer_count]).unwrap(), right(&all[..answer_count]));
    assert!(embed(&next, &all).unwrap()[answer_count..].iter().all(Result::is_err));
    assert_eq!(desk.books().sent.len() + desk.direct().len(), 50);
}

/// Batches and questions go to two machines of the service, and may meet two models.
#[test]
fn a_batch_of_another_model_is_not_handed_out() {
    let other = |text: &str| vec![text.len() as f32, 1.0];
    let desk = Desk::start(model, move |_, lines| completed(lines, other));
    let journal = tempfile::tempdir().unwrap();
    let http = open(&desk, &journal);
    let error = embed(&http, &texts(20)).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains("batch batch_0"), "{error}");
    assert!(embed(&http, &texts(20)).unwrap_err().is_conflict());
    let wide = Desk::start(model, |_, lines| completed(lines, |_| vec![1.0; 3]));
    let error = embed(&open(&wide, &journal), &texts(20)).unwrap_err();
    assert!(error.to_string().contains('3'), "{error}");
}

#[test]
fn an_outage_of_an_hour_ends_the_call_and_loses_nothing() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.next_process(Some(Death { after: 5, is_heard: true }));
    let (http, clock) = open_at(&desk.stub.url, journal.path(), |_| {});
    let error = embed(&http, &texts(20)).unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("a later run waits for it"), "{error}");
    assert!(clock.waits().len() >= 60, "{:?}", clock.waits());
    // Polls may be longer than that hour.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Desk::good(model);
    other.next_process(Some(Death { after: 5, is_heard: true }));
    let change = |config: &mut HttpConfig| config.batch_api_poll_seconds = 7200.0;
    let (http, clock) = open_at(&other.stub.url, elsewhere.path(), change);
    embed(&http, &texts(20)).unwrap_err();
    let polls = clock.waits().iter().filter(|wait| wait.as_secs() >= 7200).count();
    assert!(polls > 3, "{:?}", clock.waits());
    // An interruption ends a wait as well.
    let http = open(&desk, &journal);
    http.interrupt();
    assert!(embed(&http, &texts(20)).unwrap_err().is_cancelled());
}

#[test]
fn an_interruption_leaves_a_batch_that_was_created_to_the_next_process() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.books().polls = usize::MAX;
    let clock = Arc::new(rehang_clock::SystemClock::start());
    let http = open_with(&desk.stub.url, journal.path(), clock, |_| {});
    let error = thread::scope(|scope| {
        let call = scope.spawn(|| embed(&http, &texts(20)));
        desk.wait_until(|books| !books.asked.is_empty());
        http.interrupt();
        call.join().unwrap().unwrap_err()
    });
    assert!(error.is_cancelled(), "{error}");
    desk.books().polls = 1;
    assert_eq!(embed(&open(&desk, &journal), &texts(20)).unwrap(), right(&texts(20)));
    assert_eq!(desk.most_sent(), 1);
}

/// A service that has embedded texts is asked for their vectors again, and not for new ones.
#[test]
fn a_file_that_has_less_than_its_batch_says_is_asked_for_again() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.books().bad_files = vec![BadFile::Short(19), BadFile::Missing, BadFile::Unnamed];
    assert_eq!(embed(&open(&desk, &journal), &texts(20)).unwrap(), right(&texts(20)));
    assert!(desk.books().bad_files.is_empty());
    desk.books().bad_files = vec![BadFile::Missing; 1000];
    let error = embed(&open(&desk, &journal), &texts(20)).unwrap_err();
    let names = "batch batch_0 has embedded 20 texts, and its output (output-0) has 0";
    assert!(error.is_retryable() && error.to_string().contains(names), "{error}");
    assert!(error.to_string().contains(JOURNAL), "{error}");
    desk.books().bad_files.clear();
    assert_eq!(embed(&open(&desk, &journal), &texts(20)).unwrap(), right(&texts(20)));
    assert_eq!(desk.most_sent(), 1);
}

#[test]
fn a_batch_that_may_have_been_created_is_looked_for() {
    // Without a list nobody can say whether the batch was created, and the file says what to do.
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.books().has_no_list = true;
    desk.next_process(Some(Death { after: 3, is_heard: true }));
    embed(&open_at(&desk.stub.url, journal.path(), |_| {}).0, &texts(20)).unwrap_err();
    assert_eq!(desk.books().batches.len(), 1);
    let error = embed(&open(&desk, &journal), &texts(20)).unwrap_err();
    assert!(error.is_conflict() && error.to_string().contains(JOURNAL), "{error}");
    fs_err::remove_dir_all(journal.path().join(JOURNAL)).unwrap();
    assert_eq!(embed(&open(&desk, &journal), &texts(20)).unwrap(), right(&texts(20)));
    // A batch that the service does not know is not sent again either, unless its file is removed.
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    embed(&open(&desk, &journal), &texts(20)).unwrap();
    desk.books().batches.clear();
    let error = embed(&open(&desk, &journal), &texts(20)).unwrap_err();
    assert!(error.to_string().contains(JOURNAL) && desk.most_sent() == 1, "{error}");
}

/// No answer of a service says for sure whether it has created a batch, unless the request was wrong.
#[test]
fn a_batch_that_was_created_all_the_same_is_found() {
    for (status, created) in [(402, Created::AtOnce), (418, Created::AtOnce), (500, Created::Late)] {
        let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
        desk.books().bad_creation = Some((unwell(status), created));
        let http = open(&desk, &journal);
        let first = embed(&http, &texts(20));
        if status == 402 {
            first.unwrap_err();
        } else {
            assert_eq!(first.unwrap(), right(&texts(20)), "{status}");
        }
        assert_eq!(embed(&open(&desk, &journal), &texts(20)).unwrap(), right(&texts(20)));
        assert_eq!((desk.most_sent(), desk.books().batches.len()), (1, 1), "{status}");
    }
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.books().bad_creation = Some((unwell(422), Created::Never));
    let error = embed(&open(&desk, &journal), &texts(20)).unwrap_err();
    assert!(error.to_string().contains("it refused a batch"), "{error}");
    assert_eq!((journal_files(&journal), &desk.books().deleted[..]), (0, &["file-0".to_owned()][..]));
}

/// The first call that is refused for its key, or for an empty account, is the last one. A later process
/// sends the texts.
#[test]
fn a_batch_that_is_refused_for_its_key_or_account_ends_at_once() {
    type Make = fn() -> Reply;
    let empty = || Reply::Status(429, vec![], json!({"error": {"code": "insufficient_quota"}}).to_string());
    let cases: [(Make, &str); 4] = [
        (|| unwell(401), "status 401: we are not well; the key comes from KEY"),
        (|| unwell(403), "status 403: we are not well; the key comes from KEY"),
        (|| unwell(402), "status 402: we are not well"),
        (empty, "insufficient_quota"),
    ];
    for (reply, words) in cases {
        let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
        desk.books().bad_creation = Some((reply(), Created::Never));
        let (http, clock) = open_at(&desk.stub.url, journal.path(), |_| {});
        let error = embed(&http, &texts(20)).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.is_unauthorised(), words.contains("KEY"), "{error}");
        assert_eq!((clock.waits(), journal_files(&journal), http.spent().items), (vec![], 0, 1), "{words}");
        assert_eq!(desk.books().deleted, ["file-0"], "{words}");
        let requests = desk.requests();
        let again = embed(&http, &texts(20));
        if error.is_unauthorised() {
            assert!(again.unwrap_err().is_unauthorised());
            assert_eq!(desk.requests(), requests, "the key is as wrong for all other texts");
        }
        assert_eq!(embed(&open(&desk, &journal), &texts(20)).unwrap(), right(&texts(20)));
        assert_eq!(desk.most_sent(), 1, "{words}");
    }
}

#[test]
fn a_batch_that_is_refused_for_a_limit_is_asked_for_again_when_the_service_says() {
    let limit = |wait: &'static str| {
        let body = json!({"error": {"message": format!("slow down, try again in {wait}")}}).to_string();
        Some((Reply::Status(429, vec![], body), Created::Never))
    };
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.books().polls = 0;
    desk.books().bad_creation = limit("42s");
    let (http, clock) = open_at(&desk.stub.url, journal.path(), |_| {});
    assert_eq!(embed(&http, &texts(20)).unwrap(), right(&texts(20)));
    assert_eq!(clock.waits()[0], Duration::from_secs(42));
    assert_eq!((desk.most_sent(), desk.books().files.len()), (1, 2), "its file and its output");
    // A limit that lasts longer than a run stands still ends the run, and the error says how long it lasts.
    desk.books().bad_creation = limit("10m");
    let (http, clock) = open_at(&desk.stub.url, journal.path(), |config| config.model = "n".into());
    let error = embed(&http, &texts(20)).unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("it asks to wait 600 s"), "{error}");
    assert_eq!((clock.waits(), journal_files(&journal), http.spent().items), (vec![], 1, 1));
}

/// A list that ends too early says nothing of what was created before.
#[test]
fn a_list_that_is_cut_short_does_not_say_that_nothing_was_created() {
    let page = |number: u64, at: u64| json!({"data": [{"id": format!("b{number}"), "status": "completed", "created_at": at}], "has_more": true});
    for is_old in [false, true] {
        let now = rehang_clock::unix_ms() / 1000;
        let stub = Stub::start(move |number, request: &Seen| {
            match (request.method.as_str(), request.path.as_str()) {
                ("POST", "/v1/files") => Reply::Body(json!({"id": "file-1"}).to_string()),
                ("GET", path) if path.starts_with("/v1/batches?") => {
                    let at = if is_old && path.contains("after") { now - 40 * 86_400 } else { now };
                    Reply::Body(page(number as u64, at).to_string())
                }
                ("DELETE", _) => Reply::Body("{}".into()),
                ("POST", "/v1/batches") if number > 100 => Reply::Status(400, vec![], String::new()),
                ("POST", "/v1/batches") => Reply::Status(500, vec![], String::new()),
                _ => Reply::Body(good(request, |_| {})),
            }
        });
        let journal = tempfile::tempdir().unwrap();
        let (http, _) = open_at(&stub.url, journal.path(), |_| {});
        let error = embed(&http, &texts(20)).unwrap_err();
        assert_eq!(error.is_conflict(), !is_old, "{error}");
        let lists = stub.seen().iter().filter(|request| request.path.starts_with("/v1/batches?")).count();
        assert!(is_old || lists == 2 * PAGES_MAX, "{lists}");
    }
}

/// Two workers that wait for one batch both find that it was not created.
#[test]
fn what_was_not_created_is_put_back_once() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    desk.next_process(Some(Death { after: 3, is_heard: false }));
    let http = open_at(&desk.stub.url, journal.path(), |_| {}).0;
    embed(&http, &texts(20)).unwrap_err();
    assert_eq!((http.spent().items, journal_files(&journal)), (21, 1), "it may have been created");
    desk.next_process(None);
    let batches = http.batches.as_ref().unwrap();
    let own_name: Arc<str> = lock(&batches.state).batches.keys().next().cloned().unwrap();
    for _ in 0..2 {
        assert_eq!(http.find_created(batches, &own_name).unwrap(), None);
    }
    for _ in 0..2 {
        http.drop_sent(batches, &own_name).unwrap();
        assert_eq!((http.spent().items, journal_files(&journal)), (1, 0));
    }
    // An account is never less than empty, whatever else is put back too often.
    http.unreserve(2, 1000);
    assert_eq!(http.spent().items, 0);
    assert_eq!(embed(&http, &texts(20)).unwrap(), right(&texts(20)));
    assert_eq!(desk.most_sent(), 1);
}

/// Clock whose waits are heard of, and last until the other side of a channel is gone.
struct Stepped(mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>, ManualClock);

impl rehang_clock::Clock for Stepped {
    fn now(&self) -> Duration {
        self.2.now()
    }

    fn sleep_until(&self, time: Duration, ends: &dyn Fn() -> bool) {
        let _ = self.0.send(());
        let _ = lock(&self.1).recv();
        self.2.sleep_until(time, ends);
    }
}

/// Checks that two processes, once each has told the account, have spent together what the service did.
fn expect_counted_once(desk: &Desk, in_order: [&Http; 2]) {
    for http in in_order {
        for _ in 0..3 {
            http.note_others(Spent::default());
        }
    }
    let spent = in_order.map(Http::spent);
    let (direct, sent) = (desk.direct(), desk.books().sent.len());
    let tokens: usize = direct.iter().map(String::len).sum();
    assert_eq!(spent[0].items + spent[1].items, (sent + direct.len()) as u64, "{spent:?}");
    assert_eq!(spent[0].tokens + spent[1].tokens, (sent * 3 + tokens) as u64, "{spent:?}");
}

/// A process waits for its turn while another one sends texts, and then for their batch.
#[test]
fn of_two_processes_with_one_journal_one_sends_at_a_time() {
    for (request, is_first_told) in [("POST /v1/files", true), ("POST /v1/batches", false)] {
        let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
        let (waits, is_waiting) = mpsc::channel();
        let (go_on, waited) = mpsc::channel();
        let (gives, outcomes) = mpsc::channel();
        let clock = Arc::new(Stepped(waits, Mutex::new(waited), ManualClock::default()));
        let second = open_with(&desk.stub.url, journal.path(), clock, |_| {});
        let begins = move || {
            thread::spawn(move || gives.send((embed(&second, &texts(20)), second)).unwrap());
            is_waiting.recv().unwrap();
        };
        desk.books().meanwhile = Some((request, Box::new(begins)));
        let first = open(&desk, &journal);
        assert_eq!(embed(&first, &texts(20)).unwrap(), right(&texts(20)));
        drop(go_on);
        let (answers, second) = outcomes.recv().unwrap();
        assert_eq!(answers.unwrap(), right(&texts(20)));
        assert_eq!((desk.most_sent(), desk.books().files.len()), (1, 2), "its file and its output");
        expect_counted_once(&desk, if is_first_told { [&first, &second] } else { [&second, &first] });
    }
}

/// The count is the same whoever reads the batch first, whoever tells the account first, and whether the
/// batch took more or less than it was reckoned to.
#[test]
fn a_batch_that_two_processes_collect_at_once_is_counted_once() {
    for characters_per_token in [0.5, 2.0] {
        for told in 0..3 {
            let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
            let (url, folder) = (desk.stub.url.clone(), journal.path().to_owned());
            let open = move || {
                let change = |config: &mut HttpConfig| config.characters_per_token = characters_per_token;
                Arc::new(open_at(&url, &folder, change).0)
            };
            let (gives, outcomes) = mpsc::channel();
            let first = open();
            let same = Arc::clone(&first);
            let collects = move || {
                for _ in 0..told {
                    same.note_others(Spent::default());
                }
                let second = open();
                gives.send((embed(&second, &texts(20)), second)).unwrap();
            };
            desk.books().meanwhile = Some(("GET /v1/files/output", Box::new(collects)));
            assert_eq!(embed(&first, &texts(20)).unwrap(), right(&texts(20)));
            let (answers, second) = outcomes.recv().unwrap();
            assert_eq!(answers.unwrap(), right(&texts(20)));
            expect_counted_once(&desk, if told == 0 { [&second, &first] } else { [&first, &second] });
            let batches = first.batches.as_ref().unwrap();
            let own_name = lock(&batches.state).batches.keys().next().cloned().unwrap();
            let sent = batches.change(&own_name, |_| {}).unwrap().unwrap();
            assert_eq!((sent.is_told, sent.is_counted, sent.texts.len()), (true, true, 20));
            assert_eq!((desk.most_sent(), desk.books().batches.len()), (1, 1));
        }
    }
}

/// Two processes find that a batch was not created; one of them sends its texts again.
#[test]
fn what_was_not_created_is_sent_again_by_one_of_two_processes() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    let second = open(&desk, &journal);
    let (gives, outcomes) = mpsc::channel();
    desk.books().bad_creation = Some((unwell(500), Created::Never));
    let looks = move || gives.send((embed(&second, &texts(20)), second)).unwrap();
    desk.books().meanwhile = Some(("DELETE", Box::new(looks)));
    let first = open(&desk, &journal);
    assert_eq!(embed(&first, &texts(20)).unwrap(), right(&texts(20)));
    let (answers, second) = outcomes.recv().unwrap();
    assert_eq!(answers.unwrap(), right(&texts(20)));
    assert_eq!((desk.most_sent(), desk.books().batches.len(), journal_files(&journal)), (1, 1, 1));
    expect_counted_once(&desk, [&first, &second]);
}

/// A worker that needs a text whose batch another one asks for at this moment does not take it for one that
/// was not created.
#[test]
fn a_batch_that_is_asked_for_at_this_moment_is_not_looked_for() {
    let (desk, journal) = (Desk::good(model), tempfile::tempdir().unwrap());
    let http = Arc::new(open(&desk, &journal));
    let (gives, outcomes) = mpsc::channel();
    let same = Arc::clone(&http);
    let looks = move || {
        let batches = same.batches.as_ref().unwrap();
        let own_name = lock(&batches.state).batches.keys().next().cloned().unwrap();
        let call = Call { http: &same, batches, inputs: &[], ids: vec![], answers: &mut [] };
        let came = call.poll(&own_name, &[], &mut Duration::default());
        gives.send(matches!(came, Ok(None))).unwrap();
    };
    desk.books().meanwhile = Some(("POST /v1/batches", Box::new(looks)));
    assert_eq!(embed(&http, &texts(20)).unwrap(), right(&texts(20)));
    assert!(outcomes.recv().unwrap());
    assert_eq!((desk.most_sent(), desk.books().deleted.len()), (1, 0));
}

/// Voyage has the parameters in the batch, and lines of nothing but texts.
#[test]
fn a_service_that_wants_its_parameters_in_the_batch_gets_them_there() {
    let stub = Stub::start(|_, request: &Seen| match (request.method.as_str(), request.path.as_str()) {
        ("POST", "/v1/files") => Reply::Body(json!({"id": "file-1"}).to_string()),
        ("GET", path) if path.starts_with("/v1/batches?") => Reply::Body(json!({"data": []}).to_string()),
        ("POST", "/v1/batches") if request.body["request_params"].is_null() => {
            let body = json!({"detail": "Field required: request_params"});
            Reply::Status(400, vec![], body.to_string())
        }
        ("DELETE", _) => Reply::Body("{}".into()),
        ("POST", "/v1/batches") => Reply::Status(429, vec![("retry-after", "3600".into())], String::new()),
        _ => Reply::Body(good(request, |_| {})),
    });
    let journal = tempfile::tempdir().unwrap();
    let change = |config: &mut HttpConfig| {
        config.input_type = Some("document".into());
        config.body.insert("output_dimension".into(), 2.into());
    };
    let (http, _) = open_at(&stub.url, journal.path(), change);
    assert!(embed(&http, &texts(20)).unwrap_err().is_retryable(), "it has too many batches under way");
    assert_eq!(
        (journal_files(&journal), http.spent().items),
        (0, 1),
        "nothing was created, and nothing is paid for"
    );
    let requests = stub.seen();
    let last = &requests.iter().rfind(|request| request.path == "/v1/batches").unwrap().body;
    let parameters = json!({"model": "m", "input_type": "document", "output_dimension": 2});
    assert_eq!((&last["request_params"], &last["completion_window"]), (&parameters, &json!("12h")));
    let files: Vec<&Seen> = requests.iter().filter(|request| request.path == "/v1/files").collect();
    let file = String::from_utf8_lossy(&files[1].bytes);
    assert!(
        file.contains(r#"{"body":{"input":["100"]},"custom_id":"#) && !file.contains("/v1/embeddings"),
        "{file}"
    );
}

#[test]
fn keys_that_cannot_be_are_refused() {
    let refusal = |change: &dyn Fn(&mut HttpConfig)| {
        let config = json!({"url": "http://localhost/api/embed", "model": "m"});
        let mut config: HttpConfig = serde_json::from_value(config).unwrap();
        change(&mut config);
        let error = Batches::open(&config, Path::new("."), &config.url).err();
        error.map_or_else(String::new, |error| error.to_string())
    };
    assert_eq!(refusal(&|_| {}), "");
    assert!(refusal(&|config| config.batch_api = true).contains("Ollama has no batch API"));
    assert!(refusal(&|config| config.batch_api_items = 0).contains("batch_api_items"));
    assert!(refusal(&|config| config.batch_api_poll_seconds = 0.0).contains("batch_api_poll_seconds"));
    // A broken journal is no empty one.
    let journal = tempfile::tempdir().unwrap();
    fs_err::create_dir(journal.path().join(JOURNAL)).unwrap();
    fs_err::write(journal.path().join(JOURNAL).join("a.json"), "{").unwrap();
    let error = embed(&open(&Desk::good(model), &journal), &texts(20)).unwrap_err();
    assert!(error.is_corrupt() && error.to_string().contains("a.json"), "{error}");
}
