// Charts as SVG, drawn from the numbers of the server at the width they have. No arithmetic but that of pixels.
"use strict";

const SPACE = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  const node = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

export function figures(number) {
  if (number === null || number === undefined) return "–";
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e9 || size < 1e-3) return number.toExponential(4).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1000) return number.toLocaleString("en", { maximumFractionDigits: 1 });
  return String(Number(number.toPrecision(6)));
}

function short(number) {
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e6) return `${Number((number / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((number / 1e3).toPrecision(3))}k`;
  return String(Number(number.toPrecision(3)));
}

// Round steps of 1, 2 or 5 times a power of ten.
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((times) => times * power >= raw) || 10);
  const found = [];
  for (let place = Math.ceil(low / step); place * step <= high * (1 + 1e-12); place += 1) found.push(place * step);
  return found;
}

class Frame {
  constructor(figure, { x, y, xName, yName, alt, yLabels = short, yTicks = null, xTicks = null }) {
    this.width = Math.max(280, Math.round(figure.clientWidth));
    this.height = Math.round(Math.min(380, Math.max(230, this.width * 0.5)));
    this.left = 58; this.right = 14; this.top = 12; this.bottom = 46;
    this.x = x; this.y = y;
    this.svg = element("svg", {
      viewBox: `0 0 ${this.width} ${this.height}`, role: "img", "aria-labelledby": alt,
    });
    const id = `${figure.id}-clip`;
    this.svg.append(element("clipPath", { id }, element("rect", {
      x: this.left, y: this.top, width: this.width - this.left - this.right, height: this.height - this.top - this.bottom,
    })));
    this.inside = element("g", { "clip-path": `url(#${id})` });
    for (const value of yTicks || ticks(y[0], y[1], 5)) this.row(this.atY(value), yLabels(value));
    for (const value of xTicks || ticks(x[0], x[1], Math.max(4, this.width / 110))) this.column(this.atX(value), short(value));
    this.svg.append(this.inside, element("path", {
      class: "axis", d: `M${this.left},${this.top}V${this.height - this.bottom}H${this.width - this.right}`,
    }));
    const middle = (this.height - this.bottom + this.top) / 2;
    this.text(xName, (this.left + this.width - this.right) / 2, this.height - 8, "middle");
    this.text(yName, 12, middle, "middle").setAttribute("transform", `rotate(-90 12 ${middle})`);
  }

  atX(value) {
    return this.left + ((value - this.x[0]) / (this.x[1] - this.x[0] || 1)) * (this.width - this.left - this.right);
  }

  atY(value) {
    const room = this.height - this.top - this.bottom;
    return this.height - this.bottom - ((value - this.y[0]) / (this.y[1] - this.y[0] || 1)) * room;
  }

  text(words, x, y, anchor) {
    const node = element("text", { x, y, "text-anchor": anchor });
    node.textContent = words;
    this.svg.append(node);
    return node;
  }

  row(y, words) {
    this.svg.append(element("line", { class: "gridline", x1: this.left, x2: this.width - this.right, y1: y, y2: y }));
    this.text(words, this.left - 6, y + 4, "end");
  }

  column(x, words) {
    this.svg.append(element("line", { class: "axis", x1: x, x2: x, y1: this.height - this.bottom, y2: this.height - this.bottom + 5 }));
    this.text(words, x, this.height - this.bottom + 19, "middle");
  }

  line(points, classes) {
    const d = points.map(([x, y], i) => `${i ? "L" : "M"}${this.atX(x).toFixed(1)},${this.atY(y).toFixed(1)}`).join("");
    this.inside.append(element("path", { class: classes, d }));
  }

  upright(value, classes) {
    const x = this.atX(value);
    this.inside.append(element("line", { class: classes, x1: x, x2: x, y1: this.top, y2: this.height - this.bottom }));
  }
}

// A shape of its own for each curve: colour is not the only thing that tells them apart.
const SHAPES = {
  "gshm-add-the-deltas": (x, y) => `M${x - 5},${y - 5}h10v10h-10z`,
  "gshm-exact": (x, y) => `M${x - 6},${y}a6,6 0 1,0 12,0a6,6 0 1,0 -12,0z`,
  "csh-add-the-deltas": (x, y) => `M${x},${y - 7}l7,7l-7,7l-7,-7z`,
  "csh-tighter": (x, y) => `M${x},${y - 7}l7,12h-14z`,
  exact: (x, y) => `M${x - 6},${y - 6}l12,12M${x + 6},${y - 6}l-12,12`,
};

