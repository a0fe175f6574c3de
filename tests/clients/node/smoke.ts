// Drives the front door at the address given: one Generate with two choices, then a Session with a text, the same
// prompt as token ids, a request that is cancelled and one that is refused. Prints what came as JSON.
// Exits 0 when every stream ended well and no rule of the protocol was broken.

import { credentials } from "@grpc/grpc-js";
import {
  type DeepPartial,
  GenerateRequest,
  InferenceServiceClient,
  type SessionRequest,
  type SessionResponse,
} from "./build/stubs/ringline/inference/v1/inference.js";
import { Request } from "./rules.js";

const PROMPT = "Once upon a time";
const DEADLINE_MS = 60_000;

const address = process.argv[2];
if (address === undefined) throw new Error("usage: smoke.js HOST:PORT");
const client = new InferenceServiceClient(address, credentials.createInsecure(), { "grpc.enable_http_proxy": 0 });
const options = () => ({ deadline: Date.now() + DEADLINE_MS });

/** One request with two sampled choices over its own stream. */
async function generate(): Promise<Request> {
  const request = new Request("generate");
  const call = client.generate(
    GenerateRequest.fromPartial({
      prompt: { $case: "text", value: PROMPT },
      sampling: { temperature: 0.8, seed: 7n, n: 2 },
      stopping: { maxTokens: 12, ignoreEos: true },
      output: { returnPromptTokenIds: true },
    }),
    options(),
  );
  for await (const response of call) request.take(response);
  if (!request.finished) request.violations.push("generate: the stream ended before the request did");
  return request;
}

/** Several requests at once over one stream. */
async function session(promptTokenIds: number[]): Promise<Request[]> {
  const requests = new Map(["text", "ids", "cancelled", "refused"].map((name) => [name, new Request(name)]));
  const greedy = { sampling: { temperature: 0 }, stopping: { maxTokens: 16, ignoreEos: true } };
  // Seconds of work: the cancel finds it unfinished, even where it comes late.
  const long = { sampling: { n: 32 }, stopping: { ignoreEos: true } };
  const call = client.session(options());
  const send = (frame: SessionRequest["frame"]) => call.write({ frame });
  const begin = (requestId: string, request: DeepPartial<GenerateRequest>) =>
    send({ $case: "generate", value: GenerateRequest.fromPartial({ requestId, ...request }) });

  begin("text", { prompt: { $case: "text", value: PROMPT }, ...greedy });
  begin("ids", { prompt: { $case: "tokenIds", value: { ids: promptTokenIds } }, ...greedy });
  begin("cancelled", { prompt: { $case: "text", value: PROMPT }, ...long });
  send({ $case: "cancel", value: { requestId: "cancelled" } });
  begin("refused", { prompt: { $case: "text", value: PROMPT }, sampling: { temperature: -1 } });

  let frames = 0;
  for await (const frame of call as AsyncIterable<SessionResponse>) {
    if ((frames++ === 0) !== (frame.limits !== undefined)) requests.get("text")?.violations.push("limits come first, once");
    for (const response of frame.responses) {
      const request = requests.get(response.requestId);
      if (request === undefined) throw new Error(`a response for ${JSON.stringify(response.requestId)}`);
      request.take(response);
    }
    if ([...requests.values()].every((request) => request.finished)) call.end();
  }
  for (const request of requests.values()) {
    if (!request.finished) request.violations.push(`${request.name}: the session ended before the request did`);
  }
  return [...requests.values()];
}

// A stream that ends with another status than OK throws here, which Node reports with exit code 1.
const first = await generate();
const requests = [first, ...(await session(first.admitted?.promptTokenIds ?? []))];
client.close();
const violations = requests.flatMap((request) => request.violations);
const shown = requests.map(({ name, choices, usage, error }) => [name, { choices: [...choices.values()], usage, error }]);
console.log(JSON.stringify({ ...Object.fromEntries(shown), violations }, null, 2));
process.exitCode = violations.length === 0 ? 0 : 1;
