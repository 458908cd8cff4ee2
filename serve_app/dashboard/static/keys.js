// Keys and webhooks: copying, and a test event whose answer is shown.
import { api } from "./page.js";

const form = document.getElementById("test");
const result = document.getElementById("test-result");
form.hidden = false;
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  result.textContent = "Sending…";
  try {
    const body = { url: document.getElementById("test-url").value };
    const told = await api("/webhooks/test", { method: "POST", body });
    const status = told.statusCode ? `status ${told.statusCode}` : "no answer";
    result.textContent = told.delivered
      ? `Delivered: ${status} in ${told.latencyMs} ms.`
      : `Not delivered: ${told.error}, ${status} after ${told.latencyMs} ms.`;
  } catch (error) {
    result.textContent = error.message;
  }
});
