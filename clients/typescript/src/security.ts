// TLS of connections: trusted authorities, this client's certificate, and files that are replaced.

import { readFileSync, statSync } from "node:fs";
import { type ChannelCredentials, credentials } from "@grpc/grpc-js";
import { isLocal } from "./addresses.js";
import type { Token } from "./client.js";
import { invalid } from "./errors.js";
import { checkToken } from "./token.js";

/** The path of a PEM file, or its contents. */
export type Pem = string | Uint8Array;

/** How connections are secured. They are plaintext unless one of `tls`, `ca` and `cert` is given. */
export interface TlsOptions {
  /** Encrypt, and trust the public authorities. */
  readonly tls?: boolean | undefined;
  /** The trusted authorities, in place of the public ones. Changed files are read again for new requests. */
  readonly ca?: Pem | undefined;
  /** This client's certificate, for servers that require one; with `key`. */
  readonly cert?: Pem | undefined;
  readonly key?: Pem | undefined;
  /** The name expected in the server's certificate, if not the address's host. */
  readonly serverName?: string | undefined;
}

/** Whether connections use TLS. */
export function isEncrypted({ tls, ca, cert }: TlsOptions): boolean {
  return tls === true || ca !== undefined || cert !== undefined;
}

/**
 * Throw InvalidRequest for options that do not fit together, a malformed token, or one that would be sent to others
 * unencrypted. `tokenName`: where the token comes from.
 */
export function checkSecurity(
  options: TlsOptions,
  token: Token | undefined,
  addresses: readonly string[],
  tokenName: string,
): void {
  if (typeof token === "string") checkToken(token, tokenName);
  const { cert, key, serverName } = options;
  if ((cert === undefined) !== (key === undefined)) {
    const [there, absent] = cert === undefined ? ["key", "cert"] : ["cert", "key"];
    throw invalid(there, `given without ${absent}: expected both or neither`);
  }
  if (isEncrypted(options)) return;
  if (serverName !== undefined) throw invalid("serverName", "used with TLS only: add tls or ca, or leave it out");
  const exposed = addresses.find((address) => !isLocal(address));
  if (token !== undefined && exposed !== undefined) {
    throw invalid(tokenName, `it would be sent to ${exposed} unencrypted: add tls or ca`);
  }
}

/** Credentials for a new connection, from the files' current contents. */
export function credentialsOf(options: TlsOptions): ChannelCredentials {
  if (!isEncrypted(options)) return credentials.createInsecure();
  const [ca, key, cert] = [read("ca", options.ca), read("key", options.key), read("cert", options.cert)];
  if (ca !== null && !ca.includes("CERTIFICATE-----")) {
    const name = typeof options.ca === "string" ? options.ca : "what was given";
    throw invalid("ca", `${name} contains no PEM certificate: expected at least one`);
  }
  return credentials.createSsl(ca, key, cert);
}

/** Changes when one of the files is replaced. */
export function filesStamp({ ca, cert, key }: TlsOptions): string {
  const paths = [ca, cert, key].filter((pem) => typeof pem === "string");
  return paths
    .map((path) => {
      const info = statSync(path, { throwIfNoEntry: false });
      return info === undefined ? "" : `${info.mtimeMs} ${info.ino}`;
    })
    .join();
}

function read(name: string, pem: Pem | undefined): Buffer | null {
  if (pem === undefined) return null;
  if (typeof pem !== "string") return Buffer.from(pem);
  try {
    return readFileSync(pem);
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    throw invalid(name, `${pem} cannot be read: ${why}`);
  }
}
