// A job at work: its stages move, and its results come as soon as there are some.
import { follow } from "./page.js";

const stages = document.getElementById("stages");
const news = document.getElementById("news");
const results = (page) => page.querySelectorAll("#watch, .transcript, .scenes").length;
follow(
  () => 2,
  (fresh) => {
    const state = fresh.getElementById("stages")?.dataset.state;
    const moved = state !== stages.dataset.state || results(fresh) > results(document);
    if (!moved) return true;
    // Whoever reads already is not interrupted.
    if (results(document)) news.hidden = false;
    else location.reload();
    return false;
  },
);
