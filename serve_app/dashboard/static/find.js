// Find in this job: all places are marked without touching the lines, Enter goes from one to the next.

export function find(lines) {
  const form = document.getElementById("find");
  const field = document.getElementById("find-text");
  const found = document.getElementById("found");
  let places = [];
  let at = -1;
  form.hidden = false;

  /** Every place of `wanted` in the transcript and in the scenes, as ranges of text. */
  function search(wanted) {
    const roots = [lines, ...document.querySelectorAll(".scenes")];
    return roots.flatMap((root) =>
      [...root.querySelectorAll(".segment > span, .scene p, .scene li, .scene q")].flatMap((element) =>
        places_in(element, wanted),
      ),
    );
  }

  function show(step) {
    at = places.length ? (at + step + places.length) % places.length : -1;
    found.textContent = field.value ? (places.length ? `${at + 1} of ${places.length}` : "None") : "";
    CSS.highlights?.set("chosen", new Highlight(...(at < 0 ? [] : [places[at]])));
    places[at]?.startContainer.parentElement.scrollIntoView({ block: "nearest" });
  }

  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    places = wanted.length > 1 ? search(wanted) : [];
    CSS.highlights?.set("found", new Highlight(...places));
    at = -1;
    show(1);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") show(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") field.blur();
  });
}

/** Ranges of `wanted` in an element whose text may lie in several nodes. */
function places_in(element, wanted) {
  const text = element.textContent.toLowerCase();
  const ranges = [];
  for (let from = text.indexOf(wanted); from >= 0; from = text.indexOf(wanted, from + 1)) {
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
