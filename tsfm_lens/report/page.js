// The page: packed parts, tabs, lazy figures, theme, print, tables.
async function unpack(text) {
  if (!window.DecompressionStream) throw new Error("this browser cannot unpack the figures");
  const bytes = Uint8Array.from(atob(text.trim()), sign => sign.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}
const packed = id => unpack(document.getElementById(id).textContent);
const config = JSON.parse(document.getElementById("config").textContent);
if (window.matchMedia("(hover: none)").matches) config.displayModeBar = false;

// dark or light: the system's, unless the button says otherwise
const system = window.matchMedia("(prefers-color-scheme: dark)");
const dark = () => document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : system.matches;
const plots = Array.from(document.querySelectorAll(".plot"));
const specs = new Map();
let library;
function plotly() {
  library ||= packed("plotly").then(text => {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  });
  return library;
}
async function fetched(plot) {
  if (!specs.has(plot)) specs.set(plot, JSON.parse(await packed(plot.id.replace(/plot$/, "spec"))));
  return specs.get(plot);
}
function render(plot, width = 0) {
  const spec = specs.get(plot);
  plot.dataset.drawn = "1";
  const {data, layout} = darkFigure(spec, dark());
  const fitted = {...layout, ...fewerTicks(layout, width || plot.clientWidth)};
  Plotly.react(plot, data, width ? {...fitted, width} : fitted, config);
  if (!shapes.has(plot)) plot.on("plotly_afterplot", () => labelCells(plot));
  shapes.set(plot, layout.shapes || []);
  labelCells(plot);
  mark(plot);
}

// axes have as many numbers as fit the width that figures usually have; where it is narrower, fewer
const WIDE = 640;
function fewerTicks(layout, width) {
  const across = Object.entries(layout).filter(([name, axis]) => name.startsWith("xaxis") && axis.nticks);
  return Object.fromEntries(across.map(([name, axis]) => [name, {...axis, nticks: Math.max(1, Math.floor(axis.nticks * Math.min(1, width / WIDE)))}]));
}

// plotly writes grey or white on a map, in any size; here black or white, the one that is told better from the cell, in
// type that can be read. Where a cell has no room for that its number is left out, or a dot if it was in parentheses.
const SMALLEST = 10, USUAL = 12;
function labelCells(plot) {
  for (const label of plot.querySelectorAll(".heatmap-label")) {
    const axis = plot._fullLayout[label.closest(".hm").__data__[0].trace.coloraxis];
    if (!axis) continue;
    const at = Math.min(Math.max((label.__data__.z - axis.cmin) / (axis.cmax - axis.cmin), 0), 1);
    const next = Math.max(axis.colorscale.findIndex(([stop]) => stop >= at), 1);
    const [[low, from], [high, to]] = axis.colorscale.slice(next - 1, next + 1), part = (at - low) / (high - low);
    const [first, last] = [from, to].map(text => text[0] === "#" ? text.match(/\w\w/g).map(code => parseInt(code, 16)) : text.match(/[\d.]+/g).map(Number));
    const [red, green, blue] = [0, 1, 2].map(each => ((first[each] + part * (last[each] - first[each])) / 255) ** 2.2);
    const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    for (const text of label.querySelectorAll("text")) {
      text.style.fill = light > 0.18 ? "#000" : "#fff";
      if (parseFloat(text.style.fontSize) < SMALLEST) text.textContent = text.textContent.startsWith("(") ? "·" : "";
      text.style.fontSize = `${USUAL}px`;
    }
  }
}

// what is chosen in the linked view is marked where a figure has it: steps on axes of dates, a component by its row or cell
const shapes = new Map();
let chosen = {component: "", steps: [], queries: [], keys: []};
function mark(plot) {
  const full = plot._fullLayout, own = shapes.get(plot), made = [];
  const line = {color: dark() ? "#ff9148" : "#d55e00", width: 3};
  for (const axis of Object.values(full).filter(each => each && each.type === "date" && each._id[0] === "x")) {
    const [first, last] = axis.range.map(axis.r2l);
    for (const [from, to] of chosen.steps) {
      const [start, stop] = [from, to].map(axis.d2l), brushed = stop > start;
      if (stop < first || start > last) continue;
      const place = {x0: Math.max(start, first), x1: Math.min(stop, last), y0: 0, y1: 1, xref: axis._id, yref: `${axis.anchor} domain`};
      made.push({type: "rect", ...place, line: {...line, width: brushed ? 0 : 3}, fillcolor: line.color, opacity: brushed ? 0.2 : 0.6});
    }
  }
  const framed = new Set();
  for (const {type, xaxis: xref, yaxis: yref, x, y, customdata, meta} of plot._fullData) {
    const [across, down] = [xref, yref].map(name => name && full[name.replace(/^[xy]/, "$&axis")]);
    if (!across || !down) continue;
    const frame = (row, place) => made.push({type: "rect", xref, yref, y0: row - 0.5, y1: row + 0.5, line, ...place});
    const row = down.type === "category" && !framed.has(yref) ? down._categories.indexOf(chosen.component) : -1;
    if (row >= 0) frame(row, {xref: `${xref} domain`, x0: 0, x1: 1});
    framed.add(yref);
    // attention of a head: its panel, the chosen step among queries, the brushed stretch among keys
    const whole = {type: "rect", xref: `${xref} domain`, yref: `${yref} domain`, x0: 0, x1: 1, y0: 0, y1: 1, line};
    if (meta && meta.component === chosen.component) made.push(whole);
    if (meta && meta.steps) {
      const inside = (axis, [from, to]) => [Math.max(from - 0.5, Math.min(...axis.range)), Math.min(to + 0.5, Math.max(...axis.range))];
      for (const at of chosen.queries) {
        const [y0, y1] = inside(down, [at, at]);
        if (y0 < y1) made.push({...whole, yref, y0, y1, line: {...line, width: 1.5}});
      }
      for (const stretch of chosen.keys) {
        const [x0, x1] = inside(across, stretch);
        if (x0 < x1) made.push({...whole, xref, x0, x1, line: {width: 0}, fillcolor: line.color, opacity: 0.2});
      }
    }
    if (type !== "heatmap" || !customdata) continue;
    customdata.forEach((cells, at) => Array.from(cells).forEach((text, column) => {
      const middle = across.d2c(x[column]);
      if (String(text).includes(`<b>${chosen.component}</b>`)) frame(down.d2c(y[at]), {x0: middle - 0.5, x1: middle + 0.5});
    }));
  }
  if (made.length || full.shapes.length > own.length) Plotly.relayout(plot, {shapes: [...own, ...made]});
}
let later;
function markAll() {
  clearTimeout(later);
  // a slider chooses many steps in a second
  later = setTimeout(() => plots.filter(plot => shapes.has(plot) && plot.offsetWidth).forEach(mark), 100);
}
// what was folded away was not marked
document.addEventListener("toggle", markAll, true);
async function show(plot) {
  await Promise.all([plotly(), fetched(plot)]);
  if (!plot.dataset.drawn) render(plot);
}
function fail(error) {
  const note = document.getElementById("unpacked");
  note.hidden = false;
  note.textContent = `The figures cannot be drawn: ${error.message}. The texts and tables of this page are complete.`;
}

// tabs of series: the linked view, the cards and the chapters follow
let linked = {show() {}, fit() {}};
function choose(name) {
  for (const place of document.querySelectorAll("[data-series]")) place.hidden = place.dataset.series !== name;
  linked.show(name);
  // what was drawn while it was hidden had no width
  if (window.Plotly)
    for (const plot of plots) if (plot.dataset.drawn && plot.offsetWidth) Plotly.Plots.resize(plot);
}
function tabs() {
  for (const radio of document.querySelectorAll("input[name=series]"))
    radio.addEventListener("change", () => choose(radio.value));
  const first = document.querySelector("input[name=series]:checked") || document.querySelector("input[name=series]");
  if (!first) return;
  first.checked = true;
  choose(first.value);
}

// tables are packed: unpacked here, and without a script still a .csv.gz
document.addEventListener("click", async event => {
  const link = event.target.closest("a[download]");
  if (!link || !link.href.startsWith("data:application/gzip;base64,")) return;
  event.preventDefault();
  const text = await unpack(link.href.split(",")[1]);
  const url = URL.createObjectURL(new Blob([text], {type: "text/csv"}));
  const real = document.createElement("a");
  Object.assign(real, {href: url, download: link.download.replace(/\.gz$/, "")});
  real.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
});

async function drawAll(wanted = plots) {
  for (const plot of wanted) await show(plot);
  document.documentElement.dataset.whole = String(plots.length);
}
const redraw = () => plots.filter(plot => plot.dataset.drawn).forEach(plot => render(plot));
document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  redraw();
});
system.addEventListener("change", redraw);
// a browser does not wait for what it prints, so figures are drawn before it is asked to
async function printPage() {
  await drawAll(plots.filter(plot => plot.offsetWidth)).catch(fail);
  window.print();
}
document.getElementById("print").addEventListener("click", printPage);
document.addEventListener("keydown", event => {
  if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "p") return;
  event.preventDefault();
  printPage();
});
const origin = document.querySelector("#provenance details");
let before;
window.addEventListener("beforeprint", () => {
  before ||= {theme: document.documentElement.dataset.theme, open: origin.open};
  document.documentElement.dataset.theme = "light";
  origin.open = true;
  // the page is laid out for paper only after this, so the width of A4 between its margins is given, in pixels
  fit(688);
});
window.addEventListener("afterprint", () => {
  const {theme, open} = before || {};
  before = undefined;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  origin.open = open;
  fit(0);
});
function fit(width) {
  // the view is printed at 0.8 of its size
  linked.fit(width / 0.8);
  if (!window.Plotly) return;
  for (const plot of plots.filter(each => specs.has(each) && each.offsetWidth)) {
    render(plot, width);
    if (!width) Plotly.Plots.resize(plot);
  }
}
(async () => {
  const place = document.getElementById("linked");
  if (place) place.addEventListener("chosen", ({detail}) => {
    chosen = detail;
    markAll();
  });
  if (place) linked = linkedView(place, JSON.parse(await packed("linked-state")));
  tabs();
  document.documentElement.dataset.ready = "1";
  const watch = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) {
      watch.unobserve(entry.target);
      show(entry.target).catch(fail);
    }
  }, {rootMargin: "400px"});
  plots.forEach(plot => watch.observe(plot));
  // what is printed before it was seen is drawn then, at once
  const [open, folded] = [true, false].map(wanted => plots.filter(plot => Boolean(plot.offsetWidth) === wanted));
  await Promise.all([plotly(), ...open.map(fetched)]);
  for (const plot of folded) {
    await fetched(plot);
    await new Promise(resolve => setTimeout(resolve));
  }
})().catch(fail);
