// Keeps streams of the packed client running, half of them by calls of their own, half on sessions:
//   kills.mjs PLAN
// PLAN is a JSON file: {"address", "streams", "specs": [{"name", "prompt", "options"}]}. Prints a line of JSON when a stream
// is resumed or moves, one with each answer and one when all have ended. When its input ends, it begins no more streams.

import { readFileSync } from "node:fs";
import { Client } from "@ringline/client";

const { address, streams, specs } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const client = new Client(address, { patienceMs: 120_000, retries: 200, retryOverloaded: true, waitForReady: true });
const sessions = [client.session(), client.session()];
const show = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

let stopping = false;
process.stdin.resume().on("end", () => (stopping = true));
let next = 0;

/** One stream to its end; what it told event by event must be what its result has. */
async function ask({ name, prompt, options }, source, way) {
  const stream = source.stream(prompt, options);
  const ids = [];
  const counts = { resumed: 0, started: 0 };
  try {
    for await (const event of stream.events()) {
      if (event.type === "delta") (ids[event.choice] ??= []).push(...event.tokenIds);
      if (event.type === "resumed") show({ moved: "resumed" });
      if (event.type === "started" && counts.started > counts.resumed) show({ moved: "moved" });
      if (event.type in counts) counts[event.type]++;
      if (event.type === "started" && !event.identical) throw new Error(`not identical: ${event.reason}`);
    }
    const answer = await stream.result();
    const choices = answer.choices.map(({ index, text, tokenIds, finishReason, stop, content, toolCalls, logprobs }) => {
      if (tokenIds.join() !== (ids[index] ?? []).join()) throw new Error("the deltas are not the result");
      return {
        text,
        token_ids: tokenIds,
        finish_reason: finishReason,
        stop: stop ?? null,
        content,
        tool_calls: toolCalls.map((call) => call.arguments),
        logprobs: logprobs?.map(({ logprob }) => logprob) ?? null,
      };
    });
    show({ name, way, resumed: answer.resumed, choices, completion_tokens: answer.usage.completionTokens });
  } catch (error) {
    show({ name, way, error: `${error.name}: ${error.message}` });
  }
}

async function worker(number) {
  const [source, way] = number % 2 === 0 ? [client, "call"] : [sessions[(number >> 1) % 2], "session"];
  while (!stopping) await ask(specs[next++ % specs.length], source, way);
}

await Promise.all(Array.from({ length: streams }, (_, number) => worker(number)));
for (const session of sessions) session.close();
client.close();
show({ whole: true });
