// What is shown: the numbers of the server, said to be estimates until those of the full analyses are there.
"use strict";

import { drawCurve, drawFigure, drawTop, figures } from "./charts.js";
import { byId } from "./fields.js";

const drawn = {};

function put(id, number) {
  byId(id).textContent = figures(number);
  byId(id).dataset.value = number === null || number === undefined ? "" : String(number);
}

// From a change on, nothing that is shown may be taken for what belongs to the new values.
export function allIsOld() {
  byId("results").classList.add("stale");
  byId("summary").textContent = "Estimating…";
  put("delta_certified", null);
  byId("delta_certified").textContent = "not yet";
  for (const name of ["table-note", "figure-note", "curve-note"]) byId(name).textContent = "Of other values than the fields have now.";
  byId("copied").textContent = "";
  simulationIsOld();
}

const NAMES = { gshm: "Gaussian (GSHM)", csh: "correlated Gaussian (CSH)", "top-k": "top-k with its offset", laplace: "Laplace" };

export function showPlan(plan, certified) {
  for (const name of ["threshold", "total_noise", "sigma", "sigma_shared", "delta_certified"]) put(name, plan[name]);
  if (!certified) byId("delta_certified").textContent = "not yet";
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

const origin = (full) => (full ? "by the full analyses" : "estimated");

export function showTable(table) {
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
  const own = table.rows[0].mechanism === "top-k" ? " The top-k row is the plan above." : "";
  byId("table-note").textContent = `${table.title}, continuous noise, ${origin(table.full)}; the lowest threshold is in bold.${own}${asIf}`;
}

export function showFigure(figure) {
  drawn.figure = figure;
  drawFigure(byId("figure"), figure);
  byId("figure-alt").textContent = figure.alt;
  byId("figure-note").textContent = `Least τ (the threshold less one) for each amount of noise of a released count, ${origin(figure.full)}; the marks are the lowest points.`;
}

export function showCurve(curve, plan, certified) {
  drawn.curve = [curve.points, plan.threshold];
  drawCurve(byId("curve"), ...drawn.curve);
  byId("curve-note").textContent = "Probability that an item is released, by its number of users as they are counted (after the cap), " +
    (certified ? "of the certified plan." : "estimated.");
  const more = plan.mechanism === "top-k" ? " more than the item after the largest has" : "";
  byId("curve-alt").textContent = `An item of ${figures(curve.even)} users${more} has an even chance to be released, ` +
    `one of ${figures(curve.likely)} has 99 %.`;
}

// A release can have every plan but those that are for study; then a sentence says why.
export function showRecipes(found) {
  for (const name of ["command", "python", "release_command", "release_python"]) byId(name).textContent = found[name] || "";
  for (const node of document.querySelectorAll("[data-release]")) node.hidden = found.no_release !== null;
  byId("no-release").hidden = found.no_release === null;
  byId("no-release").textContent = found.no_release || "";
}

const SIMULATED = ["outcome", "top50", "top50-alt", "top50-table"];

// It was of other values: a new one is on its way.
export function simulationIsOld() {
  for (const name of SIMULATED) byId(name).classList.add("stale");
}

export function showNoSimulation(sentence) {
  for (const name of SIMULATED) byId(name).classList.remove("stale");
  byId("outcome").textContent = sentence;
  showLargest([], "");
}

// Which items are released is one loss, which users they lose to a bound another; `dphist simulate` calls both missing.
function pairsOf(found) {
  const share = (part) => `${(100 * part).toFixed(1)} %`;
  const held = `Of all (user, item) pairs, ${share(found.share)} belong to released items`;
  const gone = `about ${share(1 - found.missing)} are expected to be counted in a release, and ${share(found.missing)} to be missing`;
  if (found.kept >= 0.9995) return `${held}; ${gone}.`;
  return `${held}. ${found.cut ? "The bounds keep" : "The cap keeps"} ${share(found.kept)} of the pairs, so ${gone}.`;
}

export function showSimulation(found) {
  for (const name of SIMULATED) byId(name).classList.remove("stale");
  drawn.top = found.top;
  const whole = (number) => Math.round(number).toLocaleString("en");
  const sentences = [
    `Simulation: ${whole(found.released)} of ${whole(found.items)} items are released (about ${whole(found.expected)} are expected).`,
    pairsOf(found),
  ];
  if (found.mean_absolute_error !== null) sentences.push(`The mean absolute error of a released count is ${figures(found.mean_absolute_error)} users.`);
  if (found.cut) sentences.push(`${whole(found.cut)} items beyond k are left out, as the promise says.`);
  if (found.rounded) sentences.push(`${whole(found.rounded)} of the uploaded counts had decimals and were rounded to whole numbers.`);
  byId("outcome").replaceChildren(paragraph(sentences.join(" ")));
  byId("outcome").dataset.released = String(found.released);
  if (found.top.length === 0) { showLargest([], "There is no item with a user."); return; }
  drawTop(byId("top50"), found.top);
  const seen = found.top.filter((one) => one.released !== null).length;
  showLargest(found.top, `Of the ${found.top.length} largest counts, from ${figures(found.top[0].true)} down to ${figures(found.top.at(-1).true)} users, ${seen} are released.`);
}

function showLargest(top, sentence) {
  if (top.length === 0) { drawn.top = null; byId("top50").replaceChildren(); }
  byId("top50-alt").textContent = sentence;
  byId("top50-table").querySelector("tbody").replaceChildren(...top.map((one) =>
    row([one.item, figures(one.true), one.released === null ? "not released" : figures(one.released)])));
}

export function redraw() {
  if (drawn.width === byId("results").clientWidth) return;
  drawn.width = byId("results").clientWidth;
  if (drawn.figure) drawFigure(byId("figure"), drawn.figure);
  if (drawn.curve) drawCurve(byId("curve"), ...drawn.curve);
  if (drawn.top) drawTop(byId("top50"), drawn.top);
}
