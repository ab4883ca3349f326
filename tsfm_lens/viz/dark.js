// As tsfm_lens.viz.dark: light and dark of every colour are exchanged, between the page's ground and its text.
const darkFigure = (() => {
  const COLOUR = /(^|color:)(?:#([0-9a-f]{6})|rgba\(([\d., ]+)\))(?=$|[";])/gi;
  function turned(_, before, hex, rgba) {
    const parts = hex ? [0, 2, 4].map(at => parseInt(hex.slice(at, at + 2), 16)) : rgba.split(",").map(Number);
    const rgb = parts.slice(0, 3).map(part => part / 255), high = Math.max(...rgb), low = Math.min(...rgb);
    const light = 0.09 + (1 - (high + low) / 2) * 0.86, middle = (high + low) / 2, reach = high - low;
    const chroma = reach ? (1 - Math.abs(2 * light - 1)) * 0.8 * reach / (1 - Math.abs(high + low - 1)) : 0;
    const now = rgb.map(part => Math.round(255 * (light + (reach ? (part - middle) / reach : 0) * chroma)));
    return `${before}rgba(${now},${parts.length > 3 ? parts[3] : 1})`;
  }
  function exchanged(value) {
    if (typeof value === "string") return value.replace(COLOUR, turned);
    // numbers hold no colours; a stop of a scale is a number and a colour
    if (Array.isArray(value)) return value.length && typeof value.at(-1) === "number" ? value : value.map(exchanged);
    if (!value || typeof value !== "object" || ArrayBuffer.isView(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, exchanged(each)]));
  }
  return (spec, dark) => {
    const {data, layout} = dark ? exchanged({data: spec.data, layout: spec.layout}) : spec, clear = "rgba(0,0,0,0)";
    // a map's own ground says what is missing
    const bar = {...layout.modebar, bgcolor: clear, color: "rgba(128,128,128,0.6)", activecolor: "rgb(128,128,128)"};
    return {data, layout: {...layout, modebar: bar, paper_bgcolor: clear, plot_bgcolor: layout.plot_bgcolor || clear}};
  };
})();
