// The page: fields in, numbers out. A quick estimate follows every change; the certified plan follows the last one.
"use strict";

import { drawCurve, drawFigure, drawTop, figures } from "/static/charts.js";

const REQUEST = ["epsilon", "delta", "max_nonzero", "max_items_per_user", "top", "mechanism", "gamma", "noise", "minimize"];
const POPULATION = ["exponent", "items", "users", "mean_items", "spread", "seed"];
const STILL = 250; // milliseconds without a change before a certificate is asked for
const LARGEST_FILE = 5 * 1024 * 1024;
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?$/;
const byId = (id) => document.getElementById(id);
const drawn = {};
let csv = "";
let change = 0;
let quickBusy = false;
let timer = 0;
let slow = new AbortController();
let simulating = new AbortController();

// ---- fields -------------------------------------------------------------------------------------------------

function problemOf(input) {
  const text = input.value.trim(), { kind, low, high, empty } = input.dataset;
  if (!kind) return "";
  if (text === "") return empty ? "" : "This is empty: give a number.";
  if (text.length > 40) return "This is too long.";
  if (kind === "gamma" && text === "sqrt") return "";
  if (!NUMBER.test(text)) return `This must be a number such as ${kind === "whole" ? "1000" : "0.35 or 1e-5"}, not “${text}”.`;
  const number = Number(text);
  if (!Number.isFinite(number)) return "This is too large.";
  if (kind === "whole" && (!Number.isInteger(number) || number < 1 || number > 1e12)) {
    return `This must be a whole number of at least 1, not ${text}.`;
  }
  if (kind === "gamma" && (number < 0.01 || number > 1e15)) return "This must be between 0.01 and 1e15.";
  if (low !== undefined && number <= Number(low)) return `This must be ${low === "0" ? "above 0" : "larger"}, not ${text}.`;
  if (high !== undefined && (kind === "whole" || high === "5" ? number > Number(high) : high === "1" ? number >= 1 : number > Number(high))) {
    return `This must be ${high === "1" ? "below 1" : `at most ${Number(high).toLocaleString("en")}`}, not ${text}.`;
  }
  return "";
}

function showProblem(name, sentence) {
  const box = document.querySelector(`[data-field="${name}"]`);
  if (!box) {
    const other = byId("problem");
    other.hidden = !sentence;
    other.textContent = sentence;
    return;
  }
  const input = byId(name);
  let note = byId(`${name}-error`);
  if (!sentence) {
    if (note) note.remove();
    input.removeAttribute("aria-invalid");
    input.removeAttribute("aria-errormessage");
    return;
  }
  if (!note) {
    note = document.createElement("p");
    note.id = `${name}-error`;
    note.className = "error";
    note.setAttribute("role", "alert");
    box.append(note);
  }
  note.textContent = sentence;
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-errormessage", note.id);
}

function clearProblems(names) {
  for (const name of names) showProblem(name, "");
  showProblem("", "");
}

function checked(names) {
  let fine = true;
  for (const name of names) {
    const sentence = problemOf(byId(name));
    showProblem(name, sentence);
    if (sentence) fine = false;
  }
  return fine;
}

// What only makes sense together, so that nothing is asked of the server that it must refuse.
function checkedTogether() {
  const given = (name) => byId(name).value.trim() !== "";
  let fine = true;
  const wrong = (name, sentence) => { showProblem(name, sentence); fine = false; };
  if (!given("max_nonzero") && !given("max_items_per_user") && !given("top")) {
    wrong("max_nonzero", "This is empty, and so are m and K: give a bound.");
  }
  if (given("max_nonzero") && given("max_items_per_user") && Number(byId("max_items_per_user").value) > Number(byId("max_nonzero").value)) {
    wrong("max_items_per_user", "This must not be more than k.");
  }
  if (given("gamma") && !given("max_nonzero")) wrong("gamma", "This is for shared noise, which needs k.");
  return fine;
}

function values(names) {
  return Object.fromEntries(names.map((name) => [name, byId(name).value.trim()]));
}

