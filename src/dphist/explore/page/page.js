// Fields in, certified numbers out. All numbers, sentences and charts come from the server.
"use strict";

const DELAY = 80; // milliseconds without a change before a plan is requested
const REST = 500; // and before the slower answers are
const SLOW = 300; // milliseconds after which a request shows a spinner
const NAMES = { gshm: "Gaussian (GSHM)", csh: "correlated Gaussian (CSH)", "top-k": "top-k with its offset", laplace: "Laplace" };
const byId = (id) => document.getElementById(id);
const PLAN = ["plan", "code-section", "curve-section", "limit-section", "table-section", "figure-section", "trial-section"];
const TRIAL = ["trial-section"];
let csv = "";
let current = new AbortController(); // of the newest change of the plan
let currentTrial = new AbortController(); // of the newest change of plan or counts

// ---- requests -----------------------------------------------------------------------------------------------

const wait = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

// The answer, or null where the values have changed since or the request was refused.
async function ask(kind, signal) {
  let found;
  const data = Object.fromEntries([...new FormData(byId("request")), ...new FormData(byId("population"))]);
  try {
    const response = await fetch(`api/${kind}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(kind === "trial" ? { ...data, csv } : data), signal,
    });
    found = await response.json();
  } catch (error) {
    if (signal.aborted) return null;
    found = { error: "The server does not answer. Run dphist explore again.", field: null };
  }
  if (signal.aborted) return null;
  if (!found.error) return found;
  clearProblems();
  showProblem(found.field, found.error);
  if (kind === "trial") byId("outcome").textContent = `No trial release: ${found.error}.`;
  else setState("no plan", "wrong");
  return null;
}

async function update() {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  markStale(PLAN);
  currentTrial.abort();
  await wait(DELAY);
  if (signal.aborted) return;
  const slow = setTimeout(() => setState("computing…", "busy"), SLOW);
  signal.addEventListener("abort", () => clearTimeout(slow));
  const plan = await ask("plan", signal);
  clearTimeout(slow);
  if (!plan) return;
  clearProblems();
  showPlan(plan);
  const curve = await ask("curve", signal);
  if (!curve) return;
  showChart("curve", curve);
  const limit = await ask("limit", signal);
  if (!limit) return;
  byId("limit-section").hidden = !limit.svg;
  if (limit.svg) showChart("limit", limit);
  else markFresh("limit-section");
  await updateTrial();
  await wait(REST);
  if (signal.aborted) return;
  const table = await ask("table", signal);
  if (table) showTable(table);
  const figure = table && await ask("figure", signal);
  if (figure) showChart("figure", figure);
}

async function updateTrial() {
  currentTrial.abort();
  currentTrial = new AbortController();
  const { signal } = currentTrial;
  markStale(TRIAL);
  await wait(DELAY);
  if (signal.aborted) return;
  const trial = await ask("trial", signal);
  if (!trial) return;
  clearProblems();
  showTrial(trial);
}

// ---- what is shown ------------------------------------------------------------------------------------------

// Until a new answer is shown, the old one is pale.
function markStale(sections) {
  for (const id of sections) byId(id).classList.add("stale");
  byId("copied").textContent = "";
  if (sections === PLAN) setState("", "");
}

function markFresh(id) {
  byId(id).classList.remove("stale");
}

function setState(words, kind) {
  byId("state").textContent = words;
  byId("state").className = `state ${kind}`;
  if (words) byId("summary").textContent = words;
}

function showProblem(field, sentence) {
  const input = field && byId(field);
  const place = input ? document.querySelector(`[data-field="${field}"]`) : null;
  if (!place) {
    byId("problem").hidden = false;
    byId("problem").textContent = sentence;
    return;
  }
  const note = byId(`${field}-error`) || element("p", "");
  note.id = `${field}-error`;
  note.className = "error";
  note.setAttribute("role", "alert");
  note.textContent = sentence;
  place.append(note);
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-errormessage", note.id);
}

function clearProblems() {
  byId("problem").hidden = true;
  document.querySelectorAll("[data-field] .error").forEach((note) => note.remove());
  document.querySelectorAll("[aria-invalid]").forEach((input) => { input.removeAttribute("aria-invalid"); input.removeAttribute("aria-errormessage"); });
}

function format(number) {
  const size = Math.abs(number);
  if (size !== 0 && size < 1e-3) return number.toExponential(4).replace(/\.?0+e/, "e");
  return size >= 1000 ? number.toLocaleString("en", { maximumFractionDigits: 1 }) : String(Number(number.toPrecision(6)));
}

function element(name, words) {
  const node = document.createElement(name);
  node.textContent = words;
  return node;
}

function fillRows(body, rows, cell = "td") {
  body.replaceChildren(...rows.map((cells) => {
    const line = document.createElement("tr");
    line.append(...cells.map((words) => element(cell, words)));
    line.querySelectorAll("th").forEach((head) => head.setAttribute("scope", "col"));
    return line;
  }));
}

function showPlan({ plan, rows, advice, recipes }) {
  for (const name of ["threshold", "total_noise", "sigma", "sigma_shared", "delta_certified"]) {
    byId(name).textContent = format(plan[name]);
    byId(name).dataset.value = String(plan[name]);
  }
  byId("mechanism_chosen").textContent = NAMES[plan.mechanism] || plan.mechanism;
  byId("mechanism_chosen").dataset.value = plan.mechanism;
  byId("advice").replaceChildren(...advice.map((sentence) => element("p", sentence)));
  fillRows(byId("all").querySelector("tbody"), rows);
  for (const name of ["command", "python", "release_command", "release_python"]) {
    byId(`${name}-box`).hidden = !recipes[name];
    byId(name).textContent = recipes[name] || "";
  }
  byId("release-hint").textContent = recipes.release_command
    ? "Replace events.parquet, user_id and item with your own file and columns."
    : "Releases need discrete noise: choose it to see the commands of a release.";
  setState("certified", "certified");
  byId("summary").textContent = `Threshold ${format(plan.threshold)} · noise ${format(plan.total_noise)} · certified`;
  markFresh("plan");
  markFresh("code-section");
}

// The parser makes an inert document: nothing in it runs or loads.
function showChart(name, { svg, words }) {
  byId(name).replaceChildren(new DOMParser().parseFromString(svg, "text/html").body.firstElementChild);
  byId(`${name}-words`).textContent = words;
  if (name !== "largest") markFresh(`${name}-section`);
}

function showTable({ columns, rows, thresholds, note }) {
  fillRows(byId("comparison").querySelector("thead"), [columns], "th");
  fillRows(byId("comparison").querySelector("tbody"), rows);
  const least = Math.min(...thresholds);
  [...byId("comparison").querySelector("tbody").rows].forEach((row, place) => row.classList.toggle("best", thresholds[place] === least));
  byId("table-note").textContent = note;
  markFresh("table-section");
}

function showTrial(found) {
  byId("outcome").textContent = found.sentences.join(" ");
  byId("outcome").dataset.released = String(found.released);
  showChart("largest", found);
  const table = byId("largest-table");
  fillRows(table.querySelector("thead"), [["item", "true count", "released count"]], "th");
  fillRows(table.querySelector("tbody"), found.top.map((one) =>
    [one.item, format(one.true), one.released === null ? "not released" : format(one.released)]));
  markFresh("trial-section");
}

// ---- fields -------------------------------------------------------------------------------------------------

function fromSlider({ value, max, dataset }) {
  const first = Number(dataset.first), last = Number(dataset.last), part = value / max;
  const number = "linear" in dataset ? first + (last - first) * part : first * (last / first) ** part;
  const rounded = Number(number.toPrecision(Number(dataset.digits)));
  return String("whole" in dataset ? Math.round(rounded) : rounded);
}

function toSlider(slider) {
  const { first, last } = slider.dataset, field = byId(slider.dataset.for), value = Number(field.value);
  const part = "linear" in slider.dataset ? (value - first) / (last - first) : Math.log(value / first) / Math.log(last / first);
  slider.value = field.value.trim() === "" || Number.isNaN(part) ? 0 : Math.round(Math.min(1, Math.max(0, part)) * slider.max);
  slider.setAttribute("aria-valuetext", field.value || field.placeholder);
}

// Top-k and a bound on the items exclude each other: the one that is entered last stays.
function clearOther(name) {
  if (name === "top" && byId("top").value) { byId("max_nonzero").value = ""; byId("gamma").value = ""; }
  if (name === "max_nonzero" && byId("max_nonzero").value) byId("top").value = "";
}

function connect(form, changed) {
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (target.id === "csv") return;
    const name = target.dataset.for || target.id;
    if (target.dataset.for) byId(name).value = fromSlider(target);
    clearOther(name);
    document.querySelectorAll("input[type=range]").forEach((slider) => { if (slider !== target) toSlider(slider); });
    if (target.dataset.for) target.setAttribute("aria-valuetext", byId(name).value);
    changed();
  });
}

async function takeFile() {
  const [file] = byId("csv").files;
  if (!file) return;
  if (file.size > 5 * 1024 * 1024) { byId("csv").value = ""; showProblem("csv", "the file is larger than 5 MB"); return; }
  csv = await file.text() || "\n";
  byId("forget").hidden = false;
  updateTrial();
}

function forgetFile() {
  csv = "";
  byId("csv").value = "";
  byId("forget").hidden = true;
  updateTrial();
}

async function copy(name) {
  if (byId("code-section").classList.contains("stale")) {
    byId("copied").textContent = "Not copied: the plan of the new values is not there yet.";
    return;
  }
  try {
    await navigator.clipboard.writeText(byId(name).textContent);
    byId("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(byId(name));
    byId("copied").textContent = "Selected: press Ctrl-C to copy.";
  }
}

connect(byId("request"), update);
connect(byId("population"), updateTrial);
byId("csv").addEventListener("change", takeFile);
byId("forget").addEventListener("click", forgetFile);
document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(button.dataset.copy)));
document.querySelectorAll("input[type=range]").forEach(toSlider);
update();
