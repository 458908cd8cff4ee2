// What pages share: requests to the API, confirmations, copying, live parts.
const API = "/dashboard/api";
const csrf = document.querySelector('meta[name="csrf"]')?.content ?? "";

/** The answer's `data`; throws an Error with the service's own sentence and its `code`. */
export async function api(path, { method = "GET", body } = {}) {
  const headers = { "X-CSRF-Token": csrf };
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(API + path, { method, headers, body: body && JSON.stringify(body) }).catch(() => {
    throw Object.assign(new Error("The service cannot be reached."), { isOffline: true });
  });
  const told = await answer.json().catch(() => ({}));
  if (answer.status === 401) location.assign("/dashboard/sign-in?ended=1");
  if (!answer.ok) throw Object.assign(new Error(told.error ?? `The service answered ${answer.status}.`), { code: told.code });
  return told.data;
}

/** The answer of another page; reloads this one where the session is over. */
export async function fetched(address) {
  const answer = await fetch(address);
  if (answer.redirected) location.reload();
  if (!answer.ok || answer.redirected) throw new Error(`The service answered ${answer.status}.`);
  return answer;
}

/** A place in media as people write it. */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (value) => String(value).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

const ZONED = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** Show times in the reader's zone; without scripts they are in UTC, and say so. */
export function localise(part) {
  for (const time of part.querySelectorAll("time[datetime]")) {
    time.title = time.textContent;
    time.textContent = ZONED.format(new Date(time.dateTime));
  }
}

/** Replace those elements of a long list that differ: the others need no new layout. */
function renew(mine, theirs) {
  const [own, fresh] = [[...mine.children], [...theirs.children]];
  for (const [n, next] of fresh.entries()) {
    const old = own[n];
    if (old?.isEqualNode(next)) continue;
    if (old?.matches(".jobs") && next.matches(".jobs")) renew(old, next);
    else if (old) old.replaceWith(document.importNode(next, true));
    else mine.append(document.importNode(next, true));
  }
  for (const old of own.slice(fresh.length)) old.remove();
}

/** Fetch this page again and put in what has changed; resolves to the fetched document. */
export async function refresh() {
  const { search } = location;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected || !answer.ok) return null;
  if (search !== location.search) return refresh();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  localise(fresh);
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.getElementById(part.id);
    // What has the focus gives it to its successor, where an id says which that is.
    const held = part.contains(document.activeElement) ? document.activeElement.id : null;
    if (next && next.innerHTML !== part.innerHTML && held !== "") {
      if (part.querySelector(".jobs")) renew(part, next);
      else part.replaceChildren(...document.importNode(next, true).childNodes);
      if (held) document.getElementById(held)?.focus({ preventScroll: true });
    }
  }
  return fresh;
}

/** Call `seen(document)` after each refresh, every `seconds` while the page is looked at. */
export function follow(seconds, seen) {
  const turn = async () => {
    if (!document.hidden) {
      const fresh = await refresh().catch(() => null);
      showOffline(!fresh);
      if (fresh && seen(fresh) === false) return;
    }
    setTimeout(turn, seconds() * 1000);
  };
  setTimeout(turn, seconds() * 1000);
}

function showOffline(isOffline) {
  document.getElementById("offline").hidden = !isOffline;
}
addEventListener("offline", () => showOffline(true));
addEventListener("online", () => showOffline(false));

/** Say when a translation is there, and lead to it. */
async function wait(path, language, said) {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 3000));
    const { status, reason } = (await api(path)).translations.find((each) => each.language === language) ?? {};
    if (status === "pending") continue;
    said.textContent = status === "completed" ? "The translation is there, under Download. " : `The translation could not be made. ${reason ?? ""}`;
    if (status === "completed") said.append(Object.assign(document.createElement("a"), { href: "", textContent: "Show it" }));
    return;
  }
}

/** Forms that call an operation of the API with their fields. */
async function post(form) {
  const said = form.querySelector("[role=status]");
  const body = JSON.parse(form.dataset.body ?? "{}");
  for (const field of form.querySelectorAll("select, input:not([type=checkbox])")) {
    const parts = field.value.split(",").map((each) => each.trim());
    body[field.name] = field.type === "number" ? Number(field.value) : "list" in field.dataset ? [...new Set(parts)].filter(Boolean) : field.value;
  }
  for (const { name, value, checked } of form.querySelectorAll("input[type=checkbox]")) {
    body[name] = [...(body[name] ?? []), ...(checked ? [value] : [])];
  }
  said.textContent = "Sending…";
  try {
    const method = form.dataset.method ?? "POST";
    const made = await api(form.dataset.post, { method, body: method === "DELETE" ? undefined : body });
    if (form.dataset.method) location.reload();
    said.textContent = form.dataset.done ?? made[form.dataset.shows];
    if (form.dataset.until) await wait(form.dataset.until, body.language, said);
  } catch (error) {
    said.textContent = error.message;
  }
}
for (const form of document.querySelectorAll("form[data-post]")) {
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!form.dataset.confirm || confirm(form.dataset.confirm)) post(form);
  });
}
localise(document);
for (const zone of document.querySelectorAll("input[name=zone]")) zone.value = Intl.DateTimeFormat().resolvedOptions().timeZone;

// Back to the page that was open before the sign-in.
const next = localStorage.getItem("vas-next");
if (next && location.pathname === "/dashboard") {
  localStorage.removeItem("vas-next");
  location.replace(next);
}

document.addEventListener("submit", (event) => {
  const { confirm: question, post } = event.target.dataset;
  if (question && !post && !confirm(question)) event.preventDefault();
});
for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}
// What opens over the page closes by Escape, and by a click elsewhere.
for (const kind of ["click", "keydown"]) {
  document.addEventListener(kind, ({ key, target }) => {
    if (kind === "keydown" && key !== "Escape") return;
    for (const each of document.querySelectorAll("details.pop[open], details.menu[open]")) if (key || !each.contains(target)) each.open = false;
  });
}
document.querySelector("[data-forget-uploads]")?.addEventListener("submit", () => {
  localStorage.removeItem("vas-uploads");
});
