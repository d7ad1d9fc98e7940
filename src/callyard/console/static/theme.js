// Sets the theme before the first paint, so that a dark page does not flash, and shows what only works with scripts.
document.documentElement.classList.add("scripts");
const theme = localStorage.getItem("callyard-theme");
if (theme) document.documentElement.dataset.theme = theme;
