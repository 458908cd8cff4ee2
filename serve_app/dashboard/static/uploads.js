// Files on their way: resumable (tus), with rate and time left, going on after a reload.
import { api, clock } from "./page.js";

const MEMORY = "vas-uploads";
const AT_ONCE = 2;
const place = document.getElementById("uploads");
const waiting = [];
let running = 0;

const remembered = () => JSON.parse(localStorage.getItem(MEMORY) ?? "[]");
const same = (record, file) =>
  record.name === file.name && record.size === file.size && record.modified === file.lastModified;
const forget = (jobId) =>
  localStorage.setItem(MEMORY, JSON.stringify(remembered().filter((each) => each.jobId !== jobId)));

function mega(bytes) {
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

/** The options of the form, as the API takes them. */
function options() {
  const form = new FormData(document.getElementById("new"));
  const terms = form.get("keyterms").split(",").map((term) => term.trim()).filter(Boolean);
  return {
    processingMode: form.get("mode"),
    ...(terms.length && { keyterms: terms }),
    ...(form.get("speakers") && { speakersExpected: Number(form.get("speakers")) }),
  };
}

/** A row for a file; its parts are texts, never markup. */
function row(name) {
  const line = document.createElement("div");
  line.className = "upload card";
  line.append(
    Object.assign(document.createElement("strong"), { textContent: name }),
    Object.assign(document.createElement("button"), { className: "plain", type: "button" }),
    Object.assign(document.createElement("progress"), { max: 1, value: 0 }),
    Object.assign(document.createElement("span"), { className: "line quiet small number" }),
  );
  const [, button, bar, text] = line.children;
  bar.setAttribute("aria-label", `Sent of ${name}`);
  place.hidden = false;
  place.append(line);
  const remove = () => {
    line.remove();
    place.hidden = !place.children.length;
  };
  return { line, button, bar, text, remove };
}

export function sendFiles(files) {
  for (const file of files) waiting.push({ file, shown: row(file.name), options: options() });
  for (const { shown } of waiting) {
    shown.text.textContent = "Waiting";
    shown.button.textContent = "";
  }
  next();
}

function next() {
  while (running < AT_ONCE && waiting.length) {
    running += 1;
    send(waiting.shift()).finally(() => {
      running -= 1;
      next();
    });
  }
}

async function send({ file, shown, options }) {
  try {
    const record = remembered().find((each) => same(each, file)) ?? (await create(file, options));
    document.getElementById(`resume-${record.jobId}`)?.remove();
    await transfer(file, record, shown);
  } catch (error) {
    shown.text.textContent = error.message;
    shown.text.classList.add("bad");
    shown.button.textContent = "Dismiss";
    shown.button.onclick = shown.remove;
  }
}

async function create(file, options) {
  const body = { fileName: file.name, fileSizeBytes: file.size, ...options };
  const job = await api("/jobs", { method: "POST", body });
  const address = new URL(job.resumableUploadUrl);
  const record = {
    jobId: job.jobId,
    name: file.name,
    size: file.size,
    modified: file.lastModified,
    // Of this origin, whatever name the service has outside.
    path: address.pathname + address.search,
  };
  localStorage.setItem(MEMORY, JSON.stringify([...remembered(), record]));
  return record;
}

function transfer(file, record, shown) {
  return new Promise((resolve, reject) => {
    let began = null;
    const upload = new tus.Upload(file, {
      uploadUrl: record.path,
      storeFingerprintForResuming: false,
      retryDelays: [0, 500, 1000, 2000, 4000, 8000, 15000, 30000],
      onProgress(sent, total) {
        began ??= { at: performance.now(), sent };
        const seconds = (performance.now() - began.at) / 1000;
        const rate = seconds > 1 ? (sent - began.sent) / seconds : 0;
        shown.bar.value = total ? sent / total : 0;
        const left = rate ? `, ${mega(rate)}/s, ${clock((total - sent) / rate)} left` : "";
        shown.text.textContent = `${mega(sent)} of ${mega(total)}${left}`;
      },
      onShouldRetry(error) {
        shown.text.textContent = "The connection broke. Trying again…";
        began = null;
        const status = error.originalResponse?.getStatus() ?? 0;
        return status === 0 || status === 409 || status === 423 || status >= 500;
      },
      onSuccess() {
        forget(record.jobId);
        shown.remove();
        resolve();
      },
      onError(error) {
        const status = error.originalResponse?.getStatus();
        if (status >= 400 && status < 500) forget(record.jobId);
        reject(new Error(reason(status)));
      },
    });
    shown.button.textContent = "Pause";
    shown.button.onclick = () => {
      const paused = shown.button.textContent === "Pause";
      shown.button.textContent = paused ? "Go on" : "Pause";
      began = null;
      if (paused) upload.abort();
      else upload.start();
    };
    upload.start();
  });
}

function reason(status) {
  if (status === 410 || status === 401) return "The time for this upload is over. Send the file again.";
  if (status === 413) return "The file is larger than the service takes.";
  if (status === 404 || status === 409) return "The job does not wait for this file any more.";
  return "The service cannot be reached. Choose the file again to go on where it stopped.";
}

/** Uploads that a reload broke off: the file has to be chosen again, and goes on where it was. */
export async function showInterrupted() {
  for (const record of remembered()) {
    const answer = await fetch(record.path, { method: "HEAD", headers: { "Tus-Resumable": "1.0.0" } });
    const offset = Number(answer.headers.get("Upload-Offset"));
    if (!answer.ok || offset === record.size) {
      if (answer.ok || answer.status < 500) forget(record.jobId);
      continue;
    }
    const shown = row(record.name);
    shown.line.id = `resume-${record.jobId}`;
    shown.bar.value = record.size ? offset / record.size : 0;
    shown.text.textContent = `${mega(offset)} of ${mega(record.size)} arrived. Choose the same file again to go on.`;
    shown.button.textContent = "Choose";
    shown.button.onclick = () => document.getElementById("files").click();
  }
}
