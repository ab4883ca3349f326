// The linked view: series with the attention strip → heads → forecast with and without a head. Everything answers to
// three choices: a head (click), a step of the forecast (click or slider), a brushed stretch of the context (drag).
// Where a model stands behind it, ask(choice) has it forecast without a set of heads, and without the brushed stretch;
// answer(reply) brings what came.
function linkedView(root, state, ask) {
  const UNREAD = 1e-4;
  const ns = "http://www.w3.org/2000/svg";
  const view = {series: 0, head: state.series[0].start, step: -1, brush: null, ablated: []};
  root.classList.add("linked");
  root.innerHTML = `<div class="panels">
<div><h3>What is given, and what <span data-part="head"></span> reads of it</h3><div data-part="context"></div>
<p class="key"><b>—</b> observed (<span data-part="unit"></span>) <b class="k-read">■</b> attention; drag to brush a stretch</p></div>
<div><h3>Heads of <span data-part="kind"></span>, in order of computation; click one</h3>
<div class="stream"><span class="end">tokens</span><span class="wire"></span><div data-part="map" role="group" aria-label="Heads"></div><span class="wire"></span><span class="end">output head → forecast</span></div>
<p class="key" data-part="scale"></p></div>
<div><h3>The forecast, with and without <span data-part="less"></span>; click a step</h3><div data-part="forecast"></div>
<p class="key"><b>—</b> observed <b>┈</b> what came <b class="k-median">━</b> forecast, with its band <b class="k-less">╍</b> without <span data-part="lesskey"></span>
<span data-part="maskedkey"><b class="k-masked">╍</b> without the brushed stretch</span></p></div>
</div>
<p class="words" data-part="words" aria-live="polite"></p>
<div class="choices" data-part="live"${ask ? "" : " hidden"}>
<label><input type="checkbox" data-part="ablate"> ablate this head (or shift-click any)</label>
<span>ablated: <span data-part="set"></span></span>
<button type="button" class="plain" data-part="empty">clear heads</button>
<strong data-part="news" role="status"></strong>
</div>
<div class="choices">
<label>forecast step <input type="range" min="0" value="0" data-part="step"> <span data-part="stepname"></span></label>
<label>brush from <input type="range" min="0" value="0" data-part="from"></label>
<label>to <input type="range" min="0" value="0" data-part="to"></label>
<button type="button" class="plain" data-part="clear">clear brush</button>
</div>`;
  for (const text of state.notes) {
    const note = document.createElement("p");
    note.className = "note";
    note.textContent = text;
    root.append(note);
  }
  const part = name => root.querySelector(`[data-part="${name}"]`);
  part("kind").textContent = state.kind;
  const number = value => {
    const text = Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
    return text.replace("-", "−");
  };
  const percent = share => share < UNREAD ? share > 0 ? "less than 0.01 %" : "0 %" : `${number(100 * share)} %`;
  const bytes = new Map();

  // one byte is the root of a share of the row's largest weight
  function unpacked(row) {
    if (!bytes.has(row)) {
      const [top, text] = row, raw = atob(text);
      bytes.set(row, Float64Array.from(raw, sign => top * (sign.charCodeAt(0) / 255) ** 2));
    }
    return bytes.get(row);
  }
  const series = () => state.series[view.series];

  // one question at a time: what is chosen before its answer comes is asked then
  let reply = {ablated: [], brush: null, error: ""}, waits = false, again = false;
  function question() {
    again = waits;
    if (!waits) ask({head: view.head, ablated: view.ablated, brush: view.brush});
    waits = true;
  }
  const answered = name => JSON.stringify(reply[name]) === JSON.stringify(view[name]);
  // without the ablated heads; where none is, without the selected one
  const less = () => !view.ablated.length ? series().states[view.head] : answered("ablated") ? reply.without : {};
  const masked = () => ask && view.brush && answered("brush") ? reply.masked : {};
  function attention(head) {
    const own = series().states[head];
    return unpacked(own.rows && view.step >= 0 ? own.rows[series().row[view.step]] : own.mean);
  }
  // the context step at which a stretch begins; stretches end at the forecast start
  const edge = (bin, bins) => Math.max(series().context.length - (bins - bin) * state.bin, 0);
  function brushed(head) {
    const weights = attention(head), [low, high] = view.brush;
    let sum = 0;
    for (let bin = 0; bin < weights.length; bin++) {
      const from = edge(bin, weights.length), to = edge(bin + 1, weights.length);
      const inside = Math.min(to, high) - Math.max(from, low);
      if (inside > 0) sum += weights[bin] * inside / (to - from);
    }
    return sum;
  }

  function element(name, attributes, parent, text) {
    const made = document.createElementNS(ns, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }
  function scale(low, high, from, to) {
    return value => from + (value - low) / (high - low || 1) * (to - from);
  }
  function ticks(low, high, count) {
    const raw = (high - low || 1) / count, ten = 10 ** Math.floor(Math.log10(raw));
    const size = ten * [1, 2, 5, 10].find(factor => factor * ten >= raw);
    const made = [];
    for (let at = Math.ceil(low / size) * size; at <= high; at += size) made.push(at);
    return made;
  }
  function line(values, x, y, attributes, parent) {
    let path = "", pen = "M";
    values.forEach((value, at) => {
      if (value === null) { pen = "M"; return; }
      path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
    });
    return element("path", {d: path, fill: "none", ...attributes}, parent);
  }
  function extent(...lists) {
    const values = lists.flat().filter(value => value !== null && value !== undefined);
    const low = Math.min(...values), high = Math.max(...values), pad = (high - low || 1) * 0.06;
    return [low - pad, high + pad];
  }
  function drawing(name, height, label) {
    const place = part(name), width = Math.max(place.clientWidth, 200);
    place.replaceChildren();
    const svg = element("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label}, place);
    return [svg, width];
  }
  function axis(svg, y, low, high, left, right) {
    for (const at of ticks(low, high, 4)) {
      element("line", {x1: left, x2: right, y1: y(at), y2: y(at), class: "grid"}, svg);
      element("text", {x: left - 6, y: y(at) + 4, class: "tick", "text-anchor": "end"}, svg, number(at));
    }
  }

  const left = 52, top = 10;
  function drawContext() {
    const {context, times, name, unit} = series(), height = 300, floor = 212;
    const [svg, width] = drawing("context", height, `${name} and the attention of ${state.labels[view.head]}`);
    const right = width - 6, x = scale(0, context.length, left, right), [low, high] = extent(context);
    // a head that looks at special tokens alone reads no stretch most
    const y = scale(low, high, floor, top), weights = attention(view.head), most = Math.max(...weights, UNREAD);
    axis(svg, y, low, high, left, right);
    weights.forEach((weight, bin) => {
      const from = x(edge(bin, weights.length)), wide = Math.max(x(edge(bin + 1, weights.length)) - from, 0.5);
      const share = weight / most, opacity = Math.sqrt(share).toFixed(3);
      if (share > 0.15) element("rect", {x: from, y: top, width: wide, height: floor - top, class: "read", opacity: 0.35 * share}, svg);
      const cell = element("rect", {x: from, y: floor + 12, width: wide + 0.3, height: 26, class: "read", opacity}, svg);
      element("title", {}, cell, `${times[edge(bin, weights.length)]}: ${percent(weight)}`);
    });
    element("rect", {x: left, y: floor + 12, width: right - left, height: 26, class: "frame"}, svg);
    // a tick for every token, where they can be told apart
    const tokens = context.length / state.token;
    if ((right - left) / tokens > 3) {
      for (let at = context.length; at >= 0; at -= state.token)
        element("line", {x1: x(at), x2: x(at), y1: floor + 40, y2: floor + 46, class: "token"}, svg);
    }
    const each = state.token > 1 ? `${Math.round(tokens)} tokens of ${state.token} steps` : `${Math.round(tokens)} tokens of one step`;
    element("text", {x: left, y: height - 22, class: "tick"}, svg, times[0]);
    element("text", {x: right, y: height - 22, class: "tick", "text-anchor": "end"}, svg, times[times.length - 1]);
    element("text", {x: left, y: height - 5, class: "tick"}, svg, `up to ${percent(Math.max(...weights))} · ${each}`);
    line(context, at => x(at + 0.5), y, {class: "observed"}, svg);
    const shade = element("rect", {y: top, height: floor + 38 - top, class: "brush", width: 0}, svg);
    const show = brush => {
      shade.setAttribute("x", brush ? x(brush[0]) : 0);
      shade.setAttribute("width", brush ? x(brush[1]) - x(brush[0]) : 0);
    };
    show(view.brush);
    part("unit").textContent = unit;
    const at = event => {
      const box = svg.getBoundingClientRect();
      const share = (event.clientX - box.left - left) / (right - left);
      return Math.min(Math.max(Math.floor(share * context.length), 0), context.length - 1);
    };
    svg.addEventListener("pointerdown", event => {
      const first = at(event);
      let stretch = null;
      svg.setPointerCapture(event.pointerId);
      svg.onpointermove = move => {
        const last = at(move);
        stretch = [Math.min(first, last), Math.max(first, last) + 1];
        show(stretch);
      };
      svg.onpointerup = svg.onpointercancel = () => {
        svg.onpointermove = svg.onpointerup = null;
        choose({brush: stretch});
      };
    });
  }

  function drawMap() {
    const place = part("map"), columns = state.heads.length, own = series();
    const shown = own.states.map((head, at) => view.brush ? brushed(at) : head.effect), most = Math.max(...shown) || 1;
    const small = columns * state.layers.length > 60;
    place.style.gridTemplateColumns = `auto repeat(${columns}, minmax(0, 1fr))`;
    const focus = place.contains(document.activeElement);
    place.replaceChildren();
    const word = (text, name) => {
      const made = document.createElement("span");
      made.className = name;
      made.textContent = text;
      place.append(made);
    };
    word("", "corner");
    state.heads.forEach(head => word(small ? head : `head ${head}`, "column"));
    state.layers.forEach((layer, row) => {
      word(`layer ${layer}`, "row");
      state.heads.forEach((_, column) => {
        const at = row * columns + column, cell = document.createElement("button"), share = shown[at] / most;
        cell.type = "button";
        cell.dataset.head = at;
        cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
        cell.className = `cell${share > 0.55 ? " deep" : ""}${view.ablated.includes(at) ? " out" : ""}`;
        cell.textContent = small ? "" : view.brush ? percent(shown[at]) : number(shown[at]);
        cell.title = `${state.labels[at]}: ${view.brush ? `${percent(shown[at])} of its attention` : `${number(shown[at])} ${own.unit}`}`;
        cell.setAttribute("aria-label", cell.title);
        cell.setAttribute("aria-pressed", String(at === view.head));
        cell.tabIndex = at === view.head ? 0 : -1;
        cell.addEventListener("click", event => ask && event.shiftKey ? toggle(at) : choose({head: at}));
        place.append(cell);
        if (focus && at === view.head) cell.focus({preventScroll: true});
      });
    });
    part("scale").textContent = view.brush
      ? "number: share of the head's attention on the brushed stretch"
      : `number: how far the median moves without the head (${own.unit}, mean over steps)`;
  }

  function drawForecast() {
    const own = series(), without = less(), other = masked(), height = 300, floor = 250;
    const words = view.ablated.length ? "the ablated heads" : "this head";
    for (const name of ["less", "lesskey"]) part(name).textContent = words;
    part("maskedkey").hidden = !other.median;
    const [svg, width] = drawing("forecast", height, `forecast of ${own.name} with and without ${words}`);
    const tail = Math.max(Math.floor(own.median.length / 2), 2), past = own.context.slice(-tail), n = own.median.length;
    const right = width - 6, x = scale(-past.length, n, left, right);
    const [low, high] = extent(past, own.low, own.high, own.truth || [], without.low || [], without.high || [], other.median || []);
    const y = scale(low, high, floor, top), ahead = at => x(at + 0.5);
    axis(svg, y, low, high, left, right);
    if (view.step >= 0)
      element("rect", {x: x(view.step), y: top, width: x(1) - x(0), height: floor - top, class: "brush"}, svg);
    const band = (fan, name) => {
      const up = fan.high.map((value, at) => `${ahead(at)},${y(value)}`), down = fan.low.map((value, at) => `${ahead(at)},${y(value)}`);
      element("polygon", {points: [...up, ...down.reverse()].join(" "), class: name}, svg);
    };
    band(own, "band");
    if (without.median) band(without, "band less");
    element("line", {x1: x(0), x2: x(0), y1: top, y2: floor, class: "now"}, svg);
    line(past, at => x(at - past.length + 0.5), y, {class: "observed"}, svg);
    if (own.truth) line(own.truth, ahead, y, {class: "truth"}, svg);
    line(own.median, ahead, y, {class: "median"}, svg);
    if (without.median) line(without.median, ahead, y, {class: "without"}, svg);
    if (other.median) line(other.median, ahead, y, {class: "masked"}, svg);
    element("text", {x: x(0), y: height - 22, class: "tick"}, svg, own.ahead[0]);
    element("text", {x: right, y: height - 22, class: "tick", "text-anchor": "end"}, svg, own.ahead[n - 1]);
    svg.addEventListener("click", event => {
      const step = Math.floor((event.clientX - svg.getBoundingClientRect().left - x(0)) / (x(1) - x(0)));
      choose({step: step < 0 || step >= n || step === view.step ? -1 : step});
    });
  }

  function change(subject, fan) {
    const own = series(), errors = fan.error === undefined || fan.error === null ? ""
      : ` (mean absolute error ${number(own.error)} → ${number(fan.error)})`;
    return `${subject} the median moves by ${number(fan.effect)} ${own.unit} on average${errors}.`;
  }
  function say() {
    const own = series(), head = own.states[view.head], label = state.labels[view.head];
    const weights = Array.from(attention(view.head)), best = weights.indexOf(Math.max(...weights));
    const alone = own.row.every(row => row === own.row[0]);
    const words = [change(`${label.charAt(0).toUpperCase()}${label.slice(1)} of ${own.name}: without it`, head)];
    const when = view.step < 0 ? "Over all steps" : head.rows ? `For step ${view.step + 1}, ${own.ahead[view.step]},`
      : alone ? "Over all steps, which share one query," : "Over all steps (single steps of this head are not in this file)";
    const from = edge(best, weights.length), to = edge(best + 1, weights.length) - 1;
    const rest = 1 - weights.reduce((sum, weight) => sum + weight, 0);
    if (weights[best] < UNREAD) words.push(`${when} it reads nothing of the series: its attention is on special tokens, padding or the forecast.`);
    else {
      const even = weights[best] * weights.length < state.even, place = `${own.times[from]}${to > from ? ` to ${own.times[to]}` : ""}`;
      if (rest > state.mostly) words.push(`${when} it attends mostly to ${state.rest}, ${percent(rest)}${even ? "" : `; of the series most to ${place}, ${percent(weights[best])}`}.`);
      else if (even) words.push(`${when} it attends evenly: ${percent(weights[best])} at most, to ${place}.`);
      else words.push(`${when} it looks most at ${place}, ${own.context.length - from} steps before the forecast (${percent(weights[best])}${rest > 0.1 ? `; ${percent(rest)} is on ${state.rest}` : ""}).`);
    }
    if (view.brush) {
      const shares = own.states.map((_, at) => brushed(at)), first = shares.indexOf(Math.max(...shares));
      const [low, high] = view.brush;
      words.push(`It gives ${percent(shares[view.head])} of its attention to the brushed ${high - low} steps (${own.times[low]} to ${own.times[high - 1]}); ${state.labels[first]} gives most: ${percent(shares[first])}.`);
    }
    if (masked().median) words.push(change("Without the brushed steps, their series' mean in their place,", masked()));
    const count = view.ablated.length, set = less();
    if (count && set.median) words.push(change(`Without the ${count > 1 ? `${count} ablated heads` : "ablated head"}`, set));
    part("words").textContent = words.join(" ");
    part("ablate").checked = view.ablated.includes(view.head);
    part("set").textContent = view.ablated.map(at => state.names[at]).join(", ") || "no head";
    part("empty").disabled = !count;
    part("news").textContent = !ask || answered("ablated") && answered("brush") ? reply.error : "computing …";
    part("head").textContent = label;
    part("stepname").textContent = view.step < 0 ? "all" : own.ahead[view.step];
    part("step").max = own.median.length;
    part("step").value = view.step + 1;
    for (const name of ["from", "to"]) part(name).max = own.context.length;
    part("from").value = view.brush ? view.brush[0] : 0;
    part("to").value = view.brush ? view.brush[1] : 0;
    part("clear").disabled = !view.brush;
  }
  function draw() { drawContext(); drawMap(); drawForecast(); say(); }
  function choose(change, silent) {
    Object.assign(view, change);
    if (ask && !silent) question();
    draw();
  }
  function toggle(at) {
    const others = view.ablated.filter(each => each !== at);
    choose({ablated: others.length < view.ablated.length ? others : [...others, at]});
  }

  part("map").addEventListener("keydown", event => {
    const columns = state.heads.length, moves = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns};
    const next = view.head + moves[event.key];
    if (!(next >= 0 && next < state.labels.length)) return;
    event.preventDefault();
    choose({head: next});
  });
  part("step").addEventListener("input", event => choose({step: event.target.value - 1}));
  for (const name of ["from", "to"]) part(name).addEventListener("input", () => {
    const [low, high] = [Number(part("from").value), Number(part("to").value)];
    choose({brush: high > low ? [low, high] : name === "from" && low < series().context.length ? [low, low + 1] : null}, true);
  });
  // while a slider moves nothing is forecast
  for (const name of ["from", "to"]) part(name).addEventListener("change", () => choose({}));
  part("ablate").addEventListener("change", () => toggle(view.head));
  part("empty").addEventListener("click", () => choose({ablated: []}));
  part("clear").addEventListener("click", () => choose({brush: null}));
  root.addEventListener("keydown", event => { if (event.key === "Escape") choose({brush: null, step: -1}); });
  let width = 0;
  new ResizeObserver(() => { if (root.clientWidth !== width) { width = root.clientWidth; draw(); } }).observe(root);
  return {
    show(name) {
      const at = state.series.findIndex(each => each.name === name);
      root.hidden = at < 0;
      if (at >= 0) choose({series: at, head: state.series[at].start, brush: null, step: -1});
    },
    answer(news) {
      waits = false;
      reply = news;
      if (again) question();
      else Object.assign(view, {head: reply.head, ablated: reply.ablated, brush: reply.brush});
      draw();
    },
  };
}
