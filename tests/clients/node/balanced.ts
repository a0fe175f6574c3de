// Asks processors, by a service config, for one short answer after another, on one channel:
//   balanced.js TARGET CONFIG COUNT               so many answers; prints {"answered"}
//   balanced.js TARGET CONFIG hold SECONDS PING   an idle Session for so long, with a ping every PING milliseconds
// An answer that breaks off after its first event is begun anew, as the contract has it; one that ends before that is a
// failure, and so is a Session that ends.

import { type ChannelOptions, credentials, type ServiceError, status } from "@grpc/grpc-js";
import { GenerateRequest, InferenceServiceClient } from "./build/stubs/ringline/inference/v1/inference.js";

const [target, config, what, seconds, ping] = process.argv.slice(2);
if (target === undefined || config === undefined || what === undefined) throw new Error("usage: see above");
const keepalive: ChannelOptions =
  ping === undefined
    ? {}
    : {
        "grpc.keepalive_time_ms": Number(ping),
        "grpc.keepalive_timeout_ms": 5000,
        "grpc.keepalive_permit_without_calls": 1,
      };
const client = new InferenceServiceClient(target, credentials.createInsecure(), {
  "grpc.service_config": config,
  "grpc.enable_http_proxy": 0,
  ...keepalive,
});

/** Whether an answer came to its end; false if it broke off after it had begun. */
async function answered(): Promise<boolean> {
  const request = GenerateRequest.fromPartial({
    prompt: { $case: "text", value: "Once upon a time" },
    stopping: { maxTokens: 8, ignoreEos: true },
  });
  let begun = false;
  try {
    for await (const response of client.generate(request, { deadline: Date.now() + 60_000 })) {
      begun = true;
      if (response.event?.$case === "requestFinished") return true;
    }
  } catch (error) {
    if (!begun || (error as ServiceError).code !== status.UNAVAILABLE) throw error;
  }
  return false;
}

async function hold(): Promise<void> {
  const call = client.session();
  const ended = new Promise((_, reject) => {
    call.on("error", reject);
    call.on("end", () => reject(new Error("the session ended")));
    call.on("data", () => undefined);
  });
  await Promise.race([ended, new Promise((resolve) => setTimeout(resolve, Number(seconds) * 1000))]);
  call.on("error", () => undefined);
  call.cancel();
}

if (what === "hold") {
  await hold();
  console.log("held");
  process.exit(0);
}
let count = 0;
while (count < Number(what)) if (await answered()) console.log(JSON.stringify({ answered: ++count }));
client.close();
