// Dashboard of a gallery's upgrade: shows what the service's API says, and asks for the verbs of an upgrade.
// All text of the API goes into the page as text, never as markup. The words for verbs stand in index.html.

const POLL_MS = 5000;
const RATE_OVER_MS = 60_000;
// Time after which an item that became native says no more that somebody works.
const WORKS_FOR_MS = 10_000;
const MAPPED = ["pairs", "fit", "report", "start", "switch", "run", "finish"];
const PLAIN = ["start", "run", "switch", "finish"];
// Items of each list that is compared.
const LISTED = 5;
// Source that names a file of a picture, and no address of another machine.
const PICTURE = /^(file:\/\/|(?!\w+:\/\/))[^\n]+\.(png|jpe?g|webp|gif)$/i;

const state = {
  me: null, status: null, operations: null, source: null, live: false, samples: [], grewAt: -Infinity, trial: [],
  unpictured: new Set(),
};
// How a backfill ended, by the word of its result, where that says more than that it is done.
const ENDINGS = {
  paused: "paused", stopped: "stopped", interrupted: "interrupted", "rolled-back": "rolled back",
  "spent-budget": "budget used", "encoder-budget-spent": "budget of the encoder spent",
};

const byId = (id) => document.getElementById(id);
const write = (id, text) => { if (byId(id).textContent !== text) byId(id).textContent = text; };
const count = (value) => value.toLocaleString("en");
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const time = (ms) => new Date(ms).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const words = (name) => name.replaceAll("-", " ");
const left = ({ counts }) => Math.max(0, counts.items - counts.native - counts.without_source - counts.failed);
const isNewServing = () => state.status?.serves_new === true;
const isRunning = (operation) => operation?.state === "running";
const lastOf = (verb) => state.operations.find((operation) => operation.verb === verb);
const mayOperate = () => state.me?.role === "operate";
const verbOf = (verb) => byId(`verb-${verb}`);
const change = (path, body, key) => ask(path, "POST", body, key).then(hideProblem).then(poll).catch(showProblem);
const showPassing = (problem) => showProblem(problem, true);
const sentences = (...parts) => parts.filter(Boolean).join(". ");
const problemText = (problem) => typeof problem === "string" ? problem : sentences(problem?.detail, problem?.remedy);

