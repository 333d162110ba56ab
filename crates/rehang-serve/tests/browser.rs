//! Tests of the dashboard on the demo's images: a whole upgrade in a real browser, clicked through as by a
//! person, and the pictures that it shows. Chromium is asked through two pipes, by the protocol of its
//! developer tools.
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use rehang_core::{Distance, Progress, Provenance, Space};
use rehang_files::VectorSource;
use rehang_serve::{ServeOptions, serve};
use rehang_sqlite::SqliteStore;
use rehang_store::{ItemWrite, Ledger, NewVector};
use rehang_upgrade::Upgrade;
use serde_json::{Value, json};

const ITEMS: u64 = 400;
/// Longest time until the page shows what it has to.
const LIMIT: Duration = Duration::from_mins(2);
/// Rest between two looks at the page.
const LOOK: Duration = Duration::from_millis(50);

/// Makes a gallery of the demo's images with their vectors by the old model, and opens its upgrade, which has
/// both models.
fn upgrade(folder: &Path) -> Upgrade {
    rehang_demo::unpack(folder).unwrap();
    rehang_demo::write_images(folder).unwrap();
    let source = |name: &str| VectorSource::path(folder.join(name));
    let [old, new] = ["old.npy", "new.npy"].map(|name| rehang_files::read_matrix(&source(name)).unwrap());
    let [labels, roles] =
        ["label.npy", "role.npy"].map(|name| rehang_files::read_labels(&source(name)).unwrap());
    let space = Space::new("digits-old", old.columns(), Distance::L2, false);
    let store = SqliteStore::create(folder.join("gallery.db")).unwrap();
    store.create_space(&space, Provenance::Old).unwrap();
    let write = |row: usize| {
        let vector = NewVector::from_model("digits-old", old.row(row).to_vec(), Provenance::Old);
        let name = format!("digit-{row:04}");
        let label = Some(labels[row].to_string());
        let source = Some(format!("{name}.png"));
        ItemWrite { label, ..ItemWrite::new(name, source, vec![vector]) }
    };
    let rows = (0..roles.len()).filter(|&row| roles[row] == 1).take(ITEMS as usize);
    store.put(&rows.map(write).collect::<Vec<_>>()).unwrap();
    drop(store);
    let space = |model: &str, width: usize| {
        format!("[{model}]\nname = \"digits-{model}\"\ndimension = {width}\ndistance = \"l2\"\n")
    };
    let encoder = |model: &str| {
        let input = "{ kind = \"image\", width = 8, height = 8, channels = 1, std = [0.94117647] }";
        format!("kind = \"onnx\"\nmodel = \"{model}_encoder.onnx\"\nroot = \"images\"\ninput = {input}\n")
    };
    let text = format!(
        "[gallery]\npath = \"gallery.db\"\n{}[old.encoder]\n{}{}[encoder]\n{}",
        space("old", old.columns()),
        encoder("old"),
        space("new", new.columns()),
        encoder("new")
    );
    let configuration = folder.join("rehang.toml");
    fs_err::write(&configuration, text).unwrap();
    Upgrade::open(&configuration).unwrap()
}

/// Service under test.
struct Served {
    address: SocketAddr,
    stop: Progress,
    thread: JoinHandle<rehang_core::Result<()>>,
    agent: ureq::Agent,
}

/// Answer to a request.
struct Answered {
    status: u16,
    headers: ureq::http::HeaderMap,
    bytes: Vec<u8>,
}

impl Served {
    fn start(folder: &Path) -> Self {
        let (upgrade, stop) = (upgrade(folder), Progress::default());
        let (listens, listening) = mpsc::channel();
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            let options = ServeOptions::new("127.0.0.1:0".parse().unwrap());
            serve(upgrade, &options, &ends, |address| listens.send(address).unwrap())
        });
        let address = listening.recv().unwrap();
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        Self { address, stop, thread, agent }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answered {
        let uri = format!("http://{}{path}", self.address);
        let request = ureq::http::Request::builder().method(method).uri(uri);
        let answer = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                self.agent.run(request.body(body.to_string()).unwrap())
            }
            None => self.agent.run(request.body(()).unwrap()),
        };
        let mut response = answer.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Answered { status, headers, bytes: response.body_mut().read_to_vec().unwrap() }
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.ask("GET", "/v1/status", None).bytes).unwrap()
    }

    fn end(self) {
        self.stop.cancel();
        self.thread.join().unwrap().unwrap();
    }
}

