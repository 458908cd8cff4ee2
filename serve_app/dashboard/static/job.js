// A job's results together: the player, the transcript beside it, the timeline, the scenes.
import { api } from "./page.js";
import { showChapters } from "./chapters.js";
import { find } from "./find.js";
import { nameSpeakers } from "./speakers.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";

// Each frame looks at every picture that is loaded: those far from view are let go.
const near = new IntersectionObserver(
  (entries) => entries.forEach(({ isIntersecting, target }) => keepStills(target, isIntersecting)),
  { rootMargin: "2000px" },
);
for (const part of document.querySelectorAll(".scenes")) near.observe(part);

function keepStills(part, isNear) {
  for (const picture of part.querySelectorAll(isNear ? "img[data-still]" : "img[src]")) {
    if (isNear) {
      picture.src = picture.dataset.still;
      delete picture.dataset.still;
    } else {
      picture.dataset.still = picture.getAttribute("src");
      picture.removeAttribute("src");
    }
  }
}

const watch = document.getElementById("watch");
if (watch) open(watch.dataset).catch((error) => console.error(error));

async function open({ job, seconds, track, tracks, scenes: sceneCount }) {
  const player = document.getElementById("player");
  const still = document.getElementById("still");
  const query = Number(tracks) > 1 ? `?track=${track}` : "";
  const lines = document.getElementById("lines");
  const [spoken, seen] = await Promise.all([
    lines?.querySelector(".segment") ? api(`/jobs/${job}/transcript${query}`) : null,
    Number(sceneCount) ? api(`/jobs/${job}/scenes`) : { scenes: [] },
  ]);
  const transcript = spoken && new Transcript(lines, spoken);
  const timeline = new Timeline({ seconds: Number(seconds), scenes: seen.scenes, spoken, seek });
  let sceneNow = null;

  function show(time, { jumped = false } = {}) {
    transcript?.show(time, jumped);
    timeline.show(time);
    const scene = timeline.sceneAt(time);
    if (scene === sceneNow) return;
    document.getElementById(`scene-${sceneNow?.index}`)?.classList.remove("now");
    document.getElementById(`scene-${scene?.index}`)?.classList.add("now");
    sceneNow = scene;
    const picture = scene && document.querySelector(`#scene-${scene.index} img`);
    if (still && picture) still.src = picture.dataset.still ?? picture.src;
  }

  function seek(time) {
    if (player && !player.error) player.currentTime = time;
    show(time, { jumped: true });
  }

  if (player) {
    const tick = () => {
      show(player.currentTime);
      if (!player.paused && !player.ended) requestAnimationFrame(tick);
    };
    player.addEventListener("play", tick);
    player.addEventListener("seeked", () => show(player.currentTime, { jumped: true }));
    player.addEventListener("error", () => {
      document.getElementById("unplayable").hidden = false;
    });
    if (player.error) document.getElementById("unplayable").hidden = false;
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#t="]');
    const time = link ? Number(link.hash.slice(3)) : transcript?.timeOf(event.target);
    if (time == null) return;
    event.preventDefault();
    seek(time);
    if (link?.closest(".scene")) document.querySelector(".picture").scrollIntoView({ block: "nearest" });
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, button, summary, video, canvas") || event.ctrlKey || event.metaKey || event.altKey) return;
    const now = player?.currentTime ?? timeline.time;
    const keys = {
      k: () => player && (player.paused ? player.play() : player.pause()),
      j: () => seek(Math.max(0, now - 10)),
      l: () => seek(Math.min(Number(seconds), now + 10)),
      "/": () => document.getElementById("find-text")?.focus(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  if (transcript) {
    find(lines);
    nameSpeakers(job, query, (speaker) => timeline.rename(speaker));
    api(`/jobs/${job}/chapters`)
      .then(({ chapters }) => showChapters(chapters, timeline))
      .catch((error) => console.warn(error.message));
  }
  const wanted = location.hash.startsWith("#t=") ? Number(location.hash.slice(3)) : NaN;
  if (Number.isFinite(wanted)) seek(wanted);
  watch.dataset.ready = "";
}
