// @ringline/client: for Node, by gRPC.

export * from "./exports.js";
export { Client, type ClientOptions } from "./node-client.js";
export type { Pem, TlsOptions } from "./security.js";
export type { Session } from "./session.js";