/// Finds the program of Chromium; `None` where there is none. Then a line says so, and it is a failure where
/// `REHANG_CHROMIUM=required`.
fn chromium() -> Option<String> {
    let named = std::env::var("REHANG_CHROMIUM");
    let program = named.clone().ok().filter(|program| program != "required");
    let program = program.unwrap_or_else(|| "chromium".into());
    let version = Command::new(&program).arg("--version").output();
    if version.is_ok_and(|version| version.status.success()) {
        return Some(program);
    }
    let how = "no Chromium: install the package chromium, or set REHANG_CHROMIUM to the program";
    assert!(named.is_err(), "{how}");
    eprintln!("skipped: {how}");
    None
}

/// Reads axe-core, which looks for barriers, from the file that `REHANG_AXE` names. Without it, a line says
/// so.
fn axe() -> Option<String> {
    let path = std::env::var("REHANG_AXE").ok();
    if path.is_none() {
        eprintln!("skipped: the dashboard is not looked at by axe-core: set REHANG_AXE to an axe.min.js");
    }
    path.map(|path| fs_err::read_to_string(path).unwrap())
}

/// Newest operation that the page lists: its verb and its state.
const NEWEST: &str = "[...(document.querySelector('#operations tbody tr')?.cells ?? [])].slice(0, 2)\
     .map((cell) => cell.innerText.split('\\n')[0])";

