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
  Plotly.react(plot, data, width ? {...layout, width} : layout, config);
}
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
