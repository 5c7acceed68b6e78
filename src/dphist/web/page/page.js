// The page: fields in, numbers out. A quick estimate follows every change; the certified plan follows the last one.
"use strict";

import {
  POPULATION, REQUEST, byId, checked, checkedTogether, clearProblems, fromSlider, leaveOne, showProblem, toSlider, values,
} from "./fields.js";
import {
  allIsOld, redraw, showCurve, showFigure, showNoSimulation, showPlan, showRecipes, showSimulation, showTable, simulationIsOld,
} from "./shown.js";

const ALL = [...REQUEST, ...POPULATION, "csv"]; // fields with a place for what is wrong with them
const STILL = 250; // milliseconds without a change before a certificate is asked for
const QUICK = 5000; // milliseconds in which an estimate is there, or the server is not
const LARGEST_FILE = 5 * 1024 * 1024;
const BINARY = /[\x00-\x08\x0e-\x1f]/; // no text has these
const TAB = crypto.randomUUID(); // a newer question takes the place of an older one of this tab, not of another
let csv = "";
let change = 0;
let certifiedChange = 0;
let quickBusy = false;
let timer = 0;
let simulationTimer = 0;
let slow = new AbortController();
let simulating = new AbortController();

// ---- questions ----------------------------------------------------------------------------------------------

// The answer; null where nobody waits for it any more.
async function ask(kind, data, signal) {
  let found;
  try {
    const response = await fetch(`api/${kind}`, {
      method: "POST", headers: { "Content-Type": "application/json", "X-Dphist-Tab": TAB }, body: JSON.stringify(data), signal,
    });
    found = await response.json();
  } catch (error) {
    if (error.name === "AbortError") return null;
    return { error: "The server does not answer: start dphist explore again.", field: null };
  }
  return found.superseded ? null : found;
}

function state(words, kind) {
  const node = byId("state");
  node.textContent = words;
  node.className = `state ${kind}`;
  if (kind === "wrong") {
    byId("summary").textContent = words[0].toUpperCase() + words.slice(1);
    byId("results").classList.add("stale");
  }
}

function refused(found) {
  const known = ALL.includes(found.field);
  showProblem(known ? found.field : "", found.error);
  state(known ? "needs a correction" : "no certificate", "wrong");
}

function fieldsAreRight() {
  clearProblems([]);
  const each = checked(REQUEST);
  if (each && checkedTogether()) return true;
  state("needs a correction", "wrong");
  return false;
}

async function update() {
  const mine = (change += 1), began = performance.now();
  slow.abort();
  simulating.abort();
  clearTimeout(timer);
  allIsOld();
  state("estimating…", "estimate");
  if (!fieldsAreRight()) return;
  timer = setTimeout(() => certify(mine), STILL);
  if (quickBusy) return; // it is asked again with the newest values when the answer is there
  if (await estimate(mine)) document.documentElement.dataset.quickMs = (performance.now() - began).toFixed(1);
}

// True where the estimate of these very values is shown.
async function estimate(mine) {
  quickBusy = true;
  const late = new AbortController(), clock = setTimeout(() => late.abort(), QUICK);
  const found = await ask("quick", values(REQUEST), late.signal) || {
    error: `The server has not answered for ${QUICK / 1000} seconds: change a value to try again, or start dphist explore again.`,
    field: null,
  };
  clearTimeout(clock);
  quickBusy = false;
  if (mine !== change) {
    if (fieldsAreRight()) estimate(change);
    return false;
  }
  if (found.error) {
    clearTimeout(timer);
    slow.abort();
    refused(found);
    return false;
  }
  if (certifiedChange === mine) return false;
  clearProblems(REQUEST);
  showQuick(found);
  return true;
}

function showQuick(found) {
  byId("results").classList.remove("stale");
  state("estimate, not certified yet", "estimate");
  showPlan(found.plan, null);
  showCurve(found.curve, found.plan, false);
  showTable(found.comparison);
  showFigure(found.figure);
  showRecipes(found);
}

