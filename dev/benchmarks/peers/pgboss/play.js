// pg-boss as its documents advise for much work and for low latency: batches, bursts, LISTEN.
"use strict";

const { PgBoss } = require("pg-boss");
const { answer, gather, latency, mark, now, seconds } = require("./marks.js");

const EFFECT = "INSERT INTO effect (i) VALUES ($1)";
const EFFECTS = "INSERT INTO effect (i) SELECT unnest(CAST($1 AS bigint[]))";
const AT_ONCE = 1000;
const WARM = 50;

const each = (jobs, one) => Promise.all(jobs.map((job) => one(job.data.i)));

async function insert(db, i) {
  const started = now();
  await db.executeSql(EFFECT, [i]);
  mark(i, started);
}

async function insertAll(db, jobs) {
  const started = now();
  const numbers = jobs.map((job) => job.data.i);
  await db.executeSql(EFFECTS, [numbers]);
  for (const i of numbers) mark(i, started);
}

// Each is given a batch and completes it as a whole.
const handlers = {
  noop: async (_boss, jobs) => {
    for (const job of jobs) mark(job.data.i, now());
  },
  insert: (boss, jobs) => each(jobs, (i) => insert(boss.getDb(), i)),
  // all effects and all completions in one commit
  insert_batch: (_boss, jobs, tx) => each(jobs, (i) => insert(tx, i)),
  insert_bulk: (boss, jobs) => insertAll(boss.getDb(), jobs),
  insert_bulk_in_one: (_boss, jobs, tx) => insertAll(tx, jobs),
};

// What of work()'s options a handler has of its own.
const own = {
  insert_batch: { transactional: true },
  insert_bulk: { batchSize: 100 },
  insert_bulk_in_one: { batchSize: 100, transactional: true },
};

function instance(options) {
  const connectionString = process.env.BENCH_DATABASE_URL;
  const boss = new PgBoss({ connectionString, schedule: false, ...options });
  boss.on("error", (error) => console.error(error));
  return boss;
}

async function withBoss(body) {
  const boss = instance({ supervise: false, useListenNotify: true });
  await boss.start();
  try {
    return await body(boss);
  } finally {
    await boss.stop({ graceful: false });
  }
}

async function insertMany(boss, n, handler, first = 0, size = AT_ONCE) {
  for (let start = first; start < first + n; start += size) {
    const jobs = [];
    for (let i = start; i < Math.min(first + n, start + size); i++) jobs.push({ data: { i } });
    await boss.insert(handler, jobs);
  }
}

const verbs = {
  install: () =>
    withBoss(async (boss) => {
      for (const name of Object.keys(handlers)) await boss.createQueue(name, { notify: true });
    }),

  enqueue: ({ n, handler, first }) => withBoss((boss) => insertMany(boss, n, handler, first)),

  bulk: ({ n, size }) =>
    withBoss(async (boss) => {
      await insertMany(boss, WARM, "noop");
      const started = now();
      await insertMany(boss, n, "noop", 0, size);
      return seconds(started);
    }),

  single: ({ n }) =>
    withBoss(async (boss) => {
      for (let i = 0; i < WARM; i++) await boss.send("noop", { i: 0 });
      const started = now();
      for (let i = 0; i < n; i++) await boss.send("noop", { i });
      return seconds(started);
    }),

  latency: (how) => withBoss((boss) => latency(how, (i) => boss.send("noop", { i }))),

  work: async ({ batch, pool }) => {
    const boss = instance({ useListenNotify: true, max: pool });
    await boss.start();
    await gather("pgboss");
    for (const [name, handle] of Object.entries(handlers)) {
      const options = { batchSize: batch, burstWhenBatchFull: true, ...own[name] };
      await boss.work(name, options, (jobs, tx) => handle(boss, jobs, tx));
    }
    process.on("SIGTERM", () => boss.stop().then(() => process.exit(0)));
  },
};

answer(verbs)
  .then(() => process.argv[2] === "work" || process.exit(0))
  .catch((error) => {
    console.error(error);
    process.exit(1);
  });
