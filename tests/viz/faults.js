// What of a drawn figure cannot be read: text on text, text that is cut off, keys and titles over panels.
// Rectangles are four corners in pixels of the window, so that turned text is measured as it stands.

function inked(line, text) {
  // what a line of text covers: its characters from side to side, and the height of its ink
  const style = getComputedStyle(text), m = text.getScreenCTM();
  let left = Infinity, right = -Infinity, top = Infinity, foot = -Infinity;
  for (let i = 0; i < line.getNumberOfChars(); i++) {
    const at = line.getExtentOfChar(i);
    if (!at.width) continue;
    left = Math.min(left, at.x);
    right = Math.max(right, at.x + at.width);
    top = Math.min(top, at.y);
    foot = Math.max(foot, at.y + at.height);
  }
  if (!line.querySelector("tspan")) {
    const pen = inked.pen ??= document.createElement("canvas").getContext("2d");
    pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const ink = pen.measureText(line.textContent), base = line.getStartPositionOfChar(0).y;
    top = base - ink.actualBoundingBoxAscent;
    foot = base + ink.actualBoundingBoxDescent;
  }
  return [[left, top], [right, top], [right, foot], [left, foot]]
    .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]);
}

function depth(one, other) {
  // by how many pixels two rectangles lie on each other; how far they are apart, negative, where they do not
  let least = Infinity;
  for (const from of [one, other]) for (let i = 0; i < 2; i++) {
    const dx = from[i + 1][0] - from[i][0], dy = from[i + 1][1] - from[i][1], size = Math.hypot(dx, dy);
    if (!size) return -Infinity;
    const [a, b] = [one, other].map(all => all.map(([x, y]) => (x * dx + y * dy) / size));
    least = Math.min(least, Math.min(Math.max(...a), Math.max(...b)) - Math.max(Math.min(...a), Math.min(...b)));
  }
  return least;
}

function sides(corners) {
  const xs = corners.map(corner => corner[0]), ys = corners.map(corner => corner[1]);
  return { left: Math.min(...xs), right: Math.max(...xs), top: Math.min(...ys), bottom: Math.max(...ys) };
}

function corners(box) {
  return [[box.left, box.top], [box.right, box.top], [box.right, box.bottom], [box.left, box.bottom]];
}

function beyond(box, frame) {
  return Math.max(frame.left - box.left, box.right - frame.right, frame.top - box.top, box.bottom - frame.bottom);
}

function clipped(text) {
  // the rectangle outside of which a text is not drawn, null if it is drawn everywhere
  const holder = text.closest("[clip-path], [style*='clip-path']");
  const name = holder && (holder.getAttribute("clip-path") || holder.style.clipPath).match(/#([^'")]+)/);
  const rect = name && document.getElementById(name[1])?.querySelector("rect");
  if (!rect) return null;
  const m = holder.getScreenCTM(), [x, y, w, h] = ["x", "y", "width", "height"].map(key => +rect.getAttribute(key) || 0);
  return sides([[x, y], [x + w, y + h]].map(([u, v]) => [m.a * u + m.c * v + m.e, m.b * u + m.d * v + m.f]));
}

function lines(plot) {
  // every line of text that is seen
  const seen = text => {
    const style = getComputedStyle(text);
    return text.textContent.trim() && !text.closest(".hoverlayer, defs, .modebar") && style.visibility !== "hidden"
      && style.display !== "none" && +style.opacity !== 0 && text.getBoundingClientRect().width;
  };
  return [...plot.querySelectorAll("text")].filter(seen).flatMap(text => {
    const parts = text.querySelectorAll("tspan.line"), size = parseFloat(getComputedStyle(text).fontSize);
    return [...(parts.length ? parts : [text])].filter(line => line.textContent.trim())
      .map(line => ({ words: line.textContent, text, size, at: inked(line, text) }));
  });
}

function faults(plot) {
  const frame = plot.querySelector(".main-svg").getBoundingClientRect(), found = [], written = lines(plot);
  written.forEach((one, i) => {
    const clip = clipped(one.text);
    if (beyond(sides(one.at), frame) > 0.5) found.push(`cut: ${one.words}`);
    if (clip && beyond(sides(one.at), clip) > 1) found.push(`cut by its panel: ${one.words}`);
    for (const other of written.slice(i + 1))
      if (other.text !== one.text && depth(one.at, other.at) > -0.1 * Math.min(one.size, other.size))
        found.push(`overlap: ${one.words} | ${other.words}`);
  });
  const panels = Object.values(plot._fullLayout._plots || {}).map(({ xaxis, yaxis }) => {
    const left = frame.left + xaxis._offset, top = frame.top + yaxis._offset;
    return { left, top, right: left + xaxis._length, bottom: top + yaxis._length };
  });
  if (panels.some(panel => panel.right - panel.left < 12 || panel.bottom - panel.top < 12)) found.push("no room for a panel");
  for (const one of written.filter(({ text }) => /^[xy]\d*title$/.test(text.getAttribute("class"))))
    if (panels.some(panel => depth(one.at, corners(panel)) > 1.5)) found.push(`title over a panel: ${one.words}`);
  for (const [what, mark] of [["legend", ".legend .bg"], ["colour bar", ".colorbar .cbbg"]])
    for (const key of plot.querySelectorAll(mark)) {
      const box = key.getBoundingClientRect();
      if (panels.some(panel => depth(corners(box), corners(panel)) > 1.5)) found.push(`${what} over a panel`);
      if (beyond(box, frame) > 1) found.push(`${what} cut`);
    }
  return found;
}