function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172_800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86_400).toFixed(1)} days`;
}

// Makes an element. Strings among the children become text.
function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value != null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter(Boolean));
  return made;
}

// Id of an item, which a click selects whole: it can be asked for, on this page and elsewhere.
const idNode = (id) => node("code", { class: "id" }, id);

// Gives an element these children. What is equal stays as it is, so that no click and no focus is lost.
function fill(parent, children) {
  children.forEach((child, at) => {
    const old = parent.childNodes[at];
    if (!old) parent.append(child);
    else if (old.isEqualNode(child)) return;
    else if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== child.nodeName) old.replaceWith(child);
    else {
      for (const name of old.getAttributeNames()) if (!child.hasAttribute(name)) old.removeAttribute(name);
      for (const { name, value } of child.attributes) old.setAttribute(name, value);
      fill(old, [...child.childNodes]);
    }
  });
  while (parent.childNodes.length > children.length) parent.lastChild.remove();
}

// Fills a table with lists of cells, each a text or an element. The first cell heads its row; `numbers` are the
// places of the columns of numbers. `none` is said where there is no row.
function rows(id, lists, numbers, none) {
  const cell = (content, at) =>
    node(at ? "td" : "th", { scope: !at && "row", class: numbers.includes(at) && "number" }, content);
  fill(byId(id).tBodies[0], lists.map((cells) => node("tr", {}, ...cells.map(cell))));
  write(`${id}-none`, lists.length ? "" : none);
}

// Sends a request; throws the problem details of an answer that is none.
async function ask(path, method = "GET", body = undefined, key = null) {
  const headers = { Accept: "application/json" };
  if (body) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  if (method !== "GET" && state.me?.csrf) headers["X-Rehang-Csrf"] = state.me.csrf;
  const response = await fetch(path, { method, headers, body: body && JSON.stringify(body) }).catch(() => {
    throw { title: "No answer", detail: "The service cannot be reached. This page asks again every 5 seconds." };
  });
  const answer = await response.json().catch(() => null);
  if (response.ok) return answer;
  throw { title: response.statusText, ...answer, status: response.status };
}

// Shows a problem of the API. One that is passing goes away by itself, once the service answers again.
function showProblem(problem, isPassing = false) {
  // Many wrong tokens came from here; a right one is taken all the same.
  if (problem.status === 401 || (problem.status === 429 && !state.me)) return showSignIn();
  state.isPassing = isPassing;
  const parts = [problem.title ?? "Problem", problem.detail ?? problem.message ?? "", problem.remedy ?? ""];
  ["title", "detail", "remedy"].forEach((part, at) => write(`problem-${part}`, parts[at]));
  byId("problem").hidden = false;
  return write("said", sentences(...parts));
}

function hideProblem() {
  state.isPassing = false;
  byId("problem").hidden = true;
  write("said", "");
}

function showSignIn() {
  state.source?.close();
  state.me = state.operations = state.source = null;
  state.live = false;
  byId("board").hidden = byId("session").hidden = true;
  if (!byId("sign-in").hidden) return;
  byId("sign-in").hidden = false;
  byId("token").focus();
}

function signIn(event) {
  event.preventDefault();
  const refused = (problem) => showProblem(problem.status === 401 ? { title: "This token is not known." } : problem);
  ask("/session", "POST", { token: byId("token").value }).then(hideProblem).then(begin).catch(refused);
}

async function begin() {
  state.me = await ask("/v1/me");
  byId("sign-in").hidden = true;
  byId("sign-in-form").reset();
  byId("board").hidden = byId("session").hidden = false;
  byId("sign-out").hidden = !state.me.csrf;
  write("who", `${state.me.name} (${state.me.role}) ·`);
  write("role", mayOperate() ? "" : "Your token may look. The verbs need a token with the role operate.");
  await tick();
}

function listen() {
  state.source = new EventSource("/v1/events");
  state.source.onopen = () => { state.live = true; draw(); };
  state.source.onerror = () => { state.live = false; draw(); };
  state.source.addEventListener("status", ({ data }) => takeStatus(JSON.parse(data)));
  state.source.addEventListener("operation", ({ data }) => {
    const operation = JSON.parse(data);
    const known = state.operations.find(({ id }) => id === operation.id);
    // How far it was may be told after its end.
    if (known && !isRunning(known) && isRunning(operation)) return;
    takeOperations([operation, ...state.operations.filter(({ id }) => id !== operation.id)]);
    if (isRunning(operation)) draw();
    else poll().catch(showPassing);
  });
}

async function poll() {
  takeOperations(await ask("/v1/operations"));
  takeStatus(await ask("/v1/status").catch((problem) => {
    if (problem.status === 404) return null;
    throw problem;
  }));
  if (state.isPassing) hideProblem();
}

// Asks again where no events come, and while an operation runs, whose end may have been missed. Otherwise the rate
// falls while no event comes.
async function tick() {
  if (!state.me) return byId("sign-in").hidden && begin();
  if (state.live && state.status && !state.operations.some(isRunning)) return takeStatus(state.status);
  await poll();
  return (state.source?.readyState ?? EventSource.CLOSED) === EventSource.CLOSED && listen();
}

function takeStatus(status) {
  const before = state.status;
  state.status = status;
  if (before && status && before.phase !== status.phase) write("said", `The phase is ${words(status.phase)} now.`);
  const now = performance.now();
  state.samples = state.samples.filter(({ at }) => status && now - at < RATE_OVER_MS);
  if (status) state.samples.push({ at: now, native: status.counts.native });
  if (before && status && status.counts.native > before.counts.native) state.grewAt = now;
  draw();
}

// Takes operations in, and shows the problem of one that ended since.
function takeOperations(operations) {
  const known = state.operations && new Map(state.operations.map((operation) => [operation.id, operation.state]));
  state.operations = operations.sort((a, b) => b.began_ms - a.began_ms);
  const isNews = ({ id, problem, state: now }) => problem && now !== "running" && known.get(id) !== now;
  const { verb, problem, state: how } = (known && operations.find(isNews)) ?? {};
  if (!problem) return;
  const detail = problem.detail ?? problemText(problem);
  showProblem({ title: `${verbOf(verb)?.dataset.name ?? verb}: ${how}`, detail, remedy: problem.remedy });
}

// Gives the items a second that became native lately; null before that can be said.
function rate() {
  const [first, last] = [state.samples[0], state.samples.at(-1)];
  const seconds = (last?.at - first?.at) / 1000;
  return seconds > 1.5 ? Math.max(0, last.native - first.native) / seconds : null;
}

// Whether somebody embeds: items are leased, or some became native a moment ago and no pause came since.
function isWorked({ at_work: workers, request }) {
  return workers.length > 0 || (request === "run" && performance.now() - state.grewAt < WORKS_FOR_MS);
}

// Says how an operation stands or ended.
function stateText({ state: how, result }) {
  const ending = ENDINGS[result?.ending ?? result?.enough?.ended];
  if (how !== "done" || !ending) return how;
  const items = result.done?.native ?? result.steps.reduce((sum, { embedded }) => sum + embedded, 0);
  return `${ending} after ${count(items)} ${items === 1 ? "item" : "items"}`;
}

function draw() {
  const { status } = state;
  for (const section of document.querySelectorAll("[data-needs]")) section.hidden = !status;
  write("link", state.live ? "live" : "asks every 5 s");
  write("gallery", status?.gallery ?? state.me?.gallery ?? "");
  document.title = status ? `${status.gallery} ${percent(status.fraction)} · rehang` : "rehang";
  drawSteps(status);
  drawOperations();
  drawTrail();
  if (!status) {
    write("where", "No upgrade is under way.");
    write("verdict", "Pairs, fit, report and start begin one. Searches stay as they are until a switch.");
    return fill(byId("findings"), []);
  }
  drawVerdict(status);
  drawItems(status);
  drawHealth(status);
  drawWorkers(status);
  return drawFailures(status);
}

function drawVerdict(status) {
  const { serving, bridge, counts, spent, warnings = [], forecast } = status;
  const both = { fused: ", by queries of both models", either: ", by queries of both models where both come" };
  const way = bridge
    ? ` over a bridge, where ${percent(bridge.share)} of each query is the new model’s`
    : (isNewServing() && both[status.serving_as]) || "";
  write("where", `Searches go to ${serving ?? "nothing"}${way}.`);
  write("verdict", status.verdict ?? "");
  const findings = [...warnings, ...(forecast?.warnings ?? [])];
  fill(byId("findings"), findings.map((text) => node("p", { class: "warning" }, text)));
  const [speed, waiting, works] = [rate(), left(status), isWorked(status)];
  const numbers = [
    ["Native", percent(status.fraction), `${count(counts.native)} of ${count(counts.items)} items`],
    ["Rate", speed === null ? "–" : `${speed.toFixed(1)}/s`, "over the last minute"],
    ["Time left", works && speed ? duration(waiting / speed) : "–",
      `${waiting && !works ? "nobody works, " : ""}${count(waiting)} items to embed`],
    ["Spent", spent.money.toFixed(4), `${count(spent.tokens)} tokens, all runs`],
    ["Phase", words(status.phase), { run: "runs are allowed", pause: "paused", stop: "stopped" }[status.request]],
  ];
  fill(byId("numbers"), numbers.map(([name, value, more]) =>
    node("div", {}, node("dt", {}, name), node("dd", { class: "value" }, value), node("dd", {}, more))));
}

// Whether a verb can be asked for, by the phases of its template; the service says the last word.
function isOffered(verb) {
  const { phases, request } = verbOf(verb).dataset;
  let phase = state.status?.phase ?? "none";
  if (isNewServing() && phase === "filled") phase = "switched";
  else if (isNewServing() && ["rolled-back", "abandoned"].includes(phase)) phase = "rolling-back";
  else if (phase === "finished" && ["interrupted", "cancelled"].includes(lastOf("finish")?.state)) phase = "finishing";
  const isTime = phases.split(" ").includes(phase) || state.status?.next?.step === verb;
  const isAsked = !request || request.split(" ").includes(state.status?.request ?? "run");
  return isTime && isAsked && !isRunning(lastOf(verb));
}

function drawSteps(status) {
  const steps = status?.plain ? PLAIN : status ? MAPPED : MAPPED.slice(0, 4);
  const { step, halt } = status?.next ?? {};
  const next = step === "backfill" && status.plain ? "run" : step ?? halt?.why;
  const sentence = next && byId("nexts").content.querySelector(`[data-next="${CSS.escape(next)}"]`);
  write("next", sentence?.textContent ?? "");
  // A pause holds the step that embeds next.
  const held = status?.phase === "sampling" ? "pairs" : isNewServing() || status?.plain ? "run" : "switch";
  const at = step === "resume" ? held : sentence?.dataset.at;
  const place = status?.phase === "finished" && halt ? steps.length : steps.indexOf(at);
  const button = (verb) => mayOperate() && node("button",
    { type: "button", "data-verb": verb, disabled: !isOffered(verb) }, `${verbOf(verb).dataset.name}…`);
  fill(byId("steps"), steps.map((verb, index) => {
    const { name, brief } = verbOf(verb).dataset;
    const last = lastOf(verb);
    const isDone = index < place || (!status && last?.state === "done");
    const title = node("strong", {}, name, isDone && node("span", { class: "unseen" }, " (done)"));
    const said = last && node("small", {}, `${stateText(last)}, ${time(last.ended_ms ?? last.began_ms)}`);
    return node("li", { class: isDone && "done", "aria-current": index === place && "step" },
      node("div", {}, title, node("small", {}, brief), said), (!isDone || isOffered(verb)) && button(verb));
  }));
  fill(byId("controls"), ["pause", "resume", "refit", "rollback"].map(button).filter(Boolean));
}

function drawItems({ counts, forecast, fraction, lag, not_found: lost }) {
  const { items, native, adapted, lacking, failed, without_source: without } = counts;
  // Items that failed are adapted or lack a vector: the bar takes them out of these.
  const alsoAdapted = Math.min(failed, adapted);
  const alsoLacking = Math.min(failed - alsoAdapted, lacking);
  const parts = { native, adapted: adapted - alsoAdapted, failed, lacking: lacking - alsoLacking };
  for (const [name, value] of Object.entries(parts)) {
    const part = byId("bar").querySelector(`.${name}`);
    part.hidden = !value;
    part.style.flexGrow = value / items;
  }
  byId("bar").setAttribute("aria-label", `Of ${count(items)} items ${count(native)} are native, ` +
    `${count(adapted)} adapted, ${count(lacking)} lack a vector, ${count(failed)} failed.`);
  const more = [["Without a source", without], ["To catch up with", lag], ["Not found by searches", lost ?? 0]];
  const terms = [["Native", native, "native"], ["Adapted", adapted, "adapted"], ["Lacking", lacking, "lacking"],
    ["Failed", failed, "failed"], ...more.filter(([, value]) => value > 0)];
  fill(byId("counts"), terms.map(([name, value, kind]) =>
    node("div", { class: kind }, node("dt", {}, name), node("dd", {}, count(value)))));
  const image = byId("curve-image");
  if (!forecast) return image.removeAttribute("src");
  const { metric, start, curve_at: points, do_nothing: nothing } = forecast;
  const source = `/v1/curve.svg?native=${Math.round(100 * fraction)}&start=${start}`;
  if (image.getAttribute("src") !== source) image.src = source;
  const last = nothing === null ? "" : `, ${nothing.toFixed(1)} by doing nothing`;
  const end = points.at(-1)[1].toFixed(1);
  write("curve-title", `Forecast of ${metric}: ${start.toFixed(1)} at the switch, ${end} at the end${last}.`);
  image.alt = `Curve of ${metric} by the share of native items, which is ${percent(fraction)} now.`;
}

function drawHealth({ sigma, refits = [], refitting }) {
  const list = sigma ? [
    ["Mean σ², the squared error that the map expects", sigma.mean_sigma2.toPrecision(3)],
    ["Mean true squared error", sigma.mean_squared_error.toPrecision(3)],
    ["Kendall τ between the two", sigma.tau === null ? "–" : sigma.tau.toFixed(2)],
    ["Items compared", count(sigma.items)],
  ] : [];
  rows("sigma", list, [1], "Nothing can be said before 50 items are re-embedded.");
  byId("alarm").hidden = !sigma?.alarm;
  const taken = refits.filter((refit) => refit.taken).length;
  const now = refitting ? `A refit is ${refitting.stage}, for ${duration(refitting.seconds)} now. ` : "";
  const times = taken === 1 ? "once" : `${taken} times`;
  write("refits", now + (taken ? `The map was fitted again on native items ${times}.` : ""));
}

function drawWorkers({ at_work: workers, follower }) {
  const list = workers.map(({ worker, items, left_ms: ms }) => [worker, count(items), duration(ms / 1000)]);
  rows("workers", list, [1, 2], "No worker is re-embedding at this moment.");
  const since = (ms) => duration(Math.max(0, Date.now() - ms) / 1000);
  const waits = follower?.lacking_since_ms ? ` Items have been waiting for ${since(follower.lacking_since_ms)}.` : "";
  write("follower", follower
    ? `Follower ${follower.worker} was last here ${since(follower.at_ms)} ago.${waits}`
    : "No follower adapts what applications write.");
}

function drawFailures({ counts: { failed } }) {
  const again = { type: "button", "data-verb": "resume", "data-retry": true };
  fill(byId("retry"), failed && mayOperate() ? [node("button", again, "Try failed items again…")] : []);
  if (byId("failures").dataset.failed === String(failed)) return;
  byId("failures").dataset.failed = failed;
  (failed ? ask("/v1/failures?limit=100") : Promise.resolve([])).then((failures) => {
    const reasons = Object.entries(Object.groupBy(failures, ({ reason }) => reason));
    const cells = reasons.sort(([, a], [, b]) => b.length - a.length).map(([reason, items]) =>
      [reason, count(items.length), node("div", {}, ...items.slice(0, 3).flatMap(({ id }) => [idNode(id), " "]))]);
    rows("failures", cells, [1], "No item failed.");
    const some = failed > failures.length ? `The first ${failures.length} of ${count(failed)} failed` : "Failed";
    write("failures-caption", `${some} items by reason`);
  }).catch(showPassing);
}

function drawOperations() {
  rows("operations", state.operations.slice(0, 20).map((operation) => {
    const { id, verb, problem, done, total, stage } = operation;
    const runs = isRunning(operation);
    const counted = total > 0 ? `${count(done)} of ${count(total)}` : done > 0 && count(done);
    const how = node("div", {}, stateText(operation),
      runs && total > 0 && node("progress", { max: total, value: done, "aria-label": `Progress of ${verb}` }),
      node("small", {}, [stage, counted].filter(Boolean).join(": ")),
      problem && node("small", {}, problemText(problem)));
    const cancel = runs && mayOperate() &&
      node("button", { type: "button", "data-cancel": id, "aria-label": `Cancel ${verb}` }, "Cancel");
    return [verb, how, cancel, time(operation.began_ms), operation.asked_by];
  }), [], "Nothing was asked of this service yet.");
}

// Reads the trail again where something was done since.
function drawTrail() {
  const { phase, request, serving } = state.status ?? {};
  const seen = JSON.stringify([phase, request, serving, state.operations.map((operation) => operation.state)]);
  if (byId("trail").dataset.seen === seen) return;
  byId("trail").dataset.seen = seen;
  const text = (value) => (value == null ? "–" : typeof value === "string" ? value : JSON.stringify(value));
  const cells = ({ at_ms: ms, who, what, before, after, problem }) =>
    [time(ms), who, what, text(before), text(after), problemText(problem)];
  const fillIn = (trail) => rows("trail", trail.map(cells), [], "Nothing was changed yet.");
  ask("/v1/trail?limit=50").then(fillIn).catch(showPassing);
}

function openDialog(verb, isRetry) {
  const template = verbOf(verb);
  // One key for one opening: what is sent twice is done once.
  const key = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16)).join("-");
  state.asked = { verb, key };
  write("dialog-title", isRetry ? "Try failed items again" : template.dataset.name);
  write("dialog-go", template.dataset.name);
  byId("dialog-body").replaceChildren(template.content.cloneNode(true));
  const said = { ...state.status, left: state.status && count(left(state.status)) };
  for (const place of byId("dialog-body").querySelectorAll("[data-say]")) place.textContent = said[place.dataset.say];
  if (isRetry) byId("dialog-body").querySelector("[name=retry_failed]").checked = true;
  allowGo();
  byId("dialog").returnValue = "";
  byId("dialog").showModal();
}

// Finish needs the gallery's name.
function allowGo() {
  const confirm = byId("confirm");
  byId("dialog-go").disabled = confirm !== null && confirm.value.trim() !== state.status.gallery;
}

function carryOut() {
  if (byId("dialog").returnValue !== "go") return;
  const body = {};
  for (const { name, type, value, checked, dataset } of byId("dialog-body").querySelectorAll("[name]")) {
    if (type === "checkbox" && checked) body[name] = true;
    else if (type === "number" && value !== "") body[name] = dataset.unit ? value + dataset.unit : Number(value);
    else if (type === "select-one" && value !== "") body[name] = value;
  }
  change(`/v1/upgrade/${state.asked.verb}`, body, state.asked.key);
}

async function compare(event) {
  event.preventDefault();
  const box = byId("queries");
  const lines = box.value.split("\n").map((line) => line.trim()).filter(Boolean);
  box.setCustomValidity(lines.length > 10 ? "Ten queries at most." : lines.length ? "" : "Give a query.");
  if (!box.reportValidity()) return;
  const isByItem = byId("by-item").checked;
  const queries = { [isByItem ? "items" : "texts"]: lines };
  const { results, before } = await ask("/v1/search", "POST", { ...queries, before: true, k: LISTED + isByItem });
  if (!isNewServing()) {
    throw { title: "Nothing to compare", detail: "Searches go to the old model: both lists would be its own. Compare after a switch." };
  }
  if (!before) throw { title: "Nothing to compare", detail: "The service gave no answer of the old model." };
  const ids = (items) => items.map(({ id }) => id).join("\n");
  state.trial = lines.map((query, at) => {
    // An item that asks finds itself.
    const shown = (items) => items.filter(({ id }) => !isByItem || id !== query).slice(0, LISTED);
    const [newItems, oldItems] = [shown(results[at]), shown(before[at])];
    const lists = [{ model: "new", items: newItems }, { model: "old", items: oldItems }];
    const isSame = ids(newItems) === ids(oldItems);
    const sides = Math.random() < 0.5 ? lists : lists.reverse();
    return { query, isByItem, isSame, choice: isSame ? "equal" : null, lists: sides };
  });
  drawTrial();
  byId("judged").focus();
}

const hasPicture = ({ id, source }) => PICTURE.test(source) && !state.unpictured.has(id);
// What a picture shows is said by the name beside it.
const picture = (id) => node("img", { src: `/v1/items/${encodeURIComponent(id)}/picture`, alt: "", "data-id": id });

// Draws the lists to judge. Which model gave which is neither shown nor in the page before all are judged.
function drawTrial() {
  const waiting = state.trial.filter(({ choice }) => choice === null).length;
  const better = (who) => state.trial.filter(({ choice, lists }) => (lists[choice]?.model ?? choice) === who).length;
  write("judged", waiting
    ? `${waiting} of ${state.trial.length} queries wait for your judgement.`
    : `New model better: ${better("new")}. Old model better: ${better("old")}. Equal: ${better("equal")}.`);
  fill(byId("trial"), state.trial.map(({ query, isByItem, isSame, lists, choice: chosen }, at) => {
    const button = (choice, text, more) => node("button", {
      type: "button", disabled: !waiting, "aria-pressed": `${chosen === choice}`, "data-query": at, "data-choice": choice,
    }, text, node("span", { class: "unseen" }, more));
    const sides = lists.map(({ model, items }, side) => node("section", {},
      node("h4", {}, waiting ? "AB"[side] : `${"AB"[side]}: ${model} model`),
      node("ol", {}, ...items.map((item) =>
        node("li", {}, hasPicture(item) && picture(item.id), item.source?.slice(0, 300), " ", idNode(item.id)))),
      !isSame && button(String(side), "This list is better", ` (${"AB"[side]}, ${query})`)));
    const title = node("h3", {}, isByItem && picture(query), isByItem ? idNode(query) : query);
    return node("article", {}, title, node("div", { class: "sides" }, ...sides),
      isSame ? "Both lists are the same, which counts as equal." : button("equal", "Equal", ` (${query})`));
  }));
}

document.addEventListener("click", ({ target }) => {
  const { verb, retry, cancel, query, choice } = target.closest("button")?.dataset ?? {};
  if (verb) openDialog(verb, retry !== undefined);
  if (cancel) change(`/v1/operations/${encodeURIComponent(cancel)}/cancel`);
  if (!query) return;
  state.trial[query].choice = choice;
  drawTrial();
  if (!byId("trial").querySelector("[data-choice]:enabled")) byId("judged").focus();
});
byId("dialog-cancel").addEventListener("click", () => byId("dialog").close());
byId("dialog-body").addEventListener("input", allowGo);
byId("dialog").addEventListener("close", carryOut);
byId("problem-close").addEventListener("click", hideProblem);
byId("queries").addEventListener("input", () => byId("queries").setCustomValidity(""));
byId("compare").addEventListener("submit", (event) => compare(event).catch(showProblem));
// The errors of images stay with them, unless they are caught on the way.
byId("trial").addEventListener("error", ({ target: { dataset } }) => {
  state.unpictured.add(dataset.id);
  drawTrial();
}, true);
byId("curve-image").addEventListener("load", () => { byId("curve").hidden = false; });
byId("curve-image").addEventListener("error", () => { byId("curve").hidden = true; });
byId("sign-in-form").addEventListener("submit", signIn);
byId("sign-out").addEventListener("click", () => ask("/session", "DELETE").then(() => location.reload(), showProblem));

setInterval(() => tick().catch(showPassing), POLL_MS);
begin().catch(showPassing);
