// Sends the fields to the server and shows its answers. All numbers on the screen belong to one answer.
"use strict";

const DELAY = 30; // milliseconds without a change before an answer is requested
const TYPING = 250; // the same while a field is typed in
const SLOW = 300; // milliseconds after which a request shows a spinner
const byId = (id) => document.getElementById(id);
const form = byId("request"), results = byId("results"), more = byId("more");
const sliders = [...document.querySelectorAll("input[type=range]")];
let csv = "";
let newest = new AbortController(); // of the newest request: answers to older ones are dropped

// ---- requests -----------------------------------------------------------------------------------------------

const wait = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

// The answer; null if it is out of date or an error, which is shown.
async function ask(kind, signal) {
  let found;
  try {
    const response = await fetch(`api/${kind}`, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...Object.fromEntries(new FormData(form)), csv }), signal,
    });
    found = await response.json();
  } catch (error) {
    found = { error: "The server does not answer. Run dphist explore again.", field: null };
  }
  if (signal.aborted) return null;
  if (!found.error) return found;
  showProblem(found.field, found.error);
  setState("no answer for these values", "wrong");
  return null;
}

async function update(delay = DELAY) {
  newest.abort();
  newest = new AbortController();
  const { signal } = newest;
  markStale(results, true);
  markStale(more, true);
  byId("copied").textContent = "";
  saveState();
  await wait(delay);
  if (signal.aborted) return;
  const slow = setTimeout(() => setState("computing…", "busy"), SLOW);
  signal.addEventListener("abort", () => clearTimeout(slow));
  const answer = await ask("plain", signal);
  clearTimeout(slow);
  if (!answer) return;
  showAnswer(answer);
  markStale(results, false);
  if (more.open) await updateMore();
}

// The slower answers are shown together.
async function updateMore() {
  const { signal } = newest, found = {};
  for (const kind of ["trial", "table"]) {
    found[kind] = await ask(kind, signal);
    if (!found[kind]) return;
  }
  showMore(found);
  markStale(more, false);
}

// ---- what is shown ------------------------------------------------------------------------------------------

// An answer that is out of date is pale.
function markStale(part, stale) {
  part.classList.toggle("stale", stale);
  part.setAttribute("aria-busy", String(stale));
}

function setState(words, kind) {
  byId("state").textContent = words;
  byId("state").className = `state ${kind}`;
  byId("summary").textContent = words;
}

function showNote(field, sentence, kind) {
  const note = element("p", sentence);
  note.className = kind;
  note.id = `${field}-${kind}`;
  document.querySelector(`[data-field="${field}"]`).append(note);
  return note;
}

function showProblem(field, sentence) {
  clearNotes();
  if (!document.querySelector(`[data-field="${field}"]`)) {
    byId("problem").hidden = false;
    byId("problem").textContent = sentence;
    return;
  }
  const note = showNote(field, sentence, "error");
  note.setAttribute("role", "alert");
  byId(field).setAttribute("aria-invalid", "true");
  byId(field).setAttribute("aria-errormessage", note.id);
}