function fromSlider(slider) {
  const first = Number(slider.dataset.first), last = Number(slider.dataset.last), part = slider.value / slider.max;
  const value = slider.dataset.linear ? first + (last - first) * part : first * (last / first) ** part;
  if (slider.dataset.whole) return String(value < 100 ? Math.round(value) : Math.round(Number(value.toPrecision(3))));
  return String(Number(value.toPrecision(Number(slider.dataset.digits || 3))));
}

function toSlider(slider) {
  const value = Number(byId(slider.dataset.for).value), first = Number(slider.dataset.first), last = Number(slider.dataset.last);
  if (!Number.isFinite(value) || byId(slider.dataset.for).value.trim() === "") { slider.value = 0; return; }
  const part = slider.dataset.linear ? (value - first) / (last - first) : Math.log(value / first) / Math.log(last / first);
  slider.value = Math.round(Math.min(1, Math.max(0, part)) * slider.max);
  slider.setAttribute("aria-valuetext", byId(slider.dataset.for).value);
}

// Top-k and a bound on the non-zero counts exclude each other: the one that is chosen last stays.
function leaveOne(name) {
  if (name === "top" && byId("top").value.trim()) { byId("max_nonzero").value = ""; byId("gamma").value = ""; }
  if (name === "max_nonzero" && byId("max_nonzero").value.trim()) byId("top").value = "";
}

// ---- questions ----------------------------------------------------------------------------------------------

async function ask(kind, data, signal) {
  for (;;) {
    let response;
    try {
      response = await fetch(`/api/${kind}`, {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data), signal,
      });
    } catch (error) {
      if (error.name === "AbortError") return null;
      return { error: "The server does not answer: start dphist explore again.", field: null };
    }
    const found = await response.json();
    if (!found.superseded) return found;
    await new Promise((done) => setTimeout(done, 300)); // another window asked at the same time
    if (signal && signal.aborted) return null;
  }
}

function state(words, kind) {
  const node = byId("state");
  node.textContent = words;
  node.className = `state ${kind}`;
  if (kind === "wrong") byId("summary").textContent = "Needs a correction";
}

function refused(found) {
  showProblem(REQUEST.concat(POPULATION, "csv").includes(found.field) ? found.field : "", found.error);
  state("needs a correction", "wrong");
  byId("results").classList.add("stale");
}

async function update() {
  const mine = (change += 1), began = performance.now();
  slow.abort();
  simulating.abort();
  clearTimeout(timer);
  drawn.certified = false;
  state("estimating…", "estimate");
  if (!checked(REQUEST) || !checkedTogether()) {
    state("needs a correction", "wrong");
    byId("results").classList.add("stale");
    return;
  }
  timer = setTimeout(() => certify(mine), STILL);
  if (quickBusy) return; // it is asked again with the newest values when the answer is there
  quickBusy = true;
  const found = await ask("quick", values(REQUEST));
  quickBusy = false;
  if (mine !== change) { quickAgain(); return; }
  if (found.error) { clearTimeout(timer); refused(found); return; }
  clearProblems(REQUEST);
  showQuick(found);
  document.documentElement.dataset.quickMs = (performance.now() - began).toFixed(1);
}

async function quickAgain() {
  const mine = change;
  if (!checked(REQUEST) || !checkedTogether()) return;
  quickBusy = true;
  const found = await ask("quick", values(REQUEST));
  quickBusy = false;
  if (mine !== change) { quickAgain(); return; }
  if (found.error) { clearTimeout(timer); refused(found); } else if (!drawn.certified) showQuick(found);
}

function showQuick(found) {
  drawn.certified = false;
  byId("results").classList.remove("stale");
  state("estimate, not certified yet", "estimate");
  showPlan(found.plan, null);
  showCurve(found.curve, found.plan);
  showTable(found.comparison);
  showFigure(found.figure);
  byId("command").textContent = found.command;
  byId("python").textContent = found.python;
}

async function certify(mine) {
  slow = new AbortController();
  const { signal } = slow, data = values(REQUEST);
  simulate();
  const plan = await ask("plan", data, signal);
  if (!plan || mine !== change) return;
  if (plan.error) { refused(plan); return; }
  drawn.certified = true;
  byId("results").classList.remove("stale");
  showPlan(plan.plan, plan);
  showCurve(plan.curve, plan.plan);
  byId("command").textContent = plan.command;
  byId("python").textContent = plan.python;
  state("certified", "certified");
  const table = await ask("compare", data, signal);
  if (!table || mine !== change || table.error) return;
  showTable(table);
  const figure = await ask("figure", data, signal);
  if (!figure || mine !== change || figure.error) return;
  showFigure(figure);
  document.documentElement.dataset.settled = String(mine);
}

