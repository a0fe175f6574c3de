// Asks one request after the other and tells what became of each: outcomes.js PLAN, which is JSON:
// {"address", "way", "options": of the client, "asks": [{"prompt", "options"}]}. Prints a list as JSON.

import { readFileSync } from "node:fs";
import { Client, type Options, type Prompt, RingError } from "@ringline/client";

const plan = JSON.parse(readFileSync(process.argv[2] ?? "", "utf8"));
const outcomes: unknown[] = [];
for (const { prompt, options } of plan.asks as { prompt: Prompt; options: Options }[]) {
  const client = new Client(plan.address, plan.options); // a new one knows nothing of earlier losses
  const session = client.session();
  const stream = (plan.way === "session" ? session : client).stream(prompt, options);
  const kinds: string[] = [];
  try {
    for await (const event of stream.events()) kinds.push(event.type);
    const { choices, usage, resumed } = await stream.result();
    outcomes.push({
      kinds,
      resumed,
      tokens: [usage.completionTokens, usage.cachedTokens, usage.reasoningTokens],
      choices: choices.map(({ text, tokenIds, finishReason, stop, content, reasoning, toolCalls }) => [
        ...[text, tokenIds, finishReason, stop ?? null, content, reasoning ?? null],
        toolCalls.map((call) => [call.id, call.name, call.arguments]),
      ]),
    });
  } catch (error) {
    if (!(error instanceof RingError)) throw error;
    const partial = error.partial?.choices.map(({ text, tokenIds }) => [text, tokenIds]) ?? null;
    outcomes.push({ kinds, error: error.name, code: error.code, reason: error.reason ?? null, partial });
  }
  session.close();
  client.close();
}
console.log(JSON.stringify(outcomes));
