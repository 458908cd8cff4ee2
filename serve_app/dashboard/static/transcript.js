// The transcript's lines: what is said at a time, line by line and word by word.

/** The last item whose `startTime` is not after `time`; -1 before the first. */
export function lastBefore(items, time) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].startTime <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Starts and ends of a line's words; none where the line was not taken apart. */
function wordsOf(line) {
  if (!line.words) {
    const times = (line.dataset.times ?? "").split(" ").filter(Boolean).map(Number);
    line.words = Array.from({ length: times.length / 2 }, (_, n) => ({ startTime: times[2 * n], endTime: times[2 * n + 1] }));
  }
  return line.words;
}

export class Transcript {
  /** `segments` are all of them, in time; `parts` has the elements of those that are there. */
  constructor(lines, segments, parts) {
    Object.assign(this, { lines, segments, parts, line: null, word: null, awaited: -1, touched: 0 });
    for (const kind of ["wheel", "touchmove", "keydown"]) {
      lines.addEventListener(kind, () => (this.touched = performance.now()), { passive: true });
    }
  }

  /** The time of the word that was clicked. */
  timeOf(target) {
    const element = target.closest?.(".segment");
    if (target.tagName !== "I" || !element) return null;
    return wordsOf(element)[[...target.parentElement.children].indexOf(target)].startTime;
  }

  /** Light up what is said at `time`; the line is scrolled to unless the reader scrolls. */
  show(time, jumped) {
    const index = lastBefore(this.segments, time);
    const line = this.parts.find(index);
    if (index >= 0 && !line) this.fetch(index, jumped);
    else this.awaited = -1;
    if (line !== this.line) {
      this.line?.classList.remove("now");
      line?.classList.add("now");
      this.line = line;
      if (line && (jumped || performance.now() - this.touched > 4000)) this.reveal(line);
    }
    let word = null;
    if (line) {
      const words = wordsOf(line);
      const at = lastBefore(words, time);
      if (at >= 0 && time < words[at].endTime + 0.25) word = line.querySelector(".spoken").children[at];
    }
    if (word === this.word) return;
    this.word?.classList.remove("now");
    word?.classList.add("now");
    this.word = word;
  }

  /** Show a line as soon as it is there, if it is still what is said. */
  fetch(index, jumped) {
    if (index === this.awaited) return;
    this.awaited = index;
    this.parts
      .element(index)
      .then(() => index === this.awaited && this.show(this.segments[index].startTime, jumped))
      .catch((error) => console.warn(error.message));
  }

  /** Scroll the lines, not the page; again while parts that come into view get their own height. */
  reveal(line, times = 5) {
    const box = this.lines.getBoundingClientRect();
    const { top, bottom } = line.getBoundingClientRect();
    if (top > box.top + 40 && bottom < box.bottom - 80) return;
    this.lines.scrollTop += top - box.top - box.height / 3;
    if (times) requestAnimationFrame(() => line === this.line && this.reveal(line, times - 1));
  }
}
