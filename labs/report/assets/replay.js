"use strict";
// Turns the list of episodes into one stage: choose an update and an episode, step with buttons or arrow keys.
for (const box of document.querySelectorAll(".replay")) {
  const sources = [...box.querySelectorAll(":scope > .source")].map((source) => ({
    name: source.querySelector("summary").textContent,
    note: source.querySelector(":scope > p"),
    episodes: [...source.querySelectorAll(":scope > .episode")].map((episode) => ({
      name: episode.querySelector("summary").textContent,
      steps: [...episode.querySelectorAll(".step")],
    })),
  }));
  const make = (name, given = {}) => Object.assign(document.createElement(name), given);
  const choice = (label) => {
    const select = make("select");
    const wrap = make("label", { textContent: `${label} ` });
    wrap.append(select);
    return [wrap, select];
  };
  const controls = make("div", { className: "controls" });
  const [sourceLabel, source] = choice(box.dataset.source);
  const [episodeLabel, episode] = choice(box.dataset.episode);
  const back = make("button", { type: "button", textContent: box.dataset.previous, className: "back" });
  const forth = make("button", { type: "button", textContent: box.dataset.next, className: "forth" });
  const stage = make("div", { className: "stage", tabIndex: 0 });
  stage.setAttribute("role", "group");
  stage.setAttribute("aria-live", "polite");
  stage.setAttribute("aria-label", box.dataset.episode);
  const pair = make("span", { className: "pair" });
  pair.append(back, forth);
  controls.append(sourceLabel, episodeLabel, pair);
  const fill = (select, names) => select.replaceChildren(...names.map((name, i) => make("option", { value: i, textContent: name })));
  let at = 0;
  const show = () => {
    const from = sources[source.value];
    const chosen = from.episodes[episode.value];
    at = Math.max(0, Math.min(at, chosen.steps.length - 1));
    const parts = [chosen.steps[at].cloneNode(true)];
    if (from.note) parts.unshift(from.note.cloneNode(true));
    stage.replaceChildren(...parts);
    back.disabled = at === 0;
    forth.disabled = at === chosen.steps.length - 1;
  };
  const choose = (first) => {
    fill(episode, sources[source.value].episodes.map((each) => each.name));
    episode.value = first;
    at = 0;
    show();
  };
  const move = (by) => { at += by; show(); };
  source.addEventListener("change", () => choose(0));
  episode.addEventListener("change", () => { at = 0; show(); });
  back.addEventListener("click", () => move(-1));
  forth.addEventListener("click", () => move(1));
  stage.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by && event.target === stage) { move(by); event.preventDefault(); }
  });
  fill(source, sources.map((each) => each.name));
  source.value = sources.length > 2 ? 1 : 0;
  // Begin with the longest episode: there is most to see.
  const lengths = sources[source.value].episodes.map((each) => each.steps.length);
  choose(lengths.indexOf(Math.max(...lengths)));
  for (const child of box.querySelectorAll(":scope > .source")) child.hidden = true;
  box.prepend(controls, stage);
}
