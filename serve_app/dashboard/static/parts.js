// Long lists in parts: the first one stands in the page, the others are fetched as they come near.
import { fetched } from "./page.js";

/** Passing by, as at a drag of the scroll bar, fetches nothing. */
const STAYS_MS = 120;

export class Parts {
  /** `items` begins the ids of what `box` lists; it scrolls in `root`, or with the page. */
  constructor(box, items, root = null) {
    this.items = items;
    this.size = Number(box.dataset.size);
    this.listeners = [];
    this.all = [box.firstElementChild];
    this.near = new IntersectionObserver(() => {});
    const next = box.querySelector('a[rel="next"]');
    if (!next) return;
    this.address = new URL(next.href);
    for (let first = this.size; first < Number(box.dataset.count); first += this.size) {
      const part = this.all[0].cloneNode(false);
      if ("start" in part) part.start = first + 1;
      part.classList.add("later");
      part.dataset.first = first;
      this.all.push(part);
    }
    next.parentElement.replaceWith(...this.all.slice(1));
    const near = new Set();
    this.near = new IntersectionObserver(
      (entries) => {
        for (const { isIntersecting, target } of entries) {
          near[isIntersecting ? "add" : "delete"](target);
          if (isIntersecting) setTimeout(() => near.has(target) && this.load(target).catch(() => {}), STAYS_MS);
        }
      },
      { root, rootMargin: "1000px" },
    );
    for (const part of this.all.slice(1)) this.near.observe(part);
  }

  /** Fetch the parts from an item's on again, of a list that has `count` items by now. */
  async refresh(address, first, count) {
    this.address ??= new URL(address, location);
    const needed = Math.max(1, Math.ceil(count / this.size));
    while (this.all.length > needed) this.all.pop().remove();
    while (this.all.length < needed) {
      const part = this.all[0].cloneNode(false);
      this.all.at(-1).after(part);
      this.near.observe(part);
      this.all.push(part);
    }
    const from = Math.floor(first / this.size);
    for (const [number, part] of this.all.entries()) if (number >= from) part.dataset.first = number * this.size;
    await Promise.all(this.all.slice(from, from + 2).map((part) => this.load(part)));
  }

  /** Call `listener` with each part that is there, now and later. */
  each(listener) {
    this.listeners.push(listener);
    for (const part of this.all) if (!part.dataset.first) listener(part);
  }

  /** The element of an item, if its part is there. */
  find(index) {
    return document.getElementById(this.items + index);
  }

  /** The element of an item, its part fetched before if need be. */
  async element(index) {
    await this.load(this.all[Math.floor(index / this.size)]);
    return this.find(index);
  }

  load(part) {
    if (!part?.dataset.first) return Promise.resolve();
    part.loading ??= this.fill(part).finally(() => delete part.loading);
    return part.loading;
  }

  async fill(part) {
    const address = new URL(this.address);
    address.searchParams.set("from", part.dataset.first);
    const page = new DOMParser().parseFromString(await (await fetched(address)).text(), "text/html");
    part.replaceChildren(...document.importNode(page.getElementById(this.items + part.dataset.first).parentElement, true).childNodes);
    part.classList.remove("later");
    delete part.dataset.first;
    for (const listener of this.listeners) listener(part);
  }
}