export function drawFigure(figure, data) {
  const series = data.series;
  const noises = series.flatMap((one) => [one.least_noise, ...one.points.map((point) => point[0])]);
  const low = Math.min(...noises), high = Math.max(...noises);
  const tall = 1.6 * Math.max(...series.map((one) => one.minimum[1]));
  const frame = new Frame(figure, {
    x: [Math.max(0, low - 0.05 * (high - low)), high], y: [0, tall], alt: `${figure.id}-alt`,
    xName: "noise (standard deviation)", yName: "least τ",
  });
  for (const one of series) frame.upright(one.least_noise, `least ${one.name}`);
  for (const one of series) frame.line(one.points, `series ${one.name}`);
  for (const one of series) {
    const d = SHAPES[one.name](frame.atX(one.minimum[0]), frame.atY(one.minimum[1]));
    frame.inside.append(element("path", { class: `mark ${one.name}`, d }));
  }
  const legend = document.createElement("ul");
  legend.className = "legend";
  for (const one of series) {
    const entry = document.createElement("li");
    entry.append(element("svg", { viewBox: "0 0 38 14", "aria-hidden": "true" },
      element("path", { class: `series ${one.name}`, d: "M0,7H38" }),
      element("path", { class: `mark ${one.name}`, d: SHAPES[one.name](19, 7) })), `${one.label}: τ ${figures(one.minimum[1])}`);
    legend.append(entry);
  }
  figure.replaceChildren(frame.svg, legend);
}

export function drawCurve(figure, points, threshold) {
  const xs = points.map((point) => point[0]);
  const frame = new Frame(figure, {
    x: [Math.min(...xs), Math.max(...xs)], y: [0, 1], alt: `${figure.id}-alt`,
    xName: "users of the item", yName: "probability of release", yLabels: (value) => `${Math.round(value * 100)} %`,
  });
  frame.upright(threshold, "cut");
  frame.line(points, "probability");
  const room = frame.atX(threshold) - frame.left > 80;
  frame.text("threshold", frame.atX(threshold) + (room ? -6 : 6), frame.top + 14, room ? "end" : "start");
  figure.replaceChildren(frame.svg);
}

// On a logarithmic axis, for the counts of a Zipf law span many sizes.
export function drawTop(figure, rows) {
  const log = (count) => Math.log10(Math.max(1, count));
  const tall = Math.max(1, Math.ceil(log(Math.max(...rows.map((row) => Math.max(row.true, row.released || 0))))));
  const frame = new Frame(figure, {
    x: [0.5, rows.length + 0.5], y: [0, tall], alt: `${figure.id}-alt`, xName: "rank of the item", yName: "users (log)",
    yTicks: Array.from({ length: tall + 1 }, (_, power) => power), yLabels: (power) => short(10 ** power),
    xTicks: rows.map((_, place) => place + 1).filter((rank) => rows.length <= 10 || rank === 1 || rank % (rows.length > 20 ? 10 : 5) === 0),
  });
  const wide = Math.max(1, (frame.atX(2) - frame.atX(1)) * 0.7);
  rows.forEach((row, place) => {
    const x = frame.atX(place + 1), y = frame.atY(log(row.true));
    frame.inside.append(element("rect", {
      class: row.released === null ? "bar missing" : "bar", x: x - wide / 2, y, width: wide, height: Math.max(0, frame.height - frame.bottom - y),
    }));
    if (row.released !== null) frame.inside.append(element("circle", { class: "dot", cx: x, cy: frame.atY(log(row.released)), r: Math.min(5, wide / 2 + 1.5) }));
  });
  const legend = document.createElement("ul");
  legend.className = "legend";
  const entries = [["rect", { class: "bar", x: 12, y: 1, width: 12, height: 12 }, "true count, released"],
    ["rect", { class: "bar missing", x: 12, y: 1, width: 12, height: 12 }, "true count, not released"],
    ["circle", { class: "dot", cx: 18, cy: 7, r: 5 }, "what is released"]];
  for (const [shape, attributes, words] of entries) {
    const entry = document.createElement("li");
    entry.append(element("svg", { viewBox: "0 0 38 14", "aria-hidden": "true" }, element(shape, attributes)), words);
    legend.append(entry);
  }
  figure.replaceChildren(frame.svg, legend);
}
