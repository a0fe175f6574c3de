// What the programs of Node's clients share: what they ask, and how they print what they were shown.

import { readFileSync } from "node:fs";

export const ASKED = JSON.parse(readFileSync(new URL("../programs/asked.json", import.meta.url), "utf8"));

/** Print a line of JSON for each subject: what it returned, or how it failed. Others are tried all the same. */
export async function show(subjects) {
  for (const [subject, run] of Object.entries(subjects)) {
    let line;
    try {
      line = { shown: (await run()) ?? null };
    } catch (error) {
      line = { failed: `${error.stack ?? error}\n${JSON.stringify(error)}` };
    }
    console.log(JSON.stringify({ subject, ...line }));
  }
}

/** All items of a stream. */
export async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

/** How many tokens the engine computes of an answer that is abandoned, until it is idle and holds no blocks. */
export async function computedBy(abandon, metrics) {
  const before = await metric(metrics, "ringline_generated_tokens_total");
  await abandon();
  const end = Date.now() + 60_000;
  for (const name of ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"])
    while (await metric(metrics, name)) {
      if (Date.now() > end) throw new Error("the engine still works on it, or holds blocks for it");
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  return (await metric(metrics, "ringline_generated_tokens_total")) - before;
}

async function metric(url, name) {
  const text = await (await fetch(url)).text();
  const lines = text.split("\n").filter((line) => line.startsWith(name));
  return lines.map((line) => Number(line.split(" ").at(-1))).reduce((a, b) => a + b, 0);
}