/// Chromium without a window, with one page.
struct Browser {
    process: Child,
    /// Pipe of commands; each ends with a zero byte.
    commands: fs_err::File,
    messages: Receiver<Value>,
    /// Session with the page, once there is one.
    session: Option<String>,
    /// Number of the command that was sent last.
    sent: u64,
    /// Errors and warnings of the page.
    faults: Vec<String>,
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Browser {
    fn start(program: &str, folder: &Path) -> Self {
        fs_err::create_dir(folder).unwrap();
        let [commands, messages] = ["commands", "messages"].map(|name| folder.join(name));
        assert!(Command::new("mkfifo").args([&commands, &messages]).status().unwrap().success());
        let profile = format!("--user-data-dir={}", folder.join("profile").display());
        let process = Command::new("sh")
            .args(["-c", r#"exec "$0" "$@" 3<"$COMMANDS" 4>"$MESSAGES""#, program])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--remote-debugging-pipe", &profile, "about:blank"])
            .envs([("COMMANDS", &commands), ("MESSAGES", &messages)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Each waits for the other end, in the order of the shell.
        let commands = fs_err::OpenOptions::new().write(true).open(commands).unwrap();
        let pipe = fs_err::File::open(messages).unwrap();
        let (tells, messages) = mpsc::channel();
        std::thread::spawn(move || {
            for message in BufReader::new(pipe).split(0).map_while(Result::ok) {
                if tells.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self { process, commands, messages, session: None, sent: 0, faults: Vec::new() };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for events in ["Runtime.enable", "Log.enable", "Page.enable"] {
            browser.call(events, &json!({}));
        }
        browser
    }

    /// Sends a command, and gives its result.
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.sent += 1;
        let mut command = json!({ "id": self.sent, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).unwrap();
        loop {
            let message = self.messages.recv_timeout(LIMIT);
            let message = message.unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.sent {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    /// Takes an event in.
    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        let is_fault = match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => {
                ["error", "warning", "assert"].iter().any(|kind| parameters["type"] == *kind)
            }
            // Before there is an upgrade, the service says so with a status that a browser notes as an error.
            "Log.entryAdded" => {
                let entry = &parameters["entry"];
                let is_expected = entry["source"] == "network"
                    && entry["url"].as_str().is_some_and(|url| url.ends_with("/v1/status"));
                !is_expected && ["error", "warning"].iter().any(|level| entry["level"] == *level)
            }
            _ => false,
        };
        if is_fault {
            self.faults.push(parameters.to_string());
        }
    }

    /// Evaluates an expression in the page.
    fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", &asked);
        assert!(answer["exceptionDetails"].is_null(), "{}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// Looks at the page again and again until a condition holds there.
    fn until(&mut self, condition: &str) {
        let began = rehang_clock::now();
        while self.evaluate(&format!("Boolean({condition})")) != true {
            if began.elapsed() > LIMIT {
                let page = self.evaluate("document.body.innerText");
                let page = page.as_str().unwrap_or_default();
                panic!("not in time: {condition}\n{:?}\n{page}", self.faults);
            }
            rehang_clock::wait(LOOK);
        }
    }

    /// Clicks into the middle of an element until a condition holds: what appears above may move it away from
    /// under a click.
    fn click(&mut self, selector: &str, condition: &str) {
        let element = format!("document.querySelector({})", json!(selector));
        let middle = format!(
            "(() => {{ const element = {element}; element.scrollIntoView({{ block: 'center' }}); \
             const box = element.getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        );
        let began = rehang_clock::now();
        loop {
            self.until(&format!("{element}?.matches(':enabled')"));
            let middle = self.evaluate(&middle);
            for kind in ["mousePressed", "mouseReleased"] {
                let mut mouse = json!({ "type": kind, "button": "left", "clickCount": 1 });
                (mouse["x"], mouse["y"]) = (middle[0].clone(), middle[1].clone());
                self.call("Input.dispatchMouseEvent", &mouse);
            }
            if self.evaluate(&format!("Boolean({condition})")) == true {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{selector} cannot be clicked until {condition}");
        }
    }

    /// Ticks a box.
    fn tick(&mut self, selector: &str) {
        self.click(selector, &format!("document.querySelector({}).checked", json!(selector)));
    }

    /// Types a text in the place of what a field holds.
    fn enter(&mut self, selector: &str, text: &str) {
        let element = format!("document.querySelector({})", json!(selector));
        self.click(selector, &format!("document.activeElement === {element}"));
        self.evaluate(&format!("{element}.select()"));
        self.call("Input.insertText", &json!({ "text": text }));
    }

    /// Opens the dialog of a verb, fills it in, and agrees.
    fn agree(&mut self, verb: &str, fill: impl FnOnce(&mut Self)) {
        let is_open = "document.getElementById('dialog').open";
        self.click(&format!("#board [data-verb={verb}]"), is_open);
        fill(self);
        self.click("#dialog-go", &format!("!{is_open}"));
    }

    /// Carries out a verb by its dialog, and waits for the end of its operation.
    fn carry_out(&mut self, verb: &str, fill: impl FnOnce(&mut Self)) {
        let before = self.operations();
        self.agree(verb, fill);
        self.ended(verb, before + 1);
    }

    /// Counts the operations that the page lists.
    fn operations(&mut self) -> u64 {
        self.evaluate("document.querySelectorAll('#operations tbody tr').length").as_u64().unwrap()
    }

    /// Waits until so many operations are listed and the newest has ended, which has to be the verb and done.
    fn ended(&mut self, verb: &str, operations: u64) {
        let ending = self.ending(operations);
        let problem = self.text("problem");
        assert_eq!(ending, json!([verb, "done"]), "{problem}");
    }

    /// Waits until so many operations are listed and the newest has ended; gives its verb and its state.
    fn ending(&mut self, operations: u64) -> Value {
        let rows = "document.querySelectorAll('#operations tbody tr').length";
        self.until(&format!("{rows} === {operations} && {NEWEST}[1] !== 'running'"));
        self.evaluate(NEWEST)
    }

    /// Compares what the page says with what the service says, until both are the same.
    fn expect_as(&mut self, served: &Served) {
        let said = "(() => { const of = (id) => document.getElementById(id).textContent; \
             const counts = [...document.querySelectorAll('#counts > div[class]')]; \
             const numbers = counts.map((count) => [count.className, Number(count.lastChild.textContent)]); \
             return { verdict: of('verdict'), ...Object.fromEntries(numbers) }; })()";
        let began = rehang_clock::now();
        loop {
            let status = served.status();
            let mut expected = json!({ "verdict": status["verdict"] });
            for state in ["native", "adapted", "lacking", "failed"] {
                expected[state] = status["counts"][state].clone();
            }
            let shown = self.evaluate(said);
            let (place, serving) = (self.text("where"), status["serving"].as_str().unwrap_or_default());
            if shown == expected && place.contains(serving) && self.text("gallery") == status["gallery"] {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{place}\n{shown}\n{expected}");
            rehang_clock::wait(LOOK);
        }
    }

    fn text(&mut self, id: &str) -> String {
        let text = self.evaluate(&format!("document.getElementById({}).textContent", json!(id)));
        text.as_str().unwrap().to_owned()
    }

    /// Takes pictures of the page, first as a phone shows it at night, then as wide as a desk and in light
    /// colours, and looks for barriers in both.
    fn look(&mut self, name: &str, axe: Option<&str>) {
        for (width, scheme) in [(390, "dark"), (1280, "light")] {
            let screen = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
            self.call("Emulation.setDeviceMetricsOverride", &screen);
            let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
            self.call("Emulation.setEmulatedMedia", &json!({ "features": features }));
            let is_too_wide = self.evaluate("document.documentElement.scrollWidth > innerWidth");
            assert_eq!(is_too_wide, false, "{name} at {width}");
            let size = self.call("Page.getLayoutMetrics", &json!({}))["cssContentSize"].clone();
            let (width_of_all, height) = (&size["width"], &size["height"]);
            let clip = json!({ "x": 0, "y": 0, "width": width_of_all, "height": height, "scale": 1 });
            let whole = json!({ "captureBeyondViewport": true, "clip": clip });
            let picture = self.call("Page.captureScreenshot", &whole);
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dashboard-{name}-{width}.png"));
            fs_err::write(path, decoded(picture["data"].as_str().unwrap())).unwrap();
            let Some(axe) = axe else { continue };
            // Rules for what a page may load are none for what its developer evaluates.
            self.evaluate(&format!("{axe}; true"));
            let barriers = self.evaluate(
                "axe.run().then(({ violations }) => violations.map(({ id, nodes }) => \
                 `${id}: ${nodes.map(({ target }) => target).join(', ')}`))",
            );
            assert_eq!(barriers, json!([]), "{name} at {width}");
        }
    }
}

/// Decodes Base64.
fn decoded(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for letters in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = letters.iter().fold(0_u32, |bits, &letter| (bits << 6) | u32::from(value(letter)));
        let bits = bits << (6 * (4 - letters.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..letters.len()]);
    }
    bytes
}

#[test]
fn a_person_clicks_through_a_whole_upgrade() {
    let Some(program) = chromium() else { return };
    let axe = axe();
    let axe = axe.as_deref();
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(&folder.path().join("demo"));
    let mut page = Browser::start(&program, &folder.path().join("browser"));
    page.call("Page.navigate", &json!({ "url": format!("http://{}/", served.address) }));
    page.until("document.getElementById('where')?.textContent === 'No upgrade is under way.'");
    page.look("begin", axe);

    page.carry_out("pairs", |page| page.enter("#items", "200"));
    page.carry_out("fit", |page| {
        // Lists of choices open in a window of the system, which has no place without one.
        page.evaluate("document.getElementById('method').value = 'ridge'");
    });
    for verb in ["report", "start"] {
        page.carry_out(verb, |_| {});
        page.expect_as(&served);
    }
    page.carry_out("switch", |page| {
        page.evaluate("document.getElementById('serving').value = 'mixed'");
        page.tick("#dialog-body [name=anyway]");
    });
    page.expect_as(&served);
    assert_eq!(served.status()["serves_new"], true);

    page.enter("#queries", "digit-0000\ndigit-0005");
    page.tick("#by-item");
    page.click("#compare .go", "true");
    let pictures = "[...document.querySelectorAll('#trial img')]";
    let are_there = format!("{pictures}.every((picture) => picture.naturalWidth === 8)");
    // Each query, and five items of each list.
    page.until(&format!("{pictures}.length === 22 && {are_there}"));
    let ids = "[...document.querySelectorAll('#trial .id')]";
    let is_selected_whole = "getComputedStyle(document.querySelector('#trial li .id')).userSelect === 'all'";
    assert_eq!(page.evaluate(is_selected_whole), true);
    assert_eq!(page.evaluate(&format!("{ids}.every((id) => id.textContent.startsWith('digit-'))")), true);
    assert_eq!(page.evaluate(&format!("{ids}.length")), 22, "each query, and each answer");
    page.look("judging", axe);
    for query in [0, 1] {
        let button = format!("#trial [data-query='{query}']");
        // Lists that are the same need no judgement.
        let is_there = |button: &str| format!("document.querySelector(\"{button}\") !== null");
        if page.evaluate(&is_there(&button)) == true {
            page.click(&button, &is_there(&format!("{button}[aria-pressed=true]")));
        }
    }
    page.until("document.getElementById('judged').textContent.startsWith('New model better: ')");

    let before = page.operations();
    page.agree("run", |page| {
        page.enter("#rate", "3");
        page.enter("#until", "75");
    });
    page.until(&format!("JSON.stringify({NEWEST}) === '[\"run\",\"running\"]'"));
    let nobody_works = "document.getElementById('numbers').textContent.includes('nobody works')";
    page.until(&format!("!{nobody_works}"));
    page.look("running", axe);
    page.agree("pause", |_| {});
    page.until("document.getElementById('numbers').textContent.includes('paused')");
    let ending = page.ending(before + 1)[1].as_str().unwrap().to_owned();
    assert!(ending.starts_with("paused after ") && ending.contains(" item"), "{ending}");
    page.until(nobody_works);
    page.expect_as(&served);
    assert!(served.status()["counts"]["native"].as_u64().unwrap() < ITEMS * 3 / 4);
    page.until("document.getElementById('next').textContent.startsWith('Next: resume.')");
    page.until("document.querySelector('#steps [aria-current] strong').textContent === 'Run'");
    assert_eq!(page.evaluate("document.querySelector('#steps [data-verb=run]').disabled"), true);
    page.agree("resume", |_| {});
    page.until("document.getElementById('numbers').textContent.includes('runs are allowed')");
    page.until("document.querySelector('#steps [data-verb=run]').matches(':enabled')");
    let cancelled = page.operations() + 1;
    page.agree("run", |page| page.enter("#rate", "1"));
    page.until("document.querySelector('#operations [data-cancel]')");
    // A second click would be refused, since the first one has ended the operation.
    page.evaluate("document.querySelector('#operations [data-cancel]').click()");
    assert_eq!(page.ending(cancelled), json!(["run", "cancelled"]));
    page.carry_out("run", |page| page.enter("#until", "75"));
    page.expect_as(&served);
    let native = served.status()["counts"]["native"].as_u64().unwrap();
    assert!((ITEMS * 3 / 4..ITEMS).contains(&native), "{native}");
    page.carry_out("run", |_| {});
    page.expect_as(&served);
    assert_eq!(served.status()["counts"]["native"], ITEMS);

    page.carry_out("rollback", |_| {});
    page.expect_as(&served);
    assert_eq!(served.status()["serves_new"], false);
    page.carry_out("switch", |_| {});
    page.expect_as(&served);
    let go = "document.getElementById('dialog-go').disabled";
    page.carry_out("finish", |page| {
        assert_eq!(page.evaluate(go), true, "it is asked again");
        page.enter("#confirm", "another gallery");
        assert_eq!(page.evaluate(go), true, "another gallery is none");
        page.look("finish", axe);
        let name = served.status()["gallery"].as_str().unwrap().to_owned();
        page.enter("#confirm", &name);
    });
    page.expect_as(&served);
    assert_eq!(served.status()["phase"], "finished");
    page.look("end", axe);
    assert_eq!(page.faults, [""; 0]);
    drop(page);
    served.end();
}

#[test]
fn pictures_of_items_are_shown_and_asked_by() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("demo");
    let served = Served::start(&folder);
    let path = "/v1/items/digit-0000/picture";
    let picture = served.ask("GET", path, None);
    let header = |name: &str| picture.headers[name].to_str().unwrap();
    assert_eq!((picture.status, header("content-type")), (200, "image/png"));
    assert_eq!((header("x-content-type-options"), header("cache-control")), ("nosniff", "no-store"));
    assert_eq!(picture.bytes, fs_err::read(folder.join("images/digit-0000.png")).unwrap());
    let search = |items: Value| served.ask("POST", "/v1/search", Some(&json!({ "items": items, "k": 1 })));
    let answer: Value = serde_json::from_slice(&search(json!(["digit-0000", "digit-0005"])).bytes).unwrap();
    let nearest = [0_usize, 1].map(|query| answer["results"][query][0]["id"].clone());
    assert_eq!(nearest, ["digit-0000", "digit-0005"], "{answer}");
    assert_eq!(search(json!(["gone"])).status, 422);
    // A file may begin as a picture does, and be none.
    fs_err::write(folder.join("images/digit-0005.png"), b"\x89PNG\r\n\x1a\nand no more").unwrap();
    let damaged = search(json!(["digit-0000", "digit-0005"]));
    let text = String::from_utf8(damaged.bytes).unwrap();
    let names = "items cannot be \\\"digit-0005\\\"; expected one that its encoder takes: the encoder's folder/digit-0005.png is no image";
    assert!(damaged.status == 422 && text.contains(names), "{text}");
    // Files beside the images are no item's pictures, whatever somebody writes as a source.
    fs_err::copy(folder.join("images/digit-0000.png"), folder.join("beside.png")).unwrap();
    for source in ["../beside.png", "../rehang.toml", "gone.png", "file:///etc/passwd"] {
        let item = json!({ "source": source, "vectors": { "digits-old": vec![1.0; 8] } });
        assert_eq!(served.ask("PUT", "/v1/items/digit-0000", Some(&item)).status, 200);
        assert_eq!(served.ask("GET", path, None).status, 404, "{source}");
        assert_eq!(search(json!(["digit-0000"])).status, 422, "{source}");
    }
    served.end();
}
