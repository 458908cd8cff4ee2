// The search page's second button: a question about the recordings, its answer with citations.
import { api, clock } from "./page.js";

const WHY = {
  NO_MODEL: "This service has no model that answers questions. The nearest passages:",
  MODEL_FAILED: "The model that answers has failed. The nearest passages:",
  NOT_IN_RECORDINGS: "The recordings do not answer this. The nearest passages:",
};
const [button, field, answer] = ["ask", "q", "answer"].map((id) => document.getElementById(id));

/** An element with its text, which is never markup. */
function made(name, text, ...children) {
  const element = document.createElement(name);
  element.append(text, ...children);
  return element;
}

/** A link that plays the place. */
function place({ jobId, startTime, fileName, quote }) {
  const link = made("a", `${fileName}, ${clock(startTime)}`);
  link.href = `/dashboard/jobs/${jobId}#t=${startTime}`;
  const cited = made("p", `“${quote}” `, link);
  cited.className = "quiet small";
  return cited;
}

button.hidden = false;
button.addEventListener("click", async () => {
  const question = field.value.trim();
  if (!question) return field.focus();
  answer.hidden = false;
  button.disabled = true;
  answer.replaceChildren(made("p", "Reading the recordings…"));
  try {
    const found = await api("/ask", { method: "POST", body: { question } });
    const sentences = found.sentences.flatMap((each) => [made("p", each.text), ...each.citations.map(place)]);
    const nearest = found.passages.map(place);
    const why = found.passages.length ? WHY[found.reason] : "Nothing in the recordings is near to this.";
    answer.replaceChildren(made("h2", "Answer"), ...(found.answered ? sentences : [made("p", why), ...nearest]));
  } catch (error) {
    answer.replaceChildren(made("p", error.message));
  }
  button.disabled = false;
});
