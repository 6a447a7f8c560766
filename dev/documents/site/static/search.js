// Ranks the sections of the site by BM25 (Robertson, Zaragoza 2009) over any of the words asked
// for, more where heading and title have them, too. A page is as good as its best section.
"use strict";

const K = 1.2; // a word that a section repeats soon adds nothing
const B = 0.6; // how far long sections are held against themselves
const HEADING = 1.5, TITLE = 1.5; // what a word there adds
const LEAD = 1.25; // what stands under the title says what the page is about
const OTHERS = 0.9; // our word, where somebody asked in another system's
const SHOWN = 10, EXCERPT = 240;

const stemmer = new EnglishStemmer();
const stems = new Map();
const stopwords = new Set(INDEX.stopwords);

// Stems of the words, and each name_of_code as a whole beside its parts. "tasks-app" is on every page.
function words(text) {
  const plain = text.toLowerCase().replaceAll("'", "").replaceAll("tasks-app", " ");
  return (plain.match(/[a-z0-9_]+/g) ?? []).flatMap((name) => {
    const parts = name.replace(/^tasks_app(_|$)/, "").split("_").filter(isWord).map(stem);
    return name.includes("_") && parts.length ? [name, ...parts] : parts;
  });
}

function isWord(part) {
  return part.length > 1 && !stopwords.has(part);
}

function stem(word) {
  if (!stems.has(word)) stems.set(word, stemmer.stemWord(word));
  return stems.get(word);
}

const sections = INDEX.sections.map(([url, weight, title, heading, anchor, text]) => {
  const counts = new Map();
  const body = words(text);
  for (const word of body) counts.set(word, (counts.get(word) ?? 0) + 1);
  const inTitle = new Set(words(title)), inHeading = new Set(words(heading));
  return { url, weight, title, heading, anchor, text, counts, inTitle, inHeading, length: body.length };
});
const average = sections.reduce((sum, each) => sum + each.length, 0) / sections.length;
const inSections = new Map();
for (const { counts, inTitle, inHeading } of sections) {
  for (const word of new Set([...counts.keys(), ...inTitle, ...inHeading])) {
    inSections.set(word, (inSections.get(word) ?? 0) + 1);
  }
}
const others = new Map();
for (const [theirs, ...ours] of INDEX.others) {
  const word = stem(theirs);
  others.set(word, [...(others.get(word) ?? []), ...ours.map(stem)]);
}

function rarity(terms) {
  const n = Math.max(...terms.map((term) => inSections.get(term) ?? 0));
  return Math.log(1 + (sections.length - n + 0.5) / (n + 0.5));
}

function weightIn(section, term) {
  const count = section.counts.get(term) ?? 0;
  const length = 1 - B + (B * section.length) / average;
  const body = (count * (K + 1)) / (count + K * length);
  return body + HEADING * section.inHeading.has(term) + TITLE * section.inTitle.has(term);
}

function search(question) {
  const asked = [...new Set(words(question))].map((word) => {
    const terms = [word, ...(others.get(word) ?? [])];
    return { terms, rarity: rarity(terms) };
  });
  const best = new Map();
  for (const section of sections) {
    let sum = 0, had = 0;
    for (const { terms, rarity } of asked) {
      const weights = terms.map((term, i) => weightIn(section, term) * (i ? OTHERS : 1));
      const weight = Math.max(...weights) * rarity;
      sum += weight;
      had += weight > 0;
    }
    const share = had / asked.length; // of the words asked for
    const score = sum * share * section.weight * (section.anchor ? 1 : LEAD);
    if (score > (best.get(section.url)?.score ?? 0)) best.set(section.url, { section, score });
  }
  const terms = new Set(asked.flatMap((each) => each.terms));
  const found = [...best.values()].sort((a, b) => b.score - a.score);
  return { terms, found: found.map((each) => each.section) };
}

function excerpt(text, terms) {
  const pieces = text.split(/(?<=[.:!?]) /);
  const had = pieces.map((piece) => new Set(words(piece).filter((word) => terms.has(word))).size);
  const at = had.indexOf(Math.max(...had));
  const says = pieces.slice(at, at + 3).join(" ");
  return says.length > EXCERPT ? `${says.slice(0, says.lastIndexOf(" ", EXCERPT))} …` : says;
}

function marked(text, terms) {
  return text.split(/(tasks[_-]app|[A-Za-z0-9]+)/i).map((piece) => {
    if (!terms.has(stem(piece.toLowerCase()))) return piece;
    const mark = document.createElement("mark");
    mark.textContent = piece;
    return mark;
  });
}

function item({ url, title, heading, anchor, text }, terms) {
  const row = document.createElement("li"), link = document.createElement("a");
  link.href = url + (anchor && `#${anchor}`);
  link.textContent = anchor ? `${title}: ${heading}` : title;
  const says = document.createElement("p");
  says.append(...marked(excerpt(text, terms), terms));
  row.append(link, says);
  return row;
}

function show(question) {
  const { terms, found } = search(question);
  document.getElementById("results").replaceChildren(
    ...found.slice(0, SHOWN).map((section) => item(section, terms)),
  );
  document.getElementById("found").textContent = !question.trim() ? ""
    : found.length > SHOWN ? `The best ${SHOWN} of ${found.length} pages.`
    : found.length ? "Best first."
      : "No page has these words. Try others, or the glossary.";
}

const box = document.getElementById("question");
box.value = new URLSearchParams(location.search).get("q") ?? "";
box.addEventListener("input", () => show(box.value));
box.form.addEventListener("submit", (event) => event.preventDefault());
show(box.value);
if (!box.value) box.focus();
