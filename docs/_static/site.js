// Draws a figure when it comes into view; until then, and without scripts, its picture is shown.
(() => {
  const root = new URL(".", document.currentScript.src);
  const loading = new Map();
  const script = (name) => {
    if (!loading.has(name)) {
      loading.set(name, new Promise((done, failed) => {
        const element = document.createElement("script");
        element.src = new URL(`figures/${name}`, root);
        element.onload = done;
        element.onerror = failed;
        document.head.append(element);
      }));
    }
    return loading.get(name);
  };
  const draw = async (box) => {
    const name = box.dataset.figure;
    await Promise.all([script("plotly.min.js"), script("dark.js"), script(`${name}.js`)]);
    const spec = structuredClone(window.tsfmFigures[name]);
    if (!box.dataset.drawn) box.replaceChildren();
    const {data, layout} = darkFigure(spec, isDark());
    await Plotly.react(box, data, layout, spec.config);
    box.dataset.drawn = "yes";
  };
  // furo writes the reader's choice on the body
  const isDark = () => {
    const choice = document.body.dataset.theme;
    return choice === "dark" || (choice !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  };
  const redraw = () => document.querySelectorAll(".tsfm-figure[data-drawn]").forEach(draw);
  const start = () => {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting) {
          seen.unobserve(entry.target);
          draw(entry.target);
        }
      }
    }, { rootMargin: "400px" });
    document.querySelectorAll(".tsfm-figure").forEach((box) => seen.observe(box));
    new MutationObserver(redraw).observe(document.body, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
