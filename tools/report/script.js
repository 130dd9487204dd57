"use strict";
// Tables that are sorted, filtered and turned by pages, maps that are zoomed, and the theme. Texts of what was looked at
// become text nodes, and never HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const ROWS = 50;
  const FEW = 8;
  const thin = "\u202f";

  // -- values -----------------------------------------------------------------------------------------------------------

  const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, thin);
  const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

  function human(size) {
    if (size < 1024) return `${size} B`;
    let unit = -1;
    do {
      size /= 1024;
      unit += 1;
    } while (size >= 999.95 && unit < UNITS.length - 1);
    return `${size.toFixed(1)} ${UNITS[unit]}`;
  }

  function moment(millis) {
    const date = new Date(Number(millis));
    if (Number.isNaN(date.getTime())) return `${millis} ms`;
    return date.toISOString().replace(/\.\d+Z$/, "Z");
  }

  const SHOWN = {
    id: String,
    int: grouped,
    size: (value) => human(Number(value)),
    time: moment,
    text: String,
    name: String,
    place: String,
    sentence: String,
    ratio: (value) => `${(value * 100).toFixed(value > 0.99 && value < 1 ? 2 : 1)} %`,
  };

  // -- tables -----------------------------------------------------------------------------------------------------------

  class Table {
    constructor(root, { columns, sort, down }) {
      this.root = root;
      this.columns = columns;
      this.length = columns[0].values.length;
      this.order = Array.from({ length: this.length }, (_, row) => row);
      this.rows = this.order;
      this.page = 0;
      this.heads = [...root.querySelectorAll("thead th")];
      this.body = root.querySelector("tbody");
      this.status = root.querySelector("output");
      this.where = root.querySelector(".pager span");
      this.turns = [...root.querySelectorAll(".pager button")];
      this.heads.forEach((head, number) => head.firstElementChild.addEventListener("click", () => this.sort(number)));
      this.turns.forEach((button) => button.addEventListener("click", () => this.turn(Number(button.dataset.turn))));
      this.input = root.querySelector("input");
      this.input.addEventListener("input", () => this.filter());
      root.querySelector(".tools label").hidden = this.length <= FEW;
      root.querySelector(".pager").hidden = this.length <= ROWS;
      this.by = sort;
      this.down = down;
      this.arrange();
    }

    value(column, row) {
      const value = column.values[row];
      return column.texts ? column.texts[value] : value;
    }

    sort(number) {
      // Numbers are looked at from the largest on, texts from A on.
      this.down = this.by === number ? !this.down : !(this.columns[number].texts || this.columns[number].kind === "id");
      this.by = number;
      this.arrange();
    }

    arrange() {
      const column = this.columns[this.by];
      const sign = this.down ? -1 : 1;
      const key = column.texts
        ? ranks(column.texts, column.values)
        : column.values.map((value) => (value === null ? null : Number(value)));
      // What is not known is last in either order, and equal rows stay in theirs.
      this.order.sort((one, other) => {
        if (key[one] === null || key[other] === null) return (key[one] === null) - (key[other] === null) || one - other;
        return sign * (key[one] - key[other]) || one - other;
      });
      this.heads.forEach((head, number) => {
        if (number === this.by) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      this.filter();
    }

    filter() {
      const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
      if (words.length) {
        this.texts ??= this.order.map(() => null);
        this.rows = this.order.filter((row) => {
          const text = (this.texts[row] ??= this.text(row));
          return words.every((word) => text.includes(word));
        });
      } else {
        this.rows = this.order;
      }
      this.page = 0;
      this.draw();
    }

    text(row) {
      return this.columns
        .filter((column) => column.texts || column.kind === "id" || column.kind === "time")
        .map((column) => (this.value(column, row) === null ? "" : SHOWN[column.kind](this.value(column, row))))
        .join("\n")
        .toLowerCase();
    }

    turn(pages) {
      this.page += pages;
      this.draw();
    }

    draw() {
      const first = this.page * ROWS;
      const some = this.rows.slice(first, first + ROWS);
      this.body.replaceChildren(...some.map((row) => this.row(row)));
      const of = this.rows.length === this.length ? "" : ` of ${grouped(this.length)}`;
      this.status.textContent = `${grouped(this.rows.length)}${of} ${this.length === 1 ? "row" : "rows"}`;
      const last = first + some.length;
      this.where.textContent = some.length ? `${grouped(first + 1)} to ${grouped(last)}` : "none";
      this.turns[0].disabled = this.page === 0;
      this.turns[1].disabled = last >= this.rows.length;
    }

    row(row) {
      const line = document.createElement("tr");
      this.columns.forEach((column, number) => {
        const cell = document.createElement(number ? "td" : "th");
        if (!number) cell.scope = "row";
        cell.className = column.kind;
        const value = this.value(column, row);
        if (value === null || value === "") {
          cell.classList.add("none");
          cell.textContent = "–";
        } else if (column.texts) {
          const text = document.createElement("bdi");
          text.textContent = value;
          cell.append(text);
        } else {
          cell.textContent = SHOWN[column.kind](value);
        }
        line.append(cell);
      });
      return line;
    }
  }

  // By place in the alphabet: texts are compared once each, however many rows have them. An empty one is not known.
  function ranks(texts, values) {
    const sorted = texts.map((_, number) => number).sort((one, other) => compare(texts[one], texts[other]));
    const rank = [];
    sorted.forEach((number, place) => (rank[number] = texts[number] === "" ? null : place));
    return values.map((number) => rank[number]);
  }

  const { compare } = new Intl.Collator("en", { numeric: true });

  // -- maps -------------------------------------------------------------------------------------------------------------

  const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const FIELD = 56;
  const HOLES = 10;
  const GAP = 4;

  class HoleMap {
    constructor(root, { total, acked, holes, most, every, ids, starts }) {
      this.root = root;
      this.total = total;
      this.acked = bytes(acked);
      this.holes = bytes(holes);
      this.most = most;
      this.every = every;
      this.ids = ids;
      this.starts = starts;
      this.bins = this.acked.length;
      this.canvas = root.querySelector("canvas");
      this.status = root.querySelector("output");
      this.buttons = Object.fromEntries([...root.querySelectorAll("button")].map((one) => [one.dataset.do, one]));
      const moves = {
        in: () => this.zoom(0.5),
        out: () => this.zoom(2),
        earlier: () => this.move(-0.5),
        later: () => this.move(0.5),
        all: () => this.show(0, this.bins),
      };
      for (const [name, button] of Object.entries(this.buttons)) button.addEventListener("click", moves[name]);
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerleave", () => this.tell());
      this.canvas.addEventListener("dblclick", (event) => this.zoom(0.5, this.bin(event)));
      root.querySelector(".controls").classList.toggle("still", this.bins <= this.least);
      this.from = 0;
      this.span = this.bins;
    }

    get least() {
      return Math.min(this.bins, 16);
    }

    zoom(factor, middle = this.from + this.span / 2) {
      const span = this.span * factor;
      this.show(middle - span / 2, span);
    }

    move(share) {
      this.show(this.from + this.span * share, this.span);
    }

    show(from, span) {
      this.span = Math.round(Math.min(Math.max(span, this.least), this.bins));
      this.from = Math.round(Math.min(Math.max(from, 0), this.bins - this.span));
      this.draw();
    }

    // Which entry a bin begins with, counted through the topic.
    entry(bin) {
      return Math.floor((this.total * bin) / this.bins);
    }

    place(entry) {
      let low = 0;
      let high = this.starts.length;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (this.starts[middle] <= entry) low = middle;
        else high = middle;
      }
      if (this.every === 1) return `${this.ids[low]}:${entry - this.starts[low]}`;
      return `ledger ${this.ids[low]} or one of the ${this.every - 1} behind it`;
    }

    draw() {
      const { canvas } = this;
      const width = canvas.clientWidth;
      const scale = window.devicePixelRatio || 1;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(canvas.clientHeight * scale);
      const context = canvas.getContext("2d");
      context.scale(scale, scale);
      const colour = colours();
      context.fillStyle = colour.left;
      context.fillRect(0, 0, width, FIELD);
      const step = 1 / scale;
      for (let pixel = 0; pixel < canvas.width; pixel += 1) {
        const x = pixel * step;
        const first = this.from + Math.floor((pixel / canvas.width) * this.span);
        const next = this.from + Math.floor(((pixel + 1) / canvas.width) * this.span);
        const end = Math.max(next, first + 1);
        const share = mean(this.acked, first, end) / 255;
        if (share > 0) {
          const tall = share === 1 ? FIELD : Math.min(Math.max(share * FIELD, 1), FIELD - 1);
          context.fillStyle = colour.acked;
          context.fillRect(x, FIELD - tall, step, tall);
        }
        const holes = mean(this.holes, first, end) / 255;
        if (holes > 0) {
          context.fillStyle = colour.holes;
          context.globalAlpha = 0.25 + 0.75 * holes;
          context.fillRect(x, FIELD + GAP, step, HOLES);
          context.globalAlpha = 1;
        }
      }
      context.strokeStyle = colour.ink;
      context.globalAlpha = 0.35;
      context.strokeRect(0.5, 0.5, width - 1, FIELD - 1);
      context.globalAlpha = 1;
      this.ticks(context, width, colour);
      this.buttons.in.disabled = this.span <= this.least;
      this.buttons.out.disabled = this.buttons.all.disabled = this.span >= this.bins;
      this.buttons.earlier.disabled = this.from <= 0;
      this.buttons.later.disabled = this.from + this.span >= this.bins;
      this.tell();
    }

    // Where ledgers begin, as many as there is room for.
    ticks(context, width, colour) {
      const top = FIELD + GAP + HOLES + 3;
      const low = this.entry(this.from);
      const high = this.entry(this.from + this.span);
      context.fillStyle = colour.ink;
      context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      context.textBaseline = "top";
      let free = 0;
      const label = (x, text) => {
        const end = x + 4 + context.measureText(text).width;
        if (x < free || end > width) return;
        context.fillRect(Math.round(x), FIELD, 1, top - FIELD + 4);
        context.fillText(text, x + 4, top + 2);
        free = end + 24;
      };
      if (this.every === 1) label(0, this.place(low));
      this.starts.forEach((start, number) => {
        if (start > low && start < high) label(((start - low) / (high - low)) * width, `ledger ${this.ids[number]}`);
      });
    }

    bin(event) {
      const share = event.offsetX / this.canvas.clientWidth;
      return Math.min(this.from + Math.floor(share * this.span), this.bins - 1);
    }

    point(event) {
      const bin = this.bin(event);
      const first = this.entry(bin);
      const end = this.entry(bin + 1);
      const share = this.acked[bin] / 255;
      const what =
        end - first === 1
          ? `entry ${this.place(first)}: ${share ? "acknowledged" : "left"}`
          : `${grouped(end - first)} entries from ${this.place(first)}: ${percent(share)} acknowledged`;
      this.status.textContent = what;
    }

    tell() {
      const low = this.entry(this.from);
      const high = this.entry(this.from + this.span);
      const share = mean(this.acked, this.from, this.from + this.span) / 255;
      const which = this.span === this.bins ? "All" : `From ${this.place(low)} on`;
      this.status.textContent = `${which}: ${grouped(high - low)} entries, ${percent(share)} acknowledged`;
    }
  }

  function mean(values, first, end) {
    let sum = 0;
    for (let at = first; at < end; at += 1) sum += values[at];
    return end > first ? sum / (end - first) : 0;
  }

  function percent(share) {
    if (share > 0 && share < 0.001) return "less than 0.1 %";
    if (share < 1 && share > 0.999) return "more than 99.9 %";
    return `${(share * 100).toFixed(1)} %`;
  }

  // As the legend shows them, in the scheme that is seen.
  function colours() {
    const swatch = (name) => getComputedStyle(document.querySelector(`.legend .${name}`)).backgroundColor;
    const ink = getComputedStyle(document.querySelector(".map canvas")).color;
    return { acked: swatch("acked"), left: swatch("left"), holes: swatch("holes"), ink };
  }

  // -- the theme --------------------------------------------------------------------------------------------------------

  const THEMES = { system: "system", light: "light", dark: "dark" };
  const STORED = "bookstand-report-theme";

  function remembered(theme) {
    // A browser may forbid it.
    try {
      if (theme) localStorage.setItem(STORED, theme);
      return localStorage.getItem(STORED);
    } catch {
      return null;
    }
  }

  function dress(theme) {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    button.textContent = `Theme: ${THEMES[theme]}`;
    button.hidden = false;
    button.onclick = () => {
      const names = Object.keys(THEMES);
      const next = names[(names.indexOf(theme) + 1) % names.length];
      remembered(next);
      dress(next);
      drawn.forEach((map) => map.draw());
    };
  }

  // -- all of it --------------------------------------------------------------------------------------------------------

  const drawn = new Set();
  const theme = remembered();
  dress(theme in THEMES ? theme : "system");
  for (const root of document.querySelectorAll("[data-table]")) new Table(root, data.tables[root.dataset.table]);
  const maps = new Map();
  for (const root of document.querySelectorAll("[data-map]")) {
    maps.set(root, new HoleMap(root, data.maps[root.dataset.map]));
  }
  // A map is drawn when it is about to be seen.
  const watch = new IntersectionObserver(
    (seen) => {
      for (const { isIntersecting, target } of seen) {
        if (!isIntersecting || drawn.has(maps.get(target))) continue;
        drawn.add(maps.get(target));
        maps.get(target).draw();
      }
    },
    { rootMargin: "400px" },
  );
  for (const root of maps.keys()) watch.observe(root);
  const again = () => drawn.forEach((map) => map.draw());
  window.addEventListener("resize", again);
  window.addEventListener("beforeprint", () => maps.forEach((map) => map.draw()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
})();
