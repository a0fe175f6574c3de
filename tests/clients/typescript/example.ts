// Everything that a program does with the client, under strict types: example.js HOST:PORT. Prints what came as JSON.

import { Client, type Delta, InvalidRequest, type Message, type Options, RingError, type Tool } from "@ringline/client";
import { z } from "zod";

const address = process.argv[2];
if (address === undefined) throw new Error("usage: example.js HOST:PORT");
await using client = new Client(address, { timeoutMs: 120_000 });
const greedy: Options = { temperature: 0, maxTokens: 24, ignoreEos: true };

const answer = await client.generate("Once upon a time", { ...greedy, n: 1, logprobs: 2 });
const again = await client.generate("Once upon a time", answer.request.options);

const third = await client.generate("a", { temperature: 1 / 3, topP: 0.8, maxTokens: 1 });
const { temperature = 0, topP = 0 } = third.request.options; // floats of 32 bits at the server

const deltas: Delta[] = [];
for await (const delta of client.stream("Once upon a time", greedy)) deltas.push(delta);
const kinds: string[] = [];
for await (const event of client.stream("Once upon a time", greedy).events()) kinds.push(event.type);

const Mood = z.object({
  mood: z.enum(["happy", "sad"]),
  animals: z.array(z.enum(["cat", "dog", "bird"])).max(3),
});
const mood = await client.generate("Once upon a time", { jsonSchema: Mood, seed: 3, maxTokens: 60 });
const typed: { mood: "happy" | "sad"; animals: ("cat" | "dog" | "bird")[] } = mood.parsed;
const plain = await client.generate("Numbers: ", {
  jsonSchema: { type: "array", items: { type: "integer", maximum: 9 }, maxItems: 3 },
  seed: 4,
  maxTokens: 40,
});
const cut = await client.generate("Once upon a time", { jsonSchema: Mood, seed: 3, maxTokens: 4 });
const choice = await client.generate("Is 7 a prime number?", { choice: ["yes", "no"] });

const digits = z.number().int().min(0).max(99);
const add: Tool = {
  name: "add",
  description: "Add two numbers.",
  parameters: z.object({ a: digits, b: digits }),
};
const messages: Message[] = [{ role: "user", content: "What is 3 plus 4?" }];
const called = await client.generate(messages, { tools: [add], toolChoice: "add", temperature: 0, maxTokens: 100 });
messages.push(called.message());
for (const call of called.toolCalls) {
  const { a, b } = call.parsed;
  messages.push({ role: "tool", toolCallId: call.id, content: String(Number(a) + Number(b)) });
}
const told = await client.generate(messages, { tools: [add], temperature: 0, maxTokens: 16 });

await using session = client.session();
const prompts = Array.from({ length: 300 }, (_, index) => `Number ${index} is`);
const many = await Promise.all(
  prompts.map((prompt) => session.generate(prompt, { temperature: 0, maxTokens: 4, ignoreEos: true })),
);

async function failure(run: () => Promise<unknown>): Promise<(string | undefined)[]> {
  try {
    await run();
  } catch (error) {
    if (error instanceof InvalidRequest) return [error.name, error.field];
    if (error instanceof RingError) return [error.name, error.reason];
    if (error instanceof Error) return [error.name, error.message];
  }
  return [];
}

const abort = new AbortController();
const endless = { maxTokens: 2000, ignoreEos: true, signal: abort.signal };
const failures = {
  field: await failure(() => client.generate("a", { temperature: -1 })),
  model: await failure(() => client.generate("a", { model: "other" })),
  // @ts-expect-error: the option is called maxTokens
  misspelt: await failure(() => client.generate("a", { max_tokens: 1 })),
  range: await failure(() => client.generate("a", { topK: -1 })),
  vectors: await failure(() => client.embed(["a"])),
  timeout: await failure(() => session.generate("a", { ignoreEos: true, timeoutMs: 50 })),
  cut: await failure(async () => cut.parsed),
  cancelled: await failure(async () => {
    for await (const _ of session.stream("a", endless)) abort.abort();
  }),
  closed: await failure(async () => {
    const closing = new Client(address);
    for await (const _ of closing.stream("a", { maxTokens: 2000, ignoreEos: true })) closing.close();
  }),
  unreached: await failure(() => new Client("127.0.0.1:1").generate("a")),
  exposed: await failure(async () => new Client("example.com:1", { token: "secret" })),
};

console.log(
  JSON.stringify({
    text: answer.text,
    tokenIds: answer.tokenIds,
    logprobs: answer.logprobs?.map(({ top }) => top.length),
    usage: answer.usage,
    again: again.text,
    exact: Math.fround(temperature) === Math.fround(1 / 3) && topP === 0.8,
    streamed: deltas.map(({ text }) => text).join(""),
    kinds,
    mood: typed,
    plain: plain.parsed,
    choice: choice.text,
    calls: called.toolCalls.map(({ name, parsed }) => [name, parsed]),
    told: told.content,
    many: many.map(({ tokenIds }) => tokenIds.length),
    failures,
    models: (await client.listModels()).map(({ name }) => name),
    back: await client.detokenize((await client.tokenize("Hello")).tokenIds),
    pieces: (await client.tokenPieces(answer.tokenIds)).length,
  }),
);
