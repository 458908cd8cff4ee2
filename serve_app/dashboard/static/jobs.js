// The list of jobs, and a job that awaits its file: uploads, and states that update by themselves.
import { api, fetched, follow, refresh } from "./page.js";
import { sendFiles, showInterrupted } from "./uploads.js";

const drop = document.getElementById("drop");
const files = document.getElementById("files");
const said = document.getElementById("said");

// Whoever may only read has no form.
if (files) {
  files.disabled = false;
  const { job, path } = drop.dataset;
  const send = (chosen) => sendFiles([...chosen], job ? { jobId: job, path, isDeferred: true } : null);
  files.addEventListener("change", () => {
    send(files.files);
    // Cleared once its files were taken, so that the same one can be chosen again.
    files.value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    addEventListener(kind, (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind === "drop") send(event.dataTransfer.files);
    });
  }
  if (!job) showInterrupted();
}

// How far the list goes is in the address, which a refresh and a return read.
const list = document.getElementById("list");
const bar = document.getElementById("chosen");
const told = bar?.querySelector("ul");
const chosen = new Map();
const end = new IntersectionObserver(
  async (seen) => {
    const near = seen.find((each) => each.isIntersecting);
    if (!near) return;
    history.replaceState(null, "", near.target.dataset.further);
    if (await refresh().catch(() => null)) show();
  },
  { rootMargin: "400px" },
);

function show() {
  end.disconnect();
  const further = list.querySelector("[data-further]");
  if (further) end.observe(further);
  if (!bar) return;
  list.classList.add("picks");
  for (const box of list.querySelectorAll(".pick")) box.checked = chosen.has(box.value);
  bar.hidden = !chosen.size && !told.firstChild;
  document.getElementById("count").textContent = `${chosen.size} selected`;
}

/** Save an answer of the API as a file that is named after the job. */
async function save(path, name) {
  const answer = await fetched(`/dashboard/api${path}`);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${name}.${path.split("format=")[1] ?? "json"}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function tag(path, word) {
  const { tags } = await api(`${path}?include=none`);
  return api(path, { method: "PATCH", body: { tags: [...new Set([...tags, word])] } });
}

async function changeAll({ each, done, save: format, word }) {
  told.replaceChildren();
  bar.disabled = true;
  for (const [id, name] of [...chosen]) {
    const line = told.appendChild(document.createElement("li"));
    line.textContent = `${name}: …`;
    try {
      let made = {};
      if (format !== undefined) await save(`/jobs/${id}${format}`, name);
      else if (word) await tag(`/jobs/${id}`, word);
      else made = await api(`/jobs/${id}/${each}`, { method: "POST", body: {} });
      line.textContent = `${name}: ${made.rerunJobId === null ? "nothing has changed since" : done}`;
      chosen.delete(id);
    } catch (error) {
      line.textContent = `${name}: ${error.message}`;
    }
  }
  bar.disabled = false;
  await refresh().catch(() => null);
}

list?.addEventListener("change", ({ target }) => {
  if (!chosen.delete(target.value)) chosen.set(target.value, target.name);
  show();
});
bar?.addEventListener("click", async ({ target }) => {
  const { ask, each, save: format, tag: question } = target.dataset;
  const word = question && chosen.size && prompt(question.replace("#", chosen.size))?.trim();
  if (target.id === "all") for (const box of list.querySelectorAll(".pick")) chosen.set(box.value, box.name);
  if (target.id === "none") {
    chosen.clear();
    told.replaceChildren();
  }
  if ((each || word || format !== undefined) && chosen.size && (!ask || confirm(ask.replace("#", chosen.size)))) await changeAll({ ...target.dataset, word });
  show();
});
if (list) show();

const states = () =>
  new Map([...document.querySelectorAll(".job")].map((job) => [job.id, job.dataset.state]));
let before = states();
const moving = () => [...before.values()].some((state) => ["queued", "processing"].includes(state));
if (said) {
  follow(
    () => (moving() ? 2 : 6) * Math.ceil((before.size + 1) / 100),
    () => {
      const after = states();
      const ended = [...after].filter(
        ([id, state]) => before.has(id) && before.get(id) !== state && ["completed", "failed"].includes(state),
      );
      for (const [id, state] of ended) {
        const name = document.querySelector(`#${id} h2`).textContent;
        said.textContent = `${name}: ${state === "completed" ? "done" : "failed"}`;
      }
      before = after;
      show();
    },
  );
}
