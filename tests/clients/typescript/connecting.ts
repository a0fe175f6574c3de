// What a client does before a server answers, as JSON: connecting.js SILENT, an address where nothing ever answers. Of the
// environment, RINGLINE_ADDRESS and RINGLINE_TOKEN are set.

import { Client, InvalidRequest, RingError } from "@ringline/client";

const silent = process.argv[2];
const served = process.env.RINGLINE_ADDRESS;
if (silent === undefined || served === undefined) throw new Error("usage: connecting.js SILENT");

for (const options of [{}, { token: "given" }, { metadata: { Authorization: "Basic x" } }]) {
  await using client = new Client(undefined, options);
  await client.generate("Hi");
}
await using named = new Client(served);
await named.generate("Hi");

function refusal(make: () => unknown): (string | undefined)[] {
  try {
    make();
  } catch (error) {
    if (error instanceof InvalidRequest) return [error.field, error.message];
  }
  return [];
}

process.env.RINGLINE_TOKEN = "sec ret";
const refused = {
  blank: refusal(() => new Client(served, { token: "sec\nret" })),
  variable: refusal(() => new Client()),
  several: refusal(() => new Client("ipv6:[::1]:1,[2001:db8::1]:1", { token: "secret" })),
  portless: refusal(() => new Client("ipv4:127.0.0.1:1,203.0.113.1", { token: "secret" })),
};
const drawn = await named.generate("Hi").then(
  () => new Client(served, { token: () => "sec\nret" }).generate("Hi").catch((error: RingError) => error),
);

/** The error's name, and whether it came within the time limit and the second's grace. */
async function ends(run: () => Promise<unknown>): Promise<[string, boolean]> {
  const began = performance.now();
  const error = await run().catch((error: unknown) => error);
  return [error instanceof RingError ? error.name : String(error), performance.now() - began < 2500];
}

const client = new Client(silent);
const soon = { timeoutMs: 200 };
const session = client.session();
const unanswered = {
  call: await ends(() => client.generate("Hi", soon)),
  models: await ends(() => client.listModels(soon)),
  session: await ends(() => session.generate("Hi", soon)),
  cancelled: await ends(() => client.generate("Hi", { signal: AbortSignal.timeout(200) })),
  cancelledModels: await ends(() => client.listModels({ signal: AbortSignal.timeout(200) })),
  closed: await ends(() => {
    setTimeout(() => session.close(), 200);
    return session.generate("Hi");
  }),
};
client.close();
console.log(JSON.stringify({ refused, drawn: drawn instanceof InvalidRequest && drawn.message, unanswered }));
