// graphile-worker as its documents advise for many small jobs: a local queue, batched completions.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { run, makeWorkerUtils, Logger } = require("graphile-worker");

const DATABASE = process.env.BENCH_DATABASE_URL;
const FOLDER = process.env.BENCH_MARKS;
const AT_ONCE = 10000;
const WARM = 50;
const logger = new Logger(() => () => {});

// The same marks as in marks.py. Node cannot map files, so they are collected and appended every
// few milliseconds: less work per job than the others have.
const now = () => process.hrtime.bigint();
const marks = { data: new BigInt64Array(3 * 1000000), length: 0, written: 0, file: null };

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

async function gather(parties) {
  fs.writeFileSync(path.join(FOLDER, `graphile.${process.pid}.here`), "");
  const here = () => fs.readdirSync(FOLDER).filter((name) => name.endsWith(".here")).length;
  while (here() < parties) await new Promise((resolve) => setTimeout(resolve, 2));
}

const taskList = {
  noop: async (payload) => mark(payload.i, now()),
  insert: async (payload, helpers) => {
    const started = now();
    await helpers.query("INSERT INTO effect (i) VALUES ($1)", [payload.i]);
    mark(payload.i, started);
  },
};

async function withUtils(body) {
  const utils = await makeWorkerUtils({ connectionString: DATABASE, logger });
  try {
    return await body(utils);
  } finally {
    await utils.release();
  }
}

async function addMany(utils, n, handler, first = 0) {
  for (let start = first; start < first + n; start += AT_ONCE) {
    const jobs = [];
    for (let i = start; i < Math.min(first + n, start + AT_ONCE); i++) {
      jobs.push({ identifier: handler, payload: { i } });
    }
    await utils.addJobs(jobs);
  }
}

const verbs = {
  install: () => withUtils((utils) => utils.migrate()),

  enqueue: ({ n, handler, first }) => withUtils((utils) => addMany(utils, n, handler, first)),

  bulk: ({ n }) =>
    withUtils(async (utils) => {
      await addMany(utils, WARM, "noop");
      const started = now();
      await addMany(utils, n, "noop");
      return Number(now() - started) / 1e9;
    }),

  single: ({ n }) =>
    withUtils(async (utils) => {
      for (let i = 0; i < WARM; i++) await utils.addJob("noop", { i: 0 });
      const started = now();
      for (let i = 0; i < n; i++) await utils.addJob("noop", { i });
      return Number(now() - started) / 1e9;
    }),

  latency: ({ n, gap_s, warm }) =>
    withUtils(async (utils) => {
      for (const i of warm) await utils.addJob("noop", { i });
      const begun = [];
      const start = performance.now();
      for (let i = 0; i < n; i++) {
        const wait = start + i * gap_s * 1000 - performance.now();
        await new Promise((resolve) => setTimeout(resolve, Math.max(0, wait)));
        begun.push(Number(now()));
        await utils.addJob("noop", { i });
      }
      return begun;
    }),

  work: async ({ concurrency, local }) => {
    setInterval(flush, 5);
    await gather(Number(process.env.BENCH_PARTIES || 1));
    const runner = await run({
      connectionString: DATABASE,
      taskList,
      crontab: "",
      noHandleSignals: true,
      logger,
      preset: {
        worker: {
          concurrentJobs: concurrency,
          maxPoolSize: concurrency + 1,
          localQueue: { size: local },
          completeJobBatchDelay: 0,
          failJobBatchDelay: 0,
        },
      },
    });
    process.on("SIGTERM", () => runner.stop().then(() => process.exit(0)));
    await runner.promise;
  },
};

async function main() {
  const [verb, json] = process.argv.slice(2);
  const result = await verbs[verb](json ? JSON.parse(json) : {});
  if (result !== undefined) console.log(JSON.stringify(result));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
