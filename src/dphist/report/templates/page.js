"use strict";
// Only one page of rows is in the document: a hundred thousand would freeze it. Items are untrusted: they are set as
// text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const ON_SCREEN = 25, ON_PAPER = 100, IN_SUMMARY = 10;
  const table = document.getElementById("table"), scroll = document.getElementById("scroll");
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const search = document.getElementById("search"), found = document.getElementById("found");
  const pager = document.getElementById("pager"), [first, previous, next, last] = pager.querySelectorAll("button");
  const orderBy = document.getElementById("sort"), direction = document.getElementById("direction");
  const columns = data.columns, total = data.rows;
  const numbers = columns.map(({ digits }) =>
    new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  const value = (c, row) => columns[c].of === undefined
    ? columns[c].values[row] : columns[columns[c].of].values[row] - columns[c].half;
  const upper = (c, row) => columns[c].of === undefined
    ? columns[c].upper[row] : columns[columns[c].of].values[row] + columns[c].half;
  const shown = (item) => (item ?? "(missing)") || "(empty)";
  const paper = matchMedia("print"), printed = document.getElementById("printed");
  let order = Uint32Array.from({ length: total }, (_, i) => i);
  let matching = order, sorted = data.sorted, down = true, start = 0;

  // A long item is cut, and unfolds to the whole text.
  const putText = (td, letters) => {
    const whole = letters.join(""), head = Math.floor((data.longest - 1) * 2 / 3);
    if (letters.length <= data.longest) return void (td.textContent = whole);
    const part = document.createElement("details"), summary = document.createElement("summary");
    part.className = "item";
    summary.textContent = letters.slice(0, head).join("") + "…" + letters.slice(head + 1 - data.longest).join("");
    summary.title = whole;
    part.append(summary, whole);
    td.append(part);
  };
  const cell = (row, c) => {
    const td = document.createElement("td"), v = value(c, row), kind = columns[c].kind;
    td.className = kind;
    td.dataset.label = columns[c].name;
    td.setAttribute("role", "cell");
    if (kind === "text") {
      if (v === null || v === "") td.classList.add("missing");
      else if (v.length > 60) td.classList.add("long");
      td.dir = "auto";
      putText(td, [...shown(v)]);
    } else if (v !== null) {
      td.textContent = (kind === "margin" ? "±" : "") + numbers[c].format(v) + (kind === "interval" ? ` to ${numbers[c].format(upper(c, row))}` : "");
    } else if (kind === "number") td.textContent = "–";
    return td;
  };
  const put = (from, until) => {
    const rows = [];
    for (let place = from; place < until; place++) {
      const tr = document.createElement("tr");
      tr.setAttribute("role", "row");
      tr.setAttribute("aria-rowindex", place + 2);
      tr.append(...columns.map((_, c) => cell(matching[place], c)));
      rows.push(tr);
    }
    body.replaceChildren(...rows);
    table.setAttribute("aria-rowcount", matching.length + 1);
  };
  const words = (n) => n.toLocaleString("en");
  const draw = () => {
    // The media query may match before the listener below is called.
    if (paper.matches) return void toPaper();
    const until = Math.min(matching.length, start + ON_SCREEN);
    put(start, until);
    pager.hidden = matching.length <= ON_SCREEN;
    pager.querySelector("span").textContent = `${words(start + 1)} to ${words(until)} of ${words(matching.length)}`;
    first.disabled = previous.disabled = start === 0;
    next.disabled = last.disabled = until === matching.length;
  };
  const turn = (place) => {
    start = Math.max(0, place);
    draw();
    if (scroll.getBoundingClientRect().top < 0) scroll.scrollIntoView();
  };
  // Print has the summary, or what one of the links asks for: the declaration, or everything that is folded too.
  const root = document.documentElement, folded = [...document.querySelectorAll("details")];
  let wereOpen = null;
  const toPaper = () => {
    const all = (root.dataset.print ?? location.hash.replace("#print-", "")) === "all";
    const until = Math.min(matching.length, all ? ON_PAPER : IN_SUMMARY), more = matching.length - until;
    put(0, until);
    wereOpen ??= folded.map((part) => part.open);
    folded.forEach((part) => { part.open = true; });
    const searched = matching.length < total ? `Only rows with "${search.value.trim()}" in them. ` : "";
    printed.textContent = searched + (more ? `And ${words(more)} more in the release.` : "");
  };
  const backToScreen = () => {
    wereOpen?.forEach((open, place) => { folded[place].open = open; });
    wereOpen = null;
    delete root.dataset.print;
    draw();
  };
  const showNumber = () => {
    found.textContent = matching.length === total ? `${words(total)} rows` : `${words(matching.length)} of ${words(total)} rows`;
  };
  const texts = columns.map((c, i) => (c.kind === "text" ? i : -1)).filter((i) => i >= 0);
  const find = () => {
    const wanted = search.value.trim().toLowerCase();
    const matches = (row) => texts.some((c) => shown(columns[c].values[row]).toLowerCase().includes(wanted));
    matching = wanted ? order.filter(matches) : order;
    start = 0;
    showNumber();
    draw();
  };
  // Accents and case do not matter, and numbers within texts sort by size.
  const textKey = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/\d+/g, (n) => n.padStart(15, "0"));
  const sortKey = (c, row) => {
    const v = value(c, row);
    if (columns[c].kind !== "text") return v ?? -Infinity;
    return columns[c].number ? Number(v ?? Infinity) : textKey(v ?? "\uffff");
  };
  const sort = (c) => {
    down = c === sorted ? !down : columns[c].kind !== "text";
    sorted = c;
    const sign = down ? -1 : 1, keys = Array.from({ length: total }, (_, row) => sortKey(c, row));
    order = order.slice().sort((a, b) => keys[a] < keys[b] ? -sign : keys[a] > keys[b] ? sign : a - b);
    orderBy.selectedIndex = c;
    direction.textContent = down ? "↓" : "↑";
    heads.forEach((head, i) => i === c ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
    find();
  };

  heads.forEach((head, c) => {
    head.firstElementChild.disabled = false;
    head.firstElementChild.addEventListener("click", () => sort(c));
  });
  orderBy.disabled = direction.disabled = false;
  orderBy.addEventListener("change", () => sort(orderBy.selectedIndex));
  direction.addEventListener("click", () => sort(sorted));
  let waiting = 0;
  search.disabled = false;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(find, 150); });
  first.addEventListener("click", () => turn(0));
  previous.addEventListener("click", () => turn(start - ON_SCREEN));
  next.addEventListener("click", () => turn(start + ON_SCREEN));
  last.addEventListener("click", () => turn(ON_SCREEN * Math.floor((matching.length - 1) / ON_SCREEN)));
  for (const link of document.querySelectorAll("a[id^='print-']")) link.addEventListener("click", (event) => {
    event.preventDefault();
    root.dataset.print = link.id.replace("print-", "");
    window.print();
  });
  // A link to a folded part opens it.
  const unfold = () => { const part = document.getElementById(location.hash.slice(1)); if (part) for (let at = part; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true; };
  addEventListener("hashchange", unfold);
  addEventListener("beforeprint", toPaper);
  addEventListener("afterprint", backToScreen);
  paper.addEventListener("change", () => paper.matches ? toPaper() : backToScreen());
  unfold();
  showNumber();
  draw();
})();
