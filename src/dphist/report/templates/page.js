"use strict";
// Only the rows in view are in the document: a hundred thousand would freeze it. Items are untrusted: they are set as
// text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SPARE = 12, ON_PAPER = 100;
  // The height of a row follows the reader's font size: it is measured, starting from this.
  let height = 32;
  const scroll = document.getElementById("scroll"), table = document.getElementById("table");
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const search = document.getElementById("search"), found = document.getElementById("found");
  const columns = data.columns, total = data.rows;
  const numbers = columns.map((c) => new Intl.NumberFormat("en", {
    minimumFractionDigits: c.digits || 0, maximumFractionDigits: c.digits || 0 }));
  const value = (c, row) => columns[c].of === undefined
    ? columns[c].values[row] : columns[columns[c].of].values[row] + columns[c].plus;
  // Characters that cannot be seen are spelled out, except those that belong to an emoji (the first group).
  const UNSEEN = new RegExp(data.unseen, "gu"), QUOTED = new RegExp(data.quoted, "u");
  const spelled = (text) => text.replace(UNSEEN, (c, joiner) => {
    const code = c.codePointAt(0), hex = code.toString(16);
    return joiner ? c : code < 256 ? "\\x" + hex.padStart(2, "0") : code < 65536 ? "\\u" + hex.padStart(4, "0") : "\\U" + hex.padStart(8, "0");
  });
  // No two items look the same because one is empty or begins or ends with a space.
  const shown = (item) => item === null ? "(missing)" : item === "" ? "(empty)" : QUOTED.test(item) ? `"${spelled(item)}"` : spelled(item);
  const paper = matchMedia("print"), printed = document.getElementById("printed");
  let order = Uint32Array.from({ length: total }, (_, i) => i);
  let matching = order, sorted = data.sorted, down = true, asked = 0;

  const cell = (row, c) => {
    const td = document.createElement("td"), v = value(c, row);
    if (columns[c].kind === "text") {
      td.className = v === null || v === "" ? "text missing" : "text";
      td.dir = "auto";
      td.textContent = shown(v);
      if (v !== null && v.length > 20) td.title = td.textContent;
    } else td.textContent = v === null ? "" : numbers[c].format(v);
    return td;
  };
  const gap = (rows) => {
    const tr = document.createElement("tr"), td = document.createElement("td");
    tr.className = "gap";
    tr.setAttribute("aria-hidden", "true");
    td.colSpan = columns.length;
    td.style.height = rows * height + "px";
    tr.append(td);
    return tr;
  };
  const put = (first, last) => {
    const rows = [gap(first)];
    for (let place = first; place < last; place++) {
      const tr = document.createElement("tr");
      tr.setAttribute("aria-rowindex", place + 2);
      tr.append(...columns.map((_, c) => cell(matching[place], c)));
      rows.push(tr);
    }
    rows.push(gap(matching.length - last));
    body.replaceChildren(...rows);
    table.setAttribute("aria-rowcount", matching.length + 1);
  };
  const draw = (again = true) => {
    // The media query may match before the listener below is called.
    if (paper.matches) return void print();
    const first = Math.min(Math.max(0, matching.length - 1), Math.max(0, Math.floor(scroll.scrollTop / height) - SPARE));
    const last = Math.min(matching.length, first + Math.ceil(scroll.clientHeight / height) + 2 * SPARE);
    put(first, last);
    const found = body.querySelector("tr:not(.gap)")?.getBoundingClientRect().height;
    if (again && found && Math.abs(found - height) > 0.01) {
      height = found;
      draw(false);
    }
  };
  // Print has the first matching rows, without space for all others.
  const print = () => {
    const last = Math.min(matching.length, ON_PAPER), more = matching.length - last;
    put(0, last);
    // Print has the whole guarantee and all checks.
    document.querySelectorAll("#promise details").forEach((part) => { part.open = true; });
    const searched = matching.length < total ? `Only rows with "${search.value.trim()}" in them. ` : "";
    printed.textContent = searched + (more ? `And ${more.toLocaleString("en")} more rows, which are in the release.` : "");
  };
  const showNumber = () => {
    const all = total.toLocaleString("en");
    found.textContent = matching.length === total ? `${all} rows` : `${matching.length.toLocaleString("en")} of ${all} rows`;
  };
  const texts = columns.map((c, i) => (c.kind === "text" ? i : -1)).filter((i) => i >= 0);
  // In pieces, so that the page responds while many rows are searched.
  const find = () => {
    const wanted = search.value.trim().toLowerCase(), mine = ++asked, kept = [];
    let place = 0;
    const step = () => {
      if (mine !== asked) return;
      const until = Math.min(total, place + 20000);
      for (; place < until; place++) {
        const row = order[place];
        if (!wanted || texts.some((c) => (columns[c].values[row] || shown(columns[c].values[row])).toLowerCase().includes(wanted))) kept.push(row);
      }
      if (place < total) return void setTimeout(step);
      matching = kept;
      scroll.scrollTop = 0;
      showNumber();
      draw();
    };
    step();
  };
  // Texts sort by letters without accents, and numbers within them by size. Keys are computed once per text, because a
  // hundred thousand rows would take too long otherwise.
  const ranked = (of) => {
    if (of.ranks) return of.ranks;
    const keys = of.values.map((t) => t === null ? "\uffff" : t.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase()
      .replace(/\d+/g, (digits) => digits.padStart(15, "0")));
    of.ranks = new Uint32Array(total);
    Uint32Array.from(keys.keys()).sort((a, b) => keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b)
      .forEach((row, rank) => { of.ranks[row] = rank; });
    return of.ranks;
  };
  const compare = (c) => {
    const of = columns[c], sign = down ? -1 : 1;
    if (of.kind === "text" && !of.number) {
      const ranks = ranked(of);
      return (a, b) => sign * (ranks[a] - ranks[b]) || a - b;
    }
    const number = of.kind === "text" ? (row) => (of.values[row] === null ? Infinity : Number(of.values[row])) : (row) => value(c, row) ?? -Infinity;
    return (a, b) => { const x = number(a), y = number(b); return (x < y ? -sign : x > y ? sign : 0) || a - b; };
  };
  const sort = (c) => {
    down = c === sorted ? !down : columns[c].kind !== "text";
    sorted = c;
    order = order.slice().sort(compare(c));
    heads.forEach((head, i) => i === c ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
    find();
  };

  const wide = columns.map((c) => c.kind === "text" ? 12 : 2.6 + 0.62 * Math.max(c.name.length + 2, c.wide));
  table.style.minWidth = wide.reduce((a, b) => a + b, 0) + "rem";
  heads.forEach((head, c) => {
    if (columns[c].kind !== "text") head.style.width = wide[c] + "rem";
    head.firstElementChild.disabled = false;
    head.firstElementChild.addEventListener("click", () => sort(c));
  });
  let waiting = 0, framed = false;
  search.disabled = false;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(find, 150); });
  scroll.addEventListener("scroll", () => {
    if (framed) return;
    framed = true;
    requestAnimationFrame(() => { framed = false; draw(); });
  }, { passive: true });
  addEventListener("resize", () => draw());
  addEventListener("beforeprint", print);
  addEventListener("afterprint", () => draw());
  paper.addEventListener("change", () => draw());
  showNumber();
  draw();
})();
