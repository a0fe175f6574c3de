// Connect's clients for Node: both protocols, in binary and JSON, over HTTP/1.1.

import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-node";
import { show } from "../subjects.mjs";
import { calls } from "./calls.mjs";

const baseUrl = process.argv[2];
const options = { baseUrl, httpVersion: "1.1" };

await show({
  connect: () => calls(createConnectTransport({ ...options, useBinaryFormat: true })),
  connect_json: () => calls(createConnectTransport({ ...options, useBinaryFormat: false })),
  grpc_web: () => calls(createGrpcWebTransport(options)),
});
