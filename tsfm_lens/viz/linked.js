// The linked view: series with the attention strip → components → forecast with and without one. Everything answers to
// three choices: a component (click), a step of the forecast (click or slider), a brushed stretch of the context (drag).
// Attention is by token, in a row for every query that steps of the forecast are read from; what it says of all steps,
// state.series[…].states[…].reading, is Python's. Where a model stands behind the view, ask(choice) has it forecast
// without a set of components, and without the brushed stretch; answer(reply) brings what came.
function linkedView(root, state, ask) {
  const ns = "http://www.w3.org/2000/svg";
  const view = {series: 0, head: state.series[0].start, step: -1, brush: null, ablated: []};
  root.classList.add("linked");
  root.innerHTML = `<h2 class="headline" data-part="headline" aria-live="polite"></h2>
<p class="words" data-part="words"></p>
<div class="panels">
<div><h3>Input series and the attention of <span data-part="head"></span></h3><div data-part="context"></div>
<p class="key"><b>—</b> observed <span data-part="unit"></span> <b class="k-read">■</b> attention <span data-part="strip"></span>; drag to brush a stretch</p></div>
<div><h3 data-part="maptitle"></h3>
<div class="stream"><span class="end">tokens</span><span class="wire"></span><div data-part="map" role="group" aria-label="Components"></div><span class="wire"></span><span class="end">output head → forecast</span></div>
<p class="key" data-part="scale"></p></div>
<div><h3>Forecast with and without <span data-part="less"></span>; click a step</h3><div data-part="forecast"></div>
<p class="key"><b>—</b> observed <b>┈</b> observed, not given <b class="k-median">━</b> forecast (<span data-part="statistic"></span>), with its band <b class="k-less">╍</b> without <span data-part="lesskey"></span>
<span data-part="maskedkey"><b class="k-masked">╍</b> without the brushed stretch</span></p></div>
</div>
<p class="more" data-part="more" aria-live="polite"></p>
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
<button type="button" class="plain" data-part="numbers" aria-expanded="false">numbers</button>
</div>
<div class="tables" data-part="tables" hidden></div>`;
  for (const text of state.notes) {
    const note = document.createElement("p");
    note.className = "note";
    const [words, ...after] = state.command ? text.split(state.command) : [text];
    note.textContent = words;
    for (const more of after) {
      // a command breaks between its words, not at its hyphens
      for (const word of state.command.split(" ")) note.append(Object.assign(document.createElement("code"), {textContent: word}), " ");
      note.append(more);
    }
    root.append(note);
  }
  const part = name => root.querySelector(`[data-part="${name}"]`);
  part("statistic").textContent = state.statistic;
  const number = value => {
    const text = Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
    return text.replace("-", "−");
  };
  // a number with the unit of the series, where it has one
  const amount = value => `${number(value)} ${series().unit}`.trim();
  const capital = text => text.charAt(0).toUpperCase() + text.slice(1);
  const percent = share => share < state.unread ? share > 0 ? "less than 0.01 %" : "0 %" : `${number(100 * share)} %`;
  // where there is no room for words
  const shortShare = share => share > 0 && share < state.unread ? "≈ 0 %" : percent(share);
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
  const less = () => {
    if (!view.ablated.length) return without(view.head);
    return answered("ablated") ? reply.without : {};
  };
  // without one component; the file has its difference from the plain forecast
  function without(at) {
    const own = series(), one = own.states[at];
    return one.shift ? {...one, line: own.line.map((value, step) => value + one.shift[step])} : one;
  }
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
    return {form, start, stop, share, rest, back: state.queries[query] - start, others: own.reading.others, place: ""};
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

  // two dates below a panel; where one line has no room for both, the later is a line lower
  function dates(svg, first, last, x, right, y) {
    const begin = element("text", {x, y, class: "tick"}, svg, first);
    const end = element("text", {x: right, y, class: "tick", "text-anchor": "end"}, svg, last);
    const length = begin.getComputedTextLength() + end.getComputedTextLength();
    if (length + 12 > right - x) end.setAttribute("y", y + 15);
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
  function stretch([from, to]) {
    const first = series().times[from], last = series().times[to - 1];
    if (to - 1 <= from) return first;
    const [day, minute] = last.split(" ");
    return `${first} to ${minute && first.startsWith(day) ? minute : last}`;
  }
  function stepsOf(query) {
    const first = state.row.indexOf(query) + 1, last = state.row.lastIndexOf(query) + 1;
    return last > first ? `steps ${first} to ${last}` : `step ${first}`;
  }

  // what is not on the series: a bar beside the strip, filled by its share
  function beside(svg, {rest, others}, x, y, tall) {
    element("rect", {x, y, width: 14, height: tall, class: "frame"}, svg);
    element("rect", {x, y: y + tall * (1 - rest), width: 14, height: tall * rest, class: "read"}, svg);
    element("title", {}, svg, `${percent(rest)} of the attention is on ${others}`);
    const word = /[a-z]/.test(others) ? "elsewhere" : others;
    element("text", {x, y: y - 6, class: "tick"}, svg, word);
    element("text", {x: x + 18, y: y + tall / 2 + 4, class: "tick"}, svg, shortShare(rest));
  }

  const left = 52, top = 10;
  // three panels below one another are lower
  const panelHeight = () => root.clientWidth < 500 ? 242 : 302;
  function drawContext() {
    const {context, times, name, unit, spans} = series(), height = panelHeight(), floor = height - 90, strip = floor + 12, tall = 34;
    const chosen = series().states[view.head].reading && reading(view.head);
    const said = `${capital(state.labels[view.head])} ${reads(view.head)}`;
    const values = context.filter(value => value !== null);
    const label = `${name}, ${times[0]} to ${times[times.length - 1]}: ${number(Math.min(...values))} to ${amount(Math.max(...values))}. ${said}`;
    const [svg, width] = drawing("context", height, label);
    const special = series().states.some(one => one.reading && one.reading.rest >= state.unread);
    const right = width - (special ? 90 : 6), x = scale(0, context.length, left, right), [low, high] = extent(context);
    const y = scale(low, high, floor, top), rows = attention(view.head), means = atPlaces(view.head);
    const largest = Math.max(0, ...rows.map(row => Math.max(...row, 0)));
    axis(svg, y, low, high, left, right);
    // a head that looks at special tokens alone reads no stretch most
    shades([means], Math.max(...means, state.unread), x, top, floor - top, 0.35, svg);
    shades(rows, Math.max(largest, state.unread), x, strip, tall, 1, svg);
    const frame = element("rect", {x: left, y: strip, width: right - left, height: tall, class: "frame"}, svg);
    const tip = element("title", {}, frame);
    if (special && chosen) beside(svg, chosen, right + 8, strip, tall);
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
    const order = rows.length > 1 ? ", a row for each query" : "";
    part("strip").textContent = rows.length ? `(up to ${percent(largest)}; ${each}${order})` : "(not shown of this component)";
    dates(svg, times[0], times[times.length - 1], left, right, height - 19);
    line(context, at => x(at + 0.5), y, {class: "observed"}, svg);
    const shade = element("rect", {y: top, height: strip + tall - top, class: "brush", width: 0}, svg);
    const show = brush => {
      shade.setAttribute("x", brush ? x(brush[0]) : 0);
      shade.setAttribute("width", brush ? x(brush[1]) - x(brush[0]) : 0);
    };
    show(view.brush);
    part("unit").textContent = unit && `(${unit.replace("× ", "")})`;
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
    const shown = own.states.map((one, at) => {
      if (view.brush) return one.mean ? brushed(at) : null;
      if (view.step < 0) return one.effect;
      return one.shift ? one.shift[view.step] : null;
    });
    const most = Math.max(...shown.map(Math.abs)) || 1, small = columns > 8 || state.rows.length > 20;
    place.classList.toggle("small", small);
    place.classList.toggle("brushing", Boolean(view.brush));
    const signed = !view.brush && view.step >= 0;
    place.classList.toggle("signed", signed);
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
        const cell = document.createElement("button"), value = shown[at], share = Math.abs(value || 0) / most;
        const within = !view.brush && value !== null && Math.abs(value) <= own.floor;
        cell.type = "button";
        cell.dataset.component = state.names[at];
        cell.style.setProperty("--share", `${Math.round(100 * share)}%`);
        // one that stands alone in its row is as wide as all heads
        if (row.cells.length === 1) cell.style.gridColumn = `2 / span ${columns}`;
        cell.className = `cell${view.ablated.includes(at) ? " out" : ""}${within ? " within" : ""}`;
        cell.textContent = small || value === null ? "" : within ? "≈ 0" : cellText(value, signed);
        cell.title = `${state.labels[at]}: ${cellTitle(value, signed)}${within ? ", within rounding" : ""}`;
        cell.setAttribute("aria-label", cell.title);
        cell.setAttribute("aria-pressed", String(at === view.head));
        cell.tabIndex = at === view.head ? 0 : -1;
        cell.addEventListener("click", event => ask && event.shiftKey ? toggle(at) : choose({head: at}));
        place.append(cell);
        if (focus && at === view.head) cell.focus({preventScroll: true});
      });
    });
    part("maptitle").textContent = view.brush ? "Attention on the brushed stretch" : "Effect of each component; click one";
    part("scale").textContent = scaleText();
  }
  // five characters have room
  function cellText(value, signed) {
    if (view.brush) return shortShare(value);
    const short = signed || value < 0.1 ? String(Number(value.toPrecision(2))).replace("-", "−") : number(value);
    return signed && value > 0 ? `+${short}` : short;
  }
  function cellTitle(value, signed) {
    if (value === null) return view.brush ? "its attention is not shown here" : "single steps of it are not in this file";
    if (view.brush) return `${percent(value)} of its attention`;
    if (!signed) return amount(value);
    return `without it ${amount(Math.abs(value))} ${value < 0 ? "lower" : "higher"}`;
  }
  function scaleText() {
    const own = series(), unit = own.unit && ` (${own.unit.replace("× ", "")})`;
    if (view.brush) return "Number and colour: share of the head's attention. Clear the brush for effects.";
    const rounding = `Hatched: below rounding, ${number(own.floor)}.`;
    if (view.step >= 0) return `Change of ${own.ahead[view.step]} without it${unit}. ${rounding}`;
    return `Mean change of the ${state.statistic} without it${unit}. ${rounding}`;
  }

  function drawForecast() {
    const own = series(), rest = less(), other = masked(), height = panelHeight(), floor = height - 50;
    const words = view.ablated.length ? "the ablated components" : state.labels[view.head];
    for (const name of ["less", "lesskey"]) part(name).textContent = view.ablated.length ? words : "it";
    part("maskedkey").hidden = !other.line;
    const far = `${own.ahead[0]} to ${own.ahead[own.line.length - 1]}`, lowest = Math.min(...own.line);
    const label = `Forecast of ${own.name}, ${far}: the ${state.statistic} lies between ${number(lowest)} and ${amount(Math.max(...own.line))}. ${rest.line ? change(`Without ${words}`, rest) : ""}`;
    const [svg, width] = drawing("forecast", height, label);
    const tail = Math.max(Math.floor(own.line.length / 2), 2), past = own.context.slice(-tail), n = own.line.length;
    const right = width - 6, x = scale(-past.length, n, left, right);
    const [low, high] = extent(past, own.low, own.high, own.line, own.truth || [], rest.line || [], other.line || []);
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
    if (rest.line) line(rest.line, ahead, y, {class: "without"}, svg);
    if (other.line) line(other.line, ahead, y, {class: "masked"}, svg);
    dates(svg, own.ahead[0], own.ahead[n - 1], x(0), right, height - 19);
    svg.addEventListener("click", event => {
      const step = Math.floor((event.clientX - svg.getBoundingClientRect().left - x(0)) / (x(1) - x(0)));
      choose({step: step < 0 || step >= n || step === view.step ? -1 : step});
    });
  }

  // how a forecast differs from the plain one: over all steps, or at the chosen one
  function change(subject, forecast) {
    const own = series(), step = view.step;
    if (step >= 0 && forecast.shift) {
      const shift = forecast.shift[step], way = shift < 0 ? "lower" : "higher";
      return `${subject} the ${state.statistic} of ${own.ahead[step]} is ${amount(Math.abs(shift))} ${way}: ${number(forecast.line[step])} instead of ${number(own.line[step])}.`;
    }
    const moved = `${subject} the ${state.statistic} moves by ${amount(forecast.effect)} on average`;
    const steps = own.line.length - state.first;
    const down = forecast.down ? ` and down at ${forecast.down}` : "";
    const ways = forecast.up === undefined ? "" : `, up at ${forecast.up} of ${steps} steps${down}`;
    const known = forecast.error !== undefined && forecast.error !== null;
    const errors = known ? ` (mean absolute error ${number(own.error)} → ${amount(forecast.error)})` : "";
    return `${moved}${ways}${errors}.`;
  }
  const stepsBack = back => `${back} step${back === 1 ? "" : "s"} back`;
  function where({form, back, start, stop, place}) {
    if (form === "lag") return place || stepsBack(back);
    const length = series().context.length, span = [start, stop].map(edge => Math.max(edge + length, 0));
    if (form === "step") return `${stretch(span)}, ${stepsBack(back)}`;
    return `${stretch(span)}${form === "place" ? " for every step" : ""}, ${back} step${back === 1 ? "" : "s"} before the forecast`;
  }
  // what a head reads, as the predicate of a sentence
  function saidOf(read) {
    const {form, share, rest, others, place} = read;
    if (form === "nothing") return `reads nothing of the series: all its attention is on ${others}.`;
    const at = where(read);
    if (form === "even") return `attends evenly: to no token or distance with more than ${percent(share)}.`;
    if (form === "rest") return `attends mostly to ${others} (${percent(rest)}); of the series most to ${at} (${percent(share)}).`;
    const elsewhere = rest > 0.1 ? `; ${percent(rest)} is on ${others}` : "";
    const most = form === "place" ? place : at, every = form === "place" ? " for every step" : "";
    if (read.recurs)
      return `reads ${read.earlier}${every}: ${percent(read.cycle_share)} of its attention (${percent(read.even_share)} if spread evenly), most ${most} (${percent(share)})${elsewhere}.`;
    const lag = form === "lag" && place ? `, ${stepsBack(read.back)}` : "";
    return `reads ${at}: ${percent(share)} of its attention${lag}${elsewhere}.`;
  }
  function reads(at) {
    const own = series(), head = own.states[at];
    if (head.reading) return saidOf(reading(at));
    const alone = state.rows.some(row => row.alone && row.cells.includes(at));
    if (alone) return "reads no other token: it works on each alone.";
    return "has a kind of attention that is not shown here.";
  }
  function headline() {
    const own = series(), label = state.labels[view.head], head = own.states[view.head];
    if (view.step < 0 || !head.reading) return `${capital(label)} ${reads(view.head)}`;
    if (!head.rows && state.queries.length > 1) return `${capital(label)} ${reads(view.head)} Single steps of this head are not in this file.`;
    return `For ${own.ahead[view.step]}, ${label} ${reads(view.head)}`;
  }
  function say() {
    const own = series(), head = own.states[view.head], label = state.labels[view.head];
    part("headline").textContent = headline();
    const words = [change("Without it", without(view.head))];
    const effects = own.states.map(one => one.effect), first = effects.indexOf(Math.max(...effects));
    if (first !== view.head) {
      const rank = 1 + effects.filter(each => each > head.effect).length, read = own.states[first].reading;
      const why = read && ["lag", "place"].includes(read.form) ? "." : `, but ${reads(first)}`;
      words.push(`It is number ${rank} of ${effects.length}; ${state.labels[first]} moves the forecast most (${amount(effects[first])})${why}`);
    }
    part("words").textContent = words.join(" ");
    sayMore();
    part("ablate").checked = view.ablated.includes(view.head);
    part("set").textContent = view.ablated.map(at => state.names[at]).join(", ") || "none";
    part("empty").disabled = !view.ablated.length;
    part("news").textContent = !ask || answered("ablated") && answered("brush") ? reply.error : "computing …";
    part("head").textContent = label;
    slide("step", own.line.length, view.step + 1, view.step < 0 ? "all" : own.ahead[view.step]);
    part("stepname").textContent = view.step < 0 ? "all" : own.ahead[view.step];
    const [low, high] = view.brush || [0, 0];
    slide("from", own.context.length, low, view.brush ? own.times[low] : "nothing brushed");
    slide("to", own.context.length, high, view.brush ? own.times[high - 1] : "nothing brushed");
    part("clear").disabled = !view.brush;
  }
  function slide(name, max, value, text) {
    Object.assign(part(name), {max, value});
    part(name).setAttribute("aria-valuetext", text);
  }
  // what is said below the panels, so that these stay where they are during a brush
  function sayMore() {
    const own = series(), head = own.states[view.head], words = [];
    if (view.brush) {
      const shares = own.states.map((_, at) => brushed(at)), closest = shares.indexOf(Math.max(...shares));
      const [low, high] = view.brush;
      const steps = `the brushed ${high - low === 1 ? "step" : `${high - low} steps`} (${stretch([low, high])})`;
      const most = `${state.labels[closest]} gives most: ${percent(shares[closest])}.`;
      words.push(head.mean ? `${capital(state.labels[view.head])} gives ${percent(shares[view.head])} of its attention to ${steps}; ${most}` : `Of ${steps}, ${most}`);
      if (!ask && state.command) words.push(`To forecast without them: ${state.command}`);
    }
    if (masked().line) words.push(change("Without the brushed steps, their series' mean in their place,", masked()));
    const count = view.ablated.length, set = less();
    if (count && set.line) words.push(change(`Without the ${count > 1 ? `${count} ablated components` : "ablated component"}`, set));
    part("more").textContent = words.join(" ");
    part("more").hidden = !words.length;
  }
  // what the panels show, as tables
  function table(caption, heads, rows) {
    const made = document.createElement("table");
    made.createCaption().textContent = caption;
    for (const cells of [heads, ...rows]) {
      const row = made.insertRow();
      cells.forEach((text, at) => {
        const cell = document.createElement(cells === heads || !at ? "th" : "td");
        cell.textContent = text;
        row.append(cell);
      });
    }
    return made;
  }
  function drawTables() {
    if (part("tables").hidden) return;
    const own = series(), rest = less(), written = values => at => values && values[at] !== null ? number(values[at]) : "";
    const errors = own.error !== null;
    const components = own.states.map((one, at) => [state.labels[at], number(one.effect),
      ...(errors ? [one.error === undefined ? "" : number(one.error)] : []), reads(at)]);
    const columns = [own.truth, own.line, own.low, own.high, rest.line].map(written);
    const steps = own.ahead.map((date, at) => [date, ...columns.map(column => column(at))]);
    const unit = own.unit && ` (${own.unit.replace("× ", "")})`;
    part("tables").replaceChildren(
      table(`Forecast of ${own.name}${unit}`, ["step", "observed", state.statistic, "low", "high", `without ${part("less").textContent}`], steps),
      table(`Components${unit}`, ["component", "mean change without it", ...(errors ? ["mean absolute error without it"] : []), "what it reads"], components));
  }
  // what is chosen, for the rest of the page
  function tell() {
    const own = series(), [low, high] = view.brush || [0, 0];
    // by date, and by the distance in steps from the start of the forecast
    const detail = {component: state.names[view.head], steps: [], queries: [], keys: []};
    if (view.step >= 0) {
      detail.steps.push([own.ahead[view.step], own.ahead[view.step]]);
      detail.queries.push(view.step);
    }
    if (view.brush) {
      detail.steps.push([own.times[low], own.times[high - 1]]);
      detail.keys.push([low, high - 1].map(at => at - own.times.length));
    }
    root.dispatchEvent(new CustomEvent("chosen", {detail}));
  }
  function draw() { drawContext(); drawMap(); drawForecast(); say(); drawTables(); tell(); }
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
  part("numbers").addEventListener("click", () => {
    part("tables").hidden = !part("tables").hidden;
    part("numbers").setAttribute("aria-expanded", String(!part("tables").hidden));
    drawTables();
  });
  part("empty").addEventListener("click", () => choose({ablated: []}));
  part("clear").addEventListener("click", () => choose({brush: null}));
  root.addEventListener("keydown", event => { if (event.key === "Escape") choose({brush: null, step: -1}); });
  let width = 0;
  new ResizeObserver(() => { if (root.clientWidth !== width) { width = root.clientWidth; draw(); } }).observe(root);
  return {
    // draw for paper of a width in pixels; for the screen if it is 0
    fit(paper) {
      root.style.width = paper ? `${paper}px` : "";
      draw();
    },
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
