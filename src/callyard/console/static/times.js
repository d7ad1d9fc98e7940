// Says how long ago a time was, or how far off it is. The server sends exact times, lest a page is sent again because time goes by.
"use strict";
(() => {
  const units = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "days"]];
  function relative(seconds) {
    const size = Math.abs(seconds);
    if (size < 1.5) return "now";
    const [, unit, word] = units.find(([most]) => size < most), text = `${Math.round(size / unit)} ${word}`;
    return seconds > 0 ? `${text} ago` : `in ${text}`;
  }
  function update() {
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const text = relative((Date.now() - Date.parse(time.dateTime)) / 1000);
      if (time.textContent !== text) time.textContent = text;
    }
  }
  document.addEventListener("console:prepare", update);
  setInterval(update, 1000);
  update();
})();
