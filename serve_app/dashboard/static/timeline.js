// The timeline: scenes in their colours, a lane for each speaker, marks of writing; zoom and keys.
import { clock } from "./page.js";
import { lastBefore } from "./transcript.js";

const SCENES = 36;
const GAP = 6;
const LANES = 44;
/** Told apart in light and dark, and by people who see few colours (Okabe and Ito). */
const VOICES = ["#4353d6", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8d6e63", "#7a7f8c"];
const LONGEST_ZOOM = 4096;
const RULER_SECONDS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200];
const RULER_PIXELS = 70;

export class Timeline {
  /** `speakers` are the names by the ids that stand in `segments`. */
  constructor({ seconds, scenes, segments, speakers, wave, seek }) {
    Object.assign(this, { seconds: seconds || 1, scenes, segments, seek, time: 0, zoom: 1, from: 0, due: false, chapters: [] });
    this.canvas = document.getElementById("lanes");
    this.under = document.getElementById("under");
    this.names = new Map(Object.entries(speakers));
    this.speakers = [...this.names.keys()];
    document.getElementById("timeline").hidden = !scenes.length && !this.segments.length;
    // What there is of the two, one below the other.
    this.lanesTop = scenes.length ? SCENES + GAP : 0;
    this.canvas.style.height = `${this.lanesTop + (this.segments.length ? LANES : 0) || SCENES}px`;
    if (wave && this.segments.length) {
      this.wave = new Image();
      this.wave.addEventListener("load", () => this.draw());
      this.wave.src = wave;
    }
    this.listen();
    this.draw();
  }

  voice(speaker) {
    return VOICES[Math.max(0, this.speakers.indexOf(speaker)) % VOICES.length];
  }

  /** The headings of a part in their speakers' colours. */
  colour(part) {
    for (const heading of part.querySelectorAll(".speaker")) {
      heading.style.setProperty("--lane", this.voice(heading.dataset.speaker));
    }
  }

  rename({ id, label }) {
    this.names.set(id, label);
  }

  mark(chapters) {
    this.chapters = chapters;
    this.draw();
  }

  get span() {
    return this.seconds / this.zoom;
  }

  sceneAt(time) {
    return this.scenes[lastBefore(this.scenes, time)] ?? null;
  }

  show(time) {
    if (time === this.time && this.drawn) return;
    this.time = time;
    if (time < this.from || time > this.from + this.span) this.from = this.bounded(time - this.span / 4);
    this.draw();
    const second = Math.floor(time);
    if (second === this.second) return;
    this.second = second;
    const scene = this.sceneAt(time);
    const speaker = this.names.get(this.segments[lastBefore(this.segments, time)]?.speaker);
    const text = [clock(time), scene && `scene ${scene.index + 1}`, speaker].filter(Boolean).join(", ");
    this.canvas.setAttribute("aria-valuenow", String(second));
    this.canvas.setAttribute("aria-valuetext", text);
    this.under.textContent = text;
  }

  bounded(from) {
    return Math.min(Math.max(0, from), this.seconds - this.span);
  }

  zoomBy(factor, around = this.time) {
    const share = (around - this.from) / this.span;
    this.zoom = Math.min(Math.max(1, this.zoom * factor), Math.max(1, Math.min(LONGEST_ZOOM, this.seconds / 4)));
    this.from = this.bounded(around - share * this.span);
    this.draw();
  }

