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
const dark = () => getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
// as tsfm_lens.viz.dark: light and dark of every colour are exchanged, between the page's ground and its text
const COLOUR = /(^|color:)(?:#([0-9a-f]{6})|rgba\(([\d., ]+)\))(?=$|[";])/gi;
function turned(_, before, hex, rgba) {
  const parts = hex ? [0, 2, 4].map(at => parseInt(hex.slice(at, at + 2), 16)) : rgba.split(",").map(Number);
  const rgb = parts.slice(0, 3).map(part => part / 255), high = Math.max(...rgb), low = Math.min(...rgb);
  const light = 0.09 + (1 - (high + low) / 2) * 0.86, reach = 0.8 * (high - low ? (high - low) / (1 - Math.abs(high + low - 1)) : 0);
  const chroma = (1 - Math.abs(2 * light - 1)) * reach, middle = (high + low) / 2;
  const now = rgb.map(part => Math.round(255 * (light + (high - low ? (part - middle) / (high - low) : 0) * chroma)));
  return `${before}rgba(${now},${parts.length > 3 ? parts[3] : 1})`;
}
function themed(value) {
  if (!dark()) return value;
  if (typeof value === "string") return value.replace(COLOUR, turned);
  if (Array.isArray(value)) return value.length && typeof value[0] === "number" ? value : value.map(themed);
  if (!value || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, themed(each)]));
}
function grounded(layout) {
  const now = themed(layout), clear = "rgba(0,0,0,0)";
  // a map's own ground says what is missing
  return {...now, paper_bgcolor: clear, plot_bgcolor: now.plot_bgcolor || clear};
}

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
function render(plot) {
  const spec = specs.get(plot);
  plot.dataset.drawn = "1";
  Plotly.react(plot, themed(spec.data), grounded(spec.layout), config);
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

// tabs of series: the linked view and the cards follow
let follow = () => {};
function choose(name) {
  for (const place of document.querySelectorAll("[data-series]")) place.hidden = place.dataset.series !== name;
  follow(name);
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

async function drawAll() {
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const plot of plots) await show(plot);
  document.documentElement.dataset.whole = String(plots.length);
}
const redraw = () => plots.filter(plot => plot.dataset.drawn).forEach(render);
document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = dark() ? "light" : "dark";
  redraw();
});
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.getElementById("print").addEventListener("click", async () => {
  await drawAll();
  window.print();
});
window.addEventListener("beforeprint", () => {
  document.documentElement.dataset.theme = "light";
  for (const details of document.querySelectorAll("details")) details.open = true;
  if (window.Plotly) plots.filter(plot => specs.has(plot)).forEach(plot => { render(plot); Plotly.Plots.resize(plot); });
});
(async () => {
  const place = document.getElementById("linked");
  if (place) follow = linkedView(place, JSON.parse(await packed("linked-state")));
  tabs();
  document.documentElement.dataset.ready = "1";
  const watch = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) {
      watch.unobserve(entry.target);
      show(entry.target).catch(fail);
    }
  }, {rootMargin: "400px"});
  plots.forEach(plot => watch.observe(plot));
})().catch(fail);
