"use strict";
// Zoom, tooltips and micro-batch numbers for the pipeline chart. Text only ever goes in through textContent.
(() => {
  const root = document.getElementById("pipelines");
  if (!root) return;
  const data = JSON.parse(document.getElementById("pipeline-data").textContent);
  const view = root.querySelector(".view");
  const axis = document.getElementById("time-axis");
  const tip = document.getElementById("tip");
  let from = 0, to = data.length, colour = root.className.replace("by-", "");

  const show = (first, last) => {
    const least = data.length / 2000;
    const wide = Math.min(data.length, Math.max(least, last - first));
    from = Math.min(Math.max(0, (first + last - wide) / 2), data.length - wide);
    to = from + wide;
    draw();
  };

  const draw = () => {
    const height = data.rows.length * data.row;
    view.querySelector("svg").setAttribute("viewBox", `${1e4 * from / data.length} 0 ${1e4 * (to - from) / data.length} ${height}`);
    number();
    const span = to - from, raw = span / Math.max(3, axis.clientWidth / 110);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999);
    const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    axis.replaceChildren();
    for (let n = Math.ceil(from / step - 1e-9); n * step <= to + 1e-9; n++) {
      const mark = document.createElement("span");
      mark.textContent = (n * step).toFixed(places);
      mark.style.left = `${100 * (n * step - from) / span}%`;
      axis.append(mark);
    }
    // Outlines would cover boxes of a few pixels.
    root.classList.toggle("dense", boxPx() < 5);
    root.dataset.from = from.toFixed(4);
    root.dataset.to = to.toFixed(4);
  };

  const boxPx = () => axis.clientWidth / data.dense * data.length / (to - from);

  const ranges = { clock: data.bounds.clock || [0, 0], power: data.bounds.power || [0, 0] };

  // Micro-batches are numbered where there is room for a number.
  const number = () => {
    const layer = view.querySelector(".numbers");
    const px = view.clientWidth / (to - from);
    const [low, high] = ranges[colour], at = colour === "clock" ? 5 : 6;
    const marks = [];
    data.rows.forEach((row, rank) => {
      for (const box of row) {
        const [start, time] = box;
        if (start > to || start + time < from || time * px < (data.staged ? 30 : 17)) continue;
        const mark = document.createElement("span");
        mark.textContent = data.staged ? `${box[3]}:${box[4]}` : box[4];
        if (box[at] > 0 && high > low && (box[at] - low) / (high - low) < 0.45) mark.className = "light";
        mark.style.left = `${(start - from) * px}px`;
        mark.style.width = `${time * px}px`;
        mark.style.top = `${rank * data.row}px`;
        marks.push(mark);
      }
    });
    layer.replaceChildren(...marks);
  };

  const say = (event) => {
    const frame = view.getBoundingClientRect();
    const at = from + (to - from) * (event.clientX - frame.left) / frame.width;
    const row = data.rows[Math.floor((event.clientY - frame.top) / data.row)];
    const box = row && row.find(([start, time]) => start <= at && at < start + time);
    if (!row) { tip.hidden = true; return; }
    tip.textContent = box
      ? `${data.names[box[2]]}, micro-batch ${box[4]}, stage ${box[3]}\n${box[5] ? box[5] + " MHz" : "clock left alone"}` +
        `${box[6] > 0 ? ", " + box[6].toFixed(0) + " W" : ""}\n${(box[1] * 1e3).toFixed(2)} ms, from ${box[0].toFixed(4)} s`
      : `waiting\n${at.toFixed(4)} s`;
    tip.hidden = false;
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${event.clientY + 18 + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
  };

  const zoom = (factor, centre) => show(centre - (centre - from) * factor, centre + (to - centre) * factor);
  let held = null;
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
    event.preventDefault();
    const frame = view.getBoundingClientRect(), per = (to - from) / frame.width;
    if (event.ctrlKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, from + (event.clientX - frame.left) * per);
    else { const by = (event.deltaX || event.deltaY) * per; show(from + by, to + by); }
  }, { passive: false });
  view.addEventListener("pointerdown", (event) => { held = event.clientX; view.setPointerCapture(event.pointerId); });
  view.addEventListener("pointerup", () => { held = null; });
  view.addEventListener("pointercancel", () => { held = null; });
  view.addEventListener("pointermove", (event) => {
    if (held !== null && Math.abs(event.clientX - held) > 0) {
      const by = (held - event.clientX) * (to - from) / view.clientWidth;
      held = event.clientX;
      show(from + by, to + by);
    }
    say(event);
  });
  view.addEventListener("pointerleave", () => { tip.hidden = true; });
  view.addEventListener("dblclick", (event) => {
    zoom(0.4, from + (to - from) * (event.clientX - view.getBoundingClientRect().left) / view.clientWidth);
  });
  view.addEventListener("keydown", (event) => {
    const by = (to - from) / 4;
    const act = {
      ArrowLeft: () => show(from - by, to - by), ArrowRight: () => show(from + by, to + by),
      "+": () => zoom(0.625, (from + to) / 2), "-": () => zoom(1.6, (from + to) / 2), Home: () => show(0, data.length),
    }[event.key];
    if (act) { event.preventDefault(); act(); }
  });
  root.addEventListener("click", (event) => {
    const { dataset } = event.target;
    if (dataset.zoom) zoom(+dataset.zoom, (from + to) / 2);
    if (dataset.colour) {
      colour = dataset.colour;
      root.classList.remove("by-clock", "by-power");
      root.classList.add(`by-${colour}`);
      for (const one of root.querySelectorAll("[data-colour]")) one.setAttribute("aria-pressed", one === event.target);
      for (const one of root.querySelectorAll("[data-scale]")) one.hidden = one.dataset.scale !== colour;
      draw();
    }
  });
  addEventListener("resize", draw);
  addEventListener("beforeprint", () => {
    for (const more of document.querySelectorAll("details")) more.open = true;
    show(0, data.length);
  });
  // Where boxes could not be read, only the begin is shown at first.
  show(0, data.length * Math.min(1, boxPx() / 3));
})();
