// The pages are complete without this: it filters them, fills in the address and copies samples.
"use strict";

const filter = document.getElementById("filter");
const nothing = document.getElementById("nothing");

function applyFilter() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = 0;
  for (const item of document.querySelectorAll("[data-search]")) {
    item.hidden = !words.every((word) => item.dataset.search.includes(word));
    if (!item.hidden && item.tagName === "LI") found += 1;
  }
  for (const section of document.querySelectorAll("nav section, main section")) {
    const items = section.querySelectorAll("[data-search]");
    section.hidden = words.length > 0 && [...items].every((item) => item.hidden);
  }
  nothing.hidden = found > 0;
}

filter.addEventListener("input", applyFilter);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
  }
  if (event.key === "Escape" && document.activeElement === filter) {
    filter.value = "";
    applyFilter();
    filter.blur();
  }
});
window.addEventListener("hashchange", () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.hidden) {
    filter.value = "";
    applyFilter();
    target.scrollIntoView();
  }
});

const base = location.origin + "/v1/api";
for (const node of document.querySelectorAll("code.base")) node.textContent = base;
for (const node of document.querySelectorAll("pre code")) {
  node.textContent = node.textContent.replace("https://your-service/v1/api", base);
}

if (navigator.clipboard) {
  for (const block of document.querySelectorAll("pre")) {
    const frame = document.createElement("div");
    const button = document.createElement("button");
    frame.className = "copied";
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(block.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.replaceWith(frame);
    frame.append(block, button);
  }
}
