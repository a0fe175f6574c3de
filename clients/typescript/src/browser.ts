// @ringline/client/browser: for browsers, by Connect through the HTTP gateway.

import { BaseClient, SHARED_OPTIONS, type SharedOptions } from "./client.js";
import { ConnectConnection } from "./connect-transport.js";
import { invalid } from "./errors.js";
import { checkOptions } from "./request.js";
import { ServerPool } from "./server-pool.js";

export * from "./exports.js";

/** Options of a client. */
export type ClientOptions = SharedOptions;

/**
 * Client of Ringline's HTTP gateways, for browsers and wherever there is `fetch`. It has what the client for Node has, but
 * for sessions, which browsers cannot open.
 */
export class Client extends BaseClient {
  /**
   * `url`: of a gateway, such as https://inference.example.com; or several, which are used in turn. Default: where the
   * page comes from.
   */
  constructor(url?: string | readonly string[], options: ClientOptions = {}) {
    checkOptions(options, SHARED_OPTIONS);
    const urls = [url ?? pageOrigin()].flat().map((one) => readUrl(one, options.token !== undefined));
    super(new ServerPool(urls, (each) => new ConnectConnection(each)), options);
  }
}

function pageOrigin(): string {
  const origin = globalThis.location?.origin;
  if (origin === undefined) throw new TypeError("url: there is no page whose origin could be taken: give the gateway's");
  return origin;
}

function readUrl(url: string, hasToken: boolean): string {
  if (!URL.canParse(url)) throw new TypeError(`url: expected https://host or http://host:port, got ${url}`);
  const { protocol, hostname, href } = new URL(url);
  if (protocol !== "https:" && protocol !== "http:") throw new TypeError(`url: expected https: or http:, got ${url}`);
  const isLocal = hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
  if (hasToken && protocol === "http:" && !isLocal) {
    throw invalid("token", `it would be sent to ${url} unencrypted: expected an https: URL`);
  }
  return href.replace(/\/+$/, "");
}
