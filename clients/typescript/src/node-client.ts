// The client for Node: gRPC, with sessions.

import { isLocal } from "./addresses.js";
import { BaseClient, SHARED_OPTIONS, type SharedOptions } from "./client.js";
import { findTarget } from "./environment.js";
import { GrpcConnection } from "./grpc-transport.js";
import { checkSecurity, filesStamp, type TlsOptions } from "./security.js";
import { ServerPool } from "./server-pool.js";
import { checkOptions } from "./request.js";
import { Session } from "./session.js";

const OPTIONS = [...SHARED_OPTIONS, "tls", "ca", "cert", "key", "serverName", "proxy"];

/** Options of a client. */
export interface ClientOptions extends SharedOptions, TlsOptions {
  /** Dial servers on other machines through the proxy that the environment names. Default: proxies are ignored. */
  readonly proxy?: boolean | undefined;
}

/**
 * Client of Ringline servers. Close it with `close()`, or `await using`.
 *
 * @example
 * const client = new Client("processor-1:50051,processor-2:50051", { timeoutMs: 120_000 });
 */
export class Client extends BaseClient {
  /**
   * `address`: host:port, unix:path or another target of gRPC; or several, as a list or with commas between them, which
   * are used in turn. Default: `RINGLINE_ADDRESS` of the environment, else 127.0.0.1:50051, with the token of
   * `RINGLINE_TOKEN`: no server that is named here gets that one.
   */
  constructor(address?: string | readonly string[], options: ClientOptions = {}) {
    checkOptions(options, OPTIONS);
    const { addresses, token, tokenName } = findTarget(address, options);
    checkSecurity(options, token, addresses, tokenName);
    const connect = (target: string) =>
      new GrpcConnection(target, { ...options, proxy: options.proxy && !isLocal(target) });
    super(new ServerPool(addresses, connect, () => filesStamp(options)), { ...options, token });
  }

  /**
   * Many requests on one stream: thousands at once are cheap, because the server sends the new output of all of them in
   * one message.
   *
   * @example
   * await using session = client.session();
   * const answers = await Promise.all(prompts.map((prompt) => session.generate(prompt, { maxTokens: 16 })));
   */
  session(): Session {
    const { pool, policy, timeoutMs, metadata } = this;
    return new Session({ pool, policy, timeoutMs, metadata });
  }
}
