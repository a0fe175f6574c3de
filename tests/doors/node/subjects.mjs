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
