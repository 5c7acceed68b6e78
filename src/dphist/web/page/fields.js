// The fields of the page: what is wrong with them, and the sliders that follow them.
"use strict";

export const REQUEST = ["epsilon", "delta", "max_nonzero", "max_items_per_user", "top", "mechanism", "gamma", "noise", "minimize"];
export const POPULATION = ["exponent", "items", "users", "mean_items", "spread", "seed"];
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?$/;
export const byId = (id) => document.getElementById(id);

function problemOf(input) {
  const text = input.value.trim(), { kind, empty } = input.dataset;
  if (!kind) return "";
  if (text === "") return empty ? "" : "This is empty: give a number.";
  if (text.length > 40) return "This is too long.";
  if (kind === "gamma" && text === "sqrt") return "";
  if (!NUMBER.test(text)) return `This must be a number such as ${kind === "whole" ? "1000" : "0.35 or 1e-5"}, not “${text}”.`;
  const number = Number(text);
  if (!Number.isFinite(number)) return "This is too large.";
  if (kind === "whole" && !Number.isInteger(number)) return `This must be a whole number, not ${text}.`;
  return outOfRange(input, number, text);
}

// Continuous noise may have limits of its own: there the γ of a lattice, a whole number, can be any.
function limit(node, name) {
  const own = node.dataset[`continuous${name[0].toUpperCase()}${name.slice(1)}`];
  return own !== undefined && byId("noise").value === "continuous" ? own : node.dataset[name];
}

function outOfRange(input, number, text) {
  const { above, below } = input.dataset, least = limit(input, "least"), most = limit(input, "most");
  const words = (limit) => Number(limit).toLocaleString("en");
  if (above !== undefined && number <= Number(above)) return `This must be above ${words(above)}, not ${text}.`;
  if (least !== undefined && number < Number(least)) return `This must be at least ${words(least)}, not ${text}.`;
  if (most !== undefined && number > Number(most)) return `This must be at most ${words(most)}, not ${text}.`;
  if (below !== undefined && number >= Number(below)) return `This must be below ${words(below)}, not ${text}.`;
  return "";
}

export function showProblem(name, sentence) {
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

export function clearProblems(names) {
  for (const name of names) showProblem(name, "");
  showProblem("", "");
}

export function checked(names) {
  let fine = true;
  for (const name of names) {
    const sentence = problemOf(byId(name));
    showProblem(name, sentence);
    if (sentence) fine = false;
  }
  return fine;
}

// What only makes sense together, so that nothing is asked of the server that it must refuse.
export function checkedTogether() {
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

export function values(names) {
  return Object.fromEntries(names.map((name) => [name, byId(name).value.trim()]));
}

export function fromSlider(slider) {
  const first = Number(limit(slider, "first")), last = Number(slider.dataset.last), part = slider.value / slider.max;
  const value = slider.dataset.linear ? first + (last - first) * part : first * (last / first) ** part;
  if (limit(slider, "whole")) return String(value < 100 ? Math.round(value) : Math.round(Number(value.toPrecision(3))));
  return String(Number(value.toPrecision(Number(slider.dataset.digits || 3))));
}

export function toSlider(slider) {
  const value = Number(byId(slider.dataset.for).value), first = Number(limit(slider, "first")), last = Number(slider.dataset.last);
  if (!Number.isFinite(value) || byId(slider.dataset.for).value.trim() === "") { slider.value = 0; return; }
  const part = slider.dataset.linear ? (value - first) / (last - first) : Math.log(value / first) / Math.log(last / first);
  slider.value = Math.round(Math.min(1, Math.max(0, part)) * slider.max);
  slider.setAttribute("aria-valuetext", byId(slider.dataset.for).value);
}

// Top-k and a bound on the non-zero counts exclude each other: the one that is chosen last stays.
export function leaveOne(name) {
  if (name === "top" && byId("top").value.trim()) { byId("max_nonzero").value = ""; byId("gamma").value = ""; }
  if (name === "max_nonzero" && byId("max_nonzero").value.trim()) byId("top").value = "";
}