async function simulate() {
  simulating.abort();
  simulating = new AbortController();
  const mine = change;
  if (!checked(csv ? ["seed"] : POPULATION)) { byId("outcome").textContent = ""; return; }
  const found = await ask("simulate", { ...values(REQUEST), ...values(POPULATION), csv }, simulating.signal);
  if (!found || mine !== change) return;
  if (found.error) {
    showProblem(found.field || "", found.error);
    byId("outcome").textContent = "No simulation: " + found.error;
    byId("top50").replaceChildren();
    byId("top50-alt").textContent = "";
    return;
  }
  clearProblems([...POPULATION, "csv"]);
  showSimulation(found);
}

// ---- what is shown ------------------------------------------------------------------------------------------

function put(id, number) {
  byId(id).textContent = figures(number);
  byId(id).dataset.value = number === null || number === undefined ? "" : String(number);
}

const NAMES = { gshm: "Gaussian (GSHM)", csh: "correlated Gaussian (CSH)", "top-k": "top-k with its offset", laplace: "Laplace" };

function showPlan(plan, certified) {
  for (const name of ["threshold", "total_noise", "sigma", "sigma_shared", "delta_certified"]) put(name, plan[name]);
  byId("chosen").textContent = NAMES[plan.mechanism] || plan.mechanism;
  byId("chosen").dataset.value = plan.mechanism;
  byId("summary").textContent = `Threshold ${figures(plan.threshold)} · noise ${figures(plan.total_noise)} · ${certified ? "certified" : "estimate"}`;
  const advice = byId("advice");
  byId("all").classList.toggle("stale", !certified);
  advice.classList.toggle("stale", !certified);
  if (!certified) return;
  advice.replaceChildren(...[...certified.advice, ...plan.notes].map((sentence) => paragraph(sentence)));
  byId("all").querySelector("tbody").replaceChildren(...certified.rows.map(([label, value]) => row([label, value], true)));
}

function paragraph(words) {
  const node = document.createElement("p");
  node.textContent = words;
  return node;
}

function row(cells, headed) {
  const line = document.createElement("tr");
  cells.forEach((cell, place) => {
    const node = document.createElement(headed && place === 0 ? "th" : "td");
    if (headed && place === 0) node.setAttribute("scope", "row");
    node.textContent = cell;
    line.append(node);
  });
  return line;
}

// What matters most comes first: a phone shows the first columns, and scrolls to the rest.
const COLUMNS = ["mechanism", "analysis", "threshold", "to GSHM", "total noise", "tau", "gamma"];

function showTable(table) {
  const head = document.createElement("tr");
  for (const name of COLUMNS) {
    const cell = document.createElement("th");
    cell.setAttribute("scope", "col");
    cell.textContent = name;
    head.append(cell);
  }
  byId("comparison").querySelector("thead").replaceChildren(head);
  const least = Math.min(...table.rows.map((one) => one.threshold));
  byId("comparison").querySelector("tbody").replaceChildren(...table.rows.map((one) => {
    const line = row([one.mechanism, one.analysis, figures(one.threshold), one.ratio_to_gshm < 1e6 ? one.ratio_to_gshm.toFixed(3) : "–",
      figures(one.total_noise), figures(one.tau), figures(one.gamma)]);
    line.dataset.threshold = String(one.threshold);
    if (one.threshold === least) line.className = "best";
    return line;
  }));
  const asIf = table.as_if ? ` The others are as if no dataset had more than ${table.as_if.toLocaleString("en")} non-zero counts.` : "";
  byId("table-note").textContent = `${table.title}, continuous noise, ${table.certified ? "by the full analyses" : "estimated"}; the lowest threshold is in bold.${asIf}`;
}

function showFigure(figure) {
  drawn.figure = figure;
  drawFigure(byId("figure"), figure);
  byId("figure-alt").textContent = figure.alt;
}

