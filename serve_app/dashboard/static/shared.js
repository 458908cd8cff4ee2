// A job that is shared by a link: places play, times are the reader's.
import "./page.js";

addEventListener("hashchange", () => {
  const player = document.getElementById("player");
  const time = Number(location.hash.slice(3));
  if (!player || Number.isNaN(time)) return;
  player.currentTime = time;
  player.play().catch((error) => console.warn(error.message));
});
