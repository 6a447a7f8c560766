// graphile-worker as its documents advise for many small jobs: a local queue, batched completions.
"use strict";

const { run, makeWorkerUtils, Logger } = require("graphile-worker");
const { answer, gather, latency, mark, now, seconds } = require("./marks.js");

const DATABASE = process.env.BENCH_DATABASE_URL;
const AT_ONCE = 10000;
const WARM = 50;
const logger = new Logger(() => () => {});

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

async function addMany(utils, n, handler, first = 0, size = AT_ONCE) {
  for (let start = first; start < first + n; start += size) {
    const jobs = [];
    for (let i = start; i < Math.min(first + n, start + size); i++) {
      jobs.push({ identifier: handler, payload: { i } });
    }
    await utils.addJobs(jobs);
  }
}

const verbs = {
  install: () => withUtils((utils) => utils.migrate()),

  enqueue: ({ n, handler, first }) => withUtils((utils) => addMany(utils, n, handler, first)),

  bulk: ({ n, size }) =>
    withUtils(async (utils) => {
      await addMany(utils, WARM, "noop");
      const started = now();
      await addMany(utils, n, "noop", 0, size);
      return seconds(started);
    }),

  single: ({ n }) =>
    withUtils(async (utils) => {
      for (let i = 0; i < WARM; i++) await utils.addJob("noop", { i: 0 });
      const started = now();
      for (let i = 0; i < n; i++) await utils.addJob("noop", { i });
      return seconds(started);
    }),

  latency: (how) => withUtils((utils) => latency(how, (i) => utils.addJob("noop", { i }))),

  work: async ({ concurrency, local }) => {
    await gather("graphile");
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

answer(verbs).catch((error) => {
  console.error(error);
  process.exit(1);
});