function showCurve(curve, plan) {
  drawn.curve = [curve.points, plan.threshold];
  drawCurve(byId("curve"), ...drawn.curve);
  const more = plan.mechanism === "top-k" ? " more than the item after the largest has" : "";
  byId("curve-alt").textContent = `An item of ${figures(curve.even)} users${more} has an even chance to be released, ` +
    `one of ${figures(curve.likely)} has 99 %.`;
}

function showSimulation(found) {
  drawn.top = found.top;
  const share = (part) => `${(100 * part).toFixed(1)} %`;
  const lost = found.kept < 0.9995 ? ` The bounds keep ${share(found.kept)} of all (user, item) pairs.` : "";
  const cut = found.cut ? ` ${found.cut.toLocaleString("en")} items beyond k are left out, as the promise says.` : "";
  const error = found.mean_absolute_error === null ? "" : ` Their mean absolute error is ${figures(found.mean_absolute_error)} users.`;
  byId("outcome").replaceChildren(paragraph(
    `Simulation: ${found.released.toLocaleString("en")} of ${found.items.toLocaleString("en")} items are released (about ${Math.round(found.expected).toLocaleString("en")} are expected), ` +
    `with ${share(found.share)} of all (user, item) pairs.${error}${lost}${cut}`));
  byId("outcome").dataset.released = String(found.released);
  drawTop(byId("top50"), found.top);
  const seen = found.top.filter((one) => one.released !== null).length;
  byId("top50-alt").textContent = `Of the ${found.top.length} largest counts, from ${figures(found.top[0].true)} down to ${figures(found.top.at(-1).true)} users, ${seen} are released.`;
  byId("top50-table").querySelector("tbody").replaceChildren(...found.top.map((one) =>
    row([one.item, figures(one.true), one.released === null ? "not released" : figures(one.released)])));
}

// ---- events -------------------------------------------------------------------------------------------------

function connect() {
  for (const name of [...REQUEST, ...POPULATION]) {
    byId(name).addEventListener("input", () => {
      leaveOne(name);
      document.querySelectorAll("input[type=range]").forEach(toSlider);
      if (REQUEST.includes(name)) update(); else later();
    });
  }
  document.querySelectorAll("input[type=range]").forEach((slider) => {
    toSlider(slider);
    slider.addEventListener("input", () => {
      byId(slider.dataset.for).value = fromSlider(slider);
      slider.setAttribute("aria-valuetext", byId(slider.dataset.for).value);
      leaveOne(slider.dataset.for);
      document.querySelectorAll("input[type=range]").forEach((other) => { if (other !== slider) toSlider(other); });
      if (REQUEST.includes(slider.dataset.for)) update(); else later();
    });
  });
  byId("csv").addEventListener("change", takeFile);
  byId("forget").addEventListener("click", () => {
    csv = "";
    byId("csv").value = "";
    byId("forget").hidden = true;
    showProblem("csv", "");
    simulate();
  });
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy));
  document.querySelectorAll("form").forEach((form) => form.addEventListener("submit", (event) => event.preventDefault()));
  new ResizeObserver(redraw).observe(byId("results"));
}

function later() {
  clearTimeout(connect.timer);
  connect.timer = setTimeout(simulate, STILL);
}

async function takeFile() {
  const file = byId("csv").files[0];
  if (!file) return;
  if (file.size > LARGEST_FILE) { showProblem("csv", "The file is larger than 5 MB."); return; }
  csv = await file.text();
  byId("forget").hidden = false;
  if (csv.trim() === "") { csv = ""; showProblem("csv", "The file is empty."); return; }
  simulate();
}

async function copy(name) {
  const words = byId(name).textContent;
  try {
    await navigator.clipboard.writeText(words);
    byId("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(byId(name));
    byId("copied").textContent = "Selected: press Ctrl-C to copy.";
  }
}

function redraw() {
  if (drawn.width === byId("results").clientWidth) return;
  drawn.width = byId("results").clientWidth;
  if (drawn.figure) drawFigure(byId("figure"), drawn.figure);
  if (drawn.curve) drawCurve(byId("curve"), ...drawn.curve);
  if (drawn.top) drawTop(byId("top50"), drawn.top);
}

connect();
update();
