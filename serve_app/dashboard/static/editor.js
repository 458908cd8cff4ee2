// Correcting the transcript in its place, by keyboard; what is not saved is kept in the browser.
import { api, fetched } from "./page.js";
import { review } from "./review.js";

const MOST_AT_ONCE = 1000;
const MOST_TRIES = 5;
const EDITING_SECONDS = 20;

/** `refresh(first, count)` fetches the lines from one on; `changed()` after every correction. */
export function edit({ job, track, query, lines, parts, segments, names, player, seek, refresh, changed }) {
  const key = `vas-draft:${job}:${track}`;
  const status = document.getElementById("edit-status");
  const bar = document.getElementById("edit-bar");
  const path = `/jobs/${job}/transcript`;
  const editing = document.getElementById("edit");
  let revision = Number(lines.dataset.revision);
  let open = null; // the line that has the focus: { index, start, line, field, text, saving }
  let busy = Promise.resolve();
  const places = review({ job, query, player, seek, revision: () => revision });
  const [undone, done] = [[], []];

  let presence = null; // the timer that tells that this page edits
  let isStale = false; // the page's lines are of an older revision than `segments`

  const say = (text) => (status.textContent = text);
  const textOf = (line) => line.querySelector(".spoken").textContent;

  /** One correction after the other; the changes, or null where it was refused. */
  function send(method, address, body, entry) {
    busy = busy.then(() => attempt(method, address, body, entry));
    return busy;
  }

  async function attempt(method, address, body, entry, tries = 0) {
    const before = revision;
    say("Saving…");
    try {
      const made = await api(address, { method, body: { revision, trackIndex: Number(track), ...body } });
      revision = made.revision;
      if (made.changes.length) {
        if (method === "PATCH") {
          undone.length = 0;
          done.push(before);
        }
        for (const { index, removed, segments: put } of [...made.changes].reverse()) segments.splice(index, removed, ...put);
        segments.forEach((segment, index) => (segment.index = index));
        changed();
      }
      say(`Saved. Correction ${revision}.`);
      return made.changes;
    } catch (error) {
      if (error.code === "REVISION_CONFLICT" && method === "PATCH" && tries < MOST_TRIES) return rebase(body, entry, tries);
      say(`${error.message} Your text is saved in this browser.`);
      return null;
    }
  }

  /** Somebody else has corrected the transcript: the same again on top of that where the lines are as they were here. */
  async function rebase(body, entry, tries) {
    const fresh = await api(`${path}${query}`);
    const moved = new Map();
    const placeOf = (index) => {
      const line = parts.find(index);
      const now = fresh.segments.findIndex(({ startTime, text }) => line && startTime === segments[index].startTime && text === textOf(line));
      moved.set(index, now);
      return now;
    };
    const places = (edits = []) => edits.map((edit) => ({ ...edit, index: placeOf(edit.index) }));
    const again = Object.fromEntries(["segments", "split", "merge"].filter((kind) => body[kind]).map((kind) => [kind, places(body[kind])]));
    for (const { index, count } of body.merge ?? []) for (let at = 1; at < count; at += 1) if (placeOf(index + at) !== moved.get(index) + at) moved.set(index, -1);
    if ([...moved.values()].includes(-1)) {
      choose(fresh, entry);
      return null;
    }
    adopt(fresh);
    return attempt("PATCH", path, again, entry, tries + 1);
  }

  function adopt(fresh) {
    revision = fresh.revision;
    done.length = undone.length = 0; // to go back would take the other's corrections away
    segments.splice(0, segments.length, ...fresh.segments);
    segments.forEach((segment, index) => (segment.index = index));
    isStale = true;
  }

  /** The same line was corrected elsewhere: both texts are shown, and one is chosen. */
  function choose(fresh, entry) {
    if (!entry) return say("The transcript was corrected elsewhere. Reload the page to see it.");
    const { field, index } = entry;
    const theirs = [...fresh.segments].reverse().find(({ startTime }) => startTime <= segments[index].startTime) ?? fresh.segments[0];
    const button = (textContent, action) => {
      const made = Object.assign(document.createElement("button"), { type: "button", textContent });
      made.addEventListener("click", () => Promise.resolve(action()).catch((error) => say(error.message)));
      return made;
    };
    const keep = async () => {
      adopt(fresh);
      const changes = await patch({ segments: [{ index: fresh.segments.indexOf(theirs), text: field.value.trim() }] }, entry);
      if (!changes) return;
      leave(entry);
      await show(changes);
    };
    const take = async () => {
      adopt(fresh);
      leave(entry);
      await show([]);
      changed();
      say("");
    };
    status.replaceChildren(`This line was corrected elsewhere: “${theirs?.text ?? ""}” `, button("Keep mine", keep), " ", button("Take theirs", take));
  }

  const patch = (body, entry = open) => send("PATCH", path, body, entry);

  /** Fetch the lines from one on; what was being typed in one of them goes on in its new element. */
  async function renew(first) {
    await refresh(first, segments.length);
    if (!open || open.field.isConnected) return;
    const { start, field } = open;
    open = null;
    const index = segments.findIndex(({ startTime }) => startTime === start);
    if (index >= 0) await begin(index, field.selectionStart, field.value);
  }

  /** Show corrected lines; all from the first on where their number or speakers changed. */
  async function show(changes) {
    if (isStale) {
      isStale = false;
      return renew(0);
    }
    for (const { index, removed, segments: put } of changes) {
      const line = parts.find(index);
      const alike = removed === 1 && put.length === 1 && (!line || line.dataset.speaker === (put[0].speaker ?? ""));
      if (!alike) return renew(changes[0].index);
      if (line) spell(line, put[0]);
    }
  }

  /** The words of a line, each in an element of its own, as the page has them. */
  function spell(line, { text, words }) {
    const spoken = line.querySelector(".spoken");
    let at = 0;
    const nodes = words.flatMap((word) => {
      const start = text.indexOf(word.text, at);
      const gap = text.slice(at, start);
      at = start + word.text.length;
      return [gap, Object.assign(document.createElement("i"), { textContent: word.text })];
    });
    spoken.replaceChildren(...nodes, text.slice(at));
    line.dataset.times = words.flatMap((word) => [word.startTime, word.endTime]).join(" ");
    delete line.words;
  }

  async function begin(index, caret = null, draft = null) {
    if (index < 0 || index >= segments.length) return;
    // The line that is left is saved meanwhile: what is typed now is for this one.
    const saved = close();
    if (open?.index === index) await saved;
    saved.catch((error) => say(error.message));
    const line = await parts.element(index);
    if (!line || line.classList.contains("edited")) return line?.querySelector("textarea")?.focus();
    const field = document.createElement("textarea");
    const text = textOf(line);
    field.value = draft ?? text;
    field.rows = Math.max(1, Math.ceil(field.value.length / 60));
    field.maxLength = 10000;
    field.setAttribute("aria-label", `Line ${index + 1}`);
    field.setAttribute("aria-describedby", "edit-keys");
    line.classList.add("edited");
    line.append(field);
    const entry = { index, start: segments[index].startTime, line, field, text, saving: null };
    field.addEventListener("focus", () => (open = entry));
    field.addEventListener("blur", ({ relatedTarget }) => {
      // Not where the window lost the focus, or one of the editor's tools has it.
      if (document.hasFocus() && ![bar, status].some((tools) => tools.contains(relatedTarget))) close({ entry, stays: true }).catch((error) => say(error.message));
    });
    field.addEventListener("input", () => {
      field.value = field.value.replace(/\s*\n\s*/g, " ");
      localStorage.setItem(key, JSON.stringify({ index, base: entry.text, text: field.value }));
    });
    field.addEventListener("keydown", pressed);
    open = entry;
    field.focus();
    const end = caret ?? field.value.length;
    field.setSelectionRange(end, end);
    field.scrollIntoView({ block: "nearest" });
  }

  /** Put the text back in its line, saved unless `discard`; it goes on there if it `stays`. False where it was refused. */
  async function close({ entry = open, discard = false, stays = false } = {}) {
    if (!entry) return true;
    // One save after the other: the next one has what was typed since.
    while (entry.saving) await entry.saving.catch(() => null);
    if (entry.isLeft) return true;
    entry.saving = finish(entry, discard, stays);
    try {
      return await entry.saving;
    } finally {
      entry.saving = null;
    }
  }

  async function finish(entry, discard, stays) {
    const typed = entry.field.value.trim();
    if (discard || typed === entry.text) {
      if (!stays) leave(entry);
      return true;
    }
    entry.field.readOnly = !stays;
    const changes = await patch({ segments: [{ index: entry.index, text: typed }] }, entry);
    entry.field.readOnly = false;
    if (!changes) return false;
    entry.text = typed;
    if (!stays) leave(entry);
    else if (entry.field.value.trim() === typed) forget(entry);
    await show(changes);
    return true;
  }

  function forget({ index }) {
    if (JSON.parse(localStorage.getItem(key) ?? "null")?.index === index) localStorage.removeItem(key);
  }

  function leave(entry) {
    forget(entry);
    if (open === entry) open = null;
    entry.isLeft = true; // what is removed loses the focus, too
    entry.field.remove();
    entry.line.classList.remove("edited");
  }

  /** A correction of more than the open line's text: saved first, then shown, then gone on in. */
  async function restructure(body, index, caret) {
    const entry = open;
    const changes = await patch(body);
    if (!changes) return;
    leave(entry);
    await show(changes);
    await begin(index, caret);
  }

  /** How many words of a line lie before a place in its text. */
  function wordsBefore({ text, words }, caret) {
    let [at, count] = [0, 0];
    for (const word of words) {
      at = text.indexOf(word.text, at) + word.text.length;
      if (at > caret) break;
      count += 1;
    }
    return count;
  }

  async function wordsOf(index) {
    const segment = segments[index];
    if (segment.words) return segment;
    const all = await api(`${path}${query}`);
    all.segments.forEach((each, at) => segments[at] && Object.assign(segments[at], each));
    return segments[index];
  }

  async function split() {
    const { index, field, text } = open;
    const caret = field.selectionStart;
    if (caret >= field.value.trimEnd().length) return begin(index + 1, 0);
    if (field.value.trim() !== text) {
      const typed = field.value;
      if (!(await close())) return;
      await begin(index, Math.min(caret, typed.length));
      if (!open) return;
    }
    const word = wordsBefore(await wordsOf(index), open.field.selectionStart);
    if (word) await restructure({ split: [{ index, word }] }, index + 1, 0);
  }

  async function merge() {
    const { index, field } = open;
    if (!index) return;
    const before = textOf(await parts.element(index - 1));
    const body = { merge: [{ index: index - 1, count: 2 }], segments: [{ index, text: field.value }] };
    await restructure(body, index - 1, before.length + 1);
  }

  function play() {
    if (!player) return;
    if (!player.paused) return player.pause();
    const { line, field, text } = open;
    const times = (line.dataset.times ?? "").split(" ").map(Number);
    const typed = field.value.slice(0, field.selectionStart).trimEnd().split(/\s+/).filter(Boolean).length;
    const word = Math.min(Math.max(0, typed - (/\s$/.test(field.value.slice(0, field.selectionStart)) ? 0 : 1)), times.length / 2 - 1);
    seek(times[2 * word] || segments[open.index].startTime);
    player.play().catch((error) => error.name === "AbortError" || say(error.message)); // paused at once
  }

  /** Back to before the last correction of this page, or forth again. */
  async function step(from, to) {
    if (!from.length || !(await close())) return;
    to.push(revision);
    const changes = await send("POST", `${path}/revert`, { to: from.pop() });
    if (changes) await refresh(0, segments.length);
  }

  function pressed(event) {
    const { index, field, text } = open;
    const { selectionStart: start, selectionEnd: end, value } = field;
    const control = event.ctrlKey || event.metaKey;
    const name = [control && "Control", event.altKey && "Alt", event.shiftKey && "Shift", event.key].filter(Boolean).join("+");
    const number = event.altKey && /^Digit([1-9])$/.exec(event.code);
    const speaker = number && [...names.keys()][number[1] - 1];
    const actions = {
      Enter: () => split(),
      "Control+Enter": play,
      "Control+s": () => close().then(() => begin(index, start)),
      Escape: () => close({ discard: true }).then(() => lines.focus()),
      "Alt+Enter": next,
      "Alt+ArrowUp": () => begin(index - 1),
      "Alt+ArrowDown": () => begin(index + 1),
      ArrowUp: start === 0 && end === 0 && (() => begin(index - 1)),
      ArrowDown: start === value.length && (() => begin(index + 1, 0)),
      Backspace: start === 0 && end === 0 && index > 0 && merge,
      "Control+z": value === text && (() => step(done, undone)),
      "Control+Shift+Z": value === text && (() => step(undone, done)),
    };
    const action = speaker ? () => restructure({ segments: [{ index, text: value, speaker }] }, index, start) : actions[name];
    if (!action || event.isComposing || field.readOnly) return;
    event.preventDefault();
    event.stopPropagation();
    Promise.resolve(action()).catch((error) => say(error.message));
  }

  /** The next place that is most worth checking: its first line is opened, and it is played. */
  async function next() {
    if (!(await close())) return;
    const place = await places.next();
    if (place?.segments.length) await begin(place.segments[0]);
    if (place) places.play(place);
  }

  async function toggle(on) {
    if (!on && !(await close())) return;
    editing.setAttribute("aria-pressed", String(on));
    bar.hidden = !on;
    lines.classList.toggle("correcting", on);
    clearInterval(presence);
    if (!on) return;
    presence = setInterval(noteEditing, EDITING_SECONDS * 1000);
    noteEditing();
  }

  /** Tell that this page edits, and show who else does. */
  async function noteEditing() {
    const others = await fetched(`/dashboard/jobs/${job}/editors`).then((answer) => answer.json()).catch(() => []);
    document.getElementById("editors").textContent = others.length ? `${others.join(", ")} ${others.length > 1 ? "are" : "is"} editing.` : "";
  }

  async function replaceAll() {
    const [wanted, put] = ["replace-from", "replace-to"].map((id) => document.getElementById(id).value);
    if (!wanted || !(await close())) return;
    const all = await api(`${path}${query}`);
    revision = all.revision;
    const found = all.segments.filter(({ text }) => text.includes(wanted));
    const before = revision;
    for (let at = 0; at < found.length; at += MOST_AT_ONCE) {
      const some = found.slice(at, at + MOST_AT_ONCE).filter(({ text }) => text.replaceAll(wanted, put).trim());
      if (!some.length || !(await patch({ segments: some.map(({ index, text }) => ({ index, text: text.replaceAll(wanted, put) })) }))) break;
    }
    await refresh(0, segments.length);
    const count = found.reduce((sum, { text }) => sum + text.split(wanted).length - 1, 0);
    if (revision !== before || !found.length) say(count ? `${count} replaced in ${found.length} lines. Correction ${revision}.` : "Not found in the transcript.");
  }

  editing.hidden = false;
  editing.addEventListener("click", () => toggle(bar.hidden));
  document.getElementById("replace").addEventListener("submit", (event) => {
    event.preventDefault();
    replaceAll().catch((error) => say(error.message));
  });
  document.getElementById("next-place").addEventListener("click", () => next().catch((error) => say(error.message)));
  document.getElementById("undo").addEventListener("click", () => step(done, undone));
  document.getElementById("redo").addEventListener("click", () => step(undone, done));
  lines.addEventListener("click", (event) => {
    const line = !bar.hidden && !event.target.closest("textarea, a, button") && event.target.closest(".segment");
    if (!line) return;
    const words = [...line.querySelector(".spoken").childNodes];
    const before = words.slice(0, words.indexOf(event.target) + 1).reduce((sum, node) => sum + node.textContent.length, 0);
    begin(Number(line.id.slice(1)), before || null).catch((error) => say(error.message));
  });

  /** Text of before a reload, or of a correction that was refused. */
  async function recover() {
    const kept = JSON.parse(localStorage.getItem(key) ?? "null");
    if (!kept) return;
    await toggle(true);
    const line = await parts.element(kept.index).catch(() => null);
    if (line && textOf(line) === kept.base) {
      await begin(kept.index, null, kept.text);
      say("This text was not saved yet.");
    } else {
      say(`The line was corrected elsewhere. Your text was: ${kept.text}`);
    }
  }

  return {
    recover,
    /** To the next place that is worth checking. */
    async next() {
      await toggle(true);
      await next();
    },
    /** From the line that is said now. */
    async start(index) {
      await toggle(true);
      await begin(Math.max(0, index));
    },
  };
}
