// Comments on places in the media: written at the player's time, resolved, deleted.
import { api, clock } from "./page.js";

/** `now()` is the player's time; whoever may only read has no form. */
export async function comment(job, now) {
  const section = document.getElementById("comments");
  const list = section.querySelector("ol");
  const form = section.querySelector("form");
  const status = section.querySelector("[role=status]");
  const path = `/jobs/${job}/comments`;

  const change = (request) =>
    request.then(show).catch((error) => (status.textContent = error.message));

  function button(name, request) {
    const made = document.createElement("button");
    Object.assign(made, { className: "plain small", textContent: name, onclick: () => change(request()) });
    return made;
  }

  async function show() {
    const found = await api(path);
    section.hidden = !found.length && !form;
    status.textContent = "";
    list.replaceChildren(
      ...found.map(({ id, time, text, author, resolvedAt }) => {
        const item = document.createElement("li");
        const link = document.createElement("a");
        Object.assign(link, { href: `#t=${time}`, className: "time", textContent: clock(time) });
        const words = document.createElement(resolvedAt ? "s" : "span");
        words.textContent = text;
        item.append(link, " ", words, ` ${author ?? ""} `);
        const body = { resolved: !resolvedAt };
        if (form) item.append(button(resolvedAt ? "Open again" : "Resolve", () => api(`${path}/${id}`, { method: "PATCH", body })), " ", button("Delete", () => api(`${path}/${id}`, { method: "DELETE" })));
        return item;
      }),
    );
  }

  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = form.elements.text;
    change(api(path, { method: "POST", body: { time: now(), text: field.value.trim() } }).then(() => (field.value = "")));
  });
  await show();
}
