// A job's results together: the player, the transcript beside it, the timeline, the scenes.
import { api, clock, fetched } from "./page.js";
import { showChapters } from "./chapters.js";
import { comment } from "./comments.js";
import { edit } from "./editor.js";
import { find } from "./find.js";
import { Parts } from "./parts.js";
import { nameSpeakers } from "./speakers.js";
import { Timeline } from "./timeline.js";
import { lastBefore, Transcript } from "./transcript.js";

const STEP_SECONDS = 1 / 25;
const SPEED = 1.25;
const MOST_CLIP_SECONDS = 600;
const watch = document.getElementById("watch");
if (watch) open(watch.dataset).catch((error) => console.error(error));

// Each frame looks at every picture that is loaded: those far from view are let go.
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

/** What a timeline shows of all scenes or segments; none where they are not there. */
async function outline(address, parts, names) {
  if (!parts) return [];
  const rows = await (await fetched(`${address}`)).json();
  return rows.map((row, index) => ({ index, ...Object.fromEntries(names.map((name, n) => [name, row[n]])) }));
}

async function open({ job, seconds, track, tracks, speakers }) {
  const player = document.getElementById("player");
  const still = document.getElementById("still");
  const query = Number(tracks) > 1 ? `?track=${track}` : "";
  const lines = document.getElementById("lines");
  const pictures = document.getElementById("scenes");
  const spoken = lines?.querySelector(".segment") ? new Parts(lines, "s", lines) : null;
  const seen = pictures ? new Parts(pictures, "scene-") : null;
  const page = `/dashboard/jobs/${job}`;
  const near = new IntersectionObserver(
    (entries) => entries.forEach(({ isIntersecting, target }) => keepStills(target, isIntersecting)),
    { rootMargin: "2000px" },
  );
  seen?.each((part) => near.observe(part));
  const [scenes, segments] = await Promise.all([
    outline(`${page}/scenes/outline`, seen, ["startTime", "endTime", "colorPalette", "hasText"]),
    outline(`${page}/segments/outline?track=${track}`, spoken, ["startTime", "endTime", "speaker"]),
  ]);
  const transcript = spoken && new Transcript(lines, segments, spoken);
  const wave = `${page}/segments/wave?track=${track}`;
  const timeline = new Timeline({ seconds: Number(seconds), scenes, segments, speakers: JSON.parse(speakers), wave, seek });
  let sceneNow = null;
  let editor = null;
  let edits = 0;

  function show(time, { jumped = false } = {}) {
    transcript?.show(time, jumped);
    timeline.show(time);
    const scene = timeline.sceneAt(time);
    if (scene === sceneNow) return;
    seen?.find(sceneNow?.index)?.classList.remove("now");
    sceneNow = scene;
    light();
    if (still && scene && !seen.find(scene.index)) seen.element(scene.index).catch((error) => console.warn(error.message));
  }

  /** The scene that is shown now, as soon as it is there. */
  function light() {
    const item = seen?.find(sceneNow?.index);
    item?.classList.add("now");
    const picture = item?.querySelector("img");
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
    const link = event.target.closest('a[href*="#t="]');
    const time = link ? Number(link.hash.slice(3)) : transcript?.timeOf(event.target);
    if (time == null) return;
    event.preventDefault();
    seek(time);
    if (link?.closest(".scene")) document.querySelector(".picture").scrollIntoView({ block: "nearest" });
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select, button, summary, video, canvas") || event.ctrlKey || event.metaKey || event.altKey) return;
    const now = player?.currentTime ?? timeline.time;
    const play = () => player && (player.paused ? player.play() : player.pause());
    const speed = (factor) => () => player && (player.playbackRate = Math.min(4, Math.max(0.25, player.playbackRate * factor)));
    const keys = {
      ...(player && { " ": play }), // else it scrolls
      k: play,
      ",": () => seek(Math.max(0, now - STEP_SECONDS)),
      ".": () => seek(Math.min(Number(seconds), now + STEP_SECONDS)),
      "<": speed(1 / SPEED),
      ">": speed(SPEED),
      i: () => clip("start", now),
      o: () => clip("end", now),
      j: () => seek(Math.max(0, now - 10)),
      l: () => seek(Math.min(Number(seconds), now + 10)),
      e: () => editor?.start(lastBefore(segments, now)).catch((error) => console.error(error)),
      n: () => editor?.next().catch((error) => console.error(error)),
      "/": () => document.getElementById("find-text")?.focus(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  /** In and out points: with both the range is there to download. */
  const range = {};
  function clip(point, time) {
    range[point] = time;
    const { start, end } = range;
    const link = document.getElementById("clip");
    if (!link) return;
    link.hidden = false;
    const isWhole = start < end && end - start <= MOST_CLIP_SECONDS;
    link.textContent = isWhole ? `Download ${clock(start)}–${clock(end)}` : `In ${start == null ? "–" : clock(start)}, out ${end == null ? "–" : clock(end)}`;
    if (isWhole) link.href = `/dashboard/api/jobs/${job}/clip?start=${start.toFixed(3)}&end=${end.toFixed(3)}`;
    else link.removeAttribute("href");
  }
  comment(job, () => player?.currentTime ?? timeline.time).catch((error) => console.warn(error.message));
  const doubts = document.getElementById("doubts");
  if (doubts) doubts.hidden = false;
  doubts?.addEventListener("click", () => doubts.setAttribute("aria-pressed", String(lines.classList.toggle("doubts"))));
  seen?.each(light);
  spoken?.each((part) => timeline.colour(part));
  spoken?.each((part) => nameSpeakers(part, timeline.names, job, query, (speaker) => timeline.rename(speaker)));
  if (transcript) {
    const lists = [
      { parts: spoken, address: `${page}/segments/texts?track=${track}`, searched: ".segment > span" },
      { parts: seen, address: `${page}/scenes/texts`, searched: ".scene > p:not(.small), .scene li" },
    ].filter(({ parts }) => parts);
    find(lists);
    const chapters = () =>
      api(`/jobs/${job}/chapters`)
        .then(({ chapters }) => showChapters(chapters, timeline))
        .catch((error) => console.warn(error.message));
    chapters();
    // Whoever may only read has no button to correct.
    if (document.getElementById("edit"))
      editor = edit({
        ...{ job, track, query, lines, parts: spoken, segments, names: timeline.names, player, seek },
        refresh: (first, count) => spoken.refresh(`${page}/segments?track=${track}`, first, count),
        changed() {
          delete lists[0].texts;
          timeline.draw();
          chapters();
          const captions = player?.querySelector("track[kind=captions]");
          if (captions) captions.src = `${captions.src.split("#")[0]}#${(edits += 1)}`; // read again
        },
      });
    await editor?.recover();
  }

  /** Where the address leads: a time, a scene, a line. */
  async function arrive(event) {
    const [, kind, number] = /^#(t=|scene-|s)(\d+(?:\.\d+)?)$/.exec(location.hash) ?? [];
    if (kind === "scene-" && scenes[number]) return (await seen.element(number)).scrollIntoView({ block: "center" });
    const time = kind === "t=" ? Number(number) : kind === "s" ? segments[number]?.startTime : undefined;
    if (time === undefined) return;
    if (event) document.querySelector(".picture").scrollIntoView({ block: "nearest" });
    seek(time);
  }
  addEventListener("hashchange", arrive);
  await arrive();
  watch.dataset.ready = "";
}
