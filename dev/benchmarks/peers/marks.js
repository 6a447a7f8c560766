// The same marks as in marks.py, for what runs on Node. Node cannot map files, so they are collected
// and appended every few milliseconds: less work per job than the others have.
"use strict";

const fs = require("node:fs");
const path = require("node:path");

const FOLDER = process.env.BENCH_MARKS;
const FLUSH_MS = 5;
const MOST = 1000000;
const now = () => process.hrtime.bigint();
const marks = { data: null, length: 0, written: 0, file: null };

function mark(index, started) {
  const at = marks.length;
  marks.data[at] = BigInt(index + 1);
  marks.data[at + 1] = started;
  marks.data[at + 2] = now();
  marks.length = at + 3;
}

function flush() {
  if (marks.length === marks.written) return;
  if (marks.file === null) marks.file = fs.openSync(path.join(FOLDER, `${process.pid}.marks`), "a");
  const from = marks.written * 8;
  fs.writeSync(marks.file, new Uint8Array(marks.data.buffer, from, marks.length * 8 - from));
  marks.written = marks.length;
}

// Begin to write marks, and wait until all of a system's processes are here.
async function gather(name) {
  marks.data = new BigInt64Array(3 * MOST);
  setInterval(flush, FLUSH_MS);
  const parties = Number(process.env.BENCH_PARTIES || 1);
  fs.writeFileSync(path.join(FOLDER, `${name}.${process.pid}.here`), "");
  const here = () => fs.readdirSync(FOLDER).filter((file) => file.endsWith(".here")).length;
  while (here() < parties) await new Promise((resolve) => setTimeout(resolve, 2));
}

const seconds = (started) => Number(now() - started) / 1e9;

// Call one by one, gap_s apart; return when each call began and when it returned.
async function latency({ n, gap_s, warm }, create) {
  for (const i of warm) await create(i);
  const begun = [];
  const committed = [];
  const start = performance.now();
  for (let i = 0; i < n; i++) {
    const wait = start + i * gap_s * 1000 - performance.now();
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, wait)));
    begun.push(Number(now()));
    await create(i);
    committed.push(Number(now()));
  }
  return [begun, committed];
}

// Carry out the verb that the command line names, and print what it returns.
async function answer(verbs) {
  const [verb, json] = process.argv.slice(2);
  const result = await verbs[verb](json ? JSON.parse(json) : {});
  if (result !== undefined) console.log(JSON.stringify(result));
}

module.exports = { answer, gather, latency, mark, now, seconds };
