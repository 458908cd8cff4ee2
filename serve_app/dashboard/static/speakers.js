// Names for speakers, given where they speak.
import { api } from "./page.js";

/** In a part of the transcript; `names` has those that were given since it was fetched. */
export function nameSpeakers(part, names, job, query, renamed) {
  for (const heading of part.querySelectorAll(".speaker")) {
    const name = heading.querySelector("span");
    name.textContent = names.get(heading.dataset.speaker) ?? name.textContent;
    if (!document.getElementById("edit")) continue; // for whoever may only read
    const button = document.createElement("button");
    button.className = "plain rename";
    button.textContent = "Rename";
    button.setAttribute("aria-label", `Rename ${heading.querySelector("span").textContent}`);
    button.addEventListener("click", () => edit(heading, job, query, renamed));
    heading.append(button);
  }
}

function edit(heading, job, query, renamed) {
  const name = heading.querySelector("span");
  const field = document.createElement("input");
  field.value = name.textContent;
  field.maxLength = 100;
  field.setAttribute("aria-label", "Name of the speaker");
  heading.classList.add("editing");
  heading.insertBefore(field, name);
  field.focus();
  field.select();
  const close = () => {
    heading.classList.remove("editing");
    field.remove();
    heading.querySelector("button").focus();
  };
  const save = async () => {
    const path = `/jobs/${job}/speakers/${heading.dataset.speaker}`;
    const label = field.value.trim();
    try {
      const speaker = await api(path + query, { method: "PUT", body: { label } });
      // Of a job that recognises voices, the speaker's is known by this name from now on.
      if ("voices" in document.getElementById("watch").dataset)
        await api(`${path}/voice${query}`, { method: "PUT", body: { name: label } }).catch((error) => console.warn(error.message));
      const same = document.querySelectorAll(`.speaker[data-speaker="${heading.dataset.speaker}"]`);
      for (const each of same) each.querySelector("span").textContent = speaker.label;
      renamed(speaker);
      close();
    } catch (error) {
      field.setCustomValidity(error.message);
      field.reportValidity();
    }
  };
  field.addEventListener("input", () => field.setCustomValidity(""));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter") save();
  });
}
