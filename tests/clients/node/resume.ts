// Streams a chat's answer from bare stubs, and goes on with it elsewhere when its processor is lost: no gap, no repeat.
//
//     node resume.js HOST:PORT,HOST:PORT "What is 3 plus 4?" [MAX_TOKENS]
//
// Prints one line of JSON per delta and one at the end.

import { type ClientReadableStream, credentials, type ServiceError, status } from "@grpc/grpc-js";
import {
  type Admitted,
  GenerateRequest,
  type GenerateResponse,
  InferenceServiceClient,
  type Started,
} from "./build/stubs/ringline/inference/v1/inference.js";
import type { Status } from "./build/stubs/google/rpc/status.js";

const PATIENCE_MS = 30_000;
const PAUSE_MS = 250;
const FIRST_WORD_MS = 10_000;

/** Statuses of calls that were cut, rather than refused or ended for a reason. */
const LOST = new Set([status.UNAVAILABLE, status.CANCELLED, status.INTERNAL, status.UNKNOWN]);

const [addresses = "", question = "", maxTokens = "400"] = process.argv.slice(2);
const clients = addresses.split(",").map(
  (address) =>
    new InferenceServiceClient(address, credentials.createInsecure(), {
      "grpc.enable_http_proxy": 0,
      // A stopped process says nothing: notice within 6 s.
      "grpc.keepalive_time_ms": 3000,
      "grpc.keepalive_timeout_ms": 3000,
      "grpc.max_reconnect_backoff_ms": 1000,
    }),
);

const original = GenerateRequest.fromPartial({
  prompt: { $case: "chat", value: { messages: [{ role: "user", content: question }] } },
  stopping: { maxTokens: Number(maxTokens), ignoreEos: true },
  // A chat's ids are for the server to say, and going on needs them.
  output: { returnPromptTokenIds: true },
});

/** What is held of a request: enough to go on with it anywhere. */
let admitted: Admitted | undefined;
const choices: { tokenIds: number[]; text: string; ended: boolean }[] = [];
/** Which model and numerics computed what was delivered. */
let started: Started | undefined;
let attempts = 0;

/** The request as it was, or what is left of it: the same ids, seed and options, and what was delivered. */
function nextRequest(): GenerateRequest {
  if (admitted === undefined) return original;
  return GenerateRequest.fromPartial({
    model: admitted.model,
    prompt: { $case: "tokenIds", value: { ids: admitted.promptTokenIds } },
    sampling: admitted.sampling,
    stopping: admitted.stopping,
    output: { ...admitted.output, returnPromptTokenIds: false },
    constraint: admitted.constraint,
    requires: [...(admitted.constraint ? ["constraint"] : []), ...(admitted.output?.parse ? ["parse"] : [])],
    resume: {
      choices: choices.flatMap(({ tokenIds, ended }, choice) => (ended ? [] : [{ choice, tokenIds }])),
      modelDigest: (started ?? admitted).modelDigest,
      numerics: started?.numerics ?? "",
    },
  });
}

/** Take one event; whether it was the end of the request. Throws what another server cannot help with. */
function take({ event }: GenerateResponse): boolean {
  if (event?.$case === "admitted" && admitted === undefined) {
    admitted = event.value;
    for (let n = admitted.sampling?.n ?? 1; n > 0; n--) choices.push({ tokenIds: [], text: "", ended: false });
  } else if (event?.$case === "delta") {
    const { choice: index, firstPosition, tokenIds, text } = event.value;
    const choice = choices[index];
    if (choice === undefined || firstPosition !== choice.tokenIds.length) throw new Error("the server lost count");
    choice.tokenIds.push(...tokenIds);
    choice.text += text;
    console.log(JSON.stringify({ choice: index, text }));
  } else if (event?.$case === "started") {
    started = event.value;
  } else if (event?.$case === "choiceFinished") {
    fail(event.value.error);
    const choice = choices[event.value.choice];
    if (choice !== undefined) choice.ended = true;
  } else if (event?.$case === "refused") {
    fail(event.value.status);
  }
  return event?.$case === "requestFinished";
}

/** Throw an error, so that what was lost is told from what is final. */
function fail(error: Status | undefined): void {
  if (error === undefined) return;
  throw LOST.has(error.code) ? Object.assign(new Error(error.message), { code: error.code }) : new Error(error.message);
}

/** One attempt, to its end; whether all is there. Throws the status that ended it. */
async function attempt(client: InferenceServiceClient): Promise<boolean> {
  const call: ClientReadableStream<GenerateResponse> = client.generate(nextRequest());
  // A stopped process takes connections, too; whoever is admitted hears of it at once.
  const silence = setTimeout(() => call.cancel(), FIRST_WORD_MS);
  let done = false;
  for await (const response of call as AsyncIterable<GenerateResponse>) {
    clearTimeout(silence);
    lostAt = undefined;
    done = take(response);
  }
  clearTimeout(silence);
  return done;
}

let lostAt: number | undefined;
for (;;) {
  try {
    if (await attempt(clients[attempts++ % clients.length]!)) break;
  } catch (error) {
    if (!LOST.has((error as ServiceError).code)) throw error;
  }
  lostAt ??= Date.now();
  if (Date.now() - lostAt > PATIENCE_MS) throw new Error("no processor took the request");
  await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
}
for (const client of clients) client.close();
console.log(JSON.stringify({ attempts, choices, seed: String(admitted?.sampling?.seed) }));