  timeAt(event) {
    const { left, width } = this.canvas.getBoundingClientRect();
    return Math.min(Math.max(0, this.from + ((event.clientX - left) / width) * this.span), this.seconds);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.seek(this.timeAt(event));
    });
    canvas.addEventListener("pointermove", (event) => event.buttons && this.seek(this.timeAt(event)));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
        event.preventDefault();
        if (event.ctrlKey) return this.zoomBy(event.deltaY < 0 ? 1.25 : 0.8, this.timeAt(event));
        this.from = this.bounded(this.from + (event.deltaX / canvas.clientWidth) * this.span);
        this.draw();
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 5, ArrowLeft: -5, PageDown: 60, PageUp: -60 };
      const places = { Home: 0, End: this.seconds };
      const target = places[event.key] ?? this.time + (steps[event.key] ?? NaN);
      if (event.key === "+") this.zoomBy(2);
      else if (event.key === "-") this.zoomBy(0.5);
      else if (Number.isFinite(target)) this.seek(Math.min(Math.max(0, target), this.seconds));
      else return;
      event.preventDefault();
    });
    document.getElementById("zoom-in").addEventListener("click", () => this.zoomBy(2));
    document.getElementById("zoom-out").addEventListener("click", () => this.zoomBy(0.5));
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Paint with the next frame, once however often it was asked for. */
  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.drawn = true;
      this.paint();
    });
  }

  paint() {
    const { canvas } = this;
    const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio];
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const x = (time) => ((time - this.from) / this.span) * width;
    pen.fillStyle = style.getPropertyValue("--sunk");
    if (this.scenes.length) pen.fillRect(0, 0, width, SCENES);
    if (this.segments.length) pen.fillRect(0, this.lanesTop, width, LANES);
    this.paintScenes(pen, x, style);
    this.paintVoices(pen, x);
    if (this.wave?.complete && this.wave.naturalWidth) {
      pen.globalAlpha = 0.55;
      pen.drawImage(this.wave, x(0), this.lanesTop, x(this.seconds) - x(0), LANES);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = style.getPropertyValue("--quiet");
    for (const { startTime } of this.chapters.slice(1)) pen.fillRect(x(startTime), 0, 1, height);
    this.paintRuler(pen, x, height);
    pen.fillStyle = style.getPropertyValue("--text");
    pen.fillRect(Math.min(Math.max(0, x(this.time) - 1), width - 2), 0, 2, height);
  }

  paintScenes(pen, x, style) {
    const until = this.from + this.span;
    for (let n = Math.max(0, lastBefore(this.scenes, this.from)); n < this.scenes.length; n += 1) {
      const scene = this.scenes[n];
      if (scene.startTime > until) break;
      const [left, right] = [x(scene.startTime), x(scene.endTime)];
      const gap = right - left > 4 ? 1 : 0;
      const part = SCENES / scene.colorPalette.length;
      scene.colorPalette.forEach((colour, index) => {
        pen.fillStyle = colour;
        pen.fillRect(left, index * part, Math.max(0.5, right - left - gap), part + 0.5);
      });
      if (scene.hasText && right - left > 3) {
        pen.fillStyle = style.getPropertyValue("--accent");
        pen.fillRect(left, SCENES + 1, right - left - gap, 3);
      }
    }
  }

  /** Times along the top, as far apart as they are readable. */
  paintRuler(pen, x, height) {
    const step = RULER_SECONDS.find((each) => x(this.from + each) >= RULER_PIXELS) ?? RULER_SECONDS.at(-1);
    pen.font = "11px system-ui, sans-serif";
    for (let time = Math.ceil(this.from / step) * step; time < this.from + this.span; time += step) {
      if (!time) continue;
      pen.fillStyle = "#0008";
      pen.fillRect(x(time), 0, 1, height);
      pen.fillRect(x(time) + 1, 0, pen.measureText(clock(time)).width + 4, 13);
      pen.fillStyle = "#fff";
      pen.fillText(clock(time), x(time) + 3, 10);
    }
  }

  paintVoices(pen, x) {
    const lanes = Math.max(1, Math.min(this.speakers.length, 8));
    const lane = LANES / lanes;
    const until = this.from + this.span;
    for (let n = Math.max(0, lastBefore(this.segments, this.from)); n < this.segments.length; n += 1) {
      const segment = this.segments[n];
      if (segment.startTime > until) break;
      const number = Math.max(0, this.speakers.indexOf(segment.speaker)) % lanes;
      pen.fillStyle = this.voice(segment.speaker);
      pen.fillRect(x(segment.startTime), this.lanesTop + number * lane + 1, Math.max(1, x(segment.endTime) - x(segment.startTime)), lane - 2);
    }
  }
}
