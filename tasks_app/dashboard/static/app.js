"use strict";
// Ages are updated without a request; a live part pauses while it is used or hidden.
const root = document.documentElement.dataset.root;
let live = true;
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
const sizes = [["d", 86400], ["h", 3600], ["min", 60]];
const rough = (s) => {
  for (const [unit, size] of sizes) if (s >= 2 * size) return `${Math.floor(s / size)} ${unit}`;
  return `${Math.floor(s)} s`;
};
const age = () => document.querySelectorAll("time[datetime]:not(.still)").forEach((e) => {
  const s = (Date.now() - Date.parse(e.dateTime)) / 1000;
  const said = e.classList.contains("span") ? rough(Math.max(0, s)) : Math.abs(s) < 1 ? "just now" : s < 0 ? `in ${rough(-s)}` : `${rough(s)} ago`;
  if (e.textContent !== said) e.textContent = said;
});
setInterval(() => { if (!document.hidden) age(); }, 1000);
const resting = (part) => !live || document.hidden || part.contains(document.activeElement)
  || part.querySelector("details[open]:not(.given)") || String(getSelection() || "").length > 0;
document.addEventListener("htmx:before:request", (event) => {
  const part = event.target;
  if (part.matches && part.matches(".live") && resting(part)) event.preventDefault();
});
const toggle = () => {
  live = !live;
  const button = document.querySelector("#live");
  if (button) button.setAttribute("aria-pressed", String(live));
};
document.querySelector("#live")?.addEventListener("click", toggle);
document.querySelector("#theme")?.addEventListener("click", () => {
  const e = document.documentElement;
  const dark = e.dataset.theme ? e.dataset.theme === "dark" : matchMedia("(prefers-color-scheme:dark)").matches;
  e.dataset.theme = dark ? "light" : "dark";
  document.cookie = `theme=${e.dataset.theme}; path=${root || "/"}; max-age=31536000; samesite=strict`;
});
document.querySelector("#payload")?.addEventListener("input", () => document.querySelectorAll("[data-reviewed]").forEach((button) => {
  button.disabled = true;
  button.title = "The text has changed: show the difference again.";
}));
const chosen = () => {
  const number = document.querySelectorAll("input[name=ids]:checked").length;
  document.querySelectorAll("[data-chosen]").forEach((e) => { e.textContent = `(${number})`; });
};
document.addEventListener("change", chosen);
chosen();
let at = null;
const mark = () => document.querySelectorAll("tbody tr[data-href]").forEach((row) => row.classList.toggle("on", row.dataset.href === at));
document.addEventListener("htmx:after:swap", mark);
const step = (by) => {
  const rows = [...document.querySelectorAll("tbody tr[data-href]")];
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.dataset.href === at);
  const next = rows[Math.max(0, Math.min(rows.length - 1, now + by))];
  at = next.dataset.href;
  mark();
  next.scrollIntoView({ block: "nearest" });
};
const help = () => {
  const dialog = document.querySelector("#help");
  if (dialog.open) dialog.close(); else dialog.showModal();
};
document.querySelector("#keys")?.addEventListener("click", help);
const range = (by) => {
  const ranges = [...document.querySelectorAll(".ranges a")];
  const next = ranges[ranges.findIndex((each) => each.hasAttribute("aria-current")) + by];
  if (next) location.href = next.href;
};
let went = false;
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.matches("input,select,textarea")) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=checkbox]),select,textarea")) return;
  const key = event.key;
  const page = went && document.querySelector(`nav [data-key="${CSS.escape(key)}"]`);
  if (page) location.href = page.href;
  else if (key === "j") step(1);
  else if (key === "k") step(-1);
  else if (key === "x") document.querySelector("tr.on input[type=checkbox]")?.click();
  else if (key === "?") help();
  else if (key === "[" || key === "]") range(key === "]" ? 1 : -1);
  else if (key === "t") document.querySelector("#theme")?.click();
  else if (key === "Enter" && !event.target.closest("a,button,summary")) {
    const row = document.querySelector("tr.on[data-href]");
    if (row) location.href = row.dataset.href;
  } else if (key === "/" || key === "f") {
    const field = document.querySelector(key === "/" ? "[data-find]" : "[data-search]");
    field?.focus();
    field?.select();
    event.preventDefault();
  } else if (key === " " && !event.target.closest("button,summary,a") && document.querySelector("#live")) {
    toggle();
    event.preventDefault();
  }
  went = key === "g";
});
