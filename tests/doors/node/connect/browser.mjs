// Connect's clients for browsers; bundled, and run in a page of the gateway.

import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { calls } from "./calls.mjs";

globalThis.tryConnect = async () => ({
  connect: await calls(createConnectTransport({ baseUrl: location.origin, useBinaryFormat: true })),
  connect_json: await calls(createConnectTransport({ baseUrl: location.origin })),
  grpc_web: await calls(createGrpcWebTransport({ baseUrl: location.origin })),
});
