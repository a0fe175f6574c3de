// Asks a gateway as pages do, by Connect: browser.js URL. Prints what came as JSON.

import { getEventListeners } from "node:events";
import { Client, RingError } from "@ringline/client/browser";

const url = process.argv[2];
if (url === undefined) throw new Error("usage: browser.js URL");
const client = new Client(url);

const answer = await client.generate("Once upon a time", { temperature: 0, maxTokens: 24, ignoreEos: true });
let streamed = "";
for await (const delta of client.stream("Once upon a time", { temperature: 0, maxTokens: 24, ignoreEos: true })) {
  streamed += delta.text;
}
const { tokenIds } = await client.tokenize("Hello");

const abort = new AbortController();
let cancelled = "";
try {
  const endless = client.stream("a", { maxTokens: 2000, ignoreEos: true, signal: abort.signal });
  for await (const _ of endless) abort.abort();
} catch (error) {
  if (error instanceof RingError) cancelled = error.name;
}
const kept = new AbortController();
for (let call = 0; call < 3; call++) await client.listModels({ signal: kept.signal });
const refused = await client.generate("a", { temperature: -1 }).catch((error: RingError) => error);
const gone = await new Client("http://127.0.0.1:1").generate("a").catch((error: RingError) => error);

console.log(
  JSON.stringify({
    text: answer.text,
    completionTokens: answer.usage.completionTokens,
    streamed,
    models: (await client.listModels()).map(({ name }) => name),
    back: await client.detokenize(tokenIds),
    cancelled,
    refused: refused instanceof RingError ? [refused.name, refused.message] : [],
    listeners: getEventListeners(kept.signal, "abort").length,
    gone: gone instanceof RingError ? [gone.name] : [],
  }),
);
client.close();
