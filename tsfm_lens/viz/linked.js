// The linked view: series with the attention strip → components → forecast with and without one. Everything answers to
// three choices: a component (click), a step of the forecast (click or slider), a brushed stretch of the context (drag).
// Attention is by token, in a row for every query that steps of the forecast are read from; what it says of all steps,
// state.series[…].states[…].reading, is Python's. Where a model stands behind the view, ask(choice) has it forecast
// without a set of components, and without the brushed stretch; answer(reply) brings what came.
function linkedView(root, state, ask) {
  const ns = "http://www.w3.org/2000/svg";
  const view = {series: 0, head: state.series[0].start, step: -1, brush: null, ablated: []};
  root.classList.add("linked");
  root.innerHTML = `<div class="panels">
<div><h3>What is given, and what <span data-part="head"></span> reads of it</h3><div data-part="context"></div>
<p class="key"><b>—</b> observed (<span data-part="unit"></span>) <b class="k-read">■</b> attention; drag to brush a stretch</p></div>
<div><h3>Components, in order of computation; click one</h3>
<div class="stream"><span class="end">tokens</span><span class="wire"></span><div data-part="map" role="group" aria-label="Components"></div><span class="wire"></span><span class="end">output head → forecast</span></div>
<p class="key" data-part="scale"></p></div>
<div><h3>The forecast, with and without <span data-part="less"></span>; click a step</h3><div data-part="forecast"></div>
<p class="key"><b>—</b> observed <b>┈</b> what came <b class="k-median">━</b> forecast (<span data-part="statistic"></span>), with its band <b class="k-less">╍</b> without <span data-part="lesskey"></span>
<span data-part="maskedkey"><b class="k-masked">╍</b> without the brushed stretch</span></p></div>
</div>
<p class="words" data-part="words" aria-live="polite"></p>
<div class="choices" data-part="live"${ask ? "" : " hidden"}>
<label><input type="checkbox" data-part="ablate"> ablate this one (or shift-click any)</label>
<span>ablated: <span data-part="set"></span></span>
<button type="button" class="plain" data-part="empty">clear set</button>
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
  part("statistic").textContent = state.statistic;
  const number = value => {
    const text = Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
    return text.replace("-", "−");
  };
  const percent = share => share < state.unread ? share > 0 ? "less than 0.01 %" : "0 %" : `${number(100 * share)} %`;
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
  // without the ablated components; where none is, without the selected one
  const less = () => !view.ablated.length ? series().states[view.head] : answered("ablated") ? reply.without : {};
  const masked = () => ask && view.brush && answered("brush") ? reply.masked : {};
  // of a head the rows that are chosen, a mean over steps where they are not in the file; of others nothing
  function attention(head) {
    const own = series().states[head];
    if (own.rows) return (view.step < 0 ? own.rows : [own.rows[state.row[view.step]]]).map(unpacked);
    return own.mean ? [unpacked(own.mean)] : [];
  }
  // every step counts alike
  function atPlaces(head) {
    const own = series().states[head];
    if (!own.mean) return new Float64Array(series().spans.length);
    return view.step < 0 || !own.rows ? unpacked(own.mean) : attention(head)[0];
  }
  const sum = weights => weights.reduce((total, weight) => total + weight, 0);
  function brushed(head) {
    const [low, high] = view.brush;
    return sum(atPlaces(head).map((weight, key) => {
      const [from, to] = series().spans[key];
      return weight * Math.max(Math.min(to, high) - Math.max(from, low), 0) / (to - from || 1);
    }));
  }
  // what Python says of all steps, said of the one that is chosen
  function reading(head) {
    const own = series().states[head];
    if (view.step < 0 || !own.rows) return own.reading;
    const query = state.row[view.step], [weights] = attention(head), share = Math.max(...weights, 0);
    const [start, stop] = series().keys[weights.indexOf(share)] || [0, 0], rest = Math.max(1 - sum(weights), 0);
    const form = share < state.unread ? "nothing" : rest > state.mostly ? "rest"
      : share * weights.length < state.even ? "even" : "step";
    return {form, start, stop, share, rest, back: state.queries[query] - start, others: own.reading.others};
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

  // rows of shares of the largest, by place: one path for every shade, since there may be thousands of cells
  function shades(rows, most, x, from, tall, opacity, parent) {
    const paths = new Map(), high = tall / rows.length;
    rows.forEach((row, at) => row.forEach((weight, key) => {
      const shade = Math.round(16 * Math.sqrt(weight / most)), [start, stop] = series().spans[key];
      if (shade < 1) return;
      const wide = Math.max(x(stop) - x(start) + 0.2, 0.6);
      paths.set(shade, `${paths.get(shade) || ""}M${x(start).toFixed(1)} ${(from + at * high).toFixed(2)}h${wide.toFixed(1)}v${high.toFixed(2)}h${-wide.toFixed(1)}z`);
    }));
    for (const [shade, d] of paths) element("path", {d, class: "read", opacity: (opacity * (shade / 16) ** (opacity < 1 ? 2 : 1)).toFixed(3)}, parent);
  }
  // the dates of a stretch of the context, and the steps that are read from a query
  const stretch = ([from, to]) => series().times[from] + (to - 1 > from ? ` to ${series().times[to - 1]}` : "");
  function stepsOf(query) {
    const first = state.row.indexOf(query) + 1, last = state.row.lastIndexOf(query) + 1;
    return last > first ? `steps ${first} to ${last}` : `step ${first}`;
  }

  const left = 52, top = 10;
  function drawContext() {
    const {context, times, name, unit, spans} = series(), height = 308, floor = 212, strip = floor + 12, tall = 34;
    const [svg, width] = drawing("context", height, `${name} and the attention of ${state.labels[view.head]}`);
    const right = width - 6, x = scale(0, context.length, left, right), [low, high] = extent(context);
    const y = scale(low, high, floor, top), rows = attention(view.head), means = atPlaces(view.head);
    const largest = Math.max(0, ...rows.map(row => Math.max(...row, 0)));
    axis(svg, y, low, high, left, right);
    // a head that looks at special tokens alone reads no stretch most
    shades([means], Math.max(...means, state.unread), x, top, floor - top, 0.35, svg);
    shades(rows, Math.max(largest, state.unread), x, strip, tall, 1, svg);
    const frame = element("rect", {x: left, y: strip, width: right - left, height: tall, class: "frame"}, svg);
    const tip = element("title", {}, frame);
    frame.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect(), step = (event.clientX - box.left - left) / (right - left) * context.length;
      const key = spans.findIndex(([from, to]) => from <= step && step < to);
      const row = Math.min(Math.max(Math.floor((event.clientY - box.top - strip) / tall * rows.length), 0), rows.length - 1);
      tip.textContent = key < 0 || row < 0 ? "" : `${stretch(spans[key])}: ${percent(rows[row][key])}${
        rows.length > 1 ? ` of the attention for ${stepsOf(row)}` : ""}`;
    });
    // a tick for every token, where they can be told apart
    const edges = [...new Set(spans.flat())];
    if ((right - left) / edges.length > 3) {
      for (const at of edges)
        element("line", {x1: x(at), x2: x(at), y1: floor + 48, y2: floor + 54, class: "token"}, svg);
    }
    const token = Math.max(1, ...spans.map(([from, to]) => to - from));
    const each = `${spans.length} tokens of ${token > 1 ? `${token} steps` : "one step"}`;
    const order = rows.length > 1 ? " · a row for each query" : "";
    element("text", {x: left, y: height - 22, class: "tick"}, svg, times[0]);
    element("text", {x: right, y: height - 22, class: "tick", "text-anchor": "end"}, svg, times[times.length - 1]);
    element("text", {x: left, y: height - 5, class: "tick"}, svg, rows.length ? `up to ${percent(largest)} · ${each}${order}` : "its attention is not shown here");
    line(context, at => x(at + 0.5), y, {class: "observed"}, svg);
    const shade = element("rect", {y: top, height: strip + tall - top, class: "brush", width: 0}, svg);
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
    const place = part("map"), own = series(), columns = Math.max(...state.rows.map(row => row.cells.length));
    const shown = own.states.map((one, at) => !view.brush ? one.effect : one.mean ? brushed(at) : null);
    const most = Math.max(...shown) || 1, small = columns > 8 || state.rows.length > 20;
    place.classList.toggle("small", small);
    place.style.gridTemplateColumns = `auto repeat(${columns}, minmax(0, 1fr))`;
    const focus = place.contains(document.activeElement);
    place.replaceChildren();
    state.rows.forEach((row, at) => {
      const begins = !at || state.rows[at - 1].layer !== row.layer, word = document.createElement("span");
      word.className = `row${begins && at ? " begins" : ""}`;
      word.textContent = small ? begins ? row.layer : "" : `${begins ? `${row.layer}, ` : ""}${row.kind}`;
      word.title = `${row.layer}, ${row.kind}`;
      place.append(word);
      row.cells.forEach(at => {
        const cell = document.createElement("button"), value = shown[at], share = (value || 0) / most;
        const within = !view.brush && value <= own.floor;
        cell.type = "button";
        cell.dataset.component = state.names[at];
        cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
        // one that stands alone in its row is as wide as all heads
        if (row.cells.length === 1) cell.style.gridColumn = `2 / span ${columns}`;
        cell.className = `cell${share > 0.55 ? " deep" : ""}${view.ablated.includes(at) ? " out" : ""}${within ? " within" : ""}`;
        const text = value === null ? "" : view.brush ? percent(value) : number(value);
        // five characters have room
        cell.textContent = small ? "" : value !== null && !view.brush && value < 0.1 ? String(Number(value.toPrecision(2))) : text;
        cell.title = `${state.labels[at]}: ${value === null ? "its attention is not shown here"
          : view.brush ? `${text} of its attention` : `${text} ${own.unit}${within ? ", within rounding" : ""}`}`;
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
      : `number: how far the ${state.statistic} moves without the component (${own.unit}, mean over steps); rounding: ${number(own.floor)}`;
  }

  function drawForecast() {
    const own = series(), without = less(), other = masked(), height = 300, floor = 250;
    const words = view.ablated.length ? "the ablated components" : "this component";
    for (const name of ["less", "lesskey"]) part(name).textContent = words;
    part("maskedkey").hidden = !other.line;
    const [svg, width] = drawing("forecast", height, `forecast of ${own.name} with and without ${words}`);
    const tail = Math.max(Math.floor(own.line.length / 2), 2), past = own.context.slice(-tail), n = own.line.length;
    const right = width - 6, x = scale(-past.length, n, left, right);
    const [low, high] = extent(past, own.low, own.high, own.line, own.truth || [], without.line || [], other.line || []);
    const y = scale(low, high, floor, top), ahead = at => x(at + 0.5);
    axis(svg, y, low, high, left, right);
    if (view.step >= 0)
      element("rect", {x: x(view.step), y: top, width: x(1) - x(0), height: floor - top, class: "brush"}, svg);
    const [up, down] = [own.high, own.low].map(ends => ends.map((value, at) => `${ahead(at)},${y(value)}`));
    element("polygon", {points: [...up, ...down.reverse()].join(" "), class: "band"}, svg);
    element("line", {x1: x(0), x2: x(0), y1: top, y2: floor, class: "now"}, svg);
    line(past, at => x(at - past.length + 0.5), y, {class: "observed"}, svg);
    if (own.truth) line(own.truth, ahead, y, {class: "truth"}, svg);
    line(own.line, ahead, y, {class: "median"}, svg);
    if (without.line) line(without.line, ahead, y, {class: "without"}, svg);
    if (other.line) line(other.line, ahead, y, {class: "masked"}, svg);
    element("text", {x: x(0), y: height - 22, class: "tick"}, svg, own.ahead[0]);
    element("text", {x: right, y: height - 22, class: "tick", "text-anchor": "end"}, svg, own.ahead[n - 1]);
    svg.addEventListener("click", event => {
      const step = Math.floor((event.clientX - svg.getBoundingClientRect().left - x(0)) / (x(1) - x(0)));
      choose({step: step < 0 || step >= n || step === view.step ? -1 : step});
    });
  }

  function change(subject, forecast) {
    const own = series(), errors = forecast.error === undefined || forecast.error === null ? ""
      : ` (mean absolute error ${number(own.error)} → ${number(forecast.error)})`;
    return `${subject} the ${state.statistic} moves by ${number(forecast.effect)} ${own.unit} on average${errors}.`;
  }
  function saidOf({form, back, start, stop, share, rest, others}, head) {
    const own = series(), shared = state.queries.length === 1, steps = `${back} step${back === 1 ? "" : "s"}`;
    const when = view.step >= 0 && (head.rows || shared) ? `For step ${view.step + 1}, ${own.ahead[view.step]},`
      : shared ? "Over all steps, which share one query," : view.step < 0 ? "Over all steps" : "Over all steps (single steps of this head are not in this file)";
    if (form === "nothing") return `${when} it reads nothing of the series: its attention is on special tokens, padding or the forecast.`;
    const span = [start, stop].map(edge => Math.max(edge + own.context.length, 0)), dates = stretch(span);
    // a lag is that of every step, so it has no date
    const where = form === "lag" ? `${steps} back` : form === "step" && !shared ? `at ${dates}, ${steps} back` : `at ${dates}, ${steps} before the forecast`;
    if (form === "even") return `${when} it attends evenly: ${percent(share)} at most to one token or distance.`;
    if (form === "rest") return `${when} it attends mostly to ${others}, ${percent(rest)}; the most of the series is ${percent(share)}, ${where}.`;
    return `${when} it looks most ${where} (${percent(share)}${rest > 0.1 ? `; ${percent(rest)} is on ${others}` : ""}).`;
  }
  function say() {
    const own = series(), head = own.states[view.head], label = state.labels[view.head];
    const words = [change(`${label.charAt(0).toUpperCase()}${label.slice(1)} of ${own.name}: without it`, head)];
    const effects = own.states.map(one => one.effect), first = effects.indexOf(Math.max(...effects));
    if (first !== view.head)
      words.push(`It is number ${1 + effects.filter(each => each > head.effect).length} of ${effects.length}; ${state.names[first]} moves it most (${number(effects[first])} ${own.unit}).`);
    words.push(head.reading ? saidOf(reading(view.head), head) : `The view shows what heads of ${state.kind} read, and this is none of them.`);
    if (view.brush) {
      const shares = own.states.map((_, at) => brushed(at)), closest = shares.indexOf(Math.max(...shares));
      const [low, high] = view.brush;
      const steps = `the brushed ${high - low === 1 ? "step" : `${high - low} steps`} (${stretch([low, high])})`;
      const most = `${state.labels[closest]} gives most: ${percent(shares[closest])}.`;
      words.push(head.mean ? `It gives ${percent(shares[view.head])} of its attention to ${steps}; ${most}` : `Of ${steps}, ${most}`);
    }
    if (masked().line) words.push(change("Without the brushed steps, their series' mean in their place,", masked()));
    const count = view.ablated.length, set = less();
    if (count && set.line) words.push(change(`Without the ${count > 1 ? `${count} ablated components` : "ablated component"}`, set));
    part("words").textContent = words.join(" ");
    part("ablate").checked = view.ablated.includes(view.head);
    part("set").textContent = view.ablated.map(at => state.names[at]).join(", ") || "none";
    part("empty").disabled = !count;
    part("news").textContent = !ask || answered("ablated") && answered("brush") ? reply.error : "computing …";
    part("head").textContent = label;
    part("stepname").textContent = view.step < 0 ? "all" : own.ahead[view.step];
    part("step").max = own.line.length;
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
    const row = state.rows.findIndex(each => each.cells.includes(view.head)), column = state.rows[row].cells.indexOf(view.head);
    const [down, right] = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key] || [0, 0];
    const cells = (state.rows[row + down] || {cells: []}).cells, next = cells[down ? Math.min(column, cells.length - 1) : column + right];
    if (next === undefined || next === view.head) return;
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
