// Files on their way: resumable (tus), with rate and time left, going on after a reload.
import { api, clock } from "./page.js";

const MEMORY = "vas-uploads";
const AT_ONCE = 2;
const RETRY_MS = 3000;
const HEAD_BYTES = 2048;
/** Beginnings of files that people mistake for media. */
const NO_MEDIA = [
  [/^%PDF-/, "a PDF"],
  [/^PK\x03\x04/, "a ZIP archive or a document"],
  [/^\s*(<\?xml|<!doctype|<html)/i, "a web page or XML"],
  [/^(\x89PNG|\xff\xd8\xff)/, "a picture"],
  [/^[\t\n\r\x20-\x7e]+$/, "a text file"],
];
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
  bar.setAttribute("aria-label", `Upload of ${name}`);
  place.hidden = false;
  place.append(line);
  const remove = () => {
    line.remove();
    place.hidden = !place.children.length;
  };
  return { line, button, bar, text, remove };
}

/** What is wrong with a file by its first bytes, in a sentence; null where nothing is. */
async function problemOf(file) {
  if (!file.size) return `${file.name} is empty.`;
  const bytes = new Uint8Array(await file.slice(0, HEAD_BYTES).arrayBuffer());
  const head = String.fromCharCode(...bytes);
  const [, what] = NO_MEDIA.find(([pattern]) => pattern.test(head)) ?? [];
  return what ? `${file.name} is ${what}, not video or sound.` : null;
}

/** Send files to jobs of their own; to `job` if given, which awaits one. */
export async function sendFiles(files, job = null) {
  for (const file of job ? files.slice(0, 1) : files) {
    const shown = row(file.name);
    const problem = await problemOf(file);
    if (problem) refuse(shown, problem);
    else {
      shown.text.textContent = "Waiting";
      waiting.push({ file, shown, job, options: job ? null : options() });
    }
  }
  next();
}

function refuse(shown, problem) {
  shown.text.textContent = problem;
  shown.text.classList.add("bad");
  shown.button.textContent = "Dismiss";
  shown.button.onclick = shown.remove;
}

// Leaving the page would break the uploads off: links open beside it, and closing it asks first.
addEventListener("beforeunload", (event) => running && event.preventDefault());
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (link && running) link.target = link.getAttribute("href").startsWith("#") ? "" : "_blank";
});

function next() {
  while (running < AT_ONCE && waiting.length) {
    running += 1;
    send(waiting.shift()).finally(() => {
      running -= 1;
      next();
    });
  }
}

async function send({ file, shown, job, options }) {
  try {
    const known = job ? keep(file, job) : remembered().find((each) => same(each, file));
    const record = known ?? (await create(file, options, shown));
    document.getElementById(`resume-${record.jobId}`)?.remove();
    await transfer(file, record, shown);
  } catch (error) {
    refuse(shown, error.message);
  }
}

/** Create a job for the file; again and again while the service cannot be reached. */
async function create(file, options, shown) {
  const body = { fileName: file.name, fileSizeBytes: file.size, ...options };
  for (;;) {
    try {
      const job = await api("/jobs", { method: "POST", body });
      const address = new URL(job.resumableUploadUrl);
      // Of this origin, whatever name the service has outside.
      return keep(file, { jobId: job.jobId, path: address.pathname + address.search });
    } catch (error) {
      if (!error.isOffline) throw error;
      shown.text.textContent = "Waiting for the connection…";
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

/** `isDeferred`: the job was created without the length of its file. */
function keep(file, { jobId, path, isDeferred = false }) {
  const record = { jobId, name: file.name, size: file.size, modified: file.lastModified, path, isDeferred };
  localStorage.setItem(MEMORY, JSON.stringify([...remembered().filter((each) => each.jobId !== jobId), record]));
  return record;
}

function transfer(file, record, shown) {
  return new Promise((resolve, reject) => {
    let began = null;
    const upload = new tus.Upload(file, {
      uploadUrl: record.path,
      storeFingerprintForResuming: false,
      uploadLengthDeferred: record.isDeferred,
      retryDelays: [0, 500, 1000, 2000, 4000, 8000, 15000, 30000],
      onProgress(sent) {
        const total = file.size;
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
      shown.button.textContent = paused ? "Resume" : "Pause";
      began = null;
      if (paused) upload.abort();
      else upload.start();
    };
    upload.start();
  });
}

function reason(status) {
  if (status === 410 || status === 401) return "This upload has expired. Send the file again.";
  if (status === 413) return "The file is larger than the service accepts.";
  if (status === 404 || status === 409) return "The job no longer awaits this file.";
  return "The service cannot be reached. Choose the file again to resume.";
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
    shown.text.textContent = `${mega(offset)} of ${mega(record.size)} arrived. Choose the same file again to resume.`;
    shown.button.textContent = "Choose";
    shown.button.onclick = () => document.getElementById("files").click();
  }
}
