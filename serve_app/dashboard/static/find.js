// Find in this job, in parts that are not there yet too: Enter goes from one place to the next.
import { fetched } from "./page.js";

/** Each of `lists`: its `parts`, the `address` of its items' texts, what of an item is searched. */
export function find(lists) {
  const form = document.getElementById("find");
  const field = document.getElementById("find-text");
  const found = document.getElementById("found");
  let places = [];
  let at = -1;
  let turn = 0;
  form.hidden = false;

  /** Every place of `wanted`: in which item of which list, and the how many-th it is there. */
  async function search(wanted) {
    const texts = await Promise.all(lists.map(textsOf));
    return lists.flatMap((list, n) =>
      texts[n].flatMap((item, index) => {
        const count = item.reduce((sum, text) => sum + text.split(wanted).length - 1, 0);
        return Array.from({ length: count }, (_, nth) => ({ list, index, nth }));
      }),
    );
  }

  /** Mark the places in all parts that are there. */
  function mark() {
    const wanted = field.value.trim().toLowerCase();
    const items = wanted.length > 1 ? lists.flatMap(({ parts }) => parts.all.flatMap((part) => [...part.children])) : [];
    CSS.highlights?.set("found", new Highlight(...items.flatMap((item) => rangesIn(item, lists, wanted))));
  }

  async function show(step) {
    const mine = (turn += 1);
    at = places.length ? (at + step + places.length) % places.length : -1;
    found.textContent = field.value ? (places.length ? `${at + 1} of ${places.length}` : "None") : "";
    const place = places[at];
    const item = place && (await place.list.parts.element(place.index));
    if (mine !== turn) return;
    const range = item && rangesIn(item, lists, field.value.trim().toLowerCase())[place.nth];
    CSS.highlights?.set("chosen", new Highlight(...(range ? [range] : [])));
    range?.startContainer.parentElement.scrollIntoView({ block: "nearest" });
  }

  field.addEventListener("input", async () => {
    const mine = (turn += 1);
    const wanted = field.value.trim().toLowerCase();
    const all = wanted.length > 1 ? await search(wanted).catch(() => []) : [];
    if (mine !== turn) return;
    [places, at] = [all, -1];
    mark();
    show(1);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") show(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") field.blur();
  });
  for (const { parts } of lists) parts.each(() => field.value && mark());
}

/** The texts of a list's items in lower case, fetched once. */
function textsOf(list) {
  list.texts ??= fetched(list.address)
    .then((answer) => answer.json())
    .then((items) => items.map((texts) => texts.map((text) => text.toLowerCase())));
  return list.texts;
}

/** Ranges of `wanted` in an item, in the order of its texts. */
function rangesIn(item, lists, wanted) {
  const searched = lists.map((list) => list.searched).join();
  return [...item.querySelectorAll(searched)].flatMap((element) => placesIn(element, wanted));
}

/** Ranges of `wanted` in an element whose text may lie in several nodes. */
function placesIn(element, wanted) {
  const text = element.textContent.toLowerCase();
  const ranges = [];
  for (let from = text.indexOf(wanted); from >= 0; from = text.indexOf(wanted, from + wanted.length)) {
    const range = document.createRange();
    range.setStart(...position(element, from));
    range.setEnd(...position(element, from + wanted.length));
    ranges.push(range);
  }
  return ranges;
}

function position(element, offset) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let node = walker.nextNode();
  while (node && offset > node.length) {
    offset -= node.length;
    node = walker.nextNode();
  }
  return [node, offset];
}
