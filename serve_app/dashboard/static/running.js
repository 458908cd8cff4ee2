// A job at work, or its preview: stages move, and what is ready comes as soon as there is some.
import { follow } from "./page.js";

const stages = document.getElementById("stages");
const news = document.getElementById("news");
const results = (page) => page.querySelectorAll("#watch, .transcript, .scenes, #player").length;
follow(
  () => (stages ? 2 : 5),
  (fresh) => {
    const state = fresh.getElementById("stages")?.dataset.state;
    const moved = state !== stages?.dataset.state || results(fresh) > results(document);
    if (!moved) return Boolean(stages || fresh.querySelector("[data-waits]"));
    // Whoever reads or watches already is not interrupted.
    const isRead = document.querySelector(".transcript, .scenes");
    if (isRead || document.getElementById("player")?.paused === false) news.hidden = false;
    else location.reload();
    return false;
  },
);
