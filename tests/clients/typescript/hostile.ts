// Ends soon, whatever the server does, and refuses what it would otherwise ignore. Argument: a port that never answers.

import { Cancelled, Client, DeadlineExceeded, InvalidRequest } from "@ringline/client";

const address = `127.0.0.1:${process.argv[2]}`;

async function failing(call: () => Promise<unknown>): Promise<unknown> {
  try {
    await call();
  } catch (error) {
    return error;
  }
  return undefined;
}

async function soon(kind: abstract new (...args: never[]) => Error, call: () => Promise<unknown>): Promise<void> {
  const began = performance.now();
  const error = await failing(call);
  const took = performance.now() - began;
  if (!(error instanceof kind) || took > 2500) throw new Error(`after ${took} ms: ${String(error)}`);
}

const client = new Client(address);
const session = client.session();
const asked = { timeoutMs: 300 };
await soon(DeadlineExceeded, () => client.generate("Hi", asked));
await soon(DeadlineExceeded, () => client.tokenize("Hi", asked));
await soon(DeadlineExceeded, () => session.generate("Hi", asked));
const never = new Client(address, { token: () => new Promise<string>(() => undefined) });
await soon(DeadlineExceeded, () => never.generate("Hi", asked));
const aborted = () => ({ signal: AbortSignal.timeout(200) });
await soon(Cancelled, () => client.generate("Hi", aborted()));
await soon(Cancelled, () => client.embed("Hi", aborted()));
const closed = new Client(address);
setTimeout(() => closed.close(), 200);
await soon(Cancelled, () => closed.generate("Hi"));

let warned = false;
process.on("warning", () => {
  warned = true;
});
const { signal } = new AbortController();
await Promise.allSettled(Array.from({ length: 30 }, () => client.generate("Hi", { ...asked, signal })));
if (warned) throw new Error("a signal that many requests share warns");

const misspelt = { tokn: "x", skip: true } as object;
for (const call of [
  async () => new Client(address, misspelt),
  () => client.detokenize([1], misspelt),
  () => client.listModels(misspelt),
  () => client.tokenize("Hi", misspelt),
  async () => new Client(5 as never),
  () => client.generate("Hi", { logitBias: { "": 1 } as never }),
]) {
  await soon(TypeError, call);
}
const tools = [{ name: "f", parameters: {} }];
for (const call of [
  () => client.detokenize([-1]),
  async () => new Client(address, { token: "a b" }),
  async () => new Client(address, { metadata: { a: "b\nc" } }),
  () => client.generate([{ role: "user", content: "Hi" }], { tools, toolChoice: "constructor" }),
]) {
  await soon(InvalidRequest, call);
}
process.env.RINGLINE_TOKEN = "of the environment"; // has blanks, so that a client that takes it refuses it
new Client(address);
await soon(InvalidRequest, async () => new Client());
console.log("refused");
process.exit(0);
