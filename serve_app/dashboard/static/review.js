// What is most worth checking in a transcript: one place after the other, each played to its end.
import { api, clock } from "./page.js";

const BUDGET_SECONDS = 300;
const MOST_SECONDS = 86_400;
const REASONS = { words: "the words", cut: "the cut", speaker: "the speaker", language: "the language" };

/** `revision()` is that of the transcript as the page has it: after a correction places change. */
export function review({ job, query, player, seek, revision }) {
  const status = document.getElementById("review-status");
  const visited = [];
  let [found, budget, end] = [null, BUDGET_SECONDS, null];

  const isVisited = ({ startTime, endTime }) => visited.some((each) => each.startTime <= (startTime + endTime) / 2 && (startTime + endTime) / 2 <= each.endTime);
  const say = (text) => (status.textContent = text);

  player?.addEventListener("timeupdate", () => {
    if (end === null || player.currentTime < end) return;
    const isThere = player.currentTime < end + 1; // not where somebody went meanwhile
    end = null;
    if (isThere) player.pause();
  });
  player?.addEventListener("pause", () => (end = null));

  return {
    /** The place that is most worth it of those that were not visited; null where none is left. */
    async next() {
      for (;;) {
        if (found?.revision !== revision() || found.budgetSeconds !== budget) {
          say("Looking…");
          found = await api(`/jobs/${job}/review?budgetSeconds=${budget}${query.replace("?", "&")}`);
        }
        const place = found.stretches.find((each) => !isVisited(each));
        if (place) {
          visited.push(place);
          const left = found.before.errors - found.stretches.filter(isVisited).reduce((sum, each) => sum + each.expectedErrors, 0);
          const why = place.reasons.map((reason) => REASONS[reason] ?? reason).join(", ");
          say(`${clock(place.startTime)}–${clock(place.endTime)}: check ${why}. About ${place.expectedErrors.toFixed(1)} likely errors here, ${Math.max(0, left).toFixed(1)} left in the rest.`);
          return place;
        }
        if (found.after.errors < 0.05 || budget === MOST_SECONDS) {
          say("Everything is checked.");
          return null;
        }
        budget = Math.min(MOST_SECONDS, 2 * budget);
      }
    },
    /** From its start to its end, unless it is paused before. */
    play(place) {
      seek(place.startTime);
      if (!player) return;
      end = place.endTime;
      player.play().catch((error) => error.name === "AbortError" || say(error.message)); // paused at once
    },
  };
}