async function certify(mine) {
  slow = new AbortController();
  const { signal } = slow, data = values(REQUEST);
  simulate();
  const plan = await ask("plan", data, signal);
  if (!plan || mine !== change) return;
  if (plan.error) { refused(plan); return; }
  certifiedChange = mine;
  byId("results").classList.remove("stale");
  showPlan(plan.plan, plan);
  showCurve(plan.curve, plan.plan, true);
  showRecipes(plan);
  state("certified", "certified");
  const table = await ask("compare", data, signal);
  if (!table || mine !== change || table.error) return;
  showTable(table);
  const figure = await ask("figure", data, signal);
  if (!figure || mine !== change || figure.error) return;
  showFigure(figure);
}

async function simulate() {
  simulating.abort();
  simulating = new AbortController();
  const mine = change;
  if (!checked(csv ? ["seed"] : POPULATION)) { showNoSimulation(""); return; }
  const found = await ask("simulate", { ...values(REQUEST), ...values(POPULATION), csv }, simulating.signal);
  if (!found || mine !== change) return;
  if (found.error) {
    if (ALL.includes(found.field)) showProblem(found.field, found.error);
    showNoSimulation(`No simulation: ${found.error}`);
    return;
  }
  // Why a file was not taken can still be read, and so can why there is no certificate.
  for (const name of csv ? [...POPULATION, "csv"] : POPULATION) showProblem(name, "");
  showSimulation(found);
}

// ---- events -------------------------------------------------------------------------------------------------

function changed(name) {
  if (REQUEST.includes(name)) { update(); return; }
  clearTimeout(simulationTimer);
  simulating.abort();
  simulationIsOld();
  simulationTimer = setTimeout(simulate, STILL);
}

function connect() {
  const sliders = [...document.querySelectorAll("input[type=range]")];
  for (const name of [...REQUEST, ...POPULATION]) {
    byId(name).addEventListener("input", () => {
      leaveOne(name);
      sliders.forEach(toSlider);
      changed(name);
    });
  }
  for (const slider of sliders) {
    const name = slider.dataset.for;
    toSlider(slider);
    slider.addEventListener("input", () => {
      byId(name).value = fromSlider(slider);
      slider.setAttribute("aria-valuetext", byId(name).value);
      leaveOne(name);
      sliders.filter((other) => other !== slider).forEach(toSlider);
      changed(name);
    });
  }
  byId("csv").addEventListener("change", takeFile);
  byId("forget").addEventListener("click", () => leaveFile(""));
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button.dataset.copy));
  document.querySelectorAll("form").forEach((form) => form.addEventListener("submit", (event) => event.preventDefault()));
  new ResizeObserver(redraw).observe(byId("results"));
}

async function takeFile() {
  const file = byId("csv").files[0];
  if (!file) return;
  if (file.size > LARGEST_FILE) { leaveFile("The file is larger than 5 MB, and was not taken."); return; }
  try {
    csv = await file.text();
  } catch {
    leaveFile("The file cannot be read.");
    return;
  }
  if (csv.trim() === "") { leaveFile("The file is empty, and was not taken."); return; }
  if (BINARY.test(csv)) { leaveFile("The file is no text in UTF-8, and was not taken: save a spreadsheet or a table as CSV first."); return; }
  byId("forget").hidden = false;
  simulationIsOld();
  simulate();
}

// Back to the Zipf law; where a file was refused, the sentence says why.
function leaveFile(sentence) {
  csv = "";
  byId("csv").value = "";
  byId("forget").hidden = true;
  showProblem("csv", sentence);
  simulationIsOld();
  simulate();
}

async function copy(name) {
  const words = byId(name).textContent;
  if (byId("results").classList.contains("stale")) {
    byId("copied").textContent = "Not copied: this is of other values than the fields have now.";
    return;
  }
  try {
    await navigator.clipboard.writeText(words);
    byId("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(byId(name));
    byId("copied").textContent = "Selected: press Ctrl-C to copy.";
  }
}

connect();
update();
