// The list of jobs, and a job that awaits its file: uploads, and states that update by themselves.
import { follow } from "./page.js";
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

const states = () =>
  new Map([...document.querySelectorAll(".job")].map((job) => [job.id, job.dataset.state]));
let before = states();
const moving = () => [...before.values()].some((state) => ["queued", "processing"].includes(state));
if (said) {
  follow(
    () => (moving() ? 2 : 6),
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
    },
  );
}
