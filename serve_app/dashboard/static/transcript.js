// The transcript's lines: words are made of a line when it comes into view, so that hours stay fast.

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

export class Transcript {
  constructor(lines, { segments }) {
    this.lines = lines;
    this.segments = segments;
    this.elements = segments.map((segment) => document.getElementById(`s${segment.index}`));
    this.indexOf = new Map(this.elements.map((element, index) => [element, index]));
    this.line = this.word = null;
    this.touched = 0;
    const near = new IntersectionObserver(
      (entries) => entries.forEach(({ isIntersecting, target }) => isIntersecting && this.spell(target)),
      { root: lines, rootMargin: "400px" },
    );
    this.elements.forEach((element) => near.observe(element));
    for (const kind of ["wheel", "touchmove", "keydown"]) {
      lines.addEventListener(kind, () => (this.touched = performance.now()), { passive: true });
    }
  }

  /** Make an element of each word of a line, once. */
  spell(element) {
    const text = element.lastElementChild;
    const { words } = this.segments[this.indexOf.get(element)];
    if (element.dataset.spelled !== undefined || !words.length) return;
    element.dataset.spelled = "";
    text.replaceChildren(
      ...words.flatMap((word, index) => {
        const part = document.createElement("i");
        part.textContent = word.text;
        return index ? [" ", part] : [part];
      }),
    );
  }

  /** The time of the word that was clicked. */
  timeOf(target) {
    const element = target.closest?.(".segment");
    if (target.tagName !== "I" || !element) return null;
    const index = [...target.parentElement.children].indexOf(target);
    return this.segments[this.indexOf.get(element)].words[index].startTime;
  }

  /** Light up what is said at `time`; the line is scrolled to unless the reader scrolls. */
  show(time, jumped) {
    const index = lastBefore(this.segments, time);
    const line = index < 0 ? null : this.elements[index];
    if (line !== this.line) {
      this.line?.classList.remove("now");
      line?.classList.add("now");
      this.line = line;
      if (line && (jumped || performance.now() - this.touched > 4000)) this.reveal(line);
    }
    let word = null;
    if (line) {
      this.spell(line);
      const { words } = this.segments[index];
      const at = lastBefore(words, time);
      if (at >= 0 && time < words[at].endTime + 0.25) word = line.lastElementChild.children[at];
    }
    if (word === this.word) return;
    this.word?.classList.remove("now");
    word?.classList.add("now");
    this.word = word;
  }

  /** Scroll the lines, not the page. */
  reveal(line) {
    const box = this.lines.getBoundingClientRect();
    const { top, bottom } = line.getBoundingClientRect();
    if (top > box.top + 40 && bottom < box.bottom - 80) return;
    this.lines.scrollTop += top - box.top - box.height / 3;
  }
}
