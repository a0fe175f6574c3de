// What Connect's clients are asked to do with InferenceService, over any transport; in Node and in browsers.

import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { InferenceService } from "./build/ringline/inference/v1/inference_pb.js";

const greedy = { sampling: { temperature: 0 }, stopping: { maxTokens: 24, ignoreEos: true } };
const text = (value) => ({ case: "text", value });

export async function calls(transport) {
  const client = createClient(InferenceService, transport);
  const shown = {};

  const events = [];
  let answer = "";
  let usage = null;
  for await (const { requestId, event } of client.generate({ requestId: "mine", prompt: text("Once upon a time"), ...greedy })) {
    events.push(event.case);
    if (requestId !== "mine") throw new Error(`of ${requestId}`);
    if (event.case === "delta") answer += event.value.text;
    if (event.case === "requestFinished") usage = event.value.usage.completionTokens;
  }
  shown.generate = { answer, usage, first: events[0], last: events.at(-1) };

  const { models } = await client.listModels({});
  const { tokenIds } = await client.tokenize({ input: text("Once upon a time") });
  const back = await client.detokenize({ tokenIds });
  shown.unary = { model: models[0].name, tokenIds, text: back.text };

  shown.refused = await failure(async () => {
    for await (const _ of client.generate({ prompt: text("a"), sampling: { temperature: -1 } }));
  });
  shown.unknown = await failure(() => client.tokenize({ model: "other", input: text("a") }));

  const abort = new AbortController();
  shown.cancelled = await failure(async () => {
    const endless = { prompt: text("a"), stopping: { maxTokens: 2000, ignoreEos: true } };
    for await (const { event } of client.generate(endless, { signal: abort.signal })) {
      if (event.case === "delta") abort.abort();
    }
  });
  const finished = [];
  for await (const { event } of client.generate({ prompt: text("a"), stopping: { ignoreEos: true }, timeoutMs: 200n })) {
    if (event.case === "choiceFinished") finished.push(event.value.finishReason);
  }
  shown.deadline = finished;
  shown.timeout = await failure(async () => {
    for await (const _ of client.generate({ prompt: text("a"), stopping: { ignoreEos: true } }, { timeoutMs: 200 }));
  });
  return shown;
}

async function failure(run) {
  try {
    await run();
  } catch (error) {
    const failed = ConnectError.from(error);
    return { code: Code[failed.code], message: failed.rawMessage, details: failed.details.map(({ type }) => type) };
  }
  return null;
}
