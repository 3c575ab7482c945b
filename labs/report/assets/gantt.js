"use strict";
// Zooms and moves a Gantt chart by its view box, and opens a trajectory.
for (const box of document.querySelectorAll(".gantt")) {
  const area = box.querySelector(".area");
  const ticks = box.querySelector(".ticks");
  const all = Number(box.dataset.seconds);
  const words = JSON.parse(box.dataset.words);
  const rows = JSON.parse(box.dataset.rows);
  const height = area.viewBox.baseVal.height;
  const bars = new Map([...area.querySelectorAll("[data-i]")].map((bar) => [Number(bar.dataset.i), bar]));
  if (!(all > 0)) continue;
  let from = 0;
  let span = all;
  const make = (name, given = {}) => Object.assign(document.createElement(name), given);
  const draw = () => {
    span = Math.min(all, Math.max(all / 5000, span));
    from = Math.min(all - span, Math.max(0, from));
    area.setAttribute("viewBox", `${from} 0 ${span} ${height}`);
    box.dataset.from = from;
    box.dataset.span = span;
    const rough = span / 6;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    const made = [];
    for (let i = Math.ceil(from / step); i * step <= from + span; i += 1) {
      const share = (i * step - from) / span;
      const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
      text.setAttribute("x", `${100 * share}%`);
      text.setAttribute("y", "14");
      text.setAttribute("text-anchor", share < 0.02 ? "start" : share > 0.97 ? "end" : "middle");
      text.textContent = (i * step).toFixed(digits);
      made.push(text);
    }
    ticks.replaceChildren(...made);
  };
  const zoom = (factor, share = 0.5) => {
    const before = span;
    span = Math.min(all, Math.max(all / 5000, span * factor));
    from += share * (before - span);
    draw();
  };
  const shift = (share) => { from += share * span; draw(); };
  const whole = () => { from = 0; span = all; draw(); };

  const life = make("dl", { className: "life" });
  life.setAttribute("aria-live", "polite");
  const pick = make("input", { type: "number", min: 0, max: rows.length - 1, step: 1 });
  let chosen = null;
  const open = (i) => {
    if (!rows[i]) return;
    if (chosen !== null) bars.get(chosen)?.classList.remove("chosen");
    chosen = i;
    bars.get(i)?.classList.add("chosen");
    pick.value = i;
    const row = rows[i];
    if (row.end < from || row.start > from + span) { from = row.start - span / 2; draw(); }
    const s = (value) => (value === undefined ? words.none : `${value.toFixed(3)} s`);
    const facts = [
      [words.trajectory, i], [words.task, row.task], [words.worker, row.worker + 1],
      [words.start, s(row.start)], [words.finished, s(row.end)],
      [words.waited, row.ingested === undefined ? words.none : s(row.ingested - row.end)],
      [words.ingested, s(row.ingested)], [words.trained, s(row.trained)],
      [words.version, row.spans && row.spans.length > 1 ? row.spans.map(([v, t]) => `${v} (${t} s)`).join(", ") : row.start_version],
      [words.lag, row.lag ?? words.none], [words.status, row.status], [words.update, row.update ?? words.none],
      ...(row.reward === undefined ? [] : [[words.reward, row.reward]]),
      ...(row.steps ?? []).map((step, n) => [
        `${words.step} ${n + 1}`,
        `${step.stage} → ${step.action} (${Math.exp(step.log_probability).toFixed(4)}, ${words.version} ${step.policy_version}) ${step.reply}`,
      ]),
    ];
    life.replaceChildren(...facts.map(([head, value]) => {
      const pair = make("div");
      pair.append(make("dt", { textContent: head }), make("dd", { textContent: value }));
      return pair;
    }));
  };

  const controls = make("div", { className: "controls" });
  const button = (name, label, act) => {
    const made = make("button", { type: "button", textContent: label, className: name });
    made.addEventListener("click", act);
    controls.append(made);
  };
  button("in", words.zoom_in, () => zoom(0.5));
  button("out", words.zoom_out, () => zoom(2));
  button("earlier", words.earlier, () => shift(-0.5));
  button("later", words.later, () => shift(0.5));
  button("whole", words.whole, whole);
  const label = make("label", { textContent: `${words.trajectory} ` });
  label.append(pick);
  controls.append(label, make("span", { className: "hint", textContent: words.keys }));
  pick.addEventListener("change", () => open(Number(pick.value)));
  box.prepend(controls);
  box.append(life);

  area.tabIndex = 0;
  area.addEventListener("keydown", (event) => {
    const act = {
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
      ArrowLeft: () => shift(-0.25), ArrowRight: () => shift(0.25), 0: whole,
    }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) { act(); event.preventDefault(); }
  });
  area.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // the page scrolls
    const frame = area.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, (event.clientX - frame.left) / frame.width);
    event.preventDefault();
  }, { passive: false });
  let drag = null;
  area.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from, moved: false, bar: event.target.closest("[data-i]") }; });
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    const by = event.clientX - drag.x;
    if (Math.abs(by) > 4) drag.moved = true;
    if (drag.moved) { from = drag.from - (by / area.getBoundingClientRect().width) * span; draw(); }
  });
  addEventListener("pointerup", () => {
    if (drag && !drag.moved && drag.bar) open(Number(drag.bar.dataset.i));
    drag = null;
  });
  addEventListener("pointercancel", () => { drag = null; });
  draw();
}
