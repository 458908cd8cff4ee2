// Chapters: a list to jump by, and lines on the timeline.
import { clock } from "./page.js";

export function showChapters(chapters, timeline) {
  if (chapters.length < 2) return;
  const place = document.getElementById("chapters");
  place.lastElementChild.replaceChildren(
    ...chapters.map(({ startTime, title }) => {
      const link = document.createElement("a");
      link.href = `#t=${startTime}`;
      const time = Object.assign(document.createElement("span"), { className: "quiet number" });
      time.textContent = clock(startTime);
      link.append(time, title);
      const item = document.createElement("li");
      item.append(link);
      return item;
    }),
  );
  place.hidden = false;
  timeline.mark(chapters);
}
