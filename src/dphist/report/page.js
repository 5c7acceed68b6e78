"use strict";
// Only the rows in sight are in the document: a hundred thousand of them would freeze it. Items come from people
// unknown, so that they are set as text and never read as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SPARE = 12, ON_PAPER = 100;
  // The height of a row follows the reader's size of letters: it is measured, this is where it starts.
  let height = 32;
  const scroll = document.getElementById("scroll"), table = document.getElementById("table");
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const search = document.getElementById("search"), found = document.getElementById("found");
  const columns = data.columns, total = data.rows;
  const numbers = columns.map((c) => new Intl.NumberFormat("en", {
    minimumFractionDigits: c.digits || 0, maximumFractionDigits: c.digits || 0 }));
  const value = (c, row) => columns[c].of === undefined
    ? columns[c].values[row] : columns[columns[c].of].values[row] + columns[c].plus;
  // What nobody sees is spelled out: control characters, odd spaces, what turns a text round, and what a reader may
  // ignore (unseen.py has the same list). A joiner between two emojis makes one of them, and a selector after one
  // gives it its colours.
  const PICTURE = "\u00a9\u00ae\u203c-\u3299\u{1f000}-\u{1faff}";
  const UNSEEN = new RegExp(`((?<=[${PICTURE}\ufe0f])\u200d(?=[${PICTURE}])|(?<=[${PICTURE}])\ufe0f)|` +
    "[\\u0000-\\u001f\\u007f-\\u00a0\\u00ad\\u034f\\u061c\\u115f\\u1160\\u1680\\u17b4\\u17b5\\u180b-\\u180f\\u2000-\\u200f" +
    "\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3164\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1bca0}-\\u{1bca3}" +
    "\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]", "gu");
  const spelled = (text) => text.replace(UNSEEN, (c, joiner) => {
    const code = c.codePointAt(0), hex = code.toString(16);
    return joiner ? c : code < 256 ? "\\x" + hex.padStart(2, "0") : code < 65536 ? "\\u" + hex.padStart(4, "0") : "\\U" + hex.padStart(8, "0");
  });
  // An item that is empty, or begins or ends with a space, is not taken for another.
  const shown = (item) => item === null ? "(missing)" : item === "" ? "(empty)"
    : /^"*\((missing|empty)\)"*$|^[ \u3000]|[ \u3000]$/.test(item) ? `"${spelled(item)}"` : spelled(item);
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
    // Whoever asks may be told before the listener below is, which is then not told any more.
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
  // Paper has the first rows of what is in sight, without the room for all others.
  const print = () => {
    const last = Math.min(matching.length, ON_PAPER), more = matching.length - last;
    put(0, last);
    // What is promised, and what was verified, is on paper in full.
    document.querySelectorAll("#promise details").forEach((part) => { part.open = true; });
    const searched = matching.length < total ? `Only rows with "${search.value.trim()}" in them. ` : "";
    printed.textContent = searched + (more ? `And ${more.toLocaleString("en")} more rows, which are in the release.` : "");
  };
  const tell = () => {
    const all = total.toLocaleString("en");
    found.textContent = matching.length === total ? `${all} rows` : `${matching.length.toLocaleString("en")} of ${all} rows`;
  };
  const texts = columns.map((c, i) => (c.kind === "text" ? i : -1)).filter((i) => i >= 0);
  // In pieces, so that the page answers while many rows are looked through.
  const look = () => {
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
      tell();
      draw();
    };
    step();
  };
  // Texts by their letters, accents aside, and numbers within them by size: each text is read once, not in each
  // comparison, for a hundred thousand of them would make the page wait.
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
    look();
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
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(look, 150); });
  scroll.addEventListener("scroll", () => {
    if (framed) return;
    framed = true;
    requestAnimationFrame(() => { framed = false; draw(); });
  }, { passive: true });
  addEventListener("resize", () => draw());
  addEventListener("beforeprint", print);
  addEventListener("afterprint", () => draw());
  paper.addEventListener("change", () => draw());
  tell();
  draw();
})();