function clearNotes() {
  byId("problem").hidden = true;
  document.querySelectorAll("[data-field] :is(.error, .adjusted)").forEach((note) => note.remove());
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

// A parsed document is inert: nothing in it runs or loads.
function draw(name, svg) {
  byId(name).replaceChildren(...new DOMParser().parseFromString(svg, "text/html").body.children);
}

function showAnswer(found) {
  clearNotes();
  for (const [field, sentence] of Object.entries(found.adjusted)) showNote(field, sentence, "adjusted");
  for (const name of ["headline", "example", "few", "privacy", "active", "delta_used"]) byId(name).textContent = found[name];
  byId("few").hidden = !found.few;
  byId("warnings").hidden = !found.warnings.length;
  byId("warnings").replaceChildren(...found.warnings.map((sentence) => element("li", sentence)));
  draw("picture", found.picture);
  draw("shares", found.shares);
  setState(`privacy: ${found.level}`, found.level.replace(" ", "-"));
  byId("summary").textContent = found.short;
  for (const [name, recipe] of Object.entries(found.recipes)) {
    byId(name).textContent = recipe;
    byId(`${name}-box`).hidden = !recipe;
  }
  for (const [name, label] of Object.entries(found.numbers)) {
    byId(name).parentElement.hidden = !label;
    byId(name).previousElementSibling.textContent = label;
    byId(name).textContent = found.plan[name] === null ? "none" : format(found.plan[name]);
    byId(name).dataset.value = String(found.plan[name]);
  }
  byId("mechanism_chosen").textContent = found.mechanism;
  byId("mechanism_chosen").dataset.value = found.plan.mechanism;
  byId("advice").replaceChildren(...found.advice.map((sentence) => element("p", sentence)));
}

function showMore({ trial, table }) {
  draw("trial", trial.svg);
  byId("trial-words").textContent = trial.words;
  byId("outcome").textContent = trial.sentences.join(" ");
  byId("largest").hidden = !trial.top.length;
  fillRows(byId("largest").querySelector("thead"), [["item", "true count", "released count"]], "th");
  fillRows(byId("largest").querySelector("tbody"), trial.top.map((one) =>
    [one.item, format(one.true), one.released === null ? "not released" : format(one.released) + (one.margin ? ` ± ${format(one.margin)}` : "")]));
  fillRows(byId("comparison").querySelector("thead"), [table.columns], "th");
  fillRows(byId("comparison").querySelector("tbody"), table.rows);
  const least = Math.min(...table.thresholds);
  [...byId("comparison").querySelector("tbody").rows].forEach((row, place) => row.classList.toggle("best", table.thresholds[place] === least));
  byId("table-note").textContent = table.note;
}

// ---- fields -------------------------------------------------------------------------------------------------

function fromSlider({ value, max, dataset }) {
  const first = Number(dataset.first), last = Number(dataset.last), part = value / max;
  const number = "linear" in dataset ? first + (last - first) * part : first * (last / first) ** part;
  const rounded = Number(number.toPrecision(Number(dataset.digits)));
  return String("whole" in dataset ? Math.round(rounded) : rounded);
}

function toSlider(slider) {
  const { first, last } = slider.dataset, field = byId(slider.dataset.for), value = Number(field.value.replaceAll(",", ""));
  const part = "linear" in slider.dataset ? (value - first) / (last - first) : Math.log(value / first) / Math.log(last / first);
  slider.value = field.value.trim() === "" || Number.isNaN(part) ? 0 : Math.round(Math.min(1, Math.max(0, part)) * slider.max);
  slider.setAttribute("aria-valuetext", field.value || field.placeholder);
}

// Sliders and choices follow the fields, except the slider that is being moved.
function followFields(moved) {
  sliders.forEach((slider) => { if (slider !== moved) toSlider(slider); });
  document.getElementsByName("privacy").forEach((choice) => { choice.checked = choice.value === byId("epsilon").value; });
}

function changed({ target }) {
  if (target.id === "csv") return;
  if (target.dataset.for) byId(target.dataset.for).value = fromSlider(target);
  if (target.name === "privacy") byId("epsilon").value = target.value;
  if (target.dataset.for) target.setAttribute("aria-valuetext", byId(target.dataset.for).value);
  followFields(target);
  update(target.type === "text" ? TYPING : DELAY);
}

// Changed values are kept in the address after #, which browsers do not send to the server.
const values = () => [...new FormData(form)].filter(([name]) => name !== "privacy");
const START = Object.fromEntries(values());

function saveState() {
  const differing = new URLSearchParams(values().filter(([name, value]) => value !== START[name]));
  history.replaceState(null, "", differing.size ? `#${differing}` : location.pathname);
}

function restoreState() {
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (!(name in START)) continue;
    form.elements[name].value = value;
    if (byId("options").contains(byId(name))) byId("options").open = true;
  }
}

async function takeFile() {
  const [file] = byId("csv").files;
  if (!file) return;
  if (file.size > 5 * 1024 * 1024) { byId("csv").value = ""; showProblem("csv", "The file is larger than 5 MB."); return; }
  csv = await file.text() || "\n";
  byId("forget").hidden = false;
  update();
}

function forgetFile() {
  csv = "";
  byId("csv").value = "";
  byId("forget").hidden = true;
  update();
}

async function copy(name) {
  if (results.classList.contains("stale")) {
    byId("copied").textContent = "Not copied: the answer for the new values is still being computed.";
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

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", changed);
byId("csv").addEventListener("change", takeFile);
byId("forget").addEventListener("click", forgetFile);
more.addEventListener("toggle", () => { if (more.open && !results.classList.contains("stale")) updateMore(); });
document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(button.dataset.copy)));
restoreState();
followFields();
update();
